"""The payload of a message or an event is any JSON value, and arrives as it was."""

import psycopg
import pytest

from forebay.client import Client
from tests.support.delivering import PlainRouter, bury, create_endpoint
from tests.support.engine import connect, one

VALUES = [
    {}, {"a": 1}, [], [1, {"b": None}], "text", "", 7, 0, 1.5, True, False,
    {"forebay.payload": 1}, {"forebay.payload": {"x": 1}, "y": 2}, {"payload": 1},
]  # fmt: skip


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        create_endpoint(conn, "shop", "http", {"url": "https://a.example/hook"})
        one(conn, "select forebay.create_event_type('e')")
        yield conn


@pytest.fixture
def client(database):
    return Client(database)


def payloads(conn):
    return [
        row[0] for row in conn.execute("select payload from forebay.published order by route_no")
    ]


def test_an_event_has_the_payload_that_was_published(database, conn, client):
    """One at a time, many at once, and null in SQL; with a subscriber, and as a dead letter."""
    one(conn, "select forebay.subscribe('shop', 'e')")
    with PlainRouter(database, "forebay.publish") as router:
        router.route()
        for value in VALUES:
            client.publish(conn, "e", value)
        client.publish_many(conn, "e", VALUES)
        conn.execute("select forebay.publish('e', 'null')")
        client.publish(conn, "e", None)
        router.route()
        router.route()
    assert payloads(conn) == [*VALUES, *VALUES, None, {}]
    bury(database)
    dead = "select args -> 'payload' from forebay.dead_letter order by job_id"
    assert [row[0] for row in conn.execute(dead)] == [*VALUES, *VALUES, None, {}]


@pytest.mark.parametrize(("filter_", "matching"), [
    ({"a": 1}, [{"a": 1}]),
    ([1], [[1, {"b": None}]]),
    ("text", ["text"]),
    ([], [[], [1, {"b": None}]]),
    (7, [7]),
    ({"forebay.payload": 1}, [{"forebay.payload": 1}]),
    ([{"b": None}], [[1, {"b": None}]]),
])  # fmt: skip
def test_a_filter_is_any_value_that_the_payload_contains(database, conn, client, filter_, matching):
    """Also in the backfill of a subscription that begins earlier, and in a replay."""
    with PlainRouter(database, "forebay.publish") as router:
        client.publish_many(conn, "e", VALUES)
        router.route()
        client.subscribe("shop", "e", filter_, start="beginning")
        router.route()
        client.publish_many(conn, "e", VALUES)
        router.route()
    assert client.subscriptions("shop")[0].filter == filter_
    query = (
        "select p.payload from forebay.log l join forebay.published p on p.event_id ="
        " (l.args -> 'event' ->> 0)::bigint where l.limit_key = 'shop' order by l.seq"
    )
    assert [row[0] for row in conn.execute(query)] == [*matching, *matching]


def test_sql_null_is_no_payload(conn):
    for call in (
        "send('shop', null)",
        "publish('e', null)",
        "send_many('shop', array[null::jsonb])",
    ):
        with pytest.raises(psycopg.Error, match="payload is null") as raised:
            conn.execute(f"select forebay.{call}")
        assert raised.value.sqlstate == "JQ001"

"""A bound on what waits for an endpoint: senders and publishers are told before they write."""

import json

import psycopg
import pytest

from forebay.client import Client
from forebay.errors import QueueFull
from tests.support.delivering import PlainRouter, alter_endpoint, create_endpoint, send
from tests.support.engine import Reader, connect, one
from tests.support.mutant import break_function

URL = {"url": "https://a.example/hook"}


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        one(conn, "select forebay.create_event_type('e')")
        yield conn


@pytest.fixture
def client(database):
    return Client(database)


def shop(conn, **options):
    return create_endpoint(conn, "shop", "http", URL, **options)


def rows(conn):
    return one(conn, "select count(*) from forebay.log where limit_key is not null or kind = 'e'")


def full(conn, call):
    """Expect that a call is refused with nothing written; return the detail of the error."""
    before = rows(conn)
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(f"select forebay.{call}")
    assert refused.value.sqlstate == "53400"
    assert "'shop' is full" in refused.value.diag.message_primary
    assert refused.value.diag.message_hint
    assert rows(conn) == before
    return json.loads(refused.value.diag.message_detail)


def test_a_new_endpoint_has_a_bound_that_can_be_removed(conn, client):
    shop(conn)
    assert client.endpoint("shop").max_waiting == 1_000_000
    assert client.endpoint("shop").when_full == "refuse"
    assert one(conn, "select forebay.alter_endpoint('shop', max_waiting => 0)")
    assert client.endpoint("shop").max_waiting is None
    client.create_endpoint("mail", "http", URL, max_waiting=0)
    assert client.endpoint("mail").max_waiting is None


def test_a_message_beyond_the_bound_is_refused(conn, client):
    """By send and both forms of send_many, which count all of their messages."""
    shop(conn, max_waiting=3)
    send(conn, "shop", 2)
    assert full(conn, "send_many('shop', array['1', '2']::jsonb[])") == {
        "endpoint": "shop", "waiting": 2, "max_waiting": 3,
    }  # fmt: skip
    two = json.dumps([{"endpoint": "shop", "payload": 1}] * 2)
    assert full(conn, f"send_many('{two}')")["waiting"] == 2
    send(conn, "shop")
    assert full(conn, "send('shop', '1')")["waiting"] == 3
    with pytest.raises(QueueFull) as raised:
        client.send(conn, "shop", 1)
    assert (raised.value.endpoint, raised.value.queue) == ("shop", None)
    assert (raised.value.waiting, raised.value.max_waiting) == (3, 3)
    alter_endpoint(conn, "shop", max_waiting=4)
    send(conn, "shop")


def test_a_message_that_was_sent_before_is_found_again_where_the_endpoint_is_full(conn):
    """So a sender whose answer was lost may repeat the call; a new message is refused still."""
    shop(conn, max_waiting=2)
    key = """'{"idempotent": "order:7"}'"""
    sent = one(conn, f"select forebay.send('shop', '1', unique_as => {key})")
    one(conn, "select forebay.send('shop', '2')")
    assert one(conn, f"select forebay.send('shop', '1', unique_as => {key})") == sent
    again = {"endpoint": "shop", "payload": 1, "unique_as": {"idempotent": "order:7"}}
    assert (
        one(conn, "select forebay.send_many(%s::jsonb)", json.dumps([again, again])) == [sent] * 2
    )
    full(conn, """send('shop', '3', unique_as => '{"idempotent": "order:8"}')""")
    for new in ({}, {"unique_as": {"idempotent": "order:8"}}):
        messages = json.dumps([again, {"endpoint": "shop", "payload": 3, **new}])
        seen = full(conn, f"send_many('{messages}'::jsonb)")
        assert seen == {"endpoint": "shop", "waiting": 2, "max_waiting": 2}


def test_what_waits_for_another_endpoint_does_not_count(conn):
    """Met by a deliverer or not."""
    shop(conn, max_waiting=3)
    create_endpoint(conn, "mail", "http", URL)
    send(conn, "mail", 20)
    send(conn, "shop", 3)
    assert full(conn, "send('shop', '1')")["waiting"] == 3


def test_parked_deliveries_count_and_done_ones_do_not(database, conn):
    shop(conn, max_waiting=5, concurrency=1)
    send(conn, "shop", 5)
    with Reader(database, "forebay.deliver") as reader:
        batch = reader.claim_ready(1)
        while reader.claim_ready(100).jobs:
            pass
        assert one(conn, "select waiting from forebay._endpoint_waiting('shop')") == 4
        send(conn, "shop")
        assert full(conn, "send('shop', '1')")["waiting"] == 5
        reader.finish(batch)
        assert full(conn, "send('shop', '1')")["waiting"] == 5
        reader.finish(reader.claim_ready(1))
        send(conn, "shop")


def test_a_publish_is_refused_if_a_full_endpoint_would_get_the_event(database, conn, client):
    """One that its filter leaves out, and one of another type, are published."""
    shop(conn, max_waiting=2)
    one(conn, "select forebay.subscribe('shop', 'e', '{\"a\": 1}')")
    one(conn, "select forebay.create_event_type('other')")
    with PlainRouter(database, "forebay.publish") as router:
        router.route()
    send(conn, "shop", 2)
    assert full(conn, "publish('e', '{\"a\": 1}')")["endpoint"] == "shop"
    events = [{"event_type": "e", "payload": {"a": n}} for n in (2, 1)]
    full(conn, f"publish_many('{json.dumps(events)}')")
    one(conn, "select event_id from forebay.publish('e', '{\"a\": 2}')")
    one(conn, "select event_id from forebay.publish('other')")
    with pytest.raises(QueueFull):
        client.publish(conn, "e", {"a": 1})
    one(conn, "select forebay.disable_endpoint('shop')")
    one(conn, "select event_id from forebay.publish('e', '{\"a\": 1}')")


def test_events_that_no_router_has_expanded_count(database, conn):
    """The fan-out of what was published before is on its way."""
    shop(conn, max_waiting=3)
    one(conn, "select forebay.subscribe('shop', 'e')")
    with PlainRouter(database, "forebay.publish") as router:
        router.route()
        for _ in range(3):
            one(conn, "select event_id from forebay.publish('e')")
        assert full(conn, "publish('e')")["waiting"] == 3
        full(conn, "send('shop', '1')")
        router.route()
        # None of them is dropped: they were accepted.
        assert full(conn, "publish('e')")["waiting"] == 3
        assert one(conn, "select count(*) from forebay.log where limit_key = 'shop'") == 3


def test_without_the_check_a_full_endpoint_takes_more(database, conn):
    """The test above would see it."""
    shop(conn, max_waiting=1)
    send(conn, "shop")
    break_function(database, "send", ("v_waiting := forebay._waiting_beyond(v_endpoint, 1);", ""))
    send(conn, "shop")


def test_a_publisher_is_told_that_events_are_dropped(database, conn, client):
    """By its answer, a count and the health, until the endpoint takes all again."""
    shop(conn, max_waiting=2, when_full="drop", concurrency=1)
    one(conn, "select forebay.subscribe('shop', 'e')")
    with (
        PlainRouter(database, "forebay.publish") as router,
        Reader(database, "forebay.deliver") as reader,
    ):
        router.route()
        for _ in range(2):
            assert client.publish(conn, "e").dropping == 0
        router.route()
        reader.claim_ready(1)
        while reader.claim_ready(100).jobs:
            pass
        for _ in range(2):
            assert client.publish(conn, "e").dropping == 0
        router.route()
        while reader.claim_ready(100).jobs:
            pass
        found = client.publish(conn, "e")
        assert (found.subscriptions, found.dropping) == (1, 1)
        endpoint = client.endpoint("shop")
        assert endpoint.is_overfull
        assert endpoint.dropped_per_second > 0
        measured = one(conn, "select forebay.measurements()")["endpoints"][0]
        assert (measured["is_full"], measured["is_overfull"]) == (True, True)
        assert measured["dropped_per_second"] > 0
        full(conn, "send('shop', '1')")
        alter_endpoint(conn, "shop", when_full="refuse")
        assert not client.endpoint("shop").is_overfull
        full(conn, "publish('e')")


def test_messages_of_the_own_transaction_count(conn):
    shop(conn, max_waiting=2)
    with conn.transaction(force_rollback=True):
        send(conn, "shop", 2)
        with pytest.raises(psycopg.Error, match="is full"), conn.transaction():
            send(conn, "shop")
    send(conn, "shop", 2)

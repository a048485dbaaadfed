"""send_many: many messages in one statement, all or none, with the options and keys of send."""

import json

import psycopg
import pytest

from forebay.client import Client
from forebay.errors import EndpointDisabled, EndpointNotFound, InvalidJob, PayloadTooLarge
from forebay.model.unique import Once
from tests.support.delivering import alter_endpoint, create_endpoint
from tests.support.engine import connect, one

URL = {"url": "https://a.example/hook"}


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        for name in ("shop", "mail"):
            create_endpoint(conn, name, "http", URL)
        yield conn


@pytest.fixture
def client(database):
    return Client(database)


def written(conn):
    query = (
        "select l.limit_key, l.kind, l.args -> 'payload', l.ordering_key, l.tag"
        " from forebay.log l order by l.seq"
    )
    return conn.execute(query).fetchall()


def refused(conn, messages, *, sqlstate, match):
    """Send; expect the error, and nothing written."""
    with pytest.raises(psycopg.Error, match=match) as raised:
        conn.execute("select forebay.send_many(%s::jsonb)", [json.dumps(messages)])
    assert raised.value.sqlstate == sqlstate
    assert written(conn) == []
    detail = raised.value.diag.message_detail
    return None if detail is None else json.loads(detail).get("index")


def test_messages_to_several_endpoints_have_their_own_options(conn):
    """The ids are those of the deliveries, in input order, the delayed ones among them."""
    messages = [
        {"endpoint": "shop", "payload": {"n": 1}, "kind": "order", "ordering_key": "k"},
        {"endpoint": "mail", "payload": "text", "delay": 60},
        {"endpoint": "mail", "payload": None, "tag": "t"},
    ]
    ids = one(conn, "select forebay.send_many(%s::jsonb)", json.dumps(messages))
    assert written(conn) == [
        ("shop", "order", {"n": 1}, "shop/k", None),
        ("mail", "message", None, None, "t"),
    ]
    states = [one(conn, "select state from forebay.job(%s)", number) for number in ids]
    assert states == ["ready", "scheduled", "ready"]
    assert [one(conn, "select limit_key from forebay.job(%s)", number) for number in ids] == [
        "shop", "mail", "mail",
    ]  # fmt: skip


def test_a_message_is_what_send_writes(conn):
    """Both forms of send_many, and a single send, leave equal rows."""
    alter_endpoint(conn, "shop", max_age="1 hour")
    options = (
        "kind => 'k', priority => 7, ordering_key => 'o', tag => 't', headers => '{\"a\": \"b\"}'"
    )
    one(conn, f"select forebay.send('shop', '[1]', {options})")
    one(conn, f"select forebay.send_many('shop', array['[1]'::jsonb], {options})")
    message = {
        "endpoint": "shop", "payload": [1], "kind": "k", "priority": 7, "ordering_key": "o",
        "tag": "t", "headers": {"a": "b"},
    }  # fmt: skip
    one(conn, "select forebay.send_many(%s::jsonb)", json.dumps([message]))
    rows = conn.execute(
        "select distinct lane, kind, args, tag, headers, ordering_key, limit_key, max_attempts,"
        " expires_at - enqueued_at between interval '59 min' and interval '1 hour'"
        " from forebay.log"
    ).fetchall()
    assert len(rows) == 1
    assert rows[0][-1]


@pytest.mark.parametrize(("bad", "sqlstate", "match"), [
    (7, "JQ001", "message 1: must be a JSON object, not number"),
    ({"endpoint": "shop", "payload": 1, "queue": "q"}, "JQ001", "message 1: unknown option"),
    ({"payload": 1}, "JQ001", "message 1: has no endpoint"),
    ({"endpoint": "shop"}, "JQ001", "message 1: has no payload"),
    ({"endpoint": "no", "payload": 1}, "JQ050", "message 1: endpoint 'no' not found"),
    ({"endpoint": "mail", "payload": 1}, "JQ052", "message 1: endpoint 'mail' is disabled"),
    ({"endpoint": "shop", "payload": 1, "kind": "a b"}, "JQ001", "message 1: kind 'a b'"),
    ({"endpoint": "shop", "payload": 1, "delay": -1}, "JQ001", "message 1: delay -1"),
    ({"endpoint": "shop", "payload": "x" * 2_000_000}, "JQ002", "message 1: args take"),
    ({"endpoint": "shop", "payload": 1, "unique_as": {"x": 1}}, "JQ001", "message 1: "),
    ({"endpoint": "shop", "payload": 1, "headers": {"a": 1}}, "JQ001", "message 1: headers"),
])  # fmt: skip
def test_the_first_bad_message_is_named_and_none_is_sent(conn, bad, sqlstate, match):
    one(conn, "select forebay.disable_endpoint('mail')")
    good = {"endpoint": "shop", "payload": {}}
    assert refused(conn, [good, bad, good, bad], sqlstate=sqlstate, match=match) == 1


def test_options_of_the_wrong_type_are_refused(conn):
    bad = [{"endpoint": "shop", "payload": 1, "run_at": "tomorrow-ish"}]
    refused(conn, bad, sqlstate="JQ001", match="wrong type")
    refused(conn, {"endpoint": "shop"}, sqlstate="JQ001", match="must be a JSON array, not object")


def test_nothing_is_an_empty_list(conn):
    assert one(conn, "select forebay.send_many('[]')") == []
    assert one(conn, "select forebay.send_many('shop', '{}')") == []
    assert one(conn, "select forebay.send_many('shop', null)") == []


def test_keys_are_those_of_send(conn, client):
    """A message whose key is taken is not sent again; its id is that of the first one."""
    first = client.send(conn, "shop", {"n": 0}, unique=Once("a"))
    found = client.send_many(
        conn, "shop", [{"n": 1}, {"n": 2}, {"n": 3}], unique=[Once("a"), Once("b"), Once("b")]
    )
    assert found == [first, found[1], found[1]]
    assert [row[2] for row in written(conn)] == [{"n": 0}, {"n": 2}]


def test_python_sends_any_values_and_names_the_bad_one(conn, client):
    ids = client.send_many(conn, "shop", iter([{"a": 1}, [1], "x", None]), kind="k", tag="t")
    assert len(set(ids)) == 4
    assert [row[2] for row in written(conn)] == [{"a": 1}, [1], "x", None]
    with pytest.raises(InvalidJob, match="message 1: ") as raised:
        client.send_many(conn, "shop", [{}, {"a": float("nan")}])
    assert raised.value.index == 1
    with pytest.raises(PayloadTooLarge) as large:
        client.send_many(conn, "shop", [{}, "x" * 2_000_000])
    assert large.value.index == 1
    with pytest.raises(InvalidJob, match="1 key for 2 payloads"):
        client.send_many(conn, "shop", [1, 2], unique=[Once("a")])
    with pytest.raises(InvalidJob, match="no uniqueness mode"):
        client.send_many(conn, "shop", [1], unique=["a"])
    for payloads in ({"a": 1}, "text", 7):
        with pytest.raises(InvalidJob, match="payloads must be"):
            client.send_many(conn, "shop", payloads)
    with pytest.raises(InvalidJob, match="option queue is that of the endpoint"):
        client.send_many(conn, "shop", [1], queue="q")
    with pytest.raises(EndpointNotFound):
        client.send_many(conn, "no", [1])
    client.disable_endpoint("mail")
    with pytest.raises(EndpointDisabled):
        client.send_many(None, "mail", [1])
    assert client.send_many(None, "shop", []) == []
    assert len(written(conn)) == 4


def test_a_rollback_sends_none(database, conn, client):
    with conn.transaction(force_rollback=True):
        client.send_many(conn, "shop", range(10))
    assert written(conn) == []

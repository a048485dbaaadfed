"""What a message says about its own request: refused where it is sent, unless its endpoint lets it
and it leads nowhere else.
"""

import json

import psycopg
import pytest

import forebay
from forebay.errors import EnqueueError, InvalidJob
from forebay.model.unique import Idempotent, Once
from forebay.sinks._suffix import is_suffix
from tests.support.delivering import alter_endpoint, create_endpoint
from tests.support.engine import connect, one

URL = "https://a.example/hooks"
OPEN = {"url": URL, "url_suffixes": True, "timeout_max": 60}

#: Suffixes that lead below an address.
GOOD = [
    "/a", "/orders/7", "/orders/7/", "/a.b", "/.well-known/x", "/..a", "/a..", "/a/b..c",
    "/7:cancel", "/a-b_c~d,e=f+g", "/" + "x" * 499, "/1/2/3/4/5/6/7/8/9",
]  # fmt: skip

#: What another place, another path, or another reading of a path could be made of.
BAD = [
    "", "a", "/", "//", "//evil.example", "/a//b", "a/b", "@evil.example", "/@evil", ":8080/a",
    "/a:80@b", ".evil.example", "https://evil.example", "/https://evil.example/", "/..", "/../a",
    "/a/..", "/a/../b", "/.", "/./a", "/a/.", "/...", "/a/..../b", "/a/../", "\\a", "/a\\b",
    "/\\evil.example", "/..\\a", "/..;/a", "/a;b=c", "/%2e%2e/a", "/%2E%2E%2Fa", "/%252e%252e/a",
    "/a%2fb", "/a%5cb", "/a%00", "/%c0%ae", "/a%0d%0aX: y", "/a?b=c", "?a", "/a#b", "#a", "/a&b",
    "/a b", " /a", "/a ", "/a\n", "/a\r\nHost: evil", "/a\tb", "/a\x7f", "/a\x01", "/a\x85",
    "/\u00e4", "/\uff0e\uff0e/a", "/a\u2215b", "/a\u202eb", "/\u2025/a", "/a\u00a0", "/a*", "/a|b",
    "/<a>", "/a'", '/a"', "/$a", "/{a}", "/[::1]", "/x" * 251, "/" + "x" * 500,
]  # fmt: skip


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        create_endpoint(conn, "shop", "http", OPEN)
        yield conn


@pytest.fixture
def client(database):
    return forebay.Client(database)


def args(conn, job_id):
    return one(conn, "select args from forebay.job(%s)", job_id)


def refused(conn, call, *values):
    with pytest.raises(psycopg.Error) as error:
        conn.execute(call, values)
    assert error.value.sqlstate == "JQ001"
    assert error.value.diag.message_hint.startswith("Nothing was sent. ")
    return error.value.diag


@pytest.mark.parametrize("suffix", GOOD)
def test_a_path_that_goes_down_is_sent_with_the_message(conn, suffix):
    job_id = one(conn, "select forebay.send('shop', '1', url_suffix => %s)", suffix)
    assert args(conn, job_id)["url_suffix"] == suffix
    assert is_suffix(suffix)


@pytest.mark.parametrize("suffix", BAD)
def test_a_suffix_that_could_lead_elsewhere_is_refused_by_each_way_to_send(conn, client, suffix):
    """SQL and the sink have the same rule. Nothing is written."""
    assert not is_suffix(suffix)
    assert refused(
        conn, "select forebay.send('shop', '1', url_suffix => %s)", suffix
    ).column_name == "url_suffix"  # fmt: skip
    refused(conn, "select forebay.send_many('shop', '{1,2}'::jsonb[], url_suffix => %s)", suffix)
    message = {"endpoint": "shop", "payload": 1}
    messages = [message, message | {"url_suffix": suffix}]
    found = refused(conn, "select forebay.send_many(%s::jsonb)", json.dumps(messages))
    assert found.message_primary.startswith("message 1: ")
    for send in (client.send, client.send_many):
        with pytest.raises(InvalidJob, match="url_suffix"):
            send(conn, "shop", [1], url_suffix=suffix)
    assert one(conn, "select count(*) from forebay.log") == 0


def test_a_suffix_or_a_timeout_needs_an_endpoint_that_lets_messages_have_one(conn, client):
    """By default, and for other sinks, it is refused."""
    create_endpoint(conn, "plain", "http", {"url": URL, "url_suffixes": False})
    create_endpoint(conn, "log", "redis-stream", {"url": "redis://a.example", "stream": "s"})
    for name in ("plain", "log"):
        for option in ("url_suffix => '/a'", "timeout => '5 s'"):
            for call in ("send(%s, '1'", "send_many(%s, '{1}'::jsonb[]"):
                found = refused(conn, f"select forebay.{call}, {option})", name)
                assert found.column_name in option
                assert "alter_endpoint" in found.message_hint
        with pytest.raises(InvalidJob, match=f"endpoint '{name}' takes no timeout"):
            client.send(conn, name, 1, timeout=5)


@pytest.mark.parametrize("timeout", ["0", "0.05 s", "60.001 s", "-1 s", "1 day", "1 month"])
def test_a_timeout_is_within_what_the_endpoint_allows(conn, client, timeout):
    found = refused(conn, "select forebay.send('shop', '1', timeout => %s)", timeout)
    assert found.column_name == "timeout"
    assert "0.1 s to 60 s" in found.message_primary
    for good in ("0.1 s", "60 s"):
        one(conn, "select forebay.send('shop', '1', timeout => %s)", good)


def test_a_message_with_null_options_is_as_one_without(conn, client):
    """Other deliveries carry nothing of it."""
    ids = [
        one(conn, "select forebay.send('shop', '1', url_suffix => null, timeout => null)"),
        *one(conn, "select forebay.send_many('shop', '{1}'::jsonb[], url_suffix => null)"),
        *one(conn, "select forebay.send_many('[{\"endpoint\": \"shop\", \"payload\": 1,"
                   " \"url_suffix\": null, \"timeout\": null}]')"),
        client.send(conn, "shop", 1, url_suffix=None, timeout=None),
    ]  # fmt: skip
    for job_id in ids:
        assert args(conn, job_id).keys() == {"payload", "endpoint"}


def test_all_ways_to_send_write_the_same(conn, client):
    """From SQL and from Python, one message and many, also with unique keys."""
    message = {"endpoint": "shop", "payload": 1, "url_suffix": "/a", "timeout": 2.5}
    options = "url_suffix => '/a', timeout => '2.5 s'"
    ids = [
        one(conn, f"select forebay.send('shop', '1', {options})"),
        *one(conn, f"select forebay.send_many('shop', array['1','1']::jsonb[], {options})"),
        *one(conn, "select forebay.send_many(%s::jsonb)", json.dumps([message] * 2)),
        client.send(conn, "shop", 1, url_suffix="/a", timeout=2.5),
        *client.send_many(conn, "shop", [1, 1], url_suffix="/a", timeout=2.5),
        *client.send_many(conn, "shop", [1], unique=[Once("a")], url_suffix="/a", timeout=2.5),
    ]  # fmt: skip
    found = [args(conn, job_id) for job_id in ids]
    assert all(each == found[0] for each in found)
    assert (found[0]["url_suffix"], found[0]["timeout"]) == ("/a", 2.5)


def test_another_suffix_is_another_message_for_an_idempotent_key(conn, client):
    first = client.send(conn, "shop", 1, url_suffix="/a", unique=Idempotent("k"))
    assert client.send(conn, "shop", 1, url_suffix="/a", unique=Idempotent("k")) == first
    with pytest.raises(EnqueueError):
        client.send(conn, "shop", 1, url_suffix="/b", unique=Idempotent("k"))


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ({"url_suffix": 7}, "url_suffix"),
        ({"url_suffix": ["/a"]}, "url_suffix"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": {}}, "timeout"),
        ({"timeout": 1e300}, "timeout"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(conn, client, option, field):
    message = {"endpoint": "shop", "payload": 1, **option}
    found = refused(conn, "select forebay.send_many(%s::jsonb)", json.dumps([message]))
    assert f"message 0: {field}" in found.message_primary
    with pytest.raises(InvalidJob, match=field):
        client.send(conn, "shop", 1, **option)


def test_the_settings_of_the_endpoint_are_checked(conn):
    for config, field in (
        ({"url_suffixes": "yes"}, "url_suffixes"),
        ({"timeout_max": 301}, "timeout_max"),
        ({"url_suffixes": True, "batch": "array"}, "url_suffixes"),
        ({"timeout_max": 5, "batch": "array"}, "timeout_max"),
    ):
        with pytest.raises(psycopg.Error) as error:
            alter_endpoint(conn, "shop", config={"url": URL} | config)
        assert error.value.diag.column_name == f"config.{field}"
    alter_endpoint(conn, "shop", config={"url": URL, "url_suffixes": False, "batch": "array"})

"""The values of an endpoint are checked where it is saved: each problem names its field and has a
hint, and nothing is written.
"""

import ipaddress
import itertools
import json

import psycopg
import pytest
from psycopg.types.json import Jsonb

from forebay.client import Client
from forebay.errors import ConfigError, InvalidJob
from forebay.sinks import checked_row_sink
from forebay.sinks._destination import _BLOCKED_V4, _BLOCKED_V6, _METADATA, is_internal
from tests.support.delivering import create_endpoint
from tests.support.engine import connect, one

URL = "https://a.example/hook"
TOKEN = {"token_url": "https://t.example/", "client_id": "a", "client_secret": "env:A"}
AWS = {"aws_service": "lambda", "aws_region": "eu-central-1"}
PIN = "sha256//" + "Ab+/" * 10 + "Abc="


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        conn.execute("truncate forebay.endpoint_host")
        yield conn


def problems(conn, **config):
    rows = conn.execute(
        "select field, problem, hint from forebay.validate_endpoint('x', 'http', %s)",
        [json.dumps(config)],
    ).fetchall()
    assert all(hint for _, _, hint in rows)
    return {field: problem for field, problem, _ in rows}


WRONG = [
    ("url", {"url": "ftp://foo"}, "has the scheme ftp"),
    ("url", {"url": "foo"}, "begins with https://"),
    ("url", {"url": None}, "begins with https://"),
    ("url", {"url": 7}, "begins with https://"),
    ("url", {"url": "https://u:p@a.example/"}, "a user or a password"),
    ("url", {"url": "https://a.example/#x"}, "a fragment"),
    ("url", {"url": "https://a.example:0/"}, "no host and port"),
    ("url", {"url": "https://a.example:70000/"}, "no host and port"),
    ("url", {"url": "https:///x"}, "no host and port"),
    ("url", {"url": "https://a b/"}, "contains a space"),
    ("url", {"url": "https://a.example/\u00e4"}, "other characters than ASCII"),
    ("url", {"url": "https://127.1/"}, "read in different ways"),
    ("url", {"url": "https://0x7f000001/"}, "read in different ways"),
    ("source", {"cloudevents": "binary"}, "is missing"),
    ("source", {"source": "/x"}, "no meaning without cloudevents"),
    ("cloudevents", {"cloudevents": "json", "source": "/x"}, "none of binary, structured"),
    ("cloudevents", {"cloudevents": "binary", "source": "/x", "batch": "array"}, "no arrays"),
    ("method", {"method": "post"}, "none of POST"),
    ("method", {"method": "GET", "batch": "array"}, "sends no body"),
    ("batch", {"batch": "all"}, "none of one, array"),
    ("timeout", {"timeout": 0}, "from 0.1 to 300"),
    ("timeout", {"timeout": "5"}, "from 0.1 to 300"),
    ("connect_timeout", {"connect_timeout": 61}, "from 0.1 to 60"),
    ("concurrency", {"concurrency": 1.5}, "a whole number"),
    ("response_bytes_max", {"response_bytes_max": 0}, "from 1 to 1000000"),
    ("show_response", {"show_response": "yes"}, "true or false"),
    ("url_suffixes", {"url_suffixes": 1}, "true or false"),
    ("url_suffixes", {"url_suffixes": True, "batch": "array"}, "no meaning for arrays"),
    ("redirects", {"redirects": 11}, "from 0 to 10"),
    ("redirects", {"redirects": 1.5}, "a whole number"),
    ("redirect_hosts", {"redirect_hosts": ["a.example"]}, "no meaning without redirects"),
    ("redirect_hosts", {"redirects": 3, "redirect_hosts": "a.example"}, "not a list"),
    ("redirect_hosts", {"redirects": 3, "redirect_hosts": ["a"] * 21}, "at most 20"),
    ("redirect_hosts", {"redirects": 3, "redirect_hosts": ["a", 7]}, "not a list"),
    ("redirect_hosts", {"redirects": 3, "redirect_hosts": ["https://a.example/"]}, "not a list"),
    ("redirect_hosts", {"redirects": 3, "redirect_hosts": ["u@a.example"]}, "not a list"),
    ("redirect_hosts", {"redirects": 3, "redirect_hosts": [""]}, "not a list"),
    ("redirect_hosts", {"redirects": 3, "redirect_hosts": [None]}, "not a list"),
    ("timeout_max", {"timeout_max": 301}, "from 0.1 to 300"),
    ("timeout_max", {"timeout_max": 5, "batch": "array"}, "no meaning for arrays"),
    ("headers", {"headers": ["a"]}, "not an object of texts"),
    ("headers", {"headers": {"a": 1}}, "not an object of texts"),
    ("headers", {"headers": {"a b": "c"}}, "HTTP does not allow"),
    ("headers", {"headers": {"Authorization": "x"}}, "a secret"),
    ("headers", {"headers": {"Webhook-Id": "x"}}, "the sink sets"),
    ("cert_file", {"cert_file": "c.pem"}, "not the absolute path"),
    ("cert_file", {"cert_file": "file:/c.pem"}, "not the absolute path"),
    ("cert_file", {"cert_file": ["/c.pem"]}, "not the absolute path"),
    ("cert_file", {"cert_file": "/a\nb"}, "not the absolute path"),
    ("cert_file", {"url": "http://a.example/", "cert_file": "/c.pem"}, "begins with http://"),
    ("key_file", {"cert_file": "/c.pem", "key_file": ""}, "not the absolute path"),
    ("key_file", {"key_file": "/k.pem"}, "no meaning without cert_file"),
    ("key_passphrase", {"cert_file": "/c.pem", "key_passphrase": "x"}, "not a reference"),
    ("key_passphrase", {"key_passphrase": "env:A"}, "no meaning without cert_file"),
    ("pinned", {"pinned": PIN}, "not a list"),
    ("pinned", {"pinned": []}, "not a list"),
    ("pinned", {"pinned": [PIN] * 11}, "not a list"),
    ("pinned", {"pinned": [PIN, 7]}, "not a list"),
    ("pinned", {"pinned": ["sha256//AA"]}, "not a list"),
    ("pinned", {"url": "HTTP://a.example/", "pinned": [PIN]}, "begins with http://"),
    ("token_url", TOKEN | {"auth": "env:A"}, "excludes auth"),
    ("aws_service", AWS | {"auth": "env:A"}, "excludes auth"),
    ("aws_service", AWS | TOKEN, "excludes token_url"),
    ("redirects", AWS | {"redirects": 1}, "excludes aws_service"),
    ("url_suffixes", AWS | {"url_suffixes": True}, "excludes aws_service"),
    (
        "redirect_hosts",
        {"cert_file": "/c", "redirects": 1, "redirect_hosts": ["a.example"]},
        "excludes cert_file",
    ),
    ("token_url", TOKEN | {"token_url": "ftp://a.example/"}, "has the scheme ftp"),
    ("token_url", TOKEN | {"token_url": "https://u:p@a.example/"}, "a user or a password"),
    ("token_url", TOKEN | {"token_url": ""}, "begins with https://"),
    ("client_id", TOKEN | {"client_id": None}, "is missing"),
    ("client_id", TOKEN | {"client_id": ""}, "printable"),
    ("client_id", TOKEN | {"client_id": "x" * 1001}, "printable"),
    ("client_id", {"client_id": "a"}, "no meaning without token_url"),
    ("client_secret", TOKEN | {"client_secret": None}, "is missing"),
    ("client_secret", TOKEN | {"client_secret": "s"}, "not a reference"),
    ("client_secret", TOKEN | {"client_secret": {"a": "env:A"}}, "not a reference"),
    ("scope", TOKEN | {"scope": "a  b"}, "names of ASCII"),
    ("scope", TOKEN | {"scope": " a"}, "names of ASCII"),
    ("scope", TOKEN | {"scope": 'a"b'}, "names of ASCII"),
    ("scope", TOKEN | {"scope": "a\\b"}, "names of ASCII"),
    ("scope", TOKEN | {"scope": "a" * 1001}, "names of ASCII"),
    ("scope", TOKEN | {"scope": ["a"]}, "names of ASCII"),
    ("scope", {"scope": "a"}, "no meaning without token_url"),
    ("audience", TOKEN | {"audience": "a\n"}, "printable"),
    ("token_auth", TOKEN | {"token_auth": "Basic"}, "none of basic, body"),
    ("aws_service", AWS | {"aws_service": "S3"}, "not a name of"),
    ("aws_region", AWS | {"aws_region": "a b"}, "not a name of"),
    ("aws_region", AWS | {"aws_region": None}, "is missing"),
    ("aws_region", {"aws_region": "a"}, "no meaning without aws_service"),
    ("aws_secret_key", AWS | {"aws_key_id": "env:A"}, "is missing"),
    ("aws_key_id", AWS | {"aws_secret_key": "env:A"}, "is missing"),
    ("aws_key_id", AWS | {"aws_key_id": "AKIA", "aws_secret_key": "env:A"}, "not a reference"),
    ("aws_session_token", AWS | {"aws_session_token": "env:A"}, "no meaning without aws_key_id"),
    ("headers", AWS | {"headers": {"X-Amz-Date": "x"}}, "the signature sets"),
]


@pytest.mark.parametrize(("field", "config", "problem"), WRONG)
def test_a_wrong_value_is_named_with_a_hint_and_nothing_is_saved(conn, field, config, problem):
    """At creation and at a change, by SQL; the class of the sink refuses the same."""
    config = {"url": URL} | config
    assert problem in problems(conn, **config)[f"config.{field}"]
    with pytest.raises(psycopg.Error) as refused:
        create_endpoint(conn, "shop", "http", config)
    assert refused.value.sqlstate == "JQ001"
    assert refused.value.diag.column_name == f"config.{field}"
    assert one(conn, "select count(*) from forebay.endpoint") == 0
    create_endpoint(conn, "shop", "http", {"url": URL})
    with pytest.raises(psycopg.Error, match=field):
        conn.execute("select forebay.alter_endpoint('shop', config => %s)", [json.dumps(config)])
    assert one(conn, "select config from forebay.endpoint") == {"url": URL}
    with pytest.raises(ConfigError):
        checked_row_sink("http", config)


@pytest.mark.parametrize("config", [
    {}, {"url": "HTTP://A.example.:8080/x?y=@z"}, {"url": "https://1.1.1.1/"},
    {"url": "https://[2606:4700::1111]:8443/"}, {"timeout": 0.1, "connect_timeout": 60},
    {"cloudevents": "structured", "source": "/shop", "batch": "array"},
    {"cert_file": "/c.pem"}, {"cert_file": "/c", "key_file": "/k", "key_passphrase": "file:/p"},
    TOKEN, TOKEN | {"scope": "a b:c/d", "audience": "https://x", "token_auth": "body"},
    TOKEN | {"client_id": "env:ID", "cert_file": "/c", "auth": None, "aws_region": None},
    AWS, AWS | {"aws_key_id": "env:A", "aws_secret_key": "env:B", "aws_session_token": "env:C"},
    AWS | {"headers": {"X-Amz-Target": "a"}},
    {"pinned": [PIN] * 10, "cert_file": None, "key_file": None}, {"pinned": [PIN]},
    {"url_suffixes": True, "timeout_max": 300}, {"url_suffixes": False, "batch": "array"},
    {"redirects": 10}, {"redirects": 0, "redirect_hosts": []},
    {"redirects": 1, "redirect_hosts": ["a.example", "*.b.example:8443", "10.0.0.0/8", "[::1]:80"]},
    {"method": "GET"}, {"headers": {"X-Key": "env:KEY"}, "show_response": True},
])  # fmt: skip
def test_what_the_class_of_the_sink_takes_is_taken(conn, config):
    config = {"url": URL} | config
    assert problems(conn, **config) == {}
    checked_row_sink("http", config)
    create_endpoint(conn, "shop", "http", config)


#: A value that is fine by itself, for each setting that stands for a login or belongs to one.
LOGIN = {
    "auth": "env:A", **TOKEN, "scope": "a", "audience": "a", "token_auth": "body", **AWS,
    "aws_key_id": "env:A", "aws_secret_key": "env:A", "aws_session_token": "env:A",
    "cert_file": "/c", "key_file": "/k", "key_passphrase": "env:A", "pinned": [PIN],
}  # fmt: skip


def test_sql_and_python_refuse_the_same_combinations_of_logins(conn):
    """All pairs of settings, and of what makes a whole login with each two settings more."""
    wholes = [
        {}, {"auth": "env:A"}, TOKEN, AWS, {"cert_file": "/c"},
        AWS | {"aws_key_id": "env:A", "aws_secret_key": "env:A"},
    ]  # fmt: skip
    pairs = itertools.combinations(LOGIN, 2)
    configs = [
        {"url": url} | whole | {name: LOGIN[name] for name in pair}
        for whole, pair, url in itertools.product(wholes, pairs, (URL, "http://a.example/"))
    ]
    found = conn.execute(
        "select count(p.field) > 0 from jsonb_array_elements(%s) with ordinality c (config, nr)"
        " left join forebay.validate_endpoint('x', 'http', c.config) p on true"
        " group by c.nr order by c.nr",
        [Jsonb(configs)],
    ).fetchall()
    taken = 0
    for config, (refused,) in zip(configs, found, strict=True):
        try:
            checked_row_sink("http", config)
        except ConfigError:
            assert refused, config
        else:
            assert not refused, config
            taken += 1
    assert 20 < taken < len(configs) / 2


@pytest.mark.parametrize("host", [
    "10.0.0.1", "127.0.0.1", "169.254.169.254", "192.168.1.1", "[::1]", "[fd00::1]", "localhost",
    "a.localhost", "[::ffff:10.0.0.1]",
])  # fmt: skip
def test_an_address_that_is_not_public_is_refused_until_it_is_allowed(conn, host):
    """It is named, with what to do. The list can have a port."""
    url = f"https://{host}/"
    assert host.strip("[]") in problems(conn, url=url)["config.url"]
    one(conn, "select forebay.allow_hosts(%s)", [f"{host}:8443"])
    assert "config.url" in problems(conn, url=url)
    assert problems(conn, url=f"https://{host}:8443/") == {}
    one(conn, "select forebay.allow_hosts(%s)", [host])
    assert problems(conn, url=url) == {}


def test_a_network_that_is_allowed_has_no_metadata_service(conn):
    assert one(conn, "select forebay.allow_hosts('{169.254.0.0/16,*.internal}')")
    assert not one(conn, "select forebay.allow_hosts('{*.internal,169.254.0.0/16}')")
    assert problems(conn, url="http://169.254.1.1/") == {}
    assert "config.url" in problems(conn, url="http://169.254.169.254/")
    old, new = conn.execute(
        "select old -> 'hosts', new -> 'hosts' from forebay.event where act = 'endpoints.hosts'"
    ).fetchone()
    assert (old, new) == ([], ["*.internal", "169.254.0.0/16"])


def test_sql_and_python_know_the_same_networks(conn):
    """The first and the last address of each, and their neighbours."""
    edges = []
    for network in (*_BLOCKED_V4, *_BLOCKED_V6, ipaddress.ip_network("2000::/3")):
        first, last = network.network_address, network.broadcast_address
        edges += [first, last]
        edges += [
            type(first)(int(edge) + step)
            for edge, step in ((first, -1), (last, 1))
            if 0 < int(edge) + step < 2**first.max_prefixlen
        ]
    edges += _METADATA
    for edge in edges:
        public = one(conn, "select forebay._is_public(%s)", str(edge))
        assert public is not (is_internal(edge) or edge in _METADATA), edge


@pytest.mark.parametrize("hosts", [None, [""], ["a b"], ["x" * 301], ["a"] * 1 + [None]])
def test_a_bad_list_of_hosts_changes_nothing(conn, hosts):
    one(conn, "select forebay.allow_hosts('{localhost}')")
    with pytest.raises(psycopg.Error) as refused:
        conn.execute("select forebay.allow_hosts(%s::text[])", [hosts])
    assert (refused.value.sqlstate, refused.value.diag.column_name) == ("JQ001", "hosts")
    assert one(conn, "select array_agg(host) from forebay.endpoint_host") == ["localhost"]


def test_all_problems_are_told_at_once_and_nothing_is_written(database, conn):
    """Of options and of the configuration; a name that is taken is none."""
    client = Client(database)
    create_endpoint(conn, "shop", "http", {"url": URL})
    config = {"url": "ftp://foo", "timeout": 0}
    found = client.validate_endpoint("shop", "http", config, rate=0, burst=0)
    assert [each.field for each in found] == ["config.timeout", "config.url", "burst", "rate"]
    assert client.validate_endpoint("shop", "http", {"url": URL}) == []
    assert [each.field for each in client.validate_endpoint("a b", "none", {})] == ["name", "sink"]
    with pytest.raises(InvalidJob, match="not an option"):
        client.validate_endpoint("shop", "http", {"url": URL}, colour="red")
    assert one(conn, "select count(*) from forebay.endpoint") == 1


def test_no_value_of_the_configuration_is_repeated(conn):
    secret = "zzsecret"
    config = {
        "url": f"https://{secret}:{secret}@a.example/", "timeout": secret, "method": secret,
        "source": f"{secret}\n", "cloudevents": secret, "headers": {"a": [secret]},
    }  # fmt: skip
    assert secret not in str(problems(conn, **config))

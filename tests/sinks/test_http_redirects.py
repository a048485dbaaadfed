"""Redirects of an HTTP endpoint: followed only if they are asked for, with the same message, to
places that the configuration names and that may be called, and without a secret.
"""

import asyncio
import threading

import pytest
from aiohttp import web

from forebay.errors import ConfigError
from forebay.sinks import Accepted, Rejected, TryLater, make_sink
from forebay.sinks.http import Destinations, Http, Secret
from forebay.testing import make_message
from tests.support.http_endpoint import HttpEndpoint

KEY = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another server, of another origin."""
    with HttpEndpoint(tmp_path_factory.mktemp("other")) as server:
        yield server


@pytest.fixture
def make(http_endpoint, far_name):
    def made(*, path="", allow=("127.0.0.1",), **options):
        destinations = Destinations(allow=allow, https_only=False, ports=None)
        return Http(
            f"http://127.0.0.1:{http_endpoint.port}/{far_name}{path}",
            **{"destinations": destinations, "redirects": 3} | options,
        )

    return made


def send(sink, *messages):
    async def use():
        await sink.open()
        try:
            return await sink.send(messages or [make_message(1)])
        finally:
            await sink.close()

    return asyncio.run(use())


@pytest.fixture
def leads(http_endpoint, far_name):
    """Let the endpoint answer a path with a redirect, and all others with 200."""
    places = {}

    async def answer(request):
        if request.path in places:
            status, location = places[request.path]
            return web.Response(status=status, headers={"Location": location})
        return web.Response(text="ok")

    http_endpoint.answers[far_name] = answer

    def lead(path, location, status=307):
        places[f"/{far_name}{path}"] = (status, location)

    return lead


@pytest.fixture
def arrived(http_endpoint, far_name):
    return http_endpoint.requests[far_name]


def paths(arrived, far_name):
    return [request.path.removeprefix(f"/{far_name}") for request in arrived]


# --- which ---


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET", "DELETE"])
def test_a_redirect_at_the_same_place_keeps_method_body_and_headers(
    make, leads, arrived, far_name, status, method
):
    """What is accepted is the message. Authorization and signature go along, to the same place."""
    leads("", f"/{far_name}/new?a=1", status)
    leads("/new?a=1", "newer", status)
    options = {"auth": Secret("bearer canary"), "headers": {"X-Key": "k"}, "secrets": [Secret(KEY)]}
    assert send(make(method=method, **options)) == [Accepted()]
    assert paths(arrived, far_name) == ["", "/new?a=1", "/newer"]
    assert len({(one.method, one.body) for one in arrived}) == 1
    assert arrived[0].headers == arrived[2].headers
    assert arrived[2].headers["authorization"] == "Bearer canary"
    assert "webhook-signature" in arrived[2].headers


@pytest.mark.parametrize("status", [301, 302, 303])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET", "DELETE"])
def test_a_redirect_that_would_drop_the_body_is_followed_for_get_only(
    make, leads, arrived, far_name, status, method
):
    """Or the answer to a request without the message would accept the message."""
    leads("", f"/{far_name}/new", status)
    (answer,) = send(make(method=method))
    if method == "GET":
        assert answer == Accepted()
        assert [one.method for one in arrived] == ["GET", "GET"]
    else:
        assert isinstance(answer, TryLater)
        assert answer.reason.endswith("not followed: it would drop the body of the message")
        assert len(arrived) == 1


@pytest.mark.parametrize("status", [300, 304, 305, 306, 307])
def test_a_status_without_an_address_is_no_redirect(http_endpoint, far_name, make, arrived, status):
    http_endpoint.statuses(far_name, status)
    (answer,) = send(make(method="GET"))
    assert answer.reason.endswith("not followed: it names no address")
    assert len(arrived) == 1


def test_the_number_of_redirects_is_bounded_also_in_a_loop(make, leads, arrived):
    leads("", "?a")
    leads("?a", "?b")
    leads("?b", "?a")
    (answer,) = send(make())
    assert isinstance(answer, TryLater)
    assert answer.reason.endswith("not followed: there were 3 before it")
    assert len(arrived) == 4
    arrived.clear()
    assert isinstance(send(make(redirects=1))[0], TryLater)
    assert len(arrived) == 2
    arrived.clear()
    assert send(make(redirects=0)) == [TryLater("HTTP status 307: redirect, which is not followed")]
    assert len(arrived) == 1


def test_the_answer_at_the_end_decides(make, leads, arrived, http_endpoint, far_name):
    """Also which messages of an array are refused."""
    leads("", "new")

    async def answer(request):
        if "new" not in request.path:
            return web.Response(status=308, headers={"Location": f"/{far_name}/new"})
        return web.Response(status=422 if b'"n":1' in request.body else 200)

    http_endpoint.answers[far_name] = answer
    assert send(make()) == [Rejected("HTTP status 422")]
    messages = [make_message(number) for number in (0, 1)]
    assert send(make(batch="array"), *messages) == [Accepted(), Rejected("HTTP status 422")]


# --- where to ---


def test_another_place_must_be_listed_and_gets_no_secret(make, leads, other, arrived, far_name):
    """Neither authorization, headers of the configuration, cookies nor signatures; the message is
    the same.
    """
    place = f"http://127.0.0.1:{other.port}/{far_name}"
    leads("", f"{place}/there")

    async def back(_):
        location = f"http://127.0.0.1:{other.port}/{far_name}-end"
        return web.Response(status=307, headers={"Location": location})

    other.answers[far_name] = back
    options = {
        "auth": Secret("bearer canary"), "secrets": [Secret(KEY)],
        "headers": {"X-Key": "canary", "Cookie": "canary", "X-Job": "canary"},
    }  # fmt: skip
    (answer,) = send(make(**options))
    assert answer.reason.endswith("not followed: redirect_hosts does not list its host")
    assert other.requests[far_name] == []
    message = make_message(1, headers={"x-job": "7", "x-mine": "8"})
    sink = make(redirect_hosts=[f"127.0.0.1:{other.port}"], **options)
    assert send(sink, message) == [Accepted()]
    assert arrived[-1].headers["authorization"] == "Bearer canary"
    (end,) = other.requests[f"{far_name}-end"]
    for request in (*other.requests[far_name], end):
        assert request.body == message.body
        assert request.headers["forebay-id"] == message.id
        assert request.headers["x-mine"] == "8"
        assert request.headers["content-type"] == "application/json"
        assert not {"authorization", "cookie", "x-key", "x-job"} & request.headers.keys()
        assert not any(name.startswith("webhook-") for name in request.headers)
        assert "canary" not in str(request)


def test_a_request_that_came_back_has_no_secret_either(
    make, leads, other, arrived, http_endpoint, far_name
):
    """Where another place sent it is that place's choice."""
    leads("", f"http://127.0.0.1:{other.port}/{far_name}")

    async def back(_):
        location = f"http://127.0.0.1:{http_endpoint.port}/{far_name}/chosen"
        return web.Response(status=307, headers={"Location": location})

    other.answers[far_name] = back
    sink = make(auth=Secret("bearer canary"), redirect_hosts=[f"127.0.0.1:{other.port}"])
    assert send(sink) == [Accepted()]
    assert "authorization" in arrived[0].headers
    assert "authorization" not in arrived[1].headers


@pytest.mark.parametrize("location", [
    "http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/", "http://[::1]:{port}/x",
    "http://[::ffff:127.0.0.2]:{port}/x", "http://127.0.0.2:{port}/x", "http://0.0.0.0:{port}/x",
    "http://127.1:{port}/x", "http://2130706434:{port}/x", "http://0x7f.2:{port}/x", "/a b",
    "gopher://127.0.0.1/", "//127.0.0.2:{port}/x", "http:127.0.0.2/x", "file:///etc/passwd",
    "http://127.0.0.1:{port}\\@evil/x", "http://u:p@127.0.0.1:{port}/x", "http://[", "/\u00e4",
    "http://127.0.0.1:99999/", "javascript:1", "http:", "http:/127.0.0.2:{port}/x",
])  # fmt: skip
def test_a_redirect_to_what_may_not_be_called_is_a_failed_try(
    make, leads, arrived, http_endpoint, location
):
    """Whatever redirect_hosts lists: nothing is connected, and the address is not repeated."""
    location = location.format(port=http_endpoint.raw_port)
    before = http_endpoint.connections
    leads("", location)
    (answer,) = send(make(redirect_hosts=["0.0.0.0/0", "::/0"]))
    assert answer == TryLater(
        "HTTP status 307: redirect, which is not followed: its address is malformed or not allowed"
    )
    assert len(arrived) == 1
    assert http_endpoint.connections == before


def test_a_name_that_leads_to_a_private_address_is_refused_at_the_connection(
    make, leads, other, http_endpoint, far_name
):

    async def lookup(_):
        return ["127.0.0.1"]

    destinations = Destinations(
        allow=[f"127.0.0.1:{http_endpoint.port}"], https_only=False, ports=None, lookup=lookup
    )
    leads("", f"http://h.example:{other.port}/{far_name}")
    sink = make(destinations=destinations, redirect_hosts=["h.example"])
    (answer,) = send(sink)
    assert answer.reason.endswith("not followed: its address is malformed or not allowed")
    assert other.requests[far_name] == []


def test_https_leads_to_no_http_and_ports_are_those_of_the_process(http_endpoint, other, far_name):
    async def answer(request):
        return web.Response(status=307, headers={"Location": where[0]})

    http_endpoint.answers[far_name] = answer
    destinations = {"allow": ["localhost", "127.0.0.1"], "ports": [http_endpoint.tls_port]}

    def sink(**more):
        return Http(
            f"https://localhost:{http_endpoint.tls_port}/{far_name}",
            ca_file=str(http_endpoint.ca_file), redirects=2,
            redirect_hosts=["localhost", "127.0.0.1"],
            destinations=Destinations(**destinations | more),
        )  # fmt: skip

    where = [f"http://localhost:{http_endpoint.tls_port}/{far_name}"]
    (answer_,) = send(sink(https_only=False))
    assert answer_.reason.endswith("it leads from https to http")
    (answer_,) = send(sink())
    assert "malformed or not allowed" in answer_.reason
    where = [f"https://localhost:{other.tls_port}/{far_name}"]
    (answer_,) = send(sink())
    assert "malformed or not allowed" in answer_.reason
    # Another authority than that of the endpoint.
    (answer_,) = send(sink(ports=None))
    assert answer_.reason == "after a redirect: the TLS certificate is not valid"
    assert other.requests[far_name] == []


def test_a_hop_that_fails_or_hangs_ends_with_the_request(make, leads, other, far_name):
    """One timeout is for all of them together."""
    leads("", f"http://127.0.0.1:{other.port}/{far_name}")
    released = threading.Event()

    async def hang(_):
        await asyncio.to_thread(released.wait, 60)
        return web.Response()

    other.answers[far_name] = hang
    hosts = [f"127.0.0.1:{other.port}", "127.0.0.1:9"]
    try:
        (answer,) = send(make(redirect_hosts=hosts, timeout=0.5))
    finally:
        released.set()
    assert answer.reason.startswith("after a redirect: no complete answer within 0.")
    leads("", "http://127.0.0.1:9/")
    (answer,) = send(make(redirect_hosts=hosts))
    assert answer == TryLater("after a redirect: no connection: ConnectionRefusedError")


@pytest.mark.parametrize("config", [
    {"redirects": -1}, {"redirects": 11}, {"redirects": True}, {"redirects": "3"},
    {"redirects": 1.5}, {"redirect_hosts": ["a.example"]},
    {"redirects": 1, "redirect_hosts": "a.example"}, {"redirects": 1, "redirect_hosts": [7]},
    {"redirects": 1, "redirect_hosts": ["https://a.example/"]},
    {"redirects": 1, "redirect_hosts": ["a"] * 21},
    {"redirects": 1, "redirect_hosts": ["10.0.0.1/8"]},
])  # fmt: skip
def test_the_settings_are_checked(config):
    with pytest.raises(ConfigError, match="redirect"):
        make_sink("http", {"url": "https://h.example/", **config})

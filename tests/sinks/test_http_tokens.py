"""Tokens of OAuth 2.0 for the HTTP sink, from a token endpoint of ours."""

import asyncio
import base64
import json
import logging
from urllib.parse import parse_qs

import pytest
from aiohttp import web

import forebay.sinks._http_token
import forebay.sinks.http
from forebay.config import DeliverySettings
from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Accepted, NotPermitted, Permissions, Refused, Rejected
from forebay.sinks._http_answer import without
from forebay.sinks._http_token import _life
from forebay.sinks.http import Destinations, Http, Secret
from forebay.testing import make_message
from tests.support.waiting import wait_for_async

LOCAL = Destinations(allow=["127.0.0.1", "localhost"], https_only=False, ports=None)


class TokenServer:
    """Gives tokens at one path of the servers of the tests, and checks them at another."""

    def __init__(self, servers, name):
        self.servers, self.name = servers, name
        self.life = 3600
        self.given = []  # all tokens
        self.revoked = set()
        self.reply = None  # an answer instead of a token
        self.wait = 0.0
        servers.answers[f"{name}-token"] = self._token
        servers.answers[name] = self._hook

    async def _token(self, _):
        await asyncio.sleep(self.wait)
        if self.reply is not None:
            return self.reply()
        self.given.append(f"canary-t{len(self.given) + 1}")
        answer = {"access_token": self.given[-1], "token_type": "Bearer", "expires_in": self.life}
        return web.json_response(answer)

    async def _hook(self, request):
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.given or token in self.revoked:
            return web.Response(status=401, text=f"no: {token}")
        return web.Response(text=f"welcome, {token}")

    def sink(self, **options):
        root = f"http://127.0.0.1:{self.servers.port}"
        return Http(
            f"{root}/{self.name}",
            **{
                "token_url": f"{root}/{self.name}-token",
                "client_id": "shop",
                "client_secret": Secret("canary-secret"),
                "destinations": LOCAL,
            }
            | options,
        )

    @property
    def asked(self):
        return self.servers.requests[f"{self.name}-token"]

    @property
    def arrived(self):
        return self.servers.requests[self.name]


@pytest.fixture
def tokens(http_endpoint, far_name):
    return TokenServer(http_endpoint, far_name)


def refuse(status, error=None, text=None):
    if error is not None:
        body = {"error": error, "error_description": "canary-secret"}
        return lambda: web.json_response(body, status=status)
    return lambda: web.Response(status=status, text=text or "canary-secret")


def using(sink, use):
    async def run():
        await sink.open()
        try:
            return await use(sink)
        finally:
            await sink.close()

    return asyncio.run(run())


def send(sink, *messages):
    return using(sink, lambda each: each.send(messages or [make_message(1)]))


def test_the_token_is_asked_for_once_and_sent_with_each_message(tokens, monkeypatch):
    """By the client's id and secret in a header, encoded as the RFC says."""
    monkeypatch.setenv("ID", "sh:op")
    sink = tokens.sink(
        client_id="env:ID", client_secret=Secret("p%+ä"), scope="a b", audience="https://x.example"
    )
    assert send(sink, make_message(1), make_message(2)) == [Accepted(), Accepted()]
    (asked,) = tokens.asked
    assert parse_qs(asked.body.decode()) == {
        "grant_type": ["client_credentials"], "scope": ["a b"], "audience": ["https://x.example"],
    }  # fmt: skip
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    basic = base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode()
    assert basic == "sh%3Aop:p%25%2B%C3%A4"
    assert [one.headers["authorization"] for one in tokens.arrived] == ["Bearer canary-t1"] * 2


def test_id_and_secret_may_be_in_the_body(tokens):
    assert send(tokens.sink(token_auth="body")) == [Accepted()]
    (asked,) = tokens.asked
    form = parse_qs(asked.body.decode())
    assert (form["client_id"], form["client_secret"]) == (["shop"], ["canary-secret"])
    assert "authorization" not in asked.headers


def test_sends_at_once_share_one_request_and_its_failure(tokens):
    """Also those of several calls; the token outlives the connections."""
    tokens.wait = 0.1

    async def use(sink):
        calls = [sink.send([make_message(n) for n in range(i, i + 5)]) for i in (1, 6, 11)]
        return [answer for answers in await asyncio.gather(*calls) for answer in answers]

    sink = tokens.sink(concurrency=20)
    assert using(sink, use) == [Accepted()] * 15
    assert len(tokens.asked) == 1
    assert send(sink) == [Accepted()]
    assert len(tokens.asked) == 1
    tokens.reply = refuse(503)
    answers = using(tokens.sink(concurrency=20), use)
    assert all(isinstance(one, SinkUnavailable) for one in answers)
    assert len(tokens.asked) == 2


def test_a_send_that_is_given_up_does_not_end_the_request_of_the_others(tokens):
    tokens.wait = 0.2

    async def use(sink):
        first = asyncio.create_task(sink.send([make_message(1)]))
        await wait_for_async(lambda: tokens.asked)
        second = asyncio.create_task(sink.send([make_message(2)]))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert using(tokens.sink(), use) == [Accepted()]
    assert len(tokens.asked) == 1


def test_a_token_is_renewed_before_it_ends(tokens):
    """While the one before is still good: a token endpoint that is away then delays nothing."""
    sink = tokens.sink()
    now = [1000.0]
    sink._login._clock = lambda: now[0]

    async def use(sink):
        assert await sink.send([make_message(1)]) == [Accepted()]
        now[0] += 3539
        assert await sink.send([make_message(2)]) == [Accepted()]
        assert len(tokens.asked) == 1
        now[0] += 1
        tokens.reply = refuse(500)
        for number in (3, 4):
            assert await sink.send([make_message(number)]) == [Accepted()]
            await asyncio.wait([sink._login._begin()] if sink._login._fetching else [_nothing()])
        assert len(tokens.asked) == 2  # not for each message
        tokens.reply = None
        now[0] += 5
        assert await sink.send([make_message(5)]) == [Accepted()]
        await wait_for_async(lambda: len(tokens.given) == 2 and not sink._login._fetching)
        now[0] += 50
        assert await sink.send([make_message(6)]) == [Accepted()]
        now[0] += 3600
        tokens.reply = refuse(500)
        (answer,) = await sink.send([make_message(7)])
        assert isinstance(answer, SinkUnavailable)

    using(sink, use)
    used = [one.headers["authorization"][-2:] for one in tokens.arrived]
    assert used == ["t1"] * 5 + ["t2"]


def _nothing():
    return asyncio.get_running_loop().create_task(asyncio.sleep(0))


def test_after_a_401_there_is_one_new_token_and_one_more_try(tokens, monkeypatch):
    """Without an attempt, and under the same id. Many that meet it share the new token."""
    monkeypatch.setattr(forebay.sinks._http_token, "_FRESH_SECONDS", -1.0)

    async def use(sink):
        assert await sink.send([make_message(1)]) == [Accepted()]
        tokens.revoked.add("canary-t1")
        return await sink.send([make_message(number) for number in range(2, 7)])

    assert using(tokens.sink(), use) == [Accepted()] * 5
    assert tokens.given == ["canary-t1", "canary-t2"]
    assert len({one.headers["forebay-id"] for one in tokens.arrived}) == 6


def test_a_401_with_a_new_token_makes_messages_wait(tokens):
    """It is no fault of a message. A token that is just made is not made again."""

    async def never(_):
        return web.Response(status=401, text="no")

    tokens.servers.answers[tokens.name] = never
    (answer,) = send(tokens.sink(token_auth="body"))
    assert isinstance(answer, SinkUnavailable)
    assert "the endpoint refuses the token: HTTP status 401" in str(answer)
    assert (len(tokens.asked), len(tokens.arrived)) == (1, 1)


def test_an_endless_401_ends(tokens, monkeypatch):
    """Also where each token is old enough to be renewed."""
    monkeypatch.setattr(forebay.sinks._http_token, "_FRESH_SECONDS", -1.0)

    async def never(_):
        return web.Response(status=401, text="no")

    tokens.servers.answers[tokens.name] = never
    (answer,) = send(tokens.sink())
    assert isinstance(answer, SinkUnavailable)
    assert (len(tokens.asked), len(tokens.arrived)) == (2, 2)


def test_other_refusals_of_the_endpoint_are_as_without_a_token(tokens):
    async def forbid(_):
        return web.Response(status=403)

    tokens.servers.answers[tokens.name] = forbid
    assert send(tokens.sink()) == [Rejected("HTTP status 403")]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (refuse(401, "invalid_client"), r"client_id and client_secret: .* 401 \(invalid_client"),
        (refuse(400, "invalid_client"), r"client_id and client_secret: .* 400 \(invalid_client"),
        (refuse(401), "refuses client_id and client_secret: HTTP status 401"),
        (refuse(400, "invalid_scope"), r"answered HTTP status 400 \(invalid_scope\)"),
        (refuse(400, "canary-secret"), "answered HTTP status 400$"),
        (refuse(503), "answered HTTP status 503"),
        (refuse(302), "answered HTTP status 302: redirect, which is not followed"),
        (refuse(200, text="<html>canary-secret"), "something else than a JSON object"),
        (refuse(200, text="[" * 60_000), "something else than a JSON object"),
        (refuse(200, text="[]"), "something else than a JSON object"),
        (refuse(200, text=json.dumps({"access_token": "x" * 70_000})), "something else than"),
        (refuse(200, text="{}"), "without a usable access_token"),
        (refuse(200, text='{"access_token": "a\\r\\nb"}'), "without a usable access_token"),
        (refuse(200, text='{"access_token": 7}'), "without a usable access_token"),
        (refuse(200, text='{"access_token": "a", "token_type": "mac"}'), "another token_type"),
    ],
)  # fmt: skip
def test_without_a_token_messages_wait_and_the_reason_says_why(tokens, caplog, reply, problem):
    """No message is sent or becomes a dead letter; no secret is in a reason or in the log."""
    caplog.set_level(logging.DEBUG)
    tokens.reply = reply
    (answer,) = send(tokens.sink(show_response=True))
    assert isinstance(answer, SinkUnavailable)
    assert not isinstance(answer, Refused)
    with pytest.raises(SinkUnavailable, match=problem):
        raise answer
    assert "canary" not in f"{answer} {caplog.text}"
    assert tokens.arrived == []


def test_a_token_endpoint_that_is_away_or_hangs_makes_messages_wait(tokens):
    """For as long as a request may take in all."""
    (answer,) = send(tokens.sink(token_url="http://127.0.0.1:9/token"))
    assert isinstance(answer, SinkUnavailable)
    assert "the token endpoint: no connection: ConnectionRefusedError" in str(answer)
    tokens.wait = 60
    (answer,) = send(tokens.sink(timeout=0.3))
    assert isinstance(answer, SinkUnavailable)
    assert "the token endpoint" in str(answer)
    assert tokens.arrived == []


def test_a_token_endpoint_must_be_allowed_as_the_endpoint(tokens):
    """By the form of its address, by its address, and by what its name leads to."""

    async def lookup(_):
        return ["10.0.0.7"]

    def guarded(**options):
        port = tokens.servers.port
        return Destinations(
            allow=[f"127.0.0.1:{port}"], https_only=False, ports=None, lookup=lookup, **options
        )

    for url in ("http://10.0.0.7/token", "http://token.example/"):
        (answer,) = send(tokens.sink(token_url=url, destinations=guarded()))
        assert isinstance(answer, Refused)
        assert "blocked address of token_url" in str(answer)
    with pytest.raises(ConfigError, match="token_url does not begin with https"):
        Http(
            "https://a.example/", token_url="http://a.example/", client_id="a",
            client_secret="env:A",
        )  # fmt: skip
    allowed = Permissions(DeliverySettings(endpoint_variables="S"))
    row = {"url": "https://a.example/", "client_id": "a", "client_secret": "env:S"}
    assert allowed.sink("http", row | {"token_url": "https://b.example/token"})
    for url, setting in [
        ("http://b.example/", "endpoint_schemes"), ("https://b.example:9/", "endpoint_ports"),
        ("https://10.0.0.1/", "endpoint_hosts"),
    ]:  # fmt: skip
        with pytest.raises(NotPermitted, match=f"{setting} .* of token_url"):
            allowed.sink("http", row | {"token_url": url})
    with pytest.raises(ConfigError, match="http: token_url contains a fragment"):
        allowed.sink("http", row | {"token_url": "https://b.example/#x"})
    with pytest.raises(NotPermitted, match=r"endpoint_variables .*http\.client_secret"):
        Permissions().sink("http", row | {"token_url": "https://b.example/token"})


def test_what_an_endpoint_repeats_of_a_token_is_hidden(tokens):
    """Of the newest, and of the one before."""
    sink = tokens.sink(show_response=True)
    assert send(sink)[0].response == "HTTP status 200: welcome, ***"
    sink._login._token = None
    send(sink)
    assert sink._login.hidden == ["canary-t1", "canary-t2"]
    echoed = b"canary-t1 canary-t2 canary-secret"
    assert without(echoed, sink.hidden_texts) == b"*** *** ***"


def test_a_changed_secret_brings_a_new_token(tokens, monkeypatch):
    monkeypatch.setattr(forebay.sinks.http, "_REREAD_SECONDS", -1.0)
    monkeypatch.setenv("S", "one")

    async def use(sink):
        for number, secret in enumerate(("one", "one", "two"), 1):
            monkeypatch.setenv("S", secret)
            assert await sink.send([make_message(number)]) == [Accepted()]

    using(tokens.sink(client_secret="env:S", token_auth="body"), use)
    secrets = [parse_qs(one.body.decode())["client_secret"] for one in tokens.asked]
    assert secrets == [["one"], ["two"]]


@pytest.mark.parametrize("secret", ["a\r\nb", "\udcff"])
def test_a_secret_that_cannot_be_sent_makes_messages_wait(tokens, monkeypatch, secret):
    """Control characters, and bytes of the environment that are no text."""
    monkeypatch.setenv("S", secret)
    for field in ("client_secret", "client_id"):
        with pytest.raises(SinkUnavailable, match=f"{field}: the secret has control characters"):
            send(tokens.sink(**{field: "env:S"}))
    assert tokens.asked == []


def test_closing_ends_the_request_for_a_token(tokens):
    tokens.wait = 60

    async def use(sink):
        call = asyncio.create_task(sink.send([make_message(1)]))
        await wait_for_async(lambda: tokens.asked)
        await sink.close()
        return await call

    (answer,) = using(tokens.sink(), use)
    assert isinstance(answer, SinkUnavailable)
    assert "the sink was closed" in str(answer)


@pytest.mark.parametrize(
    ("value", "life"),
    [(60, 60), (1.5, 1.5), ("3600", 3600), (0, 0), (-1, 0), (None, "inf"), (True, "inf"),
     ("soon", "inf"), ({}, "inf"), ("nan", "inf")],
)  # fmt: skip
def test_the_life_of_a_token(value, life):
    """Some servers write a text; where it is not told, a 401 tells the end."""
    assert _life(value) == float(life)

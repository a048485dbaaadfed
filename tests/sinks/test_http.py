"""The HTTP sink against servers of ours: one that answers properly, and one that does not."""

import asyncio
import gzip
import json
import logging
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web

import forebay
from forebay.errors import ConfigError, SinkUnavailable
from forebay.policy.retry import RetryPolicy
from forebay.sending import Drain
from forebay.sinks import Accepted, EndpointGone, Rejected, Sink, TryLater, make_sink
from forebay.sinks._retry_after import retry_after_seconds
from forebay.sinks.http import Destinations, Http, Secret
from forebay.testing import Received, SinkContract, make_message
from tests.support.drains import draining, enqueue
from tests.support.http_endpoint import reset
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for_async

LOCAL = Destinations(allow=["127.0.0.1", "localhost"], https_only=False, ports=None)


class _Contract(SinkContract):
    batch = "one"

    @pytest.fixture(autouse=True)
    def _endpoint(self, http_endpoint, far_name):
        self.server, self.name = http_endpoint, far_name

    def make_sink(self, address=None) -> Sink:
        return Http(
            f"http://{address or f'127.0.0.1:{self.server.port}'}/{self.name}",
            batch=self.batch,
            concurrency=1,  # the contract's order of messages without a key
            destinations=LOCAL,
        )

    def test_a_server_that_is_away_is_unavailable(self):
        """An endpoint fails for its own reasons: its messages use up their attempts, so that
        retries end.
        """

        async def use():
            sink = self.make_sink("127.0.0.1:9")
            await sink.open()
            try:
                return await sink.send([make_message(1)])
            finally:
                await sink.close()

        assert asyncio.run(use()) == [TryLater("no connection: ConnectionRefusedError")]


class TestHttp(_Contract):
    large_bytes = 2_000_000

    def received(self):
        return [
            Received(one.headers["forebay-id"], one.headers["forebay-kind"], one.body, one.headers)
            for one in self.server.requests[self.name]
        ]


class TestHttpArray(_Contract):
    batch = "array"

    def received(self):
        found = []
        for request in self.server.requests[self.name]:
            for item in json.loads(request.body):
                body = json.dumps(item["body"], separators=(",", ":"), ensure_ascii=False)
                found.append(Received(item["id"], item["kind"], body.encode(), item["headers"]))
        return found


def send(sink, *messages):
    async def use():
        await sink.open()
        try:
            return await sink.send(messages or [make_message(1)])
        finally:
            await sink.close()

    return asyncio.run(use())


@pytest.fixture
def make(http_endpoint, far_name):
    def made(*, path="", **options):
        return Http(
            f"http://127.0.0.1:{http_endpoint.port}/{far_name}{path}",
            **{"destinations": LOCAL} | options,
        )

    return made


@pytest.fixture
def arrived(http_endpoint, far_name):
    return http_endpoint.requests[far_name]


# --- requests ---


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_a_method_with_a_body(make, arrived, method):
    sink = make(method=method, path="/a%20b?c=%2F&d", headers={"X-Tenant": "7"})
    assert send(sink) == [Accepted()]
    (request,) = arrived
    assert (request.method, request.body) == (method, b'{"n":1}')
    assert request.path.endswith("/a%20b?c=%2F&d")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-tenant"] == "7"
    assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_method_without_a_body(make, arrived, method):
    assert send(make(method=method)) == [Accepted()]
    (request,) = arrived
    assert (request.method, request.body) == (method, b"")
    assert "content-type" not in request.headers
    assert request.headers["forebay-id"] == make_message(1).id


def test_headers_of_the_job_cannot_replace_those_of_the_sink(make, arrived):
    headers = {
        "Tenant": "S\u00fcd",
        "Host": "evil.example",
        "Content-Length": "1",
        "Transfer-Encoding": "chunked",
        "Authorization": "Bearer evil",
        "Webhook-Id": "evil",
        "Forebay-Id": "evil",
        "forebay-id": "evil",
        "forebay-other": "evil",
        "ce-id": "evil",
        "X-Fixed": "evil",
    }
    message = make_message(
        1,
        headers=headers,
        kind="gr\u00f6\u00dfe",
        ordering_key="a b\r\nc: d",
        correlation_id="100%",
    )
    sink = make(
        headers={"x-fixed": "fixed"},
        auth=Secret("bearer good"),
        secrets=[Secret("whsec_" + "a" * 32)],
    )
    assert send(sink, message) == [Accepted()]
    (request,) = arrived
    found = request.headers
    assert "evil" not in " ".join(found.values())
    assert found["forebay-id"] == message.id
    assert found["authorization"] == "Bearer good"
    assert found["x-fixed"] == "fixed"
    assert found["tenant"] == "S\u00fcd"
    assert found["forebay-kind"] == "gr%C3%B6%C3%9Fe"
    assert found["forebay-ordering-key"] == "a%20b%0D%0Ac:%20d"
    assert found["forebay-correlation-id"] == "100%25"


@pytest.mark.parametrize(
    ("name", "value"),
    [("a\r\nb", "c"), ("a b", "c"), ("", "c"), ("a", "b\r\nc: d"), ("a", "\x01"), ("\u00fc", "c")],
)
def test_a_header_that_http_cannot_carry_rejects_its_message_only(make, arrived, name, value):
    answers = send(make(), make_message(1, headers={name: value}), make_message(2))
    assert isinstance(answers[0], Rejected)
    assert answers[1] == Accepted()
    assert [request.body for request in arrived] == [b'{"n":2}']


def test_requests_run_at_once_up_to_the_limit_also_of_several_calls(http_endpoint, far_name, make):
    async def slow(_):
        await asyncio.sleep(0.02)
        return web.Response()

    http_endpoint.answers[far_name] = slow

    async def use():
        sink = make(concurrency=4)
        await sink.open()
        calls = [
            sink.send([make_message(number) for number in range(start, start + 20)])
            for start in (1, 21)
        ]
        answers = await asyncio.gather(*calls)
        await sink.close()
        return answers

    assert asyncio.run(use()) == [[Accepted()] * 20] * 2
    assert http_endpoint.current[far_name][1] == 4


@pytest.mark.parametrize(
    ("auth", "value", "expected"),
    [
        ("env:AUTH", "bearer t0ken", "Bearer t0ken"),
        ("bearer env:AUTH", "t0ken", "Bearer t0ken"),
        ("env:AUTH", "Basic user:pa:ss", "Basic dXNlcjpwYTpzcw=="),
        ("basic env:AUTH", "user:pa:ss", "Basic dXNlcjpwYTpzcw=="),
    ],
)
def test_authorization_by_reference(make, arrived, monkeypatch, auth, value, expected):
    monkeypatch.setenv("AUTH", value)
    assert send(make(auth=auth)) == [Accepted()]
    assert arrived[0].headers["authorization"] == expected


def test_a_header_by_reference(make, arrived, monkeypatch):
    monkeypatch.setenv("API_KEY", "k3y")
    send(make(headers={"X-Api-Key": "env:API_KEY"}))
    assert arrived[0].headers["x-api-key"] == "k3y"


@pytest.mark.parametrize(
    ("auth", "value"),
    [
        ("env:AUTH", ""),
        ("env:AUTH", "canary"),
        ("basic env:AUTH", "canary"),
        ("bearer env:AUTH", "can\r\nary"),
    ],
)
def test_a_bad_secret_makes_messages_wait(make, arrived, monkeypatch, auth, value):
    monkeypatch.setenv("AUTH", value)
    with pytest.raises(SinkUnavailable) as caught:
        send(make(auth=auth))
    assert "canary" not in str(caught.value)
    assert arrived == []


def test_places_messages_and_logs_show_no_secret(
    http_endpoint, far_name, make, caplog, monkeypatch
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AUTH", "bearer canary-1")
    http_endpoint.statuses(far_name, 500)
    sink = make(path="/canary-2?k=canary-3", auth="env:AUTH", headers={"x-key": "canary-4"})
    answers = send(sink)
    shown = f"{answers} {sink.place} {sink!r} {Secret('canary-5')!r} {caplog.text}"
    assert answers == [TryLater("HTTP status 500")]
    assert "canary" not in shown


# --- CloudEvents ---


def test_binary_cloudevents(make, arrived):
    message = make_message(1, kind="gr\u00f6\u00dfe", ordering_key='a "b" 100%')
    send(make(cloudevents="binary", source="/orders"), message)
    (request,) = arrived
    events = {key: value for key, value in request.headers.items() if key.startswith("ce-")}
    assert events == {
        "ce-specversion": "1.0",
        "ce-id": message.id,
        "ce-source": "/orders",
        "ce-type": "gr%C3%B6%C3%9Fe",
        "ce-time": "2026-01-02T03:04:05.000001+00:00",
        "ce-partitionkey": "a%20%22b%22%20100%25",
    }
    assert request.headers["content-type"] == "application/json"
    assert request.body == message.body


def test_structured_cloudevents(make, arrived):
    message = make_message(1, kind="gr\u00f6\u00dfe")
    send(make(cloudevents="structured", source="/orders"), message)
    (request,) = arrived
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert json.loads(request.body) == {
        "specversion": "1.0",
        "id": message.id,
        "source": "/orders",
        "type": "gr\u00f6\u00dfe",
        "time": "2026-01-02T03:04:05.000001+00:00",
        "datacontenttype": "application/json",
        "data": {"n": 1},
    }


def test_an_array_of_cloudevents(make, arrived):
    sink = make(cloudevents="structured", source="/orders", batch="array")
    send(sink, make_message(1), make_message(2))
    (request,) = arrived
    assert request.headers["content-type"] == "application/cloudevents-batch+json"
    assert [event["data"]["n"] for event in json.loads(request.body)] == [1, 2]


# --- answers ---


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Accepted()),
        (202, Accepted()),
        (204, Accepted()),
        (299, Accepted()),
        (300, TryLater("HTTP status 300: redirect, which is not followed")),
        (304, TryLater("HTTP status 304: redirect, which is not followed")),
        (400, Rejected("HTTP status 400")),
        (401, Rejected("HTTP status 401")),
        (404, Rejected("HTTP status 404")),
        (408, TryLater("HTTP status 408")),
        (410, EndpointGone("HTTP status 410")),
        (413, Rejected("HTTP status 413")),
        (422, Rejected("HTTP status 422")),
        (425, TryLater("HTTP status 425")),
        (429, TryLater("HTTP status 429")),
        (500, TryLater("HTTP status 500")),
        (501, TryLater("HTTP status 501")),
        (502, TryLater("HTTP status 502")),
        (503, TryLater("HTTP status 503")),
        (504, TryLater("HTTP status 504")),
        (599, TryLater("HTTP status 599")),
        (600, TryLater("HTTP status 600")),
    ],
)
def test_statuses(http_endpoint, far_name, make, status, expected):
    http_endpoint.statuses(far_name, status)
    assert send(make()) == [expected]


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest/", "http://127.0.0.1:9/", "file:///etc/passwd", "{self}"],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(http_endpoint, far_name, make, arrived, status, location):
    location = location.replace("{self}", f"http://127.0.0.1:{http_endpoint.port}/{far_name}")
    http_endpoint.statuses(far_name, status, headers={"Location": location})
    (answer,) = send(make())
    assert isinstance(answer, TryLater)
    assert "redirect" in answer.reason
    assert location not in answer.reason
    assert len(arrived) == 1


NOW = datetime(2026, 11, 23, 20, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("86401", 86_400.0),
        ("9" * 5000, 86_400.0),
        ("Mon, 23 Nov 2026 20:01:00 GMT", 60.0),
        ("Monday, 23-Nov-26 20:01:00 GMT", 60.0),
        ("Mon Nov 23 20:01:00 2026", 60.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
        ("Mon, 23 Nov 2026 19:59:00 GMT", None),
        ("Mon, 99 Nov 2026 19:59:00 GMT", None),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        ("-5", None),
        ("1.5", None),
        ("1e9", None),
        ("\u0661", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after(value, expected):
    assert retry_after_seconds(value, NOW) == expected


@pytest.mark.parametrize("status", [429, 503])
def test_the_endpoint_says_when(http_endpoint, far_name, make, status):
    http_endpoint.statuses(far_name, status, headers={"Retry-After": "120"})
    assert send(make()) == [TryLater(f"HTTP status {status}", 120.0, throttles=True)]
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    http_endpoint.statuses(far_name, status, headers={"Retry-After": at})
    (answer,) = send(make())
    assert answer.after == pytest.approx(600, abs=30)
    far = "Fri, 31 Dec 9999 23:59:59 GMT"
    http_endpoint.statuses(far_name, status, headers={"Retry-After": far})
    assert send(make()) == [TryLater(f"HTTP status {status}", 86_400.0, throttles=True)]


def test_what_the_endpoint_answers_is_shown_only_if_wanted(http_endpoint, far_name, make):
    async def answer(request):
        return web.Response(
            status=400, text=f"internal\x1b[31m {request.headers['authorization']}\n" + "x" * 9000
        )

    http_endpoint.answers[far_name] = answer
    assert send(make(auth=Secret("bearer canary"))) == [Rejected("HTTP status 400")]
    (shown,) = send(make(auth=Secret("bearer canary"), show_response=True))
    assert shown.reason.startswith("HTTP status 400: internal")
    assert "canary" not in shown.reason
    assert shown.reason.isprintable()
    assert len(shown.reason) < 300


def test_an_array_that_is_refused_for_one_message_is_halved(http_endpoint, far_name, make, arrived):
    """
    A refused message never blocks the others of its call.
    """

    async def refuse(request):
        return web.Response(
            status=422 if any(item["body"]["n"] == 5 for item in json.loads(request.body)) else 200
        )

    http_endpoint.answers[far_name] = refuse
    messages = [make_message(number) for number in range(8)]
    answers = send(make(batch="array"), *messages)
    assert [place for place, one in enumerate(answers) if isinstance(one, Rejected)] == [5]
    assert answers.count(Accepted()) == 7
    assert len(arrived) == 7
    http_endpoint.statuses(far_name, 404)
    arrived.clear()
    assert send(make(batch="array"), *messages) == [Rejected("HTTP status 404")] * 8
    assert len(arrived) == 1


# --- an endpoint that misbehaves ---


async def write(writer, *parts, pause=0.0):
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(pause)


async def hang(_):
    await asyncio.Event().wait()


async def hang_after_headers(writer):
    await write(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    await hang(writer)


async def drip_headers(writer):
    await write(writer, b"HTTP/1.1 200 OK\r\n")
    for number in range(10_000):
        await write(writer, b"x-%d: y\r\n" % number, pause=0.05)


async def drip(writer):
    await write(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(100_000):
        await write(writer, b"x", pause=0.05)


async def endless(writer, status=b"200 OK"):
    await write(writer, b"HTTP/1.1 %b\r\n\r\n" % status)
    while True:
        await write(writer, b"x" * 65_536)


async def endless_refusal(writer):
    await endless(writer, b"404 Not Found")


BOMB = gzip.compress(bytes(30_000_000), 1)


async def bomb(writer):
    await write(
        writer,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB),
        BOMB,
    )


async def break_off(writer):
    await write(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")


async def reset_after_status(writer):
    await write(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", pause=0.05)
    reset(writer)


async def reset_at_once(writer):
    reset(writer)


async def end_at_once(_):
    return


async def http_1_0(writer):
    await write(writer, b"HTTP/1.0 200 OK\r\n\r\nok")


async def body_after_no_content(writer):
    await write(writer, b"HTTP/1.1 204 No Content\r\n\r\n{}")


async def more_than_announced(writer):
    await write(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more")


async def refusal_and_more(writer):
    await write(writer, b"HTTP/1.1 500 Error\r\nContent-Length: 2\r\n\r\nok and more")


async def head_in_pieces(writer):
    await write(writer, b"HTTP/1.1 20", b"4 No Content\r\nx: y\r", b"\n\r\nno content")


async def not_http(writer):
    await write(writer, b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


async def huge_header(writer):
    await write(writer, b"HTTP/1.1 200 OK\r\nx: ", b"x" * 1_000_000, b"\r\n\r\n")


async def many_headers(writer):
    await write(writer, b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 100_000, b"\r\n")


async def continue_endlessly(writer):
    while True:
        await write(writer, b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.01)


LATE = TryLater("no complete answer within 0.5 s")
INCOMPLETE = TryLater("the connection ended before the answer was complete")
NONE = TryLater("the connection ended before an answer")
GARBAGE = TryLater("the answer is not HTTP")


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (hang, LATE),
        (hang_after_headers, LATE),
        (drip_headers, LATE),
        (drip, LATE),
        (continue_endlessly, LATE),
        (endless, Accepted()),
        (endless_refusal, Rejected("HTTP status 404")),
        (bomb, Accepted()),
        (break_off, INCOMPLETE),
        (reset_after_status, INCOMPLETE),
        (reset_at_once, NONE),
        (end_at_once, NONE),
        (http_1_0, Accepted()),
        (body_after_no_content, Accepted()),
        (more_than_announced, Accepted()),
        (head_in_pieces, Accepted()),
        (refusal_and_more, GARBAGE),
        (not_http, GARBAGE),
        (huge_header, GARBAGE),
        (many_headers, GARBAGE),
    ],
)
def test_an_endpoint_misbehaves(http_endpoint, far_name, behaviour, expected):
    """
    Every request ends in time, and the same message arrives with the same id on the next try.
    """
    http_endpoint.raw[far_name] = behaviour
    sink = Http(
        f"http://127.0.0.1:{http_endpoint.raw_port}/{far_name}", timeout=0.5, destinations=LOCAL
    )
    started = time.monotonic()
    assert send(sink, make_message(1)) == [expected]
    assert time.monotonic() - started < 5
    assert send(sink, make_message(1)) == [expected]
    ids = {request.headers["forebay-id"] for request in http_endpoint.requests[far_name]}
    assert ids == {make_message(1).id}


def test_an_answer_is_not_unpacked(http_endpoint, far_name, make):
    async def answer(_):
        packed = gzip.compress(b"x" * 1000)
        return web.Response(status=400, body=packed, headers={"Content-Encoding": "gzip"})

    http_endpoint.answers[far_name] = answer
    (found,) = send(make(show_response=True))
    assert "xxx" not in found.reason


def test_one_bad_answer_is_not_that_of_the_other_messages(http_endpoint, far_name, make):
    async def answer(request):
        if request.body == b'{"n":2}':
            await asyncio.Event().wait()
        return web.Response(status=200 if request.body != b'{"n":3}' else 500)

    http_endpoint.answers[far_name] = answer
    answers = send(make(timeout=0.5), *[make_message(number) for number in range(1, 5)])
    assert answers == [Accepted(), LATE, TryLater("HTTP status 500"), Accepted()]


def test_a_connection_that_is_frozen_and_cut(http_endpoint, far_name):
    async def use():
        with TcpProxy(f"127.0.0.1:{http_endpoint.port}") as proxy:
            sink = Http(f"http://{proxy.address}/{far_name}", timeout=0.5, destinations=LOCAL)
            await sink.open()
            answers = list(await sink.send([make_message(1)]))
            proxy.freeze()
            answers += await sink.send([make_message(2)])
            proxy.thaw()
            proxy.refuse()
            answers += await sink.send([make_message(3)])
            proxy.refuse(False)
            answers += await sink.send([make_message(4)])
            await sink.close()
            return answers

    assert asyncio.run(use()) == [Accepted(), LATE, NONE, Accepted()]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_tls_with_a_pinned_authority(http_endpoint, far_name, host):
    url = f"https://{host}:{http_endpoint.tls_port}/{far_name}"
    assert send(Http(url, destinations=LOCAL)) == [TryLater("the TLS certificate is not valid")]
    assert http_endpoint.requests[far_name] == []
    pinned = Http(url, destinations=LOCAL, ca_file=str(http_endpoint.ca_file))
    assert send(pinned) == [Accepted()]


def test_a_port_without_tls(http_endpoint, far_name):
    sink = Http(f"https://localhost:{http_endpoint.port}/{far_name}", destinations=LOCAL)
    assert send(sink) == [TryLater("the TLS handshake failed")]


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_bad_ca_file_makes_messages_wait(make, tmp_path, content):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SinkUnavailable, match="ca_file"):
        send(make(ca_file=str(file)))


def test_a_name_that_does_not_exist():
    sink = Http("https://nothing.invalid/")
    assert send(sink) == [TryLater("the name cannot be resolved")]


def test_a_look_up_that_hangs():
    async def look_up(_):
        await asyncio.Event().wait()

    sink = Http(
        "https://h.example/", connect_timeout=0.2, destinations=Destinations(lookup=look_up)
    )
    assert send(sink) == [TryLater("no connection within 0.2 s")]


def test_what_was_not_sent_in_time_uses_no_attempt(
    http_endpoint, far_name, make, monkeypatch, arrived
):
    """
    A call ends in time although every request takes long; the rest of its messages waits.
    """
    for module in ("http", "_http_calls"):
        monkeypatch.setattr(f"forebay.sinks.{module}.BEGIN_SECONDS", 0.2)
    http_endpoint.answers[far_name] = hang
    answers = send(make(concurrency=2, timeout=0.5), *[make_message(n) for n in range(1, 6)])
    assert answers[:2] == [LATE, LATE]
    assert all(isinstance(one, SinkUnavailable) for one in answers[2:])
    assert len(arrived) == 2


def test_closing_during_a_request_uses_no_attempt(http_endpoint, far_name, make, arrived):
    http_endpoint.answers[far_name] = hang

    async def use():
        sink = make(concurrency=1)
        await sink.open()
        task = asyncio.create_task(sink.send([make_message(1), make_message(2)]))
        await wait_for_async(lambda: arrived)
        await sink.close()
        return await task

    answers = asyncio.run(use())
    assert all(isinstance(one, SinkUnavailable) for one in answers)


def test_a_cancelled_call_leaves_no_answer_behind(http_endpoint, far_name, make, arrived):
    async def answer(request):
        if request.body == b'{"n":1}':
            await asyncio.sleep(0.2)
            return web.Response(status=404)
        return web.Response()

    http_endpoint.answers[far_name] = answer

    async def use():
        sink = make(concurrency=1)
        await sink.open()
        task = asyncio.create_task(sink.send([make_message(1)]))
        await wait_for_async(lambda: arrived)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        answers = await sink.send([make_message(2)])
        await sink.close()
        return answers

    assert asyncio.run(use()) == [Accepted()]


# --- a drain ---


@pytest.mark.anyio
async def test_three_failures_then_success_through_a_drain(
    app, database, conn, http_endpoint, far_name, make, arrived
):
    http_endpoint.statuses(far_name, 500, 500, 500, 200)
    drain = Drain(
        app,
        "hooks",
        sink=make(),
        queue="orders",
        retry=RetryPolicy(base_seconds=0.01, cap_seconds=0.02),
    )
    enqueue(conn, 1)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
        assert worker.stats.retried == 3
    assert len(arrived) == 4
    assert len({request.headers["forebay-id"] for request in arrived}) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("status", [404, 410])
async def test_a_permanent_refusal_is_a_dead_letter(
    app, database, conn, http_endpoint, far_name, make, arrived, status
):
    http_endpoint.statuses(far_name, status)
    drain = Drain(app, "hooks", sink=make(), queue="orders")
    enqueue(conn, 1)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.dead == 1)
    (letter,) = forebay.Client(database).dead_letters()
    assert f"HTTP status {status}" in letter.errors[-1].message
    assert len(arrived) == 1


@pytest.mark.anyio
async def test_the_drain_waits_as_long_as_the_endpoint_says(
    app, database, conn, http_endpoint, far_name, make
):
    http_endpoint.statuses(far_name, 429, headers={"Retry-After": "3600"})
    drain = Drain(app, "hooks", sink=make(), queue="orders")
    enqueue(conn, 1)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.retried == 1)
    (job,) = forebay.Client(database).jobs(queue="orders")
    seconds = (job.run_at - datetime.now(UTC)).total_seconds()
    assert 3500 < seconds < 3610


# --- the configuration ---


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs the setting url"),
        ({"url": "https://h.example/", "methd": "GET"}, "has no setting 'methd'"),
        ({"url": "https://h.example/", "method": "TRACE"}, "method is 'TRACE'"),
        ({"url": "https://h.example/", "batch": "two"}, "batch is 'two'"),
        ({"url": "https://h.example/", "method": "GET", "batch": "array"}, "sends no body"),
        ({"url": "https://h.example/", "cloudevents": "xml", "source": "s"}, "cloudevents is"),
        ({"url": "https://h.example/", "cloudevents": "binary"}, "source is None"),
        ({"url": "https://h.example/", "source": "s"}, "source has no meaning"),
        (
            {"url": "https://h.example/", "cloudevents": "binary", "source": "s", "batch": "array"},
            "no arrays",
        ),
        ({"url": "https://h.example/", "concurrency": 0}, "concurrency is 0"),
        ({"url": "https://h.example/", "concurrency": 1.5}, "not a whole number"),
        ({"url": "https://h.example/", "timeout": 0}, "timeout is 0"),
        ({"url": "https://h.example/", "connect_timeout": "5"}, "connect_timeout is '5'"),
        ({"url": "https://h.example/", "response_bytes_max": 0}, "response_bytes_max is 0"),
        ({"url": "https://h.example/", "show_response": 1}, "show_response is 1"),
        ({"url": "https://h.example/", "headers": {"a b": "c"}}, "HTTP does not allow"),
        ({"url": "https://h.example/", "headers": {"a": "canary\r\nb: c"}}, "HTTP does not allow"),
        ({"url": "https://h.example/", "headers": {"a": 1}}, "HTTP does not allow"),
        ({"url": "https://h.example/", "headers": ["a"]}, "not a mapping"),
        ({"url": "https://h.example/", "headers": {"Host": "x"}}, "which the sink sets"),
        ({"url": "https://h.example/", "headers": {"Webhook-Id": "x"}}, "which the sink sets"),
        ({"url": "https://h.example/", "headers": {"Authorization": "canary"}}, "authorization"),
        ({"url": "https://h.example/", "auth": "bearer canary"}, "not a reference"),
        ({"url": "https://h.example/", "auth": "canary"}, "not a reference"),
        ({"url": "https://h.example/", "proxy": "http://u:canary@h:3128"}, "a user or a password"),
        ({"url": "https://h.example/", "proxy": "canary"}, "proxy is not an address"),
        ({"url": "https://h.example/", "proxy": 7}, "neither an address nor a reference"),
        ({"url": "https://h.example/", "destinations": []}, "not Destinations"),
    ],
)
def test_a_configuration_is_checked_without_a_connection(config, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        make_sink("http", config)
    assert "canary" not in f"{caught.value} {caught.value!r}"

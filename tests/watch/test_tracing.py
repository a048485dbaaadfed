"""Spans of jobs, as a receiver of OTLP gets them."""

import http.client
import http.server
import subprocess
import sys
import threading

import pytest
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import forebay
from forebay.mirror import Document
from forebay.model.spans import PLACE
from forebay.testing import LyingTarget
from forebay.tracing import Tracing
from tests.support.drains import ListSink, draining
from tests.support.fix_worker import run_retries, run_until_idle
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_spans_left():
    yield
    PLACE.installed = None


@pytest.fixture
def spans():
    """Spans in memory, and a provider that keeps them there."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter, provider
    provider.shutdown()


def traced(app, provider, **options):
    app.add_middleware(Tracing(provider, **options))
    return app


def names(exporter):
    return [span.name for span in exporter.get_finished_spans()]


class Receiver:
    """Receives spans by OTLP over HTTP, as a collector does."""

    def __init__(self):
        self.spans = []
        spans = self.spans

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                request = ExportTraceServiceRequest.FromString(body)
                spans.extend(
                    span
                    for resource in request.resource_spans
                    for scope in resource.scope_spans
                    for span in scope.spans
                )
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"


@pytest.fixture
def receiver():
    found = Receiver()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


async def test_a_request_its_job_two_attempts_and_a_sink_are_one_connected_trace(
    app, conn, receiver, database
):
    """
    Connected by parents and links: the request, the enqueue and the first attempt are one trace;
    the second attempt is a new one with a link; the message that it enqueues is sent in that one.
    All spans come over the wire.
    """
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(receiver.url)))
    traced(app, provider)
    requests = provider.get_tracer("web")

    @app.job(queue="events")
    def event(order_id: int) -> None:
        raise AssertionError("a drain sends it")

    @app.job(queue="orders", retry=forebay.RetryPolicy(base_seconds=0.001, max_attempts=3))
    def order(context: forebay.Context, order_id: int) -> None:
        if context.attempt == 1:
            raise ConnectionError("not now")
        with conn.transaction():
            event.enqueue(conn, order_id=order_id)

    class Web(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            parent = propagate.extract(dict(self.headers))
            with requests.start_as_current_span("POST /orders", parent), conn.transaction():
                order.enqueue(conn, order_id=1)
            self.send_response(201)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    web = http.server.HTTPServer(("127.0.0.1", 0), Web)
    serving = threading.Thread(target=web.handle_request)
    serving.start()
    browser = http.client.HTTPConnection("127.0.0.1", web.server_port, timeout=10)
    traceparent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    browser.request("POST", "/orders", headers={"traceparent": traceparent, "content-length": "0"})
    assert browser.getresponse().status == 201
    browser.close()
    serving.join()
    web.server_close()

    await run_until_idle(app, queue="orders")
    while not conn.execute("select 1 from forebay.jobs() where kind = 'event'").fetchone():
        await run_until_idle(app, queue="orders")
    sink = ListSink()
    async with draining(forebay.Drain(app, "out", sink=sink, queue="events"), database):
        await wait_for_async(lambda: sink.messages, 20, "a message")

    def found(name):
        return [span for span in receiver.spans if span.name.startswith(name)]

    wait_for(lambda: found("forebay.send") and len(found("forebay.settle")) >= 2, 10)
    (request,), (first_enqueue, second_enqueue) = found("POST"), found("forebay.enqueue")
    first, second = found("forebay.process order")
    (sent,) = found("forebay.send")
    assert request.trace_id.hex() == "ab" * 16
    assert first_enqueue.parent_span_id == request.span_id
    assert (first.trace_id, first.parent_span_id) == (request.trace_id, first_enqueue.span_id)
    assert second.trace_id != request.trace_id
    assert not second.parent_span_id
    assert [link.span_id for link in second.links] == [first_enqueue.span_id]
    assert second_enqueue.parent_span_id == second.span_id
    assert (sent.trace_id, sent.parent_span_id) == (second.trace_id, second_enqueue.span_id)
    edges = [{span.span_id, link.span_id} for span in receiver.spans for link in span.links]
    edges += [{span.span_id, span.parent_span_id} for span in receiver.spans if span.parent_span_id]
    reached = {request.span_id}
    for _ in receiver.spans:
        reached |= {each for edge in edges if edge & reached for each in edge}
    of_jobs = [span for span in receiver.spans if not span.name.startswith("forebay.claim")]
    assert {span.span_id for span in of_jobs} <= reached
    assert sent.span_id in reached
    assert found("forebay.claim")
    provider.shutdown()


async def test_settlements_are_children_of_their_attempts(app, conn, spans):
    exporter, provider = spans
    traced(app, provider)

    @app.job(queue="mail")
    def well() -> None:
        pass

    with conn.transaction():
        well.enqueue(conn)
    await run_until_idle(app)
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert (
        found["forebay.settle well"].parent.span_id == found["forebay.process well"].context.span_id
    )
    assert found["forebay.settle well"].attributes["forebay.outcome"] == "done"
    assert found["forebay.process well"].attributes == {
        "forebay.job_id": 1, "forebay.kind": "well", "forebay.queue": "mail",
        "forebay.group": "default", "forebay.attempt": 1,
    }  # fmt: skip
    assert found["forebay.claim mail"].attributes["forebay.jobs"] == 1


async def test_a_failure_is_an_error_without_its_message(app, conn, spans):
    """The message of an exception may hold what must not leave the application."""
    exporter, provider = spans
    traced(app, provider)

    @app.job(queue="mail", retry=forebay.RetryPolicy(max_attempts=1))
    def broken() -> None:
        raise ValueError("card 4111 1111")

    with conn.transaction():
        broken.enqueue(conn)
    await run_until_idle(app)
    (span,) = [span for span in exporter.get_finished_spans() if "process" in span.name]
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes["error.type"] == "builtins.ValueError"
    assert "4111" not in span.to_json()


async def test_a_batch_is_one_root_with_links(app, conn, spans):
    exporter, provider = spans
    traced(app, provider)

    @app.batch_job(queue="mail", size=200)
    def batch(jobs: list[forebay.Job]) -> None:
        pass

    with conn.transaction():
        for _ in range(150):
            batch.enqueue(conn)
    await run_until_idle(app)
    calls = [span for span in exporter.get_finished_spans() if "process" in span.name]
    assert all(span.parent is None for span in calls)
    assert sum(len(span.links) for span in calls) >= 128
    assert max(len(span.links) for span in calls) <= 128


async def test_a_statement_of_many_jobs_is_one_span(app, conn, spans):
    """No span is around the loop over the chunks."""
    exporter, provider = spans
    traced(app, provider)

    @app.job(queue="mail")
    def well(number: int) -> None:
        pass

    with conn.transaction():
        well.enqueue_many(conn, ({"number": n} for n in range(25)), chunk=10)
    found = exporter.get_finished_spans()
    assert [span.attributes["forebay.jobs"] for span in found] == [10, 10, 5]
    assert all(span.parent is None for span in found)


async def test_the_conventions_are_behind_their_opt_in(app, conn, spans, monkeypatch):
    exporter, provider = spans
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http, messaging")
    traced(app, provider)

    @app.job(queue="mail")
    def well() -> None:
        pass

    with conn.transaction():
        well.enqueue(conn)
    await run_until_idle(app)
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert set(found) == {"enqueue mail", "claim mail", "process mail", "settle mail"}
    span = found["process mail"]
    assert span.kind is trace.SpanKind.CONSUMER
    assert span.attributes["messaging.system"] == "forebay"
    assert span.attributes["messaging.operation.name"] == "process"
    assert span.attributes["messaging.operation.type"] == "process"
    assert span.attributes["messaging.destination.name"] == "mail"
    assert span.attributes["messaging.consumer.group.name"] == "default"
    assert span.attributes["messaging.message.id"] == "1"
    assert span.attributes["forebay.job_id"] == 1


async def test_without_the_opt_in_no_attribute_is_of_the_conventions(app, conn, spans):
    exporter, provider = spans
    traced(app, provider)

    @app.job(queue="mail")
    def well() -> None:
        pass

    with conn.transaction():
        well.enqueue(conn)
    await run_until_idle(app)
    keys = {key for span in exporter.get_finished_spans() for key in span.attributes}
    assert {key for key in keys if not key.startswith("forebay.")} == set()


async def test_a_pass_of_a_mirror_is_inside_of_its_attempt(app, conn, spans):
    exporter, provider = spans
    traced(app, provider)

    class Source:
        def read(self, ids):
            return [Document(each, 1, {}) for each in ids]

        def scan(self, after, limit):
            return []

    mirror = forebay.Mirror(
        app, "pages", source=Source(), target=LyingTarget(), grace=0, interval=0.01
    )
    with conn.transaction():
        mirror.changed(conn, 1)
    await run_until_idle(app)
    mirror.close()
    found = exporter.get_finished_spans()
    attempts = {span.context.span_id for span in found if span.name.startswith("forebay.process")}
    passes = [span for span in found if span.name == "forebay.reconcile pages"]
    assert passes
    assert {span.parent.span_id for span in passes} <= attempts


@pytest.mark.parametrize("flavour", ["async", "thread"])
async def test_each_step_that_runs_is_a_span(app, conn, spans, flavour):
    """
    Within its attempt, by name and key, with the type of its error; one that is recorded has none.
    """
    exporter, provider = spans
    tries = []
    soon = forebay.RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)

    def shaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError

    if flavour == "async":

        async def book(conn) -> int:
            return 1

        @app.job(retry=soon)
        async def order(ctx: forebay.Context) -> None:
            await ctx.step("charge", int, key=7)
            await ctx.once("book", book)
            await ctx.step("ship", shaky)
    else:

        def book(conn) -> int:
            return 1

        @app.job(retry=soon)
        def order(ctx: forebay.Context) -> None:
            ctx.step("charge", int, key=7)
            ctx.once("book", book)
            ctx.step("ship", shaky)

    order.enqueue(conn)
    await run_retries(traced(app, provider), conn)
    found = exporter.get_finished_spans()
    steps = [span for span in found if span.name == "forebay.step order"]
    attempts = [span for span in found if span.name == "forebay.process order"]
    assert [span.attributes["forebay.step"] for span in steps] == ["charge", "book", "ship", "ship"]
    assert [span.attributes.get("forebay.step_key") for span in steps] == ["7", None, None, None]
    assert [span.attributes.get("error.type") for span in steps[2:]] == ["builtins.OSError", None]
    parents = [attempts[0].context.span_id] * 3 + [attempts[1].context.span_id]
    assert [span.parent.span_id for span in steps] == parents


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_nothing_is_imported_without_a_provider():
    """Nor is there a middleware, so an enqueue and an attempt cost what they cost without
    tracing.
    """
    code = (
        "import sys, forebay, forebay.tracing, forebay.worker\n{}"
        "app = forebay.App('', middleware=forebay.tracing.middleware())\n"
        "print(len(app._internals.middleware), any(n.startswith('forebay.tracing._') for n "
        "in sys.modules))"
    )
    assert (
        run(code.format("assert not any(n.startswith('opentelemetry') for n in sys.modules)\n"))
        == "0 False"
    )
    assert run(code.format("import opentelemetry.trace\n")) == "0 False"
    provided = (
        "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
        "trace.set_tracer_provider(TracerProvider())\n"
    )
    assert run(code.format(provided)) == "1 True"


def test_without_the_api_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import forebay.tracing\n"
        "try: forebay.tracing.Tracing()\n"
        "except ImportError as error: print(error)"
    )
    assert "pip install 'forebay[otel]'" in run(code)

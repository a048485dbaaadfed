"""The examples of docs/howto/middleware.md with the real libraries: Sentry, OpenTelemetry,
Prometheus.
"""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from forebay import App
from tests.support.fix_worker import run_until_idle
from tools.code_blocks import read_blocks

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "middleware.md"


@pytest.fixture
def example(request):
    """Return the module that a block of the page makes."""

    def load(name: str) -> Any:
        (block,) = (each for each in read_blocks(PAGE) if each.argument == name)
        module = types.ModuleType(f"example_{name.removesuffix('.py')}")
        # Annotations are resolved in the module of the code.
        sys.modules[module.__name__] = module
        request.addfinalizer(lambda: sys.modules.pop(module.__name__))
        exec(compile(block.code, f"{PAGE.name}:{name}", "exec"), vars(module))
        return module

    return load


async def test_the_span_of_an_attempt_belongs_to_the_trace_of_its_enqueue(database, conn, example):
    """
    Through the header traceparent, in threads too; the span of a failed attempt has the exception.
    """
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is part of the extra dev")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = example("tracing.py")
    tracing.tracer = provider.get_tracer("test")
    app = App(database, middleware=[tracing.Tracing()])
    inside: list[Any] = []

    @app.job(max_attempts=1)
    def work(n: int) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)
        if n == 0:
            raise ValueError("no")

    with tracing.tracer.start_as_current_span("request") as request:
        work.enqueue(conn, 1)
        work.enqueue_many(conn, [0, 2])
    conn.commit()
    await run_until_idle(app)
    spans: list[Any] = list(exporter.get_finished_spans())
    attempts = [span for span in spans if span.name == "work"]
    enqueues = [span for span in spans if span.name == "enqueue work"]
    assert {span.context.trace_id for span in spans} == {request.get_span_context().trace_id}
    assert len(enqueues) == 2
    assert {span.parent.span_id for span in attempts} == {span.context.span_id for span in enqueues}
    assert sorted(inside) == sorted(span.context.span_id for span in attempts)
    failed = [event for span in attempts for event in span.events if event.name == "exception"]
    assert [event.attributes["exception.message"] for event in failed] == ["no"]


async def test_attempts_are_counted_by_outcome(database, conn, example):
    """
    A counter and a histogram by kind, from listeners.
    """
    prometheus = pytest.importorskip("prometheus_client", reason="part of the extra dev")
    app = App(database)
    example("metrics.py").instrument(app)

    @app.job(max_attempts=1)
    async def measured(n: int) -> None:
        if n == 0:
            raise ValueError("no")

    measured.enqueue_many(conn, [0, 1, 2])
    conn.commit()
    await run_until_idle(app)
    value = prometheus.REGISTRY.get_sample_value
    assert value("jobs_attempts_total", {"kind": "measured", "outcome": "done"}) == 2
    assert value("jobs_attempts_total", {"kind": "measured", "outcome": "dead"}) == 1
    assert value("jobs_seconds_count", {"kind": "measured"}) == 3


@pytest.mark.slow
async def test_events_of_a_handler_have_the_scope_of_its_attempt(database, conn, example):
    """
    Each attempt has its own scope: tags, the job and a transaction; none leaks to the next job of
    the thread.
    """
    sentry_sdk = pytest.importorskip("sentry_sdk", reason="sentry-sdk is part of the extra dev")
    from sentry_sdk.transport import Transport

    sent: list[Any] = []

    class Recorder(Transport):
        def capture_envelope(self, envelope):
            sent.extend(item.payload.json for item in envelope.items)

    app = App(database, middleware=[example("sentry.py").SentryScope()])

    @app.job(max_attempts=1)
    def work(n: int) -> None:
        if n == 1:
            sentry_sdk.set_tag("only", "one")
        sentry_sdk.capture_message(f"from {n}")

    for n in (1, 2):
        work.using(headers={"tenant": f"tenant {n}"}).enqueue(conn, n)
    conn.commit()
    with sentry_sdk.isolation_scope():
        client = sentry_sdk.Client(
            dsn="http://key@localhost/1", transport=Recorder, traces_sample_rate=1.0
        )
        sentry_sdk.get_global_scope().set_client(client)
        try:
            await run_until_idle(app, concurrency=1)
            client.flush()
        finally:
            sentry_sdk.get_global_scope().set_client(None)
    events = {each["message"]: each for each in sent if "message" in each}
    assert events["from 1"]["tags"] == {"queue": "default", "tenant": "tenant 1", "only": "one"}
    assert events["from 2"]["tags"] == {"queue": "default", "tenant": "tenant 2"}
    assert events["from 2"]["contexts"]["job"]["attempt"] == 1
    assert {each["transaction"] for each in events.values()} == {"work"}
    assert len([each for each in sent if each.get("type") == "transaction"]) == 2

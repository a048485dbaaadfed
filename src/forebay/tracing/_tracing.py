"""``Tracing``: spans for enqueue, claim, process, settle, send and reconcile.

The trace context of an enqueue travels in the headers of its job. The first attempt is a child of
the enqueue. A retry is the root of a new trace with a link to it, so that a job that is retried for
days does not make one trace of days. A batch is a root with links to its jobs. No span is around a
loop: each ends with one call.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

try:
    from opentelemetry import context, propagate, trace
except ImportError as error:
    raise ImportError(
        "forebay.tracing needs the API of OpenTelemetry: pip install 'forebay[otel]'"
    ) from error

from forebay.errors import ConfigError, shown
from forebay.model.doors import declaring_door
from forebay.model.middleware import Middleware
from forebay.model.spans import PLACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

    from forebay.model.attempts import AttemptEnded
    from forebay.model.job import Job
    from forebay.model.middleware import Attempt, NewJob

#: Most links of one span: a batch of thousands of jobs is one span.
_LINKS_MAX: Final = 128

#: Attempts whose span ended and whose settlement has not.
_ENDED_MAX: Final = 10_000

_OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"


class _What(NamedTuple):
    """A span to start: our name of the operation, that of the conventions, and where it belongs."""

    name: str
    operation: str
    destination: str | None
    kind: SpanKind
    parent: context.Context | None = None
    links: Sequence[Link] = ()


class Tracing(Middleware):
    """Creates the spans.

    Make one for a process, and give it to the application as its first middleware.

    Each span has attributes ``forebay.*``, which are stable. With ``messaging`` in
    OTEL_SEMCONV_STABILITY_OPT_IN the spans also have the names and attributes of the messaging
    conventions of OpenTelemetry, which are not stable yet.

    Args:
        provider: makes the tracer; None: the global one.
        messaging: whether to follow the messaging conventions; None: as the environment says.

    Raises:
        ImportError: the API of OpenTelemetry is not installed.
    """

    @declaring_door
    def __init__(
        self, provider: TracerProvider | None = None, *, messaging: bool | None = None
    ) -> None:
        if provider is not None and not callable(getattr(provider, "get_tracer", None)):
            raise ConfigError("provider", f"must be a TracerProvider, not {shown(provider)}")
        wanted = [part.strip() for part in os.environ.get(_OPT_IN, "").split(",")]
        self._follows = "messaging" in wanted if messaging is None else messaging
        self._tracer = trace.get_tracer("forebay", tracer_provider=provider)
        self._lock = threading.Lock()
        self._attempts: OrderedDict[tuple[int, str, int], trace.SpanContext] = OrderedDict()
        PLACE.installed = self

    # --- middleware ---

    def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[None]:
        """Create a span around one statement, and put its context into the headers of the jobs."""
        first = jobs[0]
        attributes = {"forebay.kind": first.kind, "forebay.jobs": len(jobs)}
        if first.options.queue is not None:
            attributes["forebay.queue"] = first.options.queue
        with self._current(
            _What("enqueue", "send", first.options.queue, trace.SpanKind.PRODUCER), attributes
        ) as span:
            for job in jobs:
                propagate.inject(job.headers)
            yield
            if len(jobs) == 1 and first.job_id is not None and span.is_recording():
                span.set_attributes(self._named({"forebay.job_id": int(first.job_id)}))

    def attempt(self, attempt: Attempt) -> Iterator[None]:
        """Create a span around the handler."""
        job = attempt.job
        origins = [_origin(each) for each in attempt.jobs[:_LINKS_MAX] or (job,)]
        parent, links = _parent_and_links(
            origins, is_first=job.attempt == 1 and len(attempt.jobs) <= 1
        )
        attributes = _of_job(job)
        if len(attempt.jobs) > 1:
            attributes["forebay.jobs"] = len(attempt.jobs)
        with self._current(
            _What("process", "process", job.queue, trace.SpanKind.CONSUMER, parent, links),
            attributes,
        ) as span:
            with self._lock:
                for each in attempt.jobs or (job,):
                    self._attempts[each.job_id, each.group, each.attempt] = span.get_span_context()
                while len(self._attempts) > _ENDED_MAX:
                    self._attempts.popitem(last=False)
            yield

    def settlement(self, ended: AttemptEnded) -> Iterator[None]:
        """Create a span from the end of the attempt until the database has the outcome."""
        job = ended.job
        with self._lock:
            known = self._attempts.pop((job.job_id, job.group, job.attempt), None)
        if known is None:  # a handler in another process, or one that did not start
            parent, links = _parent_and_links([_origin(job)], is_first=job.attempt == 1)
        else:
            parent, links = _as_parent(known), []
        attributes = {**_of_job(job), "forebay.outcome": ended.outcome}
        # Not the current span: settlements of several jobs are open at a time.
        span = self._started(
            _What("settle", "settle", job.queue, trace.SpanKind.CLIENT, parent, links), attributes
        )
        try:
            yield
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            span.end()

    # --- what is not around a handler ---

    def claimed(self, queue: str, jobs: int, began_at: float) -> None:
        """Create the span of a claim that took jobs. It is a root: one claim takes jobs of many
        traces.
        """
        attributes = {"forebay.queue": queue, "forebay.jobs": jobs}
        span = self._started(
            _What("claim", "receive", queue, trace.SpanKind.CLIENT, context.Context()),
            attributes,
            start_time=int(began_at * 1e9),
        )
        span.end()

    @contextlib.contextmanager
    def sending(self, sink: str, place: str, messages: Sequence[Any]) -> Iterator[None]:
        """Create a span around one call of a sink."""
        origins = [_context_of(message.headers) for message in messages[:_LINKS_MAX]]
        is_first = len(messages) == 1 and messages[0].attempt == 1
        parent, links = _parent_and_links(origins, is_first=is_first)
        attributes = {
            "forebay.sink": sink,
            "forebay.place": place,
            "forebay.queue": messages[0].queue,
            "forebay.jobs": len(messages),
        }
        if len(messages) == 1:
            attributes["forebay.job_id"] = messages[0].job_id
        with self._current(
            _What("send", "send", place, trace.SpanKind.CLIENT, parent, links), attributes
        ):
            yield

    @contextlib.contextmanager
    def reconciling(self, mirror: str, jobs: Sequence[Any]) -> Iterator[None]:
        """Create a span around a pass of a mirror, inside of that of its attempt."""
        attributes = {"forebay.mirror": mirror, "forebay.jobs": len(jobs)}
        with self._current(
            _What("reconcile", "process", mirror, trace.SpanKind.INTERNAL), attributes
        ):
            yield

    @contextlib.contextmanager
    def stepping(self, job: Job, name: str, key: str | None) -> Iterator[None]:
        """Create a span around one call of a step's function, inside of that of its attempt.

        A step that is recorded is not called, and has none.
        """
        attributes = {**_of_job(job), "forebay.step": name}
        if key is not None:
            attributes["forebay.step_key"] = key
        with self._current(
            _What("step", "process", job.queue, trace.SpanKind.INTERNAL), attributes
        ):
            yield

    # --- spans ---

    @contextlib.contextmanager
    def _current(self, what: _What, attributes: Mapping[str, Any]) -> Iterator[Span]:
        span = self._started(what, attributes)
        token = context.attach(trace.set_span_in_context(span, what.parent))
        try:
            yield span
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            context.detach(token)
            span.end()

    def _started(
        self, what: _What, attributes: Mapping[str, Any], *, start_time: int | None = None
    ) -> Span:
        named = self._named(attributes)
        shown = attributes.get("forebay.kind") or what.destination or ""
        title = f"forebay.{what.name} {shown}".rstrip()
        if self._follows:
            named |= {
                "messaging.system": "forebay",
                "messaging.operation.name": what.name,
                "messaging.operation.type": what.operation,
            }
            if what.destination is not None:
                named["messaging.destination.name"] = what.destination
            title = f"{what.name} {what.destination or 'default'}"
        return self._tracer.start_span(title, what.parent, what.kind, named, what.links, start_time)

    def _named(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stable attributes, with those of the conventions if they are wanted."""
        named = dict(attributes)
        if self._follows:
            for ours, theirs in _CONVENTIONS.items():
                if ours in attributes:
                    value = attributes[ours]
                    named[theirs] = value if theirs.endswith("count") else str(value)
        return named


#: Our attributes, and their names in the conventions.
_CONVENTIONS: Final = {
    "forebay.job_id": "messaging.message.id",
    "forebay.correlation_id": "messaging.message.conversation_id",
    "forebay.group": "messaging.consumer.group.name",
    "forebay.jobs": "messaging.batch.message_count",
}


def _of_job(job: Job) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "forebay.job_id": job.job_id,
        "forebay.kind": job.kind,
        "forebay.queue": job.queue,
        "forebay.group": job.group,
        "forebay.attempt": job.attempt,
    }
    if job.correlation_id is not None:
        attributes["forebay.correlation_id"] = job.correlation_id
    return attributes


def _origin(job: Job) -> trace.SpanContext:
    return _context_of(job.headers)


def _context_of(headers: Mapping[str, str] | None) -> trace.SpanContext:
    """Return the span that the headers of a job name; an invalid one if they name none."""
    found = propagate.extract(headers or {}, context.Context())
    return trace.get_current_span(found).get_span_context()


def _parent_and_links(
    origins: Sequence[trace.SpanContext], *, is_first: bool
) -> tuple[context.Context, list[Link]]:
    """Return where a span belongs: to its only origin, or to a new trace with links."""
    known = [origin for origin in origins if origin.is_valid]
    if is_first and known:
        return _as_parent(known[0]), []
    return context.Context(), [trace.Link(origin) for origin in known]


def _as_parent(origin: trace.SpanContext) -> context.Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(origin), context.Context())


def _failed(span: Span, error: BaseException) -> None:
    """Record the type of an error.

    Its message may hold what the application keeps out of traces.
    """
    if isinstance(error, GeneratorExit):
        return
    span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
    span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))

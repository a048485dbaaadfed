"""The place where ``forebay.tracing`` puts itself: what is not around a handler looks here
whether spans are wanted.

``installed`` is None unless an application makes a ``Tracing``; then a claim, a send and a pass of
a mirror cost one comparison.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager


class Spans(Protocol):
    """Creates spans around work that is not a handler."""

    def claimed(self, queue: str, jobs: int, began_at: float) -> None:
        """A claim that took jobs has ended; it began at these seconds of ``time.time()``."""

    def sending(
        self, sink: str, place: str, messages: Sequence[Any]
    ) -> AbstractContextManager[None]:
        """One call of a sink, with its messages."""

    def reconciling(self, mirror: str, jobs: Sequence[Any]) -> AbstractContextManager[None]:
        """One pass of a mirror, with its jobs."""

    def stepping(self, job: Any, name: str, key: str | None) -> AbstractContextManager[None]:
        """One call of the function of a step, of this job."""


class _Place:
    """Holds the spans of this process."""

    __slots__ = ("installed",)

    def __init__(self) -> None:
        self.installed: Spans | None = None


PLACE = _Place()


def sending(sink: Any, messages: Sequence[Any]) -> AbstractContextManager[None]:
    """Return the span around one call of a sink, if spans are wanted."""
    spans = PLACE.installed
    return nullcontext() if spans is None else spans.sending(sink.type, sink.place, messages)


def reconciling(mirror: str, jobs: Sequence[Any]) -> AbstractContextManager[None]:
    """Return the span around one pass of a mirror, if spans are wanted."""
    spans = PLACE.installed
    return nullcontext() if spans is None else spans.reconciling(mirror, jobs)


def stepping(job: Any, name: str, key: str | None) -> AbstractContextManager[None]:
    """Return the span around one call of a step's function, if spans are wanted."""
    spans = PLACE.installed
    return nullcontext() if spans is None else spans.stepping(job, name, key)

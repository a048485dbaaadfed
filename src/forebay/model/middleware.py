"""Middleware: code of an application around each enqueue, each attempt and each settlement.

A middleware is an object of a subclass of ``Middleware``. Each of its methods is a generator with
one ``yield``: what stands before it runs first, then what the middleware is around, then the rest.
An exception of what it is around is raised at the ``yield``.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from forebay._dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from forebay.model.attempts import AttemptEnded
    from forebay.model.job import Job
    from forebay.model.options import JobOptions
    from forebay.model.unique import JobId


@dataclass(slots=True, kw_only=True, eq=False)
class NewJob:
    """A job that is about to be enqueued.

    A middleware may change ``headers`` and replace ``options``.

    Attributes:
        kind: the name of its kind.
        args: its arguments as JSON text.
        options: its options, without the headers; a middleware may replace them.
        headers: its headers, at most 64 entries of text, 8 kB in total; a middleware may change
            them.
        job_id: its id after the ``yield``; None before it, and for jobs of ``enqueue_many``.
    """

    kind: str
    args: str
    options: JobOptions
    headers: dict[str, str]
    job_id: JobId | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One call of a handler: one attempt of a job, or of several jobs of a batch handler.

    Attributes:
        job: the job; of a batch, the first one.
        jobs: all jobs of the call.
        conn: with ``transaction=True``, the connection or session of the transaction that also
            completes the job; else None.
        returned: what the handler returned; None before the ``yield``.
    """

    job: Job
    jobs: Sequence[Job] = field(default_factory=tuple)
    conn: Any = None
    returned: Any = None


class Middleware:
    """Base class: override the methods that you need; the others cost nothing.

    The first middleware of an application is the outermost. Each method is a generator function
    with exactly one ``yield``. It cannot hide an exception: one that it catches and does not raise
    again is raised after it.
    """

    def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[None]:
        """Run around the statement that writes jobs: one job, or a chunk of ``enqueue_many``.

        An exception before the ``yield`` refuses the enqueue; nothing is written.
        """
        del jobs
        yield

    def aenqueue(self, jobs: Sequence[NewJob]) -> AsyncIterator[None]:
        """Run around the asynchronous forms, ``aenqueue`` and its relatives. Default:
        ``enqueue`` runs around them too.

        Override it with an asynchronous generator function.
        """
        raise NotImplementedError(jobs)

    def attempt(self, attempt: Attempt) -> Iterator[None]:
        """Run around the handler, where it runs: on the event loop, in its thread, in its
        process, in its transaction.

        An exception is the failure of the attempt. Around a coroutine function it runs on the event
        loop, so it must not block.
        """
        del attempt
        yield

    def aattempt(self, attempt: Attempt) -> AsyncIterator[None]:
        """Run around coroutine functions instead of ``attempt``. Default: ``attempt`` runs
        around them too.

        Override it with an asynchronous generator function.
        """
        raise NotImplementedError(attempt)

    def settlement(self, ended: AttemptEnded) -> Iterator[None]:
        """Run around the recording of an outcome, on the event loop of the worker, which it must
        not block.

        What stands before the ``yield`` runs when the worker knows the outcome; the rest runs when
        the database has it. If the database refused it, because the job no longer belongs to this
        worker, ``LeaseLost`` is raised at the ``yield``. An exception of this method is logged and
        counted; the outcome stays. If a handler in a transaction has recorded its outcome itself,
        both parts run after the commit.
        """
        del ended
        yield


def overrides(middleware: Middleware, method: str) -> bool:
    """Whether a middleware overrides a method of the base class."""
    return getattr(type(middleware), method) is not getattr(Middleware, method)


def around_attempts(
    middleware: Sequence[Middleware], *, is_async: bool
) -> tuple[Callable[[Attempt], Iterator[None] | AsyncIterator[None]], ...]:
    """Return the methods to run around coroutine functions, or around plain functions.

    The outermost comes first.
    """
    found: list[Callable[[Attempt], Iterator[None] | AsyncIterator[None]]] = []
    for each in middleware:
        if is_async and overrides(each, "aattempt"):
            found.append(each.aattempt)
        elif overrides(each, "attempt"):
            found.append(each.attempt)
    return tuple(found)

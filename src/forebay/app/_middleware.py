"""Writes jobs inside of the middlewares of an app."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.db.bulk import enqueue_all, enqueue_all_async
from forebay.errors import ConfigError, EnqueueError
from forebay.model import checks
from forebay.model.middleware import Middleware, NewJob, overrides
from forebay.ops.enqueue import CHUNK_MAX, Call, enqueue, shifted, with_written
from forebay.policy.around import run_within, run_within_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from forebay.db.drivers import AsyncConnection, SyncConnection
    from forebay.model import JobId
    from forebay.ops.operation import Operation
    from forebay.policy.around import Around


class Middlewares:
    """The middlewares of an app, outermost first."""

    def __init__(self) -> None:
        self._all: list[Middleware] = []
        #: Around enqueues, and around asynchronous ones; empty costs nothing.
        self.enqueue: tuple[Around, ...] = ()
        self.aenqueue: tuple[Around, ...] = ()

    @property
    def all(self) -> Sequence[Middleware]:
        """The middlewares."""
        return self._all

    def add(self, middleware: object) -> None:
        """Add a middleware inside of the others.

        Raises:
            ConfigError: it is no ``Middleware``, or runs around asynchronous enqueues only.
        """
        if not isinstance(middleware, Middleware):
            raise ConfigError(
                "middleware",
                f"must be an object of a subclass of Middleware, not {type(middleware).__name__}",
                hint="class Tenancy(forebay.Middleware): ...; App(middleware=[Tenancy()])",
            )
        if overrides(middleware, "aenqueue") and not overrides(middleware, "enqueue"):
            raise ConfigError(
                f"middleware {type(middleware).__name__}",
                "has aenqueue and no enqueue, so jobs that plain code enqueues would pass it by",
                hint="Define both, or only enqueue: it runs around asynchronous enqueues too.",
            )
        self._all.append(middleware)
        self._arrange()

    def remove(self, middleware: Middleware) -> None:
        """Remove a middleware that was added."""
        self._all.remove(middleware)
        self._arrange()

    def _arrange(self) -> None:
        around = [each for each in self._all if overrides(each, "enqueue")]
        self.enqueue = tuple(each.enqueue for each in around)
        self.aenqueue = tuple(
            each.aenqueue if overrides(each, "aenqueue") else each.enqueue for each in around
        )


def enqueue_one(
    around: Sequence[Around], call: Call, write: Callable[[Operation[JobId]], JobId]
) -> JobId:
    """Write one job inside of middlewares; return its id."""
    if not around:
        return write(enqueue(call))
    job = _new_job(call)

    def inner() -> JobId:
        job.job_id = write(enqueue(_changed(call, job)))
        return job.job_id

    return run_within(around, [job], inner)


async def enqueue_one_async(
    around: Sequence[Around], call: Call, write: Callable[[Operation[JobId]], Awaitable[JobId]]
) -> JobId:
    """Do as ``enqueue_one``, asynchronously."""
    if not around:
        return await write(enqueue(call))
    job = _new_job(call)

    async def inner() -> JobId:
        job.job_id = await write(enqueue(_changed(call, job)))
        return job.job_id

    return await run_within_async(around, [job], inner)


def enqueue_each(
    around: Sequence[Around],
    conn: SyncConnection,
    items: Iterable[Any],
    as_call: Callable[[Any], Call],
    size: int,
    *,
    ids: list[JobId] | None = None,
) -> int:
    """Write a job for each item, a chunk at a time inside of middlewares; see ``enqueue_all``."""
    if not around:
        return enqueue_all(conn, items, as_call, size, ids=ids)
    chunk, count = _Chunk(as_call, size), 0

    def written() -> int:
        calls = chunk.take()
        jobs = [_new_job(call) for call in calls]

        def inner() -> int:
            return enqueue_all(conn, map(_changed, calls, jobs), _same, size, ids=ids)

        with chunk.placed():
            return run_within(around, jobs, inner)

    for item in items:
        if chunk.add(item):
            count += written()
    return count + written() if chunk.calls else count


async def enqueue_each_async(
    around: Sequence[Around],
    conn: AsyncConnection,
    items: Iterable[Any] | AsyncIterable[Any],
    as_call: Callable[[Any], Call],
    size: int,
    *,
    ids: list[JobId] | None = None,
) -> int:
    """Do as ``enqueue_each``, asynchronously."""
    if not around:
        return await enqueue_all_async(conn, items, as_call, size, ids=ids)
    chunk, count = _Chunk(as_call, size), 0

    async def written() -> int:
        calls = chunk.take()
        jobs = [_new_job(call) for call in calls]

        async def inner() -> int:
            return await enqueue_all_async(conn, map(_changed, calls, jobs), _same, size, ids=ids)

        with chunk.placed():
            return await run_within_async(around, jobs, inner)

    if isinstance(items, AsyncIterable):
        async for item in items:
            if chunk.add(item):
                count += await written()
    else:
        for item in items:
            if chunk.add(item):
                count += await written()
    return count + await written() if chunk.calls else count


class _Chunk:
    """The calls of the next statement, and the number of those before it."""

    def __init__(self, as_call: Callable[[Any], Call], size: int) -> None:
        self._as_call = as_call
        self._size = checks.checked_integer(size, "chunk", least=1, most=CHUNK_MAX)
        self._before = self._taken = 0
        self.calls: list[Call] = []

    def add(self, item: Any) -> bool:
        """Add an item; return whether the chunk is full."""
        try:
            self.calls.append(self._as_call(item))
        except EnqueueError as error:
            at = self._before + len(self.calls)
            raise with_written(error.at_index(at), self._before) from error
        return len(self.calls) >= self._size

    def take(self) -> list[Call]:
        """Return the calls, and begin the next chunk."""
        calls, self.calls = self.calls, []
        self._before += len(calls)
        self._taken = len(calls)
        return calls

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Count the index of a refused job from the start of all items."""
        before = self._before - self._taken
        try:
            yield
        except EnqueueError as error:
            raise with_written(shifted(error, before), before) from error


def _new_job(call: Call) -> NewJob:
    options = call.options
    return NewJob(
        kind=call.kind, args=call.args, options=options, headers=dict(options.headers or {})
    )


def _changed(call: Call, job: NewJob) -> Call:
    """Return the call as the middlewares left its job."""
    options = job.options
    if job.headers != dict(options.headers or {}):
        options = options.merged(headers=job.headers or None)
    return call if options is call.options else msgspec.structs.replace(call, options=options)


def _same(call: Call) -> Call:
    return call

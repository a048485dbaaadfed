"""Enqueue more jobs than fit into memory, in the caller's transaction."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg

from forebay.db.drivers import AsyncConnection, SyncConnection, run, run_async
from forebay.errors import EnqueueError, InvalidJob
from forebay.ops.enqueue import Call, Chunks, database_clock, shifted, with_written

if TYPE_CHECKING:
    from concurrent.futures import Future

    from forebay.model import JobId
    from forebay.ops.operation import Operation

T = TypeVar("T")


def enqueue_all(
    conn: SyncConnection,
    items: Iterable[Any],
    as_call: Callable[[Any], Call],
    size: int,
    *,
    ids: list[JobId] | None = None,
) -> int:
    """Enqueue a job for each item, a chunk of them per statement; return how many.

    The list ``ids``, if there is one, gets the id of each job.

    Sent chunks are not kept in memory. A refused item stops everything: its chunk is not written,
    and the caller should roll back the transaction, which contains the earlier chunks. A connection
    in autocommit mode commits each chunk as it is sent.

    On a psycopg connection, a thread waits for the server while the next chunk is built. The thread
    takes the connection's lock before the next item is read. So statements that ``items`` itself
    runs on the connection come after that chunk, as without the thread.

    Raises:
        EnqueueError: an item was refused; ``index`` counts from 0 over all items.
    """
    chunks = Chunks(size, ids)
    items = iter(items)
    with _Sender(conn) as sender:
        for index, item in enumerate(items):
            call = _checked(as_call, item, index, chunks)
            if chunks.needs_clock(call):
                _refuse_own_stream(conn, items)
                chunks.now = run(conn, database_clock())
            operation = chunks.add(call)
            if operation is not None:
                sender.wait()
                _refuse_own_stream(conn, items)
                sender.send(operation, chunks.handed_out - chunks.last_size)
        sender.wait()
        rest = chunks.rest()
        if rest is not None:
            sender.count += _sent(conn, rest, chunks.handed_out - chunks.last_size)
    return sender.count


class _Sender:
    """Sends statements one after the other, in a thread if possible."""

    def __init__(self, conn: SyncConnection) -> None:
        self._conn = conn
        raw = conn.connection if isinstance(conn, psycopg.Cursor) else conn
        self._raw = raw if isinstance(raw, psycopg.Connection) else None
        self._threads: ThreadPoolExecutor | None = None
        self._answer: Future[int] | None = None
        self.count = 0

    def send(self, operation: Operation[int], before: int) -> None:
        """Send a statement, after ``wait`` for the previous one."""
        if self._raw is None:
            self.count += _sent(self._conn, operation, before)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="forebay-bulk")
        self._answer = self._threads.submit(_sent, self._conn, operation, before)
        while not (self._raw.lock.locked() or self._answer.done()):
            time.sleep(0)

    def wait(self) -> None:
        """Wait for the statement under way.

        Raises:
            EnqueueError: the statement was refused.
        """
        if self._answer is not None:
            self.count += self._answer.result()
            self._answer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._threads is None:
            return
        if kind is not None and self._answer is not None and self._raw is not None:
            while not issubclass(kind, Exception) and not self._answer.done():
                # The user pressed Ctrl-C. A cancel request between two statements has no effect, so
                # repeat it.
                self._raw.cancel()
                wait([self._answer], timeout=0.1)
            # The error of an earlier chunk comes first: later errors may follow from it.
            error = self._answer.exception()
            self._threads.shutdown()
            if error is not None and issubclass(kind, Exception):
                raise error
        self._threads.shutdown()


def _sent(conn: SyncConnection, operation: Operation[int], before: int) -> int:
    try:
        return run(conn, operation)
    except EnqueueError as error:
        raise with_written(shifted(error, before), before) from error


async def enqueue_all_async(
    conn: AsyncConnection,
    items: Iterable[Any] | AsyncIterable[Any],
    as_call: Callable[[Any], Call],
    size: int,
    *,
    ids: list[JobId] | None = None,
) -> int:
    """Do as ``enqueue_all``, one chunk after the other; ``items`` may be asynchronous."""
    chunks = Chunks(size, ids)
    count = index = 0

    async def sent(operation: Operation[int] | None) -> int:
        if operation is None:
            return 0
        before = chunks.handed_out - chunks.last_size
        await _refuse_own_stream_async(conn, items)
        try:
            return await run_async(conn, operation)
        except EnqueueError as error:
            raise with_written(shifted(error, before), before) from error

    async for item in _each(items):
        call = _checked(as_call, item, index, chunks)
        if chunks.needs_clock(call):
            await _refuse_own_stream_async(conn, items)
            chunks.now = await run_async(conn, database_clock())
        count += await sent(chunks.add(call))
        index += 1
    return count + await sent(chunks.rest())


def _refuse_own_stream(conn: SyncConnection, items: object) -> None:
    """Refuse items that ``stream()`` of a cursor of the same connection yields, and end it.

    The connection is busy until the last row: a statement on it would never end, also the one
    that ends the transaction.

    Raises:
        InvalidJob: there is such a stream among the iterators that ``items`` reads.
    """
    stream = _own_stream(conn, items)
    if stream is not None:
        stream.close()
        raise _own_stream_refused()


async def _refuse_own_stream_async(conn: AsyncConnection, items: object) -> None:
    """Do as ``_refuse_own_stream``."""
    stream = _own_stream(conn, items)
    if stream is not None:
        await stream.aclose()
        raise _own_stream_refused()


def _own_stream_refused() -> InvalidJob:
    return InvalidJob(
        "items",
        "come from stream() on the same connection, which is busy until the last row",
        hint="Read them with a named cursor, or on another connection.",
    )


def _own_stream(conn: Any, items: object) -> Any:
    lock = getattr(conn, "lock", None)
    if lock is None or not lock.locked():
        return None
    waiting, seen = [items], set[int]()
    while waiting:
        each: Any = waiting.pop()
        seen.add(id(each))
        frame = getattr(each, "gi_frame", None) or getattr(each, "ag_frame", None)
        if frame is not None and frame.f_code.co_name == "stream":
            if getattr(frame.f_locals.get("self"), "connection", None) is conn:
                return each
            continue
        # Also what a generator holds in the middle of a loop, which no local variable names.
        waiting += (
            inner
            for inner in gc.get_referents(each)
            if isinstance(inner, Iterator | AsyncIterator | tuple) and id(inner) not in seen
        )
    return None


def _checked(as_call: Callable[[Any], Call], item: Any, index: int, chunks: Chunks) -> Call:
    try:
        return as_call(item)
    except EnqueueError as error:
        raise with_written(error.at_index(index), chunks.handed_out) from error


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item

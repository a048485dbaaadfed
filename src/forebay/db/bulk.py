"""Enqueuing more jobs than fit into memory, in the caller's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.db.callers import AsyncConnection, SyncConnection, run, run_async
from forebay.errors import EnqueueError
from forebay.ops.enqueue import Call, Chunks, database_clock, shifted, with_written

if TYPE_CHECKING:
    from forebay.ops.operation import Operation

T = TypeVar("T")


def enqueue_all(
    conn: SyncConnection, items: Iterable[Any], as_call: Callable[[Any], Call], size: int
) -> int:
    """Enqueue a job for each item, a chunk of them per statement; return how many.

    Nothing is kept of the chunks that were sent. A refused item stops everything: its own chunk
    is not written, those before it are part of the caller's transaction, which is to be rolled
    back. On a connection in autocommit mode each chunk is committed as it is sent.

    Raises:
        EnqueueError: an item was refused; ``index`` counts from 0 over all items.
    """
    chunks = Chunks(size)
    count = 0

    def sent(operation: Operation[int] | None) -> int:
        if operation is None:
            return 0
        before = chunks.handed_out - chunks.last_size
        try:
            return run(conn, operation)
        except EnqueueError as error:
            raise with_written(shifted(error, before), before) from error

    for index, item in enumerate(items):
        call = _checked(as_call, item, index, chunks)
        if chunks.needs_clock(call):
            chunks.now = run(conn, database_clock())
        count += sent(chunks.add(call))
    return count + sent(chunks.rest())


async def enqueue_all_async(
    conn: AsyncConnection,
    items: Iterable[Any] | AsyncIterable[Any],
    as_call: Callable[[Any], Call],
    size: int,
) -> int:
    """Do as ``enqueue_all``; the items may come asynchronously."""
    chunks = Chunks(size)
    count = index = 0

    async def sent(operation: Operation[int] | None) -> int:
        if operation is None:
            return 0
        before = chunks.handed_out - chunks.last_size
        try:
            return await run_async(conn, operation)
        except EnqueueError as error:
            raise with_written(shifted(error, before), before) from error

    async for item in _each(items):
        call = _checked(as_call, item, index, chunks)
        if chunks.needs_clock(call):
            chunks.now = await run_async(conn, database_clock())
        count += await sent(chunks.add(call))
        index += 1
    return count + await sent(chunks.rest())


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

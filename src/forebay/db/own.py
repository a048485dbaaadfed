"""One operation on a new connection: opened, committed, closed.

It is for callers without a transaction, such as the command line. Producers that enqueue often
should keep a pool and pass its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.rows import tuple_row

from forebay.db.address import parsed_address
from forebay.db.errors import translate_own
from forebay.db.opening import connected, connected_async
from forebay.db.server_settings import ENCODING, OF_CALLS, for_one_transaction
from forebay.db.session import KEEPALIVE
from forebay.ops.enqueue import Chunks, database_clock
from forebay.ops.events import with_actor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from forebay.ops.enqueue import Call
    from forebay.ops.operation import Operation

T = TypeVar("T")

#: Unless the address sets another value.
_CONNECT_SECONDS: Final = 10


def opened(dsn: str) -> psycopg.Connection[Any]:
    """Open a connection for single calls."""
    return connected(dsn, **_options(dsn), row_factory=tuple_row)


async def opened_async(dsn: str) -> psycopg.AsyncConnection[Any]:
    """Do as ``opened``, asynchronously."""
    return await connected_async(dsn, **_options(dsn), row_factory=tuple_row)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise our error in place of the driver's, of calls on connections of the library."""
    try:
        yield
    except psycopg.Error as error:
        ours = translate_own(error)
        if ours is None:
            raise
        raise ours from error


def run_own(dsn: str, operation: Operation[T]) -> T:
    """Connect, run an operation in a separate transaction, and return its result.

    Raises:
        DatabaseUnavailable: no connection, or it was lost: then the outcome is unknown.
        ForebayError: Forebay's SQL function refused.
    """
    with translated(), opened(dsn) as conn:
        return call(conn, operation)


def enqueue_own(dsn: str, calls: Iterable[Call]) -> int:
    """Connect, enqueue jobs in chunks, each in a separate transaction, and return how many.

    Raises:
        DatabaseUnavailable: no connection, or it was lost: then some of the jobs may exist.
        ForebayError: Forebay's SQL function refused.
    """
    chunks = Chunks()
    count = 0
    with translated(), opened(dsn) as conn:

        def run(operation: Operation[T]) -> T:
            return call(conn, operation)

        for one in calls:
            if chunks.needs_clock(one):
                chunks.now = run(database_clock())
            operation = chunks.add(one)
            if operation is not None:
                count += run(operation)
        rest = chunks.rest()
        return count if rest is None else count + run(rest)


async def run_own_async(dsn: str, operation: Operation[T]) -> T:
    """Do as ``run_own``, asynchronously."""
    with translated():
        connecting = opened_async(dsn)
        async with await connecting as conn:
            return await call_async(conn, operation)


@contextlib.contextmanager
def own_transaction(dsn: str) -> Iterator[Callable[[Operation[Any]], Any]]:
    """Connect, and yield a function that runs operations in one transaction, which the end of
    the block commits.

    Raises:
        DatabaseUnavailable: no connection, or it was lost: then the outcome is unknown.
        ForebayError: Forebay's SQL function refused; nothing was written.
    """
    with (
        translated(),
        opened(dsn) as conn,
        conn.transaction(),
    ):
        yield lambda operation: call(conn, operation)


@contextlib.contextmanager
def own_calls(dsn: str) -> Iterator[Callable[[Operation[Any]], Any]]:
    """Connect, and yield a function that runs operations, each in a separate transaction.

    Raises:
        DatabaseUnavailable: no connection, or it was lost: then the outcome is unknown.
        ForebayError: Forebay's SQL function refused; the function can be called again.
    """

    def run(operation: Operation[T]) -> T:
        with translated():
            return call(conn, operation)

    with translated(), opened(dsn) as conn:
        yield run


@contextlib.asynccontextmanager
async def own_transaction_async(
    dsn: str,
) -> AsyncIterator[Callable[[Operation[Any]], Awaitable[Any]]]:
    """Do as ``own_transaction``, asynchronously."""
    connecting = opened_async(dsn)
    with translated():
        async with await connecting as conn, conn.transaction():
            yield lambda operation: call_async(conn, operation)


#: A pause between transactions, in seconds.
pause = time.sleep
pause_async = asyncio.sleep


def await_own(
    dsn: str,
    look: Callable[[float], Operation[T]],
    is_final: Callable[[T], bool],
    *,
    channel: str,
    key: str,
    seconds: float | None,
) -> T:
    """Repeat a call on a new connection until the answer is final or the time is up.

    Return the last answer.

    Between calls it listens for its key on a channel, and it also polls; through a pooler, which
    delivers no notifications, it polls more often.

    Args:
        dsn: the address.
        look: builds the call, given how long this function will listen.
        is_final: whether an answer is the last.
        channel: the channel of the notifications.
        key: the payload to wait for.
        seconds: the time limit; None means indefinitely.

    Raises:
        DatabaseUnavailable: no connection, or it was lost.
        ForebayError: Forebay's SQL function refused.
    """
    pauses = _Pauses(seconds)
    with translated():
        with opened(dsn) as conn:
            while True:
                operation = look(pauses.listening_seconds)
                answer = call(conn, operation)
                if is_final(answer) or pauses.is_over:
                    return answer
                if pauses.is_notified is None:
                    (pid,) = conn.execute(_WHO).fetchall()[0]
                    pauses.is_notified = pid == conn.info.backend_pid
                    if pauses.is_notified:
                        conn.execute(_LISTEN.format(channel))
                        continue  # The job may have ended before LISTEN.
                pause = pauses.draw()
                if not pauses.is_notified:
                    time.sleep(pause)
                    continue
                until = time.monotonic() + pause
                while (left := until - time.monotonic()) > 0:
                    for notify in conn.notifies(timeout=left, stop_after=1):
                        if notify.payload == key:
                            until = 0.0


async def await_own_async(
    dsn: str,
    look: Callable[[float], Operation[T]],
    is_final: Callable[[T], bool],
    *,
    channel: str,
    key: str,
    seconds: float | None,
) -> T:
    """Do as ``await_own``, asynchronously."""
    pauses = _Pauses(seconds)
    with translated():
        connecting = opened_async(dsn)
        async with await connecting as conn:
            while True:
                operation = look(pauses.listening_seconds)
                answer = await call_async(conn, operation)
                if is_final(answer) or pauses.is_over:
                    return answer
                if pauses.is_notified is None:
                    (pid,) = (await (await conn.execute(_WHO)).fetchall())[0]
                    pauses.is_notified = pid == conn.info.backend_pid
                    if pauses.is_notified:
                        await conn.execute(_LISTEN.format(channel))
                        continue  # The job may have ended before LISTEN.
                pause = pauses.draw()
                if not pauses.is_notified:
                    await asyncio.sleep(pause)
                    continue
                until = time.monotonic() + pause
                while (left := until - time.monotonic()) > 0:
                    async for notify in conn.notifies(timeout=left, stop_after=1):
                        if notify.payload == key:
                            until = 0.0


_WHO: Final = "select pg_catalog.pg_backend_pid()"
_LISTEN: Final = 'set idle_session_timeout = 0; listen "{}"'

#: Pauses between calls: the first, the longest while listening, the longest without notifications.
_PAUSE_SECONDS: Final = (0.02, 2.0, 0.25)


class _Pauses:
    """The pauses between calls, and the deadline. ``is_notified``: whether notifications arrive.

    The value None means that this is unknown.
    """

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds
        self._next = _PAUSE_SECONDS[0]
        self.is_notified: bool | None = None

    @property
    def is_over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    @property
    def listening_seconds(self) -> float:
        return _PAUSE_SECONDS[1] + 1.0 if self.is_notified else 0.0

    def draw(self) -> float:
        pause = self._next
        self._next = min(pause * 1.5, _PAUSE_SECONDS[1 if self.is_notified else 2])
        if self._until is not None:
            pause = min(pause, self._until - time.monotonic())
        return max(0.0, pause)


def call(conn: psycopg.Connection[Any], operation: Operation[T]) -> T:
    """Run an operation with the settings that it relies on, in one message: settings outlive no
    call, in a pooler neither.
    """
    cursor = psycopg.ClientCursor(conn, row_factory=tuple_row)
    operation = with_actor(operation)
    cursor.execute(_in_one_message(conn, operation), operation.params)
    cursor.set_result(-1)
    return operation.decode(cursor.fetchall() if cursor.description else [])


async def call_async(conn: psycopg.AsyncConnection[Any], operation: Operation[T]) -> T:
    """Do as ``_call``, asynchronously."""
    cursor = psycopg.AsyncClientCursor(conn, row_factory=tuple_row)
    operation = with_actor(operation)
    await cursor.execute(_in_one_message(conn, operation), operation.params)
    await cursor.set_result(-1)
    return operation.decode(await cursor.fetchall() if cursor.description else [])


def _in_one_message(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], operation: Operation[Any]
) -> str:
    # Several statements of one message would be a transaction block.
    settings = (
        "" if operation.outside_block else for_one_transaction(OF_CALLS, conn.info.server_version)
    )
    return settings + operation.sql


def _options(dsn: str) -> dict[str, Any]:
    given = parsed_address(dsn)
    options = {
        "application_name": "forebay client",
        "connect_timeout": _CONNECT_SECONDS,
        **KEEPALIVE,
    }
    # Preparing one statement does not pay, and a pooler may not know a prepared statement.
    return {"autocommit": True, "prepare_threshold": None, **ENCODING} | {
        name: value for name, value in options.items() if name not in given
    }

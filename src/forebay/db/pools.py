"""Connections for handlers that run in a transaction: pools that open only when one is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from forebay.db.errors import translate
from forebay.db.session import KEEPALIVE
from forebay.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from forebay.ops.operation import Operation, T


#: Far more than there are slots, which are what bounds the use of a pool. A handler that ignores its
#: timeout keeps its connection, cut off from the server; it must not be missing to those that come after it.
_CONNECTIONS_MAX: Final = 20_000


def async_pool(
    dsn: str, *, name: str, is_pooled: bool = False, size: int = _CONNECTIONS_MAX
) -> AsyncConnectionPool[Any]:
    """Return a pool of asynchronous connections, not open yet; they are made when needed."""
    return AsyncConnectionPool(
        dsn,
        min_size=0,
        max_size=size,
        open=False,
        timeout=30,
        max_idle=60,
        reconnect_timeout=5,
        kwargs=_options(name, is_pooled=is_pooled),
        name=name,
    )


def sync_pool(
    dsn: str, *, name: str, is_pooled: bool = False, size: int = _CONNECTIONS_MAX
) -> ConnectionPool[Any]:
    """Open a pool of connections; they are made when needed."""
    return ConnectionPool(
        dsn,
        min_size=0,
        max_size=size,
        open=True,
        timeout=30,
        max_idle=60,
        reconnect_timeout=5,
        kwargs=_options(name, is_pooled=is_pooled),
        name=name,
    )


def _options(name: str, *, is_pooled: bool) -> dict[str, Any]:
    options = {"application_name": name, "connect_timeout": 5, **KEEPALIVE}
    if is_pooled:
        # A statement prepared in one server session is not there in the next.
        options["prepare_threshold"] = None
    return options


def spoils_connection(error: BaseException) -> bool:
    """Whether an error says that its connection is of no further use, such as one to a server that is read-only now."""
    if isinstance(error, psycopg.Error):
        return isinstance(translate(error), DatabaseUnavailable)
    return isinstance(error, DatabaseUnavailable)


async def run_on(conn: psycopg.AsyncConnection[Any], operation: Operation[T]) -> T:
    """Run an operation in the transaction of a handler's connection.

    Raises:
        ForebayError: what our SQL function said, or DatabaseUnavailable.
    """
    try:
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(operation.sql, operation.params)
            rows = await cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    return operation.decode(rows)


def run_on_sync(conn: psycopg.Connection[Any], operation: Operation[T]) -> T:
    """Run an operation in the transaction of a plain handler's connection.

    Raises:
        ForebayError: what our SQL function said, or DatabaseUnavailable.
    """
    try:
        with conn.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(operation.sql, operation.params)
            rows = cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    return operation.decode(rows)

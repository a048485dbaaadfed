"""Connections for handlers that run in a transaction: pools that open only when one is needed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from forebay.db.errors import translate
from forebay.db.session import KEEPALIVE
from forebay.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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
        kwargs=connect_options(name, is_pooled=is_pooled),
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
        kwargs=connect_options(name, is_pooled=is_pooled),
        name=name,
    )


def connect_options(name: str, *, is_pooled: bool) -> dict[str, Any]:
    """Return the options that every connection for a handler has."""
    options = {"application_name": name, "connect_timeout": 5, **KEEPALIVE}
    if is_pooled:
        # A statement prepared in one server session is not there in the next.
        options["prepare_threshold"] = None
    return options


def spoils_connection(error: BaseException) -> bool:
    """Whether an error says that its connection is of no further use, such as one to a server that is read-only now."""
    return isinstance(error, DatabaseUnavailable) or isinstance(
        translate(error), DatabaseUnavailable
    )


#: What a handler may have left in its session, settings and roles as they were when it connected. Deferred constraints
#: are checked first, as long as their triggers find what the handler set. Not DISCARD ALL: it stands outside of
#: transactions, which a pooler would run in another session, and forgets the plans of our functions, which costs
#: 15 ms a job; this costs 0.07 ms (decision 0022).
_RESET: Final = (
    "set constraints all immediate; close all; reset session authorization; reset role; reset all; unlisten *;"
    " select pg_advisory_unlock_all(); discard sequences; discard temp; "
)

#: A rolled back transaction has taken its settings, roles and tables with it; locks of the session stay. One message, so
#: that a pooler runs both in the same session.
UNLOCK: Final = "rollback; select pg_advisory_unlock_all()"


async def settle_on(conn: psycopg.AsyncConnection[Any], operation: Operation[T]) -> T:
    """Clear what a handler left in the session of its transaction, and run the operation that ends its job there.

    In this order: the settlement limits the time its transaction may be idle, which a reset would take back.

    Raises:
        ForebayError: what our SQL function said, or DatabaseUnavailable.
    """
    cursor = psycopg.AsyncClientCursor(conn, row_factory=tuple_row)
    try:
        await cursor.execute(_RESET + operation.sql, operation.params)
        await cursor.set_result(-1)
        rows = await cursor.fetchall()
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    finally:
        await cursor.close()
    return operation.decode(rows)


def settle_on_sync(conn: psycopg.Connection[Any], operation: Operation[T]) -> T:
    """Do as ``settle_on``, for a plain handler's connection.

    Raises:
        ForebayError: what our SQL function said, or DatabaseUnavailable.
    """
    cursor = psycopg.ClientCursor(conn, row_factory=tuple_row)
    try:
        cursor.execute(_RESET + operation.sql, operation.params)
        cursor.set_result(-1)
        rows = cursor.fetchall()
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    finally:
        cursor.close()
    return operation.decode(rows)


@contextlib.asynccontextmanager
async def handler_transaction(conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """Run a transaction whose end, whatever it is, leaves nothing of the handler in its session."""
    factories = _factories(conn)
    try:
        async with conn.transaction():
            try:
                yield
            except BaseException:
                with contextlib.suppress(psycopg.Error, OSError):
                    await psycopg.AsyncClientCursor(conn).execute(UNLOCK)
                raise
    finally:
        _restore(conn, factories)


@contextlib.contextmanager
def handler_transaction_sync(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Do as ``handler_transaction``, for a plain handler."""
    factories = _factories(conn)
    try:
        with conn.transaction():
            try:
                yield
            except BaseException:
                with contextlib.suppress(psycopg.Error, OSError):
                    psycopg.ClientCursor(conn).execute(UNLOCK)
                raise
    finally:
        _restore(conn, factories)


#: What a handler may set on the connection object itself.
_FACTORIES: Final = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold")


def _factories(conn: Any) -> dict[str, Any]:
    return {name: getattr(conn, name) for name in _FACTORIES}


def _restore(conn: Any, factories: dict[str, Any]) -> None:
    for name, value in factories.items():
        setattr(conn, name, value)

"""Handler connections: a transaction for a handler, on a connection of the library that the handler uses.

``ctx.conn`` of a handler is a psycopg connection, or the type that its context declares: ``TransactionContext[Session]``. The
worker sees a *handler connection* in each case, with the same three operations: begin and end a transaction, settle the job in
it, and cut it off from the server.
"""

from __future__ import annotations

import contextlib
import importlib
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg

from forebay.db.pools import (
    async_pool,
    handler_transaction,
    handler_transaction_sync,
    settle_on,
    settle_on_sync,
    sync_pool,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from forebay.ops.operation import Operation, T


class HandlerConnection(Protocol):
    """A connection for one call of a plain handler.

    Attributes:
        given: the object that the handler gets.
        raw: the psycopg connection below it, to be cut; None if there is none.
    """

    given: Any
    raw: Any

    def transaction(self) -> AbstractContextManager[Any]:
        """Begin a transaction, and commit it or roll it back at the end."""

    def settle(self, operation: Operation[T]) -> T:
        """Run the operation that settles the job in the transaction, after the handler's writes.

        Raises:
            ForebayError: Forebay's SQL function refused, or DatabaseUnavailable.
        """


class AsyncHandlerConnection(Protocol):
    """A connection for one call of a coroutine handler; see ``HandlerConnection``."""

    given: Any
    raw: Any

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Begin a transaction, and commit it or roll it back at the end."""

    async def settle(self, operation: Operation[T]) -> T:
        """Run the operation that settles the job in the transaction."""


class HandlerConnections(Protocol):
    """Gives connections to plain handlers, from any thread."""

    def connection(self) -> AbstractContextManager[HandlerConnection]:
        """Take a connection, and give it back at the end."""

    def close(self) -> None:
        """Close all connections that no handler uses."""


class AsyncHandlerConnections(Protocol):
    """Gives connections to coroutine handlers."""

    def connection(self) -> AbstractAsyncContextManager[AsyncHandlerConnection]:
        """Take a connection, and give it back at the end."""

    async def close(self) -> None:
        """Close all connections that no handler uses."""


def handler_connections(
    wanted: type | None, dsn: str, *, name: str, is_pooled: bool = False
) -> HandlerConnections:
    """Return the connections for plain handlers that want this class; None means psycopg's."""
    module = _module_of(wanted)
    if module is None:
        return _PsycopgHandlerConnections(dsn, name, is_pooled)
    found: HandlerConnections = module.handler_connections(wanted, dsn, name, is_pooled)
    return found


def async_handler_connections(
    wanted: type | None, dsn: str, *, name: str, is_pooled: bool = False
) -> AsyncHandlerConnections:
    """Return the connections for coroutine handlers; see ``handler_connections``."""
    module = _module_of(wanted)
    if module is None:
        return _AsyncPsycopgHandlerConnections(dsn, name, is_pooled)
    found: AsyncHandlerConnections = module.async_handler_connections(wanted, dsn, name, is_pooled)
    return found


#: The module that provides connections, by the package of the wanted class. Imported only for such a handler.
_MODULES: Final = {
    "django": "forebay.db.handler_connections_django",
    "sqlalchemy": "forebay.db.handler_connections_sqlalchemy",
}


def _module_of(wanted: type | None) -> Any:
    for cls in () if wanted is None else wanted.__mro__:
        package = cls.__module__.partition(".")[0]
        if package in _MODULES:
            return importlib.import_module(_MODULES[package])
    return None


def connection_class(wanted: type | None, *, is_async: bool) -> type:
    """Return the class of ``ctx.conn`` for handlers that want this class; None means psycopg's."""
    if wanted is not None:
        return wanted
    return psycopg.AsyncConnection if is_async else psycopg.Connection


# --- psycopg ---


class _PsycopgHandlerConnections:
    def __init__(self, dsn: str, name: str, is_pooled: bool) -> None:
        self._pool = sync_pool(dsn, name=name, is_pooled=is_pooled)

    @contextlib.contextmanager
    def connection(self) -> Iterator[HandlerConnection]:
        with self._pool.connection() as conn:
            yield _Psycopg(conn)

    def close(self) -> None:
        self._pool.close(timeout=1)


class _Psycopg:
    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.given = self.raw = conn

    def transaction(self) -> AbstractContextManager[Any]:
        return handler_transaction_sync(self.raw)

    def settle(self, operation: Operation[T]) -> T:
        return settle_on_sync(self.raw, operation)


class _AsyncPsycopgHandlerConnections:
    def __init__(self, dsn: str, name: str, is_pooled: bool) -> None:
        self._pool = async_pool(dsn, name=name, is_pooled=is_pooled)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncHandlerConnection]:
        # Several calls may arrive here at once; opening an open pool does nothing.
        await self._pool.open(wait=False)
        async with self._pool.connection() as conn:
            yield _AsyncPsycopg(conn)

    async def close(self) -> None:
        await self._pool.close(timeout=1)


class _AsyncPsycopg:
    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self.given = self.raw = conn

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return handler_transaction(self.raw)

    async def settle(self, operation: Operation[T]) -> T:
        return await settle_on(self.raw, operation)

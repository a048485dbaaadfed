"""Handler connections: a transaction for a handler, on a connection of the library that the
handler uses.

``ctx.conn`` of a handler is a psycopg connection, or the type that its context declares:
``TransactionContext[Session]``. The worker sees a *handler connection* in each case, with the same
three operations: begin and end a transaction, settle the job in it, and cut it off from the server.
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
    record_use,
    refuse_misuse,
    settle_and_commit_on,
    settle_and_commit_plain,
    settle_on,
    settle_on_sync,
    sync_pool,
    take,
    take_plain,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from forebay.db.pools import AsyncHandlerTransaction, HandlerTransaction
    from forebay.ops.operation import Operation, T


class LastCall(Protocol):
    """Makes the last operation of a transaction, such as the settlement of a job that is done."""

    def __call__(self, *, clears: bool) -> Operation[None]:
        """Make it; ``clears``: it also clears the session, and the commit is in its message."""


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

    def settle_last(self, last: LastCall, *, begins: bool) -> None:
        """Run the last operation of the transaction, and perhaps commit it in the same message.

        Args:
            last: makes the operation; it fails where nothing may be committed.
            begins: whether the next transaction may begin in the same message: another call waits
                for a connection.

        Raises:
            ForebayError: as ``settle``.
        """


class AsyncHandlerConnection(Protocol):
    """A connection for one call of a coroutine handler; see ``HandlerConnection``."""

    given: Any
    raw: Any

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Begin a transaction, and commit it or roll it back at the end."""

    async def settle(self, operation: Operation[T]) -> T:
        """Run the operation that settles the job in the transaction."""

    async def settle_last(self, last: LastCall, *, begins: bool) -> None:
        """Run the last operation of the transaction, and perhaps commit it in the same message."""


class HandlerConnections(Protocol):
    """Gives connections to plain handlers, from any thread."""

    @property
    def begun(self) -> int:
        """The number of connections whose next transaction has begun, for calls that wait."""

    def connection(self) -> AbstractContextManager[HandlerConnection]:
        """Take a connection, and give it back at the end."""

    def end_begun(self) -> None:
        """End the transactions that began for calls that did not come."""

    def close(self) -> None:
        """Close all connections that no handler uses."""


class AsyncHandlerConnections(Protocol):
    """Gives connections to coroutine handlers."""

    @property
    def begun(self) -> int:
        """The number of connections whose next transaction has begun, for calls that wait."""

    async def end_begun(self) -> None:
        """End the transactions that began for calls that did not come."""

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


#: The module that provides connections, by the package of the wanted class. Imported only for such
#: a handler.
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

_INTRANS: Final = psycopg.pq.TransactionStatus.INTRANS


class _PsycopgHandlerConnections:
    """Connections of a pool, and those whose next transaction has begun.

    Invariant "begun for one call": such a transaction has no snapshot, no number and no locks, and
    nothing of the call before is in its session. It belongs to the call that takes it next, or is
    ended. A lost one is as if its handler had never begun.
    """

    def __init__(self, dsn: str, name: str, is_pooled: bool) -> None:
        self._pool = sync_pool(dsn, name=name, is_pooled=is_pooled)
        # A pooler needs its server sessions for others.
        self._may_begin = not is_pooled
        self._begun: list[psycopg.Connection[Any]] = []

    @property
    def begun(self) -> int:
        return len(self._begun)

    @contextlib.contextmanager
    def connection(self) -> Iterator[HandlerConnection]:
        try:
            conn = self._begun.pop()
        except IndexError:
            conn = take_plain(self._pool)
        connection = _Psycopg(conn, may_begin=self._may_begin)
        try:
            yield connection
        finally:
            if connection.has_begun and conn.pgconn.transaction_status == _INTRANS:
                self._begun.append(conn)
            else:
                record_use(conn)
                self._pool.putconn(conn)

    def end_begun(self) -> None:
        while self._begun:
            conn = self._begun.pop()
            with contextlib.suppress(psycopg.Error):
                conn.rollback()
            self._pool.putconn(conn)

    def close(self) -> None:
        self.end_begun()
        self._pool.close(timeout=1)


class _Psycopg:
    def __init__(self, conn: psycopg.Connection[Any], *, may_begin: bool) -> None:
        self.given = self.raw = conn
        self._may_begin = may_begin
        self._transaction: HandlerTransaction
        #: Whether the next transaction has begun.
        self.has_begun = False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with handler_transaction_sync(self.raw) as self._transaction:
            yield

    def settle(self, operation: Operation[T]) -> T:
        refuse_misuse(self.raw)
        return settle_on_sync(self.raw, operation)

    def settle_last(self, last: LastCall, *, begins: bool) -> None:
        refuse_misuse(self.raw)
        begins &= self._may_begin
        settle_and_commit_plain(self.raw, last(clears=True), begins=begins)
        self._transaction.is_committed = True
        self.has_begun = begins


class _AsyncPsycopgHandlerConnections:
    """See ``_PsycopgHandlerConnections``."""

    def __init__(self, dsn: str, name: str, is_pooled: bool) -> None:
        self._pool = async_pool(dsn, name=name, is_pooled=is_pooled)
        self._may_begin = not is_pooled
        self._begun: list[psycopg.AsyncConnection[Any]] = []

    @property
    def begun(self) -> int:
        return len(self._begun)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncHandlerConnection]:
        if self._begun:
            conn = self._begun.pop()
        else:
            if self._pool.closed:
                # Several calls may arrive here at once; opening an open pool does nothing.
                await self._pool.open(wait=False)
            conn = await take(self._pool)
        connection = _AsyncPsycopg(conn, may_begin=self._may_begin)
        try:
            yield connection
        finally:
            if connection.has_begun and conn.pgconn.transaction_status == _INTRANS:
                self._begun.append(conn)
            else:
                record_use(conn)
                await self._pool.putconn(conn)

    async def end_begun(self) -> None:
        while self._begun:
            conn = self._begun.pop()
            with contextlib.suppress(psycopg.Error):
                await conn.rollback()
            await self._pool.putconn(conn)

    async def close(self) -> None:
        await self.end_begun()
        await self._pool.close(timeout=1)


class _AsyncPsycopg:
    def __init__(self, conn: psycopg.AsyncConnection[Any], *, may_begin: bool) -> None:
        self.given = self.raw = conn
        self._may_begin = may_begin
        self._transaction: AsyncHandlerTransaction
        #: Whether the next transaction has begun.
        self.has_begun = False

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with handler_transaction(self.raw) as self._transaction:
            yield

    async def settle(self, operation: Operation[T]) -> T:
        refuse_misuse(self.raw)
        return await settle_on(self.raw, operation)

    async def settle_last(self, last: LastCall, *, begins: bool) -> None:
        refuse_misuse(self.raw)
        begins &= self._may_begin
        await settle_and_commit_on(self.raw, last(clears=True), begins=begins)
        self._transaction.is_committed = True
        self.has_begun = begins

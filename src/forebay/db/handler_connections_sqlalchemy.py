"""Transactions for handlers that write with SQLAlchemy: ``TransactionContext[Session]``,
``TransactionContext[AsyncConnection]`` and so on.

The worker creates its engine, on psycopg and the worker's address. A session is bound to the
connection whose transaction settles the job, in the mode "rollback_only": its ``commit()`` only
flushes, its ``rollback()`` undoes the attempt. A ``commit()`` of the connection itself is refused.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session

from forebay.db.opening import connected, connected_async
from forebay.db.pools import UNLOCK, connect_options, settle_on, settle_on_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from forebay.db.handler_connections import LastCall
    from forebay.ops.operation import Operation, T

#: Set in a connection's info once the job is settled: from then on its transaction may commit.
_SETTLED: Final = "forebay_settled"

_ENGINE: Final[dict[str, Any]] = {
    "pool_size": 0,  # no limit: the slots limit it
    "pool_timeout": 30,
    "pool_pre_ping": True,  # a connection that the server ended must not use an attempt
}


def handler_connections(wanted: type, dsn: str, name: str, is_pooled: bool) -> Any:
    """Return the connections or sessions for plain handlers."""
    return _HandlerConnections(wanted, dsn, name, is_pooled)


def async_handler_connections(wanted: type, dsn: str, name: str, is_pooled: bool) -> Any:
    """Return the connections or sessions for coroutine handlers."""
    return _AsyncHandlerConnections(wanted, dsn, name, is_pooled)


def _refuse_early_commit(conn: sa.Connection) -> None:
    if not conn.info.get(_SETTLED):
        raise InvalidRequestError(
            "a handler must not call commit(): its transaction commits with the job's completion"
        )


class _HandlerConnections:
    begun = 0

    def __init__(self, wanted: type, dsn: str, name: str, is_pooled: bool) -> None:
        self._wanted = wanted
        options = connect_options(name, is_pooled=is_pooled)
        self._engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=lambda: connected(dsn, **options),
            **_ENGINE,
        )
        event.listen(self._engine, "commit", _refuse_early_commit)

    @contextlib.contextmanager
    def connection(self) -> Iterator[_HandlerConnection]:
        with self._engine.connect() as conn:
            conn.info.pop(_SETTLED, None)
            yield _HandlerConnection(conn, self._wanted)

    def end_begun(self) -> None:
        """Do nothing: no transaction begins before its call."""

    def close(self) -> None:
        self._engine.dispose()


class _HandlerConnection:
    def __init__(self, conn: sa.Connection, wanted: type) -> None:
        self._conn = conn
        self._session: Session | None = None
        self.given: Any = conn
        if issubclass(wanted, Session):
            self.given = self._session = wanted(bind=conn, join_transaction_mode="rollback_only")
        self.raw: Any = conn.connection.driver_connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._conn.begin():
            try:
                yield
            except BaseException:
                with contextlib.suppress(psycopg.Error, OSError):
                    psycopg.ClientCursor(self.raw).execute(UNLOCK)
                raise
            finally:
                if self._session is not None:
                    self._session.expunge_all()
        if self._session is not None:
            self._session.close()

    def settle(self, operation: Operation[T]) -> T:
        if self._session is not None:
            self._session.flush()
        _require_transaction(self._conn)
        # The settlement is part of SQLAlchemy's transaction, which is the driver's: one message,
        # which also clears the session.
        result = settle_on_sync(self.raw, operation)
        self._conn.info[_SETTLED] = True
        return result

    def settle_last(self, last: LastCall, *, begins: bool) -> None:
        del begins  # The library begins and commits.
        self.settle(last(clears=False))


class _AsyncHandlerConnections:
    begun = 0

    def __init__(self, wanted: type, dsn: str, name: str, is_pooled: bool) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - needs greenlet

        self._wanted = wanted
        options = connect_options(name, is_pooled=is_pooled)
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: connected_async(dsn, **options),
            **_ENGINE,
        )
        event.listen(self._engine.sync_engine, "commit", _refuse_early_commit)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[_AsyncHandlerConnection]:
        async with self._engine.connect() as conn:
            raw = await conn.get_raw_connection()
            raw.info.pop(_SETTLED, None)
            yield _AsyncHandlerConnection(conn, raw, self._wanted)

    async def end_begun(self) -> None:
        """Do nothing: no transaction begins before its call."""

    async def close(self) -> None:
        await self._engine.dispose()


class _AsyncHandlerConnection:
    def __init__(self, conn: Any, raw: Any, wanted: type) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415

        self._conn = conn
        self._info = raw.info
        self._session: Any = None
        self.given: Any = conn
        if issubclass(wanted, AsyncSession):
            self.given = self._session = wanted(bind=conn, join_transaction_mode="rollback_only")
        self.raw: Any = raw.driver_connection

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self._conn.begin():
            try:
                yield
            except BaseException:
                with contextlib.suppress(psycopg.Error, OSError):
                    await psycopg.AsyncClientCursor(self.raw).execute(UNLOCK)
                raise
            finally:
                if self._session is not None:
                    self._session.expunge_all()
        if self._session is not None:
            await self._session.close()

    async def settle(self, operation: Operation[T]) -> T:
        if self._session is not None:
            await self._session.flush()
        _require_transaction(self._conn)
        result = await settle_on(self.raw, operation)
        self._info[_SETTLED] = True
        return result

    async def settle_last(self, last: LastCall, *, begins: bool) -> None:
        del begins
        await self.settle(last(clears=False))


def _require_transaction(conn: Any) -> None:
    """Refuse to settle if the handler ended the transaction: the next statement would begin
    another.
    """
    transaction = conn.get_transaction()
    if transaction is None or not transaction.is_active:
        raise InvalidRequestError("the handler ended the transaction that completes its job")

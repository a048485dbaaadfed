"""What ``enqueue`` takes, and what ``aenqueue`` takes, as type checkers see it.

The libraries that a user may not have are described by what their connections can do. Their own
classes in these unions would be ``Any`` where the library is missing, and with ``Any`` in it a
union refuses nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeAlias

import psycopg


class _Result(Protocol):
    def fetchall(self) -> Any: ...


class SQLAlchemyConnection(Protocol):
    """``sqlalchemy.Connection``."""

    def exec_driver_sql(self, statement: str, /) -> _Result: ...


class SQLAlchemySession(Protocol):
    """``sqlalchemy.orm.Session`` and ``scoped_session``."""

    def connection(self) -> SQLAlchemyConnection: ...
    def flush(self) -> None: ...


class AsyncSQLAlchemyConnection(Protocol):
    """``sqlalchemy.ext.asyncio.AsyncConnection``."""

    def exec_driver_sql(self, statement: str, /) -> Coroutine[Any, Any, _Result]: ...


class AsyncSQLAlchemySession(Protocol):
    """``sqlalchemy.ext.asyncio.AsyncSession`` and ``async_scoped_session``."""

    def connection(self) -> Coroutine[Any, Any, AsyncSQLAlchemyConnection]: ...


class AsyncpgConnection(Protocol):
    """``asyncpg.Connection``, and what an asyncpg pool hands out."""

    def fetch(self, query: str, /, *args: Any) -> Coroutine[Any, Any, Any]: ...
    def is_in_transaction(self) -> bool: ...


class DjangoProxy(Protocol):
    """``django.db.connection``, which gets everything it can do from another object."""

    def __getattr__(self, item: Any, /) -> Any: ...
    def __contains__(self, key: Any, /) -> Any: ...


class DjangoConnection(Protocol):
    """``django.db.connections[alias]``."""

    @property
    def alias(self) -> Any: ...
    @property
    def in_atomic_block(self) -> Any: ...
    def cursor(self) -> Any: ...


#: What ``enqueue`` takes.
SyncConnection: TypeAlias = (
    psycopg.Connection[Any]
    | psycopg.Cursor[Any]
    | SQLAlchemyConnection
    | SQLAlchemySession
    | DjangoConnection
    | DjangoProxy
)

#: What ``aenqueue`` takes.
AsyncConnection: TypeAlias = (
    psycopg.AsyncConnection[Any]
    | psycopg.AsyncCursor[Any]
    | AsyncpgConnection
    | AsyncSQLAlchemyConnection
    | AsyncSQLAlchemySession
    | DjangoConnection
    | DjangoProxy
)

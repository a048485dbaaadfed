"""The types of connections that ``enqueue`` and ``aenqueue`` accept.

Protocols describe the connections of optional libraries. The classes themselves would be ``Any``
where the library is missing, and a union that contains ``Any`` accepts everything.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Literal, Protocol, TypeAlias

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
    """``asyncpg.Connection``, and the connections of an asyncpg pool."""

    def fetch(self, query: str, /, *args: Any) -> Coroutine[Any, Any, Any]: ...
    def is_in_transaction(self) -> bool: ...


class DjangoProxy(Protocol):
    """``django.db.connection``, a proxy of another object."""

    def __getattr__(self, item: Any, /) -> Any: ...
    def __contains__(self, key: Any, /) -> Any: ...


class DjangoConnection(Protocol):
    """``django.db.connections[alias]``."""

    @property
    def alias(self) -> Any: ...
    @property
    def in_atomic_block(self) -> Any: ...
    def cursor(self) -> Any: ...


#: The alias of Django's default database. Any other alias works too, but a type that accepts any
#: text would accept a forgotten connection: use ``connections["other"]``.
DjangoAlias: TypeAlias = Literal["default"]

#: The connections that ``enqueue`` accepts.
SyncConnection: TypeAlias = (
    psycopg.Connection[Any]
    | psycopg.Cursor[Any]
    | SQLAlchemyConnection
    | SQLAlchemySession
    | DjangoConnection
    | DjangoProxy
    | DjangoAlias
)

#: The connections that ``aenqueue`` accepts.
AsyncConnection: TypeAlias = (
    psycopg.AsyncConnection[Any]
    | psycopg.AsyncCursor[Any]
    | AsyncpgConnection
    | AsyncSQLAlchemyConnection
    | AsyncSQLAlchemySession
    | DjangoConnection
    | DjangoProxy
    | DjangoAlias
)

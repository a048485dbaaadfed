"""Connections and sessions of SQLAlchemy 2, on any PostgreSQL driver with a supported parameter
style.

The statement runs through SQLAlchemy, not on the driver's connection below it: the asyncpg dialect
begins a transaction with the first statement that it sees, and a statement that bypassed it would
commit at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy
from sqlalchemy.orm import Session, scoped_session

from forebay.db.drivers._adapters import given
from forebay.db.drivers._numbered import numbered
from forebay.errors import WrongConnection

if TYPE_CHECKING:
    from forebay.db.drivers._adapters import AsyncRunner, FetchedRows, Runner

#: A connection may be set to stream its results through a server-side cursor, which needs a
#: transaction block.
_OPTIONS: Final = {"stream_results": False, "yield_per": None}


def sync_runner(conn: Any) -> Runner | None:
    """Return the runner for a ``Connection`` or ``Session``; None for other objects."""
    if isinstance(conn, sqlalchemy.Connection):
        _check(conn, conn.dialect)
    elif not isinstance(conn, Session | scoped_session):
        return None

    def run(sql: str, params: Mapping[str, Any]) -> FetchedRows:
        connection = conn
        if not isinstance(conn, sqlalchemy.Connection):
            connection = conn.connection()
            _check(conn, connection.dialect)
        text, values = _in_style(connection.dialect, sql, params)
        result = connection.exec_driver_sql(text, values, execution_options=_OPTIONS)
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    return run


def async_runner(conn: Any) -> AsyncRunner | None:
    """Return the runner for an ``AsyncConnection`` or ``AsyncSession``; None for other objects."""
    # Without its greenlet extra SQLAlchemy lacks this module, and no such connection can exist.
    asynchronous: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    if asynchronous is None:
        return None
    if isinstance(conn, asynchronous.AsyncConnection):
        _check(conn, conn.dialect)
    elif not isinstance(conn, asynchronous.AsyncSession | asynchronous.async_scoped_session):
        return None

    async def run(sql: str, params: Mapping[str, Any]) -> FetchedRows:
        connection = conn
        if not isinstance(conn, asynchronous.AsyncConnection):
            connection = await conn.connection()
            _check(conn, connection.dialect)
        text, values = _in_style(connection.dialect, sql, params)
        result = await connection.exec_driver_sql(text, values, execution_options=_OPTIONS)
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    return run


def stands_for(conn: Any) -> Any:
    """Return the session of a ``scoped_session`` or ``async_scoped_session``; else the object."""
    return conn() if hasattr(conn, "registry") and callable(conn) else conn


def driver_connection(conn: Any) -> Any:
    """Return the driver's connection of a connection or session."""
    connection = conn if isinstance(conn, sqlalchemy.Connection) else conn.connection()
    return connection.connection.driver_connection


def _check(conn: Any, dialect: Any) -> None:
    if dialect.name != "postgresql":
        raise WrongConnection(
            f"a {given(conn)} to {dialect.name} is not a connection to PostgreSQL",
            given=given(conn),
            hint="Jobs are rows of the PostgreSQL database that your transaction writes to.",
        )
    if dialect.paramstyle not in {"pyformat", "numeric_dollar"}:
        raise WrongConnection(
            f"a {given(conn)} on the driver {dialect.driver} cannot be used",
            given=given(conn),
            hint="Use postgresql+psycopg:// or postgresql+asyncpg://.",
        )


def _in_style(dialect: Any, sql: str, params: Mapping[str, Any]) -> tuple[str, Any]:
    if dialect.paramstyle == "pyformat":
        # None, not an empty dict: then the driver does not look for parameters.
        return sql, dict(params) or None
    text, values = numbered(sql, params)
    return text, tuple(values)

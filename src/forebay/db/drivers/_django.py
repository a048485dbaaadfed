"""Connections of Django: ``django.db.connection`` and ``django.db.connections[alias]``.

A connection of Django belongs to the thread that opened it. Django's asynchronous database calls
run in one thread per request, and so do Forebay's: there the proxy ``django.db.connection``, or an
alias, means the connection of that thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from forebay.db.drivers._adapters import given
from forebay.errors import WrongConnection

if TYPE_CHECKING:
    from forebay.db.drivers._adapters import AsyncRunner, FetchedRows, Runner


def sync_runner(conn: Any) -> Runner | None:
    """Return the runner for a Django connection; None for other objects."""
    if not _is_connection(conn):
        return None
    if conn.vendor != "postgresql":
        raise WrongConnection(
            f"a {given(conn)} to {conn.vendor} is not a connection to PostgreSQL",
            given=given(conn),
            hint="Jobs are rows of the PostgreSQL database that your transaction writes to.",
        )

    def run(sql: str, params: Mapping[str, Any]) -> FetchedRows:
        with conn.cursor() as cursor:
            cursor.execute(sql, dict(params) or None)
            rows: FetchedRows = cursor.fetchall() if cursor.description else []
            return rows

    return run


def async_runner(conn: Any) -> AsyncRunner | None:
    """Return the runner in Django's thread for database calls; None for other objects.

    Raises:
        WrongConnection: the argument is the connection of one thread, not the proxy.
    """
    if isinstance(conn, BaseDatabaseWrapper):
        raise WrongConnection(
            f"a {given(conn)} belongs to one thread and cannot be awaited",
            given=given(conn),
            hint=(
                "Pass django.db.connection, or the alias; or call the synchronous function in "
                "its thread."
            ),
        )
    if not _is_connection(conn):
        return None

    def run(sql: str, params: Mapping[str, Any]) -> FetchedRows:
        runner = sync_runner(conn)
        assert runner is not None
        return runner(sql, params)

    return sync_to_async(run, thread_sensitive=True)


def stands_for(conn: Any) -> Any:
    """Return this thread's connection."""
    if isinstance(conn, BaseDatabaseWrapper):
        return conn
    return conn._connections[conn._alias]  # noqa: SLF001 - there is no public way to ask


def driver_connection(conn: Any) -> Any:
    """Return the connection of psycopg."""
    return stands_for(conn).connection


def _is_connection(conn: Any) -> bool:
    if isinstance(conn, BaseDatabaseWrapper):
        return True
    # Django also uses this proxy class for other objects, such as a cache.
    return isinstance(conn, ConnectionProxy) and isinstance(stands_for(conn), BaseDatabaseWrapper)

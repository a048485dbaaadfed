"""Runs an operation on a connection of the caller.

The operation runs in the caller's transaction. So this package never begins, commits or rolls back,
and changes no setting, row factory or adapter of the connection. Errors of the caller's transaction
(a serialization failure, a lost connection, a read-only transaction) pass as the driver raised
them; see ``forebay.db.errors``.

The package of a connection's class determines the module that serves it. That module, and with it
the library, is imported when the first such connection arrives, because its caller has already
imported the library.

Invariant "never committed by us": docs/design/client.md. Shown by
tests/client/test_every_connection.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from forebay.db.drivers._adapters import (
    async_runner,
    connection_of,
    given,
    psycopg_connection_of,
    resembles_connection,
    sync_runner,
)
from forebay.db.drivers._types import AsyncConnection, SyncConnection
from forebay.db.errors import shorten_context, translate_ours
from forebay.errors import InvalidJob

if TYPE_CHECKING:
    from forebay.ops.operation import Operation

__all__ = [
    "AsyncConnection",
    "SyncConnection",
    "connection_of",
    "given",
    "psycopg_connection_of",
    "resembles_connection",
    "run",
    "run_async",
]

T = TypeVar("T")


def run(conn: SyncConnection, operation: Operation[T]) -> T:
    """Run an operation in the current transaction of the connection.

    Raises:
        WrongConnection: the argument is not a connection, or not one to PostgreSQL, or must be
            awaited.
        ForebayError: Forebay's SQL function refused; the caller's transaction is then aborted.
        Exception: an error of the caller's transaction, as its library raises it.
    """
    runner = sync_runner(conn)
    try:
        rows = runner(operation.sql, operation.params)
    except Exception as error:
        ours = _ours(error)
        if ours is None:
            shorten_context(error)
            raise
        raise ours from error
    return operation.decode(rows)


async def run_async(conn: AsyncConnection, operation: Operation[T]) -> T:
    """Do as ``run``, on an asynchronous connection."""
    runner = async_runner(conn)
    try:
        rows = await runner(operation.sql, operation.params)
    except Exception as error:
        ours = _ours(error)
        if ours is None:
            shorten_context(error)
            raise
        raise ours from error
    return operation.decode(rows)


def _ours(error: Exception) -> Exception | None:
    if isinstance(error, UnicodeEncodeError):
        return InvalidJob(
            "args",
            f"cannot be sent in the connection's client_encoding {error.encoding}",
            hint="Connect with client_encoding=utf8.",
        )
    return translate_ours(error)

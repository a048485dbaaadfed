"""Running an operation on a connection that the caller connection us.

The caller's transaction is the point of it, so nothing here begins, commits or rolls back, and no
setting, row factory or adapter of the connection is touched. Errors of the caller's transaction (a
serialization failure, a lost connection, a read-only transaction) pass as the driver raised them;
see ``forebay.db.errors``.

Which module serves a connection is decided by the package its class comes from. That module, and
with it the library, is imported when the first such connection arrives: whoever passes one has
imported the library already, and nobody else ever does.

Invariant "never committed by us": docs/design/client.md. Shown by tests/client/test_every_connection.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from forebay.db.drivers._adapters import async_runner, sync_runner
from forebay.db.drivers._types import AsyncConnection, SyncConnection
from forebay.db.errors import translate_ours
from forebay.errors import InvalidJob

if TYPE_CHECKING:
    from forebay.ops.operation import Operation

__all__ = ["AsyncConnection", "SyncConnection", "run", "run_async"]

T = TypeVar("T")


def run(conn: SyncConnection, operation: Operation[T]) -> T:
    """Run an operation in whatever transaction the connection is in.

    Raises:
        WrongConnection: it is not a connection, one of another database, or one that must be
            awaited.
        ForebayError: what our SQL function said; the caller's transaction is aborted then.
        Exception: what the caller's own transaction ran into, as its library raises it.
    """
    runner = sync_runner(conn)
    try:
        rows = runner(operation.sql, operation.params)
    except Exception as error:
        ours = _ours(error)
        if ours is None:
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

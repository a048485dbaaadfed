"""Signals to flows, in the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.db.drivers import run, run_async
from forebay.ops import flows

if TYPE_CHECKING:
    from forebay.db.drivers import AsyncConnection, SyncConnection


def signal(conn: SyncConnection, name: str, key: str | int, payload: Any = None) -> bool:
    """Send a signal, in the connection's transaction.

    The flow that waits for this name and key continues after the commit. It may begin to wait
    later: a signal is kept until a flow takes it, at most 30 days.

    Args:
        conn: the connection.
        name: what the flow waits for, as in ``ctx.wait(name)``.
        key: which flow: the key of its wait, or, without one, the id of its job.
        payload: what the wait returns; a JSON value.

    Returns:
        True for the first signal of the pair; False if another one waits to be taken: then this one
        was not kept.

    Raises:
        InvalidJob: a value cannot be used; nothing was sent.
        PayloadTooLarge: the payload has more bytes than ``args_bytes_max``.
        WrongConnection: the first argument is not a synchronous connection.
        SchemaError: the database has no schema.
    """
    return run(conn, flows.signal(name, key, payload))


async def asignal(conn: AsyncConnection, name: str, key: str | int, payload: Any = None) -> bool:
    """Asynchronous form of ``signal``."""
    return await run_async(conn, flows.signal(name, key, payload))

"""One operation on a connection of its own: opened, committed, closed.

For callers without a transaction of their own, such as the command line. Producers that enqueue
often keep a pool of theirs and pass its connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import psycopg.conninfo
from psycopg.rows import tuple_row

from forebay.db.errors import translate
from forebay.db.session import KEEPALIVE
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from forebay.ops.operation import Operation

T = TypeVar("T")

#: Unless the address says otherwise.
_CONNECT_SECONDS: Final = 10


def run_own(dsn: str, operation: Operation[T]) -> T:
    """Connect, run an operation in a transaction of its own, and return what it answers.

    Raises:
        DatabaseUnavailable: no connection, or it was lost: then the outcome is unknown.
        ForebayError: what our SQL function said.
    """
    try:
        with psycopg.connect(dsn, **_options(dsn), row_factory=tuple_row) as conn:
            cursor = conn.execute(operation.sql, operation.params)
            rows = cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    return operation.decode(rows)


async def run_own_async(dsn: str, operation: Operation[T]) -> T:
    """Do as ``run_own``, asynchronously."""
    try:
        connecting = psycopg.AsyncConnection.connect(dsn, **_options(dsn), row_factory=tuple_row)
        async with await connecting as conn:
            cursor = await conn.execute(operation.sql, operation.params)
            rows = await cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    return operation.decode(rows)


def _options(dsn: str) -> dict[str, Any]:
    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise ConfigError("database address", f"is malformed: {str(error).strip()}") from None
    options = {
        "application_name": "forebay client",
        "client_encoding": "utf8",
        "connect_timeout": _CONNECT_SECONDS,
        **KEEPALIVE,
    }
    # For one statement nothing is worth preparing, and a pooler may not know what was prepared.
    return {"autocommit": True, "prepare_threshold": None} | {
        name: value for name, value in options.items() if name not in given
    }

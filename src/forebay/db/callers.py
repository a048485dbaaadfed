"""Running an operation on a connection that the caller lent us.

The caller's transaction is the point of it, so nothing here begins, commits or rolls back, and no
setting, row factory or adapter of the connection is touched: each call uses a cursor of its own.
Errors of the caller's transaction (a serialization failure, a lost connection, a read-only
transaction) pass as the driver raised them; see ``forebay.db.errors``.

Which adapter serves a connection is decided by the package its class comes from, so that no
library is imported that the caller does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar

import psycopg
from psycopg.rows import tuple_row

from forebay.db.errors import translate_ours
from forebay.errors import InvalidJob, WrongConnection

if TYPE_CHECKING:
    from forebay.ops.operation import Operation

T = TypeVar("T")

#: What ``enqueue`` takes, and what ``aenqueue`` takes.
SyncConnection: TypeAlias = "psycopg.Connection[Any] | psycopg.Cursor[Any]"
AsyncConnection: TypeAlias = "psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any]"


def run(conn: SyncConnection, operation: Operation[T]) -> T:
    """Run an operation in whatever transaction the connection is in.

    Raises:
        WrongConnection: it is not a connection, or one that must be awaited.
        ForebayError: what our SQL function said; the caller's transaction is aborted then.
        psycopg.Error: what the caller's own transaction ran into.
    """
    raw = _adapted(conn, _SYNC, _ASYNC, "must be awaited", "Call its async twin, or")
    with psycopg.Cursor(raw, row_factory=tuple_row) as cursor:
        try:
            cursor.execute(operation.sql, operation.params)
            rows = cursor.fetchall()
        except (psycopg.Error, UnicodeEncodeError) as error:
            _raise(error)
    return operation.decode(rows)


async def run_async(conn: AsyncConnection, operation: Operation[T]) -> T:
    """Do as ``run``, on an asynchronous connection."""
    raw = _adapted(conn, _ASYNC, _SYNC, "cannot be awaited", "Call its sync twin, or")
    async with psycopg.AsyncCursor(raw, row_factory=tuple_row) as cursor:
        try:
            await cursor.execute(operation.sql, operation.params)
            rows = await cursor.fetchall()
        except (psycopg.Error, UnicodeEncodeError) as error:
            _raise(error)
    return operation.decode(rows)


def _raise(error: psycopg.Error | UnicodeEncodeError) -> NoReturn:
    if isinstance(error, UnicodeEncodeError):
        raise InvalidJob(
            "args",
            f"cannot be sent in the connection's client_encoding {error.encoding}",
            hint="Connect with client_encoding=utf8.",
        ) from error
    ours = translate_ours(error)
    if ours is None:
        raise error
    raise ours from error


def _psycopg_sync(conn: Any) -> psycopg.Connection[Any] | None:
    if isinstance(conn, psycopg.Connection):
        return conn
    return conn.connection if isinstance(conn, psycopg.Cursor) else None


def _psycopg_async(conn: Any) -> psycopg.AsyncConnection[Any] | None:
    if isinstance(conn, psycopg.AsyncConnection):
        return conn
    return conn.connection if isinstance(conn, psycopg.AsyncCursor) else None


_Adapters = dict[str, Callable[[Any], Any]]

#: By the package of the connection's class: a function from it to what executes statements.
_SYNC: Final[_Adapters] = {"psycopg": _psycopg_sync}
_ASYNC: Final[_Adapters] = {"psycopg": _psycopg_async}

#: What to do instead, for things that look right, by the package of their class.
_HINTS: Final = {
    "psycopg_pool": "Take a connection from the pool: `with pool.connection() as conn`.",
    "psycopg2": "Use psycopg 3, or `select forebay.enqueue(...)` on this connection.",
    "asyncpg": "Use `select forebay.enqueue(...)` on this connection, or psycopg.",
    "sqlalchemy": (
        "With the psycopg driver: `session.connection().connection.driver_connection`. "
        "With any other: `select forebay.enqueue(...)`."
    ),
    "django": "Pass `django.db.connection.connection`, inside transaction.atomic().",
}


def _adapted(
    conn: object, adapters: _Adapters, others: _Adapters, problem: str, advice: str
) -> Any:
    packages = [cls.__module__.partition(".")[0] for cls in type(conn).__mro__]
    for package in packages:
        if package in adapters and (raw := adapters[package](conn)) is not None:
            return raw
    given = f"{type(conn).__module__}.{type(conn).__qualname__}"
    for package in packages:
        if package in others and others[package](conn) is not None:
            wanted = "AsyncConnection" if others is _SYNC else "Connection"
            raise WrongConnection(
                f"a {given} {problem}", given=given, hint=f"{advice} pass a psycopg.{wanted}."
            )
    known = [_HINTS[package] for package in packages if package in _HINTS]
    if isinstance(conn, str | bytes):
        known = ["Connect first: psycopg.connect(...). Or let enqueue_now open a connection."]
    raise WrongConnection(
        f"a {given.removeprefix('builtins.')} is not a connection",
        given=given,
        hint=known[0] if known else "The connection comes first: enqueue(conn, ...).",
    )

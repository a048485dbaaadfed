"""From a connection to the function that runs a statement on it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import psycopg
from psycopg.rows import tuple_row

from forebay.errors import WrongConnection

FetchedRows: TypeAlias = "list[tuple[Any, ...]]"
Runner: TypeAlias = Callable[[str, Mapping[str, Any]], FetchedRows]
AsyncRunner: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[FetchedRows]]


class Adapter(Protocol):
    """The interface of a module for the connections of one library.

    Both runners are None for objects of other libraries, and raise ``WrongConnection`` for objects
    that are known and cannot be served. ``stands_for`` and ``driver_connection`` get objects that
    have a runner.
    """

    def sync_runner(self, conn: Any, /) -> Runner | None: ...
    def async_runner(self, conn: Any, /) -> AsyncRunner | None: ...

    def stands_for(self, conn: Any, /) -> Any:
        """Return the connection or session behind a proxy or name; else the object."""

    def driver_connection(self, conn: Any, /) -> Any:
        """Return the driver's connection, in whose transaction a statement has run."""


def sync_runner(conn: Any) -> Runner:
    """Return the function that runs a statement on a connection.

    Raises:
        WrongConnection: nothing here can, with advice.
    """
    if isinstance(conn, psycopg.Connection | psycopg.Cursor):
        return _psycopg(conn)
    for adapter in _adapters(conn):
        runner = adapter.sync_runner(conn)
        if runner is not None:
            return runner
    if isinstance(conn, psycopg.AsyncConnection | psycopg.AsyncCursor) or any(
        adapter.async_runner(conn) is not None for adapter in _adapters(conn)
    ):
        raise _other_kind(
            conn, "must be awaited", "asynchronous function, such as `aenqueue`", "a synchronous"
        )
    raise _unknown(conn)


def async_runner(conn: Any) -> AsyncRunner:
    """Return the coroutine function that runs a statement on a connection.

    Raises:
        WrongConnection: nothing here can, with advice.
    """
    if isinstance(conn, psycopg.AsyncConnection | psycopg.AsyncCursor):
        return _psycopg_async(conn)
    for adapter in _adapters(conn):
        runner = adapter.async_runner(conn)
        if runner is not None:
            return runner
    if isinstance(conn, psycopg.Connection | psycopg.Cursor) or any(
        adapter.sync_runner(conn) is not None for adapter in _adapters(conn)
    ):
        raise _other_kind(
            conn, "cannot be awaited", "synchronous function, such as `enqueue`", "an asynchronous"
        )
    raise _unknown(conn)


def _psycopg(conn: psycopg.Connection[Any] | psycopg.Cursor[Any]) -> Runner:
    raw = conn.connection if isinstance(conn, psycopg.Cursor) else conn

    def run(sql: str, params: Mapping[str, Any]) -> FetchedRows:
        # A new cursor: the caller's row factory and cursor class have no effect.
        with psycopg.Cursor(raw, row_factory=tuple_row) as cursor:
            cursor.execute(sql, params)
            try:
                return cursor.fetchall()
            except psycopg.ProgrammingError as error:
                return _nothing(error)

    return run


def _nothing(error: psycopg.ProgrammingError) -> FetchedRows:
    """Return no rows, for a statement that has none; raise what the server said.

    Before the fetch a cursor in a pipeline does not know which it is.
    """
    if error.sqlstate is None:
        return []
    raise error


def _psycopg_async(conn: psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any]) -> AsyncRunner:
    raw = conn.connection if isinstance(conn, psycopg.AsyncCursor) else conn

    async def run(sql: str, params: Mapping[str, Any]) -> FetchedRows:
        async with psycopg.AsyncCursor(raw, row_factory=tuple_row) as cursor:
            await cursor.execute(sql, params)
            try:
                return await cursor.fetchall()
            except psycopg.ProgrammingError as error:
                return _nothing(error)

    return run


#: The module that serves a library's connections, by the package their classes come from.
_MODULES: Final = {
    "asyncpg": "forebay.db.drivers._asyncpg",
    "sqlalchemy": "forebay.db.drivers._sqlalchemy",
    "django": "forebay.db.drivers._django",
    "builtins": "forebay.db.drivers._alias",
}

#: Advice for objects that look like connections, by the package of their class.
_HINTS: Final = {
    "psycopg_pool": "Take a connection from the pool: `with pool.connection() as conn`.",
    "psycopg2": "Use psycopg 3, or `select forebay.enqueue(...)` on this connection.",
    "asyncpg": "Take a connection from the pool: `async with pool.acquire() as conn`.",
    "sqlalchemy": (
        "Pass a Connection or a Session, or their asynchronous classes:"
        " `with engine.begin() as conn`."
    ),
    "sqlmodel": "Pass a Session.",
    "django": "Pass `django.db.connection`, or `connections[alias]`.",
}


def _packages(conn: object) -> list[str]:
    return [cls.__module__.partition(".")[0] for cls in type(conn).__mro__]


def _adapters(conn: object) -> list[Adapter]:
    names = {_MODULES[package]: None for package in _packages(conn) if package in _MODULES}
    found: list[Any] = []
    for name in names:
        # A class may name a library that is not installed.
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(name))
    return found


def connection_of(conn: object) -> Any:
    """Return the connection or session that an accepted object stands for.

    Every place that compares the type of a connection asks here first, so all accept the same.
    Objects that are not accepted are returned as they are.
    """
    if isinstance(conn, psycopg.Cursor | psycopg.AsyncCursor):
        return conn.connection
    for adapter in _adapters(conn):
        if _serves(adapter, conn):
            return adapter.stands_for(conn)
    return conn


def psycopg_connection_of(conn: object) -> psycopg.Connection[Any]:
    """Return the psycopg connection below a synchronous connection, with its open transaction.

    For code that needs more than statements, such as a migration.

    Raises:
        WrongConnection: the object is not such a connection.
    """
    # Its library begins the transaction with the first statement that it sees.
    sync_runner(conn)("select 1", {})
    found: Any = connection_of(conn)
    for adapter in _adapters(conn):
        if _serves(adapter, conn):
            found = adapter.driver_connection(found)
    if isinstance(found, psycopg.Connection):
        return found
    raise WrongConnection(
        f"a {given(conn)} does not use psycopg",
        given=given(conn),
        hint="Pass a connection on psycopg 3, or the address of the database.",
    )


def _serves(adapter: Adapter, conn: object) -> bool:
    with contextlib.suppress(WrongConnection):
        return adapter.sync_runner(conn) is not None or adapter.async_runner(conn) is not None
    return False


def resembles_connection(conn: object) -> bool:
    """Return whether an object is a connection or an alias, or at least of a library that has
    connections.
    """
    if isinstance(conn, str):
        return any(adapter.sync_runner(conn) is not None for adapter in _adapters(conn))
    libraries = {"psycopg", *_MODULES, *_HINTS} - {"builtins"}
    return not libraries.isdisjoint(_packages(conn))


def given(conn: object) -> str:
    """Return the full name of an object's class."""
    return f"{type(conn).__module__}.{type(conn).__qualname__}"


def _other_kind(conn: object, problem: str, function: str, wanted: str) -> WrongConnection:
    return WrongConnection(
        f"a {given(conn)} {problem}",
        given=given(conn),
        hint=f"Use the {function}, or pass {wanted} connection.",
    )


def _unknown(conn: object) -> WrongConnection:
    known = [_HINTS[package] for package in _packages(conn) if package in _HINTS]
    if isinstance(conn, str | bytes):
        known = ["Connect first: psycopg.connect(...). Or let enqueue_now open a connection."]
    return WrongConnection(
        f"a {given(conn).removeprefix('builtins.')} is not a connection",
        given=given(conn),
        hint=known[0] if known else "The connection comes first: enqueue(conn, ...).",
    )

"""Sessions that keep PostgreSQL from removing old row versions, and other sessions beside a queue.

Vacuum may remove a dead row only when no snapshot of its database can still see it. A session that
keeps a snapshot, or a transaction with a number, open, keeps all rows that died since:

- ``snapshot``: a REPEATABLE READ transaction that has read and then does nothing, such as a report
  or a dump
- ``writer``: a transaction that wrote a row into another table and then does nothing
- ``prepared``: a prepared transaction that is never committed
- ``other_sessions``: an idle producer, a dump that does not end, a paused group and a forgotten
  prepared transaction, the producer and the prepared transaction each with a job that may still
  commit
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
import psycopg.conninfo
from psycopg import sql

from forebay.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from forebay_bench._place import Place

#: Name, and its label in a plot.
HOLDERS: Final = {
    "snapshot": "a session opens a transaction, reads, and leaves it open",
    "writer": "a session opens a transaction, writes to another table, and leaves it open",
    "prepared": "a transaction is prepared and forgotten",
    "other_sessions": "an idle producer, a dump, a paused group and a forgotten transaction",
}

_BALLAST: Final = """
create table bench_ballast as select i, repeat(md5(i::text), 32) as filler from generate_series(1,
    4000) i
"""

_ALL_TABLES: Final = """
select string_agg(c.oid::regclass::text, ', ') from pg_class c
where c.relnamespace::regnamespace::text in ('public', 'forebay') and c.relkind in ('r', 'p')
"""


@dataclass(frozen=True, slots=True)
class HeldDatabase:
    """A database in which a holder is active."""

    dsn: str
    write_one: Callable[[psycopg.Connection[Any]], None]
    """Enqueue a job in a transaction of the other session."""


def check_holder(name: str, place: Place) -> None:
    """Raise a ``ConfigError`` if the holder is unknown, or the server does not support it."""
    if name not in HOLDERS:
        raise ConfigError("--holder", f"is {shown(name)}", hint=f"One of: {', '.join(HOLDERS)}.")
    if name in ("prepared", "other_sessions"):
        with psycopg.connect(place.dsn) as conn:
            if _value(conn, "select current_setting('max_prepared_transactions')::integer") == 0:
                raise ConfigError(
                    "--holder", f"is {name}, and the server's max_prepared_transactions is 0"
                )


@contextlib.contextmanager
def hold(name: str, place: Place, databases: Sequence[HeldDatabase]) -> Iterator[list[str]]:
    """Hold all the databases while the block runs; yield notes on deviations.

    Vacuum looks at the snapshots of one database at a time, so each needs a separate holder.
    """
    with contextlib.ExitStack() as stack:
        notes: list[str] = []
        for held in databases:
            if name == "snapshot":
                stack.enter_context(_snapshot(held.dsn, "pg_class"))
            elif name == "writer":
                stack.enter_context(_writer(held.dsn, _write_other_table))
            elif name == "prepared":
                stack.enter_context(_prepared(held.dsn, _write_other_table))
            elif name == "other_sessions":
                stack.enter_context(_writer(held.dsn, held.write_one))
                notes += stack.enter_context(_dump(place, held.dsn))
                _pause_a_group(held.dsn)
                stack.enter_context(_prepared(held.dsn, held.write_one))
        yield sorted(set(notes))


@contextlib.contextmanager
def _snapshot(dsn: str, table: str) -> Iterator[None]:
    with psycopg.connect(dsn) as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(table)))
        yield
        conn.rollback()


def _write_other_table(conn: psycopg.Connection[Any]) -> None:
    conn.execute("insert into bench_elsewhere values (1)")


@contextlib.contextmanager
def _writer(dsn: str, write: Callable[[psycopg.Connection[Any]], None]) -> Iterator[None]:
    _make_other_table(dsn)
    with psycopg.connect(dsn) as conn:
        write(conn)
        yield
        conn.rollback()


@contextlib.contextmanager
def _prepared(dsn: str, write: Callable[[psycopg.Connection[Any]], None]) -> Iterator[None]:
    _make_other_table(dsn)
    # Names of prepared transactions are the whole server's.
    name = sql.Literal(f"forgotten in {psycopg.conninfo.conninfo_to_dict(dsn)['dbname']}")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("begin")
        write(conn)
        conn.execute(sql.SQL("prepare transaction {}").format(name))
    try:
        yield
    finally:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("rollback prepared {}").format(name))


@contextlib.contextmanager
def _dump(place: Place, dsn: str) -> Iterator[list[str]]:
    """Run pg_dump without reading its output: it stops, with its snapshot and its locks."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(_BALLAST)
    own = place.bin_dir / "pg_dump" if place.bin_dir else None
    program = str(own) if own and own.exists() else shutil.which("pg_dump")
    process = None
    if program is not None:
        process = subprocess.Popen(
            [program, "--dbname", dsn],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        # It begins to write when it has its snapshot and a lock on every table.
        if not os.read(process.stdout.fileno(), 1):
            process.wait()
            process = None
    if process is None:
        with _lock_all_tables(dsn):
            yield [
                (
                    "no pg_dump of this server's version: a session with the same snapshot and "
                    "locks replaces it"
                )
            ]
        return
    try:
        yield []
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def _lock_all_tables(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as conn:
        conn.execute("set transaction isolation level repeatable read")
        tables = _value(conn, _ALL_TABLES)
        conn.execute(sql.SQL("lock table {} in access share mode").format(sql.SQL(tables)))
        yield
        conn.rollback()


def _pause_a_group(dsn: str) -> None:
    """Open a second consumer group of the queue and pause it; only a log has groups."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        if _value(conn, "select to_regnamespace('forebay') is not null"):
            conn.execute("select forebay.open_group('bench', 'paused', 'beginning')")
            conn.execute("select forebay.pause_queue('bench', 'paused')")


def _make_other_table(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table if not exists bench_elsewhere (n integer)")


def _value(conn: psycopg.Connection[Any], statement: str) -> Any:
    row = conn.execute(psycopg.sql.SQL(statement)).fetchone()
    assert row is not None
    return row[0]

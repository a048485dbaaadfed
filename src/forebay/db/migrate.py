"""Bring the schema of a database to the version of this library.

All pending migrations run in one transaction, so that a failure leaves the database as it was. An
advisory transaction lock lets one migrator work at a time; the second waits, looks again and finds
nothing to do. Statements that must wait for other sessions give up after ``lock_timeout``: a
migration stuck in a queue would hold up everybody behind it.

The script that ``migration_sql`` returns is made of the same statements, so both ways end in the
same schema.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forebay.db.errors import translate
from forebay.errors import (
    ConfigError,
    DatabaseUnavailable,
    SchemaError,
    TransactionStateError,
    shown,
)
from forebay.sql import Migration, latest_version, migrations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: "fore" and "bay" in ASCII. The schema's own oid, which keys every other lock, may not exist yet.
_LOCK: Final = "pg_advisory_xact_lock(x'666f7265'::int, x'626179'::int)"

#: How long a second migrator waits for the first.
_WAIT_SECONDS: Final = 120

#: How long a statement of a migration waits for other sessions.
_LOCK_TIMEOUT_SECONDS: Final = 5.0

_LOCK_NOT_AVAILABLE: Final = "55P03"


def migrate(
    target: str | psycopg.Connection[Any],
    *,
    dry_run: bool = False,
    lock_timeout_seconds: float = _LOCK_TIMEOUT_SECONDS,
) -> list[Migration]:
    """Apply the pending migrations and return them; an empty list means nothing to do.

    Args:
        target: the address of the database, or a synchronous connection. On a connection inside a
            transaction the migrations become part of it, for the caller to commit.
        dry_run: only return what would be applied.
        lock_timeout_seconds: how long a statement may wait for a lock that another session holds.

    Raises:
        SchemaError: the schema is newer than this library, was installed by other means, or an
            applied migration differs from ours.
        TransactionStateError: the connection's transaction is not READ COMMITTED.
        DatabaseUnavailable: the database cannot be reached, or a lock was not granted in time.
    """
    try:
        with _connection(target) as conn:
            if dry_run:
                return pending_migrations(conn)
            return _apply(conn, lock_timeout_seconds)
    except psycopg.Error as error:
        if error.sqlstate == _LOCK_NOT_AVAILABLE:
            raise DatabaseUnavailable(
                "a lock was not granted in time, nothing was migrated",
                detail=str(error),
                hint="Another migration or a long transaction holds it; try again.",
            ) from error
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


def pending_migrations(conn: psycopg.Connection[Any]) -> list[Migration]:
    """Return the migrations that the database has not seen, after comparing those it has.

    Raises:
        SchemaError: see ``migrate``.
    """
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(
            "select to_regnamespace('forebay') is not null,"
            " to_regclass('forebay.schema_migration') is not null"
        ).fetchone()
        assert row is not None
        if not row[0]:
            return list(migrations())
        recorded: dict[int, tuple[str, str]] = {}
        if row[1]:
            recorded = {
                version: (name, checksum)
                for version, name, checksum in cursor.execute(
                    "select version, name, checksum from forebay.schema_migration order by version"
                )
            }
    return _compared(recorded)


def migration_sql(from_version: int = 0, *, transaction: bool = True) -> str:
    """Return one script that takes a database from a version of the schema to the newest.

    It can be given to ``psql`` as it is, refuses a database at another version, and records what
    it applied, so that ``migrate`` finds nothing to do afterwards.

    Args:
        from_version: the version the database is at, 0 for one without the schema.
        transaction: with ``begin`` and ``commit``; False for a tool that opens the transaction
            itself, such as Alembic.

    Raises:
        ConfigError: there is no such version.
    """
    latest = latest_version()
    if not 0 <= from_version <= latest:
        raise ConfigError(
            "from_version",
            f"is {shown(from_version)}, not within 0 to {latest}",
            value=from_version,
        )
    steps = migrations()[from_version:]
    title = f"-- Forebay: schema version {from_version} to {latest}."
    if not steps:
        return f"{title} Nothing to do.\n"
    parts = [_OPENING, _guard(from_version), *_statements(steps), _CLOSING]
    if transaction:
        parts = ["begin;", *parts, "commit;"]
    return "\n\n".join([title, *parts]) + "\n"


@contextlib.contextmanager
def _connection(target: str | psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    if isinstance(target, psycopg.Connection):
        yield target
    elif isinstance(target, str):
        with psycopg.connect(
            target, autocommit=True, application_name="forebay migrate", prepare_threshold=None
        ) as conn:
            yield conn
    else:
        raise ConfigError(
            "migrate",
            f"takes an address or a synchronous psycopg connection, not {type(target).__name__}",
        )


def _apply(conn: psycopg.Connection[Any], lock_timeout_seconds: float) -> list[Migration]:
    begins = conn.info.transaction_status == TransactionStatus.IDLE
    with conn.transaction():
        if begins:
            # With a snapshot from before the wait, the second migrator would see no schema.
            conn.execute("set transaction isolation level read committed")
        with conn.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute("select current_setting('transaction_isolation')").fetchone()
        assert row is not None
        if row[0] != "read committed":
            raise TransactionStateError("migrate", f"the isolation level is {row[0]}")
        conn.execute(_OPENING)
        steps = pending_migrations(conn)
        for statement in _statements(steps, lock_timeout_seconds):
            conn.execute(statement)
        conn.execute(_CLOSING)
    return steps


_OPENING: Final = f"""\
-- One migrator at a time. What is set here is set back at the end.
select set_config('forebay.search_path_before', current_setting('search_path'), true),
       set_config('forebay.lock_timeout_before', current_setting('lock_timeout'), true),
       set_config('search_path', 'pg_catalog, pg_temp', true),
       set_config('lock_timeout', '{_WAIT_SECONDS}s', true);
select {_LOCK};"""

_CLOSING: Final = """\
select set_config('search_path', current_setting('forebay.search_path_before'), true),
       set_config('lock_timeout', current_setting('forebay.lock_timeout_before'), true);"""


def _statements(
    steps: Sequence[Migration], lock_timeout_seconds: float = _LOCK_TIMEOUT_SECONDS
) -> list[str]:
    """Return what applies the steps and records them."""
    if not steps:
        return []
    records = ",\n".join(
        f"    ({step.version}, '{step.name}', '{step.checksum}')" for step in steps
    )
    return [
        f"set local lock_timeout = '{max(1, round(lock_timeout_seconds * 1000))}ms';",
        *(f"-- {step.version:04} {step.name}\n\n{step.text.strip()}" for step in steps),
        f"insert into forebay.schema_migration (version, name, checksum) values\n{records};",
        "-- Functions that are new are granted too.\nselect forebay._grant();",
    ]


def _guard(from_version: int) -> str:
    """Return a statement that refuses a database at another version than the script is for."""
    found = "null" if from_version == 0 else "(select max(version) from forebay.schema_migration)"
    condition = (
        "to_regnamespace('forebay') is not null"
        if from_version == 0
        else f"{found} is distinct from {from_version}"
    )
    return f"""\
do $forebay$
begin
    if {condition} then
        raise exception using
            errcode = 'JQ020',
            message = 'this script is for a database at schema version {from_version}',
            hint = 'Print the script again with the version of this database.';
    end if;
end
$forebay$;"""


def _compared(recorded: dict[int, tuple[str, str]]) -> list[Migration]:
    known = migrations()
    if not recorded:
        raise SchemaError.from_sql(
            "schema forebay exists but records no migration",
            hint="It was not installed by `forebay migrate` or `forebay sql`; drop it, or record its version.",
        )
    if max(recorded) > len(known):
        raise SchemaError(found=max(recorded), needed=len(known))
    for step in known[: max(recorded)]:
        name, checksum = recorded.get(step.version, ("missing", ""))
        if (name, checksum) != (step.name, step.checksum):
            raise SchemaError.from_sql(
                f"migration {step.version} is not the one that was applied",
                detail=f"applied: {name} {checksum}\nin this library: {step.name} {step.checksum}",
                hint="A released migration never changes: install the library that was released.",
            )
    return list(known[max(recorded) :])

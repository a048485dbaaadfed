"""Bring the schema of a database to the version of this library, while its jobs run.

A first installation is one transaction. An upgrade is one transaction for each migration: an
applied migration stays, a failed one leaves nothing, and the next call continues there. A lock
admits one migrator at a time; a second one waits, and then finds nothing to do. How a migration
takes its locks: ``forebay.upgrade._stepping``.

On a connection inside a transaction, everything becomes part of that transaction. The script of
``migration_sql`` has the same statements, so all ways end in the same schema.

Invariants "no session waits long behind a migration" and "deployed code keeps working":
docs/design/upgrades.md. Shown by: tests/migration.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forebay.db.address import parsed_address
from forebay.db.drivers import SyncConnection, psycopg_connection_of
from forebay.db.errors import translate
from forebay.db.opening import connected
from forebay.db.server_settings import ENCODING
from forebay.errors import ConfigError, DatabaseUnavailable, TransactionStateError, shown
from forebay.model.doors import declaring_door
from forebay.sql import latest_version, migrations
from forebay.upgrade._statements import CLOSING, OPENING, in_a_transaction, recording
from forebay.upgrade._stepping import (
    LOCK_TIMEOUT_SECONDS,
    NOT_GRANTED,
    LockPolicy,
    Stepper,
    Upgraded,
    pending_migrations,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.sql import Migration

__all__ = ["LockPolicy", "Upgraded", "migrate", "migration_sql", "pending_migrations", "upgrade"]


@declaring_door
def migrate(
    target: str | SyncConnection,
    *,
    dry_run: bool = False,
    only_pre: bool = False,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> list[Migration]:
    """Apply the pending migrations and return them; an empty list means there were none.

    A post migration removes what older code calls. It stays pending while a worker of an older
    version is alive.

    Args:
        target: the address of the database, or a synchronous connection of any library, on
            psycopg. On a connection inside a
            transaction the migrations become part of it, for the caller to commit.
        dry_run: only return the migrations that would be applied.
        only_pre: stop before the first post migration.
        lock_timeout_seconds: how long other sessions may wait behind a statement that waits for a
            lock.

    Raises:
        SchemaError: the schema is newer than this library or was installed by other means, an
            applied migration differs from ours, or a migration that this library needs comes after
            one that has to wait.
        TransactionStateError: the connection's transaction is not READ COMMITTED.
        DatabaseUnavailable: the database cannot be reached, or a lock was not granted in time.
    """
    if dry_run:
        with raising_ours(), connection_to(target) as conn:
            steps = pending_migrations(conn)
            posts = [place for place, step in enumerate(steps) if step.is_post]
            return steps[: posts[0]] if only_pre and posts else steps
    lock_policy = LockPolicy(lock_timeout_seconds=lock_timeout_seconds)
    return upgrade(target, only_pre=only_pre, lock_policy=lock_policy).applied


def upgrade(
    target: str | SyncConnection,
    *,
    only_pre: bool = False,
    wait_seconds: float = 0.0,
    lock_policy: LockPolicy | None = None,
) -> Upgraded:
    """Do as ``migrate``; also return what is still pending, and why.

    Args:
        target: as of ``migrate``.
        only_pre: stop before the first post migration.
        wait_seconds: how long to wait for older workers to end.
        lock_policy: how to take locks; None means the defaults.

    Raises:
        ForebayError: as ``migrate``.
    """
    with raising_ours(), connection_to(target) as conn:
        stepper = Stepper(
            conn, lock_policy or LockPolicy(), only_pre=only_pre, wait_seconds=wait_seconds
        )
        if conn.info.transaction_status == TransactionStatus.IDLE:
            with autocommitting(conn):
                return stepper.run()
        _require_read_committed(conn)
        return stepper.run_within()


@declaring_door
def migration_sql(
    from_version: int = 0, *, transaction: bool = True, only_pre: bool = False
) -> str:
    """Return one script that takes a database from a version of the schema to the newest.

    You can pass it to ``psql`` unchanged. It refuses a database at another version, refuses to
    remove what a living worker calls, and records what it applied, so that ``migrate`` has nothing
    to do afterwards. An index that ``migrate`` builds concurrently is built here under a lock that
    blocks writes to its table.

    Args:
        from_version: the version of the database, 0 for one without the schema.
        transaction: with ``begin`` and ``commit``; False for a tool that opens the transaction
            itself, such as Alembic.
        only_pre: stop before the first post migration.

    Raises:
        ConfigError: the version does not exist.
    """
    latest = latest_version()
    if not 0 <= from_version <= latest:
        raise ConfigError(
            "from_version",
            f"is {shown(from_version)}, not within 0 to {latest}",
            value=from_version,
        )
    steps = list(migrations()[from_version:])
    posts = [place for place, step in enumerate(steps) if step.is_post]
    if only_pre and posts:
        del steps[posts[0] :]
    title = (
        f"-- Forebay: schema version {from_version} to "
        f"{steps[-1].version if steps else from_version}."
    )
    if not steps:
        return f"{title} Nothing to do.\n"
    parts = [OPENING, _guard(from_version), _SCRIPT_LOCK_TIMEOUT]
    parts += [f"-- {step.version:04} {step.name}\n\n{in_a_transaction(step)}" for step in steps]
    parts += [recording(steps), CLOSING]
    if transaction:
        parts = ["begin;", *parts, "commit;"]
    return "\n\n".join([title, *parts]) + "\n"


_SCRIPT_LOCK_TIMEOUT: Final = f"set local lock_timeout = '{round(LOCK_TIMEOUT_SECONDS * 1000)}ms';"


@contextlib.contextmanager
def connection_to(target: str | SyncConnection) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection: the given one, or a new one to an address."""
    if isinstance(target, psycopg.Connection):
        yield target
    elif not isinstance(target, str):
        yield psycopg_connection_of(target)
    else:
        parsed_address(target)  # It raises if libpq would print a part of it.
        with connected(
            target,
            autocommit=True,
            application_name="forebay migrate",
            prepare_threshold=None,
            **ENCODING,
        ) as conn:
            yield conn


@contextlib.contextmanager
def autocommitting(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Keep a connection from opening transactions implicitly."""
    before = conn.autocommit
    conn.autocommit = True
    try:
        yield
    finally:
        if not conn.closed:
            conn.autocommit = before


@contextlib.contextmanager
def raising_ours() -> Iterator[None]:
    """Raise our errors for those of the driver."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate in NOT_GRANTED:
            raise DatabaseUnavailable(
                "a lock was not granted in time, nothing was migrated",
                detail=str(error),
                hint="Another migration or a long transaction holds it; try again.",
            ) from error
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


def _require_read_committed(conn: psycopg.Connection[Any]) -> None:
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute("select current_setting('transaction_isolation')").fetchone()
    assert row is not None
    if row[0] != "read committed":
        raise TransactionStateError("migrate", f"the isolation level is {row[0]}")


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

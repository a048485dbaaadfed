"""Apply migrations one by one, under load.

A strong lock on a busy table blocks twice: until it is granted, all later sessions wait behind it,
and then until its transaction ends. So a migration names the tables it alters, and

- while an old transaction has locked one of them, it requests no lock and blocks no session;
- then it requests all locks at once, and gives up within a fraction of a second;
  the pause before the next attempt is ten times as long;
- once it has the locks, the transaction has a few seconds, or is rolled back;
- all of this is shorter than ``deadlock_timeout``: in a deadlock the migration gives way.

A post migration removes what functions of the previous version may still use: it waits for every
statement that began before it. A migration that copies rows waits for transactions as well, which
may have written in the old way.

Maintenance that creates or empties segments pauses meanwhile. Indexes on large tables are built
outside a transaction, on a second connection. The first connection keeps other migrators away with
a transaction that holds no other lock.

A crash leaves nothing of a transaction. Of other statements it may leave an invalid index or a part
of the segments, and no record: the migration then starts again, and its statements can be repeated.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forebay._dataclass import dataclass
from forebay.db.errors import refuses_settings
from forebay.errors import DatabaseUnavailable, ForebayError, SchemaError
from forebay.sql import Migration, migrations, required_version, split_statements
from forebay.upgrade._blockers import holder_of, moment, session_running_since
from forebay.upgrade._statements import (
    CLOSING,
    MIGRATOR_LOCK,
    MIGRATOR_WAIT_SECONDS,
    OPENING,
    SEARCH_PATH,
    in_a_transaction,
    recording,
    requiring_gone,
    setting_timeout,
    table_list,
)

T = TypeVar("T")

#: The locks of the maintenance that creates and empties segments: see forebay.extend_v1() and
#: forebay.retain_v1().
_MAINTENANCE_LOCKS: Final = "only forebay.lock_maintenance, only forebay.lock_retention"

#: lock_not_available, and deadlock_detected: the migration gave way.
NOT_GRANTED: Final = frozenset({"55P03", "40P01"})
_QUERY_CANCELED: Final = "57014"
_OLDER_RUN: Final = "JQ020"
_DUPLICATE_SCHEMA: Final = "42P06"
_UNIQUE_VIOLATION: Final = "23505"

#: How long other sessions may wait behind an attempt to get a lock.
LOCK_TIMEOUT_SECONDS: Final = 0.5

#: An attempt takes at most this share of deadlock_timeout.
_DEADLOCK_SHARE: Final = 0.5

#: The first attempt to get a lock, and the factor between an attempt and the pause after it.
_FIRST_ATTEMPT_SECONDS: Final = 0.05
_PAUSE_FACTOR: Final = 10

_POLL_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 10.0
_REPORT_SEGMENT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class LockPolicy:
    """How an upgrade takes locks.

    Attributes:
        lock_timeout_seconds: how long other sessions may wait behind an attempt to get a lock.
        patience_seconds: how long to retry getting the locks of one migration.
        hold_seconds_max: how long the locks may then be held.
        report: called with progress messages.
    """

    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
    patience_seconds: float = 60.0
    hold_seconds_max: float = 5.0
    report: Callable[[str], None] = field(default=lambda _: None, repr=False)

    def attempts(self) -> Iterator[float]:
        """Yield the time limit of each attempt, growing."""
        seconds = _FIRST_ATTEMPT_SECONDS
        while True:
            yield min(seconds, self.lock_timeout_seconds)
            seconds *= 2


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The result of an upgrade.

    Attributes:
        applied: the migrations that it applied.
        held_back: those that are still pending.
        reason: why some are pending; None when none is.
    """

    applied: list[Migration]
    held_back: list[Migration] = field(default_factory=list)
    reason: SchemaError | None = None


class NotGrantedError(Exception):
    """Locks were not granted in time; nothing was changed."""


class Stepper:
    """Applies pending migrations on one connection.

    Args:
        conn: the connection.
        lock_policy: how to take locks.
        only_pre: stop before the first post migration.
        wait_seconds: how long to wait for older workers to end.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        lock_policy: LockPolicy,
        *,
        only_pre: bool = False,
        wait_seconds: float = 0.0,
    ) -> None:
        self._conn = conn
        self._lock_policy = lock_policy
        self._only_pre = only_pre
        self._wait_seconds = wait_seconds

    def run(self) -> Upgraded:
        """Apply pending migrations, each in a separate transaction.

        A first installation is one transaction.
        """
        applied: list[Migration] = []
        while steps := pending_migrations(self._conn):
            step = steps[0]
            if step.version == 1:
                applied += self._install()
                continue
            if step.is_post and self._only_pre:
                return _held_back(applied, steps)
            reason = self._until_older_are_gone(step, applied)
            if reason is not None:
                return _held_back(applied, steps, reason)
        return Upgraded(applied)

    def run_within(self) -> Upgraded:
        """Apply pending migrations within the open transaction."""
        execute = self._conn.execute
        execute(OPENING)
        steps = pending_migrations(self._conn)
        applied: list[Migration] = []
        reason = None
        if steps and steps[0].version > 1:
            execute(setting_timeout("lock_timeout", self._lock_policy.lock_timeout_seconds))
        for step in steps:
            if step.is_post and self._only_pre:
                break
            try:
                with self._conn.transaction():
                    execute(in_a_transaction(step))
            except psycopg.Error as error:
                if step.version == 1 and _says_schema_exists(error):
                    execute(CLOSING)
                    return self.run_within()  # Another migrator has done it meanwhile.
                if not step.is_post or error.sqlstate != _OLDER_RUN:
                    raise
                reason = _schema_error(error)
                break
            applied.append(step)
        if applied:
            execute(recording(applied))
        execute(CLOSING)
        if len(applied) < len(steps):
            return _held_back(applied, steps[len(applied) :], reason)
        return Upgraded(applied)

    def _install(self) -> list[Migration]:
        try:
            with migrator_lock(self._conn):
                steps = pending_migrations(self._conn)
                if not steps or steps[0].version != 1:
                    return []  # Another migrator has done it.
                if self._only_pre:
                    posts = [place for place, step in enumerate(steps) if step.is_post]
                    del steps[min(posts, default=len(steps)) :]
                self._conn.execute(setting_timeout("lock_timeout", MIGRATOR_WAIT_SECONDS))
                for step in steps:
                    self._conn.execute(in_a_transaction(step))
                self._conn.execute(recording(steps))
        except psycopg.Error as error:
            if not _says_schema_exists(error):
                raise
            return []  # Another migrator has done it meanwhile.
        return steps

    def _until_older_are_gone(
        self, step: Migration, applied: list[Migration]
    ) -> SchemaError | None:
        """Apply a migration, or return the error that names the older workers."""
        until = time.monotonic() + self._wait_seconds
        reported_at = -_REPORT_SECONDS
        while True:
            try:
                if self._apply(step):
                    applied.append(step)
            except psycopg.Error as error:
                if not step.is_post or error.sqlstate != _OLDER_RUN:
                    raise
                reason = _schema_error(error)
            else:
                return None
            if time.monotonic() >= until:
                return reason
            if time.monotonic() >= reported_at + _REPORT_SECONDS:
                reported_at = time.monotonic()
                self._lock_policy.report(f"{step.version:04} {step.name} waits: {reason.message}")
            time.sleep(_POLL_SECONDS)

    def _apply(self, step: Migration) -> bool:
        """Apply one migration once its locks are granted.

        The result is False when another migrator applied it.
        """
        until = time.monotonic() + self._lock_policy.patience_seconds
        reported_at = -_REPORT_SECONDS
        with without_timeout(self._conn):
            now = moment(self._conn)
        for seconds in self._lock_policy.attempts():
            with without_timeout(self._conn):
                waited_for: object | None = holder_of(self._conn, step.locks)
                if waited_for is None and (step.is_post or step.is_after_all):
                    waited_for = session_running_since(self._conn, now, writers=step.is_after_all)
            if waited_for is None:
                try:
                    if step.is_outside:
                        return self._apply_outside(step)
                    return self._attempt(step, seconds)
                except NotGrantedError:
                    with without_timeout(self._conn):
                        waited_for = holder_of(self._conn, step.locks, older_than_seconds=0.0)
                    pause = seconds * _PAUSE_FACTOR
            else:
                pause = _POLL_SECONDS
            why = f"{waited_for}" if waited_for else "others hold its locks"
            if time.monotonic() >= until:
                raise not_granted(step, self._lock_policy.patience_seconds, why)
            if time.monotonic() >= reported_at + _REPORT_SECONDS:
                reported_at = time.monotonic()
                self._lock_policy.report(f"{step.version:04} {step.name} waits: {why}")
            time.sleep(min(pause, max(0.0, until - time.monotonic())))
        raise AssertionError

    def _attempt(self, step: Migration, seconds: float) -> bool:
        with migrator_lock(self._conn):
            pending = pending_migrations(self._conn)
            if not pending or pending[0] != step:
                return False
            for _ in run_step(self._conn, step, seconds, self._lock_policy.hold_seconds_max):
                pass
        return True

    def _apply_outside(self, step: Migration) -> bool:
        with migrator_lock(self._conn):
            pending = pending_migrations(self._conn)
            if not pending or pending[0] != step:
                return False
            self._conn.execute("set local idle_in_transaction_session_timeout = 0")
            if step.is_post:
                with self._conn.transaction(force_rollback=True):
                    self._conn.execute(requiring_gone(step))
            with _builder(self._conn) as builder:
                self._build(step, builder)
            self._conn.execute(recording([step]))
        return True

    def _build(self, step: Migration, builder: psycopg.Connection[Any]) -> None:
        segments = _segments(builder) if step.is_per_segment else [None]
        reported_at = time.monotonic()
        for place, segment in enumerate(segments, 1):
            if time.monotonic() >= reported_at + _REPORT_SEGMENT_SECONDS:
                reported_at = time.monotonic()
                self._lock_policy.report(
                    f"{step.version:04} {step.name}: segment {place} of {len(segments)}"
                )
            for statement in step.statements(segment):
                try:
                    builder.execute(statement)
                except psycopg.errors.DeadlockDetected as error:
                    # Another migrator may have lost its connection and not noticed yet.
                    raise NotGrantedError from error


@contextlib.contextmanager
def without_timeout(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Read in a transaction without the role's statement timeout.

    An open transaction keeps what is set there.
    """
    if conn.info.transaction_status != TransactionStatus.IDLE:
        yield
        return
    with conn.transaction():
        conn.execute("set local statement_timeout = 0")
        yield


def pending_migrations(conn: psycopg.Connection[Any]) -> list[Migration]:
    """Return the migrations that the database does not have, after comparing those it has.

    Raises:
        SchemaError: see ``migrate``.
    """
    with without_timeout(conn), conn.cursor(row_factory=tuple_row) as cursor:
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


def run_step(
    conn: psycopg.Connection[Any],
    step: Migration,
    seconds: float,
    hold_seconds_max: float,
    *,
    require_gone: bool = True,
) -> Iterator[str]:
    """Apply a migration in the open transaction and record it; yield each statement before it runs.

    Args:
        conn: the connection, with a transaction.
        step: the migration.
        seconds: how long to wait for its locks.
        hold_seconds_max: how long it may hold them.
        require_gone: refuse a post migration while older workers are alive.

    Raises:
        NotGrantedError: its locks were not granted in time.
        SchemaError: it held them for too long.
    """
    (deadlock_millis,) = _row(
        conn, "select setting::float8 from pg_settings where name = 'deadlock_timeout'"
    )
    seconds = min(seconds, deadlock_millis / 1000 * _DEADLOCK_SHARE)
    began = time.monotonic()
    held_until = None
    try:
        conn.execute(setting_timeout("lock_timeout", seconds))
        if step.is_post and require_gone:
            conn.execute(requiring_gone(step))
        conn.execute(f"lock table {_MAINTENANCE_LOCKS} in share update exclusive mode")
        conn.execute("set local statement_timeout = 0")
        if step.locks:
            conn.execute(setting_timeout("statement_timeout", seconds))
            locking = f"lock table {table_list(step.locks)} in access exclusive mode"
            yield locking
            conn.execute(locking)
            began = time.monotonic()
            held_until = began + hold_seconds_max
        for statement in [*step.statements(), *split_statements(recording([step]))]:
            if held_until is not None:
                conn.execute(setting_timeout("statement_timeout", held_until - time.monotonic()))
            yield statement
            conn.execute(statement)
        if held_until is not None and time.monotonic() > held_until:
            raise _held_too_long(step, hold_seconds_max)
    except psycopg.Error as error:
        if error.sqlstate in NOT_GRANTED:
            raise NotGrantedError from error
        if error.sqlstate == _QUERY_CANCELED and step.locks:
            if held_until is None:
                raise NotGrantedError from error
            if time.monotonic() >= held_until:
                raise _held_too_long(step, hold_seconds_max) from error
        raise


@contextlib.contextmanager
def migrator_lock(conn: psycopg.Connection[Any], *, roll_back: bool = False) -> Iterator[None]:
    """Open a transaction in which no other migrator is active.

    Args:
        conn: the connection.
        roll_back: roll the transaction back instead of committing it.

    Raises:
        DatabaseUnavailable: another migrator did not end in time.
    """
    until = time.monotonic() + MIGRATOR_WAIT_SECONDS
    while True:
        with conn.transaction(force_rollback=roll_back):
            # With a snapshot from before the wait, the second migrator would not see the schema.
            conn.execute(
                "set transaction isolation level read committed;"
                f" set local search_path = {SEARCH_PATH}; set local statement_timeout = 0"
            )
            if _has_migrator_lock(conn):
                yield
                return
        if time.monotonic() >= until:
            raise DatabaseUnavailable(
                f"another migration has been running for {MIGRATOR_WAIT_SECONDS} s",
                hint="Nothing was migrated here; try again when it has ended.",
            )
        time.sleep(_POLL_SECONDS)


def _has_migrator_lock(conn: psycopg.Connection[Any]) -> bool:
    """Take the lock of a migrator if no other session has it.

    The result is also True before the first migration, which makes the lock.
    """
    (exists,) = _row(conn, f"select to_regclass('{MIGRATOR_LOCK}') is not null")
    if not exists:
        return True
    try:
        # The lock is not waited for: the other migrator's concurrent index build would wait for the
        # snapshot of a waiting statement.
        with conn.transaction():
            conn.execute(f"lock table only {MIGRATOR_LOCK} in share update exclusive mode nowait")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _says_schema_exists(error: psycopg.Error) -> bool:
    """Return whether the schema was created by another session, before this statement or during
    it.
    """
    return error.sqlstate == _DUPLICATE_SCHEMA or (
        error.sqlstate == _UNIQUE_VIOLATION
        and error.diag.schema_name == "pg_catalog"
        and error.diag.constraint_name == "pg_namespace_nspname_index"
    )


def not_granted(step: Migration, seconds: float, why: str) -> DatabaseUnavailable:
    """Return the error for locks that were not granted."""
    return DatabaseUnavailable(
        f"migration {step.version} got no lock on {table_list(step.locks) or 'what it changes'}"
        f" within {seconds:g} s",
        detail=f"{why}\nNothing of it was applied; no session waited for longer than a moment.",
        hint=(
            "End that transaction, or try again when it has ended: applied migrations stay applied."
        ),
    )


def _held_back(
    applied: list[Migration], steps: list[Migration], reason: SchemaError | None = None
) -> Upgraded:
    needed = required_version()
    if reason is None:
        left_out = SchemaError.from_sql(
            f"migration {steps[0].version} is a post migration and was not applied",
            hint="Run it when the last process of the previous version has ended.",
        )
        assert isinstance(left_out, SchemaError)
        reason = left_out
    if steps[0].version <= needed:
        reason.detail = "\n".join(
            part
            for part in (
                reason.detail,
                f"This library needs version {needed} of the schema, which is a later one.",
            )
            if part
        )
        reason.hint = (
            "Upgrade through the release in between, or end all workers of older versions first."
        )
        raise reason
    return Upgraded(applied, steps, reason)


def _held_too_long(step: Migration, seconds: float) -> ForebayError:
    return SchemaError.from_sql(
        f"migration {step.version} held its locks on {table_list(step.locks)} for longer than"
        f" {seconds:g} s and was rolled back",
        hint="Rehearse it on a copy of this database; at a quiet time, allow a longer hold.",
    )


def _schema_error(error: psycopg.Error) -> SchemaError:
    made = SchemaError.from_sql(
        error.diag.message_primary or str(error),
        detail=error.diag.message_detail,
        hint=error.diag.message_hint,
    )
    assert isinstance(made, SchemaError)
    return made


def _segments(conn: psycopg.Connection[Any]) -> list[int | None]:
    with conn.cursor(row_factory=tuple_row) as cursor:
        rows = cursor.execute(
            "select s.segment_id from forebay.segment s order by s.segment_id"
        ).fetchall()
    return [segment for (segment,) in rows]


def _builder(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Return a second connection to the same database that commits each statement."""
    info = conn.info
    options = (
        f"{conninfo_to_dict(info.dsn).get('options') or ''} -csearch_path=pg_catalog,pg_temp"
        " -clock_timeout=0 -cstatement_timeout=0"
    )

    def connect(**settings: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            make_conninfo(info.dsn, password=info.password or None, **settings),
            autocommit=True,
            application_name="forebay migrate",
            prepare_threshold=None,
        )

    try:
        return connect(options=options.strip())
    except psycopg.OperationalError as error:
        if not refuses_settings(error):
            raise
        # The settings of the role and the database apply: what is set in a pooler's session would
        # stay for other clients.
        return connect()


def _row(conn: psycopg.Connection[Any], statement: str) -> tuple[Any, ...]:
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(statement).fetchone()
    assert row is not None
    return row


def _compared(recorded: dict[int, tuple[str, str]]) -> list[Migration]:
    known = migrations()
    if not recorded:
        raise SchemaError.from_sql(
            "schema forebay exists but records no migration",
            hint=(
                "It was not installed by `forebay migrate` or `forebay sql`; drop it, or "
                "record its version."
            ),
        )
    if max(recorded) > len(known):
        raise SchemaError(found=max(recorded), needed=len(known))
    for step in known[: max(recorded)]:
        name, checksum = recorded.get(step.version, ("missing", ""))
        if (name, checksum) != (step.name, step.checksum):
            raise SchemaError.from_sql(
                f"migration {step.version} differs from the one that was applied",
                detail=f"applied: {name} {checksum}\nin this library: {step.name} {step.checksum}",
                hint="A released migration never changes: install the released library.",
            )
    return list(known[max(recorded) :])

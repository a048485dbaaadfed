"""Run pending migrations in a transaction, measure which locks they take and for how long, and
roll back.

Every statement runs on the real tables with the real locks, requested as in a real upgrade: within
a fraction of a second or not at all, and not behind an old transaction. Sessions that need the
tables wait until the end of the rehearsal. Statements that commit one by one cannot be rolled back,
and are only listed.

A lock counts from just before the statement that took it to the end of its migration, where a real
upgrade commits.
"""

from __future__ import annotations

import time
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forebay._dataclass import dataclass
from forebay.errors import TransactionStateError
from forebay.upgrade._blockers import holder_of
from forebay.upgrade._stepping import (
    LockPolicy,
    NotGrantedError,
    migrator_lock,
    not_granted,
    pending_migrations,
    run_step,
)
from forebay.upgrade.migrate import autocommitting, connection_to, raising_ours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.db.drivers import SyncConnection
    from forebay.sql import Migration

#: Which sessions a lock stops, after the PostgreSQL manual, section 13.3.1; a missing mode stops no
#: working session.
Stops = Literal["all", "writers", "maintenance"]
_STOPS: Final[Mapping[str, Stops]] = {
    "AccessExclusiveLock": "all",
    "ExclusiveLock": "writers",
    "ShareRowExclusiveLock": "writers",
    "ShareLock": "writers",
    "ShareUpdateExclusiveLock": "maintenance",
}

_OLDER_RUN: Final = "JQ020"

#: An index is locked with its table; only the table counts.
_TABLES: Final = r"""
select c.oid, regexp_replace(c.relname, '^log_[0-9]+', 'log_#')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname !~ '^pg_' and n.nspname <> 'information_schema' and c.relkind <> all ('{i,I}')
  and (n.nspname <> 'forebay' or c.relname !~ '^lock_')
"""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """One kind of lock that a migration held.

    Attributes:
        relation: the table or index, without the schema; ``log_#`` for segments.
        count: the number of relations of that name.
        mode: as PostgreSQL calls it, such as ``ACCESS EXCLUSIVE``.
        stops: what it blocks: all, writers, or maintenance (vacuum and the creation of segments).
        seconds: how long it was held.
        declared: whether the migration requests it at its beginning.
    """

    relation: str
    count: int
    mode: str
    stops: Stops
    seconds: float
    declared: bool


@dataclass(slots=True)
class RehearsedStep:
    """What one migration would do.

    Attributes:
        migration: the migration.
        seconds: how long it took; None when it was not run.
        waited_seconds: how long it waited for its locks.
        locks: locks that block sessions, on relations that existed before; strongest and longest
            first.
        older_workers: the older workers that a post migration would break.
    """

    migration: Migration
    seconds: float | None = None
    waited_seconds: float = 0.0
    locks: list[HeldLock] = field(default_factory=list)
    older_workers: str | None = None


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What an upgrade would do.

    Attributes:
        steps: one for each pending migration.
        seconds: how long the rehearsal held its own transaction.
    """

    steps: list[RehearsedStep]
    seconds: float = 0.0

    @property
    def longest(self) -> tuple[RehearsedStep, HeldLock] | None:
        """The lock that blocks all sessions or writers for longest; None when none does."""
        found = [
            (step, lock)
            for step in self.steps
            for lock in step.locks
            if lock.stops != "maintenance"
        ]
        return max(found, key=lambda pair: pair[1].seconds, default=None)


def rehearse(target: str | SyncConnection, *, lock_policy: LockPolicy | None = None) -> Rehearsal:
    """Run the pending migrations without committing anything, and return the locks they took.

    Args:
        target: the address of a database, or a synchronous connection outside of a transaction.
        lock_policy: how to take locks; None means the defaults.

    Raises:
        SchemaError: as in ``migrate``; or a migration would hold its locks for too long.
        TransactionStateError: the connection is in a transaction.
        DatabaseUnavailable: the database cannot be reached, or locks were not granted in time.
    """
    lock_policy = lock_policy or LockPolicy()
    with raising_ours(), connection_to(target) as conn:
        if conn.info.transaction_status != TransactionStatus.IDLE:
            raise TransactionStateError("rehearse", "a transaction is open")
        with autocommitting(conn):
            until = time.monotonic() + lock_policy.patience_seconds
            for seconds in lock_policy.attempts():
                steps = pending_migrations(conn)
                if not steps or steps[0].version == 1:
                    return Rehearsal([RehearsedStep(step) for step in steps])
                tables = [name for step in steps for name in step.locks]
                waited_for = holder_of(conn, tables)
                attempt = _Attempt(conn, seconds, lock_policy)
                if waited_for is None:
                    try:
                        return attempt.run()
                    except NotGrantedError:
                        waited_for = holder_of(conn, tables, older_than_seconds=0.0)
                if time.monotonic() >= until:
                    why = f"{waited_for}" if waited_for else "other sessions hold its locks"
                    raise not_granted(attempt.at or steps[0], lock_policy.patience_seconds, why)
                time.sleep(10 * seconds)
    raise AssertionError


class _Attempt:
    """One run of all steps in one transaction."""

    def __init__(
        self, conn: psycopg.Connection[Any], seconds: float, lock_policy: LockPolicy
    ) -> None:
        self._conn = conn
        self._seconds = seconds
        self._lock_policy = lock_policy
        self.at: Migration | None = None

    def run(self) -> Rehearsal:
        with migrator_lock(self._conn, roll_back=True):
            began = time.monotonic()
            self._there = dict(self._rows(_TABLES))
            steps = [self._rehearsed(step) for step in pending_migrations(self._conn)]
            return Rehearsal(steps, time.monotonic() - began)

    def _rehearsed(self, step: Migration) -> RehearsedStep:
        done = RehearsedStep(step)
        if step.is_post:
            done.older_workers = self._older_workers(step)
        if step.is_outside:
            return done
        self.at = step
        before = self._held()
        since: dict[tuple[int, str], float] = {}
        began = requested_at = time.monotonic()
        locks_at = None
        running = run_step(
            self._conn,
            step,
            self._seconds,
            self._lock_policy.hold_seconds_max,
            require_gone=done.older_workers is None,
        )
        for statement in running:
            self._record(since, before, requested_at)
            if locks_at is None and statement.startswith("lock table"):
                locks_at = time.monotonic()
            elif locks_at is not None and not done.waited_seconds:
                done.waited_seconds = time.monotonic() - locks_at
                # Include locks that an earlier step of this rehearsal already has: the real step
                # takes them here.
                since |= {
                    key: time.monotonic()
                    for key in self._held()
                    if key[1] == "AccessExclusiveLock" and self._is_of(key[0], step)
                }
            requested_at = time.monotonic()
        self._record(since, before, requested_at)
        ended = time.monotonic()
        done.seconds = ended - began
        done.locks = self._summary(step, since, ended)
        return done

    def _older_workers(self, step: Migration) -> str | None:
        try:
            with self._conn.transaction(force_rollback=True):
                self._conn.execute(f"select forebay._require_gone({step.version})")
        except psycopg.Error as error:
            if error.sqlstate != _OLDER_RUN:
                raise
            return f"{error.diag.message_primary}\n{error.diag.message_detail}"
        return None

    def _held(self) -> set[tuple[int, str]]:
        rows = self._rows(
            "select l.relation, l.mode from pg_locks l where l.pid = pg_backend_pid()"
            " and l.locktype = 'relation' and l.granted"
        )
        return {(oid, mode) for oid, mode in rows if oid in self._there and mode in _STOPS}

    def _record(
        self, since: dict[tuple[int, str], float], before: set[tuple[int, str]], requested_at: float
    ) -> None:
        for key in self._held() - before:
            since.setdefault(key, requested_at)

    def _is_of(self, oid: int, step: Migration) -> bool:
        name = self._there[oid]
        return name in step.locks or (name == "log_#" and "log" in step.locks)

    def _summary(
        self, step: Migration, since: dict[tuple[int, str], float], ended: float
    ) -> list[HeldLock]:
        found: dict[tuple[str, str], list[tuple[float, bool]]] = {}
        for (oid, mode), at in since.items():
            key = (self._there[oid], mode)
            found.setdefault(key, []).append((ended - at, self._is_of(oid, step)))
        locks = [
            HeldLock(
                relation=name,
                count=len(held),
                mode=_sql_mode(mode),
                stops=_STOPS[mode],
                seconds=max(seconds for seconds, _ in held),
                declared=all(declared for _, declared in held),
            )
            for (name, mode), held in found.items()
        ]
        order = list(_STOPS.values())
        return sorted(
            locks, key=lambda lock: (order.index(lock.stops), -lock.seconds, lock.relation)
        )

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self._conn.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(statement).fetchall()


def _sql_mode(mode: str) -> str:
    """Return a lock mode as SQL statements write it.

    >>> _sql_mode("ShareRowExclusiveLock")
    'SHARE ROW EXCLUSIVE'
    """
    name = mode.removesuffix("Lock")
    return "".join(f" {letter}" if letter.isupper() else letter for letter in name).strip().upper()

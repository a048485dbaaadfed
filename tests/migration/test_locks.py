"""How a migration takes its locks while others work: docs/design/upgrades.md."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from forebay.errors import DatabaseUnavailable, SchemaError
from forebay.sql import latest_version
from forebay.upgrade import _blockers
from forebay.upgrade import _stepping as stepping
from forebay.upgrade.migrate import LockPolicy, migrate, upgrade
from tests.support.engine import connect, one
from tests.support.mutant import violation
from tests.support.waiting import wait_for

ADD_COLUMN = (
    "add_source",
    "-- locks: log\n\nalter table forebay.log add column source text;\n",
)
ENQUEUE = "select forebay.enqueue('work', '{}')"


def has_source(conn) -> bool:
    return one(
        conn,
        "select exists (select from pg_attribute where attrelid = 'forebay.log'::regclass"
        " and attname = 'source' and not attisdropped)",
    )


class Producer:
    """Enqueues again and again; knows how long the slowest took, and what went wrong."""

    def __init__(self, dsn: str) -> None:
        self.count = 0
        self.slowest = 0.0
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(dsn,))

    def __enter__(self) -> "Producer":
        self._thread.start()
        wait_for(lambda: self.count > 20)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.failures, self.failures

    def _run(self, dsn: str) -> None:
        try:
            with connect(dsn) as conn:
                while not self._stop.is_set():
                    began = time.monotonic()
                    conn.execute(ENQUEUE)
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self.count += 1
        except BaseException as error:
            self.failures.append(error)


def stranger_and_producer(dsn: str, release) -> float:
    """Migrate while a stranger's idle transaction holds the log.

    Return the slowest enqueue meanwhile.
    """
    (step,) = release(ADD_COLUMN)
    messages: list[str] = []
    with psycopg.connect(dsn, application_name="stranger") as stranger, connect(dsn) as conn:
        stranger.execute(ENQUEUE)
        wait_for(lambda: one(conn, "select clock_timestamp() > min(xact_start) + interval '1.2 s'"
                                   " from pg_stat_activity where application_name = "
                                           "'stranger'"))  # fmt: skip
        with Producer(dsn) as producer, ThreadPoolExecutor(1) as threads:
            migrating = threads.submit(upgrade, dsn, lock_policy=LockPolicy(report=messages.append))
            wait_for(lambda: messages or producer.slowest > 1.0)
            until = time.monotonic() + 1.5
            wait_for(lambda: time.monotonic() > until)
            assert not migrating.done()
            slowest = producer.slowest
            stranger.commit()
            assert migrating.result(timeout=20).applied == [step]
        assert has_source(conn)
    assert "stranger, idle in transaction" in messages[0]
    assert "forebay.log" in messages[0]
    return slowest


@pytest.mark.slow
def test_nobody_waits_behind_a_migration_that_waits_for_a_stranger(database, release):
    """
    While somebody's idle transaction holds the log the migration asks for no lock, says whom it
    waits for, and enqueues go on as before; when that transaction has ended it is applied.
    """
    assert stranger_and_producer(database, release) < 0.2


@pytest.mark.slow
def test_without_the_look_at_who_holds_a_lock_they_would(database, release, monkeypatch):
    """
    The mutant that asks for its locks at once and waits for them makes every enqueue wait as long.
    """
    monkeypatch.setattr(_blockers, "_OLD_SECONDS", 1e6)
    monkeypatch.setattr(LockPolicy, "attempts", lambda self: iter([0.49] * 1000))
    monkeypatch.setattr(stepping, "_PAUSE_FACTOR", 0.01)
    with violation():
        assert stranger_and_producer(database, release) < 0.2


@pytest.mark.slow
def test_a_migration_that_gets_no_lock_gives_up_and_says_who_holds_it(database, release):
    """
    After its patience the error names the session, its lock and its transaction's age; nothing was
    applied, and the same call succeeds later.
    """
    (step,) = release(ADD_COLUMN)
    with psycopg.connect(database, application_name="stranger") as stranger:
        stranger.execute("lock table forebay.log_3 in row exclusive mode")
        with pytest.raises(DatabaseUnavailable) as caught:
            upgrade(database, lock_policy=LockPolicy(patience_seconds=0.3))
        assert caught.value.retryable
        assert f"pid {stranger.info.backend_pid} (stranger" in str(caught.value.detail)
        assert "RowExclusiveLock on forebay.log_3" in str(caught.value.detail)
    assert migrate(database) == [step]


def test_a_forgotten_prepared_transaction_is_named_too(database, release):
    """
    It has no session; it is called by its name.
    """
    release(ADD_COLUMN)
    with connect(database) as conn:
        conn.execute("begin; lock table forebay.log_0 in row share mode; prepare transaction 'old'")
        try:
            with pytest.raises(DatabaseUnavailable) as caught:
                upgrade(database, lock_policy=LockPolicy(patience_seconds=0.3))
        finally:
            conn.execute("rollback prepared 'old'")
    assert "prepared transaction 'old'" in str(caught.value.detail)


def lock_crosswise(dsn: str, release) -> None:
    """Hold what a migration wants, and then want what it holds."""
    (step,) = release(("both", (
            "-- locks: lane, log\n\nalter table forebay.log add column source "
            "text;\n"
            )))  # fmt: skip
    messages: list[str] = []
    waiting = (
            "select count(*) from pg_locks where not granted and relation = "
            "'forebay.log'::regclass and waitstart < clock_timestamp() - interval '1.2 s'"
            )  # fmt: skip
    with psycopg.connect(dsn) as other, connect(dsn) as conn, ThreadPoolExecutor(1) as threads:
        other.execute("lock table forebay.log in row exclusive mode")
        migrating = threads.submit(upgrade, dsn, lock_policy=LockPolicy(report=messages.append))
        wait_for(lambda: messages or one(conn, waiting))
        other.execute("lock table forebay.lane in row exclusive mode")
        other.commit()
        assert migrating.result(timeout=20).applied == [step]


def test_in_a_deadlock_the_migration_gives_way(database, release):
    """
    Who holds what the migration wants and wants what it holds is served: the migration lets go
    before a deadlock is found, and comes back.
    """
    lock_crosswise(database, release)


@pytest.mark.slow
def test_with_longer_attempts_the_other_one_would_fail(database, release, monkeypatch):
    """
    The mutant that waits longer than ``deadlock_timeout`` has the other transaction ended as the
    deadlock's victim.
    """
    monkeypatch.setattr(stepping, "_DEADLOCK_SHARE", 100)
    monkeypatch.setattr(LockPolicy, "attempts", lambda self: iter([15.0] * 10))
    with violation(psycopg.errors.DeadlockDetected):
        lock_crosswise(database, release)


def test_locks_are_not_held_for_longer_than_said(database, release):
    """
    A migration that takes too long under its locks is rolled back; nothing of it is there.
    """
    release(("slow", ADD_COLUMN[1] + "select pg_sleep(30);\n"))
    began = time.monotonic()
    with pytest.raises(SchemaError, match=r"held its locks on .* for longer than 0\.3 s"):
        upgrade(database, lock_policy=LockPolicy(hold_seconds_max=0.3))
    assert time.monotonic() - began < 10
    with connect(database) as conn:
        assert not has_source(conn)
        assert one(conn, "select forebay.schema_version()") == latest_version() - 1


def maintenance_meanwhile(dsn: str, release) -> None:
    """Call the maintenance that makes and empties segments while a migration is in its
    transaction.
    """
    (step,) = release(ADD_COLUMN)
    with psycopg.connect(dsn) as migrator, connect(dsn) as conn:
        conn.execute("select forebay.configure('reserve_rows', 70000000)")
        with migrator.transaction():
            for _ in stepping.run_step(migrator, step, 1.0, 5.0):
                pass
            assert one(conn, "select forebay.extend_v1()") == 0
            assert one(conn, "select emptied from forebay.retain_v1()") is None
        assert one(conn, "select forebay.extend_v1()") > 0
        missing = conn.execute(
            "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
            " where i.inhparent = 'forebay.log'::regclass and not exists (select from "
            "pg_attribute a"
            " where a.attrelid = c.oid and a.attname = 'source')"
        ).fetchall()
        assert not missing


@pytest.mark.slow
def test_maintenance_pauses_and_does_not_wait(database, release):
    """
    Maintenance that would make or empty segments while a migration is at work returns at once, and
    finds its turn later; segments from before and from after have the new column.
    """
    maintenance_meanwhile(database, release)


@pytest.mark.slow
def test_without_its_locks_maintenance_would_wait_and_fail(database, release, monkeypatch):
    """
    The mutant that does not take the locks of maintenance lets it run into the migration's locks.
    """
    monkeypatch.setattr(stepping, "_MAINTENANCE_LOCKS", "only forebay.lock_trim")
    with violation(psycopg.errors.LockNotAvailable):
        maintenance_meanwhile(database, release)


def test_a_migration_waits_while_segments_are_made(database, release):
    """
    Making segments is not cut off by a migration either: it waits for its turn, within its
    patience.
    """
    (step,) = release(ADD_COLUMN)
    messages: list[str] = []
    with psycopg.connect(database) as maintenance, connect(database) as conn:
        conn.execute("select forebay.configure('reserve_rows', 70000000)")
        assert one(maintenance, "select forebay.extend_v1()") > 0
        with ThreadPoolExecutor(1) as threads:
            migrating = threads.submit(
                upgrade, database, lock_policy=LockPolicy(report=messages.append)
            )
            wait_for(lambda: messages)
            maintenance.commit()
            assert migrating.result(timeout=20).applied == [step]


def copy_rows_meanwhile(dsn: str, release, copy: str) -> None:
    """Begin to write rows twice and copy what is there, while somebody has written a row in the
    old way.
    """
    release(
        ("twice", "create table forebay.copied (job_id bigint primary key);"),
        ("copy", f"{copy}insert into forebay.copied select job_id from forebay.failure;"),
    )
    with psycopg.connect(dsn) as writer, ThreadPoolExecutor(1) as threads:
        writer.execute(
            "insert into forebay.failure (job_id, group_id, enqueued_at, attempt, "
            "failed_at, outcome)"
            " values (1, 1, now(), 1, now(), 'retried')"
        )
        messages: list[str] = []
        migrating = threads.submit(upgrade, dsn, lock_policy=LockPolicy(report=messages.append))
        wait_for(lambda: messages or migrating.done())
        writer.commit()
        migrating.result(timeout=20)
    with connect(dsn) as conn:
        assert one(conn, "select count(*) from forebay.copied") == 1


def test_rows_are_copied_when_all_have_ended_that_wrote_in_the_old_way(database, release):
    """
    A migration that says so waits for writing transactions that began before it.
    """
    copy_rows_meanwhile(database, release, "-- after all that has begun\n")


def test_without_waiting_for_them_a_row_would_be_missed(database, release):
    """
    The mutant that does not wait copies before the last row of the old way is committed.
    """
    with violation():
        copy_rows_meanwhile(database, release, "")

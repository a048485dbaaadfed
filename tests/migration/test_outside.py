"""What is committed statement by statement: indexes on large tables, and what is done to each
segment.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from forebay.sql import latest_version
from forebay.upgrade import _stepping as stepping
from forebay.upgrade.migrate import LockPolicy, migrate, migration_sql, upgrade
from tests.support.engine import connect, one
from tests.support.waiting import wait_for

INDEX = (
    "index_settlements",
    """-- outside a transaction
drop index concurrently if exists forebay.settlement_by_time;
create index concurrently settlement_by_time on forebay.settlement (settled_at);
""",
)
EACH = (
    "index_each_segment",
    """-- for each segment
drop index concurrently if exists forebay.log_{segment}_tag;
create index concurrently log_{segment}_tag on forebay.log_{segment} (tag);
""",
)
BUILT = (
        "select coalesce(bool_and(indisvalid), false) from pg_index where indexrelid = "
        "to_regclass(%s)"
        )  # fmt: skip


def counts(conn) -> tuple[int, int]:
    return (
        one(conn, "select count(*) from forebay.segment"),
        one(conn, "select count(*) from pg_class where relname ~ '^log_\\d+_tag$'"),
    )


def test_an_index_is_built_beside_open_transactions_that_write(database, release):
    """
    Somebody's open transaction that has written to the table is waited for, and nobody waits
    meanwhile: not for the index, and not for the migrator.
    """
    (step,) = release(INDEX)
    with psycopg.connect(database) as writer, connect(database) as conn:
        writer.execute("lock table forebay.settlement in row exclusive mode")
        with ThreadPoolExecutor(2) as threads:
            running = threads.submit(migrate, database)
            wait_for(
                lambda: one(conn, "select count(*) from pg_stat_progress_create_index") or None
            )
            second = threads.submit(migrate, database)
            conn.execute(
                    "set lock_timeout = '1s'; lock table forebay.settlement in row exclusive "
                    "mode"
                    )  # fmt: skip
            assert not running.done()
            writer.commit()
            assert running.result(timeout=30) == [step]
            assert second.result(timeout=30) == []
        assert one(conn, BUILT, "forebay.settlement_by_time")


def test_a_build_that_was_cut_off_is_begun_anew(database, release):
    """
    What a crash leaves is an invalid index and no record of the migration; the next call drops it
    and builds it.
    """
    (step,) = release(INDEX)
    with psycopg.connect(database) as writer, connect(database) as conn:
        writer.execute("lock table forebay.settlement in row exclusive mode")
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(migrate, database)
            pid = wait_for(
                lambda: one(conn, "select max(pid) from pg_stat_progress_create_index") or None
            )
            conn.execute("select pg_terminate_backend(%s)", [pid])
            with pytest.raises(Exception, match=r"terminat|unavailable"):
                running.result(timeout=20)
    with connect(database) as conn:
        assert one(conn, BUILT, "forebay.settlement_by_time") is False
        assert one(conn, "select forebay.schema_version()") == step.version - 1
        assert migrate(database) == [step]
        assert one(conn, BUILT, "forebay.settlement_by_time") is True


@pytest.mark.slow
def test_each_segment_is_served_and_those_that_were_are_served_again(
    database, release, monkeypatch
):
    """
    A migration for each segment may die in the middle; begun anew it ends with all of them.
    """
    said: list[str] = []
    (step,) = release(EACH)
    monkeypatch.setattr(stepping, "_REPORT_SEGMENT_SECONDS", 0)

    class CutOff(Exception):
        pass

    def tell(text: str) -> None:
        said.append(text)
        if "segment 3 of" in text:
            raise CutOff

    with connect(database) as conn:
        with pytest.raises(CutOff):
            upgrade(database, lock_policy=LockPolicy(report=tell))
        segments, built = counts(conn)
        assert built == 2
        assert migrate(database) == [step]
        assert counts(conn) == (segments, segments)
    assert said[0] == f"{step.version:04} index_each_segment: segment 1 of {segments}"


@pytest.mark.slow
def test_in_a_transaction_or_a_script_the_same_is_done_under_a_lock(
    database, empty_database, release
):
    """
    Alembic, Django and psql run everything in one transaction: the indexes are built there, without
    CONCURRENTLY.
    """
    version = latest_version()
    steps = release(INDEX, EACH)
    with psycopg.connect(database) as caller:
        caller.execute("select 1")
        assert migrate(caller) == steps
        caller.rollback()
    script = migration_sql(version)
    assert "concurrently" not in script.replace("-- outside", "")
    with connect(database) as conn:
        conn.execute(script)
        segments, built = counts(conn)
        assert segments == built
    migrate(empty_database)
    with connect(empty_database) as conn:
        assert counts(conn) == (segments, segments)
        assert one(conn, BUILT, "forebay.settlement_by_time")


def test_two_migrators_build_one_index(database, release):
    """
    The second does not wait in a way that the first one's index would wait for.
    """
    release(INDEX)
    barrier = threading.Barrier(2)

    def run() -> int:
        barrier.wait(10)
        return len(migrate(database))

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(run) for _ in range(2)]
        assert sorted(each.result(timeout=30) for each in both) == [0, 1]

"""A cursor never passes what its own transaction writes later.

A session's snapshot does not list the session's own transaction as in progress. Where a later
transaction has ended first, the snapshot shows the own one as ended, and a cursor that stops there
would pass its rows unread.
"""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, enqueue_many, lane_of, one
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for

#: The snapshot as the server gives it.
PLAIN = ("(v_own < pg_snapshot_xmax(v_snap)) is not true", "true")


def end_a_later_transaction(dsn: str) -> None:
    """Draw a transaction id and commit."""
    with connect(dsn) as conn:
        conn.execute("select pg_current_xact_id()")


def claim_after_new_limits(dsn: str) -> None:
    """
    The limits of a queue have just changed, so a claim first records the jobs in flight, and has a
    transaction id when it reads. It parks jobs and gives their key a turn. The turn is read later,
    and every job gets its run.
    """
    with (
        Reader(dsn, "q") as reader,
        psycopg.connect(dsn) as other,
        connect(dsn) as conn,
        ThreadPoolExecutor(1) as threads,
    ):
        one(conn, "select forebay.limit_queue('q', key_concurrency => 5)")
        jobs = enqueue_many(conn, [{"kind": "work", "queue": "q", "limit_key": "a"}] * 20)
        batches = [reader.claim_ready(2)]
        assert len(batches[0].jobs) == 2
        one(conn, "select forebay.limit_queue('q', key_concurrency => 6)")
        lane = one(conn, "select forebay._limited_lane_id('q', 100, %s)", reader.group_id)
        other.execute("select forebay._lock_lane(%s, %s)", [reader.group_id, lane])
        claim = threads.submit(reader.claim, 2, lane)
        blocked = "select cardinality(pg_blocking_pids(%s)) > 0"
        wait_for(lambda: one(conn, blocked, reader.conn.info.backend_pid))
        end_a_later_transaction(dsn)
        other.rollback()
        batches.append(claim.result(20))
        done = []
        while batches:
            batch = batches.pop(0)
            if batch.jobs:
                done += batch.job_ids
                reader.settle(batch.claim_no)
                batches.append(reader.claim_ready(2))
        assert sorted(done) == jobs


def test_a_turn_that_a_claim_gives_is_read_later(database):
    claim_after_new_limits(database)


def test_a_turn_is_lost_with_the_plain_snapshot(database):
    break_function(database, "_snapshot_of_others", PLAIN)
    with violation():
        claim_after_new_limits(database)


def jobs_of_one_transaction(dsn: str, act: str) -> list[int]:
    """
    Enqueue a job, act, and enqueue another, in one transaction that a later one overtakes before it
    acts. Return the places of the jobs that a reader of the queue's default group gets.
    """
    with connect(dsn) as conn:
        conn.execute("begin")
        jobs = [enqueue(conn, queue="q")]
        end_a_later_transaction(dsn)
        conn.execute(act)
        jobs.append(enqueue(conn, queue="q"))
        conn.execute("commit")
        wait_for(lambda: not one(conn, "select forebay.close_groups()"))
    with Reader(dsn, "q") as reader:
        found = reader.claim(10, lane_of("q", reader.conn)).job_ids
    return [jobs.index(job) for job in found]


OPEN = "select forebay.open_group('q', start => 'now')"


def test_a_group_that_starts_now_gets_the_jobs_of_its_own_transaction(database):
    assert jobs_of_one_transaction(database, OPEN) == [0, 1]


def test_a_group_loses_jobs_with_the_plain_snapshot(database):
    break_function(database, "_snapshot_of_others", PLAIN)
    assert jobs_of_one_transaction(database, OPEN) == []


@pytest.mark.parametrize("is_broken", [False, True])
def test_jobs_of_the_transaction_that_closes_a_group_wait_for_the_next(database, conn, is_broken):
    if is_broken:
        break_function(database, "_snapshot_of_others", PLAIN)
    one(conn, "select forebay.open_group('q')")
    found = jobs_of_one_transaction(database, "select forebay.close_group('q')")
    assert found == ([] if is_broken else [0, 1])


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_only_the_own_transaction_is_left_out(database, conn, is_overtaken):
    conn.execute("begin")
    own = one(conn, "select pg_current_xact_id()::text::bigint")
    if is_overtaken:
        end_a_later_transaction(database)
    seen = conn.execute(
        "select pg_visible_in_snapshot(x::text::xid8, s), pg_visible_in_snapshot(x::text::xid8, p)"
        " from forebay._snapshot_of_others() s, pg_current_snapshot() p, "
        "generate_series(%s::bigint, %s + 2) x order by x",
        [own - 1, own],
    ).fetchall()
    conn.execute("rollback")
    assert [found for found, _ in seen] == [True, False, is_overtaken, False]
    assert [found for _, found in seen] == [True, is_overtaken, is_overtaken, False]

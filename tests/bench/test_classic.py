"""The ordinary queue that ours is compared with does what it should."""

import contextlib

import pytest

from forebay_bench import Place
from forebay_bench._engine import runner
from forebay_bench.engines import classic
from forebay_bench.engines.classic_queue import ClassicQueue
from tests.support.engine import connect, one
from tests.support.waiting import wait_for


@pytest.fixture
def table(empty_database):
    with connect(empty_database) as conn:
        classic.create(conn)
        yield conn


def test_each_job_is_handed_out_once_in_order(table, empty_database):
    """
    Two claimers, one in an open transaction, get different jobs; together all of them, the oldest
    first.
    """
    classic.fill(table, 10)
    with connect(empty_database) as other, other.transaction():
        first = classic.claim(other, 4)
        second = classic.claim(table, 10)
    ids = [sorted(job[0] for job in jobs) for jobs in (first, second)]
    assert ids == [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10]]
    assert classic.claim(table, 10) == []


def test_a_claim_keeps_its_limit_whatever_the_statistics_say(empty_database):
    """
    With those of an empty table, as after a while without waiting jobs, and with the plans that the
    benchmarks allow.
    """
    with contextlib.closing(ClassicQueue(empty_database)) as queue:
        queue.conn.execute("alter table classic_job set (autovacuum_enabled = false)")
        for _ in range(3):
            queue.enqueue(500)
            queue.end(queue.claim(500), [])
            queue.conn.execute("analyze classic_job")
        queue.enqueue(20)
        assert [len(queue.claim(3)) for _ in range(3)] == [3, 3, 3]


def test_a_finished_job_is_gone_and_a_retried_one_comes_again(table):
    """
    With an attempt more.
    """
    classic.fill(table, 2)
    classic.claim(table, 2)
    classic.finish(table, [1])
    classic.retry(table, [2])
    ((job_id, kind, args, attempts, _run_at),) = classic.claim(table, 2)
    assert (job_id, kind, args, attempts) == (2, "noop", {"i": 2}, 2)
    assert one(table, "select count(*) from classic_job") == 1


def test_a_delayed_job_waits(table):
    """
    It is not handed out before its time.
    """
    classic.fill(table, 1, delay_seconds=60)
    assert classic.claim(table, 1) == []


def test_dead_rows_are_counted(table):
    """
    By the server's statistics, which know them a moment later.
    """
    table.execute("alter table classic_job set (autovacuum_enabled = off)")
    assert classic.dead_rows(table) == 0
    classic.fill(table, 20)
    classic.finish(table, [job[0] for job in classic.claim(table, 20)])
    # An update and a delete: two dead rows for each job.
    wait_for(lambda: classic.dead_rows(table) == 40, 10, lambda: str(classic.dead_rows(table)))


@pytest.mark.slow
def test_its_loop_empties_the_table(server):
    """
    As an engine it ends what was enqueued, and leaves nothing.
    """

    def create(dsn: str) -> None:
        with connect(dsn) as conn:
            classic.create(conn)

    place = Place(server.dsn(), is_own=False)
    with runner("classic", place, create=create) as process:
        process.call("fill", count=1100)
        assert process.call("drain", handler="")["ended"] == 1100
        with connect(process.dsn) as conn:
            assert one(conn, "select count(*) from classic_job") == 0

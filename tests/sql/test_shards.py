"""Sharded queues: jobs spread over several public lanes, so that claims need not take turns."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.sql.test_unique import wait_until_one_waits
from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    lane_of,
    one,
    open_groups_apart,
    sqlstate,
    state,
)

BULK = (
    "select forebay.enqueue_many('work', array(select '{}'::jsonb from generate_series(1, "
    "%s)), 'q')"
)


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def public_lanes(conn: psycopg.Connection, queue: str = "q") -> list[int]:
    rows = conn.execute(
        (
            "select distinct shard, lane from forebay.lane where queue = %s and audience = 0 "
            "and sort = 'plain' order by shard"
        ),
        [queue],
    ).fetchall()
    return [lane for _, lane in rows]


@pytest.mark.parametrize("queues", ["ab", "ba"])
@pytest.mark.parametrize("unique", [False, True])
def test_shards_added_during_a_bulk_call_hide_no_job(database, conn, unique, queues):
    """
    The call deals its jobs out over the lanes that it noted, whatever is committed meanwhile.
    """
    old, new = queues
    one(conn, "select forebay.shard_queue(%s, 2)", old)
    enqueue_many(conn, [{"kind": "work", "queue": old}] * 4)
    jobs: list[dict[str, Any]] = [
        {"kind": "work", "queue": old} | ({"unique_as": {"once": f"key {n}"}} if unique else {})
        for n in range(16)
    ]
    jobs.append(jobs[0] | {"queue": new})  # Its lane has to be noted, which waits.
    with psycopg.connect(database) as stranger, ThreadPoolExecutor(1) as beside:
        stranger.execute("lock table forebay.lane in share mode")
        with connect(database) as producer:
            ids = beside.submit(enqueue_many, producer, jobs)
            wait_until_one_waits(conn)
            one(conn, "select forebay.shard_queue(%s, 8)", old)
            stranger.commit()
            expected = set(ids.result(10)[:16])
    with Reader(database, queue=old) as reader:
        assert expected <= {job_id for batch in reader.claim_all() for job_id in batch.job_ids}


def test_jobs_of_a_sharded_queue_lie_in_several_lanes_and_each_is_handed_out_once(database, conn):
    """However they were enqueued: singly, in bulk of either form, or for later."""
    assert one(conn, "select forebay.shard_queue('q', 4)") == 1
    jobs = [enqueue(conn, queue="q") for _ in range(40)]
    jobs += enqueue_many(conn, [{"kind": "work", "queue": "q"}] * 40)
    jobs += enqueue_many(conn, [{"kind": "work", "queue": "q", "delay": 0.001}] * 20)
    assert one(conn, BULK, 40) == 40
    assert len(public_lanes(conn)) == 4
    while one(conn, "select forebay.promote_v1(1000)"):
        pass
    with Reader(database, "q") as reader:
        assert depth(conn, "q") == {"default": (140, 0, 0)}
        lanes = [lane["lane"] for lane in reader.ready()]
        assert sorted(lanes) == sorted(public_lanes(conn))
        claimed = Counter()
        sizes = []
        for batch in reader.claim_all():
            claimed.update(batch.job_ids)
            sizes.append(len(batch.jobs))
            reader.finish(batch)
    assert min(sizes) >= 25  # Of each bulk a quarter; the singles fall where they may.
    assert set(claimed.values()) == {1}
    assert len(claimed) == 140
    assert set(jobs) <= set(claimed)


def test_a_claim_of_one_lane_does_not_wait_for_a_claim_of_another(database, conn):
    """Somebody holds the lock of one lane; the jobs of the other are handed out meanwhile."""
    conn.execute("select forebay.shard_queue('q', 2)")
    one(conn, BULK, 20)
    held, free = public_lanes(conn)
    group = open_groups_apart(conn, {"q": [held, free]})["q"]
    with Reader(database, "q") as reader, psycopg.connect(database) as other:
        reader.group_id = group
        other.execute("select forebay._lock_lane(%s, %s)", [reader.group_id, held])
        reader.conn.execute("set lock_timeout = '200ms'")
        assert len(reader.claim(20, free).jobs) == 10
        with pytest.raises(psycopg.errors.LockNotAvailable):
            reader.claim(20, held)
        other.rollback()
        assert len(reader.claim(20, held).jobs) == 10


def test_a_queue_keeps_the_order_of_its_jobs_again(database, conn):
    """From then on; what was spread before is handed out from where it is, and only the named
    queue is meant.
    """
    conn.execute("select forebay.shard_queue('q', 8)")
    one(conn, BULK, 80)
    assert one(conn, "select forebay.shard_queue('q', 1)") == 8
    later = [enqueue(conn, queue="q") for _ in range(20)]
    later += enqueue_many(conn, [{"kind": "work", "queue": "q"}] * 5)
    others = [enqueue(conn, queue="other") for _ in range(5)]
    assert public_lanes(conn, "other") == [lane_of("other", conn)]
    with Reader(database, "q") as reader, Reader(database, "other") as other:
        first = reader.claim(1000)  # Of the one lane the queue has always had.
        assert first.job_ids[-25:] == later
        assert len(first.jobs) == 10 + 25
        reader.finish(first)
        assert sum(len(batch.jobs) for batch in reader.claim_all()) == 70
        assert other.claim(10).job_ids == others


def test_a_queue_is_sharded_when_the_callers_transaction_commits(database, conn):
    """Rolled back, the queue keeps its order, though some statement asked for another."""
    with psycopg.connect(database) as caller:
        caller.execute("select forebay.shard_queue('q', 4)")
        one(caller, BULK, 8)
        caller.rollback()
    one(conn, BULK, 8)
    assert public_lanes(conn) == [lane_of("q", conn)]


def test_a_retry_of_a_sharded_queues_job_is_for_its_group_alone(database, conn):
    """It goes to the group's own lane as any retry does, and there is one of it."""
    conn.execute("select forebay.shard_queue('q', 4)")
    with Reader(database, "q", "one") as first, Reader(database, "q", "two") as second:
        job = enqueue(conn, queue="q")
        batch = first.claim_ready()
        first.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "retried"}])
        assert [b.job_ids for b in first.claim_all()] == [[job]]
        assert [b.job_ids for b in second.claim_all()] == [[job]]
        assert state(conn, job, "one") == state(conn, job, "two") == "claimed"


@pytest.mark.parametrize(
    ("queue", "lanes"), [("", 2), (None, 2), ("a b", 2), ("q", 0), ("q", 65), ("q", None)]
)
def test_a_queue_is_not_sharded_into_nonsense(conn, queue, lanes):
    """A bad name or number is refused, and nothing is noted."""
    assert sqlstate(conn, "select forebay.shard_queue(%s, %s)", queue, lanes) == "JQ001"
    assert one(conn, "select count(*) from forebay.queue_shards") == 0

"""Very many at once: jobs due in the same second, idle workers, keys."""

import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

import forebay
from tests.support.engine import Reader, connect, depth, enqueue, enqueue_many, one
from tests.support.fix_worker import running
from tests.support.waiting import wait_for, wait_for_async


def defer(conn, count: int, seconds: float) -> float:
    """Schedule so many jobs for one instant, by the database's clock; return it."""
    at = one(conn, "select extract(epoch from clock_timestamp())::float8 + %s", seconds)
    for first in range(0, count, 50_000):
        conn.execute(
            "select forebay.enqueue_many('work', array(select jsonb_build_object('entry', g)"
            " from generate_series(%s::int, %s::int) g), run_at => to_timestamp(%s))",
            [first + 1, min(first + 50_000, count), at],
        )
    return at


def urgent_milliseconds(reader: Reader, conn) -> float:
    """Return how long it takes to enqueue an urgent job, to find its lane ready and to claim it."""
    began = time.monotonic()
    job = enqueue(conn, priority=0)
    assert any(lane["priority"] == 0 for lane in reader.ready())
    batch = reader.claim(1, priority=0)
    took = (time.monotonic() - began) * 1000
    assert batch.job_ids == [job]
    reader.finish(batch)
    return took


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


@pytest.mark.anyio
async def test_thousands_due_in_the_same_second_run_once_and_not_early(app, conn):
    """
    Five thousand jobs of one instant: none before it, each once, and an urgent one that comes in
    the middle of them is not kept waiting.
    """
    ran: Counter[int] = Counter()
    early: list[int] = []
    waited: list[float] = []
    due = 0.0

    @app.batch_job(size=200)
    async def work(jobs: list[forebay.Job]) -> None:
        if time.time() < due - 0.01:
            early.extend(job.args["entry"] for job in jobs)
        ran.update(job.args["entry"] for job in jobs)

    @app.job(priority=0)
    async def urgent(sent_at: float) -> None:
        waited.append(time.monotonic() - sent_at)

    async with running(app, concurrency=4):
        due = defer(conn, 5000, 1)
        await wait_for_async(lambda: ran, 30)
        for n in range(5):
            urgent.enqueue(conn, time.monotonic())
            await wait_for_async(lambda n=n: len(waited) == n + 1, 30)
        await wait_for_async(lambda: len(ran) == 5000, 60)
        await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0), 30)
    print(f"urgent jobs waited {[round(seconds * 1000) for seconds in waited]} ms")
    assert early == []
    assert set(ran.values()) == {1}
    assert sorted(waited)[2] < 1


@pytest.mark.slow
@pytest.mark.nightly
def test_a_hundred_thousand_due_at_once_are_promoted_in_bounded_calls(conn, database, is_long):
    """
    In calls of five thousand, five thousand a second and more, whatever else has to be done has its
    turn in between: urgent jobs that come meanwhile are claimed as they were before.
    """
    count = 1_000_000 if is_long else 100_000
    with Reader(database) as reader, connect(database) as maintenance:
        at = defer(conn, count, count / 20_000)
        urgent_milliseconds(reader, conn)
        before = [urgent_milliseconds(reader, conn) for _ in range(50)]
        due = "select clock_timestamp() > to_timestamp(%s)"
        wait_for(lambda: one(conn, due, at), 120)
        assert one(conn, "select count(*) from forebay.deferred") == count
        during: list[float] = []
        calls: list[float] = []
        promoted = 0
        while promoted < count:
            began = time.monotonic()
            found = one(maintenance, "select forebay.promote_v1(5000)")
            calls.append(time.monotonic() - began)
            assert 0 < found <= 5000
            promoted += found
            during += [urgent_milliseconds(reader, conn) for _ in range(3)]
        rate = count / sum(calls)
        print(
            f"{rate:,.0f} promoted per second, longest call {max(calls) * 1000:.0f} ms; "
            f"urgent jobs, p50 and p99:"
            f" {percentile(before, 0.5):.1f} {percentile(before, 0.99):.1f} ms before,"
            f" {percentile(during, 0.5):.1f} {percentile(during, 0.99):.1f} ms meanwhile"
        )
        assert rate >= 5000
        assert percentile(during, 0.5) <= 3 * percentile(before, 0.5) + 10
        handed = 0
        while (batch := reader.claim(5000)).jobs:
            handed += len(batch.jobs)
            reader.finish(batch)
        assert handed == count
    assert depth(conn)["default"] == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.direct
async def test_ten_idle_workers_ask_little_more_than_one_and_start_a_job_once(app, conn):
    """
    What they ask while nothing is to be done hardly grows with their number; one job then starts
    once, and of many jobs each starts once, soon.
    """
    started: list[tuple[int, float]] = []

    @app.job
    async def work(number: int, sent_at: float) -> None:
        started.append((number, time.monotonic() - sent_at))

    def transactions() -> int:
        conn.execute("select pg_stat_clear_snapshot()")
        query = (
            "select xact_commit + xact_rollback from pg_stat_database where datname = "
            "current_database()"
        )
        return one(conn, query)

    async def idle_rate() -> float:
        before, began = transactions(), time.monotonic()
        # What is measured is a rate, so time has to pass.
        await wait_for_async(lambda: time.monotonic() > began + 2)
        return (transactions() - before - 2) / (time.monotonic() - began)

    settings = {"poll_seconds": 0.1, "heartbeat_seconds": 1.0, "concurrency": 2}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(app, **settings))
        await wait_for_async(lambda: one(conn, "select count(*) from forebay.heartbeat") >= 1)
        alone = await idle_rate()
        for _ in range(9):
            await stack.enter_async_context(running(app, **settings))
        # Those who come look around before they come to rest.
        until = time.monotonic() + 2
        await wait_for_async(lambda: time.monotonic() > until)
        together = await idle_rate()
        print(f"{alone:.0f} transactions per second alone, {together:.0f} of ten")
        assert together < alone + 9 * 4
        work.enqueue(conn, 0, time.monotonic())
        await wait_for_async(lambda: len(started) == 1, 30)
        work.enqueue_many(conn, [(n, time.monotonic()) for n in range(1, 101)])
        await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0), 20)
    assert sorted(number for number, _ in started) == list(range(101))
    print(f"first after {started[0][1] * 1000:.0f} ms")
    assert started[0][1] < 2


@pytest.mark.slow
@pytest.mark.nightly
def test_very_many_keys_and_one_with_most_of_the_jobs(conn, database, is_long):
    """
    Nearly every job has an ordering key of its own, one key has a tenth of them all, and a claim
    holds that one: the others are handed out beside it, claims at the end cost what they did at
    first, and each job is handed out once.
    """
    count = 500_000 if is_long else 20_000
    hot = 0
    for first in range(0, count, 10_000):
        jobs = []
        for n in range(first, first + 10_000):
            is_hot = n % 10 == 0
            hot += is_hot
            jobs.append({"kind": "work", "ordering_key": "hot" if is_hot else f"key {n}"})
        enqueue_many(conn, jobs)
    handed: Counter[int] = Counter()
    milliseconds: list[float] = []
    with Reader(database) as reader, Reader(database) as other:
        # The first claim takes a run of the hot key, and others'; it is kept open for a while.
        held = other.claim_ready(100)
        handed.update(held.job_ids)

        def claim() -> int:
            began = time.monotonic()
            batch = reader.claim_ready(500)
            milliseconds.append((time.monotonic() - began) * 1000)
            handed.update(batch.job_ids)
            if batch.jobs:
                reader.finish(batch)
            return len(batch.jobs)

        while claim():
            pass
        # All but the hot key's have been worked off beside it.
        assert len(handed) >= count - hot
        other.finish(held)
        wait_for(lambda: not claim() and depth(conn)["default"] == (0, 0, 0), 60)
    assert len(handed) == count
    assert set(handed.values()) == {1}
    full = milliseconds[: count // 500]
    first, last = full[5 : len(full) // 4], full[-len(full) // 4 :]
    print(
        f"{percentile(first, 0.5):.1f} ms a claim at first, {percentile(last, 0.5):.1f} ms at last"
    )
    assert percentile(last, 0.5) < 3 * percentile(first, 0.5) + 5

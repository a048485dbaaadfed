"""A worker obeys the limits of a queue, fills the slots that it allows, and serves limit keys
evenly.
"""

import asyncio
import time
from collections import Counter

import pytest

from forebay import Job, RetryPolicy
from tests.support.engine import enqueue_many, one
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)


def put(conn, key: str | None, count: int) -> list[int]:
    """Enqueue so many jobs of a key."""
    return enqueue_many(conn, [{"kind": "work", "limit_key": key, "args": {"key": key}}] * count)


class Room:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.inside: Counter[str | None] = Counter()
        self.most: Counter[str | None] = Counter()
        self.most_of_all = 0
        self.done: list[str | None] = []

    def enter(self, key: str | None) -> None:
        self.inside[key] += 1
        self.most[key] = max(self.most[key], self.inside[key])
        self.most_of_all = max(self.most_of_all, self.inside.total())

    def leave(self, key: str | None) -> None:
        self.inside[key] -= 1
        self.done.append(key)


@pytest.mark.parametrize("sort", ["coroutine", "thread", "transaction", "batch"])
async def test_no_more_run_at_once_than_the_limits_allow(app, conn, sort):
    """Of each key and of all together, whatever sort of handler they have, also when attempts
    fail.
    """
    room = Room()
    seen: set[int] = set()

    def work(key: str | None) -> None:
        room.enter(key)
        time.sleep(0.005)
        room.leave(key)

    if sort == "coroutine":

        @app.job(name="work", retry=AT_ONCE)
        async def handler(ctx, key: str | None) -> None:
            room.enter(key)
            await asyncio.sleep(0.005)
            room.leave(key)
            if ctx.job.job_id % 5 == 0 and ctx.job.job_id not in seen:
                seen.add(ctx.job.job_id)
                room.done.pop()
                raise ValueError(key)

    elif sort == "batch":

        @app.batch_job(name="work", size=10)
        async def handler(jobs: list[Job]) -> None:
            for job in jobs:
                room.enter(job.args["key"])
            await asyncio.sleep(0.005)
            for job in jobs:
                room.leave(job.args["key"])

    else:
        app.job(name="work", transaction=sort == "transaction")(work)

    one(conn, "select forebay.limit_queue('default', concurrency => 5, key_concurrency => 2)")
    for key in ("a", "b", "c", "d", None):
        put(conn, key, 12)
    await run_until_idle(app, concurrency=10)
    assert len(room.done) == 60
    assert room.most_of_all <= 5
    assert all(room.most[key] <= 2 for key in "abcd")


async def test_the_slots_that_the_limits_allow_are_used(app, conn):
    """A job that is settled makes room for the next one at once, not at the next poll."""
    ends: list[float] = []

    @app.job(name="work")
    async def handler(key: str) -> None:
        await asyncio.sleep(0.05)
        ends.append(time.monotonic())

    one(conn, "select forebay.limit_queue('default', concurrency => 3)")
    put(conn, "a", 30)
    async with running(app, concurrency=10, poll_seconds=2.0):
        await wait_for_async(lambda: len(ends) == 30)
    # Ten rounds of 50 ms, and some time to settle and claim; a poll each would take 20 s.
    assert ends[-1] - ends[0] < 5


@pytest.mark.parametrize("declared", ["default", "elsewhere"])
async def test_nothing_is_claimed_in_advance(app, conn, declared):
    """A job that waits in a worker would count as running, also in a queue that no handler
    names.
    """

    @app.job(name="work", queue=declared)
    async def handler(key: str) -> None:
        """Short, so that the worker would claim many in advance."""

    one(conn, "select forebay.limit_queue('default', concurrency => 1000)")
    put(conn, "a", 200)
    await run_until_idle(app, queue="default", concurrency=4)
    sizes = conn.execute("select cardinality(seqs) from forebay.batch where seqs is not null")
    assert max(size for (size,) in sizes) == 4


@pytest.mark.slow
async def test_who_has_little_does_not_wait_for_who_has_much(app, conn):
    """The jobs of the small key end among the first, though the other's were there before."""
    room = Room()

    @app.job(name="work")
    async def handler(key: str) -> None:
        room.enter(key)
        await asyncio.sleep(0)
        room.leave(key)

    put(conn, "greedy", 2000)
    put(conn, "small", 10)
    await run_until_idle(app, concurrency=4, ahead_seconds=0.0)
    assert len(room.done) == 2010
    assert max(n for n, key in enumerate(room.done) if key == "small") < 60


async def test_a_rate_is_kept_and_a_permit_that_is_due_is_found(app, conn):
    """Ten a second, with a burst of one: the starts are a tenth of a second apart."""
    starts: list[float] = []

    @app.job(name="work")
    async def handler(key: str | None) -> None:
        starts.append(time.monotonic())

    one(conn, "select forebay.limit_queue('default', rate => 10, burst => 1)")
    put(conn, None, 20)
    async with running(app, concurrency=10):
        await wait_for_async(lambda: len(starts) >= 8)
    assert starts[7] - starts[0] > 0.6


async def test_a_worker_at_a_closed_limiter_does_not_poll_more_than_an_idle_one(app, conn):
    """While a job runs and others wait for its slot, the worker asks once a poll and claims
    nothing.
    """
    end = asyncio.Event()
    began = asyncio.Event()

    @app.job(name="work")
    async def handler(key: str | None) -> None:
        began.set()
        await end.wait()

    one(conn, "select forebay.limit_queue('default', concurrency => 1)")
    put(conn, "a", 5)
    async with running(app, concurrency=10, poll_seconds=0.1) as worker:
        await began.wait()
        claims = worker._claims
        asked, run = [], claims.run

        async def counted(operation, **options):
            asked.append(operation.sql)
            return await run(operation, **options)

        claims.run = counted
        since = time.monotonic()
        await wait_for_async(lambda: len(asked) >= 12)
        # Each poll asks what is ready, and now and then whether the duty is still held.
        assert time.monotonic() - since > 0.5
        assert not any("claim_v1" in sql for sql in asked)
        claims.run = run
        end.set()

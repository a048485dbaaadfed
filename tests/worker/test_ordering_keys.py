"""A worker runs jobs of one ordering key one at a time, whatever sort of handler they have."""

import asyncio
import time

import pytest

import forebay
from forebay import Job, Retry, RetryPolicy, Snooze
from tests.support.engine import enqueue, one, state
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)


class Diary:
    """What ran, and whether two of a key ever ran at once."""

    def __init__(self) -> None:
        self.done: dict[str, list[int]] = {}
        self.inside: set[str] = set()

    def enter(self, job: Job) -> None:
        assert job.ordering_key not in self.inside
        self.inside.add(job.ordering_key)

    def leave(self, job: Job, *, is_done: bool = True) -> None:
        self.inside.remove(job.ordering_key)
        if is_done:
            self.done.setdefault(job.ordering_key, []).append(job.job_id)


def put(conn, count: int, **options) -> dict[str, list[int]]:
    """Enqueue jobs of three keys in fairness; return their ids by key."""
    ids: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for _ in range(count):
        for key, jobs in ids.items():
            jobs.append(enqueue(conn, ordering_key=key, **options))
    return ids


@pytest.mark.slow
@pytest.mark.parametrize("sort", ["coroutine", "thread", "transaction", "batch"])
async def test_each_key_runs_in_order_with_failures_and_snoozes(app, conn, sort):
    """Every fifth job fails first, every seventh snoozes: those behind it wait for it."""
    diary = Diary()

    def outcome(job: Job) -> forebay.Outcome | None:
        is_first = job.attempt == 1 and job.job_id not in seen
        seen.add(job.job_id)
        if is_first and job.job_id % 5 == 0:
            return Retry(after=0.001)
        if is_first and job.job_id % 7 == 0:
            return Snooze(0.001)
        return None

    seen: set[int] = set()

    if sort == "coroutine":

        @app.job(retry=AT_ONCE)
        async def work(ctx: forebay.Context) -> forebay.Outcome | None:
            diary.enter(ctx.job)
            await asyncio.sleep(0)
            found = outcome(ctx.job)
            diary.leave(ctx.job, is_done=found is None)
            return found

    elif sort == "batch":

        @app.batch_job(name="work", size=3, retry=AT_ONCE)
        async def work_many(jobs: list[Job]) -> list[forebay.Outcome | None]:
            for job in jobs:
                diary.enter(job)
            await asyncio.sleep(0)
            found = [outcome(job) for job in jobs]
            for job, ending in zip(jobs, found, strict=True):
                diary.leave(job, is_done=ending is None)
            return found

    else:

        @app.job(name="work", retry=AT_ONCE, transaction=sort == "transaction")
        def work_in_thread(ctx: forebay.Context) -> forebay.Outcome | None:
            diary.enter(ctx.job)
            time.sleep(0.001)
            found = outcome(ctx.job)
            diary.leave(ctx.job, is_done=found is None)
            return found

    ids = put(conn, 15)
    async with running(app, concurrency=4):
        await wait_for_async(lambda: sum(map(len, diary.done.values())) == 45, 20)
    assert diary.done == ids


async def test_a_job_that_cannot_be_read_lets_the_next_one_start(app, conn):
    """Arguments that do not fit end a job as dead; its key goes on, in its place and not before."""
    ran = []

    @app.job
    async def work(ctx: forebay.Context, number: int) -> None:
        ran.append(number)

    jobs = [
        enqueue(conn, ordering_key="k", args={"number": number})
        for number in (1, "no number", "neither", 4)
    ]
    await run_until_idle(app)
    assert ran == [1, 4]
    assert [state(conn, job) for job in jobs] == ["done", "dead", "dead", "done"]


async def test_jobs_behind_a_running_one_go_back_when_the_worker_stops(app, conn):
    """They are not started, lose no attempt, and come in order to whoever is next."""
    entered, ran = asyncio.Event(), []

    @app.job
    async def work(ctx: forebay.Context) -> None:
        ran.append((ctx.job.job_id, ctx.attempt))
        if not entered.is_set():
            entered.set()
            await asyncio.sleep(3600)

    jobs = [enqueue(conn, ordering_key="k") for _ in range(5)]
    async with running(app):
        await entered.wait()
    assert ran == [(jobs[0], 1)]
    assert one(conn, "select count(*) from forebay.failure") == 0
    await run_until_idle(app)
    assert ran[1:] == [(job, 1) for job in jobs]

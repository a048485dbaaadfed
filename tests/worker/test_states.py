"""What users see of a job while a worker has it."""

import asyncio
import logging
import threading

import pytest

import forebay
from forebay import JobState, RetryPolicy
from tests.support.engine import one
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

LATER = RetryPolicy(strategy="fixed", base_seconds=3600, cap_seconds=3600, max_attempts=3)


@pytest.mark.slow
@pytest.mark.parametrize("sort", ["loop", "thread"])
async def test_a_job_that_runs_longer_than_a_heartbeat_is_shown_as_running(app, conn, sort):
    """
    Of three jobs of one ordering key the worker has all and runs the first; all are at their first
    attempt.
    """
    go = threading.Event()

    @app.job
    async def loop() -> None:
        await asyncio.to_thread(go.wait)

    @app.job
    def thread() -> None:
        go.wait()

    handler = loop if sort == "loop" else thread
    for _ in range(3):
        handler.using(ordering_key="k").enqueue(conn)
    client = app.client()

    def seen() -> list[tuple[str, int]]:
        return [(str(status.state), status.attempt) for status in reversed(client.jobs())]

    async with running(app, concurrency=3):
        try:
            await wait_for_async(
                lambda: seen() == [("running", 1), ("claimed", 1), ("claimed", 1)], 8, seen
            )
            (depth,) = client.depth()
            assert (depth.claimed, depth.running, depth.ready) == (2, 1, 0)
            assert [status.state for status in client.jobs(state="running")] == [JobState.RUNNING]
        finally:
            go.set()
        await wait_for_async(lambda: seen() == [("done", 1)] * 3, 20)


async def test_a_failure_tells_which_attempt_of_how_many_it_was(app, conn, caplog):
    """
    The kind's own number of attempts, which the database does not know, is known once an attempt
    has failed.
    """
    caplog.set_level(logging.INFO, "forebay.worker")

    @app.job(retry=LATER)
    async def work() -> None:
        raise LookupError("not there")

    job = work.enqueue(conn)
    client = app.client()
    (status,) = client.job(job)
    assert (status.state, status.attempt, status.max_attempts) == (JobState.READY, 1, None)
    await run_until_idle(app)
    (status,) = client.job(job)
    assert (status.state, status.attempt, status.max_attempts) == (JobState.RETRYING, 2, 3)
    (history,) = client.job_history(job)
    assert [(e.attempt, e.max_attempts) for e in history.errors] == [(1, 3)]
    assert f"job {job} (work), attempt 1 of 3, failed after " in caplog.text


async def test_a_dead_letter_tells_its_attempts_of_how_many(app, conn):
    """
    Also where the number of all attempts is the kind's; the job that it is redriven as asks the
    kind again.
    """

    @app.job(max_attempts=1)
    def work(ctx: forebay.Context) -> None:
        assert ctx.attempt == ctx.job.attempt == ctx.job.max_attempts == 1
        raise LookupError

    job = work.enqueue(conn)
    await run_until_idle(app)
    (letter,) = app.client().dead_letters()
    assert (letter.attempt, letter.max_attempts, letter.job_id) == (1, 1, job)
    (status,) = app.client().job(app.client().redrive(letter.dead_id))
    assert (status.attempt, status.max_attempts) == (1, None)
    assert one(conn, "select max_attempts from forebay.dead_letter") is None


async def test_a_postponed_job_is_scheduled_at_its_first_attempt(app, conn):
    """
    No handler here: what is said of it belongs to the attempt that is still to come.
    """
    job = one(conn, "select forebay.enqueue('not_here')")

    @app.job
    def work() -> None: ...

    await run_until_idle(app)
    (status,) = app.client().job(job)
    assert (status.state, status.attempt) == (JobState.SCHEDULED, 1)
    (history,) = app.client().job_history(job)
    assert [(e.attempt, e.outcome, e.max_attempts) for e in history.errors] == [
        (1, "unknown kind", None)
    ]

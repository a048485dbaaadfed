"""Timeouts and cancellation: asked to stop, stopped, and the slot comes back in any case."""

import asyncio
import ctypes
import threading
import time

import psycopg
import pytest

import forebay
from forebay import RetryPolicy
from forebay.errors import JobCancelled, SoftTimeout
from tests.support.engine import depth, one, state
from tests.support.fix_worker import make_effect_table, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)


def errors_of(conn: psycopg.Connection, job_id: int) -> list[dict]:
    """Return the errors in a job's dead letter."""
    return one(conn, "select errors from forebay.dead_letter where job_id = %s", job_id)


def cancel(conn: psycopg.Connection, job_id: int) -> None:
    """Ask for a job's cancellation."""
    assert one(conn, "select forebay.cancel(%s)", job_id) in {"cancelled", "requested"}


async def until(conn: psycopg.Connection, job_id: int, wanted: str, seconds: float = 10) -> None:
    """Wait for a job's state."""
    await wait_for_async(
        lambda: state(conn, job_id) == wanted, seconds, lambda: f"state is {state(conn, job_id)}"
    )


async def test_at_the_soft_timeout_a_handler_is_asked_to_stop(app, conn):
    """
    A coroutine sees CancelledError, a thread SoftTimeout; what they leave undone is retried.
    """
    seen = []

    @app.job(soft_timeout=0.05, max_attempts=1)
    async def on_the_loop(ctx: forebay.Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(("loop", ctx.cancelled))
            raise

    @app.job(soft_timeout=0.05, max_attempts=1)
    def in_a_thread(ctx: forebay.Context) -> None:
        try:
            while True:
                time.sleep(0.001)
        except SoftTimeout:
            seen.append(("thread", ctx.cancelled))
            raise

    @app.job(soft_timeout=0.05)
    async def finishes_anyway() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(("finished", True))

    @app.job(soft_timeout=0.05)
    def polls(ctx: forebay.Context) -> None:
        try:
            assert ctx.wait_cancelled(60)
        except SoftTimeout:
            ctx.wait_cancelled(0)

    stopped = [on_the_loop.enqueue(conn), in_a_thread.enqueue(conn)]
    done = [finishes_anyway.enqueue(conn), polls.enqueue(conn)]
    async with running(app):
        for job in stopped:
            await until(conn, job, "dead")
            assert errors_of(conn, job)[0]["type"] == "forebay.errors.SoftTimeout"
        for job in done:
            await until(conn, job, "done")
    assert sorted(seen) == [("finished", True), ("loop", True), ("thread", True)]


@pytest.mark.slow
async def test_at_the_hard_timeout_the_slot_is_free_whatever_the_handler_does(app, conn):
    """
    One slot; three handlers that will not go: each loses its attempt, and the next job runs.
    """
    release = threading.Event()
    let_go = asyncio.Event()
    ran = []

    @app.job(timeout=0.2, max_attempts=1)
    async def swallows() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    @app.job(timeout=0.2, max_attempts=1)
    def sleeps() -> None:
        assert release.wait(60)

    @app.job(timeout=0.2, max_attempts=1)
    def in_c_code() -> None:
        ctypes.CDLL(None).usleep(3_000_000)

    @app.job(transaction=True, timeout=0.2, max_attempts=1)
    def sleeps_in_a_transaction() -> None:
        assert release.wait(60)

    @app.job(transaction=True, timeout=0.2, max_attempts=1)
    async def swallows_in_a_transaction() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    @app.job
    def next_plain() -> None:
        ran.append("plain")

    @app.job(transaction=True)
    def next_in_a_transaction() -> None:
        ran.append("transaction")

    @app.job(transaction=True)
    async def next_coroutine_in_a_transaction() -> None:
        ran.append("async transaction")

    stuck = [
        handler.enqueue(conn)
        for handler in (
            swallows,
            sleeps,
            in_c_code,
            sleeps_in_a_transaction,
            swallows_in_a_transaction,
        )
    ]
    fine = [
        handler.enqueue(conn)
        for handler in (next_plain, next_in_a_transaction, next_coroutine_in_a_transaction)
    ]
    try:
        async with running(app, concurrency=1):
            for job in stuck:
                await until(conn, job, "dead")
                assert errors_of(conn, job)[0]["type"] == "forebay.errors.HardTimeout"
            for job in fine:
                await until(conn, job, "done")
    finally:
        release.set()
        let_go.set()
    assert ran == ["plain", "transaction", "async transaction"]


@pytest.mark.parametrize("flavour", ["async", "thread"])
async def test_a_transaction_that_outlives_its_timeout_cannot_commit(app, conn, flavour):
    """
    A handler that ignores its hard timeout and returns later has changed nothing; its job has gone
    on.
    """
    make_effect_table(conn)
    release = threading.Event()
    let_go = asyncio.Event()
    starts = []

    if flavour == "async":

        @app.job(transaction=True, timeout=1, retry=AT_ONCE)
        async def late(ctx: forebay.Context) -> None:
            starts.append(ctx.attempt)
            if ctx.attempt == 1:
                await ctx.conn.execute("insert into effect values (1, 1)")
                while not let_go.is_set():
                    try:
                        await let_go.wait()
                    except asyncio.CancelledError:
                        continue
            else:
                await ctx.conn.execute("insert into effect values (2, 2)")

    else:

        @app.job(transaction=True, timeout=1, retry=AT_ONCE)
        def late(ctx: forebay.Context) -> None:
            starts.append(ctx.attempt)
            if ctx.attempt == 1:
                ctx.conn.execute("insert into effect values (1, 1)")
                try:
                    assert release.wait(60)
                except BaseException:
                    release.wait(60)
            else:
                ctx.conn.execute("insert into effect values (2, 2)")

    job = late.enqueue(conn)
    try:
        async with running(app):
            await until(conn, job, "done")
            release.set()
            let_go.set()
            await wait_for_async(
                lambda: (
                    one(
                        conn,
                        "select count(*) from pg_stat_activity"
                        " where datname = current_database() and state like 'idle in trans%'",
                    )
                    == 0
                )
            )
    finally:
        release.set()
        let_go.set()
    assert starts == [1, 2]
    assert conn.execute("select entry from effect").fetchall() == [(2,)]


@pytest.mark.parametrize("flavour", ["async", "thread", "async transaction", "thread transaction"])
async def test_a_running_job_is_cancelled_at_the_next_heartbeat(app, conn, flavour):
    """
    Its handler is interrupted, its transaction rolled back, and it ends as cancelled.
    """
    make_effect_table(conn)
    inside = threading.Event()
    options = {"transaction": "transaction" in flavour}
    if flavour.startswith("async"):

        @app.job(**options)
        async def long(ctx: forebay.Context) -> None:
            if ctx.conn:
                await ctx.conn.execute("insert into effect values (1, 1)")
            inside.set()
            await asyncio.sleep(60)

    else:

        @app.job(**options)
        def long(ctx: forebay.Context) -> None:
            if ctx.conn:
                ctx.conn.execute("insert into effect values (1, 1)")
            inside.set()
            for _ in range(60_000):
                time.sleep(0.001)

    job = long.enqueue(conn)
    async with running(app):
        await wait_for_async(inside.is_set)
        cancel(conn, job)
        await until(conn, job, "cancelled")
        assert depth(conn)["default"] == (0, 0, 0)
    assert one(conn, "select count(*) from effect") == 0


async def test_a_job_that_finishes_before_it_hears_of_its_cancellation_is_done(app, conn):
    """
    First writer wins: cancelling asks, and a settlement as done stands.
    """
    inside, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def finish() -> None:
        inside.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    job = finish.enqueue(conn)
    async with running(app):
        async with asyncio.timeout(10):
            await inside.wait()
        cancel(conn, job)
        go.set()
        await until(conn, job, "done")


async def test_waiting_and_deferred_jobs_are_cancelled_without_running(app, conn):
    """
    A cancelled job that had not started never starts.
    """
    ran = []

    @app.job
    async def never() -> None:
        ran.append(1)

    jobs = [never.enqueue(conn), never.using(delay=0.2).enqueue(conn)]
    for job in jobs:
        cancel(conn, job)
    async with running(app):
        for job in jobs:
            await until(conn, job, "cancelled")
    assert ran == []


async def test_a_failing_job_whose_cancellation_was_asked_for_is_not_retried(app, conn):
    """
    Between attempts, and at the end of one, a cancellation goes before a retry.
    """
    inside = asyncio.Event()

    @app.job(retry=AT_ONCE)
    async def fail() -> None:
        inside.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("instead") from None

    job = fail.enqueue(conn)
    async with running(app):
        async with asyncio.timeout(10):
            await inside.wait()
        cancel(conn, job)
        await until(conn, job, "cancelled")


async def test_a_cancelled_thread_can_say_so_itself(app, conn):
    """
    raise_if_cancelled ends the attempt as cancelled.
    """
    inside = threading.Event()

    @app.job
    def asks(ctx: forebay.Context) -> None:
        inside.set()
        try:
            ctx.wait_cancelled(60)
        except JobCancelled:
            ctx.raise_if_cancelled()

    job = asks.enqueue(conn)
    async with running(app):
        await wait_for_async(inside.is_set)
        cancel(conn, job)
        await until(conn, job, "cancelled")


async def test_expired_jobs_do_not_run_and_are_dead_letters_even_where_nobody_claims(
    app, conn, caplog
):
    """
    A job that is not started before its time is over is a dead letter with that reason.
    """
    ran = []

    @app.job
    async def work() -> None:
        ran.append(1)

    late = work.using(expires_in=1.0).enqueue(conn)
    other = one(
        conn,
        (
            "select forebay.enqueue('x', '{}', queue => 'unserved', expires_at => "
            "clock_timestamp() + '1 s')"
        ),
    )
    fine = work.using(expires_in=60).enqueue(conn)
    await wait_for_async(
        lambda: one(
            conn,
            "select max(expires_at) filter (where job_id <> %s) < now() from"
            " (select coalesce(job_id, seq) as job_id, expires_at from forebay.log) l",
            fine,
        )
    )
    async with running(app):
        await until(conn, fine, "done")
        await until(conn, late, "expired")
        await wait_for_async(
            lambda: (
                one(
                    conn,
                    "select count(*) from forebay.dead_letter where job_id = %s"
                    " and reason = 'expired'",
                    other,
                )
                == 1
            ),
            30,
        )
    died = {r.job_id: r for r in caplog.records if getattr(r, "reason", None) == "expired"}
    assert {job: (r.levelname, r.queue) for job, r in died.items()} == {
        late: ("ERROR", "default"),
        other: ("ERROR", "unserved"),
    }
    assert f"job {late} (work) expired before a worker started it and is a dead letter now" in (
        caplog.text
    )
    assert ran == [1]

"""A flow that is cancelled while it waits may compensate; its children are cancelled with it."""

import json
import logging
import threading
import time

import anyio
import pytest

import forebay
from forebay.errors import ChildrenDied, JobCancelled
from tests.support.engine import one, state
from tests.support.fix_worker import run_until_idle, running
from tests.support.mutant import break_function
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

SOON = forebay.RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)


def left_behind(conn) -> int:
    """Rows of jobs that wait for a time, and waits for signals."""
    return one(
        conn,
        "select (select count(*) from forebay.deferred d"
        " where d.kind <> '' and d.run_at > forebay._now())"
        " + (select count(*) from forebay.waiter)",
    )


@pytest.mark.parametrize("way", ["one", "many"])
async def test_a_cancelled_flow_compensates_with_steps(app, conn, way):
    """
    Its pending step raises JobCancelled, in each later attempt at the same place; if the handler
    lets it pass, the job ends cancelled.
    """
    seen = []

    @app.job(retry=SOON)
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("charge", lambda: seen.append("charge"))
        try:
            await ctx.wait("approval", key="k")
        except JobCancelled:
            seen.append("cancelled")
            await ctx.step("refund", lambda: seen.append("refund"))
            if len(seen) == 3:
                raise ValueError from None
            raise

    job = work.enqueue(conn)
    await run_until_idle(app)
    if way == "one":
        assert one(conn, "select forebay.cancel(%s)", job) == "requested"
        assert one(conn, "select forebay.cancel(%s)", job) == "requested"
    else:
        query = (
            "select answer || ' ' || jobs"
            " from forebay.change_jobs('cancel', '{\"queue\": \"default\"}')"
        )
        assert one(conn, query) == "requested 1"
        assert conn.execute(query).fetchall() == []
    await run_until_idle(app)
    assert seen == ["charge", "cancelled", "refund", "cancelled"]
    assert state(conn, job) == "cancelled"
    assert left_behind(conn) == 0
    assert forebay.signal(conn, "approval", "k")
    assert one(conn, "select count(*) from forebay.event where act = 'jobs.cancel'") == 1


@pytest.mark.parametrize("pending", ["wait", "sleep", "gather"])
async def test_a_flow_that_is_cancelled_now_ends_without_running(app, conn, pending):
    """
    It leaves no row for a hundred years, and its signal is free for another flow.
    """
    seen = []

    @app.job(queue="elsewhere")
    async def child(n: int) -> None: ...

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        seen.append(1)
        if pending == "wait":
            await ctx.wait("approval", key="k")
        elif pending == "sleep":
            await ctx.sleep("long", 10_000_000)
        else:
            await ctx.gather("parts", child.calls([1, 2]))

    job = work.enqueue(conn)
    await run_until_idle(app, queue="default")
    assert one(conn, "select forebay.cancel(%s, now => true)", job) == "cancelled"
    assert state(conn, job) == "cancelled"
    await run_until_idle(app, queue="default")
    await run_until_idle(app, queue="default")
    assert seen == [1]
    assert state(conn, job) == "cancelled"
    assert left_behind(conn) == 0
    if pending == "gather":
        rows = conn.execute("select unnest(job_ids) from forebay.gather_part").fetchall()
        assert {state(conn, row[0]) for row in rows} == {"cancelled"}


async def test_a_signal_that_came_first_counts(app, conn):
    """
    A cancellation that finds the flow running again is one of a running job.
    """
    seen = []

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        seen.append(await ctx.wait("approval", key="k"))

    job = work.enqueue(conn)
    await run_until_idle(app)
    forebay.signal(conn, "approval", "k", 1)
    one(conn, "select forebay.promote_v1()")
    assert one(conn, "select forebay.cancel(%s)", job) == "cancelled"
    await run_until_idle(app)
    assert seen == []
    assert state(conn, job) == "cancelled"


@pytest.mark.slow
@pytest.mark.usual("one promotion visits 200 jobs, and each query is compiled")
async def test_children_are_cancelled_with_their_parent(app, conn):
    """
    Those that have not started; the dry run has their number.
    """
    seen = []

    @app.job(queue="elsewhere")
    async def child(n: int) -> None: ...

    @app.job()
    async def parent(ctx: forebay.Context) -> None:
        try:
            await ctx.gather("parts", child.calls(range(250)))
        except JobCancelled:
            seen.append("cancelled")
            raise

    job = parent.enqueue(conn)
    await run_until_idle(app, queue="default")
    plan = conn.execute(
        "select answer, jobs from forebay.plan_change('cancel', %s) order by 1",
        [json.dumps({"ids": [job]})],
    ).fetchall()
    assert [tuple(row) for row in plan] == [("cancelled", 1), ("children", 250)]
    assert one(conn, "select forebay.cancel(%s)", job) == "requested"
    for _ in range(3):
        await run_until_idle(app, queue="default")
    assert seen == ["cancelled"]
    assert state(conn, job) == "cancelled"
    query = "select count(*) from forebay.tombstone where reason = 'c'"
    assert one(conn, query) == 250


async def test_a_child_that_is_cancelled_before_it_starts_has_ended(app, conn):
    """
    No worker reports it: the cancellation does, to the promotion.
    """
    seen = []

    @app.job(queue="elsewhere")
    async def child(n: int) -> int:
        return n

    @app.job()
    async def parent(ctx: forebay.Context) -> None:
        try:
            await ctx.gather("parts", child.calls([1, 2]))
        except ChildrenDied as error:
            seen.append(error.died)

    job = parent.enqueue(conn)
    await run_until_idle(app, queue="default")
    first = one(conn, "select job_ids[1] from forebay.gather_part")
    assert one(conn, "select forebay.cancel(%s)", first) == "cancelled"
    await run_until_idle(app)
    await run_until_idle(app)
    assert seen == [1]
    assert state(conn, job) == "done"


async def test_a_mutant_that_tells_no_parent_fails(app, conn, database):
    """
    Without the wake row of the cancellation the parent waits for ever.
    """

    @app.job(queue="elsewhere")
    async def child(n: int) -> int:
        return n

    @app.job()
    async def parent(ctx: forebay.Context) -> None:
        await ctx.gather("parts", child.calls([1]))

    job = parent.enqueue(conn)
    await run_until_idle(app, queue="default")
    break_function(database, "_after_cancelled", ("is null then", "is not null then"))
    one(conn, "select forebay.cancel(%s)", one(conn, "select job_ids[1] from forebay.gather_part"))
    await run_until_idle(app)
    await run_until_idle(app)
    assert state(conn, job) == "scheduled"


def test_a_cancellation_costs_nothing_without_flows(conn):
    """
    While no handler has recorded a checkpoint, no wake row is written.
    """
    from tests.support.engine import enqueue

    job = enqueue(conn)
    assert one(conn, "select forebay.cancel(%s)", job) == "cancelled"
    assert one(conn, "select count(*) from forebay.deferred") == 0


@pytest.mark.parametrize("place", ["in a step", "before a step"])
async def test_a_flow_that_is_cancelled_while_it_runs_compensates(app, conn, place, caplog):
    """The verb that it waits for raises JobCancelled, or the next one; its steps are recorded."""
    caplog.set_level(logging.INFO)
    seen = []
    started, go_on = anyio.Event(), anyio.Event()

    async def charge() -> str:
        started.set()
        await anyio.sleep_forever()
        return "charged"

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("first", lambda: None)
        try:
            if place == "before a step":
                started.set()
                await go_on.wait()
            await ctx.step("charge", charge)
        except JobCancelled:
            await ctx.step("refund", seen.append, "refund")
            raise

    job = work.enqueue(conn)
    async with running(app):
        with anyio.fail_after(30):
            await started.wait()
        assert one(conn, "select forebay.cancel(%s)", job) == "requested"
        if place == "before a step":
            await wait_for_async(lambda: "was cancelled; stopping" in caplog.text, 30)
            go_on.set()
        await wait_for_async(lambda: state(conn, job) == "cancelled", 30)
    assert seen == ["refund"]
    names = conn.execute("select name from forebay.step order by no").fetchall()
    assert [row[0] for row in names] == ["first", "refund"]


async def test_a_worker_that_stops_lets_no_flow_compensate(app, conn):
    """Its job goes on elsewhere: a verb behind `except JobCancelled` ends the attempt."""
    seen = []
    started = threading.Event()

    @app.job()
    def work(ctx: forebay.Context) -> None:
        ctx.step("first", lambda: None)
        try:
            started.set()
            while True:
                time.sleep(0.01)
        except JobCancelled:
            seen.append("cancelled")
            ctx.step("refund", seen.append, "refund")
            raise

    job = work.enqueue(conn)
    async with running(app):
        await wait_for_async(started.is_set, 30)
    assert state(conn, job) == "ready"
    assert "refund" not in seen
    assert one(conn, "select count(*) from forebay.step where name = 'refund'") == 0

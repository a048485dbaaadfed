"""Checkpoints are found by name, whatever stands between them: steps that a deploy has put before a
wait, steps that run at once, attempts that overlap.
"""

import asyncio
import threading
from collections import Counter
from datetime import timedelta

import pytest

import forebay
from forebay import RetryPolicy
from forebay.errors import JobCancelled, StepChanged, StepFailed, WaitTimeout
from tests.support.engine import connect, one, shift_clock, state
from tests.support.fix_worker import make_effect_table, run_retries, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

SOON = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)
ONCE = RetryPolicy(max_attempts=1)


def recorded(conn, job_id):
    """Return kind and name of the checkpoints of a job, in order."""
    query = "select kind::text, name from forebay.step where job_id = %s order by no"
    return conn.execute(query, [job_id]).fetchall()


def make_ready(conn, job_id):
    """Let a flow run that waits, as an operator does."""
    query = (
        "select forebay.change_jobs('retry', jsonb_build_object('ids', %s::bigint[]), '{}',"
        " most => 1)"
    )
    conn.execute(query, [[job_id]])


def redriven(conn, job_id):
    query = "select forebay.redrive(dead_id) from forebay.dead_letter where job_id = %s"
    return one(conn, query, job_id)


INSERTED = {
    "step": lambda ctx: ctx.step("check", lambda: {"approved": True}),
    "once": lambda ctx: ctx.once("check", lambda conn: {"approved": True}),
    "sleep": lambda ctx: ctx.sleep("check", 0.001),
}


@pytest.mark.parametrize("inserted", INSERTED)
@pytest.mark.parametrize("is_sent", [True, False], ids=["signal", "timeout"])
async def test_a_step_that_is_inserted_before_a_wait_does_not_answer_it(
    app, conn, inserted, is_sent
):
    """A timeout is a timeout, and a signal is its own payload."""
    got = []
    deployed = []

    @app.job(retry=SOON)
    def work(ctx: forebay.Context) -> None:
        if deployed:
            INSERTED[inserted](ctx)
        try:
            got.append(ctx.wait("approval", key=7, timeout=60))
        except WaitTimeout:
            got.append("timeout")

    job = work.enqueue(conn)
    await run_retries(app, conn)
    deployed.append(True)
    make_ready(conn, job)
    await run_retries(app, conn)
    assert got == []
    if is_sent:
        assert forebay.signal(conn, "approval", 7, "yes")
    else:
        shift_clock(conn, 61)
    await run_retries(app, conn)
    assert got == ["yes" if is_sent else "timeout"]
    assert state(conn, job) == "done"
    assert one(conn, "select count(*) from forebay.signal") == 0
    assert one(conn, "select count(*) from forebay.waiter") == 0


@pytest.mark.parametrize("inserted", INSERTED)
async def test_a_step_that_is_inserted_when_the_wait_is_over_does_not_answer_it(
    app, conn, inserted
):
    """The attempt that ends the wait is the first one of the new code."""
    got = []
    deployed = []

    @app.job(retry=SOON)
    def work(ctx: forebay.Context) -> None:
        if deployed:
            INSERTED[inserted](ctx)
        try:
            got.append(ctx.wait("approval", key=7, timeout=60))
        except WaitTimeout:
            got.append("timeout")

    work.enqueue(conn)
    await run_retries(app, conn)
    deployed.append(True)
    shift_clock(conn, 61)
    await run_retries(app, conn)
    assert got == ["timeout"]


async def test_a_second_waiter_behind_an_inserted_step_is_told(app, conn):
    """The checkpoint that says so has a free number."""
    got = []
    deployed = []

    @app.job(retry=SOON)
    def work(ctx: forebay.Context, at: int) -> None:
        if deployed:
            ctx.step("new", int)
        ctx.wait("go", key=at if not deployed else 1)

    first, second = work.enqueue(conn, at=1), work.enqueue(conn, at=2)
    await run_retries(app, conn)
    deployed.append(True)
    make_ready(conn, second)
    await run_retries(app, conn)
    assert got == []
    # The key of a wait that began is kept: it is still the old one.
    assert state(conn, first) == state(conn, second) == "scheduled"
    assert forebay.signal(conn, "go", 2)
    await run_retries(app, conn)
    assert state(conn, second) == "done"


@pytest.mark.parametrize("verb", ["sleep", "wait", "gather"])
async def test_a_flow_behind_an_inserted_step_is_seen_as_waiting_and_compensates(app, conn, verb):
    """Its last checkpoint is not that of its wait."""
    undone = []
    deployed = []

    @app.job(queue="other")
    def child() -> None:
        pass

    @app.job(retry=SOON, queue="flows")
    def work(ctx: forebay.Context) -> None:
        if deployed:
            ctx.step("new", int)
        try:
            if verb == "sleep":
                ctx.sleep("week", timedelta(weeks=1))
            elif verb == "wait":
                ctx.wait("week")
            else:
                ctx.gather("week", child.calls([{}, {}]))
        except JobCancelled:
            ctx.step("undo", lambda: undone.append("undone"))
            raise

    job = work.enqueue(conn)
    await run_retries(app, conn, queue="flows")
    before = app.client().flow(job)[0]
    deployed.append(True)
    make_ready(conn, job)
    await run_retries(app, conn, queue="flows")
    seen = app.client().flow(job)[0]
    assert (seen.waits_for, seen.step) == (before.waits_for, "week")
    assert seen.waits_for is not None
    assert one(conn, "select forebay.cancel(%s)", job) == "requested"
    await run_retries(app, conn, queue="flows")
    assert undone == ["undone"]
    assert state(conn, job) == "cancelled"


async def test_a_redriven_flow_waits_anew(app, conn):
    """Its timeout had killed it; a signal that came meanwhile, or comes now, is taken."""
    got = []

    @app.job(retry=SOON)
    def work(ctx: forebay.Context, key: int) -> None:
        got.append(ctx.wait("ok", key=key, timeout=60))

    jobs = [work.enqueue(conn, key=key) for key in (1, 2)]
    await run_retries(app, conn)
    shift_clock(conn, 61)
    await run_retries(app, conn)
    assert [state(conn, job) for job in jobs] == ["dead", "dead"]
    assert forebay.signal(conn, "ok", 1, "before")
    again = [redriven(conn, job) for job in jobs]
    await run_retries(app, conn)
    assert got == ["before"]
    assert forebay.signal(conn, "ok", 2, "after")
    await run_retries(app, conn)
    assert got == ["before", "after"]
    assert [state(conn, job) for job in again] == ["done", "done"]


async def test_a_redrive_tries_a_failed_step_again_that_another_one_ran_beside(app, conn):
    """The other one ended later; it is no compensation."""
    is_bad = [True]
    ran = []
    failed = asyncio.Event()

    @app.job(retry=SOON)
    async def work(ctx: forebay.Context) -> None:
        async def a():
            if is_bad:
                raise OSError
            ran.append("a")

        async def b():
            await failed.wait()
            ran.append("b")

        async def first():
            try:
                await ctx.step("a", a, retry=ONCE)
            finally:
                failed.set()

        found = await asyncio.gather(first(), ctx.step("b", b), return_exceptions=True)
        for each in found:
            if isinstance(each, Exception):
                raise each

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    assert recorded(conn, job) == [("f", "a"), ("s", "b")]
    is_bad.clear()
    again = redriven(conn, job)
    await run_retries(app, conn)
    assert state(conn, again) == "done"
    assert ran == ["b", "a"]


async def test_a_redrive_keeps_a_failure_with_its_compensation(app, conn):
    """What was recorded behind it was done because of it."""
    ran = []

    @app.job(retry=SOON)
    def work(ctx: forebay.Context) -> None:
        try:
            ctx.step("charge", lambda: 1 / 0, retry=ONCE)
        except StepFailed:
            ctx.step("undo", lambda: ran.append("undo"))
            raise

    job = work.enqueue(conn)
    await run_retries(app, conn)
    again = redriven(conn, job)
    await run_retries(app, conn)
    assert state(conn, again) == "dead"
    assert ran == ["undo"]


@pytest.mark.parametrize("flavour", ["async", "thread"])
async def test_a_step_that_outlives_its_attempt_does_not_commit(app, conn, flavour, monkeypatch):
    """Another step has ended the attempt, and `once` runs beside it for longer than that waits.
    Its effect is there once, by an attempt that the job has, also where the next attempt runs when
    it would commit.
    """
    monkeypatch.setattr("forebay.worker.run._beside._REST_SECONDS", 0.0)
    make_effect_table(conn)
    starts = []
    let_go = asyncio.Event()
    go = threading.Event()
    late_ended = asyncio.Event()

    @app.job(retry=SOON)
    async def work(ctx: forebay.Context) -> None:
        starts.append(1)
        attempt = len(starts)
        if attempt == 2:
            let_go.set()
            go.set()

        async def a():
            if attempt == 1:
                raise OSError
            await late_ended.wait()

        async def b(conn):
            await conn.execute("insert into effect values (1, %s)", [attempt])
            await (let_go if attempt == 1 else late_ended).wait()

        def c(conn):
            conn.execute("insert into effect values (1, %s)", [attempt])
            if attempt == 1:
                assert go.wait(60)

        async def beside():
            try:
                await ctx.once("b", b if flavour == "async" or attempt > 1 else c)
            finally:
                if attempt == 1:
                    late_ended.set()

        await asyncio.gather(ctx.step("a", a), beside())

    job = work.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "done")
    assert starts == [1, 1]
    assert conn.execute("select * from effect").fetchall() == [(1, 2)]
    assert sorted(recorded(conn, job)) == [("o", "b"), ("s", "a")]


async def test_a_step_does_not_commit_when_its_job_is_dead(app, conn):
    """The handler has raised, and a step that it began runs on."""
    make_effect_table(conn)
    let_go = asyncio.Event()
    late_ended = asyncio.Event()

    @app.job(retry=ONCE)
    async def work(ctx: forebay.Context) -> None:
        began = asyncio.Event()

        async def b(conn):
            await conn.execute("insert into effect values (1, 1)")
            began.set()
            await let_go.wait()

        async def beside():
            try:
                await ctx.once("b", b)
            finally:
                late_ended.set()

        task = asyncio.create_task(beside())
        await began.wait()
        task.add_done_callback(lambda task: task.exception())
        raise OSError

    job = work.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "dead")
        let_go.set()
        await asyncio.wait_for(late_ended.wait(), 60)
    assert one(conn, "select count(*) from effect") == 0
    assert recorded(conn, job) == []


async def test_an_attempt_ends_after_the_commits_of_its_steps(app, conn, database):
    """A step commits when another one ends the attempt: the job is settled after it."""
    make_effect_table(conn)
    failed = asyncio.Event()

    @app.job(retry=SOON)
    async def work(ctx: forebay.Context) -> None:
        async def a():
            if ctx.attempt == 1:
                # The row of the checkpoint of b waits for this lock, and b for its row.
                await wait_for_async(lambda: one(conn, WAITING) == 1)
                failed.set()
                raise OSError

        async def b(conn):
            await conn.execute("insert into effect values (1, %s)", [ctx.attempt])

        await asyncio.gather(ctx.step("a", a), ctx.once("b", b))

    @app.job
    async def later() -> None:
        pass

    with connect(database) as other:
        other.execute("begin")
        other.execute("lock table forebay.step in share row exclusive mode")
        job = work.enqueue(conn)
        async with running(app):
            await asyncio.wait_for(failed.wait(), 60)
            # Its settlement would be before that of a job that comes now.
            probe = later.enqueue(conn)
            await wait_for_async(lambda: state(conn, probe) == "done")
            assert state(conn, job) == "claimed"
            other.execute("commit")
            await wait_for_async(lambda: state(conn, job) == "done")
    assert conn.execute("select * from effect").fetchall() == [(1, 1)]
    assert sorted(recorded(conn, job)) == [("o", "b"), ("s", "a")]


#: Sessions that wait to write a checkpoint.
WAITING = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and query like '%record_once_v1%'
"""


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (lambda ctx: ctx.step("x", lambda: [1, 2]), lambda ctx: ctx.gather("x", [])),
        (lambda ctx: ctx.step("x", lambda: [1, 2]), lambda ctx: ctx.wait("x")),
        (lambda ctx: ctx.sleep("x", 0.001), lambda ctx: ctx.step("x", int)),
        (lambda ctx: ctx.gather("x", []), lambda ctx: ctx.sleep("x", 1)),
        (lambda ctx: ctx.step("x", int, key="1"), lambda ctx: list(ctx.each("x", [1], key=str))),
    ],
    ids=["gather", "wait", "step", "sleep", "each"],
)
async def test_a_verb_that_another_one_took_the_place_of_is_named(app, conn, first, then):
    """What the other one recorded is no result of it."""
    is_new = []

    @app.job(retry=SOON)
    def work(ctx: forebay.Context) -> None:
        (then if is_new else first)(ctx)
        if not is_new:
            is_new.append(True)
            ctx.sleep("later", 0.001)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    query = "select errors -> -1 ->> 'type' from forebay.dead_letter where job_id = %s"
    assert one(conn, query, job) == f"forebay.errors.{StepChanged.__name__}"


@pytest.mark.parametrize("way", ["gather", "task group"])
@pytest.mark.parametrize("verb", ["step", "once"])
async def test_a_step_beside_one_that_is_tried_again_is_recorded(app, conn, way, verb):
    """
    The failed one waits for it: the end of the attempt would leave it behind, or the task group
    would cancel it, and each attempt of the other would do it again.
    """
    done, failed = [], asyncio.Event()
    failed_once = []

    async def mail(*_):
        done.append("mail")
        await failed.wait()
        for _ in range(100):
            await asyncio.sleep(0)

    async def bad(*_):
        failed.set()
        if not failed_once:
            failed_once.append(1)
            raise ValueError

    @app.job(retry=SOON)
    async def work(ctx: forebay.Context) -> None:
        steps = [getattr(ctx, verb)("mail", mail), getattr(ctx, verb)("bad", bad)]
        if way == "task group":
            async with asyncio.TaskGroup() as tasks:
                for each in steps:
                    tasks.create_task(each)
        else:
            await asyncio.gather(*steps)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert (state(conn, job), done) == ("done", ["mail"])


async def test_failed_steps_do_not_wait_for_each_other(app, conn):
    """
    Nor for a step that has called them, whose own steps beside them fail too.
    """
    tries = Counter()

    async def bad(name):
        tries[name] += 1
        await asyncio.sleep(0)
        if tries[name] == 1:
            raise ValueError(name)

    @app.job(retry=SOON)
    async def work(ctx: forebay.Context) -> None:
        async def outer(name):
            await asyncio.gather(
                *(ctx.step("inner", bad, f"{name}{n}", key=f"{name}{n}") for n in "12")
            )

        await asyncio.gather(*(ctx.step("outer", outer, name, key=name) for name in "ab"))

    job = work.enqueue(conn)
    async with asyncio.timeout(30):
        await run_retries(app, conn)
    assert state(conn, job) == "done"
    assert set(tries.values()) == {2}

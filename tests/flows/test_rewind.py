"""A flow goes on again from a step; a parent goes on when its dead children have ended well."""

import pytest

import forebay
from forebay.errors import InvalidJob
from tests.support.engine import one, state
from tests.support.fix_worker import run_until_idle

pytestmark = pytest.mark.anyio

NEVER = forebay.RetryPolicy(max_attempts=1)


async def test_a_parked_flow_goes_on_again_from_a_step(app, conn, database):
    """
    The steps before stay; the step and what it waited for are forgotten, and the id is the same.
    """
    done = []

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("reserve", lambda: done.append("reserve"))
        for n in range(2):
            await ctx.step("charge", done.append, n, key=n)
        await ctx.wait("approval", key="k")

    job = work.enqueue(conn)
    await run_until_idle(app)
    client = forebay.Client(database)
    plan = client.plan_rewind(job, "charge", key="1")
    assert (plan.state, plan.kept, plan.dropped, plan.children) == ("scheduled", 2, 2, 0)
    assert client.rewind(job, "charge", key="1") == job
    await run_until_idle(app)
    assert done == ["reserve", 0, 1, 1]
    forebay.signal(conn, "approval", "k")
    await run_until_idle(app)
    assert state(conn, job) == "done"
    assert (
        one(conn, "select new ->> 'step' from forebay.event where act = 'jobs.rewind'") == "charge"
    )


async def test_a_dead_flow_goes_on_again_from_a_step(app, conn, database):
    """
    By a rewind or a redrive; a plain redrive tries only what failed again.
    """
    done = []

    @app.job(retry=NEVER)
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("reserve", lambda: done.append("reserve"))
        await ctx.step("charge", lambda: done.append("charge"))
        raise ValueError

    client = forebay.Client(database)
    job = work.enqueue(conn)
    await run_until_idle(app)
    again = client.rewind(job, "charge")
    assert again != job
    await run_until_idle(app)
    assert done == ["reserve", "charge", "charge"]
    (letter,) = client.dead_letters(job_id=again)
    with pytest.raises(InvalidJob, match="has recorded no step 'nothing'"):
        client.redrive(letter.dead_id, from_step="nothing")
    client.redrive(letter.dead_id, from_step="reserve")
    await run_until_idle(app)
    assert done == ["reserve", "charge", "charge", "reserve", "charge"]


async def test_what_cannot_be_rewound_is_refused(app, conn, database):
    """
    With nothing written: a job that is unknown, or has ended, and a missing step.
    """

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("one", int)

    client = forebay.Client(database)
    job = work.enqueue(conn)
    with pytest.raises(InvalidJob, match="only a flow that waits or is dead"):
        client.rewind(job, "one")
    await run_until_idle(app)
    with pytest.raises(InvalidJob, match=f"job {job} is done"):
        client.rewind(job, "one")
    with pytest.raises(forebay.errors.JobNotFound):
        client.rewind(999_999, "one")
    assert one(conn, "select count(*) from forebay.event where act = 'jobs.rewind'") == 0


async def test_a_parent_goes_on_when_its_dead_children_have_ended_well(app, conn, database):
    """
    It died of them; once all have ended well it is redriven, and the event log says why.
    """
    broken, seen = [True], []

    @app.job(retry=NEVER)
    async def child(n: int) -> int:
        if broken[0] and n > 0:
            raise ValueError
        return n

    @app.job()
    async def parent(ctx: forebay.Context) -> None:
        seen.append(await ctx.gather("parts", child.calls(range(3))))

    job = parent.enqueue(conn)
    await run_until_idle(app)
    assert state(conn, job) == "dead"
    client = forebay.Client(database)
    broken[0] = False
    first, second = (letter.dead_id for letter in client.dead_letters(kind="child"))
    client.redrive(first)
    await run_until_idle(app)
    assert seen == []
    client.redrive(second)
    await run_until_idle(app)
    await run_until_idle(app)
    assert seen == [[0, 1, 2]]
    because = "select count(*) from forebay.event where new ->> 'because' is not null"
    assert one(conn, because) == 1


@pytest.mark.parametrize("by", ["rewind", "redrive"])
async def test_a_wait_that_got_a_wrong_payload_waits_anew(app, conn, database, by):
    """
    Its error names the command. A plain redrive gives it the same payload again; a rewind to the
    wait forgets it, of a flow that is dead and of one that will be tried again.
    """
    seen = []

    @app.job(retry=NEVER)
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("before", seen.append, "before")
        answer = await ctx.wait("approval", key="k", as_type=dict[str, str])
        seen.append(answer["by"])

    client = forebay.Client(database)
    job = work.enqueue(conn)
    await run_until_idle(app)
    forebay.signal(conn, "approval", "k")
    await run_until_idle(app)
    (letter,) = client.dead_letters(job_id=job)
    error = one(conn, "select errors -> -1 from forebay.dead_letter where job_id = %s", job)
    assert error["type"] == "forebay.errors.StepChanged"
    assert f"forebay jobs rewind {job} --from approval" in error["traceback"]
    again = client.redrive(letter.dead_id)
    await run_until_idle(app)
    (letter,) = client.dead_letters(job_id=again)
    if by == "rewind":
        last = client.rewind(again, "approval")
    else:
        last = client.redrive(letter.dead_id, from_step="approval")
    await run_until_idle(app)
    assert state(conn, last) == "scheduled"
    forebay.signal(conn, "approval", "k", {"by": "Ada"})
    await run_until_idle(app)
    assert state(conn, last) == "done"
    assert seen == ["before", "Ada"]


async def test_a_callback_that_waits_has_no_step_to_go_on_from(app, conn, database):
    """
    It waits, so the error does not say that it does not.
    """

    @app.job
    async def child(n: int) -> int:
        return n

    @app.job
    async def then(ctx: forebay.Context, results: list[int]) -> None:
        await ctx.step("s", int)

    job = forebay.gather(conn, child.using(delay=1000).calls([1]), then=then.callback())
    with pytest.raises(InvalidJob, match=f"job {job} waits for the jobs before it"):
        forebay.Client(database).rewind(job, "s")

"""Children of flows: what a parent learns of them stays, and what is refused is not enqueued."""

import asyncio

import pytest

import forebay
from forebay import RetryPolicy
from forebay.errors import ChildrenDied, JobDied, StepRefused
from forebay.worker.run._step_store import StepStore
from tests.support.engine import one, shift_clock, state
from tests.support.fix_worker import run_until_idle
from tests.support.mutant import break_function, violation

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_attempts=1)


async def settle(app):
    """Let everything run that can; a promotion may wake more."""
    for _ in range(3):
        await run_until_idle(app)


async def redrive_child(app):
    (letter,) = app.client().dead_letters(kind="child")
    app.client().redrive(letter.dead_id)
    await settle(app)


def kinds(conn, job):
    query = "select string_agg(kind::text, '' order by no) from forebay.step where job_id = %s"
    return one(conn, query, job)


class Child:
    """A child that fails until it is mended."""

    def __init__(self, app: forebay.App) -> None:
        self.works = False

        @app.job(retry=ONCE)
        async def child(n: int) -> int:
            if n == 2 and not self.works:
                raise ValueError
            return n

        self.calls = child.calls


@pytest.mark.parametrize("on_dead", ["raise", "collect"])
async def test_a_redriven_child_changes_no_answer_of_a_gather(app, conn, on_dead):
    """The parent has acted on the failure, and does not do what follows a success, too."""
    child, log = Child(app), []

    @app.job()
    async def order(ctx: forebay.Context) -> None:
        try:
            found = await ctx.gather("parts", child.calls([1, 2, 3]), on_dead=on_dead)
            log.append([each.reason if isinstance(each, JobDied) else each for each in found])
            is_dead = any(isinstance(each, JobDied) for each in found)
        except ChildrenDied as error:
            log.append([error.died, error.children, error.job_id, error.job_ids])
            is_dead = True
        await ctx.step("refund" if is_dead else "ship", int)
        await ctx.sleep("later", 60)
        await ctx.step("close", int)

    job = order.enqueue(conn)
    await settle(app)
    assert kinds(conn, job) == "gdsz"
    child.works = True
    await redrive_child(app)
    shift_clock(conn, 61)
    await settle(app)
    assert state(conn, job) == "done"
    assert len(log) >= 2
    assert [each for each in log if each != log[0]] == []
    assert log[0] == [1, "exhausted", 3] or on_dead == "raise"
    assert kinds(conn, job) == "gdszs"


async def a_parent_follows(app, conn):
    """It died of the error alone, so it goes on when its child does."""
    child, got = Child(app), []

    @app.job()
    async def order(ctx: forebay.Context) -> None:
        got.append(await ctx.gather("parts", child.calls([1, 2, 3])))

    job = order.enqueue(conn)
    await settle(app)
    assert (state(conn, job), kinds(conn, job)) == ("dead", "gd")
    child.works = True
    await redrive_child(app)
    assert got == [[1, 2, 3]]


async def test_a_parent_that_died_of_its_child_follows_it(app, conn):
    """What it has recorded of the gather goes with the redrive."""
    await a_parent_follows(app, conn)


@pytest.mark.parametrize(
    ("function", "guard", "without"),
    [
        ("_copy_steps", "('f', 't', 'x', 'd')", "('f', 't', 'x')"),
        ("_follows_children", "s.kind = 'd'", "false"),
    ],
)
async def test_without_a_guard_the_parent_stays_dead(app, conn, database, function, guard, without):
    """The end of the gather is a failure that is tried again, and no step behind the gather."""
    break_function(database, function, (guard, without))
    with violation():
        await a_parent_follows(app, conn)


@pytest.mark.parametrize("compensates", [False, True])
async def test_a_redriven_parent_looks_anew_unless_it_has_compensated(app, conn, compensates):
    """As it is with a step that failed."""
    child, got = Child(app), []

    @app.job(retry=ONCE)
    async def order(ctx: forebay.Context) -> None:
        try:
            got.append(await ctx.gather("parts", child.calls([1, 2])))
        except ChildrenDied:
            got.append("died")
            if compensates:
                await ctx.step("refund", int)
            raise OSError("outside of a step") from None

    order.enqueue(conn)
    await settle(app)
    child.works = True
    await redrive_child(app)
    (letter,) = app.client().dead_letters(kind="order")
    app.client().redrive(letter.dead_id)
    await settle(app)
    assert got == ["died", "died" if compensates else [1, 2]]


async def test_children_that_end_well_cost_no_checkpoint(app, conn):
    """Their ends do not change."""
    child = Child(app)

    @app.job()
    async def order(ctx: forebay.Context) -> None:
        await ctx.gather("parts", child.calls([1, 3]))

    job = order.enqueue(conn)
    await settle(app)
    assert (state(conn, job), kinds(conn, job)) == ("done", "g")


@pytest.mark.parametrize("who", ["parent", "grandparent"])
async def test_a_child_with_the_ordering_key_of_its_parent_is_refused(app, conn, who):
    """Each would wait for the other, without end."""
    seen = []

    @app.job(order_by=("account",))
    async def child(account: int) -> None:
        seen.append(account)

    async def gather(ctx, call):
        try:
            await ctx.gather("parts", [child.call(8), call])
        except StepRefused as error:
            seen.append(f"{error} {error.hint}")

    @app.job()
    async def middle(ctx: forebay.Context, account: int) -> None:
        await gather(ctx, child.call(account))

    @app.job(order_by=("account",))
    async def parent(ctx: forebay.Context, account: int) -> None:
        if who == "grandparent":
            await ctx.gather("middle", middle.calls([account]))
        else:
            await gather(ctx, child.call(account))

    job = parent.enqueue(conn, 7)
    await settle(app)
    assert state(conn, job) == "done"
    (message,) = seen
    assert f"job {job}, which waits for it, holds its ordering key" in message
    assert "Give the child another ordering key" in message
    assert one(conn, "select count(*) from forebay.log where kind = 'child'") == 0


@pytest.mark.parametrize("beside", ["gather", "step"])
async def test_a_gather_that_is_refused_enqueues_nothing(app, conn, beside):
    """Gathers run alone."""
    child = Child(app)

    @app.job(retry=ONCE)
    async def order(ctx: forebay.Context) -> None:
        gate = asyncio.Event()
        if beside == "gather":
            other = ctx.gather("others", child.calls([2]))
        else:
            other = ctx.step("beside", gate.wait)
        task = asyncio.ensure_future(other)
        await asyncio.sleep(0)
        try:
            await ctx.gather("parts", child.calls([1]))
        finally:
            gate.set()
            await asyncio.gather(task, return_exceptions=True)

    job = order.enqueue(conn)
    await settle(app)
    assert state(conn, job) == "dead"
    assert one(conn, "select count(*) from forebay.gather") == 0
    assert one(conn, "select count(*) from forebay.log where kind = 'child'") == 0


async def test_a_step_that_begins_while_a_gather_enqueues_is_refused(app, conn, monkeypatch):
    """Its result would be lost: the gather gives the slot back."""
    child, ran, seen = Child(app), [], []
    enqueues, refused = asyncio.Event(), asyncio.Event()
    real = StepStore.gather

    async def gather(*args):
        enqueues.set()
        await refused.wait()
        return await real(*args)

    monkeypatch.setattr(StepStore, "gather", gather)

    @app.job(retry=ONCE)
    async def order(ctx: forebay.Context) -> None:
        async def later() -> None:
            await enqueues.wait()
            try:
                await ctx.step("beside", ran.append, 1)
            except StepRefused as error:
                seen.append(str(error))
            refused.set()

        found, _ = await asyncio.gather(ctx.gather("parts", child.calls([1])), later())
        ran.append(found)

    job = order.enqueue(conn)
    await settle(app)
    assert state(conn, job) == "done"
    assert "'beside' begins while step 'parts' gives the slot back" in seen[0]
    assert ran == [1, [1]]


async def test_other_ordering_keys_are_gathered(app, conn):
    """Another key, the key in another queue, and that of a parent without one."""
    seen = []

    @app.job(order_by=("account",))
    async def child(account: int) -> int:
        return account

    @app.job(queue="others", order_by=("account",))
    async def other(account: int) -> int:
        return account

    @app.job(order_by=("account",))
    async def parent(ctx: forebay.Context, account: int) -> None:
        calls = [child.call(8), child.call(8), other.call(7)]
        seen.append(await ctx.gather("parts", calls))

    @app.job()
    async def without(ctx: forebay.Context) -> None:
        seen.append(await ctx.gather("parts", child.calls([7, 8])))

    parent.enqueue(conn, 7)
    without.enqueue(conn)
    await settle(app)
    assert sorted(seen) == [[7, 8], [8, 8, 7]]

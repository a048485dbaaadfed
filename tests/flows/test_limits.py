"""Limits of a flow: what could not be recorded does not begin; a compensation has a reserve."""

import pytest

import forebay
from forebay import RetryPolicy
from forebay.errors import StepTooLarge
from forebay.worker.run import _flow
from tests.support.engine import one, state
from tests.support.fix_worker import run_retries

pytestmark = pytest.mark.anyio

SOON = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)


async def _each(ctx, effect):
    async for item in ctx.each("over", [1], key=str):
        effect(item)


WHAT = {
    "step": lambda ctx, effect: ctx.step("over", effect, 1),
    "once": lambda ctx, effect: ctx.once("over", lambda conn: effect(1)),
    "each": _each,
    "sleep": lambda ctx, effect: ctx.sleep("over", 0.001),
    "wait": lambda ctx, effect: ctx.wait("over", key=1),
}


@pytest.mark.parametrize("verb", WHAT)
async def test_what_is_over_the_limit_does_not_begin(app, conn, monkeypatch, verb):
    """It could never be recorded; the handler may compensate with steps, in later attempts too."""
    monkeypatch.setattr(_flow, "STEPS_MOST", 2)
    effects, attempts = [], []

    @app.job(retry=SOON)
    async def flow(ctx: forebay.Context) -> None:
        await ctx.step("a", int)
        await ctx.step("b", int)
        try:
            await WHAT[verb](ctx, effects.append)
        except StepTooLarge as error:
            attempts.append(error.step.partition("[")[0])
            await ctx.step("undo b", effects.append, "undo b")
            if len(attempts) < 2:
                raise OSError from None
            await ctx.step("undo a", effects.append, "undo a")

    job = flow.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "done"
    assert (effects, attempts) == (["undo b", "undo a"], ["over"] * 2)
    assert one(conn, "select count(*) from forebay.step") == 4


async def test_a_gather_over_the_limit_enqueues_nothing(app, conn, monkeypatch):
    """Uncaught, the error makes the job a dead letter."""
    monkeypatch.setattr(_flow, "STEPS_MOST", 1)

    @app.job()
    async def child(n: int) -> None: ...

    @app.job()
    async def flow(ctx: forebay.Context) -> None:
        await ctx.step("a", int)
        await ctx.gather("over", child.calls([1]))

    job = flow.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    assert one(conn, "select count(*) from forebay.log where kind = 'child'") == 0


async def test_the_reserve_for_compensation_has_an_end(app, conn, monkeypatch):
    """A handler that ignores the error is refused in the end."""
    monkeypatch.setattr(_flow, "STEPS_MOST", 2)
    monkeypatch.setattr(_flow, "STEPS_MORE", 3)
    effects, refused = [], []

    @app.job()
    def flow(ctx: forebay.Context) -> None:
        for n in range(8):
            try:
                ctx.step("s", effects.append, n, key=n)
            except StepTooLarge:
                refused.append(n)

    flow.enqueue(conn)
    await run_retries(app, conn)
    assert (effects, refused) == ([0, 1, 3, 4, 5], [2, 6, 7])


async def test_a_result_too_large_leaves_a_reserve_for_what_undoes_it(app, conn, monkeypatch):
    """What was not recorded does not count."""
    monkeypatch.setattr(_flow, "FLOW_BYTES_MOST", 100)
    effects = []

    @app.job()
    async def flow(ctx: forebay.Context) -> None:
        await ctx.step("a", lambda: "a" * 50)
        try:
            await ctx.step("b", lambda: "b" * 50)
        except StepTooLarge:
            await ctx.step("undo", effects.append, "undo")
            await ctx.step("note", lambda: "noted")

    job = flow.enqueue(conn)
    await run_retries(app, conn)
    assert (state(conn, job), effects) == ("done", ["undo"])

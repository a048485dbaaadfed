"""A cancellation reaches a flow although the code that continues it has another wait."""

import pytest

import forebay
from forebay.errors import JobCancelled
from tests.support.engine import state
from tests.support.fix_worker import run_retries, run_until_idle

pytestmark = pytest.mark.anyio

SOON = forebay.RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)


@pytest.mark.parametrize("verb", ["wait", "sleep", "gather"])
async def test_a_flow_whose_wait_was_renamed_compensates(app, conn, verb):
    done, is_new, tries = [], [False], []

    @app.job()
    async def child() -> None: ...

    def refund():
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        done.append("refund")

    @app.job()
    async def order(ctx: forebay.Context) -> None:
        await ctx.step("charge", lambda: done.append("charge"))
        try:
            if not is_new[0]:
                await ctx.wait("shipped", key=1)
            elif verb == "wait":
                await ctx.wait("sent", key=1)
            elif verb == "sleep":
                await ctx.sleep("sent", 60)
            else:
                await ctx.gather("sent", [child.call()])
        except JobCancelled:
            await ctx.step("refund", refund, retry=SOON)
            raise
        await ctx.step("thanks", lambda: done.append("thanks"))

    job_id = order.enqueue(conn)
    await run_until_idle(app)
    assert app.client().cancel(job_id) == "requested"
    is_new[0] = True
    await run_until_idle(app)
    await run_retries(app, conn)
    assert (done, state(conn, job_id)) == (["charge", "refund"], "cancelled")

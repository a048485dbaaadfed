"""What an operator or a producer sets for a job does not end a flow between its steps."""

import pytest

import forebay
from forebay import RetryPolicy
from forebay.errors import StepFailed
from tests.support.engine import one, shift_clock, state
from tests.support.fix_worker import run_retries, run_until_idle

pytestmark = pytest.mark.anyio

SOON = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)
HOURLY = RetryPolicy(max_attempts=2, strategy="fixed", base_seconds=3600, jitter=False)


def _broken():
    raise ConnectionError


@pytest.mark.parametrize("most", [1, 2, 9])
async def test_the_maximum_of_a_queue_is_none_of_a_step(app, conn, most):
    done = []

    @app.job()
    async def trip(ctx: forebay.Context) -> None:
        try:
            await ctx.step("flight", lambda: done.append("flight"))
            await ctx.step("car", _broken, retry=SOON)
        except StepFailed:
            await ctx.step("undo", lambda: done.append("undo"))

    conn.execute("select forebay.set_max_attempts('default', %s)", [most])
    job_id = trip.enqueue(conn)
    await run_retries(app, conn)
    assert (done, state(conn, job_id)) == (["flight", "undo"], "done")


async def test_a_step_that_failed_for_good_is_not_retried_by_a_queue_with_more_attempts(app, conn):
    begun = []

    @app.job()
    async def trip(ctx: forebay.Context) -> None:
        begun.append(1)
        await ctx.step("car", _broken, retry=RetryPolicy(max_attempts=1))

    conn.execute("select forebay.set_max_attempts('default', 9)")
    job_id = trip.enqueue(conn)
    await run_retries(app, conn)
    assert (len(begun), state(conn, job_id)) == (1, "dead")


async def test_a_flow_that_has_begun_does_not_expire_before_a_retry(app, conn):
    done = []

    @app.job(retry=HOURLY)
    async def order(ctx: forebay.Context) -> None:
        try:
            await ctx.step("charge", lambda: done.append("charge"))
            await ctx.step("ship", _broken)
        except StepFailed:
            await ctx.step("refund", lambda: done.append("refund"))

    job_id = order.using(expires_in=1800).enqueue(conn)
    await run_until_idle(app)
    shift_clock(conn, 3700)
    await run_until_idle(app)
    assert (done, state(conn, job_id)) == (["charge", "refund"], "done")


@pytest.mark.parametrize("has_step", [True, False])
async def test_only_a_checkpoint_ends_the_expiry(app, conn, has_step):
    @app.job(retry=HOURLY)
    async def order(ctx: forebay.Context) -> None:
        if has_step:
            await ctx.step("charge", lambda: None)
        raise ConnectionError

    job_id = order.using(expires_in=1800).enqueue(conn)
    await run_until_idle(app)
    shift_clock(conn, 3700)
    await run_until_idle(app)
    assert (state(conn, job_id) == "expired") is not has_step
    assert one(conn, "select count(*) from forebay.dead_letter") == 1

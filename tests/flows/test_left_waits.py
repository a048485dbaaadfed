"""A flow that has left its wait takes no signal, and keeps no other flow from waiting for it."""

from datetime import timedelta

import pytest

import forebay
from tests.support.engine import shift_clock, state
from tests.support.fix_worker import run_until_idle

pytestmark = pytest.mark.anyio


async def _until_idle(app):
    for _ in range(3):
        await run_until_idle(app)


def _one_that_leaves(app, end):
    """Return a flow whose wait times out, and whose next code has no such wait."""
    has_wait = [True]

    @app.job()
    async def leaves(ctx: forebay.Context) -> None:
        if has_wait[0]:
            await ctx.wait("approval", key=7, timeout=60)
        if end == "sleep":
            await ctx.sleep("week", timedelta(weeks=1))

    return leaves, has_wait


async def _leave(app, conn, end):
    leaves, has_wait = _one_that_leaves(app, end)
    job_id = leaves.enqueue(conn)
    await _until_idle(app)
    has_wait[0] = False
    shift_clock(conn, 61)
    await _until_idle(app)
    return job_id


@pytest.mark.parametrize("end", ["sleep", "done"])
@pytest.mark.parametrize("first", ["signal", "wait"])
async def test_a_signal_goes_to_the_flow_that_waits_now(app, conn, end, first):
    got = []

    @app.job()
    async def waits(ctx: forebay.Context) -> None:
        got.append(await ctx.wait("approval", key=7))

    await _leave(app, conn, end)
    assert conn.execute("select * from forebay.signal_waits('7')").fetchall() == []
    if first == "signal":
        assert forebay.signal(conn, "approval", 7, "yes")
        await _until_idle(app)
    job_id = waits.enqueue(conn)
    await _until_idle(app)
    if first == "wait":
        assert state(conn, job_id) == "scheduled"
        assert forebay.signal(conn, "approval", 7, "yes")
        await _until_idle(app)
    assert got == ["yes"]

"""Flows in the tests of an application: to their ends, with the clock moved and signals sent."""

from datetime import timedelta

import pytest

import forebay
from forebay.testing import install_clock, run_until_idle
from tests.support.engine import state


@pytest.mark.usual("a clock is installed and moved by the owner of the schema")
def test_a_flow_runs_to_its_end_at_once(app, conn, database):
    """Two weeks, a signal and children; without the signal it stays where it waits."""
    seen = []

    @app.job
    async def label(n: int) -> int:
        return n

    @app.job
    async def fulfil(ctx: forebay.Context, order: int) -> None:
        await ctx.sleep("cooling off", timedelta(days=14))
        seen.append(await ctx.wait("approval", key=order))
        seen.append(await ctx.gather("labels", label.calls([1, 2])))

    install_clock(conn)
    first, second = fulfil.enqueue(conn, 1), fulfil.enqueue(conn, 2)
    forebay.signal(conn, "approval", 1, "yes")
    ran = run_until_idle(app, database, with_scheduled=True)
    assert seen[-1] == [1, 2]
    assert (state(conn, first), state(conn, second)) == ("done", "scheduled")
    assert 14 * 86_400 - 60 < ran.moved_seconds < 15 * 86_400
    forebay.signal(conn, "approval", 2, "yes")
    run_until_idle(app, database, with_scheduled=True)
    assert state(conn, second) == "done"

"""Workers that end when they are idle."""

import pytest

from tests.support.engine import Reader, enqueue, shift_clock, state
from tests.support.mutant import violation

pytestmark = pytest.mark.anyio


async def run_after_a_lost_worker(app, conn, database) -> str | None:
    ran = []

    @app.job
    async def work() -> None:
        ran.append(1)

    job_id = enqueue(conn)
    with Reader(database, lease_seconds=30, suspect_seconds=0.3) as lost:
        assert lost.claim().job_ids == [job_id]
    shift_clock(conn, 60)
    assert state(conn, job_id) == "claimed"
    await app.worker().run(until_idle=True)
    return state(conn, job_id)


async def test_a_short_run_takes_over_what_a_lost_worker_held(app, conn, database):
    """
    An installation that runs workers from cron only recovers the jobs of one that was killed: a run
    does not end before.
    """
    assert await run_after_a_lost_worker(app, conn, database) == "done"


async def test_a_run_that_ends_at_once_leaves_them(app, conn, database, monkeypatch):
    """
    The mutant does not look after silent leases.
    """
    from forebay.ops import maintenance as operations
    from forebay.worker.maintain.maintenance import Maintenance

    async def promote_only(self) -> bool:
        return await self._session.run(operations.promote(5000)) > 0

    monkeypatch.setattr(Maintenance, "run_once", promote_only)
    with violation(AssertionError):
        assert await run_after_a_lost_worker(app, conn, database) == "done"


async def test_a_worker_that_lives_is_not_waited_for(app, conn, database):
    """
    Its jobs are its own; the run ends.
    """

    @app.job
    async def work() -> None: ...

    job_id = enqueue(conn)
    with Reader(database) as alive:
        assert alive.claim().job_ids == [job_id]
        await app.worker().run(until_idle=True)
        assert state(conn, job_id) == "claimed"

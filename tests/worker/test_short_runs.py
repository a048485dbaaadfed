"""Workers that end when they are idle."""

import pytest

import forebay
from forebay.errors import DatabaseUnavailable, PermissionDenied
from tests.support.engine import Reader, enqueue, shift_clock, state
from tests.support.least_privilege import as_login
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


@pytest.mark.parametrize("role", ["reader", "producer", "operator", None])
async def test_a_run_of_a_login_that_is_no_workers_ends(app, conn, role):
    """From cron each run would stand for ever beside the others; it says which role is missing."""
    login = f"short_{role}".lower()
    member = f" in role forebay_{role}" if role else ""
    conn.execute(f"create role {login} login{member}")
    try:
        own = forebay.App(as_login(conn.info.dsn, login))

        @own.job
        def work() -> None: ...

        with pytest.raises(PermissionDenied) as caught:
            await own.worker().run(until_idle=True)
        assert "forebay_worker" in caught.value.hint
    finally:
        conn.execute(f"drop role {login}")


async def test_a_run_that_does_not_reach_its_database_ends(app, conn, monkeypatch):
    """A wrong name or password does not become right, and from cron the next run tries again."""
    monkeypatch.setattr("forebay.worker.lease.leases._SHORT_RUN_SECONDS", 0.0)
    own = forebay.App(as_login(conn.info.dsn, "no_such_login"))

    @own.job
    def work() -> None: ...

    with pytest.raises(DatabaseUnavailable):
        await own.worker().run(until_idle=True)

"""A running worker follows the settings of the database, where nobody else has set them."""

import pytest

import forebay
from forebay import Breaker, RetryPolicy
from forebay.config import RetrySettings, Settings, WorkerSettings
from tests.support.engine import enqueue, one, state
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio


def configure(conn, name, value):
    return one(conn, "select forebay.configure(%s, %s)", name, value)


@pytest.mark.slow
async def test_a_running_worker_retries_as_the_database_says(app, conn):
    """Attempts and delays of kinds that declare none change with the next heartbeat; those of a
    kind with its own stay.
    """
    seen = []

    @app.job()
    async def plain(ctx: forebay.Context) -> None:
        seen.append(ctx.job.max_attempts)
        raise ValueError

    @app.job(retry=RetryPolicy(max_attempts=4, base_seconds=1000))
    async def own(ctx: forebay.Context) -> None:
        raise ValueError

    @app.job(max_attempts=2)
    async def some(ctx: forebay.Context) -> None:
        raise ValueError

    def delay(job_id: int) -> float:
        return one(conn, "select extract(epoch from run_at - now()) from forebay.job(%s)", job_id)

    async with running(app):
        assert configure(conn, "retry_base_seconds", 100) == 5
        configure(conn, "retry_strategy", "fixed")
        configure(conn, "retry_jitter", False)
        configure(conn, "max_attempts", 3)

        def most_seen() -> int:
            plain.enqueue(conn)
            return seen[-1] if seen else 0

        await wait_for_async(lambda: most_seen() == 3)
        jobs = [plain.enqueue(conn), some.enqueue(conn), own.enqueue(conn)]
        await wait_for_async(lambda: all(state(conn, job) == "retrying" for job in jobs))
        assert 60 < delay(jobs[0]) <= 100
        assert 60 < delay(jobs[1]) <= 100
        assert delay(jobs[2]) > 400
        assert one(conn, "select max_attempts from forebay.failure where job_id = %s", jobs[1]) == 2
        for name in ("max_attempts", "retry_strategy", "retry_base_seconds", "retry_jitter"):
            configure(conn, name, None)
        await wait_for_async(lambda: most_seen() == 20)


@pytest.mark.slow
async def test_what_the_process_has_set_comes_before_the_database(database, conn):
    """Setting by setting: what the process leaves out is the database's."""
    retry = RetrySettings(max_attempts=2)
    app = forebay.App(database, settings=Settings(worker=WorkerSettings(**FAST), retry=retry))
    configure(conn, "max_attempts", 9)
    configure(conn, "retry_base_seconds", 0.001)
    configure(conn, "retry_cap_seconds", 0.001)

    @app.job()
    async def plain() -> None:
        raise ValueError

    async with running(app):
        job = plain.enqueue(conn)
        await wait_for_async(lambda: state(conn, job) == "dead")
    assert one(conn, "select attempt from forebay.dead_letter") == 2


@pytest.mark.slow
async def test_a_new_length_of_leases_holds_for_the_next_lease(app, conn):
    """A running worker opens one at once; its jobs go on under the old one."""
    lease = (
        "select lease_seconds from forebay.lease where closed_at is null order by opened_at desc"
    )
    async with running(app, lease_seconds=30.0, queues="default") as worker:
        assert one(conn, f"{lease} limit 1") == 30
        configure(conn, "lease_seconds", 60)
        await wait_for_async(lambda: one(conn, f"{lease} limit 1") == 60)
        await wait_for_async(lambda: conn.execute(lease).fetchall() == [(60.0,)])
        assert worker.stats.leases_lost == 0
        configure(conn, "lease_seconds", None)
        await wait_for_async(lambda: conn.execute(lease).fetchall() == [(30.0,)])
    given = frozenset({"lease_seconds"})
    configure(conn, "lease_seconds", 60)
    async with running(app, lease_seconds=30.0, queues="default", given=given):
        assert one(conn, f"{lease} limit 1") == 30


@pytest.mark.slow
async def test_a_breaker_without_numbers_has_those_of_the_database(app, conn):
    """It opens after as many failures as the database says."""

    @app.job(limit_by=("host",), breaker=Breaker(), retry=RetryPolicy(base_seconds=0.001))
    async def fetch(host: str) -> None:
        raise ConnectionError(host)

    configure(conn, "breaker_failures", 2)
    configure(conn, "breaker_cooldown_seconds", 600)
    async with running(app):
        fetch.enqueue(conn, "down")
        fetch.enqueue(conn, "down")
        opened = (
            "select threshold, cooldown, cooldown_max from forebay.breaker where opened_at < now()"
        )
        await wait_for_async(lambda: conn.execute(opened).fetchall() == [(2, 600.0, 600.0)])


@pytest.mark.slow
async def test_a_child_process_follows_too(database, conn, workers):
    """Its parent tells it with each job."""
    configure(conn, "retry_strategy", "fixed")
    configure(conn, "retry_base_seconds", 1000)
    configure(conn, "retry_cap_seconds", 1000)
    configure(conn, "retry_jitter", False)
    workers.start()
    job = enqueue(conn, kind="not_run_in_process", args={"entry": 1})
    await wait_for_async(lambda: state(conn, job) == "retrying", 60)
    left = "select extract(epoch from run_at - now()) from forebay.job(%s)"
    assert 900 < one(conn, left, job) <= 1000

"""The clock of the server is set, forward and back, while workers work and after one died."""

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest

import forebay
from tests.support.engine import Reader, connect, enqueue, one, state, trim
from tests.support.fix_db import make_migrated
from tests.support.fix_worker import running
from tests.support.stepping_server import SteppingServer, stepping_server
from tests.support.waiting import wait_for_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

#: Heartbeats so far apart that a lease looks lost between two of them, if the clock alone decides.
_SELDOM = {
    "lease_seconds": 12.0,
    "lease_margin_seconds": 2.0,
    "suspect_seconds": 8.0,
    "heartbeat_seconds": 3.9,
}
_OFTEN = {
    "lease_seconds": 4.0,
    "lease_margin_seconds": 1.0,
    "suspect_seconds": 2.0,
    "heartbeat_seconds": 0.5,
}
_HOUR = 3600


@pytest.fixture
def stepping(pg_bin, monkeypatch) -> Iterator[SteppingServer]:
    """A server whose clock can be set."""
    with stepping_server(pg_bin, monkeypatch) as server:
        yield server


@pytest.fixture
def dsn(stepping) -> str:
    """A migrated database on it."""
    return stepping.server.dsn(make_migrated(stepping.server, "test"))


def server_ahead(conn: psycopg.Connection) -> float:
    """Return how many seconds the server's clock is ahead of this process."""
    return float(one(conn, "select extract(epoch from clock_timestamp())")) - time.time()


async def test_a_living_worker_keeps_its_lease_when_the_clock_is_set_forward(stepping, dsn):
    """
    Between two heartbeats the clock jumps an hour. The worker that does the maintenance sees an
    hour of silence on every lease; it has not seen it pass.
    """
    apps = [forebay.App(dsn) for _ in range(2)]
    may_end = asyncio.Event()
    runs: list[int] = []

    def handler(app: forebay.App) -> None:
        @app.job(name="work")
        async def work(ctx: forebay.Context) -> None:
            runs.append(ctx.job.job_id)
            await may_end.wait()

    for app in apps:
        handler(app)
    with connect(dsn) as conn:
        jobs = {enqueue(conn, kind="work") for _ in range(2)}
        async with running(apps[0], concurrency=1, **_SELDOM) as first:
            await wait_for_async(lambda: len(runs) == 1)
            async with running(apps[1], concurrency=1, **_SELDOM) as second:
                await wait_for_async(lambda: len(runs) == 2)
                beats = "select count(*) from forebay.heartbeat"
                so_far = one(conn, beats)
                await wait_for_async(lambda: one(conn, beats) > so_far)
                stepping.set_clock(_HOUR)
                assert server_ahead(conn) > _HOUR - 60
                # Two leases, and several rounds of heartbeats: every lease has been judged many
                # times.
                until = time.monotonic() + 16
                await wait_for_async(lambda: time.monotonic() > until)
                assert (
                    one(conn, "select count(*) from forebay.lease where closed_at is not null") == 0
                )
                may_end.set()
                await wait_for_async(lambda: all(state(conn, job) == "done" for job in jobs))
                assert (first.stats.leases_lost, second.stats.leases_lost) == (0, 0)
    assert sorted(runs) == sorted(jobs), "each job ran once"


@pytest.mark.parametrize("seconds", [-_HOUR, -20, _HOUR])
async def test_the_jobs_of_a_dead_worker_run_soon_after_the_clock_was_set(stepping, dsn, seconds):
    """
    A worker died, and its last heartbeats are in the future, or an hour ago. A living worker gets
    its jobs after the time that it takes to see the silence, and keeps its own lease.
    """
    app = forebay.App(dsn)
    ran: list[int] = []

    @app.job(name="work")
    async def work(ctx: forebay.Context) -> None:
        ran.append(ctx.job.job_id)

    with connect(dsn) as conn:
        job = enqueue(conn, kind="work")
        dead = Reader(dsn, lease_seconds=4.0, suspect_seconds=2.0)
        assert dead.claim(1).job_ids == [job]
        async with running(app, **_OFTEN) as worker:
            dead.conn.close()
            stepping.set_clock(seconds)
            begun = time.monotonic()
            await wait_for_async(lambda: job in ran, 20)
            print(f"after {time.monotonic() - begun:.1f} s")
            other = enqueue(conn, kind="work")
            await wait_for_async(lambda: other in ran, 5)
            assert worker.stats.leases_lost == 0
        assert one(
            conn, "select closed_as from forebay.lease where lease_id = %s", dead.lease_id
        ) == ("revoked")


async def test_nothing_waits_for_a_time_from_before_the_clock_was_set_back(stepping, dsn):
    """
    Flags with times in the future count no longer: producers notify only while a worker sleeps,
    leadership is taken again, and delayed jobs start by the new clock.
    """
    app = forebay.App(dsn)
    ran: list[int] = []

    @app.job(name="work")
    async def work(ctx: forebay.Context) -> None:
        ran.append(ctx.job.job_id)

    stepping.set_clock(_HOUR)
    with connect(dsn) as conn:
        async with running(app, **_OFTEN):
            early = enqueue(conn, kind="work")
            await wait_for_async(lambda: early in ran)
            await wait_for_async(lambda: one(conn, "select forebay._is_awaited('default')"))
        one(conn, "select forebay.lead_v1(7, '{0}', 100)")
        stepping.set_clock(0)
        assert not one(conn, "select forebay._is_awaited('default')")
        assert one(conn, "select forebay._leader_of(0)") is None
        async with running(app, **_OFTEN):
            due = one(conn, "select forebay.enqueue('work', '{}', delay => '1 second')")
            later = one(conn, "select forebay.enqueue('work', '{}', delay => '10 minutes')")
            await wait_for_async(lambda: due in ran, 10)
            assert state(conn, later) == "scheduled"
            await wait_for_async(lambda: one(conn, "select forebay._is_awaited('default')"))
            trim(conn)

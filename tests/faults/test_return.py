"""The database returns after an outage: jobs run again within two seconds, and lost leases are
revoked within eight.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

import anyio
import psycopg
import pytest

import forebay
from forebay.embedded import EmbeddedServer
from tests.support.engine import Reader, connect, enqueue, one
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async

pytestmark = [pytest.mark.anyio, pytest.mark.crash, pytest.mark.slow]

#: What the settings of tests shorten is as in production, except the lease: it is given up during
#: each outage.
_LEASE = {
    "lease_seconds": 4.0,
    "lease_margin_seconds": 1.0,
    "suspect_seconds": 2.0,
    "heartbeat_seconds": 1.0,
    "connect_timeout_seconds": 5.0,
    "poll_seconds": 0.05,
}

_FIRST_JOB_SECONDS = 2.0
_REVOKED_SECONDS = 8.0


class Started:
    """A server that starts in a thread, and when it accepted a connection."""

    def __init__(self, server: EmbeddedServer, dsn: str) -> None:
        self.accepted_at: float | None = None
        self.job: int | None = None
        self._starter = threading.Thread(target=server.start)
        self._watcher = threading.Thread(target=self._watch, args=[dsn])
        self._starter.start()
        self._watcher.start()

    def _watch(self, dsn: str) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(psycopg.OperationalError), connect(dsn) as conn:
                self.accepted_at = time.monotonic()
                self.job = enqueue(conn, kind="work")
                return
            time.sleep(0.01)

    def join(self) -> None:
        self._starter.join(60)
        self._watcher.join(60)


@contextlib.contextmanager
def down(server: EmbeddedServer, dsn: str) -> Iterator[list[Started]]:
    """Kill the server; start it again at the end."""
    server.kill()
    started: list[Started] = []
    try:
        yield started
    finally:
        started.append(Started(server, dsn))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("downtime_seconds", [1.0, 7.0])
async def test_jobs_run_within_two_seconds_of_the_return(
    own_server, own_database, downtime_seconds, count, caplog
):
    """
    The outage is shorter than the lease, and longer; with one worker and with several. A worker
    reports it once.
    """
    ran: dict[int, float] = {}
    apps = [forebay.App(own_database) for _ in range(count)]

    def handler(app: forebay.App) -> None:
        @app.job(name="work")
        async def work(ctx: forebay.Context) -> None:
            ran.setdefault(ctx.job.job_id, time.monotonic())

    with connect(own_database) as conn:
        job = enqueue(conn, kind="work")
    async with contextlib.AsyncExitStack() as stack:
        for app in apps:
            handler(app)
            await stack.enter_async_context(running(app, **_LEASE))
        await wait_for_async(lambda: job in ran)
        caplog.clear()
        with down(own_server, own_database) as started:
            await anyio.sleep(downtime_seconds)
        (back,) = started
        await wait_for_async(lambda: back.job in ran, 30)
        back.join()
        assert back.job is not None
        assert back.accepted_at is not None
        late = ran[back.job] - back.accepted_at
        print(f"first job {late:.2f} s after the server accepted connections")
        assert late <= _FIRST_JOB_SECONDS
    reports = [r.getMessage() for r in caplog.records if "database unavailable" in r.getMessage()]
    # The connection breaks; no server; perhaps it starts up: each in a few wordings, whatever the
    # number of attempts.
    assert len(reports) <= 6 * count, reports


async def test_a_lease_from_before_the_outage_is_revoked_soon(own_server, own_database):
    """
    A worker died with the server. Its jobs run on a living worker within seconds of the return.
    """
    ran: dict[int, float] = {}
    app = forebay.App(own_database)

    @app.job
    async def work(ctx: forebay.Context) -> None:
        ran.setdefault(ctx.job.job_id, time.monotonic())

    with connect(own_database) as conn, Reader(own_database, suspect_seconds=5) as dead:
        job = enqueue(conn, kind=work.kind.name)
        assert dead.claim(1).job_ids == [job]
        conn.execute("select pg_switch_wal()")
        one(conn, "select forebay.open_group('default', 'default')")
    async with running(app, **_LEASE | {"suspect_seconds": 3.0}):
        with down(own_server, own_database) as started:
            await anyio.sleep(7.0)
        (back,) = started
        await wait_for_async(lambda: job in ran, 30)
        back.join()
        assert back.accepted_at is not None
        late = ran[job] - back.accepted_at
        print(f"revoked and run {late:.2f} s after the server accepted connections")
        assert late <= _REVOKED_SECONDS

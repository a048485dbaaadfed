"""Commits that were confirmed and are lost: after a crash without synchronous commit, or on a
promoted standby.

A client that outlives them still has the names that these commits gave it. No later lease, group or
backfill has such a name.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import forebay
from forebay.config import Settings, WorkerSettings
from forebay.embedded import EmbeddedServer
from tests.support.engine import Reader, connect, enqueue, one, state
from tests.support.fix_db import make_migrated
from tests.support.fix_worker import running
from tests.support.standby import primary_and_standby, wait_until_replayed
from tests.support.waiting import wait_for_async
from tests.support.worker_process import FAST

pytestmark = [pytest.mark.crash, pytest.mark.slow]

_DURABLE_LATE = {
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
    "bgwriter_delay": "10s",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
}


@pytest.fixture
def failover(pg_bin) -> Iterator[tuple[EmbeddedServer, EmbeddedServer, str]]:
    """A primary and a standby with a migrated database, and its name."""
    with primary_and_standby(pg_bin) as (primary, standby):
        name = make_migrated(primary, "test")
        wait_until_replayed(primary, standby)
        yield primary, standby, name


def stop_standby(primary: EmbeddedServer, standby: EmbeddedServer) -> None:
    """From here on the primary confirms commits that the standby never gets."""
    wait_until_replayed(primary, standby)
    standby.stop()


def fail_over(primary: EmbeddedServer, standby: EmbeddedServer) -> None:
    """Kill the primary and promote the standby."""
    primary.kill()
    standby.start()
    with connect(standby.dsn()) as conn:
        assert one(conn, "select pg_promote(true, 60)")


@contextmanager
def cut_off(primary: EmbeddedServer, standby: EmbeddedServer) -> Iterator[None]:
    """Confirm commits on the primary that are lost on the new primary."""
    stop_standby(primary, standby)
    yield
    fail_over(primary, standby)


def repeated_flush(conn: psycopg.Connection, old: Reader) -> str | None:
    """Send the flush of the old worker's first batch again.

    Return its status, or the SQLSTATE of the refusal.
    """
    flush = json.dumps([{"claim_no": 1, "flush_no": 1}])
    try:
        return one(conn, "select status from forebay.settle_v1(%s, %s::jsonb)", old.lease_id, flush)
    except psycopg.Error as error:
        return error.sqlstate


def require_that_jobs_run(dsn: str, old: Reader, jobs: list[int]) -> None:
    """A new worker claims the jobs; the old worker's flush must not end them."""
    with connect(dsn) as conn, Reader(dsn) as new:
        batch = new.claim(10)
        assert batch.job_ids == jobs
        assert repeated_flush(conn, old) == "JQ010"
        answer = one(conn, "select h.open_leases from forebay.heartbeat_v1(%s) h", [old.lease_id])
        assert answer == []
        assert [state(conn, job) for job in jobs] == ["claimed"] * len(jobs)
        assert new.lease_id != old.lease_id
        new.finish(batch)
        assert [state(conn, job) for job in jobs] == ["done"] * len(jobs)


def test_a_lease_that_a_crash_undid_settles_nothing(own_server, own_database):
    """
    The opening of a lease was not flushed when the server was killed. The next worker claims the
    same jobs with the same claim number; the old worker sends its settlement again.
    """
    own_server.stop()
    own_server.extra_settings |= _DURABLE_LATE
    own_server.start()
    for _ in range(20):
        with connect(own_database) as conn:
            jobs = [enqueue(conn) for _ in range(3)]
            one(conn, "select forebay.open_group('default')")
            conn.execute("checkpoint")
            flushed = "select pg_current_wal_flush_lsn()"
            before = one(conn, flushed)
            conn.execute("set synchronous_commit = off")
            old = Reader(own_database, conn=conn)
            assert old.claim(10).job_ids == jobs
            is_lost = one(conn, flushed) == before
            own_server.kill()
        own_server.start()
        with connect(own_database) as conn:
            query = "select count(*) from forebay.lease where lease_id = %s"
            if is_lost and not one(conn, query, old.lease_id):
                return require_that_jobs_run(own_database, old, jobs)
        with Reader(own_database) as sweeper:
            one(sweeper.conn, "select forebay._revoke(%s, 'revoked', false)", old.lease_id)
            for batch in sweeper.claim_all():
                sweeper.finish(batch)
    pytest.fail("the lease always reached the disk")


def test_a_lease_of_the_failed_primary_settles_nothing_on_the_new_one(failover):
    """The same on a promoted standby, which has the jobs and not the lease."""
    primary, standby, name = failover
    with connect(primary.dsn(name)) as conn:
        jobs = [enqueue(conn) for _ in range(3)]
        one(conn, "select forebay.open_group('default')")
    with cut_off(primary, standby):
        old = Reader(primary.dsn(name))
        assert old.claim(10).job_ids == jobs
        assert old.settle(1) == "settled"
        old.conn.close()
    require_that_jobs_run(standby.dsn(name), old, jobs)


def test_a_group_of_the_failed_primary_is_no_other_group(failover):
    """
    The opening of a group is lost, and another group is opened on the new primary. What the old
    worker claims, polls or leads under its group's id does not concern the other group.
    """
    primary, standby, name = failover
    with cut_off(primary, standby), connect(primary.dsn(name)) as conn:
        lost = one(conn, "select forebay.open_group('mail')")
        backfill = (
            "select backfill_id from forebay.backfill_record_v1('k', 'select 1', 'n', '{}', "
            "null, '{1}', '{1}', '{1}')"
        )
        lost_backfill = one(conn, backfill)
    with connect(standby.dsn(name)) as conn:
        for queue in ("reports", "files"):
            assert one(conn, "select forebay.open_group(%s)", queue) != lost
        assert one(conn, backfill) != lost_backfill
        assert conn.execute("select * from forebay.ready_v1(%s)", [[lost]]).fetchall() == []


@pytest.mark.anyio
async def test_a_worker_changes_to_the_new_primary(failover):
    """
    A worker's lease and its group's opening are lost with the primary. The worker opens both on the
    promoted standby and runs what is enqueued there; what it ran for the lost lease does not end a
    job there.
    """
    primary, standby, name = failover
    dsn = make_conninfo(
        host=f"{primary.socket_dir},{standby.socket_dir}",
        port="5432,5432",
        user="postgres",
        dbname=name,
        target_session_attrs="read-write",
    )
    app = forebay.App(dsn, settings=Settings(worker=WorkerSettings(**FAST)))
    ran: list[int] = []
    is_lost = asyncio.Event()

    @app.job(queue="mail")
    async def send(number: int) -> None:
        ran.append(number)
        if number < 10:
            await is_lost.wait()

    def enqueued(server: EmbeddedServer, number: int) -> int:
        with connect(server.dsn(name)) as conn:
            return enqueue(conn, kind=send.kind.name, queue="mail", args={"number": number})

    kept = enqueued(primary, 1)
    stop_standby(primary, standby)
    async with running(app, dsn=dsn) as worker:
        await wait_for_async(lambda: ran == [1])
        fail_over(primary, standby)
        new = enqueued(standby, 10)
        await wait_for_async(lambda: 10 in ran)
        is_lost.set()
        with connect(standby.dsn(name)) as conn:
            await wait_for_async(lambda: state(conn, kept) == state(conn, new) == "done")
        assert ran.count(1) == 2, "it ran for the lost lease, and again"
        assert worker.stats.claimed >= 3

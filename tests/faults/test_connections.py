"""Connections that are half open, refused, read-only, or too few; locks and clocks of strangers."""

import asyncio
import gc
import time

import psycopg
import pytest

import forebay
from forebay import RetryPolicy
from forebay.db.session import Session
from forebay.embedded import temporary_server
from forebay.errors import DatabaseUnavailable
from forebay.ops import protocol
from forebay.ops.operation import Operation
from tests.support.engine import connect, depth, enqueue, one, state
from tests.support.fix_db import make_migrated
from tests.support.fix_worker import running
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import SHORT_LEASE

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)


def is_drained(conn) -> bool:
    """Whether the default group has nothing left."""
    return depth(conn).get("default") == (0, 0, 0)


@pytest.mark.slow
async def test_a_heartbeat_connection_that_went_silent_is_replaced_in_time(app, conn, database):
    """
    Half open: the server receives the heartbeat, its answers do not come. The next heartbeat goes
    over a new connection, and the lease is kept.
    """
    finished = []

    @app.job
    async def work() -> None:
        await asyncio.sleep(8)
        finished.append(1)

    with Proxy(database) as proxy:
        async with running(
            app, dsn=proxy.dsn, lease_seconds=8, lease_margin_seconds=2, suspect_seconds=4
        ) as worker:
            work.enqueue(conn)
            await wait_for_async(lambda: worker._executor.busy)
            proxy.freeze("heartbeat_v1")
            await wait_for_async(lambda: finished, 15)
            await wait_for_async(lambda: is_drained(conn))
            assert worker.stats.leases_lost == 0


async def test_without_notifications_the_poll_finds_every_job(app, conn, database, monkeypatch):
    """
    No notification arrives and nobody knows: jobs are found by the poll.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    monkeypatch.setattr(Session, "listen", lambda *_: None)
    async with running(app, dsn=database):
        for number in range(5):
            work.enqueue(conn, number)
            await wait_for_async(lambda n=number: n in ran, 5)


async def test_a_connection_whose_opening_is_cancelled_is_closed():
    """
    The server accepts and does not answer: a call that is cancelled, or that takes too long, leaves
    no open connection, even while its error is kept.
    """
    accepted = []
    closed = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        while await reader.read(1000):
            pass
        closed.set()

    gc.disable()
    try:
        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            dsn = f"host=127.0.0.1 port={port} dbname=none sslmode=disable gssencmode=disable"
            session = Session(dsn, name="cancelled", connect_seconds=60)
            call = asyncio.create_task(session.run(protocol.now()))
            await wait_for_async(lambda: accepted)
            call.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await call
            await asyncio.wait_for(closed.wait(), 10)
            closed.clear()
            session = Session(dsn, name="late", connect_seconds=0.2)
            with pytest.raises(DatabaseUnavailable) as late:
                await session.run(protocol.now())
            await asyncio.wait_for(closed.wait(), 10)
            assert (cancelled.type, late.type) == (asyncio.CancelledError, DatabaseUnavailable)
            for writer in accepted:
                writer.close()
    finally:
        gc.enable()


@pytest.mark.direct  # listens
async def test_a_lost_connection_is_forgotten_by_the_event_loop(database):
    """
    The loop of the application uses the number of its socket again.
    """
    session = Session(database, name="listening")
    told, lost = [], []
    session.listen("told", told.append, lambda: lost.append(1))
    await session.run(protocol.now())
    number = session._conn.pgconn.socket
    with connect(database) as conn:
        conn.execute("notify told, 'it'")
    await wait_for_async(lambda: told == ["it"])
    session.cut()
    await wait_for_async(lambda: lost)
    await session.close()
    assert not asyncio.get_running_loop().remove_reader(number)
    await session.run(protocol.now())
    await session.close()


@pytest.mark.slow
async def test_every_connection_that_goes_silent_is_noticed(app, conn, database):
    """
    Claims, settlements and maintenance each on a connection that swallows everything: within its
    deadline each is replaced, and work goes on without a restart.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn) as worker:
            work.enqueue(conn, 0)
            await wait_for_async(lambda: is_drained(conn))
            settle = proxy.freeze("settle_v1")
            work.enqueue(conn, 1)
            await wait_for_async(lambda: settle.struck)
            faults = [proxy.freeze("poll_v1"), proxy.freeze("maintain_v1")]
            await wait_for_async(lambda: all(fault.struck for fault in faults))
            work.using(delay=0.5).enqueue(conn, 2)
            began = time.monotonic()
            await wait_for_async(lambda: {1, 2} <= set(ran) and is_drained(conn), 75)
            print(f"whole again after {time.monotonic() - began:.1f} s")
            assert time.monotonic() - began < 30
            assert worker.stats.leases_lost == 0


def claimer_pid(conn: psycopg.Connection) -> int | None:
    """Return the backend of a worker's claims, known by what it asked last."""
    row = conn.execute(
        "select pid from pg_stat_activity where pid <> pg_backend_pid()"
        " and query ~ 'ready_v1|poll_v1|claim_v1'"
    ).fetchone()
    return row[0] if row else None


@pytest.mark.slow
async def test_while_no_connection_is_to_be_had_nothing_is_spent(app, conn, database):
    """
    Every connection is cut and new ones are refused, for longer than the lease: afterwards every
    job runs, and those that were interrupted had not used up an attempt.
    """
    attempts = []

    @app.job
    async def work(ctx: forebay.Context, number: int) -> None:
        attempts.append((number, ctx.attempt))
        await asyncio.sleep(0.05)

    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn, concurrency=2, **SHORT_LEASE) as worker:
            work.enqueue_many(conn, [(n,) for n in range(40)])
            await wait_for_async(lambda: len(attempts) > 5)
            with proxy.refuse():
                proxy.cut_all()
                await wait_for_async(lambda: worker.stats.leases_lost, 15)
            await wait_for_async(lambda: is_drained(conn), 30)
    assert {number for number, _ in attempts} == set(range(40))
    assert {attempt for _, attempt in attempts} == {1}


@pytest.mark.slow
async def test_a_full_server_costs_no_running_job_its_lease(pg_bin, caplog):
    """
    All connections are taken when the claiming one is lost. The heartbeat has its own, so running
    jobs are kept; when connections are free again the worker goes on.
    """
    finished = []
    settings = {"max_connections": "14", "superuser_reserved_connections": "0"}
    with temporary_server(pg_bin, extra_settings=settings) as server:
        dsn = server.dsn(make_migrated(server, "test"))
        app = forebay.App(dsn)

        @app.job
        async def work(seconds: float) -> None:
            await asyncio.sleep(seconds)
            finished.append(seconds)

        with connect(dsn) as conn:
            async with running(app, dsn=dsn) as worker:
                work.enqueue(conn, 4.0)
                await wait_for_async(lambda: worker._executor.busy)
                pid = await wait_for_async(lambda: claimer_pid(conn))
                hoard: list[psycopg.Connection] = []
                try:
                    fill(dsn, hoard)
                    conn.execute("select pg_terminate_backend(%s)", [pid])
                    await wait_for_async(lambda: fill(dsn, hoard))
                    await wait_for_async(lambda: "database unavailable" in caplog.text, 15)
                    work.enqueue(conn, 0.0)
                    await wait_for_async(lambda: 4.0 in finished, 15)
                finally:
                    for other in hoard:
                        other.close()
                await wait_for_async(lambda: 0.0 in finished, 20)
                await wait_for_async(lambda: is_drained(conn), 20)
                assert worker.stats.leases_lost == 0


def fill(dsn: str, hoard: list[psycopg.Connection]) -> bool:
    """Take every connection there is; return whether there was any."""
    before = len(hoard)
    while True:
        try:
            hoard.append(psycopg.connect(dsn, autocommit=True))
        except psycopg.OperationalError:
            return len(hoard) > before


@pytest.mark.slow
@pytest.mark.direct  # a pooler keeps sessions that were read-only when they began
async def test_a_read_only_window_pauses_the_work_and_spends_no_attempt(app, conn, caplog):
    """
    The server is read-only for a while, as during a failover: nothing is claimed, nothing fails,
    and the work goes on by itself.
    """
    attempts = []

    @app.job(transaction=True)
    async def work(ctx: forebay.Context, number: int) -> None:
        attempts.append((number, ctx.attempt))

    def read_only(value: str) -> None:
        conn.execute(
            "do $$ begin execute format('alter database %I set default_transaction_read_only ="
            f" {value}', current_database()); end $$"
        )
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname ="
            " current_database() and application_name like 'forebay %'"
        )

    async with running(app):
        work.enqueue(conn, 0)
        await wait_for_async(lambda: is_drained(conn))
        read_only("on")
        work.enqueue_many(conn, [(n,) for n in range(1, 20)])
        await wait_for_async(lambda: "database unavailable" in caplog.text, 15)
        assert len(attempts) == 1
        read_only("off")
        await wait_for_async(lambda: is_drained(conn), 20)
    assert sorted(attempts) == [(n, 1) for n in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tables", ["batch", "settlement", "log, deferred, promotion", "lane, queue_group"]
)
async def test_a_table_locked_by_a_stranger_delays_and_loses_nothing(app, conn, database, tables):
    """
    An ACCESS EXCLUSIVE lock held for longer than the lease on tables of the hot path: claims wait,
    heartbeats do not, no lease is lost, and everything runs once when the lock is gone.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0.5 if number < 3 else 0)

    lease = {"lease_seconds": 6.0, "lease_margin_seconds": 1.0, "suspect_seconds": 2.0}
    names = ", ".join(f"forebay.{name}" for name in tables.split(", "))
    async with running(app, concurrency=5, **lease) as worker:
        work.enqueue_many(conn, [(n,) for n in range(3)])
        await wait_for_async(lambda: len(ran) == 3)
        with connect(database) as stranger:
            stranger.execute("begin")
            stranger.execute(f"lock table {names} in access exclusive mode")
            until = time.monotonic() + lease["lease_seconds"] + 1
            await wait_for_async(lambda: time.monotonic() > until)
            stranger.execute("rollback")
        work.enqueue_many(conn, [(n,) for n in range(3, 20)])
        await wait_for_async(lambda: is_drained(conn), 30)
        assert worker.stats.leases_lost == 0
    assert sorted(ran) == list(range(20))


@pytest.mark.slow
async def test_a_locked_heartbeat_table_stops_handlers_and_work_goes_on_afterwards(
    app, conn, database
):
    """
    When not even heartbeats pass, a worker has to give up its jobs; nothing is settled twice, and
    it recovers.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0.3)

    async with running(app, concurrency=5, **SHORT_LEASE) as worker:
        work.enqueue_many(conn, [(n,) for n in range(5)])
        with connect(database) as stranger:
            stranger.execute("begin")
            stranger.execute("lock table forebay.heartbeat in access exclusive mode")
            await wait_for_async(lambda: worker.stats.leases_lost, 15)
            stranger.execute("rollback")
        work.enqueue_many(conn, [(n,) for n in range(5, 10)])
        await wait_for_async(lambda: is_drained(conn), 30)
    assert set(ran) == set(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("skew", ["-36000", "36000", "315360000"])
async def test_a_worker_whose_clock_is_wrong_starts_nothing_early_and_expires_nothing(
    conn, workers, effects, skew
):
    """
    Hours and years off: leases, due times and expiries go by the database's clock, and a snooze
    lasts as long as asked.
    """
    workers.start(environment={"TEST_CLOCK_SKEW": skew})
    began = one(conn, "select clock_timestamp()")
    enqueue(conn, args={"entry": 1})
    enqueue(conn, args={"entry": 2}, delay="1 second")
    enqueue(conn, args={"entry": 3}, expires_at=one(conn, "select now() + interval '1 hour'"))
    snoozed = enqueue(conn, kind="snooze_until", args={"entry": 4, "seconds": 1.0})
    wait_for(lambda: effects.entries("end") == {1, 2, 3, 4}, 20, lambda: workers.logs)
    took = one(conn, "select extract(epoch from clock_timestamp() - %s)::float", began)
    assert 1 <= took < 15
    ends = {e.entry: e.at for e in effects.all("end")}
    assert ends[2] - ends[1] > 0.8
    first = next(e.at for e in effects.all("start") if e.entry == 4)
    assert 0.9 < ends[4] - first < 8
    wait_for(lambda: state(conn, snoozed) == "done")
    assert one(conn, "select count(*) from forebay.dead_letter") == 0
    assert one(conn, "select count(*) from forebay.lease where closed_as = 'revoked'") == 0


@pytest.mark.parametrize("fate", ["committed", "not committed"])
async def test_an_enqueue_whose_commit_is_in_doubt_is_never_called_a_failure(
    app, conn, database, fate
):
    """
    When the answer to the commit is lost the producer is told that the outcome is unknown, and not
    that it failed.
    """

    @app.job
    async def work() -> None: ...

    with Proxy(database) as proxy:
        app._internals.use(dsn=proxy.dsn)
        arm = proxy.lose_reply if fate == "committed" else proxy.cut
        fault = arm("forebay.enqueue")
        with pytest.raises(DatabaseUnavailable):
            work.enqueue_now()
        assert fault.struck == 1
    wait_for(lambda: one(conn, "select count(*) from forebay.log") == (fate == "committed"))


@pytest.mark.slow
async def test_one_claim_of_ten_thousand_jobs_is_settled_in_full(app, conn):
    """
    The largest claim there is, ended in every way at once: each job is settled as it ended.
    """

    @app.batch_job(size=1000, retry=AT_ONCE, max_attempts=1)
    async def work(jobs: list[forebay.Job]) -> list[object]:
        outcomes = {1: forebay.Cancel("one"), 2: forebay.Dead("two"), 3: ValueError("x" * 1000)}
        return [outcomes.get(job.args["n"] % 10) for job in jobs]

    conn.execute(
        "select forebay.enqueue_many('work',"
        " array(select jsonb_build_object('n', g) from generate_series(1, 10000) g))"
    )
    async with running(app, concurrency=10, claim_rows_max=10_000, ahead_seconds=60):
        await wait_for_async(lambda: is_drained(conn), 60)
    counted = dict(conn.execute("select reason, count(*) from forebay.dead_letter group by 1"))
    assert counted == {"permanent": 1000, "exhausted": 1000}


async def test_a_call_that_is_cut_and_cancelled_logs_nothing(database, caplog):
    """
    As a worker ends: a run with --until-idle in which nothing failed warned now and then that the
    cancellation of a query was interrupted.
    """
    session = Session(database, name="test")
    await session.run(protocol.now())
    call = asyncio.create_task(session.run(Operation("select pg_sleep(60)", lambda _rows: None)))
    with connect(database) as watching:
        sleeps = (
            "select count(*) from pg_stat_activity"
            " where query like '%pg_sleep(60)%' and pid <> pg_backend_pid()"
        )
        await wait_for_async(lambda: one(watching, sleeps) == 1)
    await session.end(5.0)
    call.cancel()
    (ended,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(ended, DatabaseUnavailable)
    await session.close()
    assert [record for record in caplog.records if record.name.startswith("psycopg")] == []


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_call_that_begins_after_the_end_of_a_session_waits_for_its_cancellation(
    database, caplog, is_open
):
    """A duty of maintenance may be between two calls when its worker ends, with no warning."""
    session = Session(database, name="test")
    if is_open:
        await session.run(protocol.now())
    await session.end(5.0)
    call = asyncio.create_task(session.run(protocol.now()))
    for _ in range(20):
        await asyncio.sleep(0)
    call.cancel()
    (ended,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)
    assert not session.is_open or is_open
    await session.close()
    assert [record for record in caplog.records if record.name.startswith("psycopg")] == []

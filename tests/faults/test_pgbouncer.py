"""Through PgBouncer in transaction mode, where each transaction gets another server session."""

import asyncio
import time

import anyio
import asyncpg
import psycopg
import pytest

import forebay
from forebay.config import Settings, WorkerSettings
from forebay.db.session import Session
from forebay.doctor.examine import examine
from forebay.errors import DatabaseUnavailable
from forebay.guard.rules import Rule
from forebay.guard.run import guard
from forebay.ops.operation import Operation, scalar
from tests.client.drivers import asyncpg_address
from tests.support.engine import connect, one, state
from tests.support.fix_worker import running
from tests.support.pgbouncer import pgbouncer
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import FAST, SHORT_LEASE

pytestmark = [pytest.mark.anyio, pytest.mark.direct]

PIDS = Operation("select pg_backend_pid()", scalar)
SETTINGS = ("lock_timeout", "statement_timeout", "default_transaction_read_only", "jit")


def traces(dsn: str, server_sessions: int = 3) -> set[tuple[str, ...]]:
    """Return the settings of some server sessions that clients get."""
    seen = set()
    conns = [psycopg.connect(dsn, prepare_threshold=None) for _ in range(server_sessions)]
    try:
        for conn in conns:
            # Each holds its server session until the end.
            seen.add(tuple(one(conn, "select current_setting(%s)", name) for name in SETTINGS))
            assert one(conn, "select count(*) from pg_listening_channels()") == 0
            assert one(conn, "select count(*) from pg_prepared_statements") == 0
    finally:
        for conn in conns:
            conn.close()
    return seen


@pytest.fixture
def conn(database):
    """Past the pooler."""
    with connect(database) as conn:
        yield conn


@pytest.fixture
def app(pooled):
    """An application that knows no other way than through the pooler."""
    return forebay.App(pooled, settings=Settings(worker=WorkerSettings(**FAST)))


# --- sessions ---


async def test_a_pooler_is_found_out_by_who_answers(database, pooled):
    """
    The server's process is not the one that was announced when connecting, unless somebody says
    that it is nobody's business.
    """
    for dsn, pooler, is_pooled in [
        (database, "auto", False),
        (pooled, "auto", True),
        (pooled, "session", False),
        (database, "transaction", True),
    ]:
        session = Session(dsn, name="test", pooler=pooler)
        assert await session.run(PIDS) > 0
        assert session.is_pooled is is_pooled, (dsn, pooler)
        await session.close()


async def test_settings_of_a_call_hold_for_that_call_only(conn, database, pooled):
    """
    What a call needs it has, whatever the database's default; afterwards no server session shows a
    trace.
    """
    conn.execute(
        f"alter database {conn.info.dbname} set default_transaction_isolation = 'serializable'"
    )
    before = traces(pooled)
    session = Session(
        pooled,
        name="test",
        lock_timeout="123ms",
        settings={"default_transaction_read_only": "on", "jit": "off"},
    )
    seen = Operation(
        "select concat_ws(' ', current_setting('lock_timeout'), "
        "current_setting('transaction_read_only'),"
        " current_setting('jit'), current_setting('transaction_isolation'), %(text)s::text)",
        scalar,
        {"text": "100% 'right'"},
    )
    for _ in range(8):  # more often than psycopg needs to prepare a statement
        assert await session.run(seen) == "123ms on off read committed 100% 'right'"
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        try:
            await session.run(Operation("create table t ()", lambda rows: None))
        except DatabaseUnavailable as error:
            raise error.__cause__ from None
    await session.close()
    assert traces(pooled) == before


async def test_a_prepared_statement_that_is_gone_or_changed_is_sent_again(database, conn):
    """
    After ``deallocate all``, and after a migration that gave a function another result: the call
    succeeds all the same. A session that lost what it had prepared takes it that a pooler is in
    between.
    """
    conn.execute("create function public.f() returns table (a int) language sql as 'select 1'")
    call = Operation("select * from public.f()", lambda rows: rows[0])
    session = Session(database, name="test")
    for _ in range(7):
        assert await session.run(call) == (1,)
    conn.execute(
        "drop function public.f();"
        " create function public.f() returns table (a int, b int) language sql as 'select 1, 2'"
    )
    assert await session.run(call) == (1, 2)
    assert not session.is_pooled
    for _ in range(7):
        assert await session.run(call) == (1, 2)
    await session.run(Operation("deallocate all", lambda rows: None))
    assert await session.run(call) == (1, 2)
    assert await session.run(call) == (1, 2)
    await session.close()


def test_the_doctor_says_that_there_is_a_pooler_and_leaves_no_trace(pooled):
    """
    Its session is read-only and in haste; that of the application which comes next is not.
    """
    before = traces(pooled)
    found = asyncio.run(examine(pooled))
    (connection,) = [item for item in found if item.check == "connection"]
    assert connection.facts["pooled"]
    assert "through a pooler" in connection.what
    assert not [item for item in found if "could not be checked" in item.what]
    assert traces(pooled) == before


def test_the_guard_ends_a_prepared_transaction_through_a_pooler(conn, pooled):
    """
    The statement stands outside of every transaction block, there too.
    """
    conn.execute("begin; create table t (); prepare transaction 'forgotten'")
    before = traces(pooled)
    asyncio.run(guard(pooled, (), Rule(older_than=0, rollback_prepared=True)))
    assert one(conn, "select count(*) from pg_prepared_xacts") == 0
    assert traces(pooled) == before


def test_an_error_of_the_connection_leaves_the_outcome_open():
    """
    A pooler that loses the server while it commits says so with a SQLSTATE; that is no refusal.
    """
    lost = DatabaseUnavailable("server conn crashed?")
    lost.__cause__ = psycopg.errors.ProtocolViolation()
    assert not Session.refused(lost)
    no = DatabaseUnavailable("too many connections")
    no.__cause__ = psycopg.errors.TooManyConnections()
    assert Session.refused(no)


def test_an_option_that_the_pooler_refuses_is_explained(pooled):
    """
    Settings in the address never reach the server; who put them there learns where they belong.
    """
    session = Session(f"{pooled} options='-c statement_timeout=1s'", name="test")
    with pytest.raises(DatabaseUnavailable, match="unsupported startup parameter") as caught:
        asyncio.run(session.run(PIDS))
    assert "alter role" in caught.value.hint


# --- producers ---


async def test_producers_of_every_kind(app, conn, pooled):
    """
    In the caller's transaction, on a connection of ours, and from plain SQL, many times over.
    """

    @app.job
    def work(n: int) -> None: ...

    with psycopg.connect(pooled, prepare_threshold=None) as producer:
        for n in range(12):
            work.enqueue(producer, n)
            if n % 2:
                producer.rollback()
            else:
                producer.commit()
    for n in range(7):
        work.enqueue_now(n)
        await work.aenqueue_now(n)
    assert one(conn, "select count(*) from forebay.log") == 6 + 14


async def test_asyncpg_enqueues_with_its_statement_cache_off(app, conn, pooled):
    """
    Each transaction of a pool may get another server session: nothing that an enqueue prepared is
    expected there.
    """

    @app.job
    def work(n: int) -> None: ...

    address = asyncpg_address(pooled)
    async with asyncpg.create_pool(
        **address, statement_cache_size=0, min_size=3, max_size=3
    ) as pool:

        async def produce(first: int) -> None:
            for n in range(first, first + 8):
                async with pool.acquire() as producer, producer.transaction():
                    await work.aenqueue(producer, n)

        await asyncio.gather(*(produce(10 * number) for number in range(6)))
    assert one(conn, "select count(*) from forebay.log") == 48


# --- workers ---


async def test_a_worker_finds_jobs_by_polling(app, conn, pooled, server):
    """
    It does not listen, nobody notifies for it, and jobs start within a moment, also where the
    leader is busy.
    """
    done: list[int] = []
    opened = anyio.Event()

    @app.job
    async def work(n: int) -> None:
        if n == 0:
            await opened.wait()
        done.append(n)

    async with running(app, concurrency=1), running(app, concurrency=1):
        work.enqueue_now(0)
        for n in range(1, 20):
            work.enqueue_now(n)
        await wait_for_async(lambda: len(done) == 19, 10)
        opened.set()
        await wait_for_async(lambda: len(done) == 20, 10)
        listening = "select count(*) from pg_stat_activity where query ilike 'listen%'"
        assert one(conn, listening) == 0
        assert one(conn, "select max(suspect_seconds) from forebay.lease") == FAST["lease_seconds"]
    assert len(traces(pooled)) == 1


@pytest.mark.slow
async def test_handlers_in_transactions(app, conn, pooled):
    """
    Their writes, what they enqueue and their end are one commit, whichever server session each
    gets.
    """
    conn.execute("create table effect (n integer primary key)")

    @app.job(transaction=True, retry=forebay.RetryPolicy(strategy="fixed", base_seconds=0.01))
    async def write(ctx: forebay.Context, n: int) -> None:
        await ctx.conn.execute("insert into effect values (%s)", [n])
        if n % 7 == 0 and ctx.attempt == 1:
            raise ValueError(n)

    @app.job(transaction=True)
    def write_in_thread(ctx: forebay.Context, n: int) -> None:
        ctx.conn.execute("insert into effect values (%s)", [n])

    with connect(conn.info.dsn) as producer:
        jobs = [write.enqueue(producer, n) for n in range(40)]
        jobs += [write_in_thread.enqueue(producer, n) for n in range(40, 80)]
    async with running(app, concurrency=8):
        await wait_for_async(lambda: all(state(conn, job) == "done" for job in jobs), 20)
    assert one(conn, "select count(*) from effect") == 80


@pytest.mark.slow
async def test_listening_can_be_switched_off_on_a_direct_connection(database, conn):
    """
    A worker then has a connection less, and finds jobs all the same.
    """
    app = forebay.App(database, settings=Settings(worker=WorkerSettings(**FAST)))
    done: list[int] = []

    @app.job
    async def work(n: int) -> None:
        done.append(n)

    async with running(app, listen="never"):
        work.enqueue_now(1)
        await wait_for_async(lambda: done == [1], 10)
        sessions = conn.execute(
            "select query from pg_stat_activity where application_name like 'forebay %:%'"
        ).fetchall()
        assert sessions
        assert not [query for (query,) in sessions if query.startswith("listen")]


@pytest.mark.slow
def test_a_pooler_that_reconnects_pauses_and_restarts(conn, pooled, pooler, workers, effects):
    """
    Server sessions replaced under it, everything held up for a while, and the pooler itself ended
    and started: the worker goes on, and every job runs.
    """
    workers.start(dsn=pooled)
    rest = "array(select jsonb_build_object('entry', g) from generate_series(%s::int, %s::int) g)"

    def put(first: int) -> None:
        conn.execute(f"select forebay.enqueue_many('work', {rest})", [first, first + 49])

    name = conn.info.dbname
    put(0)
    pooler.command(f"reconnect {name}")
    put(50)
    pooler.command(f"pause {name}")
    put(100)
    pooler.command(f"resume {name}")
    put(150)
    pooler.stop()
    put(200)
    pooler.start()
    wait_for(lambda: len(effects.entries("end")) == 250, 30, lambda: workers.logs)


@pytest.mark.slow
@pytest.mark.usefixtures("needs_pgbouncer")
def test_many_clients_share_a_few_server_sessions(server, conn, database, workers, effects):
    """
    Three server sessions serve two workers and their handlers in transactions; heartbeats get their
    turn.
    """
    with pgbouncer(server, default_pool_size=3) as narrow:
        dsn = narrow.dsn(conn.info.dbname)
        for _ in range(2):
            workers.start(dsn=dsn, concurrency=8)
        for n in range(60):
            one(
                conn,
                "select forebay.enqueue(%s, jsonb_build_object('entry', %s::int, 'seconds', 0.05))",
                ("write", "write_in_thread")[n % 2],
                n,
            )
        wait_for(lambda: one(conn, "select count(*) from effect") == 60, 30, lambda: workers.logs)
    assert "LeaseLost" not in workers.logs


@pytest.mark.slow
@pytest.mark.usefixtures("needs_pgbouncer")
async def test_two_hundred_clients_share_five_server_sessions(server, conn, database):
    """
    Each connected all the time, in transactions that commit or roll back, while the pooler resets
    and replaces its server sessions: what was committed runs once, through the same pooler, and
    nothing else does.
    """
    reset = {"server_reset_query": "discard all", "server_reset_query_always": 1}
    with pgbouncer(server, default_pool_size=5, **reset) as narrow:
        dsn = narrow.dsn(conn.info.dbname)
        app = forebay.App(dsn, settings=Settings(worker=WorkerSettings(**FAST)))
        ran: list[int] = []

        @app.job
        async def work(n: int) -> None:
            ran.append(n)

        async def produce(n: int) -> None:
            async with await psycopg.AsyncConnection.connect(dsn, prepare_threshold=None) as client:
                together.discard(n)
                await wait_for_async(lambda: not together, 60)
                for turn in range(4):
                    await work.aenqueue(client, 10 * n + turn)
                    await (client.rollback() if turn == 1 else client.commit())

        together = set(range(200))
        async with running(app, concurrency=4) as worker:
            async with asyncio.TaskGroup() as tasks:
                for n in range(200):
                    tasks.create_task(produce(n))
                await wait_for_async(lambda: len(ran) > 50, 60)
                await asyncio.to_thread(narrow.command, f"reconnect {conn.info.dbname}")
            await wait_for_async(lambda: len(ran) >= 600, 60)
            assert worker.stats.leases_lost == 0
        assert len(narrow.command("show servers")) <= 5 + 1
    assert sorted(ran) == [10 * n + turn for n in range(200) for turn in (0, 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("default", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_jobs_of_a_killed_worker_start_again_in_time(conn, pooled, workers, effects, default):
    """
    Nothing but the silence of its heartbeat tells that it is dead. With the default settings its
    jobs run again within 45 s.
    """
    settings = {"lease_seconds": 30, "lease_margin_seconds": 5, "suspect_seconds": 5}
    settings |= {"heartbeat_seconds": 1}
    chosen = settings if default else {}
    victim = workers.start(dsn=pooled, concurrency=30, **chosen)
    for entry in range(40):
        one(
            conn,
            "select forebay.enqueue('work', jsonb_build_object('entry', %s::int, 'seconds', 1.5))",
            entry,
        )
    wait_for(lambda: effects.all("start"))
    workers.start(wait=False, dsn=pooled, concurrency=30, **chosen)
    began = {e.entry for e in effects.all("start") if e.pid == victim.pid}
    victim.kill()
    killed_at = time.monotonic()
    unfinished = began - effects.entries("end")
    assert unfinished
    wait_for(lambda: unfinished <= effects.entries("end"), 60, lambda: workers.logs)
    waits = sorted(
        e.at - killed_at for e in effects.all("start") if e.entry in unfinished and e.at > killed_at
    )
    print(f"{len(waits)} restarts, {waits[0]:.1f} to {waits[-1]:.1f} s")
    assert waits[0] >= (SHORT_LEASE | chosen)["lease_seconds"] / 2
    assert waits[-1] <= 45

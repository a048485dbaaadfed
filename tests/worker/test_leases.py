"""A worker keeps its lease while it lives, gives it up when it cannot know, and minds what it is
told.
"""

import asyncio
import os
import threading
import time

import pytest

import forebay
from forebay import RetryPolicy
from forebay.worker import Worker
from tests.support.engine import connect, depth, one, state
from tests.support.fix_worker import make_effect_table, run_until_idle, running
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for_async
from tests.support.worker_process import SHORT_LEASE

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)


def open_leases(conn) -> int:
    """Return how many leases are open."""
    return one(conn, "select count(*) from forebay.lease where closed_at is null")


def revoked_leases(conn) -> int:
    """Return how many leases were taken away."""
    return one(conn, "select count(*) from forebay.lease where closed_as = 'revoked'")


@pytest.mark.slow
async def test_a_new_lease_is_not_lost_by_the_answer_to_an_older_heartbeat(app, conn, database):
    """
    A worker that lost its claiming connection goes on under a second lease while jobs of the first
    run. Heartbeats under way at that moment know nothing of it, and that is no sign that it was
    revoked.
    """
    done = []

    @app.job
    async def work(ctx: forebay.Context, number: int) -> None:
        await asyncio.sleep(1.0 if number < 0 else 0)
        done.append(number)

    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn, concurrency=20, heartbeat_seconds=0.5) as worker:
            for n in range(4):
                work.enqueue(conn, -1)
                await wait_for_async(lambda: worker._executor.busy)
                fault = proxy.cut("ready_v1")
                await wait_for_async(lambda fault=fault: fault.struck)
                work.enqueue_many(conn, [(n,)] * 5)
                await wait_for_async(lambda n=n: done.count(n) == 5)
            await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0))
        assert worker.stats.leases_lost == 0
    assert len(done) == 24
    assert revoked_leases(conn) == 0


async def test_one_of_many_idle_workers_beats_seldom_and_at_once_when_it_has_a_job(
    app, conn, database
):
    """
    Among two hundred a pause of seconds; the job that ends it does not wait for its end to be known
    of.
    """
    conn.execute(
        "insert into forebay.lease (lease_id, worker, lease_seconds, suspect_seconds, opened_at)"
        " select forebay._random_name(), 'idle', 3600, 3600, clock_timestamp() from "
        "generate_series(1, 600)"
    )
    go_on = asyncio.Event()

    @app.job
    async def work() -> None:
        await go_on.wait()

    with Proxy(database) as proxy:
        async with running(
            app, dsn=proxy.dsn, lease_seconds=100.0, suspect_seconds=50.0, heartbeat_seconds=0.1
        ) as worker:

            def heartbeats() -> int:
                return sum("heartbeat_v1" in statement for statement in list(proxy.statements))

            await wait_for_async(lambda: worker._heartbeat._is_in_long_pause)
            before = heartbeats()
            work.enqueue(conn)
            await wait_for_async(lambda: heartbeats() >= before + 3, 5)
            go_on.set()


async def test_a_worker_that_stops_closes_its_leases(app, conn):
    """
    Nothing has to wait for a lease to run out after an orderly end.
    """

    @app.job
    async def work() -> None: ...

    work.enqueue(conn)
    await run_until_idle(app)
    assert open_leases(conn) == 0
    assert one(conn, "select count(*) from forebay.lease") == 1


async def test_a_claim_without_an_answer_is_given_back(app, conn, database):
    """
    When the reply to a claim is lost nobody knows whether it was committed. The jobs come back at
    once, at no attempt, and do not wait for the lease to run out.
    """
    seen = []

    @app.job
    async def work(ctx: forebay.Context, number: int) -> None:
        seen.append((number, ctx.attempt))

    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn, lease_seconds=60, suspect_seconds=30) as worker:
            fault = proxy.lose_reply("claim_v1")
            work.enqueue_many(conn, [(n,) for n in range(10)])
            await wait_for_async(lambda: len(seen) >= 10, 20)
            assert fault.struck == 1
            await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0))
            assert worker.stats.leases_lost == 0
    assert sorted(seen) == [(n, 1) for n in range(10)]
    assert revoked_leases(conn) == 0


@pytest.mark.slow
async def test_a_settlement_without_an_answer_is_repeated_under_its_name(app, conn, database):
    """
    Whether it had arrived or not, every job is settled exactly once and none runs again.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn) as worker:
            for n, arm in enumerate([proxy.lose_reply, proxy.cut] * 3):
                fault = arm("settle_v1")
                work.enqueue(conn, n)
                await wait_for_async(lambda f=fault: f.struck == 1)
                await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0))
            await wait_for_async(lambda: worker._settler.repeated == 3)
            assert worker._settler.refused == 0
    assert sorted(ran) == list(range(6))


@pytest.mark.parametrize("flavour", ["async", "thread"])
@pytest.mark.parametrize("fate", ["committed", "not committed"])
async def test_a_handlers_transaction_whose_commit_is_in_doubt_counts_once(
    app, conn, database, flavour, fate
):
    """
    The effect is there once and the job is done: when the commit had arrived it is recognised by
    its name, otherwise the attempt counts as failed and the next one does the work.
    """
    make_effect_table(conn)
    attempts = []
    if flavour == "async":

        @app.job(transaction=True, retry=AT_ONCE)
        async def write(ctx: forebay.Context) -> None:
            attempts.append(ctx.attempt)
            await ctx.conn.execute("insert into effect values (1, %s)", [ctx.job.job_id])

    else:

        @app.job(transaction=True, retry=AT_ONCE)
        def write(ctx: forebay.Context) -> None:
            attempts.append(ctx.attempt)
            ctx.conn.execute("insert into effect values (1, %s)", [ctx.job.job_id])

    with Proxy(database) as proxy:
        arm = proxy.lose_reply if fate == "committed" else proxy.cut
        fault = arm("COMMIT")
        async with running(app, dsn=proxy.dsn):
            job = write.enqueue(conn)
            await wait_for_async(lambda: state(conn, job) == "done", 20)
        assert fault.struck == 1
    assert one(conn, "select count(*) from effect") == 1
    assert attempts == ([1] if fate == "committed" else [1, 2])


@pytest.mark.slow
async def test_a_connection_cut_at_every_statement_of_a_transaction_leaves_one_effect(
    app, conn, database
):
    """
    Before the effect, in the message with settlement and commit, and after it without the answer:
    once.
    """
    make_effect_table(conn)

    @app.job(transaction=True, retry=AT_ONCE)
    async def write(ctx: forebay.Context, number: int) -> None:
        await ctx.conn.execute("insert into effect values (%s, 0)", [number])

    places = ["BEGIN", "insert into effect", "settle_job_v1", "COMMIT"]
    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn):
            number = 0
            for place in places:
                for arm in (proxy.cut, proxy.lose_reply):
                    number += 1
                    fault = arm(place)
                    job = write.enqueue(conn, number)
                    await wait_for_async(
                        lambda job=job: state(conn, job) == "done", 20, f"{place} {arm.__name__}"
                    )
                    assert fault.struck == 1
    rows = conn.execute("select entry, count(*) from effect group by 1 order by 1").fetchall()
    assert rows == [(n, 1) for n in range(1, number + 1)]


@pytest.mark.slow
async def test_a_loop_that_is_blocked_too_long_gives_the_lease_up(app, conn, workers, effects):
    """
    A coroutine that blocks its worker for longer than the lease loses it, another worker runs the
    job, and the late end changes nothing. That other worker has to observe the silence for the
    whole lease first.
    """
    blocked = workers.start()
    conn.execute("select forebay.enqueue('block_the_loop', '{\"entry\": 1, \"seconds\": 20}')")
    await wait_for_async(lambda: len(effects.all("start")) == 1)
    workers.start(environment={"TEST_DO_NOT_BLOCK": "1"})
    await wait_for_async(lambda: len(effects.all("end")) == 2, 45)
    await wait_for_async(lambda: "LeaseLost" in blocked.log, 20)
    first, second = (e for e in effects.all("end"))
    assert first.pid != blocked.pid
    assert second.pid == blocked.pid
    outcomes = conn.execute(
        "select count(*) from forebay.settlement s, unnest(coalesce(s.outcomes, '{d}')) o"
        " where o = 'd'"
    ).fetchone()
    assert outcomes == (1,)
    assert revoked_leases(conn) == 1


@pytest.mark.slow
async def test_workers_of_one_name_are_told_apart(app, conn, monkeypatch):
    """
    Cloned machines with one host name and one process id share nothing: identity is drawn at each
    start.
    """
    monkeypatch.setattr("socket.gethostname", lambda: "clone")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0.01)

    work.enqueue_many(conn, [(n,) for n in range(60)])
    async with running(app, concurrency=2) as one_, running(app, concurrency=2) as two:
        await wait_for_async(lambda: depth(conn).get("default") == (0, 0, 0))
        assert one_.name != two.name
        assert one_.name.startswith("clone:1:")
    assert sorted(ran) == list(range(60))
    assert open_leases(conn) == 0


async def test_a_database_whose_default_isolation_is_stricter_is_served(app, conn, database):
    """
    The engine's calls need READ COMMITTED, and ask for it themselves.
    """
    ran = []

    @app.job
    async def work() -> None:
        ran.append(1)

    conn.execute(
        "do $$ begin execute format('alter database %I set default_transaction_isolation ="
        " serializable', current_database()); end $$"
    )
    work.enqueue(conn)
    await run_until_idle(app)
    assert ran == [1]


@pytest.mark.slow
async def test_a_settlement_that_the_database_does_not_take_holds_nobody_up(app, conn):
    """
    One flush the database refuses is tried again and again; the jobs of all others are settled
    meanwhile.
    """

    @app.job
    async def work(number: int) -> None: ...

    conn.execute(
        "create function public.refuse() returns trigger language plpgsql as $$ begin"
        " if new.claim_no = 1 then raise exception 'not this one'; end if; return new; end $$;"
        " create trigger refuse before insert on forebay.settlement for each row"
        " execute function public.refuse()"
    )
    async with running(app):
        first = work.enqueue(conn, 0)
        await wait_for_async(lambda: state(conn, first) in {"claimed", "running"})
        work.enqueue_many(conn, [(n,) for n in range(1, 30)])
        await wait_for_async(lambda: depth(conn)["default"] == (0, 1, 0))
        conn.execute("drop trigger refuse on forebay.settlement")
        await wait_for_async(lambda: state(conn, first) == "done")


@pytest.mark.slow
async def test_handlers_stop_when_no_heartbeat_was_answered_in_time(app, conn, database):
    """
    A worker cut off from its database stops its handlers before its lease ends, by its own clock;
    while it is cut off it can settle nothing; afterwards it goes on by itself under a new lease.
    """
    stopped = []
    began = time.monotonic()

    @app.job
    async def long(ctx: forebay.Context) -> None:
        if ctx.attempt > 1 or stopped:
            return
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(time.monotonic())

    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn, **SHORT_LEASE) as worker:
            job = long.enqueue(conn)
            await wait_for_async(lambda: worker._executor.busy)
            began = time.monotonic()
            with proxy.black_hole():
                await wait_for_async(lambda: stopped, 15)
            seconds = stopped[0] - began
            print(f"handler stopped {seconds:.2f} s after the cut")
            assert 0.5 < seconds < 3.5
            assert worker.stats.leases_lost == 1
            await wait_for_async(lambda: state(conn, job) == "done", 30)


async def test_an_app_without_a_module_runs_suspects_in_its_own_process(app, conn):
    """
    Without a module that a child could import, a suspect runs here, and its start is on record all
    the same.
    """
    ran = threading.Event()

    @app.job
    async def work() -> None:
        ran.set()

    job = work.enqueue(conn)
    # Somebody takes the job and dies.
    group = one(conn, "select forebay.open_group('default')")
    lease = one(conn, "select forebay.open_lease_v1('dies', 1, 0.1)")
    lane = one(conn, "select forebay._lane_id('default', 100, 0)")
    conn.execute("select forebay.claim_v1(%s, 1, 1, %s, %s, 1)", [lease, group, lane])
    assert one(conn, "select forebay._revoke(%s, 'revoked', true)", lease) == 1

    worker = Worker(app._internals, app.dsn)
    assert worker._location is None
    await run_until_idle(app)
    assert ran.is_set()
    assert state(conn, job) == "done"
    assert one(conn, "select count(*) from forebay.suspect_start") == 1


#: The first record of a suspect's start is refused.
_REFUSE_ONE_START = """
    create sequence starts;
    create function refuse_one_start() returns trigger language plpgsql security definer as $$
    begin
        if nextval('public.starts') = 1 then
            raise 'could not extend file: No space left on device' using errcode = 'disk_full';
        end if;
        return new;
    end $$;
    create trigger refuse_one_start before insert on forebay.suspect_start
    for each row execute function refuse_one_start();
"""


@pytest.mark.usual("a trigger on a table of the schema")
async def test_a_suspect_whose_start_is_refused_in_the_workers_process_runs_later(app, conn):
    """
    The disk is full when the start of a suspect is to be recorded: it is released, and not held
    until the worker ends.
    """

    @app.job
    async def work() -> None: ...

    job = work.enqueue(conn)
    group = one(conn, "select forebay.open_group('default')")
    lease = one(conn, "select forebay.open_lease_v1('dies', 1, 0.1)")
    lane = one(conn, "select forebay._lane_id('default', 100, 0)")
    conn.execute("select forebay.claim_v1(%s, 1, 1, %s, %s, 1)", [lease, group, lane])
    assert one(conn, "select forebay._revoke(%s, 'revoked', true)", lease) == 1
    conn.execute(_REFUSE_ONE_START)
    async with running(app) as worker:
        await wait_for_async(lambda: state(conn, job) == "done")
        assert worker.stats.leases_lost == 0
    assert one(conn, "select last_value from starts") == 2


@pytest.mark.slow
@pytest.mark.usual("a trigger on a table of the schema")
async def test_a_suspect_whose_start_is_refused_for_a_child_process_runs_later(
    conn, workers, effects
):
    """
    The same where suspects run in child processes.
    """
    first = workers.start()
    job = one(conn, "select forebay.enqueue('work_in_thread', '{\"entry\": 1, \"seconds\": 2}')")
    await wait_for_async(lambda: effects.all("start"))
    conn.execute(_REFUSE_ONE_START)
    first.kill()
    workers.start()
    await wait_for_async(lambda: state(conn, job) == "done", 40, lambda: workers.logs)
    assert one(conn, "select last_value from starts") == 2


@pytest.mark.slow
async def test_a_worker_finds_its_way_back_when_all_its_sessions_are_terminated(
    app, conn, database
):
    """
    Terminated again and again, a living worker loses no lease, and every job runs.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0.02)

    work.enqueue_many(conn, [(n,) for n in range(300)])
    async with running(app, concurrency=5) as worker:
        for share in range(50, 300, 50):
            await wait_for_async(lambda share=share: len(ran) >= share, 30)
            with connect(database) as admin:
                admin.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname ="
                    " current_database() and application_name like 'forebay %'"
                )
        await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0), 30)
        assert worker.stats.leases_lost == 0
    assert sorted(ran) == list(range(300))

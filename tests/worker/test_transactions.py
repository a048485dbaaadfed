"""Handlers with a transaction: their writes, what they enqueue and how the job ended are one
commit.
"""

import itertools

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

import forebay
from forebay import Cancel, Dead, Retry, RetryPolicy, Snooze
from forebay.db import pools
from tests.support.engine import depth, one, state
from tests.support.fix_worker import make_effect_table, run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)


def entries(conn: psycopg.Connection) -> list[int]:
    """Return what handlers have written."""
    return [row[0] for row in conn.execute("select entry from effect order by entry")]


def declare(app: forebay.App, flavour: str, body, **options) -> forebay.Handler:
    """Declare a handler that writes its number and returns, or raises, what ``body`` says."""
    insert = "insert into effect values (%s, 0)"
    if flavour == "async":

        @app.job(transaction=True, name="work", **options)
        async def work(ctx: forebay.Context, number: int) -> object:
            await ctx.conn.execute(insert, [number])
            return body(ctx, number)

    else:

        @app.job(transaction=True, name="work", **options)
        def work(ctx: forebay.Context, number: int) -> object:
            ctx.conn.execute(insert, [number])
            return body(ctx, number)

    return work


FLAVOURS = pytest.mark.parametrize("flavour", ["async", "thread"])


@FLAVOURS
async def test_effect_and_completion_are_one_commit(app, conn, flavour):
    """
    Settlement and effect carry the same transaction number: neither can be seen without the other.
    """
    make_effect_table(conn)
    work = declare(app, flavour, lambda ctx, number: None)
    jobs = [work.enqueue(conn, n) for n in range(3)]
    worker = await run_until_idle(app)
    assert [state(conn, job) for job in jobs] == ["done"] * 3
    assert entries(conn) == [0, 1, 2]
    written = conn.execute("select xmin::text from effect order by 1").fetchall()
    settled = conn.execute("select xmin::text from forebay.settlement order by 1").fetchall()
    assert written == settled
    assert worker.stats.done == 3


@FLAVOURS
async def test_what_a_failed_attempt_wrote_is_rolled_back(app, conn, flavour):
    """
    An attempt that raises leaves no effect, and its failure is on record.
    """
    make_effect_table(conn)

    def body(ctx, number):
        if ctx.attempt < 3:
            raise RuntimeError("not yet")

    work = declare(app, flavour, body, retry=AT_ONCE)
    job = work.enqueue(conn, 1)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "done")
    assert entries(conn) == [1]
    assert one(conn, "select count(*) from forebay.failure where outcome = 'retried'") == 2


@FLAVOURS
async def test_a_returned_outcome_is_committed_with_the_effect(app, conn, flavour):
    """
    Snoozed, retried, cancelled or given up: the handler returned, so what it wrote stands.
    """
    make_effect_table(conn)
    outcomes = {1: Snooze(3600), 2: Retry(3600), 3: Cancel("enough"), 4: Dead("no use")}
    work = declare(app, flavour, lambda ctx, number: outcomes[number])
    jobs = [work.enqueue(conn, n) for n in outcomes]
    await run_until_idle(app)
    assert entries(conn) == [1, 2, 3, 4]
    assert [state(conn, job) for job in jobs] == ["scheduled", "retrying", "cancelled", "dead"]
    written = conn.execute("select xmin::text from effect order by 1").fetchall()
    settled = conn.execute("select xmin::text from forebay.settlement order by 1").fetchall()
    assert written == settled


@FLAVOURS
async def test_an_error_that_a_handler_swallowed_does_not_pass_for_success(app, conn, flavour):
    """
    A statement failed and the handler went on as if not: its transaction cannot commit, and the
    attempt failed.
    """
    make_effect_table(conn)
    if flavour == "async":

        @app.job(transaction=True, max_attempts=1)
        async def work(ctx: forebay.Context) -> None:
            await ctx.conn.execute("insert into effect values (1, 0)")
            try:
                await ctx.conn.execute("select 1 / 0")
            except psycopg.Error:
                pass

    else:

        @app.job(transaction=True, max_attempts=1)
        def work(ctx: forebay.Context) -> None:
            ctx.conn.execute("insert into effect values (1, 0)")
            try:
                ctx.conn.execute("select 1 / 0")
            except psycopg.Error:
                pass

    job = work.enqueue(conn)
    await run_until_idle(app)
    assert state(conn, job) == "dead"
    assert entries(conn) == []


@FLAVOURS
async def test_a_handler_cannot_commit_behind_the_workers_back(app, conn, flavour):
    """
    Committing the transaction that also completes the job is refused, and the attempt failed.
    """
    make_effect_table(conn)
    if flavour == "async":

        @app.job(transaction=True, max_attempts=1)
        async def work(ctx: forebay.Context) -> None:
            await ctx.conn.execute("insert into effect values (1, 0)")
            await ctx.conn.commit()

    else:

        @app.job(transaction=True, max_attempts=1)
        def work(ctx: forebay.Context) -> None:
            ctx.conn.execute("insert into effect values (1, 0)")
            ctx.conn.commit()

    job = work.enqueue(conn)
    await run_until_idle(app)
    assert state(conn, job) == "dead"
    assert entries(conn) == []


async def test_what_a_handler_enqueues_exists_if_its_attempt_committed(app, conn):
    """
    A chain of jobs: the next one is enqueued with the effect, and vanishes with it.
    """
    make_effect_table(conn)

    @app.job(transaction=True, retry=AT_ONCE)
    async def first(ctx: forebay.Context) -> None:
        await following.aenqueue(ctx.conn, ctx.attempt)
        if ctx.attempt < 3:
            raise RuntimeError("not yet")

    @app.job(transaction=True)
    def following(ctx: forebay.Context, number: int) -> None:
        ctx.conn.execute("insert into effect values (%s, 0)", [number])

    first.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: entries(conn) == [3])
        await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0))


@FLAVOURS
async def test_a_batch_in_a_transaction_is_settled_as_a_whole(app, conn, flavour):
    """
    Many jobs, one transaction: each is settled as it ended, in that commit; raising rolls all of it
    back.
    """
    make_effect_table(conn)
    calls = []

    def outcomes(numbers: list[int]) -> list[object]:
        calls.append(numbers)
        if len(calls) == 1:
            raise RuntimeError("the first call fails")
        return [Dead("odd") if n % 2 else None for n in numbers]

    if flavour == "async":

        @app.batch_job(transaction=True, size=10, retry=AT_ONCE)
        async def work(ctx: forebay.Context, jobs: list[forebay.Job]) -> list[object]:
            numbers = [job.args["n"] for job in jobs]
            for n in numbers:
                await ctx.conn.execute("insert into effect values (%s, 0)", [n])
            return outcomes(numbers)

    else:

        @app.batch_job(transaction=True, size=10, retry=AT_ONCE)
        def work(ctx: forebay.Context, jobs: list[forebay.Job]) -> list[object]:
            numbers = [job.args["n"] for job in jobs]
            for n in numbers:
                ctx.conn.execute("insert into effect values (%s, 0)", [n])
            return outcomes(numbers)

    work.enqueue_many(conn, [{"n": n} for n in range(10)])
    async with running(app):
        await wait_for_async(lambda: depth(conn).get("default") == (0, 0, 0))
    assert entries(conn) == list(range(10))
    assert one(conn, "select count(*) from forebay.dead_letter where reason = 'permanent'") == 5
    assert one(conn, "select count(*) from forebay.failure where outcome = 'retried'") == 10


@FLAVOURS
async def test_a_job_costs_the_messages_of_its_handler_and_one_more(
    app, conn, flavour, tmp_path, pytestconfig, monkeypatch
):
    """
    Settlement, clean-up of the session, commit and the begin of the next transaction are one
    message, while calls wait. Behind a pooler the next transaction begins by itself: it would keep
    a connection of the server.
    """
    # On a busy machine the next call may come later than a transaction waits for it, and a
    # connection be idle for so long that it is looked at.
    monkeypatch.setattr("forebay.worker.run._transactions._BEGUN_SECONDS", 60)
    monkeypatch.setattr("forebay.db.pools._IDLE_SECONDS", 60)
    make_effect_table(conn)
    traced = []

    def body(ctx: forebay.Context, number: int) -> None:
        if number == 0:
            traced.append((tmp_path / "trace").open("w"))
            ctx.conn.pgconn.trace(traced[0].fileno())

    work = declare(app, flavour, body)
    work.enqueue_many(conn, list(range(5)))
    # All but the first are claimed in advance, however long it took.
    async with running(app, concurrency=1, ahead_seconds=60):
        await wait_for_async(lambda: entries(conn) == [0, 1, 2, 3, 4])
    traced[0].close()
    lines = (tmp_path / "trace").read_text().splitlines()
    sent = [line for line in lines if "\tF\t" in line and ("Query" in line or "Sync" in line)]
    last = [line for line in sent if "settle_job_v1" in line]
    assert len(last) == 5
    begun = sum(line.endswith('COMMIT; BEGIN"') for line in last)
    assert begun == 0 if pytestconfig.getoption("--through-pgbouncer") else begun >= 1
    assert not last[-1].endswith('BEGIN"')
    for before, after in itertools.pairwise(last):
        own_begin = 0 if before.endswith('BEGIN"') else 1
        assert sent.index(after) - sent.index(before) == own_begin + 2


@FLAVOURS
async def test_a_transaction_that_began_for_a_call_that_did_not_come_is_ended(app, conn, flavour):
    """
    Two calls end at the same time, and one waits: one connection is left over, and goes back to its
    pool.
    """
    make_effect_table(conn)
    work = declare(app, flavour, lambda ctx, number: None)
    open_ones = (
        "select count(*) from pg_stat_activity where state like 'idle in transaction%%'"
        " and application_name like 'forebay %%' and datname = current_database()"
    )
    async with running(app, concurrency=3):
        work.enqueue_many(conn, list(range(40)))
        await wait_for_async(lambda: len(entries(conn)) == 40)
        await wait_for_async(lambda: one(conn, open_ones) == 0)


@FLAVOURS
async def test_a_transaction_block_that_a_handler_leaves_open_fails_its_job(app, conn, flavour):
    """
    The commit would take along what the handler has not confirmed.
    """
    make_effect_table(conn)
    blocks = []

    if flavour == "async":

        @app.job(transaction=True, max_attempts=1)
        async def leave_open(ctx: forebay.Context) -> None:
            blocks.append(ctx.conn.transaction())
            await blocks[0].__aenter__()
            await ctx.conn.execute("insert into effect values (1, 0)")

    else:

        @app.job(transaction=True, max_attempts=1)
        def leave_open(ctx: forebay.Context) -> None:
            blocks.append(ctx.conn.transaction())
            blocks[0].__enter__()
            ctx.conn.execute("insert into effect values (1, 0)")

    job = leave_open.enqueue(conn)
    await run_until_idle(app)
    assert state(conn, job) == "dead"
    assert entries(conn) == []


@pytest.mark.direct  # The server ends the pooler's connections, not the worker's.
@FLAVOURS
async def test_a_connection_that_ended_while_it_was_idle_releases_no_job(
    app, conn, flavour, monkeypatch
):
    """
    The server ends idle sessions, and a firewall forgets connections. The next job gets another
    connection: it starts at once, and nothing of it is released.
    """
    make_effect_table(conn)
    monkeypatch.setattr(pools, "_IDLE_SECONDS", 0.0)
    backends = []

    def body(ctx, number):
        backends.append(ctx.conn.info.backend_pid)

    work = declare(app, flavour, body)
    async with running(app) as worker:
        for number in range(5):
            job = work.enqueue(conn, number)
            await wait_for_async(lambda job=job: state(conn, job) == "done", 20)
            conn.execute("select pg_terminate_backend(%s, 5000)", [backends[-1]])
    assert len(set(backends)) == 5
    assert worker.stats.released == 0


async def test_only_an_idle_connection_is_checked(app, conn, monkeypatch):
    """
    Jobs that follow each other pay no round trip for it.
    """
    make_effect_table(conn)
    monkeypatch.setattr(pools, "_IDLE_SECONDS", 60.0)
    checked = []
    check = AsyncConnectionPool.check_connection
    monkeypatch.setattr(
        AsyncConnectionPool,
        "check_connection",
        staticmethod(lambda conn: checked.append(conn) or check(conn)),
    )
    work = declare(app, "async", lambda ctx, number: None)
    for number in range(10):
        work.enqueue(conn, number)
    await run_until_idle(app, concurrency=1)
    # A new connection is checked once. On a busy machine the pool may open a second one.
    assert len(checked) == len(set(checked)) <= 2

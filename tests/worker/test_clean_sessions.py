"""What a handler leaves in the session of its transaction is gone before the next one runs
there.
"""

import psycopg
import pytest
from psycopg.rows import dict_row

import forebay
from forebay.config import Settings, WorkerSettings
from tests.support.engine import one, state
from tests.support.fix_worker import make_effect_table, run_until_idle
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio

LEFT_BEHIND = {
    "a role": "set role forebay_reader",
    "another user": "set session authorization forebay_reader",
    "a search path": "set search_path = nowhere",
    "a timeout": "set statement_timeout = '1h'",  # a short one holds for the settlement too
    "an isolation level": "set default_transaction_isolation = 'serializable'",
    "a setting of its own": "set app.tenant = '42'",
    "a temporary table": "create temp table leak (n int)",
    "a lock of the session": "select pg_advisory_lock(4711)",
    "a cursor": "declare leak cursor with hold for select 1",
    "listening": "listen leak",
    "no durability": "set synchronous_commit = off",
    "nothing prepared": "deallocate all",
    "nothing prepared, behind the driver's back": "do $$ begin execute 'deallocate all'; end $$",
}

#: The driver does not prepare it. It would after five times on a connection, and not notice that a
#: handler has deallocated it.
SEEN = """
    select concat_ws(' | ', current_user, session_user, current_setting('search_path'),
                     current_setting('statement_timeout'), current_setting('transaction_isolation'),
                     coalesce(current_setting('app.tenant', true), ''),
                         current_setting('synchronous_commit'),
                     to_regclass('pg_temp.leak'),
                     (select count(*) from pg_locks where pid = pg_backend_pid()
                         and locktype = 'advisory'),
                     (select count(*) from pg_cursors where name = 'leak'),
                     (select count(*) from pg_listening_channels()))"""


@pytest.fixture(params=["direct", "pooled"])
def way(request, app, database) -> forebay.App:
    """An application with one connection to the server, its own or a pooler's."""
    if request.param == "direct":
        return app
    pooled = request.getfixturevalue("pooled")
    return forebay.App(pooled, settings=Settings(worker=WorkerSettings(**FAST)))


@pytest.mark.usual("its handlers take the rights of other roles")
@pytest.mark.direct
@pytest.mark.parametrize("flavour", ["async", "thread"])
@pytest.mark.parametrize("fate", ["done", "failed", "snoozed"])
async def test_the_next_handler_finds_a_clean_session(way, conn, flavour, fate):
    """
    Whatever a handler sets without ``local``, creates or locks, and however it ends: the one after
    it, on the same connection, finds roles, settings, tables, cursors and locks as they are in a
    new session.
    """
    seen: list[str] = []

    def end() -> object:
        if fate == "failed":
            raise ValueError(fate)
        return forebay.Snooze(3600) if fate == "snoozed" else None

    if flavour == "async":

        @way.job(transaction=True, max_attempts=1)
        async def leave(ctx: forebay.Context, statement: str) -> object:
            await ctx.conn.execute(statement)
            ctx.conn.row_factory = dict_row
            return end()

        @way.job(transaction=True)
        async def look(ctx: forebay.Context) -> None:
            row = await (await ctx.conn.execute(SEEN, prepare=False)).fetchone()
            seen.append(row[0])

    else:

        @way.job(transaction=True, max_attempts=1)
        def leave(ctx: forebay.Context, statement: str) -> object:
            ctx.conn.execute(statement)
            ctx.conn.row_factory = dict_row
            return end()

        @way.job(transaction=True)
        def look(ctx: forebay.Context) -> None:
            seen.append(ctx.conn.execute(SEEN, prepare=False).fetchone()[0])

    look.enqueue(conn)
    jobs = []
    for statement in LEFT_BEHIND.values():
        jobs.append(leave.enqueue(conn, statement))
        look.enqueue(conn)
    await run_until_idle(way, concurrency=1)
    expected = {"done": "done", "failed": "dead", "snoozed": "scheduled"}[fate]
    assert {state(conn, job) for job in jobs} == {expected}
    assert len(seen) == len(LEFT_BEHIND) + 1
    found = dict(zip(LEFT_BEHIND, seen[1:], strict=True))
    assert found == dict.fromkeys(LEFT_BEHIND, seen[0])


async def test_deferred_triggers_find_what_the_handler_set(app, conn):
    """
    A trigger at the end of the transaction reads the tenant from a setting: it runs before the
    setting goes.
    """
    make_effect_table(conn)
    conn.execute(
        "create table audit (tenant text);"
        " create function note() returns trigger language plpgsql as $$ begin"
        " insert into public.audit values (current_setting('app.tenant')); return null; end $$;"
        " create constraint trigger t after insert on effect initially deferred"
        " for each row execute function note()"
    )

    @app.job(transaction=True)
    async def work(ctx: forebay.Context) -> None:
        await ctx.conn.execute("set local app.tenant = '42'")
        await ctx.conn.execute("insert into effect values (1, 1)")

    work.enqueue(conn)
    await run_until_idle(app)
    assert conn.execute("select tenant from audit").fetchall() == [("42",)]


async def test_the_settlement_still_limits_the_idle_time_of_its_transaction(app, conn, monkeypatch):
    """
    A worker that freezes between settlement and commit holds up a revocation for five seconds and
    no longer: the reset does not take that back.
    """
    from forebay.db import handler_connections

    limits: list[str] = []
    original = handler_connections.settle_on

    async def settle_on(conn: psycopg.AsyncConnection, operation):
        answer = await original(conn, operation)
        row = await (
            await conn.execute("select current_setting('idle_in_transaction_session_timeout')")
        ).fetchone()
        limits.append(row[0])
        return answer

    monkeypatch.setattr(handler_connections, "settle_on", settle_on)

    @app.job(transaction=True)
    async def work() -> object:  # Done, it would commit in the same message.
        return forebay.Snooze(3600)

    work.enqueue(conn)
    await run_until_idle(app)
    assert limits == ["5s"]
    assert one(conn, "select count(*) from forebay.settlement") == 1


@pytest.mark.usual("its handlers take the rights of other roles")
@pytest.mark.direct
@pytest.mark.parametrize("flavour", ["async", "thread"])
async def test_the_next_handler_of_a_kind_finds_a_clean_session(app, conn, flavour):
    """
    Its transaction begins in the message that commits the one before.
    """
    seen: list[str] = []

    if flavour == "async":

        @app.job(transaction=True)
        async def use(ctx: forebay.Context, statement: str) -> None:
            seen.append((await (await ctx.conn.execute(SEEN, prepare=False)).fetchone())[0])
            await ctx.conn.execute(statement)
            ctx.conn.row_factory = dict_row

    else:

        @app.job(transaction=True)
        def use(ctx: forebay.Context, statement: str) -> None:
            seen.append(ctx.conn.execute(SEEN, prepare=False).fetchone()[0])
            ctx.conn.execute(statement)
            ctx.conn.row_factory = dict_row

    statements = [*LEFT_BEHIND.values(), "select 1"]
    use.enqueue_many(conn, statements)
    await run_until_idle(app, concurrency=1)
    assert len(seen) == len(statements)
    assert set(seen) == {seen[0]}

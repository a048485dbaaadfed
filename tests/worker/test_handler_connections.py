"""Handlers that write with SQLAlchemy or Django: their writes and the job's completion are one
commit.
"""

import asyncio

import psycopg
import pytest
import sqlalchemy as sa
from django.db.backends.base.base import BaseDatabaseWrapper
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

from forebay import Dead, RetryPolicy, TransactionContext
from forebay.errors import ConfigError
from tests.support import django_project
from tests.support.engine import one, state
from tests.support.fix_db import fresh_database
from tests.support.fix_worker import make_effect_table, run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)
INSERT = "insert into effect values (%s, 0)"


class Base(orm.DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"
    entry: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    job_id: orm.Mapped[int]


class OwnSession(orm.Session):
    """A subclass, as SQLModel has one."""


def entries(conn: psycopg.Connection) -> list[int]:
    """Return what handlers have written."""
    return [row[0] for row in conn.execute("select entry from effect order by entry")]


def declare_connection(app, body, **options):
    @app.job(transaction=True, name="work", **options)
    def work(ctx: TransactionContext[sa.Connection], number: int) -> object:
        ctx.conn.execute(sa.insert(Effect).values(entry=number, job_id=0))
        return body(ctx, number)

    return work


def declare_session(app, body, **options):
    @app.job(transaction=True, name="work", **options)
    def work(ctx: TransactionContext[orm.Session], number: int) -> object:
        ctx.conn.add(Effect(entry=number, job_id=0))  # flushed before the job is settled
        return body(ctx, number)

    return work


def declare_own_session(app, body, **options):
    @app.job(transaction=True, name="work", **options)
    def work(ctx: TransactionContext[OwnSession], number: int) -> object:
        assert type(ctx.conn) is OwnSession
        ctx.conn.add(Effect(entry=number, job_id=0))
        return body(ctx, number)

    return work


def declare_async_connection(app, body, **options):
    @app.job(transaction=True, name="work", **options)
    async def work(ctx: TransactionContext[sa_async.AsyncConnection], number: int) -> object:
        await ctx.conn.execute(sa.insert(Effect).values(entry=number, job_id=0))
        return body(ctx, number)

    return work


def declare_async_session(app, body, **options):
    @app.job(transaction=True, name="work", **options)
    async def work(ctx: TransactionContext[sa_async.AsyncSession], number: int) -> object:
        ctx.conn.add(Effect(entry=number, job_id=0))
        return body(ctx, number)

    return work


def declare_django(app, body, **options):
    @app.job(transaction=True, name="work", **options)
    def work(ctx: TransactionContext[BaseDatabaseWrapper], number: int) -> object:
        from django.db import connection

        with connection.cursor() as cursor:  # as a model would, knowing nothing of the job
            cursor.execute(INSERT, [number])
        return body(ctx, number)

    return work


DECLARE = [
    declare_connection,
    declare_session,
    declare_own_session,
    declare_async_connection,
    declare_async_session,
    declare_django,
]
EVERY = pytest.mark.parametrize("declare", DECLARE, ids=lambda declare: declare.__name__[8:])
IN_THREADS = pytest.mark.parametrize(
    "declare",
    [declare for declare in DECLARE if "async" not in declare.__name__],
    ids=lambda declare: declare.__name__[8:],
)


@pytest.fixture(autouse=True)
def django(database):
    django_project.connect_to(database)
    yield
    django_project.disconnect()


@EVERY
async def test_effect_and_completion_are_one_commit(app, conn, declare):
    """
    Settlement and effect carry the same transaction number: neither can be seen without the other.
    """
    make_effect_table(conn)
    work = declare(app, lambda ctx, number: Dead("odd") if number == 2 else None)
    jobs = [work.enqueue(conn, n) for n in range(3)]
    await run_until_idle(app)
    assert [state(conn, job) for job in jobs] == ["done", "done", "dead"]
    assert entries(conn) == [0, 1, 2]
    written = conn.execute("select xmin::text from effect order by 1").fetchall()
    settled = conn.execute("select xmin::text from forebay.settlement order by 1").fetchall()
    assert written == settled


@EVERY
async def test_what_a_failed_attempt_wrote_is_rolled_back(app, conn, declare):
    """
    An attempt that raises leaves no effect, and its failure is on record.
    """
    make_effect_table(conn)

    def body(ctx, number):
        if ctx.attempt < 3:
            raise RuntimeError("not yet")

    work = declare(app, body, retry=AT_ONCE)
    job = work.enqueue(conn, 1)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "done")
    assert entries(conn) == [1]
    assert one(conn, "select count(*) from forebay.failure where outcome = 'retried'") == 2


async def test_what_a_handler_enqueues_belongs_to_it(app, conn):
    """
    The next job through the handler's own session, or Django's connection, exists if the attempt
    committed.
    """
    make_effect_table(conn)

    @app.job
    def following(number: int) -> None: ...

    @app.job(transaction=True, retry=AT_ONCE)
    def with_session(ctx: TransactionContext[orm.Session]) -> None:
        following.enqueue(ctx.conn, 10 + ctx.attempt)
        if ctx.attempt < 2:
            raise RuntimeError("not yet")

    @app.job(transaction=True, retry=AT_ONCE)
    async def with_async_session(ctx: TransactionContext[sa_async.AsyncSession]) -> None:
        await following.aenqueue(ctx.conn, 20 + ctx.attempt)
        if ctx.attempt < 2:
            raise RuntimeError("not yet")

    @app.job(transaction=True, retry=AT_ONCE)
    def with_django(ctx: TransactionContext[BaseDatabaseWrapper]) -> None:
        following.enqueue(ctx.conn, 30 + ctx.attempt)
        following.enqueue("default", 40 + ctx.attempt)
        if ctx.attempt < 2:
            raise RuntimeError("not yet")

    for handler in (with_session, with_async_session, with_django):
        handler.enqueue(conn)
    followed = (
        "select array_agg((args->>'number')::int order by 1) from forebay.log where kind = "
        "'following'"
    )
    async with running(app):
        await wait_for_async(lambda: sorted(one(conn, followed) or []) == [12, 22, 32, 42])


async def test_a_commit_by_the_handler_does_not_split_the_transaction(app, conn):
    """
    A session's commit() flushes and ends nothing; a connection's commit() is refused and fails the
    attempt.
    """
    make_effect_table(conn)

    @app.job(transaction=True, max_attempts=1)
    def with_session(ctx: TransactionContext[orm.Session]) -> None:
        ctx.conn.add(Effect(entry=1, job_id=0))
        ctx.conn.commit()
        ctx.conn.add(Effect(entry=2, job_id=0))
        assert one(conn, "select count(*) from effect where entry = 1") == 0

    @app.job(transaction=True, max_attempts=1)
    async def with_async_session(ctx: TransactionContext[sa_async.AsyncSession]) -> None:
        ctx.conn.add(Effect(entry=3, job_id=0))
        await ctx.conn.commit()
        ctx.conn.add(Effect(entry=4, job_id=0))

    sessions = [with_session.enqueue(conn), with_async_session.enqueue(conn)]
    await run_until_idle(app)
    assert [state(conn, job) for job in sessions] == ["done", "done"]
    assert entries(conn) == [1, 2, 3, 4]
    assert one(conn, "select count(distinct xmin::text) from effect") == 2

    @app.job(transaction=True, max_attempts=1)
    def with_connection(ctx: TransactionContext[sa.Connection]) -> None:
        ctx.conn.execute(sa.insert(Effect).values(entry=5, job_id=0))
        ctx.conn.commit()

    @app.job(transaction=True, max_attempts=1)
    def swallowing(ctx: TransactionContext[sa.Connection]) -> None:
        ctx.conn.execute(sa.insert(Effect).values(entry=6, job_id=0))
        try:
            ctx.conn.commit()
        except sa.exc.InvalidRequestError:
            pass

    @app.job(transaction=True, max_attempts=1)
    async def with_async_connection(ctx: TransactionContext[sa_async.AsyncConnection]) -> None:
        await ctx.conn.execute(sa.insert(Effect).values(entry=7, job_id=0))
        await ctx.conn.commit()

    @app.job(transaction=True, max_attempts=1)
    def with_django(ctx: TransactionContext[BaseDatabaseWrapper]) -> None:
        with ctx.conn.cursor() as cursor:
            cursor.execute(INSERT, [8])
        ctx.conn.commit()

    @app.job(transaction=True, max_attempts=1)
    def rolling_back(ctx: TransactionContext[orm.Session]) -> None:
        ctx.conn.add(Effect(entry=9, job_id=0))
        ctx.conn.flush()
        ctx.conn.rollback()

    handlers = [with_connection, swallowing, with_async_connection, with_django, rolling_back]
    jobs = [handler.enqueue(conn) for handler in handlers]
    await run_until_idle(app)
    assert [state(conn, job) for job in jobs] == ["dead"] * 5
    assert entries(conn) == [1, 2, 3, 4]


async def test_a_savepoint_of_the_handlers_is_its_own(app, conn):
    """
    What a handler rolled back to its savepoint is gone, the rest commits.
    """
    make_effect_table(conn)

    @app.job(transaction=True)
    def with_session(ctx: TransactionContext[orm.Session]) -> None:
        ctx.conn.add(Effect(entry=1, job_id=0))
        with ctx.conn.begin_nested() as savepoint:
            ctx.conn.add(Effect(entry=2, job_id=0))
            ctx.conn.flush()
            savepoint.rollback()

    @app.job(transaction=True)
    def with_django(ctx: TransactionContext[BaseDatabaseWrapper]) -> None:
        from django.db import transaction

        with ctx.conn.cursor() as cursor:
            cursor.execute(INSERT, [3])
            try:
                with transaction.atomic():
                    cursor.execute(INSERT, [4])
                    raise RuntimeError
            except RuntimeError:
                pass

    jobs = [with_session.enqueue(conn), with_django.enqueue(conn)]
    await run_until_idle(app)
    assert [state(conn, job) for job in jobs] == ["done", "done"]
    assert entries(conn) == [1, 3]


@IN_THREADS
async def test_a_transaction_that_outlives_its_timeout_cannot_commit(app, conn, declare):
    """
    It is cut off from the server; nothing of it is there, and the worker's next transaction is a
    sound one.
    """
    make_effect_table(conn)

    def body(ctx, number):
        if number == 1:
            while not ctx.cancelled:
                ctx.job  # noqa: B018 - a handler that does not notice by itself
            raise RuntimeError("too late")

    work = declare(app, body, max_attempts=1, timeout=1)
    late = work.enqueue(conn, 1)
    async with running(app):
        await wait_for_async(lambda: state(conn, late) == "dead")
        after = work.enqueue(conn, 2)
        await wait_for_async(lambda: state(conn, after) == "done")
    assert entries(conn) == [2]


async def test_a_worker_of_another_database_is_refused(app, conn, server, template):
    """
    Django's default database is not the worker's: no handler starts, since the two could not commit
    together.
    """
    ran = []

    @app.job(transaction=True)
    def work(ctx: TransactionContext[BaseDatabaseWrapper]) -> None:
        ran.append(ctx.job.job_id)

    with fresh_database(server, template) as other:
        await asyncio.to_thread(django_project.connect_to, other)
        job = work.enqueue(conn)
        async with running(app):
            await wait_for_async(lambda: ran or state(conn, job) in {"scheduled", "retrying"})
        await asyncio.to_thread(django_project.disconnect)
    assert ran == []


def test_a_declaration_that_cannot_be_served_is_refused(app):
    """
    Where it is made, with the kind and what to write instead.
    """
    with pytest.raises(ConfigError, match="no transaction") as caught:

        @app.job
        def one_(ctx: TransactionContext[orm.Session]) -> None: ...

    assert "transaction=True" in caught.value.hint
    with pytest.raises(ConfigError, match="AsyncSession, which is not for a plain function"):

        @app.job(transaction=True)
        def two(ctx: TransactionContext[sa_async.AsyncSession]) -> None: ...

    with pytest.raises(ConfigError, match="synchronous"):

        @app.job(transaction=True)
        async def three(ctx: TransactionContext[BaseDatabaseWrapper]) -> None: ...

    with pytest.raises(ConfigError, match="which is not a supported connection"):

        @app.job(transaction=True)
        def four(ctx: TransactionContext[sa.Engine]) -> None: ...

    @app.job(transaction=True)
    def five(ctx: TransactionContext[psycopg.Connection]) -> None: ...

    assert five.kind.connection is None

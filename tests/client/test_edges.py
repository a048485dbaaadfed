"""What is particular to one library: settings of its connections, autocommit, and what is
refused.
"""

import asyncio
import subprocess
import sys

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

from forebay import App, AsyncClient, Client
from forebay.errors import WrongConnection
from tests.client.drivers import async_engine, asyncpg_address, url
from tests.support import django_project

app = App()


@app.job(queue="mail")
def send_welcome(user_id: int, locale: str = "en") -> None: ...


def committed(dsn):
    """The ids of the jobs that everybody sees, oldest first."""
    return sorted(job.job_id for job in Client(dsn).jobs())


@pytest.fixture
def engine(database):
    engine = sa.create_engine(url(database))
    yield engine
    engine.dispose()


@pytest.fixture
def django(database):
    django_project.connect_to(database)
    yield
    django_project.disconnect()


# --- what is imported ---


def test_importing_forebay_imports_no_other_library():
    """
    Nor does enqueuing with psycopg, nor being given something unknown.
    """
    code = """
import sys
import forebay, forebay.cli, forebay.testing, forebay.worker
app = forebay.App()
@app.job
def work() -> None: ...
class Other: ...
Other.__module__ = "somewhere"
for wrong in (Other(), "default", None, 3):
    try:
        work.enqueue(wrong)
    except forebay.ForebayError as error:
        assert type(error).__name__ == "WrongConnection", error
    else:
        raise AssertionError(wrong)
found = {"asyncpg", "sqlalchemy", "django", "asgiref", "greenlet"} & set(sys.modules)
assert not found, found
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_class_of_a_library_that_is_not_there_is_refused_as_any_other(monkeypatch):
    """
    A missing library is no reason for another error than the one that says what was given.
    """
    for name in [name for name in sys.modules if name.startswith("forebay.db.drivers._")]:
        if name.rpartition("_")[2] in {"asyncpg", "sqlalchemy", "django"}:
            monkeypatch.delitem(sys.modules, name)
    for module in ("asyncpg.connection", "sqlalchemy.engine.base", "django.db"):
        monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
        foreign = type("Connection", (), {"__module__": module})()
        with pytest.raises(WrongConnection, match=module):
            send_welcome.enqueue(foreign, 1)


# --- what is refused ---


def refused(conn, *texts):
    """What both faces say to something that is no connection for either."""
    for call in (
        lambda: send_welcome.enqueue(conn, 1),
        lambda: asyncio.run(send_welcome.aenqueue(conn, 1)),
    ):
        with pytest.raises(WrongConnection) as caught:
            call()
        said = f"{caught.value.message} {caught.value.hint}"
        for text in texts:
            assert text in said


def test_pools_and_engines_are_no_connections(database, engine):
    """
    The advice says how to take a connection from them.
    """
    refused(engine, "sqlalchemy.engine.base.Engine", "engine.begin()")
    refused(orm.sessionmaker(engine), "sessionmaker", "Session")
    refused(async_engine(database, "psycopg"), "AsyncEngine", "asynchronous classes")
    loop = asyncio.new_event_loop()
    pool = asyncpg.create_pool(**asyncpg_address(database), loop=loop)
    refused(pool, "asyncpg.pool.Pool", "pool.acquire()")
    loop.close()


def test_sync_and_async_are_told_apart(database, engine, django):
    """
    Each face refuses the other's connection, names what it was given and the twin to call.
    """

    async def run():
        conn = await asyncpg.connect(**asyncpg_address(database))
        aengine = async_engine(database, "asyncpg")
        async with aengine.connect() as aconn, sa_async.AsyncSession(aengine) as asession:
            for given in (conn, aconn, asession):
                with pytest.raises(WrongConnection, match="must be awaited") as caught:
                    send_welcome.enqueue(given, 1)
                assert type(given).__name__ in caught.value.given
                assert "`aenqueue`" in caught.value.hint
        await conn.close()
        await aengine.dispose()
        with engine.connect() as conn, orm.Session(engine) as session:
            for given in (conn, session):
                with pytest.raises(WrongConnection, match="cannot be awaited") as caught:
                    await send_welcome.aenqueue(given, 1)
                assert "`enqueue`" in caught.value.hint

    asyncio.run(run())
    assert committed(database) == []


def test_another_database_is_refused(django):
    """
    A SQLite connection cannot hold a job, whatever library it is of.
    """
    engine = sa.create_engine("sqlite://")
    with engine.connect() as conn, orm.Session(engine) as session:
        for given in (conn, session):
            with pytest.raises(WrongConnection, match="sqlite"):
                send_welcome.enqueue(given, 1)
    engine.dispose()
    from django.db import connections

    for given in (connections["other"], "other"):
        with pytest.raises(WrongConnection, match="sqlite"):
            send_welcome.enqueue(given, 1)


def test_a_text_that_is_no_alias_is_no_connection(django):
    """
    In a process that uses Django too, an address is told from an alias.
    """
    refused("dbname=shop", "must be a connection, not str", "Connect first")
    refused("", "must be a connection, not str")


# --- autocommit ---


def test_without_a_transaction_each_call_commits_itself(database, engine, django):
    """
    As any statement does there, and nothing is begun for it.
    """

    async def run():
        conn = await asyncpg.connect(**asyncpg_address(database))
        job_id = await send_welcome.aenqueue(conn, 1)
        assert not conn.is_in_transaction()
        assert committed(database) == [job_id]
        await conn.close()

    asyncio.run(run())
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        send_welcome.enqueue(conn, 2)
        assert len(committed(database)) == 2
    from django.db import connection

    send_welcome.enqueue(connection, 3)
    assert len(committed(database)) == 3


def test_a_session_that_begins_nothing_by_itself_is_not_begun(engine):
    """
    With autobegin off the session refuses, in its own words, and so does an enqueue.
    """
    with orm.Session(engine, autobegin=False) as session:
        with pytest.raises(sa.exc.InvalidRequestError):
            send_welcome.enqueue(session, 1)
        with session.begin():
            assert send_welcome.enqueue(session, 1) > 0


# --- nothing is ever committed, begun or set ---


def test_asyncpg_sees_nothing_but_our_selects(database):
    """
    What goes to the server is one SELECT for each call, and no BEGIN, COMMIT or SET of ours.
    """

    async def run():
        conn = await asyncpg.connect(**asyncpg_address(database))
        seen = []
        async with conn.transaction():
            conn.add_query_logger(lambda record: seen.append(record.query))
            await send_welcome.aenqueue(conn, 1)
            await send_welcome.aenqueue_many(conn, range(10), chunk=5)
            await AsyncClient().jobs(conn=conn)
            await asyncio.sleep(0)  # a logger is called in the loop's next turn
            assert [query.split()[0] for query in seen] == ["select"] * 4
        await conn.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy_sees_nothing_but_our_selects(engine, kind):
    """
    No event of a commit, rollback, savepoint or end fires; the transaction is the caller's own.
    """
    seen = []
    sa.event.listen(
        engine,
        "before_cursor_execute",
        lambda _c, _cur, text, _p, _ctx, _many: seen.append(text.split()[0]),
    )
    for name in ("commit", "rollback", "savepoint", "begin"):
        sa.event.listen(engine, name, lambda *_args, name=name: seen.append(name))
    with engine.connect() if kind == "connection" else orm.Session(engine) as conn:
        conn.execute(sa.text("select 1"))
        seen.clear()
        send_welcome.enqueue(conn, 1)
        send_welcome.enqueue_many(conn, range(10), chunk=5)
        Client().jobs(conn=conn)
        assert seen == ["select"] * 4
        assert conn.in_transaction()


def test_django_sees_nothing_but_our_selects(django):
    """
    The same through Django's own log of queries.
    """
    from django.db import connection, transaction
    from django.test.utils import CaptureQueriesContext

    with transaction.atomic():
        with CaptureQueriesContext(connection) as seen:
            send_welcome.enqueue(connection, 1)
            send_welcome.enqueue_many("default", range(10), chunk=5)
            Client().jobs(conn=connection)
        assert [query["sql"].split()[0] for query in seen.captured_queries] == ["select"] * 4
        assert connection.in_atomic_block
        assert not connection.needs_rollback


# --- settings of the caller's ---


def test_codecs_and_records_of_asyncpg_do_not_matter(database):
    """
    A connection that decodes JSON and makes records of its own enqueues like any other.
    """

    class Mine(asyncpg.Record):
        def values(self):
            return ["mine"]

    async def run():
        conn = await asyncpg.connect(**asyncpg_address(database), record_class=Mine)
        for name in ("json", "jsonb"):
            await conn.set_type_codec(
                name,
                schema="pg_catalog",
                encoder=lambda value: pytest.fail("encoded"),
                decoder=lambda value: pytest.fail("decoded"),
            )
        job_id = await send_welcome.using(headers={"a": "b"}).aenqueue(conn, 7)
        (job,) = await AsyncClient().job(job_id, conn=conn)
        assert (job.args, job.headers) == ({"user_id": 7}, {"a": "b"})
        await conn.close()

    asyncio.run(run())


def test_options_of_a_sqlalchemy_connection_do_not_matter(engine, database):
    """
    One that streams, or maps schemas, enqueues like any other; what it was set to stays.
    """
    options = {"stream_results": True, "yield_per": 1, "schema_translate_map": {None: "other"}}
    with engine.connect().execution_options(**options) as conn:
        job_id = send_welcome.enqueue(conn, 1)
        assert Client().jobs(conn=conn)[0].job_id == job_id
        assert dict(conn.get_execution_options()) == options
        conn.commit()
    # A cursor on the server, which is what streaming means, needs a transaction; an enqueue needs
    # none.
    options["isolation_level"] = "AUTOCOMMIT"
    with engine.connect().execution_options(**options) as conn:
        other = send_welcome.enqueue(conn, 2)
    assert committed(database) == [job_id, other]


def test_rows_of_dicts_do_not_matter(database):
    """
    A driver connection with a row factory of its own, below SQLAlchemy, enqueues like any other.
    """

    def connect():
        return psycopg.connect(database, row_factory=psycopg.rows.tuple_row)

    engine = sa.create_engine("postgresql+psycopg://", creator=connect)
    with engine.begin() as conn:
        job_id = send_welcome.enqueue(conn, 1)
    engine.dispose()
    assert committed(database) == [job_id]


def test_objects_in_a_session_are_left_alone(engine, database):
    """
    An enqueue neither flushes nor expires what the session holds.
    """

    class Base(orm.DeclarativeBase):
        pass

    class User(Base):
        __tablename__ = "users"
        user_id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
        name: orm.Mapped[str]

    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        user = User(name="Ann")
        session.add(user)
        send_welcome.enqueue(session, 1)
        assert user in session.new
        session.flush()
        send_welcome.enqueue(session, user.user_id)
        session.commit()
    assert len(committed(database)) == 2


def test_a_session_of_the_synchronous_kind_within_an_asynchronous_one(database):
    """
    ``run_sync`` lends a plain session whose driver is asyncpg: plain code enqueues with it.
    """

    async def run():
        engine = async_engine(database, "asyncpg")
        async with sa_async.AsyncSession(engine) as session:
            await session.run_sync(lambda plain: send_welcome.enqueue(plain, 1))
            assert committed(database) == []
            await session.commit()
        await engine.dispose()

    asyncio.run(run())
    assert len(committed(database)) == 1


def test_django_enqueues_from_asynchronous_code(database, django):
    """
    In the thread where Django's own asynchronous calls run, so in the same connection as they.
    """
    from asgiref.sync import sync_to_async
    from django.db import connection, connections

    async def run():
        with pytest.raises(WrongConnection, match="one thread") as caught:
            await send_welcome.aenqueue(connections["default"], 1)
        assert "alias" in caught.value.hint
        await send_welcome.aenqueue("default", 1)
        await send_welcome.aenqueue(connection, 2)
        assert await send_welcome.aenqueue_many("default", [3, 4]) == 2
        await sync_to_async(connections.close_all)()

    asyncio.run(run())
    assert len(committed(database)) == 4


def test_a_callers_own_failure_keeps_its_librarys_class(database, engine, django):
    """
    Retry code of the caller's finds the class it knows: here that of a serialization failure.
    """
    trigger = """
        create function fail() returns trigger language plpgsql as $f$
        begin raise exception using errcode = '40001', message = 'again'; end $f$;
        create trigger fail before insert on forebay.log for each row execute function fail()"""
    with psycopg.connect(database) as conn:
        conn.execute(trigger)
    with engine.connect() as conn, pytest.raises(sa.exc.OperationalError) as caught:
        send_welcome.enqueue(conn, 1)
    assert caught.value.orig.sqlstate == "40001"
    from django.db import OperationalError, connection

    with pytest.raises(OperationalError):
        send_welcome.enqueue(connection, 1)

    async def run():
        conn = await asyncpg.connect(**asyncpg_address(database))
        with pytest.raises(asyncpg.SerializationError):
            await send_welcome.aenqueue(conn, 1)
        await conn.close()

    asyncio.run(run())

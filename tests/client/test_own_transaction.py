"""Enqueuing on the caller's own connection: its transaction decides, and nothing about it
changes.
"""

import asyncio
import copy
import re

import psycopg
import pytest
from psycopg.pq import Trace, TransactionStatus
from psycopg.rows import dict_row, namedtuple_row
from psycopg_pool import ConnectionPool

from forebay import App, Client
from forebay.errors import InvalidJob, PayloadTooLarge, SchemaError, WrongConnection

app = App()


@app.job(queue="mail")
def send_welcome(user_id: int, locale: str = "en") -> None: ...


@pytest.fixture
def conn(database):
    with psycopg.connect(database) as conn:
        yield conn


def committed(dsn):
    """The ids of the jobs that everybody sees, oldest first."""
    return sorted(job.job_id for job in Client(dsn).jobs())


def test_a_job_exists_once_its_transaction_has_committed(database, conn):
    """
    Before the commit nobody else sees it; after it, everybody does.
    """
    job_id = send_welcome.enqueue(conn, user_id=42, locale="it")
    assert committed(database) == []

    conn.commit()

    (job,) = Client(database).job(job_id)
    assert (job.kind, job.queue, job.args) == (
        "send_welcome",
        "mail",
        {"user_id": 42, "locale": "it"},
    )


def test_a_job_vanishes_with_its_transaction(database, conn):
    """
    A rollback takes the job back with everything else.
    """
    send_welcome.enqueue(conn, 42)
    conn.rollback()
    assert committed(database) == []


def test_a_job_vanishes_with_its_savepoint_only(database, conn):
    """
    What a savepoint took back is gone, what was enqueued before and after it is there.
    """
    before = send_welcome.enqueue(conn, 1)
    with conn.transaction(force_rollback=True):
        send_welcome.enqueue(conn, 2)
    after = send_welcome.enqueue(conn, 3)
    conn.commit()
    assert committed(database) == [before, after]


@pytest.mark.parametrize(
    "level",
    [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE],
    ids=str,
)
def test_any_isolation_level_will_do(database, conn, level):
    """
    Producers at REPEATABLE READ and SERIALIZABLE enqueue side by side without conflicts. (Only two
    SERIALIZABLE transactions that use a queue and priority for the very first time may conflict.)
    """
    ids = [send_welcome.enqueue(conn, 0)]
    conn.commit()
    conn.isolation_level = level
    with psycopg.connect(database) as neighbour:
        neighbour.isolation_level = level
        conn.execute("select count(*) from forebay.setting")
        neighbour.execute("select count(*) from forebay.setting")
        ids += [send_welcome.enqueue(conn, 1), send_welcome.enqueue(neighbour, 2)]
        neighbour.commit()
        ids.append(send_welcome.enqueue(conn, 3))
        conn.commit()
    assert committed(database) == sorted(ids)


def test_a_serialization_failure_is_the_callers_own(database, conn):
    """
    It passes as the driver raised it, for the code around that retries the transaction.
    """
    conn.execute("create table account (id int primary key, balance int)")
    conn.execute("insert into account values (1, 0)")
    conn.commit()
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    conn.execute("select * from account")
    with psycopg.connect(database) as neighbour:
        neighbour.execute("update account set balance = 1")
    send_welcome.enqueue(conn, 1)
    with pytest.raises(psycopg.errors.SerializationFailure):
        conn.execute("update account set balance = 2")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        send_welcome.enqueue(conn, 1)


def test_nothing_is_ever_committed_begun_or_set(database, conn, tmp_path):
    """
    What goes over the wire is one SELECT per call and chunk: the trace of the connection shows no
    BEGIN, COMMIT, ROLLBACK, SAVEPOINT or SET of ours, and the transaction is the same as before.
    """
    before = conn.execute("select pg_current_xact_id()").fetchone()
    trace = tmp_path / "trace"
    with trace.open("w") as file:
        conn.pgconn.trace(file.fileno())
        conn.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        job_id = send_welcome.using(delay=60, expires_in=60).enqueue(conn, 1)
        send_welcome.enqueue_many(conn, range(10), chunk=4)
        Client().depth(conn=conn)
        Client().jobs(conn=conn)
        Client().cancel(job_id, conn=conn)
        conn.pgconn.untrace()

    assert conn.info.transaction_status == TransactionStatus.INTRANS
    assert conn.execute("select pg_current_xact_id()").fetchone() == before
    sent = re.findall(
        r"^F\t\d+\t(?:Parse|Query)\t (?:\"\w*\" )?\"(\w+)", trace.read_text(), re.MULTILINE
    )
    assert sent == ["select"] * 7
    conn.rollback()
    assert committed(database) == []


def test_an_autocommit_connection_commits_each_call(database):
    """
    Without a transaction of the caller's, a call is one, as any statement there.
    """
    with psycopg.connect(database, autocommit=True) as conn:
        job_id = send_welcome.enqueue(conn, 1)
        assert conn.info.transaction_status == TransactionStatus.IDLE
        assert committed(database) == [job_id]


def test_a_pipeline_carries_enqueues(database, conn):
    """
    In pipeline mode calls work as anywhere, and errors come where they belong.
    """
    with conn.pipeline():
        conn.execute("select 1")
        ids = [send_welcome.enqueue(conn, 1), send_welcome.enqueue(conn, 2)]
    conn.commit()
    assert committed(database) == ids


@pytest.mark.parametrize("row_factory", [dict_row, namedtuple_row], ids=["dict", "namedtuple"])
def test_the_callers_row_factory_is_the_callers_own(database, row_factory):
    """
    A connection that makes dicts of its rows enqueues like any other, and stays as it is.
    """
    with psycopg.connect(database, row_factory=row_factory) as conn:
        assert isinstance(send_welcome.enqueue(conn, 1), int)
        assert send_welcome.enqueue_many(conn, [2, 3]) == 2
        assert Client().jobs(conn=conn)[0].kind == "send_welcome"
        assert conn.row_factory is row_factory


def test_the_callers_loaders_and_cursors_do_not_matter(database):
    """
    Neither a type loader of the caller's nor a cursor class with other placeholders changes what
    comes back.
    """

    class Shout(psycopg.adapt.Loader):
        def load(self, data):
            return bytes(data).decode() + "!"

    with psycopg.connect(database, cursor_factory=psycopg.RawCursor) as conn:
        conn.adapters.register_loader("timestamptz", Shout)
        conn.adapters.register_loader("jsonb", Shout)
        job_id = send_welcome.enqueue(conn, 7)
        (job,) = Client().job(job_id, conn=conn)
        assert job.args == {"user_id": 7}
        assert job.enqueued_at.tzinfo is not None


def test_a_cursor_stands_for_its_connection(conn):
    """
    Who has only a cursor at hand passes that; its own results stay as they are.
    """
    with conn.cursor() as cursor:
        cursor.execute("select 'mine'")
        send_welcome.enqueue(cursor, 1)
        assert cursor.fetchone() == ("mine",)


def test_a_read_only_transaction_is_the_callers_own_mistake(database):
    """
    It is refused by the server, in the driver's words.
    """
    with psycopg.connect(database) as conn:
        conn.read_only = True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            send_welcome.enqueue(conn, 1)


def test_a_lost_connection_is_the_callers_own_trouble(database, server):
    """
    The driver's exception passes, since the code around expects that one and no other.
    """
    conn = psycopg.connect(database)
    conn.execute("select 1")
    with psycopg.connect(database, autocommit=True) as killer:
        killer.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        send_welcome.enqueue(conn, 1)
    conn.close()


def test_refused_arguments_leave_the_transaction_usable(database, conn):
    """
    They are found before anything is sent, so the transaction goes on.
    """
    for refused in (
        lambda: send_welcome.enqueue(conn, "42"),
        lambda: send_welcome.enqueue(conn, 42, language="it"),
        lambda: send_welcome.enqueue(conn),
        lambda: send_welcome.enqueue(conn, 42, "a\x00b"),
        lambda: send_welcome.using(priority=99999).enqueue(conn, 42),
    ):
        with pytest.raises(InvalidJob):
            refused()
    assert conn.info.transaction_status == TransactionStatus.IDLE
    job_id = send_welcome.enqueue(conn, 42)
    conn.commit()
    assert committed(database) == [job_id]


def test_what_the_database_refuses_is_told_in_its_words(conn):
    """
    A limit that only the database knows is an error of ours all the same; the caller's
    transaction is aborted then, as by any failed statement.
    """
    conn.execute("select forebay.configure('args_bytes_max', 1024)")
    with pytest.raises(InvalidJob) as caught:
        send_welcome.using(expires_at=psycopg_now(conn), delay=60).enqueue(conn, 1)
    assert "expires_at" in caught.value.message
    assert conn.info.transaction_status == TransactionStatus.INERROR


def psycopg_now(conn):
    return conn.execute("select now()").fetchone()[0]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("dbname=shop", "Connect first"),
        (None, "The connection comes first"),
        (42, "The connection comes first"),
        ({"user_id": 42}, "The connection comes first"),
    ],
    ids=["address", "None", "number", "dict"],
)
def test_what_is_no_connection_is_refused_with_advice(wrong, hint):
    """
    The mistakes that people make are told apart: an address, a forgotten connection.
    """
    with pytest.raises(WrongConnection) as caught:
        send_welcome.enqueue(wrong, 1)
    assert hint in caught.value.hint


def test_a_forgotten_connection_is_the_mistake_that_is_reported(database):
    """
    Not the argument that seems to be missing then, nor a missing parameter of ours.
    """
    for call in (
        lambda: send_welcome.enqueue(1.5),
        lambda: asyncio.run(send_welcome.aenqueue(1.5)),
        lambda: send_welcome.enqueue(1.5, locale=3),
    ):
        with pytest.raises(WrongConnection) as caught:
            call()
        assert caught.value.message == "the first argument must be a connection, not float"
        assert "send_welcome.enqueue(conn, ...)" in caught.value.hint
    for call in (
        lambda: send_welcome.enqueue(user_id=1),
        lambda: asyncio.run(send_welcome.aenqueue(user_id=1)),
        lambda: send_welcome.enqueue_many(),
        lambda: asyncio.run(send_welcome.aenqueue_many()),
    ):
        with pytest.raises(WrongConnection, match="the connection is missing"):
            call()
    with psycopg.connect(database) as conn:
        with pytest.raises(WrongConnection, match="not as conn=") as caught:
            send_welcome.enqueue(conn=conn, user_id=1)
        assert "send_welcome.enqueue(conn, ...)" in caught.value.hint
        with pytest.raises(InvalidJob, match="user_id is missing"):
            send_welcome.enqueue(conn)


def test_the_verbs_of_other_libraries_are_answered_with_ours():
    """
    What people write by reflex names the call that does the same; any other attribute is just
    missing.
    """
    for verb, instead in (
        ("delay", "send_welcome.enqueue(conn, ...)"),
        ("delay_on_commit", "send_welcome.enqueue(conn, ...)"),
        ("apply_async", "send_welcome.using("),
        ("defer_async", "await send_welcome.aenqueue(conn, ...)"),
        ("s", "send_welcome.call(...)"),
    ):
        with pytest.raises(AttributeError) as caught:
            getattr(send_welcome, verb)
        assert instead in str(caught.value)
    with pytest.raises(AttributeError, match=r"has no attribute 'colour'$"):
        _ = send_welcome.colour
    assert not hasattr(copy.copy(send_welcome), "delay")
    assert not hasattr(send_welcome.using(delay=1), "delay")


def test_a_pool_is_no_connection(database):
    """
    The advice says how to take a connection from it.
    """
    with ConnectionPool(database, min_size=0, max_size=1, open=True) as pool:
        with pytest.raises(WrongConnection, match="ConnectionPool") as caught:
            send_welcome.enqueue(pool, 1)
        assert "pool.connection()" in caught.value.hint
        with pool.connection() as conn:
            send_welcome.enqueue(conn, 1)


def test_connections_of_other_libraries_are_named(monkeypatch):
    """
    For libraries that look supported there is advice, without importing any of them.
    """
    for module in ("asyncpg.connection", "sqlalchemy.orm.session", "django.db", "psycopg2"):
        foreign = type("Connection", (), {"__module__": module})()
        with pytest.raises(WrongConnection) as caught:
            send_welcome.enqueue(foreign, 1)
        assert caught.value.given.startswith(module)
        assert "comes first" not in caught.value.hint


@pytest.mark.anyio
async def test_sync_and_async_connections_are_told_apart(database, conn):
    """
    Each face refuses the other's connection and names its twin.
    """
    async with await psycopg.AsyncConnection.connect(database) as aconn:
        with pytest.raises(WrongConnection, match="must be awaited") as caught:
            send_welcome.enqueue(aconn, 1)
        assert "`aenqueue`" in caught.value.hint
        with pytest.raises(WrongConnection, match="cannot be awaited") as caught:
            await send_welcome.aenqueue(conn, 1)
        assert "`enqueue`" in caught.value.hint


@pytest.mark.anyio
async def test_an_asynchronous_transaction_decides_as_well(database):
    """
    Commit and rollback on an asynchronous connection mean the same.
    """
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await send_welcome.aenqueue(conn, 1)
        await conn.rollback()
        kept = await send_welcome.using(tag="kept").aenqueue(conn, 2)
        async with conn.cursor() as cursor:
            also = await send_welcome.aenqueue(cursor, 3)
        await conn.commit()
    assert committed(database) == [kept, also]


def test_a_database_without_the_schema_says_so(empty_database):
    """
    The advice is to migrate; the call names what is missing.
    """
    with psycopg.connect(empty_database) as conn, pytest.raises(SchemaError) as caught:
        send_welcome.enqueue(conn, 1)
    assert "forebay migrate" in caught.value.hint


def test_text_that_the_connection_cannot_carry_is_refused(database):
    """
    On a connection with a narrow client_encoding, an argument outside it is an error of ours.
    """
    with psycopg.connect(database, client_encoding="latin1") as conn:
        send_welcome.enqueue(conn, 1, locale="fran\u00e7ais")
        with pytest.raises(InvalidJob, match="client_encoding"):
            send_welcome.enqueue(conn, 1, locale="\u65e5\u672c")


def test_a_producer_needs_no_more_than_the_producers_role(database):
    """
    A login role with ``forebay_producer`` enqueues, one and many, and may read nothing.
    """
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("drop role if exists shop_writer")
        conn.execute("create role shop_writer login in role forebay_producer")
    try:
        with psycopg.connect(database, user="shop_writer") as conn:
            job_id = send_welcome.using(expires_in=3600, delay=5).enqueue(conn, 1)
            assert send_welcome.enqueue_many(conn, [2, 3]) == 2
            assert Client().cancel(job_id, conn=conn) == "cancelled"
            conn.commit()
            for forbidden in ("select * from forebay.log", "select forebay.depth()"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(forbidden)
                conn.rollback()
        assert len(committed(database)) == 3
    finally:
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute("drop role shop_writer")


def test_limits_of_the_settings_hold_at_the_door(conn, monkeypatch):
    """
    Arguments are measured against the settings of the process, before anything is sent.
    """
    small = App()
    monkeypatch.setenv("FOREBAY_ARGS_BYTES_MAX", "1024")

    @small.job
    def keep(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge, match="limit is 1024"):
        keep.enqueue(conn, "x" * 2000)

"""Idle connections that calls without a connection of the caller share."""

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from forebay import App
from forebay.config import UnkeptAddress
from forebay.db import kept
from forebay.errors import DatabaseUnavailable, InvalidJob, JobNotFound, QueueFull
from tests.support.engine import connect, one
from tests.support.fix_db import make_migrated
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for

pytestmark = pytest.mark.direct


@pytest.fixture(autouse=True)
def nothing_kept():
    """Begin and end without idle connections."""
    kept.close_kept()
    yield
    kept.close_kept()


@pytest.fixture
def handler(database):
    """A handler of an app of the test's own."""
    app = App(database)

    @app.job(keep_result=True)
    def work(n: int = 0) -> int:
        return n

    work.app = app  # so that tests reach it
    return work


def sessions(conn):
    """Return the process ids of the sessions of single calls, and what they do."""
    query = (
        "select pid, state, xact_start from pg_stat_activity where datname = current_database() "
        "and application_name = 'forebay client' order by pid"
    )
    return conn.execute(query).fetchall()


def test_the_next_call_takes_the_connection(handler, conn):
    """
    Plain and awaited calls of handlers, handles and clients: one session does them all, and is idle
    outside a transaction between them.
    """
    job_id = handler.enqueue_now(1)
    ((pid, state, begun),) = sessions(conn)
    assert (state, begun) == ("idle", None)
    asyncio.run(handler.aenqueue_now(2))
    asyncio.run(handler.aenqueue_now(3))
    assert handler.handle(job_id).status().state == "ready"
    assert handler.app.client().job(job_id)[0].kind == "work"
    handler.app.run_worker(until_idle=True)
    assert handler.handle(job_id).result() == 1
    assert asyncio.run(handler.handle(job_id).aresult()) == 1
    assert sessions(conn) == [(pid, "idle", None)]


def test_a_refusal_keeps_the_connection_and_no_transaction(handler, conn):
    """
    A full queue, a job that does not exist: the next call takes the same session.
    """
    handler.app.client().limit_queue("default", max_waiting=1)
    handler.enqueue_now()
    ((pid, *_),) = sessions(conn)
    with pytest.raises(QueueFull):
        handler.enqueue_now()
    with pytest.raises(JobNotFound):
        handler.handle(999_999).status()
    with pytest.raises(InvalidJob):
        handler.enqueue_now("x")
    assert sessions(conn) == [(pid, "idle", None)]


def test_calls_at_once_have_a_connection_each(handler, conn):
    """
    Threads and tasks never share one; what is more than a few is closed after the call.
    """
    with ThreadPoolExecutor(20) as pool:
        ids = list(pool.map(handler.enqueue_now, range(100)))
    assert len(set(ids)) == 100
    # The server needs a moment to end a session.
    wait_for(lambda: 1 <= len(sessions(conn)) <= kept.IDLE_MAX, 10, lambda: sessions(conn))

    async def many():
        return await asyncio.gather(*(handler.aenqueue_now(n) for n in range(50)))

    found = []
    threads = [threading.Thread(target=lambda: found.extend(asyncio.run(many()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 150
    wait_for(lambda: 1 <= len(sessions(conn)) <= kept.IDLE_MAX, 10, lambda: sessions(conn))
    assert {state for _, state, _ in sessions(conn)} == {"idle"}


def test_idle_connections_are_closed_after_a_time(handler, conn, monkeypatch):
    """
    Also if no call ever comes again; the thread that closes them ends.
    """
    monkeypatch.setattr(kept, "IDLE_SECONDS", 0.2)
    handler.enqueue_now()
    wait_for(lambda: not sessions(conn), 10)
    wait_for(lambda: "forebay idle connections" not in [t.name for t in threading.enumerate()])
    handler.enqueue_now()


def test_a_session_that_the_server_ended_is_replaced_silently(handler, conn):
    """
    An idle timeout, an administrator: nothing was sent, so the call connects again.
    """
    handler.enqueue_now()
    ((pid, *_),) = sessions(conn)
    conn.execute("select pg_terminate_backend(%s, 5000)", [pid])
    assert handler.enqueue_now() > 0
    ((pid, *_),) = sessions(conn)
    conn.execute("select pg_terminate_backend(%s, 5000)", [pid])
    assert asyncio.run(handler.aenqueue_now()) > 0
    assert one(conn, "select count(*) from forebay.jobs() j") == 3


@pytest.mark.slow
@pytest.mark.crash
def test_a_restart_of_the_server_is_met_by_one_connect(own_server):
    """
    Each kept connection is dead then; the next call finds that before it sends.
    """
    app = App(own_server.dsn(make_migrated(own_server, "test")))
    handler = app.job(name="work")(lambda: None)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: handler.enqueue_now(), range(8)))
    own_server.stop(immediate=True)
    own_server.start()
    handler.enqueue_now()
    asyncio.run(handler.aenqueue_now())
    assert len(app.client().jobs()) == 10


def test_what_was_sent_is_never_sent_again(handler, database, conn):
    """
    A connection that dies while the call waits for its answer: the error says that the outcome is
    unknown, and the job is there once.
    """
    with Proxy(database) as proxy:
        app = App(proxy.dsn)
        work = app.job(name="work")(lambda: None)
        work.enqueue_now()
        proxy.lose_reply("enqueue")
        with pytest.raises(DatabaseUnavailable):
            work.enqueue_now()
    assert one(conn, "select count(*) from forebay.jobs() j") == 2


@pytest.mark.anyio
async def test_a_cancelled_call_keeps_no_connection(handler, database, conn):
    """
    Its answer may still come: the connection is closed.
    """
    await handler.aenqueue_now()
    ((pid, *_),) = sessions(conn)
    with connect(database) as other, other.transaction():
        other.execute("lock table forebay.lane in access exclusive mode")
        call = asyncio.create_task(handler.aenqueue_now())
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    wait_for(lambda: pid not in [each[0] for each in sessions(conn)], 10)
    await handler.aenqueue_now()


FORKS = """
import os, sys, threading
import forebay

app = forebay.App(sys.argv[1])

@app.job
def work(n: int) -> None: ...

work.enqueue_now(0)
children = []
for number in range(1, 4):
    if (pid := os.fork()) == 0:
        for n in range(5):
            work.enqueue_now(10 * number + n)
        os._exit(0)
    children.append(pid)
    work.enqueue_now(10 * number + 5)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 3
work.enqueue_now(1)
assert sum(t.name == "forebay idle connections" for t in threading.enumerate()) == 1
"""


@pytest.mark.slow
def test_a_fork_shares_no_connection(database, conn):
    """
    Parent and children enqueue at once, before and after the fork, and no one gets the answer of
    another; warnings about forks with threads are errors.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS, database],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert one(conn, "select count(*) from forebay.jobs() j") == 20


def test_addresses_share_nothing(handler, database, conn):
    """
    Another user, another app with a function: another connection.
    """
    handler.enqueue_now()
    App(connect=lambda: psycopg.connect(database)).client().jobs()
    App(database + "&connect_timeout=7").client().jobs()
    assert len(kept._shelf._idle) == 3


def test_nothing_is_kept_where_a_database_is_dropped_soon(database, conn):
    """
    Django's test runner drops its database at the end.
    """
    app = App()
    app._internals._address = UnkeptAddress(database)
    app.client().jobs()
    wait_for(lambda: not sessions(conn), 10)  # long before an idle connection would be closed
    assert os.getpid() == kept._shelf._pid

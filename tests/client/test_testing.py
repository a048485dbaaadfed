"""What users test their own code with."""

import psycopg
import pytest

from forebay import App, Snooze
from forebay.testing import (
    assert_enqueued,
    assert_enqueued_async,
    assert_not_enqueued,
    assert_not_enqueued_async,
    enqueued,
    enqueued_async,
    run_until_idle,
    run_until_idle_async,
)

pytest_plugins = ["pytester"]

app = App()
seen: list[object] = []


@app.job(queue="mail")
def send(user_id: int, locale: str = "en") -> None:
    seen.append((user_id, locale))


@app.job(queue="mail")
def later(user_id: int) -> Snooze:
    return Snooze(3600)


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


@pytest.fixture
def conn(database):
    with psycopg.connect(database) as conn:
        yield conn


def test_a_job_is_found_before_its_transaction_commits(conn):
    """
    A test need not commit: kind, queue and some of the arguments are compared.
    """
    send.enqueue(conn, 1)
    send.enqueue(conn, 2, locale="it")
    send.using(queue="slow").enqueue(conn, 3)

    assert [job.args["user_id"] for job in enqueued(conn, send)] == [1, 2, 3]
    (job,) = assert_enqueued(conn, send, args={"locale": "it"})
    assert job.args == {"user_id": 2, "locale": "it"}
    assert_enqueued(conn, "send", queue="mail", count=2)
    assert_enqueued(conn, count=3)
    assert_not_enqueued(conn, later)
    assert_not_enqueued(conn, send, args={"locale": "fr"})
    conn.rollback()
    assert_not_enqueued(conn)


def test_a_failed_assertion_lists_what_there_is(conn):
    """
    The message shows what was looked for and every job, so that the mistake can be seen.
    """
    send.enqueue(conn, 1, locale="it")
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(conn, send, args={"locale": "fr"})
    assert "at least one job of kind send with {'locale': 'fr'} expected, 0 found" in str(
        caught.value
    )
    assert "send {'locale': 'it', 'user_id': 1} in queue mail" in str(caught.value)
    with pytest.raises(AssertionError, match="2 jobs of kind send expected, 1 found"):
        assert_enqueued(conn, send, count=2)
    with pytest.raises(AssertionError, match="0 jobs expected, 1 found"):
        assert_not_enqueued(conn)


@pytest.mark.anyio
async def test_asynchronous_tests_ask_the_same(database):
    """
    On an asynchronous connection there are the same three questions.
    """
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await send.aenqueue(conn, 1)
        assert len(await enqueued_async(conn)) == 1
        await assert_enqueued_async(conn, send, args={"user_id": 1}, count=1)
        await assert_not_enqueued_async(conn, later)
        with pytest.raises(AssertionError):
            await assert_not_enqueued_async(conn, send)


def test_jobs_run_until_none_is_left(database, conn):
    """
    Committed jobs run, and jobs that are retried or snoozed stay.
    """
    send.enqueue(conn, 1)
    later.enqueue(conn, 2)
    conn.commit()
    send.enqueue(conn, 3)

    stats = run_until_idle(app, database, concurrency=2)

    assert seen == [(1, "en")]
    assert stats.done == 1
    (job,) = enqueued(conn, later)
    assert job.state == "scheduled"


@pytest.mark.anyio
async def test_jobs_run_on_the_tests_own_loop(database):
    """
    Inside a running event loop there is the asynchronous form.
    """
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await send.aenqueue(conn, 1)
    await run_until_idle_async(app, database)
    assert seen == [(1, "en")]


@pytest.mark.slow
def test_the_plugin_lends_databases(pytester, server):
    """
    With ``pytest_plugins = ["forebay.testing.plugin"]`` each test has a database of its own and a
    connection that is rolled back.
    """
    pytester.makeconftest('pytest_plugins = ["forebay.testing.plugin"]')
    pytester.makepyfile(
        """
        import forebay
        from forebay.testing import assert_enqueued, assert_not_enqueued, run_until_idle

        app = forebay.App()
        seen = []

        @app.job
        def work(n: int) -> None:
            seen.append(n)

        def test_in_a_transaction(forebay_conn):
            work.enqueue(forebay_conn, 1)
            assert_enqueued(forebay_conn, work, args={"n": 1})

        def test_with_a_worker(forebay_dsn):
            app._internals.use(dsn=forebay_dsn)
            work.enqueue_now(2)
            run_until_idle(app)
            assert seen == [2]

        def test_a_fresh_one(forebay_conn):
            assert_not_enqueued(forebay_conn)
        """
    )
    result = pytester.runpytest_subprocess("-q", "--forebay-server", server.dsn())
    result.assert_outcomes(passed=3)
    with psycopg.connect(server.dsn()) as conn:
        left = "select datname from pg_database where datname ~ '^forebay_t[a-z]+_[0-9a-f]{8}$'"
        assert conn.execute(left).fetchall() == []

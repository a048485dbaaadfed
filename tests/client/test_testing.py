"""What users test their own code with."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from forebay import App, Cancel, Context, Dead, Retry, RetryPolicy, Snooze, TransactionContext
from forebay.errors import ConfigError, InvalidJob, JobCancelled, SoftTimeout, WrongConnection
from forebay.testing import (
    JobFailed,
    Performer,
    assert_enqueued,
    assert_enqueued_async,
    assert_not_enqueued,
    assert_not_enqueued_async,
    context,
    enqueued,
    enqueued_async,
    install_clock,
    perform,
    perform_async,
    run_until_idle,
    run_until_idle_async,
    travel,
    travel_async,
)
from forebay.testing._scratch import address_in, scratch_database, template_database

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


# --- failures, retries and delays ---


@app.job(queue="sums", retry=RetryPolicy(max_attempts=3, base_seconds=600, cap_seconds=600))
def divide(n: int) -> float:
    return 1 / n


@app.job(queue="sums", max_attempts=2)
def give_up(how: str) -> Retry | Dead | Cancel:
    return {"retry": Retry(after=60, reason="later"), "dead": Dead("no"), "cancel": Cancel("no")}[
        how
    ]


@app.job(queue="sums")
def count_down(ctx: Context, n: int) -> Snooze | None:
    seen.append(n)
    return Snooze(86_400) if seen.count(n) < n else None


@pytest.fixture(scope="module")
def test_template(server):
    """The name of a template with a test clock, as the fixtures of the plugin make one."""
    with template_database(server.dsn()) as name:
        yield name


@pytest.fixture
def clocked(server, test_template):
    """The address of a database whose clock can be moved."""
    with scratch_database(server.dsn(), test_template) as dsn:
        yield dsn


def test_a_failure_is_raised_where_the_jobs_are_run(database, conn):
    """
    A failing handler fails the test, with its exception, the line of the handler and the name of
    the job.
    """
    divide.enqueue(conn, 0)
    send.enqueue(conn, 1)
    conn.commit()
    with pytest.raises(ZeroDivisionError) as caught:
        run_until_idle(app, database)
    assert caught.traceback[-1].name == "divide"
    (note,) = caught.value.__notes__
    assert note.endswith("(divide), attempt 1 of 3")
    assert seen == [(1, "en")], "the other job did not run"


def test_a_failure_without_an_exception_is_raised_too(database, conn):
    """
    A handler that returns ``Dead`` fails the test as well.
    """
    give_up.enqueue(conn, "dead")
    conn.commit()
    with pytest.raises(JobFailed, match=r"give_up.*dead: Dead: no"):
        run_until_idle(app, database)


def test_outcomes_are_counted_apart(database, conn):
    """
    With ``raise_on_failure=False`` nothing is raised: the counts and the errors are returned.
    """
    divide.enqueue_many(conn, [0, 1])
    give_up.enqueue_many(conn, ["retry", "dead", "cancel"])
    later.enqueue(conn, 1)
    conn.commit()
    found = run_until_idle(app, database, raise_on_failure=False)
    assert (found.done, found.retried, found.dead, found.cancelled, found.snoozed) == (
        1,
        2,
        1,
        1,
        1,
    )
    assert [type(error) for error in found.errors] == [ZeroDivisionError]
    assert {each.job.kind for each in found.failures} == {"divide", "give_up"}
    assert found.released == found.postponed == found.expired == 0


@pytest.mark.slow
def test_delays_and_retries_run_without_waiting(clocked):
    """
    With ``with_scheduled`` the clock moves from one due job to the next, until none is left.
    """
    with psycopg.connect(clocked) as conn:
        send.using(delay=3600).enqueue(conn, 1)
        divide.enqueue(conn, 0)
        count_down.enqueue(conn, 3)
    began = time.monotonic()
    found = run_until_idle(app, clocked, with_scheduled=True, raise_on_failure=False)
    assert (found.done, found.retried, found.dead, found.snoozed) == (2, 2, 1, 2)
    assert 2 * 86_400 - 60 <= found.moved_seconds < 3 * 86_400
    assert time.monotonic() - began < 3600
    with psycopg.connect(clocked) as conn:
        (job,) = enqueued(conn, divide)
        assert (job.state, job.attempt) == ("dead", 3)


def test_a_failure_that_is_raised_ends_the_run_before_its_retry(clocked):
    """
    Nobody wants twenty attempts of a handler with a typing mistake.
    """
    with psycopg.connect(clocked) as conn:
        divide.enqueue(conn, 0)
    with pytest.raises(ZeroDivisionError):
        run_until_idle(app, clocked, with_scheduled=True)
    with psycopg.connect(clocked) as conn:
        assert [job.state for job in enqueued(conn, divide)] == ["retrying"]


def test_jobs_that_expire_are_counted(clocked):
    """
    An expired job does not run, and the count says so.
    """
    with psycopg.connect(clocked) as conn:
        send.using(expires_in=60).enqueue(conn, 1)
    with psycopg.connect(clocked) as conn:
        travel(conn, timedelta(hours=1))
    found = run_until_idle(app, clocked)
    assert (found.expired, found.done, seen) == (1, 0, [])


def test_time_travels_with_the_transaction(clocked):
    """
    A move is seen inside its transaction, and undone with it.
    """
    with psycopg.connect(clocked) as conn:
        there = travel(conn, timedelta(days=400))
        assert (there - datetime.now(UTC)).days in (399, 400)
        job_id = send.using(delay=60).enqueue(conn, 1)
        (job,) = enqueued(conn)
        assert job.job_id == job_id
        assert abs((job.run_at - there).total_seconds() - 60) < 30
        assert abs((travel(conn, -400 * 86_400) - datetime.now(UTC)).total_seconds()) < 30
        conn.rollback()
        assert abs((travel(conn, 0) - datetime.now(UTC)).total_seconds()) < 30


@pytest.mark.anyio
async def test_time_travels_on_asynchronous_connections_too(clocked):
    """
    The same on an asynchronous connection.
    """
    async with await psycopg.AsyncConnection.connect(clocked) as conn:
        assert (await travel_async(conn, timedelta(days=2)) - datetime.now(UTC)).days >= 1


def test_the_clock_of_other_databases_stays(server, conn, database):
    """
    A migrated database has no test clock, and only a database with ``test`` as a word of its name
    gets one.
    """
    with pytest.raises(ConfigError, match="is missing in this database"):
        travel(conn, 60)
    with pytest.raises(ConfigError, match="is missing in this database"):
        run_until_idle(app, database, with_scheduled=True)
    name = "contest_of_shops"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"create database {name} template template0")
        try:
            with (
                psycopg.connect(server.dsn(name)) as other,
                pytest.raises(ConfigError, match="has no word `test` in its name"),
            ):
                install_clock(other)
        finally:
            admin.execute(f"drop database {name}")


# --- one attempt ---


@app.job(transaction=True)
def withdraw(ctx: TransactionContext[psycopg.Connection[Any]], amount: int) -> None:
    ctx.conn.execute("insert into ledger values (%s)", [-amount])
    send.enqueue(ctx.conn, amount)
    if amount > 100:
        raise ValueError("too much")


@app.job(transaction=True)
async def deposit(ctx: TransactionContext[psycopg.AsyncConnection[Any]], amount: int) -> None:
    await ctx.conn.execute("insert into ledger values (%s)", [amount])
    if amount > 100:
        raise ValueError("too much")


@app.job
def typed(ctx: Context, when: datetime, ids: set[int]) -> tuple[datetime, set[int]]:
    ctx.progress(0.5, "half")
    return when, ids


@dataclass
class Side:
    n: int


@app.batch_job(size=10)
def square(items: list[Side]) -> list[Exception | None]:
    seen.extend(side.n**2 for side in items)
    return [ValueError("odd") if side.n % 2 else None for side in items]


def test_one_attempt_is_performed_as_a_real_run_does():
    """
    Arguments are encoded and decoded, so that a value that JSON changes is seen; the outcome and
    progress are returned.
    """
    when = datetime(2030, 1, 1, tzinfo=UTC)
    done = perform(typed, when, {1, 2})
    assert (done.outcome, done.returned, done.error) == ("done", (when, {1, 2}), None)
    assert [(report.done, report.note) for report in done.reports] == [(0.5, "half")]
    with pytest.raises(InvalidJob, match="ids"):
        perform(typed, when, "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="user"):
        perform(send, user=1)  # type: ignore[call-arg]


def test_a_performed_attempt_ends_as_its_retry_policy_says():
    """
    The number of the attempt decides between a retry and a dead letter; outcomes are returned.
    """
    quiet = Performer(raise_on_failure=False)
    first = quiet.perform(divide, 0)
    assert (first.outcome, type(first.error)) == ("retried", ZeroDivisionError)
    assert first.after is not None
    assert 300 <= first.after <= 600
    last = Performer(attempt=3, raise_on_failure=False).perform(divide, 0)
    assert (last.outcome, last.after) == ("dead", None)
    assert quiet.perform(give_up, "cancel").outcome == "cancelled"
    assert quiet.perform(later, 1).after == 3600
    assert quiet.perform(divide.using(max_attempts=1), 0).outcome == "dead"
    with pytest.raises(ZeroDivisionError) as caught:
        perform(divide, 0)
    assert caught.traceback[-1].name == "divide"
    with pytest.raises(JobFailed, match="Dead: no"):
        perform(give_up, "dead")


def test_a_transactional_handler_runs_in_the_tests_transaction(conn):
    """
    Its writes and jobs are part of the test's transaction; those of an attempt that fails are not.
    """
    conn.execute("create table ledger (amount int)")
    Performer(conn=conn).perform(withdraw, 10)
    with pytest.raises(ValueError, match="too much"):
        Performer(conn=conn).perform(withdraw, 200)
    assert conn.execute("select sum(amount) from ledger").fetchone() == (-10,)
    (job,) = assert_enqueued(conn, send, count=1)
    assert Performer().perform_job(app, job).context.job.job_id == job.job_id
    assert seen == [(10, "en")]
    conn.rollback()
    assert enqueued(conn) == []


@pytest.mark.anyio
async def test_coroutines_are_performed_on_the_tests_loop(database):
    """
    Asynchronous handlers, also in a transaction; plain ones run in a thread.
    """
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await conn.execute("create table ledger (amount int)")
        assert (await Performer(conn=conn).perform_async(deposit, 10)).outcome == "done"
        with pytest.raises(ValueError, match="too much"):
            await Performer(conn=conn).perform_async(deposit, 200)
        found = await (await conn.execute("select sum(amount) from ledger")).fetchone()
        assert found == (10,)
    assert (await perform_async(send, 1)).outcome == "done"


def test_a_transactional_handler_needs_its_kind_of_connection(conn):
    """
    A missing connection, and one of another library, is refused with what is wanted.
    """
    with pytest.raises(ConfigError, match="needs a connection for it"):
        perform(withdraw, 1)
    with pytest.raises(
        WrongConnection, match=r"takes a psycopg\.\S*AsyncConnection, not a psycopg\.Connection"
    ):
        Performer(conn=conn).perform(deposit, 1)


def test_a_batch_is_performed_in_one_call():
    """
    Each job of a batch has its own end.
    """
    found = Performer(raise_on_failure=False).perform_batch(square, [Side(1), Side(2), Side(3)])
    assert [each.outcome for each in found] == ["retried", "done", "retried"]
    assert seen == [1, 4, 9]
    assert perform(square, Side(4)).outcome == "done"
    with pytest.raises(ValueError, match="odd"):
        perform(square, Side(3))


def test_a_context_is_made_for_a_handler():
    """
    A handler that takes a context can be called: progress is recorded, cancellation and timeouts
    can be requested.
    """
    ctx = context(
        send.using(tag="import", headers={"tenant": "acme"}), attempt=3, resources={"http": 1}
    )
    assert (ctx.job.queue, ctx.job.tag, ctx.job.headers) == ("mail", "import", {"tenant": "acme"})
    assert (ctx.attempt, ctx.job.max_attempts, ctx.resources["http"]) == (3, 20, 1)
    ctx.raise_if_cancelled()
    ctx.cancel("no longer needed")
    assert ctx.cancelled
    with pytest.raises(JobCancelled, match="no longer needed"):
        ctx.raise_if_cancelled()
    other = context("anything")
    other.time_out()
    with pytest.raises(SoftTimeout):
        other.raise_if_cancelled()
    assert other.logger.name == "forebay.job.anything"


@pytest.mark.slow
def test_the_plugin_lends_databases(pytester, server):
    """
    With ``pytest_plugins = ["forebay.testing.plugin"]`` each test has a database of its own and a
    connection that is rolled back.
    """
    pytester.makeconftest('pytest_plugins = ["forebay.testing.plugin"]')
    pytester.makepyfile(
        """
        import asyncio
        import pytest
        import forebay
        from forebay.testing import (
            assert_enqueued, assert_enqueued_async, assert_not_enqueued, run_until_idle,
            travel, travel_async,
        )

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

        def test_what_was_rolled_back_is_gone(forebay_conn):
            assert_not_enqueued(forebay_conn)

        def test_one_database_serves_all_that_roll_back(
            forebay_conn, forebay_database, forebay_dsn
        ):
            (name,) = forebay_conn.execute("select current_database()").fetchone()
            assert name in forebay_database and name not in forebay_dsn

        async def ask(conn):
            await work.aenqueue(conn, 1)
            await assert_enqueued_async(conn, work, count=1)

        @pytest.mark.anyio
        async def test_on_a_loop_of_anyio(forebay_aconn):
            await ask(forebay_aconn)

        def test_on_a_loop_of_its_own(forebay_aconn):
            asyncio.run(ask(forebay_aconn))

        def test_two_connections_of_a_test_may_both_travel(forebay_conn, forebay_aconn):
            travel(forebay_conn, 3600)
            asyncio.run(travel_async(forebay_aconn, 60))

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
        """
    )
    before = _test_databases(server)
    options = ("-q", "-p", "no:cacheprovider", "--forebay-server", server.dsn())
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=7)
    pytester.runpytest_subprocess(*options, "-n", "2").assert_outcomes(passed=7)
    assert _test_databases(server) == before


def _test_databases(server) -> list[tuple[str]]:
    with psycopg.connect(server.dsn()) as conn:
        return conn.execute(
            "select datname from pg_database where datname ~ '^forebay_t'"
        ).fetchall()


def test_the_limits_of_declared_queues_are_in_force(database):
    """
    The run applies them, as a deployment does; a limit that the test set itself is kept.
    """
    mine = App(database)
    polite = mine.queue("polite", concurrency=1)
    own = mine.queue("own", concurrency=1)
    together: list[int] = []

    @mine.job(queue=polite)
    async def one_by_one() -> None:
        together.append(1)
        assert len(together) == 1
        await asyncio.sleep(0)
        together.pop()

    mine.client().limit_queue(own, concurrency=7)
    with psycopg.connect(database) as conn:
        one_by_one.enqueue_many(conn, [()] * 5)
    assert run_until_idle(mine).done == 5
    limits = {each.queue: each.limits.concurrency for each in mine.client().limits()}
    assert limits == {"polite": 1, "own": 7}


@pytest.mark.parametrize(
    "server",
    [
        "host=/tmp/x port=5 user=a dbname=b",
        "postgresql://a:p%20w@h:55/b?sslmode=require",
        "host=::1 user='a@b'",
        "postgresql://h1:1,h2:2/x",
        "",
    ],
)
def test_the_address_of_a_test_database_is_a_url(server):
    """SQLAlchemy and asyncpg take no keywords and values. Nothing of the server's is lost."""
    url = address_in(server, "d b/")
    assert url.startswith("postgresql://")
    assert conninfo_to_dict(url) == conninfo_to_dict(server) | {"dbname": "d b/"}

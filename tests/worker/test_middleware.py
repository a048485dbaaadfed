"""Middleware around enqueues, attempts and settlements."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from forebay import (
    App,
    Attempt,
    AttemptEnded,
    Context,
    Job,
    Middleware,
    NewJob,
    RetryPolicy,
    TransactionContext,
)
from forebay.errors import ConfigError, EnqueueError, InvalidJob, LeaseLost
from forebay.testing import Performer, assert_enqueued, enqueued, perform
from forebay.worker.ground.stats import Stats
from forebay.worker.settle.listeners import Listeners
from tests.support.fix_worker import run_until_idle

pytestmark = pytest.mark.anyio

tenant = contextvars.ContextVar("tenant", default="none")
seen: list[Any] = []


class Tenancy(Middleware):
    """Carries a context variable from the producer to the handler."""

    def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[None]:
        for job in jobs:
            job.headers["tenant"] = tenant.get()
        yield

    def attempt(self, attempt: Attempt) -> Iterator[None]:
        token = tenant.set(attempt.job.headers.get("tenant", "none"))
        try:
            yield
        finally:
            tenant.reset(token)


class Recording(Middleware):
    """Records when it is entered and left."""

    def __init__(self, name: str) -> None:
        self.name = name

    def attempt(self, attempt: Attempt) -> Iterator[None]:
        seen.append(f"{self.name} before {attempt.job.kind}")
        try:
            yield
        except Exception as error:
            seen.append(f"{self.name} failed with {error}")
            raise
        seen.append(f"{self.name} after {attempt.returned}")


class Awaiting(Middleware):
    """Runs around plain functions and, awaiting, around coroutine functions."""

    def attempt(self, attempt: Attempt) -> Iterator[None]:
        seen.append("plain")
        yield

    async def aattempt(self, attempt: Attempt) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        token = tenant.set("awaited")
        yield
        tenant.reset(token)
        seen.append(f"awaited {attempt.returned}")


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()
    token = tenant.set("none")
    yield
    tenant.reset(token)


@pytest.fixture
def app(database):
    return App(database, middleware=[Tenancy()])


async def test_a_header_written_at_the_enqueue_is_there_around_each_sort_of_handler(app, conn):
    """
    A context variable set around the attempt is seen by coroutines, threads, batches and handlers
    in transactions, and is gone after it.
    """

    @app.job
    async def on_the_loop() -> None:
        seen.append(("loop", tenant.get()))

    @app.job
    def in_a_thread() -> None:
        seen.append(("thread", tenant.get()))

    @app.job(transaction=True)
    def in_a_transaction(ctx: TransactionContext[psycopg.Connection[Any]]) -> None:
        seen.append(("transaction", tenant.get()))

    @app.job(transaction=True)
    async def in_an_awaited_transaction(ctx: Context) -> None:
        seen.append(("awaited transaction", tenant.get()))

    @app.batch_job(size=10)
    def in_a_batch(jobs: list[Job]) -> None:
        seen.append(("batch", tenant.get()))

    tenant.set("acme")
    for handler in (
        on_the_loop,
        in_a_thread,
        in_a_transaction,
        in_an_awaited_transaction,
        in_a_batch,
    ):
        handler.enqueue(conn)
    tenant.set("none")
    on_the_loop.enqueue(conn)
    conn.commit()
    worker = await run_until_idle(app, concurrency=1)
    assert worker.stats.done == 6
    assert sorted(seen) == [
        (("awaited transaction"), "acme"),
        ("batch", "acme"),
        ("loop", "acme"),
        ("loop", "none"),
        ("thread", "acme"),
        ("transaction", "acme"),
    ]


async def test_the_first_middleware_is_the_outermost(database, conn):
    """
    They are left in the opposite order, and see what the handler returned or raised.
    """
    app = App(database, middleware=[Recording("outer")])
    app.add_middleware(Recording("inner"))

    @app.job
    def work(n: int) -> int:
        return 10 // n

    assert perform(work, 5).returned == 2
    assert seen == ["outer before work", "inner before work", "inner after 2", "outer after 2"]
    seen.clear()
    with pytest.raises(ZeroDivisionError):
        perform(work, 0)
    assert seen[2:] == [
        "inner failed with integer division or modulo by zero",
        "outer failed with integer division or modulo by zero",
    ]


async def test_an_exception_of_a_middleware_is_the_failure_of_the_attempt(database, conn):
    """
    Before the handler, after it, or instead of its exception; the handler's traceback has no frame
    of a middleware.
    """

    class Failing(Middleware):
        def attempt(self, attempt: Attempt) -> Iterator[None]:
            where = attempt.job.args["where"]
            if where == "before":
                raise PermissionError("not you")
            try:
                yield
            except LookupError as error:
                if where == "instead":
                    raise ValueError("replaced") from error
            if where == "after":
                raise PermissionError("too late")

    app = App(database, middleware=[Failing(), Recording("inner")])

    @app.job(max_attempts=1)
    async def work(where: str) -> None:
        seen.append(f"called {where}")
        if where in ("instead", "hidden"):
            raise LookupError(where)

    client = app.client()
    ids = {
        where: work.enqueue_now(where) for where in ("before", "after", "instead", "hidden", "well")
    }
    await run_until_idle(app)

    def ends(where: str) -> tuple[str, str | None, str | None]:
        (status,) = client.job(ids[where])
        error = next((e for each in client.job_history(ids[where]) for e in each.errors), None)
        return (
            status.state,
            None if error is None else f"{error.type}: {error.message}",
            None if error is None else error.traceback,
        )

    assert "called before" not in seen
    assert ends("before")[:2] == ("dead", "PermissionError: not you")
    assert ends("after")[:2] == ("dead", "PermissionError: too late")
    assert ends("instead")[:2] == ("dead", "ValueError: replaced")
    state, error, traceback = ends("hidden")
    assert (state, error) == ("dead", "LookupError: hidden"), "a middleware cannot hide a failure"
    assert traceback is not None
    assert traceback.splitlines()[1].endswith(", in work")
    assert ends("well")[0] == "done"


async def test_an_asynchronous_middleware_runs_around_coroutines(database, conn):
    """
    ``aattempt`` is awaited around coroutine functions, ``attempt`` runs around plain ones.
    """
    app = App(database, middleware=[Awaiting()])

    @app.job
    async def coroutine() -> str:
        return tenant.get()

    @app.job
    def plain() -> None: ...

    coroutine.enqueue(conn)
    plain.enqueue(conn)
    conn.commit()
    await run_until_idle(app)
    assert sorted(seen) == ["awaited awaited", "plain"]


async def test_an_asynchronous_middleware_alone_is_refused_beside_plain_functions(database):
    """
    A worker does not start with a middleware that would not run around some of its handlers.
    """

    class OnlyAwaiting(Middleware):
        async def aattempt(self, attempt: Attempt) -> AsyncIterator[None]:
            yield

    app = App(database, middleware=[OnlyAwaiting()])

    @app.job
    def plain() -> None: ...

    with pytest.raises(ConfigError, match="cannot run around plain, a plain function"):
        await run_until_idle(app)

    class OnlyAwaitingEnqueue(Middleware):
        async def aenqueue(self, jobs: Sequence[NewJob]) -> AsyncIterator[None]:
            yield

    with pytest.raises(ConfigError, match="has aenqueue and no enqueue"):
        app.add_middleware(OnlyAwaitingEnqueue())
    with pytest.raises(
        ConfigError, match="must be an object of a subclass of Middleware, not type"
    ):
        App(middleware=[Tenancy])  # type: ignore[list-item]


async def test_a_middleware_refuses_an_enqueue(app, conn, database):
    """
    An exception before the yield writes nothing, one by one and in bulk; headers are checked as any
    other.
    """

    class Closed(Middleware):
        def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[None]:
            if any("secret" in job.args for job in jobs):
                raise PermissionError("closed")
            if any("huge" in job.args for job in jobs):
                jobs[0].headers["huge"] = "x" * 9000
            yield

    app.add_middleware(Closed())

    @app.job
    def work(text: str) -> None: ...

    with pytest.raises(PermissionError, match="closed"):
        work.enqueue(conn, "secret")
    with pytest.raises(InvalidJob, match="headers"):
        work.enqueue(conn, "huge")
    with pytest.raises(PermissionError):
        work.enqueue_many(conn, ["a", "secret"])
    with pytest.raises(PermissionError):
        work.enqueue_now("secret")
    async with await psycopg.AsyncConnection.connect(database) as other:
        with pytest.raises(PermissionError):
            await work.aenqueue(other, "secret")
        with pytest.raises(PermissionError):
            await work.aenqueue_many(other, ["secret"])
    with pytest.raises(PermissionError):
        await work.aenqueue_now("secret")
    assert enqueued(conn) == []


async def test_every_enqueue_passes_the_middlewares(app, conn, database):
    """
    Single, in bulk, of any kinds, synchronous and not, in its own transaction: each job has the
    header. The id is known after the yield, and options may be replaced.
    """

    class Watching(Middleware):
        def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[None]:
            for job in jobs:
                job.options = job.options.merged(tag="watched")
            yield
            seen.append([job.job_id for job in jobs])

    app.add_middleware(Watching())

    @app.job
    def work(n: int) -> None: ...

    tenant.set("acme")
    job_id = work.enqueue(conn, 1)
    assert work.enqueue_many(conn, range(5), chunk=2) == 5
    assert app.enqueue_many(conn, [work.call(9)]) == 1
    conn.commit()
    async with await psycopg.AsyncConnection.connect(database) as other:
        other_id = await work.aenqueue(other, 2)
        assert await work.aenqueue_many(other, range(3), chunk=2) == 3
        assert await app.aenqueue_many(other, [work.call(8)]) == 1
    work.enqueue_now(1)
    await work.aenqueue_now(1)
    jobs = enqueued(conn)
    assert len(jobs) == 14
    assert {(job.headers or {}).get("tenant") for job in jobs} == {"acme"}
    assert {job.tag for job in jobs} == {"watched"}
    assert seen[0] == [job_id]
    assert [len(ids) for ids in seen] == [1, 2, 2, 1, 1, 1, 2, 1, 1, 1, 1]
    assert [other_id] in seen


async def test_the_index_of_a_refused_job_counts_over_all_chunks(app, conn):
    """
    With middleware a bulk is written chunk by chunk; the index of the error is that in the whole
    bulk.
    """

    @app.job
    def work(n: int) -> None: ...

    with pytest.raises(EnqueueError) as caught:
        work.enqueue_many(conn, [0, 1, 2, "three"], chunk=2)
    assert caught.value.index == 3


async def test_a_transactional_attempt_has_the_connection_of_its_handler(database, conn):
    """
    So a middleware can set a variable for row-level security in the handler's transaction; it is
    gone with it.
    """

    class RowSecurity(Middleware):
        def attempt(self, attempt: Attempt) -> Iterator[None]:
            if attempt.conn is not None:
                attempt.conn.execute("select set_config('app.tenant', 'acme', true)")
            yield

    app = App(database, middleware=[RowSecurity()])

    @app.job(transaction=True)
    def work(ctx: TransactionContext[psycopg.Connection[Any]]) -> None:
        seen.append(ctx.conn.execute("select current_setting('app.tenant')").fetchone())

    work.enqueue(conn)
    conn.commit()
    await run_until_idle(app)
    Performer(conn=conn).perform(work)
    assert seen == [("acme",)] * 2


async def test_a_settlement_is_entered_before_it_is_recorded_and_left_after(database, conn):
    """
    Around the recording of an outcome: before the yield the database does not have it, after it the
    database does.
    """

    class Settling(Middleware):
        def settlement(self, ended: AttemptEnded) -> Iterator[None]:
            before = state(ended.job.job_id)
            yield
            seen.append((ended.job.kind, ended.outcome, before, state(ended.job.job_id)))

    def state(job_id: int) -> str:
        (status,) = app.client().job(job_id)
        return str(status.state)

    app = App(database, middleware=[Settling()])

    @app.job
    async def done() -> None: ...

    @app.job(retry=RetryPolicy(base_seconds=3000, cap_seconds=3000))
    async def failing() -> None:
        raise ValueError("no")

    @app.job(transaction=True)
    async def in_a_transaction(ctx: Context) -> None: ...

    for handler in (done, failing, in_a_transaction):
        handler.enqueue(conn)
    conn.commit()
    await run_until_idle(app)
    kinds = {kind: rest for kind, *rest in seen}
    assert kinds["done"] in (["done", "claimed", "done"], ["done", "running", "done"])
    assert kinds["failing"][0::2] == ["retried", "retrying"]
    assert kinds["in_a_transaction"] == ["done", "done", "done"]


@pytest.mark.parametrize("is_refused", [False, True])
async def test_the_first_middleware_around_a_settlement_is_the_outermost(is_refused):
    """
    As around an attempt: the last one that is entered is left first, also when the database refuses
    the outcome.
    """

    class Named(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        def settlement(self, ended: AttemptEnded) -> Iterator[None]:
            seen.append(f"{self.name} entered")
            try:
                yield
            finally:
                seen.append(f"{self.name} left")

    seen: list[str] = []
    listeners = Listeners({}, [Named("first"), Named("second")], Stats())
    announced = listeners.announce(SimpleNamespace(outcome="done"))
    (listeners.refused if is_refused else listeners.recorded)(announced)
    listeners.close()
    assert seen == ["first entered", "second entered", "second left", "first left"]


async def test_an_exception_around_a_settlement_harms_no_job(database, conn, caplog):
    """
    It is logged and counted, and the outcome stays.
    """

    class Broken(Middleware):
        def settlement(self, ended: AttemptEnded) -> Iterator[None]:
            if ended.job.args["n"] == 1:
                raise RuntimeError("before")
            yield
            raise RuntimeError("after")

    app = App(database, middleware=[Broken()])

    @app.job
    async def work(n: int) -> None: ...

    work.enqueue_many(conn, [1, 2])
    conn.commit()
    worker = await run_until_idle(app)
    assert (worker.stats.done, worker.stats.listener_errors) == (2, 2)
    assert {job.state for job in enqueued(conn)} == {"done"}
    assert (
        caplog.text.count("a middleware around a settlement failed; the job is not affected") == 2
    )


async def test_a_settlement_that_is_refused_raises_in_its_middlewares(database, conn):
    """
    A worker that lost its lease does not settle: ``LeaseLost`` is raised at the yield, and no
    listener hears of the outcome.
    """

    class Settling(Middleware):
        def settlement(self, ended: AttemptEnded) -> Iterator[None]:
            try:
                yield
            except LeaseLost:
                seen.append("lost")
                raise

    app = App(database, middleware=[Settling()])
    app.on_done(seen.append)

    @app.job
    async def work() -> None:
        if not seen:
            seen.append("ran")
            await asyncio.to_thread(_revoke, database)

    work.enqueue(conn)
    conn.commit()
    await run_until_idle(app)
    assert seen[:2] == ["ran", "lost"]
    assert [entry.outcome for entry in seen[2:] if entry != "lost"] == ["done"]


def _revoke(database: str) -> None:
    """Take the job away from its worker, as if that had been silent."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("select forebay._revoke(max(lease_id), 'revoked', false) from forebay.lease")


async def test_performed_attempts_pass_the_middlewares(app, conn):
    """
    ``perform`` in a test runs them around the handler, as a worker does.
    """

    @app.job
    def work() -> str:
        return tenant.get()

    assert perform(work.using(headers={"tenant": "acme"})).returned == "acme"
    work.enqueue(conn)
    assert_enqueued(conn, work)

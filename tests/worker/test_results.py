"""What a handler returns is kept with its job, how far it is can be asked, and both can be
waited for.
"""

import dataclasses
import threading
import time
from datetime import date, timedelta

import anyio
import pydantic
import pytest

import forebay
from forebay import Cancel, Dead, RetryPolicy, Snooze
from forebay.config import Settings, WorkerSettings
from forebay.errors import ConfigError, JobDied, JobNotFound, NoResult, ResultTimeout
from forebay.ops.results import kept
from tests.support.engine import connect, one, shift_clock, state, trim
from tests.support.fix_worker import make_effect_table, run_until_idle, running
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio

NEVER = RetryPolicy(max_attempts=1)


@dataclasses.dataclass
class Report:
    rows: int
    names: list[str]


# --- keeping ---


@pytest.mark.parametrize("flavour", ["async", "thread", "transaction", "transaction in thread"])
async def test_what_a_handler_returns_can_be_read(app, conn, flavour):
    """
    As JSON or as a type, from every sort of handler, also when it is None.
    """
    options = {"keep_result": True, "transaction": flavour.startswith("transaction")}
    if flavour.endswith("thread"):

        @app.job(**options)
        def work(n: int) -> Report | None:
            return Report(n, ["a", "ü"]) if n else None

    else:

        @app.job(**options)
        async def work(n: int) -> Report | None:
            return Report(n, ["a", "ü"]) if n else None

    some, none = app.handle(work.enqueue(conn, 2)), app.handle(work.enqueue(conn, 0))
    worker = await run_until_idle(app)
    assert some.result(0) == {"rows": 2, "names": ["a", "ü"]}
    assert await some.aresult(0, as_type=Report) == Report(2, ["a", "ü"])
    assert none.result(0) is None
    assert work.handle(some.job_id).result(0) == Report(2, ["a", "ü"])
    assert await work.handle(some.job_id).aresult(0) == Report(2, ["a", "ü"])
    assert work.handle(none.job_id).result(0) is None
    assert work.handle(some.job_id).result(0, as_type=dict)["rows"] == 2
    assert some.status().state == (await none.astatus()).state == "done"
    assert worker.stats.done == 2
    with pytest.raises(NoResult, match="another type"):
        some.result(0, as_type=list[int])


class Price(pydantic.BaseModel):
    cents: int
    until: date


async def test_a_result_has_the_return_type_of_the_handler(app, conn):
    """
    Outcomes are not part of it; a type that cannot be found out is an error that says what to do.
    """

    @app.job(keep_result=True)
    def price(cents: int) -> Price | Snooze:
        return Price(cents=cents, until=date(2027, 1, 31))

    @app.job(keep_result=True)
    def ended(n: int) -> Cancel | None:
        return None

    @app.job(keep_result=True)
    def untyped(n: int):
        return [n]

    @app.job(keep_result=True)
    def unknown(n: int) -> "NowhereToBeFound":  # noqa: F821
        return n

    jobs = [handler.enqueue(conn, 5) for handler in (price, ended, untyped, unknown)]
    await run_until_idle(app)
    assert price.handle(jobs[0]).result(0) == Price(cents=5, until=date(2027, 1, 31))
    assert ended.handle(jobs[1]).result(0) is None
    assert untyped.handle(jobs[2]).result(0) == [5]
    with pytest.raises(ConfigError, match="return type cannot be resolved") as caught:
        unknown.handle(jobs[3]).result(0)
    assert "as_type" in caught.value.hint
    assert unknown.handle(jobs[3]).result(0, as_type=int) == 5
    assert app.client().result(jobs[0], as_type=Price).cents == 5
    with pytest.raises(NoResult, match="another type"):
        price.handle(jobs[2]).result(0)


async def test_a_result_is_there_exactly_if_the_job_is_done(app, conn):
    """
    A transaction that fails after the handler returned takes the result with it; the next attempt's
    is kept.
    """
    make_effect_table(conn)
    conn.execute(
        "create function fail() returns trigger language plpgsql as $$ begin"
        " if (select count(*) from public.witness) = 0 then raise exception 'not yet'; end if;"
        " return null; end $$;"
        " create constraint trigger t after insert on effect initially deferred"
        " for each row execute function fail()"
    )

    @app.job(
        keep_result=True,
        transaction=True,
        retry=RetryPolicy(strategy="fixed", base_seconds=3600, cap_seconds=3600),
    )
    async def work(ctx: forebay.Context) -> int:
        await ctx.conn.execute("insert into effect values (1, 1)")
        return ctx.attempt

    job = work.enqueue(conn)
    await run_until_idle(app)
    assert state(conn, job) == "retrying"
    assert one(conn, "select count(*) from forebay.result") == 0
    conn.execute("insert into witness values (1)")
    shift_clock(conn, 4000)
    await run_until_idle(app)
    assert app.handle(job).result(0) == 2


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("x" * 70_000, "more than result_bytes_max 65536"),
        (object(), "what the handler returned"),
        ("a\x00b", "what the handler returned"),
        ("\ud800", "what the handler returned"),
    ],
    ids=["large", "no JSON", "NUL", "surrogate"],
)
async def test_a_result_that_cannot_be_kept_fails_no_job(app, conn, value, problem):
    """
    The job is done; who asks for the result learns why there is none.
    """

    @app.job(keep_result=True)
    async def work() -> object:
        return value

    job = work.enqueue(conn)
    await run_until_idle(app)
    assert state(conn, job) == "done"
    with pytest.raises(NoResult, match=problem) as caught:
        app.handle(job).result(0)
    assert caught.value.state == "done"


@pytest.mark.parametrize(
    "value",
    [
        {"ann@s3cr3t.example": object()}, {("s3cr3t", 1): 2}, "s3cr3t\ud800", ["s3cr3t\x00"],
        {"s3cr3t": float("nan")},
        {"s3cr3t": b"s3cr3t"},
    ],
)  # fmt: skip
async def test_the_reason_why_a_result_is_not_kept_repeats_nothing_of_it(value):
    """
    The reason is shown to everyone who can read the job; the value might be a secret.
    """
    made = kept(value, 60)
    assert "what the handler returned" in made.problem
    assert "s3cr3t" not in made.problem


async def test_results_go_when_their_time_is_over(app, conn):
    """
    Past its time a result is not shown, and maintenance deletes it; jobs that keep nothing leave
    nothing.
    """

    @app.job(keep_result=timedelta(hours=1))
    async def work() -> int:
        return 1

    @app.job
    async def plain() -> int:
        return 1

    job, other = work.enqueue(conn), plain.enqueue(conn)
    await run_until_idle(app)
    assert one(conn, "select count(*) from forebay.result") == 1
    with pytest.raises(NoResult, match="keeps no results"):
        app.handle(other).result(0)
    shift_clock(conn, 3700)
    with pytest.raises(NoResult):
        app.handle(job).result(0)
    trim(conn)
    assert one(conn, "select count(*) from forebay.result") == 0


def test_what_cannot_be_kept_is_refused_when_declared(app):
    """
    A time must be one, and a batch handler returns outcomes, not results.
    """
    for keep in (-1, 0, "a week", float("nan"), 10**12):
        with pytest.raises(ConfigError, match="keep_result"):
            app.job(name="x", keep_result=keep)(lambda: None)


# --- waiting ---


@pytest.mark.parametrize("way", ["direct", "pooled"])
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.direct
async def test_waiting_ends_soon_after_the_job(request, app, database, conn, way, face):
    """
    By the wake-up, or by looking where nothing is heard: from a pooler, and where notifications are
    off.
    """
    if way == "pooled":
        pooled = request.getfixturevalue("pooled")
        app = forebay.App(pooled, settings=Settings(worker=WorkerSettings(**FAST)))
    else:
        conn.execute(f"alter database {conn.info.dbname} set forebay.wakeup = 'on'")
    opened = anyio.Event()
    ended_at = 0.0

    @app.job(keep_result=True)
    async def work() -> str:
        nonlocal ended_at
        await opened.wait()
        ended_at = time.monotonic()
        return "here"

    async with running(app), anyio.create_task_group() as tasks:
        with connect(database) as producer:
            handle = app.handle(work.enqueue(producer))
        answers = []

        async def wait() -> None:
            if face == "async":
                answers.append(await handle.aresult(20))
            else:
                answers.append(await anyio.to_thread.run_sync(handle.result, 20))
            answers.append(time.monotonic())

        tasks.start_soon(wait)
        await anyio.sleep(1.0)  # By now it looks seldom.
        opened.set()
        await wait_for_async(lambda: len(answers) == 2, 10)
    assert answers[0] == "here"
    assert answers[1] - ended_at < 1.0


async def test_every_end_without_a_result_has_its_error(app, conn):
    """
    Dead with the last error, cancelled, not ended in time, never there: each is told apart.
    """

    @app.job(retry=NEVER, keep_result=True)
    async def fail() -> None:
        message = "no such user"
        raise LookupError(message)

    @app.job(keep_result=True)
    async def cancel() -> Cancel:
        return Cancel("not needed")

    @app.job(keep_result=True)
    async def give_up() -> Dead:
        return Dead("for good")

    jobs = [handler.enqueue(conn) for handler in (fail, cancel, give_up)]
    waiting = fail.using(delay=3600).enqueue(conn)
    await run_until_idle(app)
    with pytest.raises(JobDied, match="LookupError: no such user") as died:
        app.handle(jobs[0]).result(0)
    assert (died.value.reason, died.value.error_type) == ("exhausted", "LookupError")
    with pytest.raises(NoResult) as cancelled:
        app.handle(jobs[1]).result(0)
    assert cancelled.value.state == "cancelled"
    with pytest.raises(JobDied, match="for good"):
        await app.handle(jobs[2]).aresult(0)
    with pytest.raises(ResultTimeout, match="still scheduled after") as late:
        app.handle(waiting).result(0.2)
    assert late.value.retryable
    with pytest.raises(JobNotFound):
        app.handle(10**9).result(0)


# --- progress ---


@pytest.mark.slow
async def test_progress_can_be_watched_and_is_written_seldom(app, conn):
    """
    A handler that says it a thousand times costs a row a second; the newest is what is seen.
    """
    opened = threading.Event()

    @app.job
    def work(ctx: forebay.Context) -> None:
        for n in range(1000):
            ctx.progress(n / 1000, f"row {n}")
        opened.wait(20)
        ctx.progress(1, "x" * 300)

    handle = app.handle(work.enqueue(conn))
    assert handle.progress() is None
    async with running(app):
        await wait_for_async(lambda: (p := handle.progress()) and p.note == "row 999")
        opened.set()
        await wait_for_async(lambda: handle.progress().done == 1)
    assert (await handle.aprogress()).note == "x" * 200
    assert one(conn, "select count(*) from forebay.progress") <= 3


async def test_the_last_report_is_written_when_the_worker_ends_at_once(app, conn):
    """A second has not passed since the report before."""

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        ctx.progress(0.5, "first")
        await wait_for_async(lambda: (p := handle.progress()) and p.note == "first")
        ctx.progress(1, "last")

    handle = app.handle(work.enqueue(conn))
    await run_until_idle(app)
    assert handle.progress().note == "last"


async def test_a_job_that_has_reported_progress_is_running(app, conn):
    """
    A page shows "4 of 16" and the state at once: the report does not wait for the next heartbeat.
    """
    seen = []

    @app.job
    async def work(ctx: forebay.Context) -> None:
        ctx.progress(0.25, "page 4 of 16")
        await wait_for_async(handle.progress)
        seen.append(state(conn, handle.job_id))

    handle = app.handle(work.enqueue(conn))
    await run_until_idle(app)
    assert seen == ["running"]


async def test_progress_must_be_a_share(app, conn):
    """
    Anything else is a mistake of the handler, and fails the attempt.
    """

    @app.job(retry=NEVER)
    async def work(ctx: forebay.Context) -> None:
        ctx.progress(50)

    job = work.enqueue(conn)
    await run_until_idle(app)
    with pytest.raises(JobDied, match="done is 50, not within 0 to 1"):
        app.handle(job).result(0)


@pytest.mark.slow
def test_a_suspect_in_a_child_process_reports_and_returns_too(conn, workers, effects):
    """
    What a handler says and returns comes out of the child that runs it.
    """
    worker = workers.start()
    job = one(conn, "select forebay.enqueue('report', '{\"entry\": 1}')")
    wait_for(lambda: effects.all("start"))
    worker.kill()
    workers.start()
    app = forebay.App(conn.info.dsn)
    assert app.handle(job).result(30) == {"child": True}
    assert app.handle(job).progress().note == "half"


async def test_a_late_worker_records_no_progress(conn):
    """
    Under a closed lease nothing is written.
    """
    lease = one(conn, "select forebay.open_lease_v1('w')")
    note = '[{"job_id": 1, "group_id": 1, "done": 0.5, "note": "n"}]'
    assert one(conn, "select forebay.record_progress_v1(%s, %s::jsonb)", lease, note) == 1
    one(conn, "select forebay.close_lease_v1(%s)", lease)
    assert one(conn, "select forebay.record_progress_v1(%s, %s::jsonb)", lease, note) == 0


async def test_history_tells_attempts_progress_and_result(app, conn):
    """
    Every failed attempt with its error, also of a job that goes on or ended well.
    """

    @app.job(
        keep_result=True, retry=RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)
    )
    async def work(ctx: forebay.Context) -> int:
        if ctx.attempt < 3:
            message = f"attempt {ctx.attempt}"
            raise ValueError(message)
        return ctx.attempt

    job = work.enqueue(conn)
    async with running(app):
        assert await app.handle(job).aresult(20) == 3
    (history,) = app.client().job_history(job)
    assert [error.message for error in history.errors] == ["attempt 1", "attempt 2"]
    assert (history.result.value, history.result.problem) == (3, None)
    assert history.progress is None

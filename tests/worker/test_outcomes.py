"""What a handler returns or raises decides how its job ends."""

import asyncio
import concurrent.futures
import contextvars
from dataclasses import dataclass

import psycopg
import pytest

import forebay
from forebay import Cancel, Dead, Job, Retry, RetryPolicy, Snooze
from tests.support.engine import depth, enqueue, one, state
from tests.support.fix_worker import run_until_idle, running
from tests.support.mutant import break_function
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)


def letter(conn: psycopg.Connection, job_id: int) -> tuple[str, int, list[dict]]:
    """Return reason, attempts and errors of a job's dead letter."""
    row = conn.execute(
        "select reason, attempt, errors from forebay.dead_letter where job_id = %s", [job_id]
    ).fetchone()
    assert row is not None, f"job {job_id} is no dead letter"
    return row


async def until_dead(conn: psycopg.Connection, job_id: int) -> tuple[str, int, list[dict]]:
    """Wait until a job is a dead letter."""
    await wait_for_async(lambda: state(conn, job_id) == "dead", 20)
    return letter(conn, job_id)


async def _send(number: int) -> None: ...


def _unwrapped(function):
    return lambda number: function(number)


def _numbers(number: int):
    yield number


NOT_RUN = {
    "coroutine": _unwrapped(_send),
    "list of coroutines": lambda number: [_send(number)],
    "generator": lambda number: _numbers(number),
    "map": lambda number: map(print, [number]),
    "future": lambda number: concurrent.futures.Future(),
}


@pytest.mark.parametrize("handler", NOT_RUN.values(), ids=NOT_RUN)
@pytest.mark.parametrize(
    "options",
    [{}, {"transaction": True}, {"keep_result": True}],
    ids=["plain", "transaction", "kept"],
)
async def test_a_handler_that_returns_what_has_not_run_has_failed(app, conn, handler, options):
    """
    A wrapper without async, or a lambda, returns a coroutine: nothing ran, the job is not done.
    """
    job = app.job(name="x", retry=AT_ONCE, max_attempts=1, **options)(handler).enqueue(conn, 1)
    await run_until_idle(app)

    _, _, (error,) = letter(conn, job)
    assert error["type"] == "TypeError"
    assert "nothing need have run" in error["message"]


async def test_a_coroutine_or_batch_handler_that_returns_what_has_not_run_has_failed(app, conn):
    """
    What is awaited may be a task or a coroutine; a batch handler may return one for each job.
    """

    @app.job(max_attempts=1)
    async def task(number: int):
        return asyncio.get_running_loop().create_future()

    @app.batch_job(size=10, max_attempts=1)
    def each(jobs: list[Job]):
        return [_send(1) for _ in jobs]

    ids = [task.enqueue(conn, 1), each.enqueue(conn), each.enqueue(conn)]
    await run_until_idle(app)

    assert [state(conn, job) for job in ids] == ["dead"] * 3


async def test_coroutine_functions_and_plain_functions_run(app, conn):
    """
    Both sorts of handlers get the arguments that were enqueued, and their jobs are done.
    """
    seen = []

    @app.job
    async def on_the_loop(number: int, text: str = "default") -> None:
        seen.append(("loop", number, text))

    @app.job
    def in_a_thread(number: int) -> None:
        seen.append(("thread", number))

    jobs = [
        on_the_loop.enqueue(conn, 1),
        on_the_loop.enqueue(conn, 2, text="x"),
        in_a_thread.enqueue(conn, 3),
    ]
    worker = await run_until_idle(app)

    assert sorted(seen) == [("loop", 1, "default"), ("loop", 2, "x"), ("thread", 3)]
    assert [state(conn, job) for job in jobs] == ["done"] * 3
    assert worker.stats.done == worker.stats.claimed == 3


async def test_plain_functions_run_at_the_same_time(app, conn):
    """
    As many threads as slots: jobs claimed together do not wait for one thread that happens to be
    idle.
    """
    together = 4
    inside = 0
    all_inside = asyncio.Event()
    loop = asyncio.get_running_loop()

    def enter() -> None:
        nonlocal inside
        inside += 1
        if inside == together:
            all_inside.set()

    @app.job
    def first() -> None: ...

    @app.job
    def meet(ctx: forebay.Context) -> None:
        loop.call_soon_threadsafe(enter)
        assert ctx.wait_cancelled(20)

    async with running(app, concurrency=together):
        first.enqueue(conn)  # Leaves one thread idle.
        await wait_for_async(lambda: depth(conn).get("default") == (0, 0, 0))
        meet.enqueue_many(conn, [()] * together)
        async with asyncio.timeout(5):
            await all_inside.wait()


async def test_a_batch_handler_takes_many_jobs_and_answers_for_each(app, conn):
    """
    None for all done, an entry for each job, or an exception for all: each job ends as told.
    """
    sizes = []

    @dataclass
    class Item:
        number: int

    @app.batch_job(size=50, retry=AT_ONCE, max_attempts=1)
    async def each(jobs: list[Item]) -> list[object]:
        sizes.append(len(jobs))
        outcomes = {0: None, 1: ValueError("one"), 2: Dead("two"), 3: Cancel("three")}
        return [outcomes[item.number % 4] for item in jobs]

    @app.batch_job(size=10, retry=AT_ONCE, max_attempts=2)
    def all_raise(jobs: list[Job]) -> None:
        raise RuntimeError(f"{len(jobs)} together")

    each.enqueue_many(conn, [Item(n) for n in range(8)])
    raised = [all_raise.enqueue(conn, number=n) for n in range(3)]
    async with running(app):
        for job in raised:
            reason, attempts, errors = await until_dead(conn, job)
            assert (reason, attempts, len(errors)) == ("exhausted", 2, 2)
        await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0))

    assert sizes == [8]
    ids = [
        row[0]
        for row in conn.execute("select seq from forebay.log where kind = 'each' order by seq")
    ]
    assert [state(conn, job) for job in ids] == ["done", "dead", "dead", "cancelled"] * 2


async def test_a_batch_answer_that_does_not_fit_fails_every_job_of_the_call(app, conn):
    """
    A wrong number of entries must not be guessed about: all jobs of the call fail with a TypeError.
    """

    @app.batch_job(size=10, max_attempts=1)
    def wrong(jobs: list[Job]) -> list[None]:
        return [None]

    ids = [wrong.enqueue(conn, n=n) for n in range(3)]
    await run_until_idle(app)
    for job in ids:
        reason, _, errors = letter(conn, job)
        assert reason == "exhausted"
        assert errors[0]["type"] == "TypeError"


async def test_failures_are_retried_until_the_attempts_are_used_up(app, conn):
    """
    max_attempts attempts, then a dead letter that has every error.
    """
    attempts = []

    @app.job(retry=AT_ONCE, max_attempts=3)
    async def fail(ctx: forebay.Context) -> None:
        attempts.append(ctx.attempt)
        raise LookupError(f"attempt {ctx.attempt}")

    job = fail.enqueue(conn)
    async with running(app):
        reason, used, errors = await until_dead(conn, job)

    assert attempts == [1, 2, 3]
    assert (reason, used) == ("exhausted", 3)
    assert [error["message"] for error in errors] == ["attempt 1", "attempt 2", "attempt 3"]
    assert "LookupError" in errors[0]["traceback"]


async def test_waits_that_python_writes_with_an_exponent_are_taken(app, conn):
    """
    A hundredth of a millisecond until the next attempt, from a policy's function, a retry and a
    snooze; and as a linger.
    """
    tiny = 1e-5
    seen = []

    @app.job(retry=RetryPolicy(delay=lambda attempt, error: tiny))
    def fail(ctx: forebay.Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    @app.job
    def again(ctx: forebay.Context) -> Retry | None:
        return Retry(after=tiny) if ctx.attempt == 1 else None

    @app.job
    def snooze() -> Snooze | None:
        seen.append(1)
        return Snooze(tiny) if len(seen) == 1 else None

    @app.batch_job(size=5, queue="many", linger=tiny)
    def many(jobs: list[Job]) -> None: ...

    jobs = [handler.enqueue(conn) for handler in (fail, again, snooze, many)]
    async with running(app):
        await wait_for_async(lambda: [state(conn, job) for job in jobs] == ["done"] * 4)


async def test_a_permanent_error_is_not_retried(app, conn):
    """
    Exception types declared permanent end the job at the first attempt.
    """

    @app.job(retry=RetryPolicy(permanent_on=(LookupError,)))
    def look() -> None:
        raise KeyError("not there")

    job = look.enqueue(conn)
    await run_until_idle(app)
    reason, used, errors = letter(conn, job)
    assert (reason, used, errors[0]["type"]) == ("permanent", 1, "KeyError")


async def test_a_job_can_be_snoozed_retried_cancelled_and_given_up_by_its_handler(app, conn):
    """
    A snooze costs no attempt, a retry does, cancel and dead end the job.
    """
    seen = []

    @app.job
    async def snooze(ctx: forebay.Context) -> Snooze | None:
        seen.append(("snooze", ctx.attempt))
        return Snooze(0.05) if len([s for s in seen if s[0] == "snooze"]) < 3 else None

    @app.job
    def again(ctx: forebay.Context) -> Retry | None:
        seen.append(("again", ctx.attempt))
        return Retry(after=0.05, reason="not yet") if ctx.attempt < 3 else None

    @app.job
    async def drop() -> Cancel:
        return Cancel("not wanted")

    @app.job
    async def give_up() -> Dead:
        return Dead("no use")

    jobs = [handler.enqueue(conn) for handler in (snooze, again, drop, give_up)]
    async with running(app):
        await wait_for_async(
            lambda: [state(conn, job) for job in jobs] == ["done", "done", "cancelled", "dead"]
        )
    assert [s for s in seen if s[0] == "snooze"] == [("snooze", 1)] * 3
    assert [s for s in seen if s[0] == "again"] == [("again", n) for n in (1, 2, 3)]
    assert letter(conn, jobs[3])[0] == "permanent"


@pytest.mark.slow
async def test_an_unknown_kind_is_postponed_longer_each_time_and_never_dropped(app, conn, caplog):
    """
    During a rolling deploy the right worker may come in a moment: the job waits, visibly, at no
    attempt, and other jobs are not held up.
    """
    ran = []

    @app.job
    def known() -> None:
        ran.append(1)

    job = enqueue(conn, kind="not_here")
    known.enqueue(conn)
    await run_until_idle(app)
    assert ran == [1]
    assert state(conn, job) == "scheduled"
    assert "not_here" in caplog.text
    waits = [
        one(conn, "select extract(epoch from max(run_at) - now())::float from forebay.deferred")
    ]

    for _ in range(3):
        # Due now, by a clock that is ahead: the real path of a promotion.
        conn.execute(
            "create or replace function forebay._now() returns timestamptz language sql volatile as"
            f" $$ select clock_timestamp() + interval '{len(waits) * 700} seconds' $$"
        )
        await run_until_idle(app)
        assert state(conn, job) == "scheduled"
        waits.append(
            one(
                conn,
                (
                    "select extract(epoch from max(run_at) - forebay._now())::float from "
                    "forebay.deferred"
                ),
            )
        )
    assert waits[0] < 5.1
    assert waits[0] < waits[2] < waits[3]
    row = conn.execute(
        "select attempt, pauses from forebay.deferred order by run_at desc"
    ).fetchone()
    assert row == (None, 4)

    @app.job(name="not_here")
    def deployed() -> None:
        ran.append(2)

    conn.execute(
        "create or replace function forebay._now() returns timestamptz language sql volatile as"
        " $$ select clock_timestamp() + interval '1 hour' $$"
    )
    await run_until_idle(app)
    assert ran == [1, 2]
    assert state(conn, job) == "done"


async def test_arguments_that_do_not_fit_end_the_job_as_permanent(app, conn):
    """
    No retry can help a job whose stored arguments do not fit the handler; the error says what is
    wrong.
    """

    @app.job
    def strict(number: int) -> None: ...

    wrong = [enqueue(conn, kind="strict", args=args) for args in ({"number": "x"}, {}, {"a": 1})]
    right = enqueue(conn, kind="strict", args={"number": 1, "added_later": True})
    await run_until_idle(app)
    for job in wrong:
        reason, _, errors = letter(conn, job)
        assert reason == "permanent"
        assert "number" in errors[0]["message"]
    assert state(conn, right) == "done"


async def test_an_argument_type_that_raises_anything_fails_its_own_job_only(app, conn):
    """
    Code of the application runs while arguments are read. What it raises must not lose the jobs
    that were claimed with it.
    """

    @dataclass
    class Fragile:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ZeroDivisionError("in __post_init__")

    ran = []

    @app.job(retry=AT_ONCE, max_attempts=2)
    async def take(value: Fragile) -> None:
        ran.append(value.number)

    jobs = [enqueue(conn, kind="take", args={"value": {"number": n}}) for n in (1, -1, 2)]
    async with running(app):
        reason, _, errors = await until_dead(conn, jobs[1])
        await wait_for_async(lambda: depth(conn)["default"] == (0, 0, 0))
    assert sorted(ran) == [1, 2]
    assert (reason, len(errors)) == ("exhausted", 2)
    assert errors[0]["message"] == "in __post_init__"


class Unprintable(Exception):
    def __init__(self, inner: BaseException) -> None:
        super().__init__()
        self.inner = inner

    def __str__(self) -> str:
        raise self.inner


def hostile_exceptions() -> dict[str, BaseException]:
    """Exceptions that a worker has to survive, by what is nasty about them."""
    recursive = ValueError("recursive")
    recursive.__cause__ = LookupError("inner")
    recursive.__cause__.__cause__ = recursive
    return {
        "ten_megabytes": ValueError("x" * 10_000_000),
        "str_raises": Unprintable(ValueError("in __str__")),
        "str_raises_system_exit": Unprintable(SystemExit(3)),
        "str_raises_keyboard_interrupt": Unprintable(KeyboardInterrupt()),
        "system_exit": SystemExit(4),
        "keyboard_interrupt": KeyboardInterrupt(),
        "generator_exit": GeneratorExit(),
        "base_exception": BaseException("base"),
        "cancelled": asyncio.CancelledError(),
        "stop_iteration": StopIteration(5),
        "stop_async_iteration": StopAsyncIteration(),
        "recursive_cause": recursive,
        "surrogates": ValueError("lone \ud800 surrogate, and \x00"),
        "group": BaseExceptionGroup("many", [SystemExit(1), ValueError("x")]),
        "memory": MemoryError(),
    }


@pytest.mark.parametrize("flavour", ["async", "thread", "async transaction", "thread transaction"])
async def test_hostile_exceptions_cost_one_attempt_and_nothing_else(app, conn, flavour):
    """
    Whatever a handler raises is recorded once, as valid text of bounded size; the worker goes on.
    """
    nasty = hostile_exceptions()
    options = {"max_attempts": 1, "transaction": "transaction" in flavour, "name": "nasty"}
    if flavour.startswith("async"):

        @app.job(**options)
        async def raises(ctx: forebay.Context, which: str) -> None:
            raise nasty[which]

    else:

        @app.job(**options)
        def raises(ctx: forebay.Context, which: str) -> None:
            raise nasty[which]

    jobs = {which: raises.enqueue(conn, which) for which in nasty}
    await run_until_idle(app)
    for which, job in jobs.items():
        reason, used, errors = letter(conn, job)
        assert (reason, used, len(errors)) == ("exhausted", 1, 1), which
        assert len(errors[0]["message"].encode()) <= 4096
        assert len(errors[0]["traceback"].encode()) <= 16384


async def test_a_claim_whose_answer_would_be_too_large_is_made_smaller(app, conn, database):
    """Jobs that together pass the size of one value are claimed in smaller batches."""
    done = []

    @app.job
    async def heavy(number: int) -> None:
        done.append(number)

    break_function(
        database,
        "claim_v1",
        (
            "    -- Expressions instead of PERFORM",
            """
            if p_limit > 3 then
                raise program_limit_exceeded using message = 'the text would be too large';
            end if;
            -- Expressions instead of PERFORM""",
        ),
    )
    heavy.enqueue_many(conn, [{"number": number} for number in range(20)])
    await run_until_idle(app)
    assert sorted(done) == list(range(20))


async def test_a_handler_finds_nothing_of_the_one_before_it(app, conn):
    """
    Short calls share a task; a context variable that one of them sets, or a cancellation that it
    leaves behind, does not reach the next.
    """
    request = contextvars.ContextVar("request", default="none")
    seen, cancelling = [], []

    @app.job
    async def leave_traces(number: int) -> None:
        task = asyncio.current_task()
        seen.append(request.get())
        cancelling.append(task.cancelling())
        if number % 3 == 0:
            request.set(f"of job {number}")
        if number % 3 == 1:
            task.cancel()

    leave_traces.enqueue_many(conn, [{"number": number} for number in range(30)])
    await run_until_idle(app, concurrency=1)
    assert seen == ["none"] * 30
    assert cancelling == [0] * 30


@pytest.mark.parametrize("flavour", ["plain", "transaction", "batch"])
async def test_a_plain_handler_finds_no_context_variable_of_the_one_before_it(app, conn, flavour):
    """
    A tenant, a language or a logging context that a handler sets and does not reset is that of its
    own job, also when the next one runs in the same thread.
    """
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    def handle() -> None:
        seen.append(tenant.get())
        tenant.set("acme")

    match flavour:
        case "plain":
            app.job(name="one")(handle)
        case "transaction":

            @app.job(name="one", transaction=True)
            def job(ctx: forebay.TransactionContext[psycopg.Connection]) -> None:
                handle()

        case "batch":

            @app.batch_job(name="one", size=1)
            def job(jobs: list[forebay.Job]) -> None:
                handle()

    for _ in range(3):
        conn.execute("select forebay.enqueue('one')")
    await run_until_idle(app, concurrency=1)
    assert seen == ["nobody"] * 3


@pytest.mark.parametrize("size", [1, 300_000])
async def test_a_malformed_row_ends_as_a_dead_letter_and_stops_no_other(app, conn, size):
    """
    Only the owner of the schema can write one. The jobs that are claimed with it run.
    """
    seen = []

    @app.job
    def work(text: str = "") -> None:
        seen.append(len(text))

    before = enqueue(conn, args={"text": "x" * size})
    (malformed,) = conn.execute(
        "insert into forebay.log (lane, enqueued_at, kind, args, headers)"
        " select lane, enqueued_at, kind, '{}', '3' from forebay.log where seq = %s returning seq",
        [before],
    ).fetchone()
    after = enqueue(conn)
    await run_until_idle(app)
    assert sorted(seen) == [0, size]
    assert [state(conn, job) for job in (before, malformed, after)] == ["done", "dead", "done"]

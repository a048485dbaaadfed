"""What the code of a handler does wrong with its steps: the attempt says so, and is counted."""

import asyncio
import contextlib

import pytest

import forebay
from forebay import RetryPolicy
from tests.support.engine import one, state
from tests.support.fix_worker import run_retries

pytestmark = pytest.mark.anyio

FLAVOURS = ["async", "thread"]
TWICE = RetryPolicy(max_attempts=2, strategy="fixed", base_seconds=0.001, jitter=False)


def last_error(conn, job_id):
    query = "select errors -> -1 from forebay.dead_letter where job_id = %s"
    return one(conn, query, job_id)


def a_once(app, flavour, statement, calls, **options):
    """Return a handler whose only step runs a statement; None: it closes its connection."""
    if flavour == "async":

        async def spoil(c):
            calls.append(statement)
            await (c.close() if statement is None else c.execute(statement))

        @app.job(**options)
        async def work(ctx: forebay.Context) -> None:
            await ctx.once("spoil", spoil)
    else:

        def spoil(c):
            calls.append(statement)
            c.close() if statement is None else c.execute(statement)

        @app.job(**options)
        def work(ctx: forebay.Context) -> None:
            ctx.once("spoil", spoil)

    return work


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (None, "closes the connection"),
        ("set transaction read only", "its transaction read-only"),
        ("rollback", "ends the transaction of its connection"),
        ("commit", "ends the transaction of its connection"),
    ],
)
async def test_once_that_spoils_its_connection_is_refused(app, conn, flavour, statement, says):
    """The attempt fails and says what the function does; it is not put off for ever."""
    calls = []
    job = a_once(app, flavour, statement, calls, retry=TWICE).enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert says in error["message"]
    assert len(calls) == 1


def calls_once(app, flavour, spoil):
    """Declare a handler whose only step is this function."""
    if flavour == "async":

        @app.job(name="work", retry=TWICE)
        async def of_a_coroutine(ctx: forebay.Context) -> None:
            await ctx.once("spoil", spoil)

        return of_a_coroutine

    @app.job(name="work", retry=TWICE)
    def plain(ctx: forebay.Context) -> None:
        ctx.once("spoil", spoil)

    return plain


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_once_that_swallows_the_end_of_its_connection_is_counted(app, conn, flavour):
    """The step is tried as often as its policy says."""
    calls = []
    end = "do $$ begin perform pg_terminate_backend(pg_backend_pid()); end $$"
    if flavour == "async":

        async def spoil(c):
            calls.append(1)
            with pytest.raises(Exception, match="terminat"):
                await c.execute(end)
    else:

        def spoil(c):
            calls.append(1)
            with pytest.raises(Exception, match="terminat"):
                c.execute(end)

    job = calls_once(app, flavour, spoil).enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    assert len(calls) == 2
    assert "connection broke while the function" in last_error(conn, job)["message"]


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_once_that_is_too_slow_for_the_server_is_counted(app, conn, flavour):
    """The server ends the idle transaction: nothing was committed, so this is a failure."""
    calls = []
    slow = "select set_config('idle_in_transaction_session_timeout', '1', true)"
    watch = f"select pid from pg_stat_activity where pid = %s and datname = '{conn.info.dbname}'"

    def wait_until_ended(pid):
        while conn.execute(watch, [pid]).fetchone():
            pass

    if flavour == "async":

        async def spoil(c):
            calls.append(1)
            await c.execute(slow)
            wait_until_ended(c.info.backend_pid)
    else:

        def spoil(c):
            calls.append(1)
            c.execute(slow)
            wait_until_ended(c.info.backend_pid)

    job = calls_once(app, flavour, spoil).enqueue(conn)
    # The socket may break before the message can be read. Then the commit is unsure, and the job
    # runs again a second later.
    for _ in range(100):
        await run_retries(app, conn)
        if state(conn, job) != "scheduled":
            break
    assert state(conn, job) == "dead"
    assert len(calls) >= 2
    message = last_error(conn, job)["message"]  # likewise: the socket may have broken
    assert "idle" in message or "connection broke" in message


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_duplicate_in_a_table_of_the_user_called_step_is_a_failure(app, conn, flavour):
    """Its constraint has the name of Forebay's, and is checked when the step commits."""
    calls = []
    conn.execute("create table step (id int, primary key (id) deferrable initially deferred)")
    conn.execute("insert into step values (1)")
    job = a_once(app, flavour, "insert into step values (1)", calls, retry=TWICE).enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    assert last_error(conn, job)["type"] == "forebay.errors.StepFailed"
    assert len(calls) == 2


@pytest.mark.parametrize("verb", ["step", "once", "sleep", "wait", "gather", "done"])
@pytest.mark.parametrize("parks", [False, True])
async def test_a_verb_without_await_is_an_error_of_the_handler(app, conn, verb, parks):
    """Nothing of it has run, so the job is not done; nor parked, to be wrong in a week."""
    verbs = {
        "step": lambda ctx: ctx.step("it", print),
        "once": lambda ctx: ctx.once("it", print),
        "sleep": lambda ctx: ctx.sleep("it", 1),
        "wait": lambda ctx: ctx.wait("it"),
        "gather": lambda ctx: ctx.gather("it", []),
        "done": lambda ctx: bool(ctx.done("it")),
    }

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        verbs[verb](ctx)
        if parks:
            await ctx.sleep("a week", 604800)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert "step 'it' was called without await" in error["message"]


async def test_a_verb_whose_task_is_cancelled_before_it_begins_is_no_mistake(app, conn):
    """The handler has caught what its task group raised."""

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("first", print)
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ctx.step("it", print))
                tasks.create_task(ctx.sleep("night", 1))
                raise ValueError

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "done"


class Closing:
    def __init__(self, fails):
        self.fails = fails

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.fails:
            raise ConnectionError("close() failed")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.__exit__()


@pytest.mark.parametrize("how", ["finally", "with", "async with", "in a group", "thread"])
async def test_an_error_of_a_clean_up_while_the_job_parks_is_retried(app, conn, how):
    """The handler has swallowed nothing."""
    began = []
    if how == "thread":

        @app.job(retry=TWICE)
        def work(ctx: forebay.Context) -> None:
            began.append(1)
            with Closing(len(began) == 1):
                ctx.sleep("a moment", 0.001)
    else:

        @app.job(retry=TWICE)
        async def work(ctx: forebay.Context) -> None:
            began.append(1)
            fails = len(began) == 1
            if how == "finally":
                try:
                    await ctx.sleep("a moment", 0.001)
                finally:
                    Closing(fails).__exit__()
            elif how == "with":
                with Closing(fails):
                    await ctx.sleep("a moment", 0.001)
            elif how == "async with":
                async with Closing(fails):
                    await ctx.sleep("a moment", 0.001)
            else:
                async with Closing(fails), asyncio.TaskGroup() as tasks:
                    tasks.create_task(ctx.sleep("a moment", 0.001))

    job = work.enqueue(conn)
    await run_through(app, conn, job)
    assert state(conn, job) == "done"


async def run_through(app, conn, job):
    """Run workers until a job that sleeps for a moment at a time has ended."""
    for _ in range(10):
        await run_retries(app, conn)
        if state(conn, job) in ("done", "dead", "cancelled"):
            return


async def test_an_error_of_each_clean_up_counts_as_attempts(app, conn):
    """The park that was not recorded is no progress."""
    began = []

    @app.job(retry=TWICE)
    async def work(ctx: forebay.Context) -> None:
        began.append(1)
        with Closing(True):
            await ctx.sleep("a moment", 0.001)

    job = work.enqueue(conn)
    await run_through(app, conn, job)
    assert state(conn, job) == "dead"
    assert len(began) == 2
    assert last_error(conn, job)["message"] == "close() failed"


async def test_an_error_beside_a_step_that_will_be_tried_again_changes_nothing(app, conn):
    """The step is tried as often as its own policy says."""
    tries = []

    async def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError

    async def beside(lasts):
        try:
            await asyncio.sleep(3600 if lasts else 0)
        except asyncio.CancelledError:
            raise RuntimeError("a connection broke off") from None

    thrice = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)

    @app.job(retry=RetryPolicy(max_attempts=1))
    async def work(ctx: forebay.Context) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.step("flaky", flaky, retry=thrice))
            tasks.create_task(beside(lasts=len(tries) < 2))

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert len(tries) == 3
    assert state(conn, job) == "done"


@pytest.mark.parametrize("nested", [False, True])
async def test_a_cancelled_wait_in_a_task_group_cancels_the_job(app, conn, nested):
    """The group wraps what tells the handler of it."""
    began = []

    @app.job(retry=TWICE)
    async def work(ctx: forebay.Context) -> None:
        began.append(1)
        async with asyncio.TaskGroup() as outer:
            if nested:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(ctx.wait("it", key=1))
            else:
                outer.create_task(ctx.wait("it", key=1))

    job = work.enqueue(conn)
    await run_retries(app, conn)
    app.client().cancel(job)
    await run_retries(app, conn)
    assert state(conn, job) == "cancelled"
    assert len(began) == 2


async def test_a_refusal_in_a_group_within_a_step_is_no_failure_of_the_step(app, conn):
    """It is not tried again: the same attempt would end the same way."""
    calls = []

    @app.job(retry=TWICE)
    async def work(ctx: forebay.Context) -> None:
        async def inner():
            calls.append(1)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ctx.step("x\n", print))

        await ctx.step("outer", inner)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    assert len(calls) == 1


class Parcel:
    """What no JSON can be decoded to."""


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_wait_for_a_type_without_a_json_form_is_refused_before_it_waits(app, conn, flavour):
    if flavour == "async":

        @app.job(retry=TWICE)
        async def work(ctx: forebay.Context) -> None:
            await ctx.wait("parcel", as_type=Parcel)
    else:

        @app.job(retry=TWICE)
        def work(ctx: forebay.Context) -> None:
            ctx.wait("parcel", as_type=Parcel)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert "as_type" in error["message"]
    assert "Parcel" in error["message"]


async def test_a_step_whose_declared_type_has_no_json_form_is_warned_of_once(app, conn, caplog):
    """Its results are what JSON has, in the first attempt and in the later ones."""
    seen = []

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        def pack() -> Parcel:
            return {"weight": 1}

        seen.append(await ctx.step("pack", pack))
        await ctx.sleep("rest", 0)
        seen.append(await ctx.step("pack again", pack))

    work.enqueue(conn)
    await run_retries(app, conn)
    assert seen == [{"weight": 1}] * 3
    (said,) = [one.getMessage() for one in caplog.records if "Parcel" in one.getMessage()]
    assert said.startswith("step pack: the return type of its function")


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_once_that_leaves_a_copy_open_is_refused(app, conn, flavour):
    """Its connection would be busy without end, and the slot with it."""
    left = []
    if flavour == "async":

        async def spoil(c):
            copy = c.cursor().copy("copy (select 1) to stdout")
            await copy.__aenter__()
            left.append(copy)
    else:

        def spoil(c):
            copy = c.cursor().copy("copy (select 1) to stdout")
            copy.__enter__()
            left.append(copy)

    job = calls_once(app, flavour, spoil).enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    assert "leaves a COPY open" in last_error(conn, job)["message"]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("statement", ["rollback", "commit", "begin; commit"])
async def test_a_handler_that_ends_its_transaction_by_sql_is_not_done(
    app, conn, flavour, statement
):
    """A settlement after it would be a commit of its own, of a job whose writes may be lost."""
    if flavour == "async":

        @app.job(transaction=True, retry=TWICE)
        async def work(ctx: forebay.TransactionContext) -> None:
            await ctx.conn.execute(statement)
    else:

        @app.job(transaction=True, retry=TWICE)
        def work(ctx: forebay.TransactionContext) -> None:
            ctx.conn.execute(statement)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    assert "ends the transaction of its connection by SQL" in last_error(conn, job)["message"]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("items", "key", "says"),
    [
        (None, str, "needs items to go through, not None"),
        ([1], None, "has key=None, which is not a function"),
        ([1], "id", "has key='id', which is not a function"),
    ],
)
async def test_a_loop_of_nothing_to_go_through_is_refused(app, conn, flavour, items, key, says):
    if flavour == "async":

        @app.job(retry=TWICE)
        async def work(ctx: forebay.Context) -> None:
            async for _ in ctx.each("loop", items, key=key):
                pass
    else:

        @app.job(retry=TWICE)
        def work(ctx: forebay.Context) -> None:
            for _ in ctx.each("loop", items, key=key):
                pass

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert says in error["message"]


async def test_a_result_with_keys_that_are_no_text_says_what_to_do(app, conn):
    @app.job(retry=TWICE)
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("count", lambda: {1: 2})

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert "Keys of JSON objects are text" in str(last_error(conn, job))

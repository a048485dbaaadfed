"""The verbs of flows, in workers: each step is recorded once, and later attempts get its result."""

from datetime import timedelta

import pytest

import forebay
from forebay import RetryPolicy
from forebay.errors import FlowError, StepChanged, StepRefused
from tests.support.engine import one, shift_clock, state
from tests.support.fix_worker import run_retries

pytestmark = pytest.mark.anyio

FLAVOURS = ["async", "thread"]
SOON = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)


def steps(conn, job_id):
    rows = conn.execute(
        "select kind::text, name, key, value from forebay.step where job_id = %s order by no",
        [job_id],
    ).fetchall()
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_step_is_done_once_and_its_result_comes_back(app, conn, flavour):
    """A retry of the job skips the steps that are recorded."""
    calls = []

    def charge(order_id: int) -> dict[str, int]:
        calls.append(order_id)
        return {"paid": order_id}

    attempts = []
    if flavour == "async":

        @app.job(retry=SOON)
        async def work(ctx: forebay.Context, n: int) -> None:
            attempts.append(await ctx.step("charge", charge, n))
            if len(attempts) < 3:
                raise ValueError
    else:

        @app.job(retry=SOON)
        def work(ctx: forebay.Context, n: int) -> None:
            attempts.append(ctx.step("charge", charge, n))
            if len(attempts) < 3:
                raise ValueError

    job = work.enqueue(conn, 7)
    await run_retries(app, conn)
    assert calls == [7]
    assert attempts == [{"paid": 7}] * 3
    assert state(conn, job) == "done"
    assert steps(conn, job) == [("s", "charge", None, {"paid": 7})]


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_once_commits_effect_and_checkpoint_together(app, conn, flavour):
    """An effect of once() is there exactly once, also when the attempt fails later."""
    conn.execute("create table booked (n integer)")
    count = []
    if flavour == "async":

        async def book(conn, n: int) -> int:
            await conn.execute("insert into booked values (%s)", [n])
            return n + 1

        @app.job(retry=SOON)
        async def work(ctx: forebay.Context, n: int) -> None:
            count.append(await ctx.once("book", book, n))
            if len(count) < 2:
                raise ValueError
    else:

        def book(conn, n: int) -> int:
            conn.execute("insert into booked values (%s)", [n])
            return n + 1

        @app.job(retry=SOON)
        def work(ctx: forebay.Context, n: int) -> None:
            count.append(ctx.once("book", book, n))
            if len(count) < 2:
                raise ValueError

    job = work.enqueue(conn, 7)
    await run_retries(app, conn)
    assert count == [8, 8]
    assert one(conn, "select array_agg(n) from booked") == [7]
    assert state(conn, job) == "done"


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_sleep_gives_its_slot_back(app, conn, flavour):
    """The job is scheduled meanwhile, and continues behind the sleep."""
    seen = []
    if flavour == "async":

        @app.job()
        async def work(ctx: forebay.Context) -> None:
            seen.append("before")
            await ctx.sleep("a while", timedelta(days=40))
            seen.append("after")
    else:

        @app.job()
        def work(ctx: forebay.Context) -> None:
            seen.append("before")
            ctx.sleep("a while", timedelta(days=40))
            seen.append("after")

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert seen == ["before"]
    assert state(conn, job) == "scheduled"
    shift_clock(conn, 39 * 86400)
    await run_retries(app, conn)
    assert seen == ["before"]
    shift_clock(conn, 41 * 86400)
    await run_retries(app, conn)
    assert seen == ["before", "before", "after"]
    assert state(conn, job) == "done"


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("first", ["wait", "signal"])
async def test_a_signal_wakes_its_flow(app, conn, flavour, first):
    """Whether it comes before the wait or later, the wait returns its payload."""
    seen = []
    if flavour == "async":

        @app.job()
        async def work(ctx: forebay.Context, n: int) -> None:
            seen.append(await ctx.wait("approval", key=n))
    else:

        @app.job()
        def work(ctx: forebay.Context, n: int) -> None:
            seen.append(ctx.wait("approval", key=n))

    if first == "signal":
        assert forebay.signal(conn, "approval", 42, {"by": "Ada"})
        assert not forebay.signal(conn, "approval", 42, {"by": "Bob"})
    job = work.enqueue(conn, 42)
    await run_retries(app, conn)
    if first == "wait":
        assert state(conn, job) == "scheduled"
        assert seen == []
        assert forebay.signal(conn, "approval", 42, {"by": "Ada"})
        await run_retries(app, conn)
    assert seen == [{"by": "Ada"}]
    assert state(conn, job) == "done"
    assert one(conn, "select count(*) from forebay.signal") == 0
    assert one(conn, "select count(*) from forebay.waiter") == 0
    assert forebay.signal(conn, "approval", 42)


async def test_a_wait_ends_with_its_time(app, conn):
    """Without a signal it raises WaitTimeout, which a handler may catch."""
    seen = []

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        try:
            await ctx.wait("approval", timeout=60)
        except forebay.errors.WaitTimeout as error:
            seen.append(str(error))

    job = work.enqueue(conn)
    await run_retries(app, conn)
    shift_clock(conn, 61)
    await run_retries(app, conn)
    assert seen == ["step 'approval' waited 60 s, and no signal came"]
    assert state(conn, job) == "done"


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_gather_returns_results_in_order(app, conn, flavour):
    """The parent has no slot while its children run."""
    seen = []

    @app.job()
    async def label(n: int) -> int:
        return n * n

    if flavour == "async":

        @app.job()
        async def work(ctx: forebay.Context) -> None:
            seen.append(await ctx.gather("labels", label.calls(range(50))))
    else:

        @app.job()
        def work(ctx: forebay.Context) -> None:
            seen.append(ctx.gather("labels", label.calls(range(50))))

    job = work.enqueue(conn)
    await run_retries(app, conn, concurrency=1)
    assert seen == [[n * n for n in range(50)]]
    assert state(conn, job) == "done"


async def test_each_has_a_checkpoint_for_each_item(app, conn):
    """An attempt continues at the first item that is not done."""
    done = []

    @app.job(retry=SOON)
    async def work(ctx: forebay.Context) -> None:
        async for n in ctx.each("lines", range(5), key=lambda n: n):
            if n == 3 and len(done) == 3:
                done.append("x")
                raise ValueError
            done.append(n)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert done == [0, 1, 2, "x", 3, 4]
    assert state(conn, job) == "done"


async def test_a_step_that_fails_is_tried_again_and_then_reaches_the_handler(app, conn):
    """The step has its attempts; then StepFailed, which the handler may catch to compensate."""
    tries, seen = [], []

    def charge() -> None:
        tries.append(1)
        raise OSError("no card")

    def refund() -> str:
        seen.append("refund")
        return "ok"

    @app.job(retry=SOON)
    async def work(ctx: forebay.Context) -> None:
        try:
            await ctx.step("charge", charge)
        except forebay.errors.StepFailed as error:
            seen.append(str(error))
            await ctx.step("refund", refund)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert len(tries) == 3
    assert seen == ["step 'charge' failed: OSError: no card", "refund"]
    assert state(conn, job) == "done"


class NoHash:
    """A function that no table can have as a key."""

    __hash__ = None

    def __call__(self, n: int) -> int:
        return n


def same(n: int) -> int:
    return n


def as_text(n: int) -> str:
    return str(n)


#: What a later attempt asks for, and gets: a value, or the error of a verb.
ASKED_AGAIN = [
    ({"name": "number", "key": 1}, 1),
    ({"name": "number", "key": 1}, StepRefused),
    ({"name": "number", "key": "2"}, 2),
    ({"name": "number", "key": 3, "retry": "often"}, StepRefused),
    ({"name": "number", "key": 3, "function": NoHash()}, 3),
    ({"name": "new", "key": 4, "also": ["number"]}, 4),
    ({"name": "number", "key": True}, StepRefused),
    ({"name": 7, "key": 5}, StepRefused),
    ({"name": "number", "key": 5, "function": as_text}, StepChanged),
    ({"name": "number", "key": 6, "function": as_text}, StepChanged),
    ({"name": "item", "key": 1}, StepChanged),
    ({"name": "number", "key": 99}, 0),
    ({"name": "number", "key": 99}, StepRefused),
]


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_recorded_step_is_checked_as_a_new_one(app, conn, flavour):
    """A later attempt has a shorter way to what is recorded, with the same answers."""
    attempts = []
    found = []

    def again(ctx, asked):
        given = dict(asked)
        return ctx.step(given.pop("name"), given.pop("function", same), 0, **given)

    if flavour == "async":

        @app.job(retry=SOON)
        async def work(ctx: forebay.Context) -> None:
            attempts.append(1)
            if len(attempts) == 1:
                for n in range(1, 7):
                    await ctx.step("number", same, n, key=n)
                async for _ in ctx.each("item", [1], key=same):
                    pass
                raise ValueError
            for asked, _ in ASKED_AGAIN:
                try:
                    found.append(await again(ctx, asked))
                except FlowError as error:
                    found.append(type(error))
    else:

        @app.job(retry=SOON)
        def work(ctx: forebay.Context) -> None:
            attempts.append(1)
            if len(attempts) == 1:
                for n in range(1, 7):
                    ctx.step("number", same, n, key=n)
                for _ in ctx.each("item", [1], key=same):
                    pass
                raise ValueError
            for asked, _ in ASKED_AGAIN:
                try:
                    found.append(again(ctx, asked))
                except FlowError as error:
                    found.append(type(error))

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert found == [expected for _, expected in ASKED_AGAIN]
    assert state(conn, job) == "done"


async def test_only_a_flow_that_is_done_tells_what_its_code_did_not_ask_for(app, conn, caplog):
    """A handler that returns an outcome will ask again, or has ended early by its own choice."""
    attempts = []

    @app.job()
    async def work(ctx: forebay.Context) -> forebay.Snooze | None:
        attempts.append(1)
        if len(attempts) == 2:
            return forebay.Snooze(0) if await ctx.step("first", same, 1) else None
        await ctx.step("first", same, 1)
        if len(attempts) == 1:
            await ctx.step("second", same, 2)
            return forebay.Snooze(0)
        return None

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, job) == "done"
    told = [line for line in caplog.messages if "did not ask for" in line]
    assert told == [f"job {job} has ended; its code did not ask for these recorded steps: second"]
    assert len(attempts) == 3


@pytest.mark.parametrize("most", [3, 1000])
async def test_an_error_outside_of_a_step_is_judged_by_the_same_count(app, conn, most):
    """A kind with a patient step needs as many attempts: docs/howto/steps.md says so."""
    tried, raised = [], []
    patient = RetryPolicy(max_attempts=1000, strategy="fixed", base_seconds=0.001, jitter=False)

    @app.job(retry=SOON, max_attempts=most)
    async def trip(ctx: forebay.Context) -> None:
        def undo() -> None:
            tried.append(ctx.attempt)
            if len(tried) < 8:
                raise ConnectionError

        if len(tried) == 5 and not raised:
            raised.append(ctx.attempt)
            raise OSError("outside of the step")
        await ctx.step("undo", undo, retry=patient)

    job = trip.enqueue(conn)
    await run_retries(app, conn)
    assert raised == [6]
    assert state(conn, job) == ("dead" if most == 3 else "done")
    assert tried == ([1, 2, 3, 4, 5] if most == 3 else [1, 2, 3, 4, 5, 7, 8, 9])


async def test_errors_before_a_step_use_up_its_attempts(app, conn):
    """There is one count since the last checkpoint; the step before it begins the count anew."""
    handler, tried = [], []

    def fail() -> None:
        tried.append(1)
        raise ConnectionError

    @app.job(retry=RetryPolicy(max_attempts=9, base_seconds=0.001, jitter=False))
    async def flow(ctx: forebay.Context) -> None:
        handler.append(1)
        if len(handler) < 3:
            raise ConnectionError
        await ctx.step("x", fail, retry=SOON)

    job = flow.enqueue(conn)
    await run_retries(app, conn)
    assert (len(tried), state(conn, job)) == (1, "dead")

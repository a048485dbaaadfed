"""What could make a flow's promises false: names, sizes, types, changed code, handlers that catch
too much, verbs at once, other waiters, dead children.
"""

import asyncio
import dataclasses
import logging
import threading
from datetime import UTC, date, datetime, timedelta

import pytest

import forebay
from forebay import RetryPolicy
from forebay.errors import (
    ChildrenDied,
    InvalidJob,
    JobDied,
    StepChanged,
    StepFailed,
    StepRefused,
    WaitTaken,
)
from tests.support.engine import one, shift_clock, state
from tests.support.fix_worker import run_retries

pytestmark = pytest.mark.anyio

SOON = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)
ONCE = RetryPolicy(max_attempts=1)


def last_error(conn, job_id):
    query = "select errors -> -1 from forebay.dead_letter where job_id = %s"
    return one(conn, query, job_id)


@dataclasses.dataclass
class Paid:
    amount: int


async def a_flow(app, conn, body, **options):
    """Run a coroutine handler with this body; return the job's id."""

    @app.job(retry=SOON, **options)
    async def work(ctx: forebay.Context) -> None:
        await body(ctx)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    return job


async def test_a_name_twice_in_an_attempt_is_refused(app, conn):
    """The job dies at once, and the error names the step and the way out."""

    async def body(ctx):
        await ctx.step("same", int)
        await ctx.step("same", int)

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "dead"
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert "same" in error["message"]
    assert error["attempt"] == 1


async def test_keys_tell_steps_of_one_name_apart(app, conn):
    """Also a whole number and its text are one key, since both are one text."""
    seen = []

    async def body(ctx):
        seen.extend([await ctx.step("same", int, n, key=n) for n in range(3)])

    job = await a_flow(app, conn, body)
    assert (state(conn, job), seen) == ("done", [0, 1, 2])


@pytest.mark.parametrize(
    "step",
    [
        lambda ctx: ctx.step("", int),
        lambda ctx: ctx.step("a" * 201, int),
        lambda ctx: ctx.step("a\nb", int),
        lambda ctx: ctx.step(7, int),
        lambda ctx: ctx.step("a", int, key=1.5),
        lambda ctx: ctx.step("a", 7),
        lambda ctx: ctx.step("a", int, retry="often"),
        lambda ctx: ctx.sleep("a"),
        lambda ctx: ctx.sleep("a", float("nan")),
        lambda ctx: ctx.sleep("a", float("-inf")),
        lambda ctx: ctx.sleep("a", until=datetime(2030, 1, 1)),  # noqa: DTZ001
        lambda ctx: ctx.sleep("a", "soon"),
        lambda ctx: ctx.wait("a", key=1.5),
        lambda ctx: ctx.wait("a", timeout="soon"),
        lambda ctx: ctx.gather("a", [7]),
        lambda ctx: ctx.gather("a", 7),
        lambda ctx: ctx.gather("a", [], on_dead="no"),
        lambda ctx: ctx.step("a", object),
        lambda ctx: ctx.step("a", int, also="b"),
        lambda ctx: ctx.step("a", int, also=7),
    ],
)
async def test_bad_values_are_refused_by_the_name_of_the_step(app, conn, step):
    """No attempt is wasted on them, and nothing is recorded."""

    async def body(ctx):
        await step(ctx)

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "dead"
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused", error
    assert error["attempt"] == 1
    assert one(conn, "select count(*) from forebay.step") == 0


#: What UTF-8 cannot encode or PostgreSQL cannot store, and what is no key for people.
UNFIT = ["caf\udce9", "\ud800", "a\x00", "\x7f", "", "a" * 201, 10**5000, True]


async def _each(ctx, name, key):
    async for _ in ctx.each(name, [1], key=lambda _: key):
        pass


VERBS = {
    "step": lambda ctx, name, key: ctx.step(name, int, key=key),
    "once": lambda ctx, name, key: ctx.once(name, lambda conn: None, key=key),
    "sleep": lambda ctx, name, key: ctx.sleep(name, 1, key=key),
    "wait": lambda ctx, name, key: ctx.wait(name, step_key=key),
    "signal": lambda ctx, name, key: ctx.wait(name, key=key),
    "gather": lambda ctx, name, key: ctx.gather(name, [], key=key),
    "done": lambda ctx, name, key: ctx.done(name, key=key),
    "each": _each,
}


@pytest.mark.parametrize("verb", VERBS)
async def test_names_and_keys_that_the_database_cannot_keep_are_refused(app, conn, verb):
    """
    A name of a file that is no UTF-8 left its job claimed for ever: no settlement could be sent.
    """
    refused = []

    async def attempt(ctx, name, key):
        try:
            await VERBS[verb](ctx, name, key)
        except StepRefused as error:
            refused.append(str(error).encode())

    unfit = [(name, None) for name in UNFIT if isinstance(name, str)]
    unfit += [("a", key) for key in UNFIT]
    if verb == "each":
        unfit = [(name, "k") for name, _ in unfit[:6]] + unfit[6:]

    @app.job(retry=ONCE)
    async def work(ctx: forebay.Context) -> None:
        for name, key in unfit:
            await attempt(ctx, name, key)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    assert (state(conn, job), len(refused)) == ("done", len(unfit))
    assert one(conn, "select count(*) from forebay.step") == 0


async def test_a_key_that_cannot_be_kept_ends_its_flow_as_a_dead_letter(app, conn):
    """Its error names the step; the worker becomes idle."""

    async def body(ctx):
        await ctx.sleep("s", 1, key="caf\udce9")

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "dead"
    assert last_error(conn, job)["type"] == "forebay.errors.StepRefused"


@pytest.mark.parametrize("field", ["name", "key"])
def test_signals_that_the_database_cannot_keep_are_refused(conn, field):
    """The caller learns which value it is, and its transaction goes on."""
    with conn.transaction():
        for unfit in [*UNFIT, 1.5, None]:
            with pytest.raises(InvalidJob) as found:
                forebay.signal(conn, **({"name": "n", "key": "k"} | {field: unfit}))
            assert found.value.field == field
        assert one(conn, "select count(*) from forebay.signal") == 0


async def test_a_result_that_is_too_large_is_no_retry_loop(app, conn):
    """The error names the step and its size."""

    async def body(ctx):
        await ctx.step("big", lambda: "x" * 1_100_000)

    job = await a_flow(app, conn, body)
    error = last_error(conn, job)
    assert (error["type"], error["attempt"]) == ("forebay.errors.StepTooLarge", 1)
    assert "'big'" in error["message"]


async def test_a_result_has_the_type_that_its_function_declares(app, conn):
    """Also in the first attempt: it has passed through JSON."""
    seen = []

    def pay() -> Paid:
        return Paid(7)

    def when() -> datetime:
        return datetime(2030, 1, 2, tzinfo=UTC)

    async def body(ctx):
        seen.append((await ctx.step("pay", pay), await ctx.step("when", when)))
        if len(seen) == 1:
            raise ValueError

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "done"
    assert seen == [(Paid(7), datetime(2030, 1, 2, tzinfo=UTC))] * 2


async def test_a_changed_type_is_told_by_step_and_types(app, conn):
    """A deploy that changed what the function returns."""
    functions = [lambda: "seven"]

    def pay() -> int:
        return 8

    async def body(ctx):
        await ctx.step("pay", functions[0])
        functions[0] = pay
        raise ValueError

    job = await a_flow(app, conn, body)
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepChanged"
    assert "'pay'" in error["message"]
    assert "int" in error["message"]


async def test_steps_are_inserted_removed_and_renamed_between_attempts(app, conn):
    """A flow in progress goes on with the code that is there."""
    seen = []

    async def body(ctx):
        if not seen:
            seen.append(await ctx.step("one", lambda: "1"))
            seen.append(await ctx.step("two", lambda: "2"))
            raise ValueError
        seen.append(await ctx.step("zero", lambda: "0"))
        assert await ctx.done("one")
        assert not await ctx.done("three")
        seen.append(await ctx.step("zwei", lambda: "new", also=["two"]))

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "done"
    assert seen == ["1", "2", "0", "2"]


async def test_steps_that_are_not_asked_for_any_more_are_told(app, conn, caplog):
    """Once, when the flow has ended."""
    calls = []

    async def body(ctx):
        if not calls:
            calls.append(1)
            await ctx.step("old", int)
            raise ValueError
        await ctx.step("new", int)

    await a_flow(app, conn, body)
    (record,) = [each for each in caplog.records if "did not ask" in each.getMessage()]
    assert "old" in record.getMessage()
    assert "new" not in record.getMessage()


@pytest.mark.parametrize("swallow", ["and go on", "and raise"])
async def test_a_handler_that_swallows_the_parking_fails(app, conn, swallow):
    """With an error that names the verb; nothing that it does then is recorded."""

    async def body(ctx):
        try:
            await ctx.sleep("a while", 60)
        except BaseException:
            if swallow == "and raise":
                raise ValueError from None
        with pytest.raises(BaseException, match="a while"):
            await ctx.step("more", int)

    job = await a_flow(app, conn, body)
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.ParkingSwallowed"
    assert "'a while'" in error["message"]
    assert one(conn, "select count(*) from forebay.step") == 0


async def test_finally_runs_at_each_park(app, conn):
    """And except Exception does not catch it."""
    seen = []

    async def body(ctx):
        try:
            await ctx.wait("go")
        except Exception:
            seen.append("caught")
        finally:
            seen.append("finally")

    job = await a_flow(app, conn, body)
    assert seen == ["finally"]
    forebay.signal(conn, "go", job)
    await run_retries(app, conn)
    assert seen == ["finally", "finally"]
    assert state(conn, job) == "done"


async def test_steps_may_run_at_once(app, conn):
    """Each has a checkpoint; a retry asks for both."""
    seen = []

    async def slow(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def body(ctx):
        both = await asyncio.gather(*(ctx.step("n", slow, n, key=n) for n in range(20)))
        seen.append(both)
        if len(seen) == 1:
            raise ValueError

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "done"
    assert seen == [list(range(20))] * 2
    assert one(conn, "select count(*) from forebay.step") == 20


async def test_parking_beside_another_step_is_refused(app, conn):
    """By name: the other step would be cut off."""

    async def body(ctx):
        gate = asyncio.Event()
        other = asyncio.ensure_future(ctx.step("slow", gate.wait))
        await asyncio.sleep(0)
        try:
            await ctx.sleep("nap", 60)
        finally:
            gate.set()
            await asyncio.gather(other, return_exceptions=True)

    job = await a_flow(app, conn, body)
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert "'nap'" in error["message"]


@pytest.mark.parametrize("sort", ["batch", "transaction", "by hand"])
async def test_handlers_that_cannot_have_steps_are_told_so(app, conn, sort):
    """Batch handlers, handlers in one transaction, and contexts without a worker."""
    if sort == "by hand":
        with pytest.raises(StepRefused, match=r"^step 'a' needs a worker.*(?s:.*)run_until_idle"):
            forebay.Context(job=None).step("a", int)
        return
    if sort == "batch":

        @app.batch_job(retry=ONCE)
        async def work(ctx: forebay.Context, items: list[dict[str, int]]) -> None:
            await ctx.step("a", int)
    else:

        @app.job(retry=ONCE, transaction=True)
        async def work(ctx: forebay.Context, n: int) -> None:
            await ctx.step("a", int)

    job = work.enqueue(conn, n=1)
    await run_retries(app, conn)
    assert last_error(conn, job)["type"] == "forebay.errors.StepRefused"


async def test_a_second_flow_for_a_signal_is_told_whose_it_is(app, conn):
    """The first one keeps its wait; when that has ended, another may wait."""
    seen = []

    @app.job(retry=ONCE)
    async def work(ctx: forebay.Context) -> None:
        try:
            await ctx.wait("go", key="k")
        except WaitTaken as error:
            seen.append(error.job_id)

    first = work.enqueue(conn)
    await run_retries(app, conn)
    second = work.enqueue(conn)
    await run_retries(app, conn)
    assert seen == [first]
    assert (state(conn, first), state(conn, second)) == ("scheduled", "done")
    one(conn, "select forebay.cancel(%s)", first)
    await run_retries(app, conn)
    third = work.enqueue(conn)
    await run_retries(app, conn)
    forebay.signal(conn, "go", "k")
    await run_retries(app, conn)
    assert seen == [first]
    assert state(conn, third) == "done"


async def test_waits_with_one_name_in_a_job(app, conn):
    """Each takes a signal of its own key."""
    seen = []

    async def body(ctx):
        for n in range(3):
            answer = await ctx.wait("go", key=f"k{n}", step_key=n, as_type=int)
            seen.append(answer)

    job = await a_flow(app, conn, body)
    for n in (2, 0, 1):
        forebay.signal(conn, "go", f"k{n}", n)
        await run_retries(app, conn)
    assert seen[-3:] == [0, 1, 2]
    assert state(conn, job) == "done"


@pytest.mark.parametrize("on_dead", ["raise", "collect"])
async def test_dead_children(app, conn, on_dead):
    """They end the gather too: with an error, or in their places among the results."""
    seen = []

    @app.job(retry=ONCE)
    async def child(n: int) -> int:
        if n == 1:
            raise ValueError(n)
        return n

    async def body(ctx):
        try:
            seen.append(await ctx.gather("all", child.calls(range(3)), on_dead=on_dead))
        except ChildrenDied as error:
            seen.append((error.died, error.children))

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "done"
    if on_dead == "raise":
        assert seen == [(1, 3)]
    else:
        ((zero, died, two),) = seen
        assert (zero, two) == (0, 2)
        assert isinstance(died, JobDied)
        assert died.job_id is not None


async def test_a_collected_child_that_was_cancelled_is_not_called_dead(app, conn):
    """Nobody looks for a dead letter that does not exist."""
    seen, ids = [], []

    @app.job(retry=ONCE)
    async def child(n: int) -> int:
        return n

    @app.job(retry=ONCE)
    async def stopped(ctx: forebay.Context) -> forebay.Cancel:
        ids.append(ctx.job.job_id)
        return forebay.Cancel("no stock")

    async def body(ctx):
        calls = [child.call(1), child.using(delay=3600).call(2), stopped.call()]
        seen.extend(await ctx.gather("all", calls, on_dead="collect"))

    job = await a_flow(app, conn, body)
    second = one(
        conn, "select job_id from forebay.jobs(only_state => 'scheduled', only_kind => 'child')"
    )
    (third,) = ids
    assert forebay.Client(app.dsn).cancel(second) == "cancelled"
    conn.execute("select forebay.promote_v1()")
    await run_retries(app, conn)
    assert state(conn, job) == "done"
    assert [str(each) for each in seen] == [
        "1", f"job {second} was cancelled (before it started)",
        f"job {third} was cancelled",
    ]  # fmt: skip
    assert all(each.is_cancelled for each in seen[1:])


@pytest.mark.parametrize("form", [list, tuple, iter, lambda calls: (each for each in calls)])
@pytest.mark.parametrize("flavour", ["async", "thread"])
async def test_gathered_results_have_their_types_whatever_holds_the_calls(app, conn, form, flavour):
    """A generator gave texts where a list gave dates."""
    seen = []

    @app.job
    def first(year: int) -> date:
        return date(year, 1, 1)

    @app.job
    def paid(amount: int) -> Paid:
        return Paid(amount)

    if flavour == "async":

        @app.job
        async def work(ctx: forebay.Context) -> None:
            calls = form([first.call(2020), paid.call(7), first.call(2021)])
            seen.extend(await ctx.gather("all", calls))

    else:

        @app.job
        def work(ctx: forebay.Context) -> None:
            calls = form([first.call(2020), paid.call(7), first.call(2021)])
            seen.extend(ctx.gather("all", calls))

    work.enqueue(conn)
    await run_retries(app, conn)
    assert seen == [date(2020, 1, 1), Paid(7), date(2021, 1, 1)]


async def test_children_of_children(app, conn):
    """A child may gather too."""
    seen = []

    @app.job
    async def leaf(n: int) -> int:
        return n

    @app.job
    async def branch(ctx: forebay.Context, n: int) -> int:
        return sum(await ctx.gather("leaves", leaf.calls([n, n, n])))

    async def body(ctx):
        seen.append(await ctx.gather("branches", branch.calls([1, 2, 3])))

    job = await a_flow(app, conn, body)
    assert (state(conn, job), seen) == ("done", [[3, 6, 9]])


@pytest.mark.parametrize("sort", ["batch", "transaction", "thread", "process of a result"])
async def test_children_of_every_sort_report_their_end(app, conn, sort):
    """Whatever way their jobs are settled."""
    seen = []
    if sort == "batch":

        @app.batch_job(size=10)
        async def child(items: list[dict[str, int]]) -> None:
            """Do nothing."""
    elif sort == "transaction":

        @app.job(transaction=True)
        def child(ctx: forebay.Context, item: int) -> int:
            return item
    elif sort == "thread":

        @app.job
        def child(item: int) -> int:
            return item
    else:

        @app.job(keep_result=True, on_done="after")
        async def child(item: int) -> int:
            return item

        @app.job
        async def after(job_id: int, outcome: str) -> None:
            """Do nothing."""

    async def body(ctx):
        seen.append(await ctx.gather("all", child.calls({"item": n} for n in range(25))))

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "done"
    assert seen == [[None] * 25 if sort == "batch" else list(range(25))]


async def test_no_jobs_to_gather(app, conn):
    """An empty list, without parking, and for good."""
    seen = []

    async def body(ctx):
        seen.append(await ctx.gather("none", []))

    job = await a_flow(app, conn, body)
    assert (state(conn, job), seen) == ("done", [[]])


async def test_a_gather_is_refused_as_a_whole(app, conn):
    """A queue that is full, or a key: no child is left, and the error reaches the handler."""

    @app.job(queue="full")
    async def child(n: int) -> None:
        """Do nothing."""

    one(conn, "select forebay.limit_queue('full', max_waiting => 2)")
    seen = []

    async def body(ctx):
        try:
            await ctx.gather("all", child.calls(range(5)))
        except forebay.errors.QueueFull as error:
            seen.append(error.queue)

    job = await a_flow(app, conn, body)
    assert (state(conn, job), seen) == ("done", ["full"])
    assert one(conn, "select count(*) from forebay.gather") == 0


async def test_a_redriven_flow_keeps_its_results_and_forgets_its_failure(app, conn):
    """The failed step is tried again, the others are not."""
    calls = []

    def charge() -> str:
        calls.append("charge")
        return "paid"

    def ship() -> None:
        calls.append("ship")
        if len(calls) < 5:
            raise OSError

    async def body(ctx):
        await ctx.step("charge", charge)
        await ctx.step("ship", ship)

    job = await a_flow(app, conn, body)
    assert calls == ["charge", "ship", "ship", "ship"]
    assert state(conn, job) == "dead"
    assert last_error(conn, job)["type"] == "forebay.errors.StepFailed"
    new = one(conn, "select forebay.redrive(min(dead_id)) from forebay.dead_letter")
    await run_retries(app, conn)
    assert calls == ["charge", "ship", "ship", "ship", "ship"]
    assert state(conn, new) == "done"


async def test_attempts_are_counted_from_the_last_checkpoint(app, conn):
    """A flow with more failures than attempts in all ends well, if no step has so many."""
    tries = {}

    def shaky(n: int) -> int:
        tries[n] = tries.get(n, 0) + 1
        if tries[n] < 3:
            raise OSError
        return n

    async def body(ctx):
        for n in range(4):
            await ctx.step("n", shaky, n, key=n)

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "done"
    assert tries == dict.fromkeys(range(4), 3)


async def test_the_expiry_is_of_the_start(app, conn):
    """A flow that has begun does not expire while it sleeps."""

    @app.job
    async def work(ctx: forebay.Context) -> None:
        await ctx.sleep("long", timedelta(days=100))

    job = work.using(expires_in=60).enqueue(conn)
    await run_retries(app, conn)
    shift_clock(conn, 101 * 86400)
    await run_retries(app, conn)
    assert state(conn, job) == "done"


async def test_step_failed_tells_the_last_error(app, conn):
    """A policy of the step counts, not that of the kind."""
    seen = []

    def no() -> None:
        seen.append("try")
        raise LookupError("gone")

    async def body(ctx):
        try:
            await ctx.step("no", no, retry=RetryPolicy(max_attempts=1))
        except StepFailed as error:
            seen.append((error.step, error.error_type, error.error_message))

    job = await a_flow(app, conn, body)
    assert seen == ["try", ("no", "LookupError", "gone")]
    assert state(conn, job) == "done"


def test_errors_of_flows_say_what_to_do():
    """Each has a hint that can be followed in the code."""
    assert StepChanged("a", "int", "no").hint
    assert ChildrenDied("a", 1, 2, 3).hint


async def test_a_task_group_may_wrap_what_ends_an_attempt(app, conn):
    """A step that fails beside another one is tried again, as it is without a group."""
    tries = []

    def shaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise OSError
        return 2

    async def body(ctx):
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("a", int))
            group.create_task(ctx.step("b", shaky))

    job = await a_flow(app, conn, body)
    assert (state(conn, job), len(tries)) == ("done", 2)


async def test_two_parks_in_a_task_group_are_refused_at_once(app, conn):
    """The refusal is found in the group: no attempt is wasted."""

    async def body(ctx):
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("one", 60))
            group.create_task(ctx.sleep("two", 60))

    job = await a_flow(app, conn, body)
    assert state(conn, job) == "dead"
    assert last_error(conn, job)["attempt"] == 1


async def test_steps_in_loops_whose_items_are_done_are_not_missed(app, conn, caplog):
    """No warning for them; one for a step that the code does not have any more."""
    attempts = []

    @app.job(retry=SOON)
    def work(ctx: forebay.Context) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            ctx.step("gone", lambda: None)
        for line in ctx.each("lines", [1, 2], key=lambda line: line):
            ctx.step("line", lambda: None, key=line)
        if len(attempts) == 1:
            raise ValueError

    work.enqueue(conn)
    await run_retries(app, conn)
    warned = [record.getMessage() for record in caplog.records if "did not ask" in record.msg]
    assert len(warned) == 1
    assert warned[0].endswith("recorded steps: gone")


async def test_the_log_counts_the_attempts_of_a_step(app, conn, caplog):
    """By the policy of the step, also in the history of the job."""
    policy = forebay.RetryPolicy(max_attempts=2, strategy="fixed", base_seconds=0.001)

    def fail() -> None:
        raise ConnectionError

    @app.job()
    def work(ctx: forebay.Context) -> None:
        ctx.step("post", fail, retry=policy)

    work.enqueue(conn)
    caplog.set_level(logging.INFO, "forebay")
    await run_retries(app, conn)
    said = [one.getMessage() for one in caplog.records]
    (retried,) = [text for text in said if "runs again" in text]
    assert "attempt 1 of 2, failed" in retried
    assert one(conn, "select errors -> 0 -> 'max_attempts' from forebay.dead_letter") == 2


@pytest.mark.parametrize("handler", ["async", "thread"])
@pytest.mark.parametrize("verb", ["step", "once"])
async def test_stop_iteration_from_a_step_is_an_error_as_others(app, conn, handler, verb):
    """
    A future takes none, so a plain function in a step of a coroutine handler never returned.
    """

    def ends(*_):
        return next(iter([]))

    if handler == "async":

        @app.job(retry=ONCE)
        async def work(ctx: forebay.Context) -> None:
            await getattr(ctx, verb)("first", ends)

    else:

        @app.job(retry=ONCE)
        def work(ctx: forebay.Context) -> None:
            getattr(ctx, verb)("first", ends)

    job = work.enqueue(conn)
    async with asyncio.timeout(30):
        await run_retries(app, conn)
    assert state(conn, job) == "dead"
    assert "StopIteration" in last_error(conn, job)["message"]


async def test_a_result_that_json_does_not_have_is_refused_and_not_too_large(app, conn):
    """
    The word "bytes" in the text made it a question of size.
    """

    async def body(ctx):
        await ctx.step("s", bytes, 3)

    job = await a_flow(app, conn, body)
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert "its result" in error["message"]


@pytest.mark.parametrize("flavour", ["async", "thread"])
async def test_a_key_of_thousands_of_digits_is_refused(app, conn, flavour):
    """
    Python does not write it as a text; also where the short way would look for it.
    """
    if flavour == "async":

        @app.job(retry=ONCE)
        async def work(ctx: forebay.Context) -> None:
            await ctx.step("a", int)
            await ctx.step("a", int, key=10**5000)

    else:

        @app.job(retry=ONCE)
        def work(ctx: forebay.Context) -> None:
            ctx.step("a", int)
            ctx.step("a", int, key=10**5000)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert "has a key that is out of range" in error["message"]


async def test_a_step_of_a_thread_that_outlives_its_handler_is_refused(app, conn):
    """
    Whether the handler has used steps or not.
    """
    ended, raised = threading.Event(), []

    @app.job
    def work(ctx: forebay.Context, *, uses: bool) -> None:
        if uses:
            ctx.step("a", int)

        def later():
            ended.wait(20)
            try:
                ctx.step("late", int)
            except BaseException as error:
                raised.append(error)

        threads.append(threading.Thread(target=later))
        threads[-1].start()

    threads = []
    for uses in (False, True):
        work.enqueue(conn, uses=uses)
    await run_retries(app, conn)
    ended.set()
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in raised] == [StepRefused] * 2
    assert "is called after its attempt has ended" in str(raised[0])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (lambda ctx: ctx.step("s", lambda: (n for n in "ab")), "the function of step 's' returned"),
        (lambda ctx: ctx.wait("w", key=1, timeout=1e10), "has a timeout that is 1"),
        (lambda ctx: ctx.sleep("z", 1e10), "has a delay that is 1"),
    ],
    ids=["generator", "timeout", "delay"],
)
async def test_an_error_names_what_is_wrong(app, conn, body, named):
    """
    A function of a step is not called a handler, nor a timeout a delay.
    """
    job = await a_flow(app, conn, body)
    assert named in last_error(conn, job)["message"]


OLD_NAMES = {
    "before": lambda ctx: [ctx.step("b", str, "b", also=["a"]), ctx.step("a", str, "a")],
    "behind": lambda ctx: [ctx.step("a", str, "a"), ctx.step("b", str, "b", also=["a"])],
    "two": lambda ctx: [ctx.step("b", int, also=["a"]), ctx.step("c", int, also=["a"])],
}


@pytest.mark.parametrize("order", OLD_NAMES)
@pytest.mark.parametrize("flow", ["old", "new"])
async def test_an_earlier_name_of_a_step_is_no_name_of_another(app, conn, order, flow):
    """
    One recorded result would answer both. Each flow is refused, also one that has recorded
    nothing: so it is seen before a flow comes that has.
    """

    @app.job(retry=ONCE)
    def work(ctx: forebay.Context) -> None:
        if flow == "old" and not ctx.done("parked"):
            ctx.step("a", str, "old")
            ctx.step("parked", int)
            ctx.sleep("z", 0)
        OLD_NAMES[order](ctx)

    job = work.enqueue(conn)
    await run_retries(app, conn)
    if flow == "old":
        await run_retries(app, conn)
    error = last_error(conn, job)
    assert error["type"] == "forebay.errors.StepRefused"
    assert "step 'b' has the name 'a' by also=" in error["message"] or order == "two"
    assert "has the name 'a' by also=, which another step has" in error["message"]


async def test_a_renamed_step_may_name_itself_and_keys_apart(app, conn):
    """
    Names are refused with one key only.
    """

    async def body(ctx):
        await ctx.step("b", int, also=["b", "a", "a"], key=1)
        await ctx.step("a", int, key=2)
        await ctx.step("a", int)

    assert state(conn, await a_flow(app, conn, body)) == "done"

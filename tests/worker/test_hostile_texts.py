"""Whatever texts a handler gives, its job ends, and no other job waits for it."""

import contextlib
import random

import msgspec
import pytest

import forebay
from forebay import Dead, Retry, RetryPolicy
from forebay.errors import OutcomeRefused
from forebay.ops import protocol
from forebay.ops.protocol import Ended
from forebay.worker.run import endings
from tests.support.engine import one, state
from tests.support.fix_worker import run_retries
from tests.support.hostile_texts import HostileError, answer, hostile
from tests.support.mutant import alter_function
from tests.support.waiting import wait_for

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(max_attempts=2, strategy="fixed", base_seconds=0.001, jitter=False)
ENDED = {"done", "dead", "cancelled"}


class Item(msgspec.Struct):
    number: int


def errors_of(conn, job_id: int) -> list[tuple[str, str]]:
    """Return the type of the last error of a dead letter, and its reason."""
    query = "select errors -> -1 ->> 'type', reason from forebay.dead_letter where job_id = %s"
    return conn.execute(query, [job_id]).fetchall()


class Acts:
    """What a handler does at each of its attempts, by a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.attempts: dict[int, int] = {}

    def act(self, ctx: forebay.Context, number: int, job: forebay.Job | None = None) -> object:
        rng = random.Random(f"{self.seed} {number} {(job or ctx.job).attempt}")
        with contextlib.suppress(
            OutcomeRefused
        ):  # the note cannot be kept, and the handler is told
            ctx.progress(0.5, hostile(rng))
        count = self.attempts[number] = self.attempts.get(number, 0) + 1
        return answer(rng) if count < 4 else None


def handlers(app: forebay.App, acts: Acts) -> list[forebay.Handler]:
    """Declare a handler of each sort that runs in the worker's process."""

    @app.job(name="thread", retry=AT_ONCE, keep_result=True)
    def thread(ctx: forebay.Context, number: int) -> object:
        return acts.act(ctx, number)

    @app.job(name="loop", retry=AT_ONCE, on_dead="told", on_done="told")
    async def loop(ctx: forebay.Context, number: int) -> object:
        return acts.act(ctx, number)

    @app.job(name="transaction", retry=AT_ONCE, transaction=True)
    def transaction(ctx: forebay.Context, number: int) -> object:
        return acts.act(ctx, number)

    @app.job(name="flow", retry=AT_ONCE)
    async def flow(ctx: forebay.Context, number: int) -> object:
        def body() -> object:
            return acts.act(ctx, number)

        rng = random.Random(f"{acts.seed} {number}")
        key = hostile(rng)[:200] if rng.random() < 0.5 else None
        verb = rng.choice(["step", "sleep", "once", "wait", "gather", "done"])
        if verb == "step":
            return await ctx.step("a", body, key=key)
        if verb == "sleep":
            return await ctx.sleep("a", 0, key=key)
        if verb == "once":
            return await ctx.once("a", lambda conn: body(), key=key)
        if verb == "wait":
            return await ctx.wait("a", key=key or "k", timeout=0)
        if verb == "done":
            return await ctx.done("a", key=key)
        return await ctx.gather("a", [thread.call(number)], key=key, on_dead="collect")

    @app.batch_job(name="batch", size=3, retry=AT_ONCE)
    def batch(ctx: forebay.Context, items: list[Item]) -> object:
        answers = []
        for item in items:
            try:
                answers.append(acts.act(ctx, item.number, ctx.jobs[0]))
            except Exception as error:
                answers.append(error)
        if random.Random(f"{acts.seed} {items[0].number}").random() < 0.3:
            raise ExceptionGroup(hostile(random.Random(acts.seed)), [HostileError("\udce9")])
        return [one if isinstance(one, Exception | Retry | Dead) else None for one in answers]

    @app.job(name="told", retry=AT_ONCE)
    def told(outcome: str = "", result: object = None) -> None: ...

    return [thread, loop, transaction, flow, batch]


async def test_every_job_ends_whatever_its_handler_says(app, conn, request):
    """One text that the database cannot keep left its job, and all others of its flush, claimed."""
    seed = request.config.getoption("--seed") or random.randrange(1_000_000)
    print(f"--seed {seed}")
    kinds = handlers(app, Acts(seed))
    jobs = [kind.enqueue(conn, number=number) for number in range(15) for kind in kinds]
    await run_retries(app, conn)
    assert {job: state(conn, job) for job in jobs if state(conn, job) not in ENDED} == {}


@pytest.mark.slow
def test_every_job_ends_whatever_a_child_process_says(conn, workers, effects):
    """The message of the child to its worker has the same texts."""
    workers.start(concurrency=2)
    jobs = [
        one(
            conn, "select forebay.enqueue('hostile_in_process', %s::jsonb)", f'{{"entry": {entry}}}'
        )
        for entry in range(30)
    ]
    wait_for(lambda: all(state(conn, job) in ENDED for job in jobs), 60, lambda: workers.logs)


async def test_an_outcome_without_a_json_form_ends_its_job_only(app, conn, monkeypatch):
    """
    A defect of this library must not keep the ends of other jobs from the database.
    """
    made = endings.failure

    def broken(kind, job, error):
        ended = made(kind, job, error)
        return Ended(0, "retried", error=ended.error | {"place": object()})

    monkeypatch.setattr(endings, "failure", broken)

    @app.job(retry=AT_ONCE)
    async def work(number: int) -> None:
        if number == 1:
            raise ValueError(number)

    jobs = [work.enqueue(conn, number) for number in range(3)]
    await run_retries(app, conn)
    assert [state(conn, job) for job in jobs] == ["done", "dead", "done"]
    assert errors_of(conn, jobs[1]) == [("forebay.errors.OutcomeRefused", "permanent")]


async def test_an_outcome_that_the_database_refuses_ends_its_job_only(app, conn):
    """
    Whatever value it is that the database takes from no one: a retry would end in the same way.
    """
    here = "    -- Jobs with limit keys that were parked"
    refuses = "    if p_item #>> '{error,message}' = 'bad' then perform 'x'::integer; end if;\n"
    alter_function(app.dsn, "_end", (here, refuses + here))

    @app.job(retry=AT_ONCE)
    async def work(number: int) -> None:
        if number in (1, 2):
            raise ValueError("bad" if number == 1 else "good")

    @app.job
    async def parent(ctx: forebay.Context) -> list[object]:
        return await ctx.gather("all", work.calls([0, 1, 2, 3]), on_dead="collect")

    flow = parent.enqueue(conn)
    await run_retries(app, conn)
    assert state(conn, flow) == "done"
    assert one(conn, "select count(*) from forebay.dead_letter") == 2
    query = "select count(*) from forebay.dead_letter where errors -> -1 ->> 'type' = %s"
    assert one(conn, query, "forebay.errors.OutcomeRefused") == 1


def test_a_worker_starts_from_a_folder_whose_name_is_no_utf8(conn):
    """What it tells of itself has the path of the application."""
    operation = protocol.open_lease(
        "w", lease_seconds=30, suspect_seconds=10, details={"app": "caf\udce9/app.py:app"}
    )
    (lease,) = conn.execute(operation.sql, operation.params).fetchone()
    query = "select details ->> 'app' from forebay.lease where lease_id = %s"
    assert one(conn, query, lease) == "caf\\udce9/app.py:app"

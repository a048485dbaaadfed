"""Jobs with a callback, without a flow: `forebay.gather` and `forebay.enqueue_gather`."""

import json
from typing import Any

import msgspec
import psycopg
import pytest

import forebay
from forebay.errors import InvalidJob, WrongConnection
from tests.support import flow_app
from tests.support.consumer import Consumer
from tests.support.engine import Reader, connect, enqueue, one, shift_clock, sqlstate, state
from tests.support.fix_worker import run_retries
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for

pytestmark = pytest.mark.anyio

GATHER = """select forebay.enqueue_gather('[{"kind": "part"}]', '{"kind": "whole"}')"""
LAST_ERROR = "select errors -> -1 ->> %s from forebay.dead_letter where job_id = %s"
PROMOTE = "select forebay.promote_v1()"
FLAVOURS = ["async", "thread", "transaction", "batch", "raw"]


def declared(app: forebay.App, **options: Any):
    """Return the handlers of two parts, a bad one and a callback, and what the callback got."""
    got: list[tuple[Any, ...]] = []

    @app.job(queue="parts")
    def double(n: int) -> int:
        return 2 * n

    @app.job(queue="parts")
    async def shout(word: str) -> str:
        return word.upper()

    @app.job(queue="parts", max_attempts=1)
    def bad(n: int) -> int:
        if not fixed:
            raise ValueError(f"bad {n}")
        return n

    fixed: list[bool] = []

    @app.job(queue="wholes", **options)
    def whole(report: int, results: list[int | str | None], died: list[dict[str, Any]]) -> None:
        got.append((report, results, died))

    return double, shout, bad, whole, got, fixed


async def test_the_callback_gets_the_results_in_order(app, conn):
    """Jobs of several kinds; what each returned, in the order of the calls."""
    double, shout, _, whole, got, _ = declared(app)
    calls = [double.call(1), shout.call("a"), *double.calls([5, 6])]
    job = forebay.gather(conn, calls, then=whole.callback(7))
    assert job.is_new
    assert state(conn, job) == "scheduled"
    await run_retries(app, conn)
    assert got == [(7, [2, "A", 10, 12], [])]
    assert state(conn, job) == "done"
    gathered = conn.execute("select nr, outcome, value from forebay.gathered(%s)", [job])
    assert gathered.fetchall() == [
        (1, "done", "2"), (2, "done", '"A"'), (3, "done", "10"), (4, "done", "12"),
    ]  # fmt: skip


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_each_kind_of_handler_can_be_a_callback(app, conn, flavour):
    """Coroutines, threads, transactions and batches."""
    conn.execute("create table got (results jsonb, n integer)")

    @app.job()
    def double(n: int) -> int:
        return 2 * n

    insert = "insert into got values (%s, %s)"
    if flavour == "async":

        @app.job()
        async def whole(results: list[int], n: int) -> None:
            conn.execute(insert, [json.dumps(results), n])
    elif flavour == "transaction":

        @app.job(transaction=True)
        def whole(ctx: forebay.TransactionContext, results: list[int], n: int) -> None:
            ctx.conn.execute(insert, [json.dumps(results), n])
    elif flavour == "batch":

        @app.batch_job(size=10)
        def whole(jobs: list[forebay.Job]) -> None:
            for job in jobs:
                conn.execute(insert, [json.dumps(job.args["results"]), job.args["n"]])
    elif flavour == "raw":

        @app.batch_job(size=10)
        def whole(jobs: list[msgspec.Raw]) -> None:
            for job in jobs:
                args = msgspec.json.decode(job)
                conn.execute(insert, [json.dumps(args["results"]), args["n"]])
    else:

        @app.job()
        def whole(results: list[int], n: int) -> None:
            conn.execute(insert, [json.dumps(results), n])

    job = forebay.gather(conn, double.calls([1, 2]), then=whole.callback(n=9))
    await run_retries(app, conn)
    assert state(conn, job) == "done"
    assert conn.execute("select * from got").fetchall() == [([2, 4], 9)]


async def test_a_handler_gets_only_what_it_names(app, conn):
    """A callback without arguments; and one with a default for other calls of it."""
    ran = []

    @app.job()
    def part(n: int) -> int:
        return n

    @app.job()
    def plain() -> None:
        ran.append("plain")

    @app.job()
    def both(results: list[int] | None = None) -> None:
        ran.append(results)

    forebay.gather(conn, part.calls([1]), then=plain)
    forebay.gather(conn, part.calls([3]), then=both.call())
    both.enqueue(conn)
    await run_retries(app, conn)
    assert sorted(ran, key=str) == [None, [3], "plain"]


async def test_without_jobs_it_runs_at_once(app, conn):
    """With an empty list."""
    _, _, _, whole, got, _ = declared(app)
    job = forebay.gather(conn, [], then=whole.callback(7))
    assert state(conn, job) == "ready"
    await run_retries(app, conn)
    assert got == [(7, [], [])]


async def test_it_exists_with_the_transaction(app, conn):
    """Rolled back, nothing is left: no jobs, no callback, no rows of the gather."""
    double, _, _, whole, _, _ = declared(app)
    with pytest.raises(ZeroDivisionError), connect(app.dsn) as other, other.transaction():
        forebay.gather(other, double.calls([1, 2]), then=whole.callback(7))
        raise ZeroDivisionError
    for table in ("log", "deferred", "step", "gather", "gather_part"):
        assert one(conn, f"select count(*) from forebay.{table}") == 0


async def test_on_an_asynchronous_connection(app, conn):
    """`agather` is awaited."""
    double, _, _, whole, got, _ = declared(app)
    async with await psycopg.AsyncConnection.connect(app.dsn) as other:
        await forebay.agather(other, double.calls([1]), then=whole.callback(7))
    with pytest.raises(WrongConnection):
        await forebay.agather(conn, double.calls([1]), then=whole.callback(7))
    await run_retries(app, conn)
    assert got == [(7, [2], [])]


async def test_what_died_is_collected(app, conn):
    """The callback runs, with None at the place of what died and with what is known of it."""
    double, _, bad, whole, got, _ = declared(app)
    forebay.gather(
        conn, [double.call(1), bad.call(2)], then=whole.callback(7), on_dead="collect"
    )  # fmt: skip
    await run_retries(app, conn)
    ((report, results, died),) = got
    assert (report, results) == (7, [2, None])
    dead_job = one(conn, "select job_id from forebay.dead_letter")
    assert died == [
        {"index": 1, "job_id": dead_job, "outcome": "dead", "problem": "exhausted"}
    ]  # fmt: skip


async def test_what_died_kills_the_callback_which_is_redriven_with_it(app, conn):
    """Its handler does not run until each job that died was redriven and is done."""
    double, _, bad, whole, got, fixed = declared(app)
    calls = [double.call(1), bad.call(2), bad.call(3)]
    job = forebay.gather(conn, calls, then=whole.callback(7))
    await run_retries(app, conn)
    assert state(conn, job) == "dead"
    error = one(conn, LAST_ERROR, "type", job)
    assert error == "forebay.errors.ChildrenDied"
    fixed.append(True)
    letters = "select dead_id from forebay.dead_letter where kind = 'bad' order by 1"
    first, second = (row[0] for row in conn.execute(letters).fetchall())
    one(conn, "select forebay.redrive(%s)", first)
    await run_retries(app, conn)
    assert got == []
    one(conn, "select forebay.redrive(%s)", second)
    await run_retries(app, conn)
    assert got == [(7, [2, 2, 3], [])]
    # Nor twice, when a promotion counts again.
    await run_retries(app, conn)
    assert len(got) == 1


async def test_a_callback_that_fails_is_retried_with_its_results(app, conn):
    """And is a dead letter after its last attempt; redriven, it has them again."""
    got = []

    @app.job()
    def part(n: int) -> int:
        return n

    @app.job(max_attempts=2, retry=forebay.RetryPolicy(base_seconds=0.001))
    def whole(results: list[int]) -> None:
        got.append(results)
        if len(got) < 3:
            raise ValueError

    forebay.gather(conn, part.calls([1, 2]), then=whole)
    await run_retries(app, conn)
    assert got == [[1, 2], [1, 2]]
    one(conn, "select forebay.redrive(dead_id) from forebay.dead_letter")
    await run_retries(app, conn)
    assert got == [[1, 2]] * 3


async def test_a_callback_may_have_steps(app, conn):
    """Its checkpoints are beside what it waited for."""
    steps = []

    @app.job()
    def part(n: int) -> int:
        return n

    @app.job(retry=forebay.RetryPolicy(base_seconds=0.001))
    def whole(ctx: forebay.Context, results: list[int]) -> None:
        ctx.step("first", steps.append, sum(results))
        ctx.step("second", steps.append, ctx.gather("more", part.calls(results)))
        if len(steps) < 3:
            steps.append("failed")
            raise ValueError

    job = forebay.gather(conn, part.calls([1, 2]), then=whole)
    await run_retries(app, conn)
    assert steps == [3, [1, 2], "failed"]
    assert state(conn, job) == "done"


async def test_gathers_in_gathers(app, conn):
    """A part that gathers, and a callback that enqueues a gather."""
    done = []

    @app.job()
    def part(n: int) -> int:
        return n

    @app.job()
    def middle(ctx: forebay.Context, n: int) -> int:
        return sum(ctx.gather("parts", part.calls([n, n + 1])))

    @app.job(transaction=True)
    def whole(ctx: forebay.TransactionContext, results: list[int]) -> None:
        forebay.gather(ctx.conn, middle.calls(results), then=last)

    @app.job()
    def last(results: list[int]) -> None:
        done.append(results)

    forebay.gather(conn, middle.calls([1, 10]), then=whole)
    await run_retries(app, conn)
    assert done == [[7, 43]]


async def test_a_cancelled_job_counts_as_ended(app, conn):
    """Before it has started."""
    double, _, _, whole, got, _ = declared(app)
    calls = [double.call(1), double.using(delay=3600).call(2)]
    forebay.gather(conn, calls, then=whole.callback(7), on_dead="collect")
    await run_retries(app, conn)
    assert got == []
    late = one(conn, "select job_id from forebay.deferred where kind = 'double'")
    assert one(conn, "select forebay.cancel(%s)", late) == "cancelled"
    await run_retries(app, conn)
    ((_, results, died),) = got
    assert results == [2, None]
    assert [(each["index"], each["outcome"]) for each in died] == [(1, "cancelled")]


async def test_a_cancelled_callback_takes_the_jobs_along(app, conn):
    """Those that have not started; and it does not run, also when others end."""
    double, _, _, whole, got, _ = declared(app)
    job = forebay.gather(conn, double.using(delay=60).calls([1, 2]), then=whole.callback(7))
    assert one(conn, "select forebay.cancel(%s)", job) == "cancelled"
    await run_retries(app, conn)
    shift_clock(conn, 120)
    await run_retries(app, conn)
    assert got == []
    assert state(conn, job) == "cancelled"
    assert one(conn, "select count(*) from forebay.gather_end where outcome = 'c'") == 2


async def test_a_callback_that_was_made_due_looks_again(app, conn):
    """An operator lets it run too early: it waits, and runs when the jobs have ended."""
    double, _, _, whole, got, _ = declared(app)
    job = forebay.gather(conn, double.using(delay=30).calls([1]), then=whole.callback(7))
    conn.execute(
        "select forebay.change_jobs('retry', %s, most => 10)", [json.dumps({"ids": [job]})]
    )
    await run_retries(app, conn)
    assert got == []
    shift_clock(conn, 100)
    await run_retries(app, conn)
    shift_clock(conn, 200)  # Both were due, and the callback may have looked first.
    await run_retries(app, conn)
    assert got == [(7, [2], [])]


async def test_a_result_that_was_not_kept_is_no_result(app, conn):
    """The callback is a dead letter that says so, if it wants results."""
    got = []

    @app.job()
    def large() -> str:
        return "x" * 70_000

    @app.job()
    def whole(results: list[str]) -> None:
        got.append(results)

    @app.job()
    def without() -> None:
        got.append("without")

    job = forebay.gather(conn, [large.call()], then=whole)
    forebay.gather(conn, [large.call()], then=without)
    await run_retries(app, conn)
    assert got == ["without"]
    error = one(conn, LAST_ERROR, "message", job)
    assert "result_bytes_max" in error


@pytest.mark.parametrize(
    ("returned", "why"), [("x" * 70_000, "result_bytes_max"), ({1, 2}, "set"), (1j, "no JSON form")]
)
async def test_a_gather_names_the_job_whose_result_was_not_kept(app, conn, returned, why):
    """It is not called too large if it has no JSON form."""

    @app.job()
    def child() -> object:
        return returned

    @app.job()
    async def parent(ctx: forebay.Context) -> None:
        await ctx.gather("parts", [child.call()])

    job = parent.enqueue(conn)
    await run_retries(app, conn)
    assert one(conn, LAST_ERROR, "type", job) == "forebay.errors.StepRefused"
    message = one(conn, LAST_ERROR, "message", job)
    assert "step 'parts' has no result of job " in message
    assert why in message


async def test_a_result_of_another_type_is_refused(app, conn):
    """A dead letter names the argument."""
    double, _, _, _, _, _ = declared(app)

    @app.job()
    def wants_text(results: list[str]) -> None: ...

    job = forebay.gather(conn, double.calls([1]), then=wants_text)
    await run_retries(app, conn)
    error = one(conn, LAST_ERROR, "message", job)
    assert "results" in error


async def test_what_cannot_be_gathered_is_refused(app, conn):
    """With nothing written, and an error that names the value."""
    double, _, _, whole, _, _ = declared(app)
    then = whole.callback(7)
    for calls, callback, named in (
        (5, then, "calls"),
        ("ab", then, "calls"),
        ([5], then, "job 0"),
        ([double.call(1), double.using(unique=forebay.Once("a")).call(1)], then, "job 1"),
        ([double.call(1)], None, "then"),
        ([double.call(1)], "whole", "then"),
        ([double.call(1)], forebay.App, "then"),
        ([double.call(1)], whole, "report"),
        ([double.call(1)], whole.using(delay=5).callback(7), "delay"),
        ([double.call(1)], whole.using(expires_in=5).callback(7), "expires_in"),
        ([double.call(1)], whole.using(unique=forebay.Once("a")).callback(7), "unique"),
    ):
        with pytest.raises(InvalidJob, match=named):
            forebay.gather(conn, calls, then=callback)
    with pytest.raises(InvalidJob, match="on_dead"):
        forebay.gather(conn, [double.call(1)], then=then, on_dead="maybe")
    with pytest.raises(InvalidJob):
        whole.callback("seven")
    assert one(conn, "select count(*) from forebay.log") == 0
    assert one(conn, "select count(*) from forebay.deferred") == 0


def test_sql_refuses_what_cannot_be_gathered(conn):
    """By its own errors, with nothing written."""
    part, whole = '[{"kind": "part"}]', '{"kind": "whole"}'
    for jobs, callback, on_dead in (
        (None, whole, "raise"),
        ("{}", whole, "raise"),
        ("[5]", whole, "raise"),
        ('[{"kind": "part", "headers": 5}]', whole, "raise"),
        ('[{"kind": "part", "unknown": 5}]', whole, "raise"),
        ('[{"kind": "part", "unique_as": {"key": "a"}}]', whole, "raise"),
        (part, None, "raise"),
        (part, "[]", "raise"),
        (part, "{}", "raise"),
        (part, '{"kind": "whole", "delay": 5}', "raise"),
        (part, '{"kind": "whole", "run_at": "tomorrow"}', "raise"),
        (part, '{"kind": "whole", "headers": []}', "raise"),
        (part, '{"kind": "whole", "args": 5}', "raise"),
        (part, whole, None),
        (part, whole, "never"),
    ):
        query = "select forebay.enqueue_gather(%s::jsonb, %s::jsonb, %s)"
        assert sqlstate(conn, query, jobs, callback, on_dead) == "JQ001", (jobs, callback, on_dead)
    assert sqlstate(conn, "select forebay.enqueue_gather('[]', %s)", whole) is None
    assert one(conn, "select count(*) from forebay.log") == 1
    assert one(conn, "select count(*) from forebay.deferred") == 0
    assert sqlstate(conn, "select * from forebay.gathered(%s)", enqueue(conn)) == "JQ013"
    assert sqlstate(conn, "select * from forebay.gathered(null)") == "JQ013"


def the_last_end_starts_the_callback_once(dsn: str) -> None:
    """Whatever promotion sees which end."""
    with connect(dsn) as conn, Reader(dsn) as reader, Reader(dsn) as other:
        jobs = json.dumps([{"kind": "part"} for _ in range(4)])
        job = one(conn, 'select forebay.enqueue_gather(%s::jsonb, \'{"kind": "whole"}\')', jobs)
        batch, second = reader.claim(2), other.claim(2)
        settle(reader, batch, 1)
        conn.execute(PROMOTE)
        settle(reader, batch, 2)
        settle(other, second, 1)
        assert state(conn, job) == "scheduled"
        conn.execute(PROMOTE)
        assert state(conn, job) == "scheduled"
        settle(other, second, 2)
        conn.execute(PROMOTE)
        conn.execute(PROMOTE)
        assert state(conn, job) == "ready"
        assert one(conn, "select count(*) from forebay.log where job_id = %s", job) == 1


def settle(reader: Reader, batch: Any, offset: int) -> None:
    job = batch.jobs[offset - 1]
    parent = json.loads(job["headers"]["forebay-parent"])
    child = {"gather": parent["gather"], "nr": parent["nr"], "job_id": job["job_id"]}
    flush = {"claim_no": batch.claim_no, "flush_no": offset, "done": [offset], "children": [child]}
    query = "select status from forebay.settle_v1(%s, %s::jsonb)"
    assert one(reader.conn, query, reader.lease_id, json.dumps([flush])) == "settled"


def test_the_last_end_starts_the_callback_once(database):
    """Not earlier."""
    the_last_end_starts_the_callback_once(database)


def test_without_the_count_the_callback_starts_early(database):
    """The guard: all have ended."""
    break_function(
        database,
        "_wake_flows",
        (
            "v_ended >= v_gather.children then\n            perform",
            "true then\n            perform",
        ),
    )
    with violation():
        the_last_end_starts_the_callback_once(database)


def test_a_job_that_only_says_so_gets_no_results(conn):
    """The header of a callback can be forged; the rows of a gather cannot."""
    part = one(conn, 'select forebay.enqueue_gather(\'[{"kind": "part"}]\', \'{"kind": "whole"}\')')
    forged = enqueue(conn, headers=json.dumps({"forebay-gather": "collect"}))
    assert part != forged
    assert sqlstate(conn, "select * from forebay.gathered(%s)", forged) == "JQ013"


async def test_in_several_groups_each_has_the_results(app, conn, database):
    """A callback is a job for all groups of its queue, and each of them runs it once."""
    double, _, _, whole, got, _ = declared(app)
    for group in ("default", "second"):
        one(conn, "select forebay.open_group('wholes', %s)", group)
    job = forebay.gather(conn, double.calls([1]), then=whole.callback(7))
    await run_retries(app, conn)
    await run_retries(app, conn, group="second")
    assert got == [(7, [2], [])] * 2
    assert state(conn, job, "second") == "done"


def test_workers_in_other_languages_end_jobs_of_a_gather(conn, database):
    """With their results; and such a worker reads what a callback waited for."""
    jobs = json.dumps([{"kind": "part"} for _ in range(3)])
    job = one(conn, 'select forebay.enqueue_gather(%s::jsonb, \'{"kind": "whole"}\')', jobs)
    with Consumer(database) as consumer:
        first, second, third = consumer.take()
        assert consumer.settle("done", [first, second], json.dumps([7, None])) == ["settled"] * 2
        assert consumer.settle("done", [first]) == ["already"]
        conn.execute(PROMOTE)
        assert consumer.take() == []
        assert consumer.settle("dead", [third], "broken") == ["settled"]
        conn.execute(PROMOTE)
        (whole,) = consumer.take()
        assert whole["id"] == job
        read = "select nr, outcome, value, problem from forebay.gathered(%s)"
        assert consumer.conn.execute(read, [job]).fetchall() == [
            (1, "done", "7", None), (2, "done", None, None), (3, "dead", None, "permanent"),
        ]  # fmt: skip


def test_trimming_takes_it_with_its_job(conn):
    """While the callback waits, its rows stay."""
    one(conn, 'select forebay.enqueue_gather(\'[{"kind": "part"}]\', \'{"kind": "whole"}\')')
    conn.execute("select forebay._trim_flows(null, 1000)")
    assert one(conn, "select count(*) from forebay.gather") == 1


@pytest.mark.slow
async def test_a_hundred_thousand_jobs(app, conn):
    """In one statement, with one callback."""
    sums = []

    @app.batch_job(size=1000)
    def part(jobs: list[forebay.Job]) -> None: ...

    @app.job()
    def whole(results: list[None]) -> None:
        sums.append(len(results))

    calls = [part.call(n=n) for n in range(100_000)]
    with pytest.raises(InvalidJob, match="100000"):
        forebay.gather(conn, [*calls, part.call(n=1)], then=whole)
    forebay.gather(conn, calls, then=whole)
    await run_retries(app, conn)
    assert sums == [100_000]


@pytest.mark.slow
def test_callbacks_survive_killed_workers(conn, workers, effects):
    """Each callback ends once, with all results, in whatever kind of handler."""
    gathers = 30
    kinds = (flow_app.sum_plainly, flow_app.sum_in_process, flow_app.sum_in_transaction)
    conn.execute("create table booking (what text, entry integer)")
    options = {"app": "tests.support.flow_app:app", "concurrency": 4}
    for order in range(gathers):
        kind = kinds[order % 3]
        forebay.gather(
            conn, flow_app.label.calls((order, nr) for nr in range(4)), then=kind.callback(order)
        )  # fmt: skip

    def sums() -> int:
        return one(conn, "select count(*) from booking where what = '6'")

    for nr in range(2):
        worker = workers.start(wait=False, **options)
        wait_for(lambda nr=nr: sums() >= gathers * (nr + 1) // 4, 120, lambda: workers.logs)
        worker.kill()
    workers.start(wait=False, **options)
    wait_for(lambda: sums() >= gathers, 120, lambda: workers.logs)
    assert one(conn, "select count(*) from booking") == gathers
    assert one(conn, "select count(*) from forebay.dead_letter") == 0


def test_in_a_test_the_results_are_arguments(app):
    """`perform` reads no results: it gets them."""
    from forebay.testing import perform

    got = []

    @app.job()
    def whole(results: list[int], died: list[dict[str, Any]]) -> None:
        got.append((results, died))

    assert perform(whole, [1, 2], died=[]).outcome == "done"
    assert got == [([1, 2], [])]

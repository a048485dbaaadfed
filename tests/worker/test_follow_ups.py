"""Follow-ups: the end of a job of a kind with on_done or on_dead enqueues a job."""

from typing import Any

import pytest

import forebay
from forebay import Cancel, Dead, RetryPolicy, Snooze
from tests.support.engine import one, open_group
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

NEVER = RetryPolicy(max_attempts=1)
QUICK = RetryPolicy(strategy="fixed", base_seconds=0.01, cap_seconds=0.01, max_attempts=2)


def outcome_of(n: int) -> Any:
    """Return or raise what a job with this number ends with."""
    if n < 0:
        raise ValueError(n)
    return Dead("no use") if n == 0 else {"twice": 2 * n}


def declare(app, sort: str, **options: Any) -> forebay.Handler:
    """Declare the kind work, of one sort of handler."""
    options = {"retry": NEVER} | options
    if sort == "async":

        @app.job(**options)
        async def work(n: int) -> Any:
            return outcome_of(n)

    elif sort == "batch":

        @app.batch_job(name="work", size=3, **options)
        def work(ns: list[forebay.Job]) -> Any:
            return [_caught(job.args["n"]) for job in ns]

    else:

        @app.job(transaction=sort == "transaction", **options)
        def work(n: int) -> Any:
            return outcome_of(n)

    return work


def _caught(n: int) -> Any:
    try:
        return outcome_of(n)
    except ValueError as error:
        return error


@pytest.mark.parametrize("options", [{}, {"ordering_key": "k"}, {"limit_key": "t"}])
@pytest.mark.parametrize("sort", ["async", "thread", "transaction", "batch"])
async def test_each_end_has_one_follow_up_that_knows_how_the_job_ended(app, conn, sort, options):
    """Of every sort of handler and lane, done and dead."""
    seen: list[dict[str, Any]] = []

    @app.job
    def follow(
        ctx: forebay.Context,
        job_id: int,
        kind: str,
        group: str,
        outcome: str,
        args: dict[str, Any],
        attempts: int,
        result: Any,
        problem: str | None,
        reason: str | None,
        error: dict[str, Any] | None,
        dead_id: int | None,
    ) -> None:
        seen.append(
            {"job": ctx.job} | {k: v for k, v in locals().items() if k not in ("ctx", "seen")}
        )

    work = declare(app, sort, on_done="follow", on_dead=follow)
    ids = [work.using(**options).enqueue(conn, n=n) for n in (1, 2, 0, -1)]
    await run_until_idle(app)
    assert sorted(each["job_id"] for each in seen) == ids
    found = {each["job_id"]: each for each in seen}
    for job_id, n in zip(ids, (1, 2, 0, -1), strict=True):
        each = found[job_id]
        assert (each["kind"], each["group"], each["args"]) == ("work", "default", {"n": n})
        assert each["attempts"] == 1
        assert each["job"].job_id > job_id
    done, dead, failed = (found[ids[place]] for place in (1, 2, 3))
    assert (done["outcome"], done["result"], done["reason"]) == ("done", {"twice": 4}, None)
    assert (done["error"], done["dead_id"], done["problem"]) == (None, None, None)
    assert (dead["outcome"], dead["reason"], dead["result"]) == ("dead", "permanent", None)
    assert failed["error"]["type"] == "ValueError"
    letters = dict(conn.execute("select job_id, dead_id from forebay.dead_letter").fetchall())
    assert {ids[2]: dead["dead_id"], ids[3]: failed["dead_id"]} == letters


@pytest.mark.parametrize(("result", "wanted"), [(None, None), ([1, {"a": 2}], None)])
async def test_a_batch_handler_that_returns_nothing_has_a_follow_up_for_each_job(
    app, conn, result, wanted
):
    """Each job is done, with the result None; entries that are values are results."""
    seen: list[tuple[int, Any]] = []

    @app.batch_job(size=2, on_done="follow", linger=0.05)
    def work(jobs: list[forebay.Job]) -> Any:
        return None if result is None else result[: len(jobs)]

    @app.job
    def follow(job_id: int, result: Any) -> None:
        seen.append((job_id, result))

    ids = work.enqueue_many(conn, [{}, {}])
    assert ids == 2
    await run_until_idle(app)
    assert [result for _, result in sorted(seen)] == (result or [None, None])


async def test_a_follow_up_comes_after_the_last_attempt(app, conn):
    """Attempts that fail, a snooze and a cancellation are no ends with a follow-up."""
    seen: list[tuple[str, int]] = []

    @app.job(retry=QUICK, on_done="follow", on_dead="follow")
    def work(ctx: forebay.Context, how: str) -> Any:
        if how == "cancelled":
            return Cancel("no use")
        if how == "snoozed" and not seen and ctx.job.job_id not in snoozed:
            snoozed.add(ctx.job.job_id)
            return Snooze(0.01)
        if how == "dead" or (how == "retried" and ctx.attempt == 1):
            raise ValueError(how)
        return None

    @app.job
    def follow(args: dict[str, str], attempts: int) -> None:
        seen.append((args["how"], attempts))

    snoozed: set[int] = set()
    for how in ("cancelled", "snoozed", "retried", "dead"):
        work.enqueue(conn, how=how)
    await wait_for_end(app, conn, 3, seen)
    assert sorted(seen) == [("dead", 2), ("retried", 2), ("snoozed", 1)]


async def wait_for_end(app, conn, count: int, seen: list[Any]) -> None:
    """Run a worker until there are so many follow-ups, and nothing is left to do."""
    async with running(app):
        await wait_for_async(lambda: len(seen) >= count, 20, lambda: seen)
    await run_until_idle(app)


async def test_the_kind_of_the_follow_up_gives_its_options(app, conn):
    """By name and as a handler; the options of ``using`` are those of the job."""

    @app.job(on_done="first", on_dead="second")
    def work(n: int) -> Any:
        return outcome_of(n)

    @app.job(queue="mail", priority=3, tag="own", expires_in=60, order_by=("kind",))
    def first(kind: str) -> None: ...

    @app.job(queue="late")
    def second() -> None: ...

    @app.job(on_done=second.using(priority=9, delay=3600))
    def other() -> None: ...

    work.using(tag="given").enqueue(conn, n=1)
    work.using(tag="given").enqueue(conn, n=0)
    other.enqueue(conn)
    async with running(app, queues={"default": 1}) as worker:
        await wait_for_async(lambda: worker.stats.done == 2, 20)
        await wait_for_async(lambda: one(conn, "select count(*) from forebay.dead_letter") == 1, 20)
    rows = conn.execute(
        "select g.kind, l.queue, l.priority, g.tag, g.ordering_key,"
        " extract(epoch from g.expires_at - g.enqueued_at)::int from forebay.log g"
        " join forebay.lane l on l.lane = g.lane where g.kind in ('first', 'second') order by 1"
    ).fetchall()
    assert rows == [
        ("first", "mail", 3, "own", "work", 60),
        ("second", "late", 100, "given", None, None),
    ]
    late = "select kind, extract(epoch from run_at - enqueued_at)::int from forebay.deferred"
    assert conn.execute(late).fetchall() == [("second", 3600)]


async def test_a_follow_up_that_no_worker_declares_waits_and_is_named_in_the_log(app, conn, caplog):
    """Another application may declare it, before or later."""

    @app.job(on_done="elsewhere")
    def work() -> None: ...

    work.enqueue(conn)
    await run_until_idle(app)
    assert "no worker has declared kind elsewhere, the follow-up of work" in caplog.text
    assert queues_of(conn, "elsewhere") == ["default"]
    caplog.clear()
    conn.execute("select * from forebay.record_kinds_v1('w', '{elsewhere}', '{mail}')")
    work.enqueue(conn)
    await run_until_idle(app)
    assert "elsewhere, the follow-up" not in caplog.text
    assert queues_of(conn, "elsewhere") == ["default", "mail"]


def queues_of(conn, kind: str) -> list[str]:
    """Return the queue of each job of a kind."""
    rows = conn.execute(
        "select l.queue from forebay.log g join forebay.lane l using (lane)"
        " where g.kind = %s and g.job_id is null order by 1",
        [kind],
    )
    return [queue for (queue,) in rows]


async def test_the_end_of_one_group_is_no_end_of_another(app, conn, database):
    """Each group ends the job, and the follow-up names the group."""
    seen: list[tuple[str, str]] = []
    open_group(conn, "default", "second")

    @app.job(on_done="follow", on_dead="follow")
    def work(ctx: forebay.Context) -> Any:
        return Dead("no") if ctx.job.group == "second" else None

    @app.job(queue="ends")
    def follow(group: str, outcome: str) -> None:
        seen.append((group, outcome))

    open_group(conn, "default", "default")
    work.enqueue(conn)
    await run_until_idle(app)
    await run_until_idle(app, group="second")
    await run_until_idle(app)
    assert sorted(set(seen)) == [("default", "done"), ("second", "dead")]

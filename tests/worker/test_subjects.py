"""Runs of subjects: what their handlers return decides when they are due again, and what the
next run finds.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import psycopg
import pytest

import forebay
from forebay import Again, Cancel, Complete, Dead, Drop, Retry, RetryPolicy, Snooze
from forebay.arguments.kinds import Kind, SubjectKind
from forebay.db.drivers import run
from forebay.errors import OutcomeRefused, SubjectNotFound
from forebay.ops.protocol import Ended, Flush, SubjectEnd, settle
from forebay.worker.run import _subjects
from tests.support.engine import one
from tests.support.fix_worker import make_effect_table, run_until_idle, running
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)


def look(app, name="a"):
    """Return a subject of the queue crawl."""
    return app.client().subject("crawl", name)


def declare(app, body, flavour="async", **options):
    """Declare a handler of subjects that returns what ``body`` says."""
    if flavour == "async":

        @app.subject(queue="crawl", name="crawl", retry=AT_ONCE, **options)
        async def crawl(ctx: forebay.Context, url: str = "") -> object:
            return body(ctx, url)

    else:

        @app.subject(queue="crawl", name="crawl", retry=AT_ONCE, **options)
        def crawl(ctx: forebay.Context, url: str = "") -> object:
            return body(ctx, url)

    return crawl


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["async", "thread"])
@pytest.mark.parametrize("transaction", [False, True])
async def test_a_subject_comes_due_again_with_its_state(app, conn, flavour, transaction):
    """
    Again: the next run finds state, arguments, iterations and times; the third one completes the
    subject.
    """
    seen = []

    def body(ctx, url):
        run = ctx.subject
        seen.append((run.name, run.iterations, url, dict(ctx.state), run.last_at is None))
        ctx.state["pages"] = ctx.state.get("pages", 0) + 1
        if run.iterations == 2:
            return None
        return Again(0, args={"url": f"{url}/{run.iterations}"})

    crawl = declare(app, body, flavour, transaction=transaction)
    assert crawl.push(conn, "a", "x").result == "created"
    async with running(app):
        await wait_for_async(lambda: look(app).state == "completed", 20)
    assert seen == [
        ("a", 0, "x", {}, True),
        ("a", 1, "x/0", {"pages": 1}, False),
        ("a", 2, "x/0/1", {"pages": 2}, False),
    ]
    found = look(app)
    assert (found.iterations, found.data, found.args) == (3, {"pages": 3}, {"url": "x/0/1"})
    assert str(crawl.push(conn, "a", "x")) == "skipped: exists"


@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        (90, 90),
        (timedelta(minutes=2), 120),
        ("+1 week", 604_800),
        ("2 days 4 h", 187_200),
        (datetime(2040, 1, 1, tzinfo=UTC), None),
        ("2040-01-01T00:00:00+00:00", None),
    ],
)
async def test_again_takes_any_form_of_a_time(app, conn, when, seconds):
    crawl = declare(app, lambda ctx, url: Again(when))
    crawl.push(conn, "a")
    await run_until_idle(app)
    found = look(app)
    assert found.state == "scheduled"
    if seconds is None:
        assert found.due_at == datetime(2040, 1, 1, tzinfo=UTC)
    else:
        assert found.due_at - found.last_at == timedelta(seconds=seconds)


async def test_every_keeps_to_the_grid_of_the_due_time(app, conn):
    """
    None means again after ``every``, counted from when the run was due and not from its end.
    """
    crawl = declare(app, lambda ctx, url: None, every=timedelta(hours=1))
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=5, minutes=10)
    crawl.using(run_at=start).push(conn, "a")
    await run_until_idle(app)
    found = look(app)
    assert (found.due_at, found.iterations) == (start + timedelta(hours=6), 1)


async def test_every_is_the_time_of_an_again_without_one(app, conn):
    crawl = declare(app, lambda ctx, url: Again(state={"n": 1}), every=3600)
    crawl.push(conn, "a")
    await run_until_idle(app)
    found = look(app)
    assert (found.state, found.data) == ("scheduled", {"n": 1})
    assert found.due_at > found.last_at


@pytest.mark.parametrize(
    ("outcome", "state", "data"),
    [
        (Complete(), "completed", {"touched": 1}),
        (Complete(state={"given": 2}), "completed", {"given": 2}),
        (Cancel("enough"), "killed", {"touched": 1}),
        (Dead("broken"), "dead", None),
        (Snooze(3600), "ready", None),
        ("done", "completed", {"touched": 1}),
    ],
)
async def test_each_outcome_has_its_state(app, conn, outcome, state, data):
    """
    The state is saved with every ending except a failed attempt and a snooze.
    """

    def body(ctx, url):
        ctx.state["touched"] = 1
        return outcome

    declare(app, body).push(conn, "a")
    await run_until_idle(app)
    found = look(app)
    assert (found.state, found.data) == (state, data)


async def test_drop_frees_the_name(app, conn):
    crawl = declare(app, lambda ctx, url: Drop())
    crawl.push(conn, "a")
    async with running(app):
        await wait_for_async(lambda: is_gone(app), 20)
    assert crawl.push(conn, "a").result == "created"


def is_gone(app) -> bool:
    try:
        look(app)
    except SubjectNotFound:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("how", ["raises", "Retry"])
async def test_a_failed_attempt_leaves_the_saved_state(app, conn, how, transaction):
    """
    The retry finds the state as the last run that ended well has left it.
    """
    seen = []

    def body(ctx, url):
        seen.append((ctx.attempt, dict(ctx.state)))
        ctx.state["touched"] = ctx.attempt
        if ctx.attempt == 1:
            if how == "raises":
                raise RuntimeError("no")
            return Retry(0)
        return Complete()

    declare(app, body, transaction=transaction).push(conn, "a")
    async with running(app):
        await wait_for_async(lambda: look(app).state == "completed", 20)
    assert seen == [(1, {}), (2, {})]
    assert look(app).data == {"touched": 2}


@pytest.mark.slow
async def test_the_last_failed_attempt_makes_the_subject_dead(app, conn):
    def body(ctx, url):
        raise RuntimeError("no")

    crawl = declare(app, body, max_attempts=2)
    crawl.push(conn, "a")
    async with running(app):
        await wait_for_async(lambda: look(app).state == "dead", 20)
    found = look(app)
    assert (found.attempts, found.iterations) == (2, 0)
    assert app.client().revive_subject("crawl", "a") == "revived"
    errors = [each.error for each in app.client().trace("a") if each.attempt]
    assert len(errors) == 2
    assert all("RuntimeError: no" in each for each in errors)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (lambda: Complete(state={"x": object()}), "state cannot be saved"),
        (lambda: Complete(state={"x": "a" * 2_000_000}), "state cannot be saved"),
        (lambda: Complete(state={"x": float("nan")}), "state cannot be saved"),
        (lambda: Complete(state={"x": "\0"}), "state cannot be saved"),
        (lambda: Again(1, args={"no_such": 1}), "args cannot be saved"),
        (lambda: Again(), "Again has no time"),
    ],
)
@pytest.mark.parametrize("transaction", [False, True])
async def test_what_cannot_be_saved_fails_the_attempt_only(app, conn, outcome, error, transaction):
    """
    State and arguments are checked before the settlement: the attempt fails, and other jobs of its
    batch are settled.
    """
    make_effect_table(conn)
    crawl = declare(
        app,
        lambda ctx, url: outcome() if ctx.subject.name == "bad" else Complete(),
        max_attempts=1,
        transaction=transaction,
    )
    crawl.push_many(conn, ["bad", "good"])
    await run_until_idle(app)
    assert look(app, "bad").state == "dead"
    assert look(app, "good").state == "completed"
    name, message = conn.execute("select error_type, message from forebay.failure").fetchone()
    assert name.endswith("OutcomeRefused")
    assert error in message


def test_without_the_check_a_state_holds_up_other_jobs(conn):
    """
    The database refuses a whole flush for one state that jsonb cannot have: the check has to come
    before.
    """
    bad = Ended(1, "done", subject=SubjectEnd(data=msgspec.Raw(b'{"x": "\\u0000"}')))
    flush = Flush(claim_no=1, flush_no=1, done=[2], ended=[bad])
    with pytest.raises(psycopg.errors.UntranslatableCharacter):
        run(conn, settle(1, [flush]))
    with pytest.raises(OutcomeRefused):
        _subjects.with_subject(a_call(), None, Complete(state={"x": "\0"}))


def a_call():
    """Return a call of a handler of subjects, as far as its outcome needs one."""

    def crawl() -> None: ...

    kind = Kind.declare(crawl, subject=SubjectKind(name="crawl"))
    return SimpleNamespace(kind=kind, context=None, jobs=[])


async def test_an_outcome_of_subjects_is_refused_from_a_job(app, conn):
    @app.job(queue="crawl", max_attempts=1)
    async def plain() -> object:
        return Again(10)

    plain.enqueue(conn)
    await run_until_idle(app)
    assert "is for handlers of subjects" in one(conn, "select message from forebay.failure")


@pytest.mark.slow
async def test_effects_state_and_next_time_are_one_commit(app, conn):
    """
    With transaction=True the settlement, the row of the subject and the effect carry one
    transaction number; after a failure none is there.
    """
    make_effect_table(conn)

    @app.subject(queue="crawl", transaction=True, retry=AT_ONCE)
    async def crawl(ctx: forebay.Context, number: int) -> Again:
        await ctx.conn.execute("insert into effect values (%s, 0)", [number + ctx.attempt])
        ctx.state["n"] = ctx.attempt
        if ctx.attempt == 1:
            raise RuntimeError("no")
        return Again("+1 week")

    crawl.push(conn, "a", 10)
    async with running(app):
        await wait_for_async(lambda: look(app).state == "scheduled", 20)
    assert conn.execute("select entry from effect").fetchall() == [(12,)]
    assert look(app).data == {"n": 2}
    assert one(
        conn,
        (
            "select e.xmin::text = s.xmin::text from effect e, forebay.subject_state s where "
            "s.part = 1"
        ),
    )


@pytest.mark.slow
async def test_two_versions_run_side_by_side(app, conn, database):
    """
    A worker without the handler of a version postpones its runs; one that has both runs each with
    the handler of its version.
    """
    seen = []

    @app.subject(queue="crawl")
    async def crawl(url: str) -> None:
        seen.append((0, url))

    crawl.push(conn, "old", "x")
    await run_until_idle(app)

    newer = forebay.App(database)

    @newer.subject(queue="crawl", version=2, name="crawl")
    async def crawl_v2(address: dict) -> None:
        seen.append((2, address))

    crawl_v2.push(conn, "new", {"host": "x"})
    await run_until_idle(app)  # It has no handler of version 2.
    assert look(app, "new").state == "ready"
    assert one(conn, "select kind from forebay.jobs(only_queue => 'crawl') limit 1") == "crawl.v2"

    @newer.subject(queue="crawl", name="crawl")
    async def crawl_v0(url: str) -> None:
        seen.append((0, url))

    crawl_v0.push(conn, "old2", "y")
    async with running(newer):
        await wait_for_async(lambda: len(seen) == 3, 60)
    assert sorted(seen, key=str) == [(0, "x"), (0, "y"), (2, {"host": "x"})]


@pytest.mark.slow
async def test_a_killed_run_is_asked_to_stop_and_only_its_state_counts(app, conn):
    """
    The run asks to be due again; the subject stays killed.
    """
    entered = asyncio.Event()

    @app.subject(queue="crawl")
    async def crawl(ctx: forebay.Context) -> Again:
        entered.set()
        while not ctx.cancelled:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                break
        ctx.state["late"] = True
        return Again(0)

    crawl.push(conn, "a")
    async with running(app):
        await entered.wait()
        assert app.client().kill_subject("crawl", "a", "enough") == "requested"
        await wait_for_async(lambda: look(app).iterations == 1)
        found = look(app)
    assert (found.state, found.reason, found.data, found.due_at) == (
        "killed",
        "enough",
        {"late": True},
        None,
    )


@pytest.mark.slow
def test_a_handler_in_a_process_saves_its_state(workers, database, conn):
    """
    The child decides what the run means for its subject; the parent settles it.
    """
    client = forebay.Client(database)
    client.push_subjects([{"kind": "crawl", "queue": "crawl", "subject": "a"}], conn=conn)
    workers.start(app="tests.support.subject_app:app")
    wait_for(lambda: client.subject("crawl", "a").state == "completed", 30)
    found = client.subject("crawl", "a")
    assert (found.data, found.iterations) == ({"n": 2}, 2)

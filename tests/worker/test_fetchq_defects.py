"""Defects of FetchQ and of the article behind it, each as a test of what happens here instead."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import forebay
from forebay import Again, Complete, RetryPolicy
from forebay.errors import InvalidJob
from tests.support.engine import one
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)
NASTY = "it's; drop table x; -- \" \\ %s {} ö 雪"


def crawler(app, body, **options):
    @app.subject(queue="q", retry=AT_ONCE, **options)
    async def crawl(ctx: forebay.Context, text: str = "") -> object:
        return body(ctx, text)

    return crawl


@pytest.mark.slow
async def test_apostrophes_survive_in_names_arguments_state_and_errors(app, conn):
    """
    FetchQ pastes values into SQL text: an apostrophe in a payload drops the document silently, one
    in a message loses the error.
    """
    seen = []

    def body(ctx, text):
        seen.append(text)
        if ctx.attempt == 1:
            raise RuntimeError(NASTY)
        return Complete(state={"text": text})

    crawl = crawler(app, body)
    assert crawl.push(conn, NASTY, NASTY).result == "created"
    async with running(app):
        await wait_for_async(lambda: app.client().subject("q", NASTY).state == "completed", 20)
    assert seen == [NASTY, NASTY]
    assert app.client().subject("q", NASTY).data == {"text": NASTY}
    assert any(NASTY in (each.error or "") for each in app.client().trace(NASTY))


async def test_a_push_of_an_existing_name_is_reported_in_every_state(app, conn):
    """
    FetchQ answers 0, without a reason.
    """
    crawl = crawler(app, lambda ctx, text: Complete() if text == "completed" else Again("+1 week"))
    crawl.push_many(conn, [("completed", {"text": "completed"}), "scheduled", "killed"])
    await run_until_idle(app)
    app.client().kill_subject("q", "killed")
    found = crawl.push_many(conn, ["completed", "scheduled", "killed", "new"])
    assert [str(each) for each in found] == ["skipped: exists"] * 3 + ["created"]
    assert len(found) == 4


async def test_an_upsert_into_the_past_is_due_at_once(app, conn):
    """
    FetchQ does not compute the status again: a planned document that is moved to the past waits for
    a pass of maintenance.
    """
    crawl = crawler(app, lambda ctx, text: Complete())
    crawl.using(delay=3600).push(conn, "a")
    past = datetime.now(UTC) - timedelta(hours=1)
    assert crawl.using(run_at=past).upsert(conn, "a").result == "updated"
    async with running(app):
        await wait_for_async(lambda: app.client().subject("q", "a").state == "completed", 20)


async def test_an_upsert_of_what_is_over_is_skipped_or_revives_it(app, conn):
    """
    In FetchQ a completed document gets a new date and stays completed, so it never runs.
    """
    crawl = crawler(app, lambda ctx, text: Complete())
    crawl.push(conn, "a")
    await run_until_idle(app)
    later = crawl.using(run_at=datetime(2040, 1, 1, tzinfo=UTC))
    assert str(later.upsert(conn, "a")) == "skipped: completed"
    assert app.client().subject("q", "a").due_at is None
    assert later.upsert_many(conn, ["a"], revive=True)[0].result == "updated"
    found = app.client().subject("q", "a")
    assert (found.state, found.due_at.year) == ("scheduled", 2040)


async def test_an_upsert_changes_the_version(app, conn):
    """
    FetchQ leaves the version: workers of the old one get the new payload.
    """
    crawl = crawler(app, lambda ctx, text: None)
    crawl.using(delay=3600).push(conn, "a")

    @app.subject(queue="q", name="crawl", version=1)
    async def crawl_v1(number: int) -> None: ...

    assert crawl_v1.upsert(conn, "a", 7).result == "updated"
    found = app.client().subject("q", "a")
    assert (found.version, found.args) == (1, {"number": 7})


@pytest.mark.slow
async def test_a_failed_run_waits_by_its_backoff_and_not_for_a_lock(app, conn):
    """
    In FetchQ a rejected document keeps the time of its lock: the length of the lock is the pause.
    """
    attempts = []

    def body(ctx, text):
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise RuntimeError("no")
        return Complete()

    crawler(app, body, timeout=3600).push(conn, "a")
    async with running(app):
        await wait_for_async(lambda: app.client().subject("q", "a").state == "completed", 20)
    assert attempts == [1, 2, 3]


@pytest.mark.slow
async def test_a_new_maximum_of_attempts_holds_for_what_exists(app, conn):
    """
    FetchQ rebuilds two indexes for it, under wrong names: they keep the old maximum.
    """
    crawl = crawler(app, lambda ctx, text: 1 / 0, max_attempts=20)
    crawl.using(max_attempts=None, delay=3600).push(conn, "a")
    app.client().set_max_attempts("q", 2, conn=conn)
    crawl.using(run_at=datetime.now(UTC)).upsert(conn, "a")
    async with running(app):
        await wait_for_async(lambda: app.client().subject("q", "a").state == "dead", 30)
    assert app.client().subject("q", "a").attempts == 2


@pytest.mark.slow
async def test_a_dead_subject_can_be_revived(app, conn):
    """
    FetchQ has no function for it.
    """
    is_broken = True

    def body(ctx, text):
        if is_broken:
            raise RuntimeError("no")
        return Complete()

    crawler(app, body, max_attempts=1).push(conn, "a")
    await run_until_idle(app)
    assert app.client().subject("q", "a").state == "dead"
    is_broken = False
    assert app.client().revive_subject("q", "a") == "revived"
    async with running(app):
        await wait_for_async(lambda: app.client().subject("q", "a").state == "completed", 20)


async def test_what_waits_for_its_time_is_not_in_progress(app, conn):
    """
    The article counts rows that are due within the lock time as in progress.
    """
    crawl = crawler(app, lambda ctx, text: None)
    crawl.using(delay=60).push(conn, "a")
    assert app.client().subject("q", "a").state == "scheduled"
    assert app.client().subjects("q", state="running") == []


def test_a_long_name_is_refused_and_not_cut(app, conn):
    """
    FetchQ allows 50 characters, and its bulk push reports no row; here 512 bytes, with the index of
    the bad one.
    """
    crawl = crawler(app, lambda ctx, text: None)
    assert crawl.push(conn, "é" * 256).result == "created"
    with pytest.raises(InvalidJob) as raised:
        crawl.push_many(conn, ["fine", "é" * 257])
    assert raised.value.index == 1
    assert one(conn, "select count(*) from forebay.subject") == 1


@pytest.mark.slow
async def test_counters_never_drift(app, conn, request):
    """
    The article's complete lowers the wrong counter; FetchQ adds older increments to a newer reset,
    and never counts what is active. After any mixture of operations the counters are the numbers of
    the subjects.
    """
    seed = request.config.getoption("--seed") or random.randrange(10**6)
    print(f"--seed {seed}")
    dice = random.Random(seed)
    crawl = crawler(
        app,
        lambda ctx, text: dice.choice(
            [Complete(), Again("+1 week"), forebay.Drop(), forebay.Cancel()]
        ),
    )
    client = app.client()
    for _ in range(4):
        names = [f"s{dice.randrange(30)}" for _ in range(12)]
        crawl.push_many(conn, list(dict.fromkeys(names)))
        await run_until_idle(app)
        for name in {each.subject for each in client.subjects("q", limit=1000)}:
            dice.choice(
                [
                    lambda name=name: client.kill_subject("q", name),
                    lambda name=name: client.revive_subject("q", name),
                    lambda name=name: client.drop_subject("q", name),
                    lambda name=name: crawl.upsert(conn, name, "new"),
                    lambda: None,
                ]
            )()
    await run_until_idle(app)
    states = Counter(each.state for each in client.subjects("q", limit=1000))
    found = {each.state: each.subjects for each in client.subject_counts("q")}
    assert found == dict(states)

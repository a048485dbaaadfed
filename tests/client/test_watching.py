"""Watching jobs: each change arrives, and all who watch share one statement a tick."""

import asyncio
import contextlib
import re
import threading
import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import forebay
from forebay import App, JobState
from forebay.client import watching
from forebay.errors import (
    GroupNotFound,
    InvalidJob,
    JobNotFound,
    PermissionDenied,
    ResultTimeout,
    TooManyWatched,
)
from tests.support.engine import connect, enqueue, one
from tests.support.fix_worker import run_until_idle, running
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio

#: Looks are frequent in tests.
SOON = {"every": 0.1, "timeout": 60}


@pytest.fixture(autouse=True)
def nobody_watches():
    """Afterwards no thread asks."""
    yield
    wait_for(lambda: not threads(), 10, "somebody watches")


def threads():
    return [each for each in threading.enumerate() if each.name == "forebay watch"]


def watched(proxy):
    """Return the ids in each statement that a proxy has seen."""
    asked = [text for text in list(proxy.statements) if "forebay.watch_jobs" in text]
    found = [re.search(r"watch_jobs\('\{([0-9,]*)\}'", text) for text in asked]
    return [{int(each) for each in ids[1].split(",")} for ids in found]


async def test_each_change_arrives_until_the_end(app, conn):
    """
    States, attempts and progress as they are, the newest last; then the iteration ends, and says
    that there is a result.
    """
    goes_on = asyncio.Event()

    @app.job(keep_result=True)
    async def work(ctx: forebay.Context) -> int:
        ctx.progress(0.25, "a quarter")
        await goes_on.wait()
        ctx.progress(1, "all")
        return 7

    handle = work.handle(work.enqueue(conn))
    updates = []
    async with running(app):
        async for update in handle.awatch(**SOON):
            updates.append(update)
            if update.progress and update.progress.note == "a quarter":
                goes_on.set()
    states = [update.state for update in updates]
    order = [JobState.READY, JobState.CLAIMED, JobState.RUNNING, JobState.DONE]
    assert states == sorted(states, key=order.index)
    assert len(set(updates)) == len(updates)
    last = updates[-1]
    assert (last.job_id, last.group, last.attempt) == (handle.job_id, "default", 1)
    assert (last.is_final, last.has_result) == (True, True)
    assert last.progress.note in ("a quarter", "all")  # The end may overtake the last progress.
    assert not any(update.is_final or update.has_result for update in updates[:-1])
    assert await handle.aresult(0) == 7


async def test_a_thread_watches_too(app, conn):
    """
    The plain form gives the same, also of a job that has ended before: one update.
    """

    @app.job
    def work() -> None: ...

    handle = app.handle(work.enqueue(conn))
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(handle.watch(**SOON)))
    thread.start()
    await wait_for_async(lambda: seen)
    await run_until_idle(app)
    await asyncio.to_thread(thread.join, 30)
    assert seen[0].state == "ready"
    assert [update.is_final for update in seen[-2:]] == [False, True]
    assert not seen[-1].has_result
    (again,) = handle.watch(**SOON)
    assert again == seen[-1]
    (once_more,) = app.client().watch(handle.job_id, **SOON)
    assert once_more == again


async def test_a_dead_and_a_cancelled_job_end_a_watch(app, conn):
    """
    Their state is the last one, without a result.
    """

    @app.job(retry=forebay.RetryPolicy(max_attempts=1))
    def work() -> None:
        raise ValueError("a secret")

    dead, cancelled = work.enqueue(conn), work.using(delay=900).enqueue(conn)
    await run_until_idle(app)
    app.client().cancel(cancelled)
    for job_id, state in ((dead, "dead"), (cancelled, "cancelled")):
        (update,) = app.handle(job_id).watch(**SOON)
        assert (update.state, update.has_result) == (state, False)
        assert "secret" not in repr(update)


async def test_a_job_that_is_not_committed_is_waited_for(app, database):
    """
    The watcher begins before the commit, and sees the job after it.
    """

    @app.job
    def work() -> None: ...

    with psycopg.connect(database) as late:
        job_id = work.enqueue(late)
        updates = app.handle(job_id).awatch(visible_within=60, **SOON)
        first = asyncio.create_task(anext(updates))
        sampler = watching._samplers.of(database)
        await wait_for_async(
            lambda: any(entry.known.is_absent for entry in sampler._entries.values())
        )
        assert not first.done()
        late.commit()
        assert (await first).state == "ready"
        await updates.aclose()


@pytest.mark.parametrize("visible_within", [0, 0.3])
async def test_a_job_that_does_not_exist_is_an_error(app, visible_within):
    """
    After the time for it; with 0, after the first look.
    """
    with pytest.raises(JobNotFound):
        next(app.handle(12345).watch(visible_within=visible_within, **SOON))
    with pytest.raises(JobNotFound):
        await anext(app.handle(12345).awatch(visible_within=visible_within, **SOON))


async def test_a_job_that_disappears_is_an_error(app, conn):
    """
    Past retention, say: the watcher does not wait for ever.
    """
    job_id = enqueue(conn)
    updates = app.handle(job_id).watch(visible_within=60, **SOON)
    assert next(updates).state == "ready"
    conn.execute("delete from forebay.log where seq = %s", [job_id])
    with pytest.raises(JobNotFound):
        for update in updates:
            assert not update.is_final


async def test_a_group_that_the_queue_does_not_have_is_an_error(app, conn):
    """
    Each of two watchers has its own error.
    """
    job_id = enqueue(conn)
    conn.execute("select forebay.open_group('default', 'audit')")
    for _ in range(2):
        with pytest.raises(GroupNotFound, match="nobody"):
            next(app.handle(job_id, group="nobody").watch(**SOON))
    assert next(app.handle(enqueue(conn), group="audit").watch(**SOON)).group == "audit"


@pytest.mark.parametrize("seconds", [0, 0.2])
async def test_a_watch_ends_with_its_time(app, conn, seconds):
    """
    The error has the last known state; the job goes on.
    """
    handle = app.handle(enqueue(conn))
    with pytest.raises(ResultTimeout, match=r"ready|unknown"):
        list(handle.watch(every=0.1, timeout=seconds))
    with pytest.raises(ResultTimeout, match=r"ready|unknown"):
        async for _ in handle.awatch(every=0.1, timeout=seconds):
            pass


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0},
        {"every": 61},
        {"every": float("nan")},
        {"every": "soon"},
        {"timeout": -1},
        {"timeout": "1m"},
        {"visible_within": -1},
        {"visible_within": None},
        {"visible_within": float("inf")},
    ],
    ids=str,
)
async def test_wrong_values_are_refused_at_the_call(options):
    """
    By name, before an address is looked up and anything is asked.
    """
    handle = App("host=/nonexistent dbname=x").handle(1)
    for watch in (handle.watch, handle.awatch):
        with pytest.raises(InvalidJob, match=next(iter(options))):
            watch(**options)


# --- one for all ---


@pytest.mark.direct
async def test_a_hundred_watchers_cost_one_statement_a_tick(database, conn, monkeypatch):
    """
    In threads and in the loop: each statement asks for all jobs, and there are no more statements
    than ticks. When nobody watches, nothing is asked.
    """
    monkeypatch.setattr(watching, "_SHARE", 1.0)  # as often as they want, however slow it is
    ids = {enqueue(conn) for _ in range(100)}
    with Proxy(database) as proxy, contextlib.ExitStack() as closing:
        app = App(proxy.dsn)
        seen = set()
        plain = [app.handle(job_id).watch(every=0.2) for job_id in sorted(ids)[:50]]
        others = [app.handle(job_id).awatch(every=0.2) for job_id in sorted(ids)[50:]]
        began = time.monotonic()

        def look(updates):
            seen.add(next(updates).job_id)
            list(updates)  # waits until the end of its job

        for updates in plain:
            thread = threading.Thread(target=look, args=[updates])
            thread.start()
            closing.callback(thread.join, 30)
        closing.callback(conn.execute, "select forebay.truncate_queue('default')")
        firsts = await asyncio.gather(*(anext(updates) for updates in others))
        seen |= {update.job_id for update in firsts}
        await wait_for_async(lambda: seen == ids)
        before = len(watched(proxy))
        await wait_for_async(lambda: len(watched(proxy)) >= before + 3)
        asked, elapsed = watched(proxy), time.monotonic() - began
        assert all(each == ids for each in asked[before + 1 :])
        assert len(asked) <= elapsed / 0.2 + 2
        for updates in others:
            await updates.aclose()
    await wait_for_async(lambda: not threads())
    count = len(watched(proxy))
    await asyncio.sleep(0.5)
    assert len(watched(proxy)) == count


async def test_more_jobs_than_a_statement_may_have_are_refused(app, conn, monkeypatch):
    """
    Another watcher of the same job is welcome, and a place is free when one goes.
    """
    monkeypatch.setattr(watching, "WATCHED_MAX", 2)
    first, second, third = (app.handle(enqueue(conn)) for _ in range(3))
    one_more = [first.watch(**SOON), second.watch(**SOON), first.watch(**SOON)]
    for updates in one_more:
        next(updates)
    with pytest.raises(TooManyWatched, match="watches 2 already"):
        next(third.watch(**SOON))
    one_more[1].close()
    assert next(third.watch(**SOON)).job_id == third.job_id
    for updates in one_more:
        updates.close()


@pytest.mark.direct
async def test_a_database_that_is_away_is_waited_for(database, conn, caplog):
    """
    Connections are cut, and new ones refused: the watcher goes on where it was, and what happened
    meanwhile arrives. The log has a line, once.
    """
    with Proxy(database) as proxy:
        app = App(proxy.dsn)
        real = App(database)

        @real.job
        def work() -> None: ...

        updates = app.handle(work.enqueue(conn)).awatch(visible_within=0.1, every=0.1)
        assert (await anext(updates)).state == "ready"
        with proxy.refuse():
            proxy.cut_all()
            sampler = watching._samplers.of(proxy.dsn)
            await wait_for_async(lambda: sampler._failures >= 2)
            await run_until_idle(real)
        assert [update.state async for update in updates][-1] == "done"
    assert sum("wait for the database" in record.message for record in caplog.records) == 1


@pytest.mark.direct
async def test_a_watch_begins_while_the_database_is_away(database, conn):
    """
    A database that is away does not say that there is no such job.
    """
    with Proxy(database) as proxy:
        with proxy.refuse():
            updates = App(proxy.dsn).handle(enqueue(conn)).awatch(visible_within=0, every=0.1)
            first = asyncio.create_task(anext(updates))
            sampler = watching._samplers.of(proxy.dsn)
            await wait_for_async(lambda: sampler._failures >= 2)
            assert not first.done()
        assert (await first).state == "ready"
        await updates.aclose()


async def test_a_login_needs_one_right(database, conn):
    """
    The role of a web service that may execute one function, and no more.
    """
    conn.execute("create role watching_web login")
    job_id = enqueue(conn)
    try:
        conn.execute("grant usage on schema forebay to watching_web")
        handle = App(make_conninfo(database, user="watching_web")).handle(job_id)
        with pytest.raises(PermissionDenied):
            next(handle.watch(**SOON))
        conn.execute(
            "grant execute on function forebay.watch_jobs(bigint[], text[]) to watching_web"
        )
        assert next(handle.watch(**SOON)).state == "ready"
        with pytest.raises(PermissionDenied):
            handle.status()
    finally:
        conn.execute("drop owned by watching_web")
        conn.execute("drop role watching_web")


async def test_a_statement_asks_for_a_bounded_number_of_jobs(conn):
    """
    The function refuses more, and lists of different lengths; of none it returns none.
    """
    query = "select count(*) from forebay.watch_jobs(%s::bigint[], %s::text[])"
    assert one(conn, query, [], []) == 0
    assert one(conn, query, [None, 1, -1], ["default", None, "default"]) == 0
    assert one(conn, query, list(range(1000)), ["default"] * 1000) == 0
    for ids, groups in ((list(range(1001)), ["default"] * 1001), ([1], []), ([1], None)):
        with pytest.raises(psycopg.Error, match="job_ids has"):
            one(conn, query, ids, groups)


async def test_a_loop_that_was_closed_disturbs_no_other_watcher(app, conn):
    """
    An event loop ends in the middle of its watch: the thread that asks goes on.
    """
    job_id = enqueue(conn)
    kept = []

    def begin():
        inner = asyncio.new_event_loop()
        updates = app.handle(job_id).awatch(**SOON)
        inner.run_until_complete(anext(updates))
        kept.append(updates)
        inner.close()

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join(30)
    with connect(app.dsn) as other:
        updates = app.handle(job_id).watch(**SOON)
        next(updates)
        other.execute("select forebay.cancel(%s)", [job_id])
        assert [update.state for update in updates][-1] == "cancelled"
    with contextlib.suppress(StopIteration, StopAsyncIteration):
        kept[0].aclose().send(None)

"""Schedulers in workers: each instant once, live changes, and what a handler sees of its
instant.
"""

from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

import forebay
from forebay.worker.maintain import scheduler
from tests.support.engine import one, shift_clock
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Let schedulers look often, so that a test does not wait for them."""
    monkeypatch.setattr(scheduler, "_POLL_SECONDS", 0.05)


async def test_three_workers_decide_each_instant_once(app, conn):
    """
    Each worker schedules. Of a schedule with an instant each second, and one that catches up a day,
    each instant has one job.
    """
    seen = []

    @app.cron("* * * * * *", tz="Europe/Rome", overlap="allow", name="seconds")
    @app.cron(every=3600, overlap="allow", missed="all", name="hours")
    @app.job
    async def tick(ctx: forebay.Context) -> None:
        seen.append((ctx.scheduled.name, ctx.scheduled.scheduled_for))

    app.apply_schedules()
    shift_clock(conn, 86_400)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(running(app))
        await wait_for_async(lambda: sum(name == "seconds" for name, _ in seen) >= 3)
        await wait_for_async(lambda: sum(name == "hours" for name, _ in seen) >= 23)
    assert len(seen) == len(set(seen))
    rows = conn.execute(
        "select o.scheduled_for from forebay.occurrence o join forebay.schedule s using "
        "(schedule_id)"
        " where s.name = 'seconds' and o.status = 'enqueued' order by 1"
    ).fetchall()
    newest = [at for (at,) in rows][1:]
    assert newest == [newest[0] + timedelta(seconds=n) for n in range(len(newest))]


async def test_the_handler_sees_its_instant(app, conn):
    seen = []

    @app.cron("0 0 1 1 *", starts_at=datetime(2026, 1, 1, tzinfo=UTC))
    @app.job(queue="mail", priority=5, tag="t")
    def yearly(ctx: forebay.Context) -> None:
        seen.append(ctx.scheduled)

    @app.job(queue="mail")
    def plain(ctx: forebay.Context) -> None:
        seen.append(ctx.scheduled)

    async with running(app):
        await wait_for_async(lambda: app.client().schedules())
        job_id = app.client().run_schedule("yearly")
        await wait_for_async(lambda: seen)
        (found,) = seen
        plain.enqueue(conn)
        await wait_for_async(lambda: len(seen) == 2)
    assert (found.name, found.occurrence, seen[1]) == ("yearly", 1, None)
    assert found.scheduled_for.utcoffset() == timedelta(0)
    assert timedelta(0) <= found.late_by < timedelta(seconds=30)
    (status,) = app.client().job(job_id)
    assert (status.queue, status.priority, status.tag) == ("mail", 5, "t")


async def test_a_live_change_applies(app, conn):
    """
    A schedule made by SQL while the worker runs fires; a pause ends it; a bad expression is
    reported and the others run.
    """
    ran = []

    @app.job
    async def work() -> None:
        ran.append(1)

    async with running(app):
        one(conn, "select forebay.create_schedule('bad', 'work', '61 * * * *')")
        one(
            conn,
            "select forebay.create_schedule('live', 'work', '* * * * * *', overlap => 'allow')",
        )
        await wait_for_async(lambda: len(ran) > 1)
        problem = "select problem from forebay.schedules('bad')"
        await wait_for_async(lambda: one(conn, problem))
        assert "not a cron expression" in one(conn, problem)
        one(conn, "select forebay.pause_schedule('live')")
        decided = one(conn, "select decided_to from forebay.schedule where name = 'live'")
        shift_clock(conn, 600)
        one(
            conn,
            "select forebay.create_schedule('other', 'work', '* * * * * *', overlap => 'allow')",
        )
        await wait_for_async(lambda: one(conn, "select last_job from forebay.schedules('other')"))
        assert one(conn, "select decided_to from forebay.schedule where name = 'live'") == decided


async def test_a_failing_enqueue_is_reported_and_tried_again(app, conn):
    """
    While the queue is full nothing is decided; the instant gets its job when there is room.
    """
    one(conn, "select forebay.limit_queue('full', max_waiting => 1)::text")
    one(conn, "select forebay.enqueue('work', queue => 'full')")

    @app.job(queue="idle")
    async def idle() -> None: ...

    one(
        conn,
        "select forebay.create_schedule('blocked', 'work', every => '1 hour', queue => 'full')",
    )
    shift_clock(conn, 3601)
    async with running(app):
        problem = "select problem from forebay.schedules('blocked')"
        await wait_for_async(lambda: one(conn, problem))
        assert "full" in one(conn, problem)
        assert one(conn, "select count(*) from forebay.occurrence") == 0
        one(conn, "select forebay.limit_queue('full', remove => '{max_waiting}')::text")
        await wait_for_async(lambda: one(conn, "select last_job from forebay.schedules('blocked')"))
        assert one(conn, problem) is None


async def test_schedules_off(app, conn):
    """A worker with the setting off neither applies declarations nor decides."""

    @app.cron("* * * * * *")
    @app.job
    async def work() -> None: ...

    done = []

    @app.job
    async def other() -> None:
        done.append(1)

    async with running(app, schedules="off"):
        other.enqueue(conn)
        await wait_for_async(lambda: done)
    assert app.client().schedules() == []


async def test_a_vanished_schedule_still_runs_and_is_reported(app, conn, caplog):
    ran = []

    @app.job
    async def work(a: int = 0) -> None:
        ran.append(a)

    one(
        conn,
        "select forebay.apply_schedules(%s, %s)",
        app.name,
        '[{"name": "gone", "kind": "work", "cron": "* * * * * *"}]',
    )
    async with running(app):
        await wait_for_async(lambda: ran)
    (found,) = app.client().schedules()
    assert found.vanished_at is not None
    assert "forebay schedules drop gone" in caplog.text


def test_a_bad_declaration_is_refused(app):
    def work(a: int) -> None: ...

    for wrong, problem in (
        ({"expression": "61 * * * *"}, "not a cron expression"),
        ({"expression": "* * * * *", "tz": "Europe/Nowhere"}, "not a time zone"),
        ({"expression": "* * * * *", "every": 60}, "only one of them"),
        ({"every": 0.5}, "whole number"),
        ({"every": 60, "overlap": "never"}, "must be 'allow' or"),
        ({"every": 60, "args": {"a": "x"}}, "a"),
    ):
        with pytest.raises(forebay.errors.ConfigError, match=problem):
            app.cron(**({"args": {"a": 1}} | wrong))(work)
    app.cron(every=60, args={"a": 1})(work)
    with pytest.raises(forebay.errors.ConfigError, match="declared twice"):
        app.cron(every=61, args={"a": 1})(app._internals.kinds and work)

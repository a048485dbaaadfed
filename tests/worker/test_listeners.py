"""Functions of the application that are called after events of its jobs."""

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from forebay import App, AttemptEnded, Context, Dead, LostWorker, Retry, RetryPolicy
from forebay.errors import ConfigError
from forebay.testing import enqueued
from forebay.worker.settle import listeners
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001, max_attempts=2)


@pytest.fixture
def app(database):
    return App(database)


async def test_failed_and_dead_attempts_are_reported_with_their_facts(app, conn):
    """
    ``on_failed`` for each failed attempt, ``on_dead`` for the last one, with the job, the exception
    and what happens next.
    """
    failed: list[AttemptEnded] = []
    dead: list[AttemptEnded] = []
    done: list[AttemptEnded] = []
    app.on_failed(failed.append)
    app.on_dead(dead.append)
    app.on_done(done.append)

    @app.job(retry=AT_ONCE)
    async def work(n: int) -> float:
        return 1 / n

    bad = work.using(tag="import").enqueue(conn, 0)
    good = work.enqueue(conn, 1)
    conn.commit()
    while {str(job.state) for job in enqueued(conn)} != {"dead", "done"}:
        await run_until_idle(app)
    assert [(each.job.job_id, each.job.attempt, each.outcome) for each in failed] == [
        (bad, 1, "retried"),
        (bad, 2, "dead"),
    ]
    assert [(each.job.job_id, each.reason, each.job.tag) for each in dead] == [
        (bad, "exhausted", "import")
    ]
    assert [(each.job.job_id, each.error, each.failed) for each in done] == [(good, None, False)]
    first = failed[0]
    assert isinstance(first.error, ZeroDivisionError)
    assert first.error.__traceback__ is not None
    assert first.message == "ZeroDivisionError: division by zero"
    assert first.runs_again_in is not None
    assert first.seconds is not None
    assert dead[0].runs_again_in is None


async def test_every_sort_of_failure_is_reported(app, conn):
    """
    Outcomes without an exception, wrong arguments, batches and handlers in transactions.
    """
    dead: dict[str, AttemptEnded] = {}
    app.on_dead(lambda ended: dead.update({ended.job.kind: ended}))

    @app.job
    async def returned() -> Dead:
        return Dead("not now")

    @app.job(max_attempts=1)
    def asked_again() -> Retry:
        return Retry(reason="busy")

    @app.job
    def typed(n: int) -> None: ...

    @app.job(transaction=True, max_attempts=1)
    def in_a_transaction(ctx: Context) -> None:
        raise ValueError("no")

    @app.job(transaction=True)
    async def settled_by_itself(ctx: Context) -> Dead:
        return Dead("never")

    for handler in (returned, asked_again, in_a_transaction, settled_by_itself):
        handler.enqueue(conn)
    app.client().enqueue_now("typed", {"n": "text"})
    conn.commit()
    await run_until_idle(app)
    assert {kind: (each.message, each.reason) for kind, each in dead.items()} == {
        "returned": ("Dead: not now", "permanent"),
        "asked_again": ("Retry: busy", "exhausted"),
        "typed": (dead["typed"].message, "permanent"),
        "in_a_transaction": ("ValueError: no", "exhausted"),
        "settled_by_itself": ("Dead: never", "permanent"),
    }
    assert isinstance(dead["in_a_transaction"].error, ValueError)
    assert dead["returned"].error is None


async def test_a_listener_runs_after_the_database_has_the_outcome(app, conn):
    """
    What a listener reads about its job is the outcome. A plain one runs in a thread, a coroutine
    function on the loop.
    """
    seen: list[tuple[str, str, bool]] = []

    @app.on_dead
    def plain(ended: AttemptEnded) -> None:
        (status,) = app.client().job(ended.job.job_id)
        seen.append(("plain", status.state, threading.current_thread() is threading.main_thread()))

    @app.on_dead
    async def awaited(ended: AttemptEnded) -> None:
        (status,) = await app.async_client().job(ended.job.job_id)
        seen.append(
            ("awaited", status.state, threading.current_thread() is threading.main_thread())
        )

    @app.job(max_attempts=1)
    async def work() -> None:
        raise ValueError("no")

    work.enqueue(conn)
    conn.commit()
    await run_until_idle(app)
    assert seen == [("plain", "dead", False), ("awaited", "dead", True)]


async def test_a_failing_listener_harms_no_job(app, conn, caplog):
    """
    Its exception is logged and counted; the next listeners and jobs are not affected.
    """
    seen: list[int] = []

    @app.on_done
    def broken(ended: AttemptEnded) -> None:
        raise RuntimeError("my listener")

    @app.on_done
    def leaving(ended: AttemptEnded) -> None:
        raise SystemExit(3)

    @app.on_done
    async def cancelling(ended: AttemptEnded) -> None:
        raise asyncio.CancelledError

    app.on_done(lambda ended: seen.append(ended.job.args["n"]))

    @app.job
    async def work(n: int) -> None: ...

    work.enqueue_many(conn, range(3))
    conn.commit()
    worker = await run_until_idle(app)
    assert sorted(seen) == [0, 1, 2]
    assert (worker.stats.done, worker.stats.listener_errors) == (3, 9)
    assert caplog.text.count("RuntimeError: my listener") == 3


async def test_a_slow_listener_delays_no_job(app, conn, monkeypatch, caplog):
    """
    Jobs go on while a listener hangs; beyond a number of waiting events new ones are dropped, and
    that is said. The worker ends in bounded time.
    """
    monkeypatch.setattr(listeners, "EVENTS_MAX", 5)
    monkeypatch.setattr(listeners, "_DRAIN_SECONDS", 0.1)
    release = threading.Event()
    app.on_done(lambda _: release.wait(60))

    @app.job
    async def work(n: int) -> None: ...

    work.enqueue_many(conn, range(100))
    conn.commit()
    worker = await run_until_idle(app)
    release.set()
    assert worker.stats.done == 100
    assert worker.stats.events_dropped >= 90
    assert caplog.text.count("events wait for their listeners; new ones are dropped") == 1
    assert "the worker ends before the listeners of" in caplog.text


async def test_a_listener_must_be_a_function(app):
    """
    Anything else is refused where it is declared.
    """
    with pytest.raises(ConfigError, match="on_failed is not a function"):
        app.on_failed("report")  # type: ignore[type-var]


@pytest.mark.slow
async def test_a_lost_worker_is_reported(app, conn, workers):
    """
    The worker that finds another one silent calls ``on_worker_lost`` with its name and the number
    of its jobs.
    """
    lost: list[LostWorker] = []
    app.on_worker_lost(lost.append)

    @app.job(queue="elsewhere")
    async def other() -> None: ...

    victim = workers.start(concurrency=1)
    conn.execute("select forebay.enqueue('work', '{\"entry\": 1, \"seconds\": 60}')")
    running_now = "select count(*) from forebay.jobs(only_state => 'running')"
    await wait_for_async(lambda: conn.execute(running_now).fetchone() == (1,), 30)
    os.kill(victim.pid, signal.SIGKILL)
    async with running(app):
        await wait_for_async(lambda: bool(lost), 30)
    (gone,) = lost
    assert (gone.jobs, f":{victim.pid}:" in gone.worker) == (1, True)
    assert gone.silent_seconds > 0


async def test_without_listeners_nothing_is_announced(app, conn, monkeypatch):
    """
    An application without middleware and listeners pays nothing for them: no event is made.
    """

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("an event was made")

    monkeypatch.setattr("forebay.worker.settle.events.attempt_ended", refuse)
    app.on_worker_lost(refuse)
    app.on_dead(refuse)

    @app.job
    async def work(n: int) -> None: ...

    work.enqueue_many(conn, range(10))
    conn.commit()
    worker = await run_until_idle(app)
    assert worker.stats.done == 10

"""A job that blocks the event loop is named."""

import asyncio
import time

import pytest

from forebay import Context
from forebay.worker.process import _loop_watch
from tests.support.engine import state
from tests.support.fix_worker import running
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio


def blocks_until(condition) -> None:
    """Hold up the thread that calls this until something is so."""
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if "event loop" in r.getMessage()]


async def test_a_coroutine_that_blocks_the_loop_is_named_while_it_does_and_afterwards(
    app, conn, caplog
):
    """
    With its line while it blocks, and with the seconds in the end; the jobs beside it are not
    accused.
    """
    beside = asyncio.Event()

    @app.job
    async def waits() -> None:
        await beside.wait()

    @app.job
    async def blocky() -> None:
        await asyncio.sleep(0)
        blocks_until(lambda: warnings(caplog))
        beside.set()

    waits.enqueue(conn)
    job = blocky.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "done", 30)
        await wait_for_async(lambda: len(warnings(caplog)) == 2, 10)
    first, second = warnings(caplog)
    assert first.startswith(f"job {job} (blocky) blocks the event loop, for ")
    assert "at test_loop_watch.py:" in first
    assert " in blocky" in first
    assert second.startswith("the event loop was blocked ")
    assert second.endswith(f" s by job {job} (blocky)")
    assert caplog.records[-1].levelname == "WARNING"
    (record,) = [r for r in caplog.records if hasattr(r, "blocked_seconds")]
    assert (record.job_id, record.kind) == (job, "blocky")
    assert record.blocked_seconds >= 1


async def test_a_task_that_a_job_started_is_found_by_its_line(app, conn, caplog):
    """
    It is not the handler itself: the log has the place.
    """

    @app.job
    async def starts() -> None:
        async def inner() -> None:
            blocks_until(lambda: warnings(caplog))

        await asyncio.create_task(inner())

    job = starts.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "done", 30)
    assert warnings(caplog)[0].startswith("a task that a job started blocks the event loop")
    assert " in inner;" in warnings(caplog)[0]


async def test_a_plain_function_blocks_nothing_and_is_not_named(app, conn, caplog, monkeypatch):
    """
    It runs in a thread, beside a coroutine that waits.
    """
    checks = []
    original = _loop_watch.LoopWatch._check

    def counted(self) -> bool:
        found = original(self)
        checks.append(found)
        return found

    monkeypatch.setattr(_loop_watch.LoopWatch, "_check", counted)
    monkeypatch.setattr(_loop_watch, "_CHECK_SECONDS", 0.01)
    over = asyncio.Event()

    @app.job
    async def waits() -> None:
        await over.wait()

    @app.job
    def busy(ctx: Context) -> None:
        wait_for(lambda: len(checks) > 20, 20)

    waits.enqueue(conn)
    job = busy.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "done", 30)
        over.set()
    assert warnings(caplog) == []

"""The error of a hard timeout shows where the handler was."""

import asyncio
import logging
import threading

import pytest

from forebay import RetryPolicy
from forebay.policy.cause import cause_of
from tests.support.engine import one
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_attempts=1)


async def asks_in_vain() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "sort", ["coroutine", "thread", "coroutine in transaction", "thread in transaction"]
)
async def test_a_hard_timeout_shows_where_the_handler_was(app, conn, caplog, sort):
    """
    From the handler to the innermost function, in the log, in the history and in the cause, without
    frames of the worker.
    """
    caplog.set_level(logging.INFO, "forebay.worker")
    over = threading.Event()

    def waits_in_vain() -> None:
        over.wait(20)

    async def coroutine() -> None:
        await asks_in_vain()

    def plain() -> None:
        waits_in_vain()

    handler = coroutine if sort.startswith("coroutine") else plain
    inner = "asks_in_vain" if handler is coroutine else "waits_in_vain"
    job = app.job(name="stuck", retry=ONCE, timeout=0.2, transaction="transaction" in sort)(handler)
    job_id = job.enqueue(conn)
    try:
        async with running(app):
            await wait_for_async(
                lambda: [r for r in caplog.records if getattr(r, "outcome", None) == "dead"], 20
            )
            await wait_for_async(lambda: one(conn, "select count(*) from forebay.dead_letter"), 20)
    finally:
        over.set()
    (record,) = [r for r in caplog.records if getattr(r, "outcome", None) == "dead"]
    assert record.exc_info[1].seconds == 0.2
    error = one(conn, "select errors -> -1 from forebay.dead_letter where job_id = %s", job_id)
    for text in (record.exc_text, error["traceback"]):
        assert f"in {handler.__name__}" in text
        assert f"in {inner}" in text
        assert "forebay/worker" not in text
        assert text.rstrip().endswith("HardTimeout: handler was stopped after 0.2 s")
    assert text.index(f"in {handler.__name__}") < text.index(f"in {inner}")
    place = one(conn, "select place from forebay.dead_letter")
    assert place.endswith(inner)
    assert one(conn, "select cause from forebay.dead_letter") == cause_of(
        "stuck", "forebay.errors.HardTimeout", place
    )

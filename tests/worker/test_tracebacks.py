"""The traceback of a failed attempt begins with the user's code."""

import asyncio
import re
import traceback
from pathlib import Path

import psycopg
import pytest

import forebay
from forebay import Job, RetryPolicy, TransactionContext
from tests.support.engine import enqueue
from tests.support.fix_worker import run_until_idle
from tests.support.waiting import wait_for

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_attempts=1)


def helper() -> None:
    raise LookupError("not there")


def frames(conn: psycopg.Connection, job_id: int) -> list[str]:
    """Return the functions of the traceback that a dead letter keeps."""
    (errors,) = conn.execute(
        "select errors from forebay.dead_letter where job_id = %s", [job_id]
    ).fetchone()
    return re.findall(r"^  File .* in (\w+)$", errors[0]["traceback"], re.MULTILINE)


async def test_the_traceback_begins_with_the_handler(app, conn):
    """
    Whether it is a coroutine, runs in a thread or in a transaction, or takes a batch; the frames of
    the library are cut.
    """

    @app.job(retry=ONCE)
    async def coroutine() -> None:
        await asyncio.sleep(0)
        helper()

    @app.job(retry=ONCE)
    def plain() -> None:
        helper()

    @app.job(retry=ONCE, transaction=True)
    async def coroutine_in_transaction(ctx: forebay.Context) -> None:
        helper()

    @app.job(retry=ONCE, transaction=True)
    def plain_in_transaction(ctx: forebay.Context) -> None:
        helper()

    @app.batch_job(retry=ONCE, size=2)
    def batch(jobs: list[Job]) -> None:
        helper()

    handlers = [coroutine, plain, coroutine_in_transaction, plain_in_transaction, batch]
    jobs = {handler.enqueue(conn): handler.kind.name for handler in handlers}
    await run_until_idle(app)
    assert {name: frames(conn, job) for job, name in jobs.items()} == {
        name: [name, "helper"] for name in jobs.values()
    }


async def test_a_traceback_without_the_handler_is_kept_whole(app, conn):
    """
    A handler that cannot be called, and a commit that fails after the handler, show where in the
    library that was.
    """

    @app.job(retry=ONCE, transaction=True)
    def deferred_violation(ctx: TransactionContext[psycopg.Connection]) -> None:
        ctx.conn.execute("insert into late values (1), (1)")

    conn.execute("create table late (n int unique deferrable initially deferred)")
    job = deferred_violation.enqueue(conn)
    await run_until_idle(app)
    assert frames(conn, job)[0] == "run"
    assert "deferred_violation" not in frames(conn, job)


@pytest.mark.slow
def test_the_traceback_from_a_child_process_begins_with_the_handler(conn, workers):
    """
    The child describes the error, with the same rule.
    """
    workers.start(concurrency=1)
    job = enqueue(conn, kind="exceed", args={"entry": 1, "what": "memory"}, max_attempts=1)
    wait_for(lambda: conn.execute("select 1 from forebay.dead_letter").fetchone(), 30)
    assert frames(conn, job)[0] == "exceed"


def boom(*_: object) -> None:
    helper()


async def test_below_a_verb_there_are_no_frames_of_the_library(app, conn, caplog):
    """
    An error that a verb raises, or an enqueue, has the application's frames only, in the dead
    letter and in the log; so have its causes and the members of a group.
    """

    @app.job(retry=ONCE)
    def step(ctx: forebay.Context) -> None:
        ctx.step("a", boom)

    @app.job(retry=ONCE)
    async def once(ctx: forebay.Context) -> None:
        await ctx.once("a", boom)

    @app.job(retry=ONCE)
    def changed(ctx: forebay.Context) -> None:
        def number() -> int:
            return "text"  # type: ignore[return-value]

        ctx.step("a", number)

    @app.job(retry=ONCE)
    async def refused(ctx: forebay.Context) -> None:
        await ctx.sleep("a", float("nan"))

    @app.job(retry=ONCE)
    def invalid() -> None:
        step.using(queue="no name").enqueue(conn)

    @app.job(retry=ONCE)
    async def group(ctx: forebay.Context) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.step("a", boom))

    handlers = [step, once, changed, refused, invalid, group]
    jobs = {handler.enqueue(conn): handler.kind.name for handler in handlers}
    await run_until_idle(app)
    assert {name: frames(conn, job) for job, name in jobs.items()} == {
        "step": ["boom", "helper", "step"],
        "once": ["boom", "helper", "once"],
        "changed": ["changed"],
        "refused": ["refused"],
        "invalid": ["invalid"],
        "group": ["group", "__aexit__", "boom", "helper"],
    }
    library = str(Path(forebay.__file__).parent)
    shown = [record.exc_text for record in caplog.records if record.exc_text]
    assert len(shown) == len(jobs)
    assert not [text for text in shown if library in text]
    for record in caplog.records:
        if record.exc_info and record.name.startswith("forebay"):
            assert library not in "".join(traceback.format_tb(record.exc_info[2]))

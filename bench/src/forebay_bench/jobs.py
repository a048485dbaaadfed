"""The application that worker processes of the scenarios run: ``forebay worker forebay_bench.jobs:app``.

One queue for each scenario, so that a worker serves only its scenario: ``--queue pickup``.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from forebay.app import App
from forebay.model.context import Context
from forebay_bench._journal import JournalWriter

app = App()

#: How long a slow handler takes.
SLOW_SECONDS: Final = 0.1

#: How long a handler of a large job takes.
LARGE_SECONDS: Final = 0.03

#: What the handler of a large job records: the jobs beside it have the numbers from 0 on.
LARGE_NUMBER: Final = -1

_notebook = JournalWriter()


@app.job(queue="pickup")
async def record_start(number: int) -> None:
    """Record when it was started, and nothing else."""
    _notebook.note(number)


@app.job(queue="noop", name="noop")
async def do_nothing(number: int) -> None:
    """Return at once."""
    del number


@app.job(queue="noop_thread", name="noop_thread")
def do_nothing_in_thread(number: int) -> None:
    """Return at once."""
    del number


@app.job(queue="slow")
async def wait_a_little(number: int = 0) -> None:
    """Wait as for another service's answer; record when it came."""
    await asyncio.sleep(SLOW_SECONDS)
    _notebook.note(number)


@app.job(queue="large")
async def read_document(document: str | list[Any]) -> None:  # noqa: ARG001 - only held
    """Hold a large document while waiting for another service's answer; record when it came."""
    await asyncio.sleep(LARGE_SECONDS)
    _notebook.note(LARGE_NUMBER)


@app.job(queue="crash", transaction=True)
async def write_effect(ctx: Context, entry: int, seconds: float) -> None:
    """Write a row in the transaction that completes the job: the row must exist once."""
    await ctx.conn.execute(
        "insert into ledger.effect (entry, job_id) values (%s, %s)", [entry, ctx.job.job_id]
    )
    await asyncio.sleep(seconds)
    _notebook.note(entry)


@app.job(queue="crash")
async def record_effect(entry: int, seconds: float) -> None:
    """Do something outside the database, which may happen again after a kill."""
    await asyncio.sleep(seconds)
    _notebook.note(entry)

"""The application that worker processes of the scenarios run: ``forebay worker
forebay_bench.jobs:app``.

One queue for each scenario, so that a worker serves only its scenario: ``--queue pickup``.
"""

from __future__ import annotations

import asyncio
from typing import Final

from forebay.app import App
from forebay_bench._journal import JournalWriter

app = App()

#: How long a slow handler takes.
SLOW_SECONDS: Final = 0.1

_notebook = JournalWriter()


@app.job(queue="pickup")
async def record_start(number: int) -> None:
    """Record when it was started, and nothing else."""
    _notebook.note(number)


@app.job(queue="noop", name="noop")
async def do_nothing(number: int) -> None:
    """Return at once."""
    del number


@app.job(queue="slow")
async def wait_a_little(number: int = 0) -> None:
    """Wait as for another service's answer; record when it came."""
    await asyncio.sleep(SLOW_SECONDS)
    _notebook.note(number)

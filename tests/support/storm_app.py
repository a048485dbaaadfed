"""The application of the storm: handlers that note what they do, and write in their own
transactions.

One entry in twenty fails at its first attempt.
"""

import asyncio
import time

import forebay
from tests.support import worker_app  # takes the worker's own fence out where a test asks for it
from tests.support.effects import note

assert worker_app.app

app = forebay.App()

SOON = forebay.RetryPolicy(strategy="fixed", base_seconds=0.2, cap_seconds=0.2, max_attempts=10_000)


def _start(ctx: forebay.Context, entry: int) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    if entry % 20 == 0 and ctx.attempt == 1:
        raise ValueError(entry)


def _end(ctx: forebay.Context, entry: int) -> None:
    note("end", entry, ctx.job.job_id, ctx.attempt)


@app.job(retry=SOON)
async def plain(ctx: forebay.Context, entry: int, seconds: float, pad: str = "") -> None:
    _start(ctx, entry)
    await asyncio.sleep(seconds)
    _end(ctx, entry)


@app.job(retry=SOON)
def plain_in_thread(ctx: forebay.Context, entry: int, seconds: float, pad: str = "") -> None:
    _start(ctx, entry)
    time.sleep(seconds)
    _end(ctx, entry)


@app.job(retry=SOON)
async def short(ctx: forebay.Context, entry: int, seconds: float, pad: str = "") -> None:
    _start(ctx, entry)
    _end(ctx, entry)


@app.job(retry=SOON)
def short_in_thread(ctx: forebay.Context, entry: int, seconds: float, pad: str = "") -> None:
    _start(ctx, entry)
    _end(ctx, entry)


@app.job(retry=SOON, transaction=True)
async def write(ctx: forebay.Context, entry: int, seconds: float, pad: str = "") -> None:
    _start(ctx, entry)
    await ctx.conn.execute("insert into effect (entry) values (%s)", [entry])
    await asyncio.sleep(seconds)
    _end(ctx, entry)


@app.job(retry=SOON, transaction=True)
def write_in_thread(ctx: forebay.Context, entry: int, seconds: float, pad: str = "") -> None:
    _start(ctx, entry)
    ctx.conn.execute("insert into effect (entry) values (%s)", [entry])
    time.sleep(seconds)
    _end(ctx, entry)

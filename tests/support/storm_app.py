"""The application of the storm: handlers that note what they do, and write in their own
transactions.

One entry in twenty fails at its first attempt.
"""

import asyncio
import os
import random
import signal
import time

import forebay
from tests.support import worker_app  # takes the worker's own fence out where a test asks for it
from tests.support.effects import note
from tests.support.storm_operators import QUEUE, check_of

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


# --- jobs of the operators ---


def _act(ctx: forebay.Context, acted: int, check: str) -> None:
    """Note that it ran, or that its arguments are not those that it was enqueued with."""
    what = "acted" if check == check_of(acted) else "wrong"
    note(what, acted, ctx.job.job_id, ctx.attempt)


@app.job(queue=QUEUE, retry=SOON)
async def acted(ctx: forebay.Context, acted: int, check: str) -> None:
    await asyncio.sleep(random.random() ** 6)
    _act(ctx, acted, check)


@app.job(queue=QUEUE, retry=SOON)
def acted_in_thread(ctx: forebay.Context, acted: int, check: str) -> None:
    time.sleep(random.random() ** 6)
    _act(ctx, acted, check)


@app.job(queue=QUEUE, retry=SOON, transaction=True)
def acted_in_transaction(ctx: forebay.Context, acted: int, check: str) -> None:
    ctx.conn.execute(
        "insert into acted_effect (job_id, acted) values (%s, %s)", [ctx.job.job_id, acted]
    )
    _act(ctx, acted, check)


@app.job(queue=QUEUE, retry=forebay.RetryPolicy(max_attempts=1))
def mortal(ctx: forebay.Context, acted: int, check: str) -> None:
    """Fail every second time; then it is dead."""
    if random.random() < 0.5:
        raise ValueError(acted)
    _act(ctx, acted, check)


@app.job(queue=QUEUE, retry=SOON)
async def forks(ctx: forebay.Context, acted: int, check: str) -> None:
    if _fork(acted):
        return
    _act(ctx, acted, check)


@app.job(queue=QUEUE, retry=SOON)
def forks_in_thread(ctx: forebay.Context, acted: int, check: str) -> None:
    if _fork(acted):
        return
    _act(ctx, acted, check)


def _fork(acted: int) -> bool:
    """Fork; return whether this is the copy, which then returns from the handler, or raises.

    A third of the copies ends at once.
    """
    pid = os.fork()
    if pid == 0:
        if acted % 3 == 0:
            os._exit(0)
        if acted % 3 == 1:
            raise ValueError(acted)
        return True
    ends_at = time.monotonic() + 20
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > ends_at:
            note("copy hangs", acted)
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return False

"""Short handlers for child processes, and what may go wrong in one of them."""

import os
import signal
import time
from pathlib import Path

import forebay
from tests.support.effects import PATH_VARIABLE, Effects, note

app = forebay.App()


@app.job(timeout=20)
async def short(ctx: forebay.Context, entry: int, act: str = "", value: int = 0) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    do(act, value)
    note("end", entry, ctx.job.job_id, ctx.attempt)


@app.job(timeout=20)
def short_in_thread(ctx: forebay.Context, entry: int, act: str = "", value: int = 0) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    do(act, value)
    note("end", entry, ctx.job.job_id, ctx.attempt)


@app.job(timeout=1)
def short_with_timeout(ctx: forebay.Context, entry: int, act: str = "", value: int = 0) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    do(act, value)
    note("end", entry, ctx.job.job_id, ctx.attempt)


def do(act: str, value: int) -> None:
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif act == "fail":
        raise ValueError("as asked")
    elif act == "wait":
        # Until so many others have ended, which it must not hold up.
        effects = Effects(Path(os.environ[PATH_VARIABLE]))
        while len(effects.all("end")) < value:
            time.sleep(0.01)
    elif act == "sleep":
        time.sleep(value)

"""The application of the storm of ordering keys: some jobs die when they run for the first time,
and are redriven.
"""

import asyncio
import os
from pathlib import Path

import forebay
from tests.support.effects import PATH_VARIABLE, note

app = forebay.App()


async def _work(
    ctx: forebay.Context, entry: int, seconds: float, *, dies: bool
) -> forebay.Outcome | None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    await asyncio.sleep(seconds)
    if dies and _is_first(entry):
        return forebay.Dead("it was the first time")
    note("end", entry, ctx.job.job_id, ctx.attempt)
    return None


def _is_first(entry: int) -> bool:
    """Whether no process has asked this before."""
    try:
        Path(f"{os.environ[PATH_VARIABLE]}.{entry}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@app.job(holds_key=True)
async def hold(
    ctx: forebay.Context, entry: int, seconds: float, dies: bool
) -> forebay.Outcome | None:
    return await _work(ctx, entry, seconds, dies=dies)


@app.job(holds_key=False)
async def skip(
    ctx: forebay.Context, entry: int, seconds: float, dies: bool
) -> forebay.Outcome | None:
    return await _work(ctx, entry, seconds, dies=dies)

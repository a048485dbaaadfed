"""An application that is deployed in two versions: the second has a kind that the first does not
know.
"""

import asyncio
import os
import time

import forebay
from tests.support.effects import note

VERSION = os.environ.get("SHOP_VERSION", "1")

app = forebay.App()


@app.job
async def work(ctx: forebay.Context, entry: int, seconds: float = 0) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    await asyncio.sleep(seconds)
    note("end", entry, ctx.job.job_id, ctx.attempt)


@app.job
def work_in_thread(ctx: forebay.Context, entry: int, seconds: float = 0) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    time.sleep(seconds)
    note("end", entry, ctx.job.job_id, ctx.attempt)


if VERSION == "2":

    @app.job
    async def work_of_version_2(ctx: forebay.Context, entry: int, seconds: float = 0) -> None:
        note("start", entry, ctx.job.job_id, ctx.attempt)
        await asyncio.sleep(seconds)
        note("end", entry, ctx.job.job_id, ctx.attempt)

"""An application whose jobs and schedules run in ticks."""

import time

import forebay
from tests.support.effects import note

app = forebay.App(name="ticks")


@app.cron("* * * * * *", missed="all", overlap="allow")
@app.job
def beat(ctx: forebay.Context) -> None:
    note("beat", 0, ctx.job.job_id, ctx.attempt)


@app.job(max_attempts=100)
def work(ctx: forebay.Context, entry: int, seconds: float = 0.02) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    time.sleep(seconds)
    note("end", entry, ctx.job.job_id, ctx.attempt)

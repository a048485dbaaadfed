"""The application of worker processes whose jobs call a host that is down, hangs, or is up.

A file beside that of the effects says which.
"""

import asyncio
import os
from pathlib import Path

import forebay
from tests.support.effects import PATH_VARIABLE, note

app = forebay.App()


def mode_of(effects: Path) -> Path:
    """Return the file that has the state of the host."""
    return effects.with_suffix(".mode")


@app.job(
    limit_by=("host",),
    breaker=forebay.Breaker(failures=2, cooldown=1, cooldown_max=1),
    retry=forebay.RetryPolicy(strategy="fixed", base_seconds=0.01, cap_seconds=0.01),
)
async def fetch(ctx: forebay.Context, host: str, entry: int) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    mode = mode_of(Path(os.environ[PATH_VARIABLE])).read_text()
    if mode == "down":
        raise ConnectionError(host)
    if mode == "hangs":
        note("hang", entry, ctx.job.job_id, ctx.attempt)
        await asyncio.sleep(600)
    note("end", entry, ctx.job.job_id, ctx.attempt)

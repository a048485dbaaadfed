"""The application of the storm of subjects: a run writes one row of the ledger in the commit of
its state.
"""

import asyncio
import random
import uuid
from typing import Any

import forebay
from tests.support.effects import note

app = forebay.App()


@app.subject(queue="crawl", transaction=True, max_attempts=10_000)
async def crawl(
    ctx: forebay.TransactionContext[Any], final: bool = False
) -> forebay.Again | forebay.Complete:
    """Count the runs of this life of the subject; some of them fail."""
    name = ctx.subject.name
    cursor = await ctx.conn.execute(
        "select pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [name]
    )
    if not (await cursor.fetchone())[0]:
        note("two hands", int(name), ctx.job.job_id, ctx.attempt)
    life = ctx.state.setdefault("life", uuid.uuid4().hex)
    ctx.state["runs"] = ctx.state.get("runs", 0) + 1
    await ctx.conn.execute(
        "insert into ledger values (%s, %s, %s)", [name, life, ctx.state["runs"]]
    )
    await asyncio.sleep(random.uniform(0, 0.05))
    if random.random() < 0.05:
        message = "now and then"
        raise ValueError(message)
    return forebay.Complete() if final else forebay.Again(random.choice([0, 0, 0.1, 0.5]))

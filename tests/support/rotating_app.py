"""An application whose password, or whole connections, come from a file that changes."""

import asyncio
import os
import time
from pathlib import Path

import psycopg

import forebay
from tests.support.effects import note

VARIABLE = "TEST_PASSWORD_FILE"


def password() -> str:
    return Path(os.environ[VARIABLE]).read_text(encoding="utf-8")


async def connect() -> psycopg.Connection:
    address = os.environ[VARIABLE + "_ADDRESS"]
    return await asyncio.to_thread(psycopg.connect, address, password=password())


jobs = forebay.Jobs()
app = forebay.App(password=password)
connecting_app = forebay.App(connect=connect)


@jobs.job
async def on_the_loop(ctx: forebay.Context, entry: int) -> None:
    await asyncio.sleep(0.02)
    note("end", entry, ctx.job.job_id, ctx.attempt)


@jobs.job(transaction=True)
def in_a_transaction(ctx: forebay.Context, entry: int) -> None:
    ctx.conn.execute("select 1")
    note("end", entry, ctx.job.job_id, ctx.attempt)


@jobs.job(executor="process", transaction=True)
async def in_a_process(ctx: forebay.Context, entry: int) -> None:
    await ctx.conn.execute("select 1")
    note("end", entry, ctx.job.job_id, ctx.attempt)


@jobs.job(executor="process")
def slow(ctx: forebay.Context, entry: int) -> None:
    time.sleep(0.02)
    note("end", entry, ctx.job.job_id, ctx.attempt)


KINDS = (on_the_loop, in_a_transaction, in_a_process, slow)
if os.environ.get(VARIABLE + "_ADDRESS"):
    connecting_app.include(jobs)
else:
    app.include(jobs)

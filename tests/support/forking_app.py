"""Handlers that fork: by multiprocessing, or by os.fork() with a copy that goes on."""

import asyncio
import ctypes
import multiprocessing
import os
import sys
import time

import forebay
from tests.support.effects import note

app = forebay.App()

#: Descriptors that handlers leave open.
KEPT: list[int] = []


def terminated() -> int | None:
    """Start a process, terminate it at once, and return its exit code; None if it lives."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join(10)
    code = process.exitcode
    process.kill()
    return code


@app.job(keep_result=True, max_attempts=1)
def in_thread() -> int | None:
    return terminated()


@app.job(keep_result=True, max_attempts=1)
async def in_coroutine() -> int | None:
    return terminated()


@app.job(keep_result=True, max_attempts=1, executor="process")
def in_process() -> int | None:
    return terminated()


@app.job(max_attempts=1)
async def work(entry: int) -> None:
    note("end", entry)


def go_on(entry: int, how: str) -> None:
    """In the copy of this process, end as said."""
    note("copy", entry)
    if how == "raise":
        raise ValueError("of the copy")
    if how == "exit":
        sys.exit(3)


@app.job(max_attempts=1)
def plain(ctx: forebay.Context, entry: int, how: str) -> None:
    if os.fork() == 0:
        return go_on(entry, how)
    note("end", entry, ctx.job.job_id)
    return None


@app.job(max_attempts=1, transaction=True)
def plain_in_transaction(ctx: forebay.TransactionContext, entry: int, how: str) -> None:
    ctx.conn.execute("select 1")
    if os.fork() == 0:
        return go_on(entry, how)
    note("end", entry, ctx.job.job_id)
    return None


@app.job(max_attempts=1)
async def coroutine(ctx: forebay.Context, entry: int, how: str) -> None:
    if os.fork() == 0:
        go_on(entry, how)
        if how == "await":
            await asyncio.sleep(0.01)
            note("end", entry, ctx.job.job_id)
        return
    note("end", entry, ctx.job.job_id)


@app.job(max_attempts=1)
def leave_a_copy(ctx: forebay.Context, entry: int) -> None:
    if os.fork() == 0:
        note("copy", entry)
        time.sleep(120)
        os._exit(0)
    note("end", entry, ctx.job.job_id)


@app.job(max_attempts=1, executor="process")
def lose_descriptors(entry: int) -> None:
    """Close what it did not open, as daemons do, and open files under these numbers."""
    note("start", entry)
    os.closerange(3, 256)
    KEPT.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(12))


@app.job(executor="process")
def work_in_process(entry: int) -> None:
    note("end", entry)


def crash_in_c() -> None:
    ctypes.string_at(0)


@app.job(max_attempts=1, executor="process")
def crash(entry: int) -> None:
    note("start", entry)
    crash_in_c()


@app.job(max_attempts=1)
def crash_the_worker(entry: int) -> None:
    note("start", entry)
    crash_in_c()

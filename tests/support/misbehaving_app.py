"""Handlers that change, copy or wreck the process they run in; in an application of their own."""

import locale
import os
import time
from pathlib import Path

import forebay
from tests.support.effects import note

app = forebay.App()

AT_ONCE = forebay.RetryPolicy(strategy="fixed", base_seconds=0.01, cap_seconds=0.01)


@app.job
async def work(ctx: forebay.Context, entry: int) -> None:
    note("end", entry, ctx.job.job_id, ctx.attempt)


@app.job(executor="process")
def work_in_process(ctx: forebay.Context, entry: int) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    note("end", entry, ctx.job.job_id, ctx.attempt)


@app.job(executor="process", keep_result=True)
def process_state() -> list[str]:
    mask = os.umask(0)
    os.umask(mask)
    return [str(Path.cwd()), oct(mask), locale.setlocale(locale.LC_ALL), str(os.getpid())]


@app.job(executor="process")
def rearrange(folder: str) -> None:
    os.chdir(folder)
    os.umask(0o011)
    locale.setlocale(locale.LC_ALL, "C.UTF-8")


@app.job
def go_elsewhere(folder: str) -> None:
    """Take the worker itself to a folder that is then removed."""
    os.chdir(folder)
    Path(folder).rmdir()


def fork_a_sleeper(entry: int) -> None:
    """
    Leave a copy of this process behind, with all that it holds open, for the test to end. Return
    when the copy has noted itself: the worker ends the whole process group when it sees that the
    process died.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        note("copy", entry)
        os.write(writer, b"x")
        time.sleep(120)
        os._exit(0)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)


@app.job(executor="process", max_attempts=1)
def fork_and_die(entry: int) -> None:
    fork_a_sleeper(entry)
    os._exit(7)


@app.job
def fork(ctx: forebay.Context, entry: int) -> None:
    fork_a_sleeper(entry)
    note("end", entry, ctx.job.job_id, ctx.attempt)


@app.job(executor="process", timeout=60)
def sleep_in_process(ctx: forebay.Context, entry: int) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    time.sleep(60)


@app.job(max_attempts=2, retry=AT_ONCE)
def close_everything(ctx: forebay.Context, entry: int) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    os.closerange(3, 4096)


@app.job(max_attempts=2, retry=AT_ONCE)
def take_all_memory(ctx: forebay.Context, entry: int) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)
    hoard = []
    while True:
        hoard.append(bytearray(10_000_000))

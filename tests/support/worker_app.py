"""The application that worker processes of the tests run: handlers that work, hang, fail and kill.

Each notes what it does in the file of ``tests.support.effects``.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

import forebay
from tests.support.effects import PATH_VARIABLE, Effects, note
from tests.support.hostile_texts import answer, hostile

app = forebay.App()

QUICK_RETRY = forebay.RetryPolicy(strategy="fixed", base_seconds=0.01, cap_seconds=0.01)


def started(ctx: forebay.Context, entry: int) -> None:
    note("start", entry, ctx.job.job_id, ctx.attempt)


def ended(ctx: forebay.Context, entry: int) -> None:
    note("end", entry, ctx.job.job_id, ctx.attempt)


@app.batch_job(size=10, executor="process")
def quote(items: list[msgspec.Raw]) -> list[forebay.Outcome]:
    return [forebay.Dead(bytes(item).decode()) for item in items]


@app.job
async def work(ctx: forebay.Context, entry: int, seconds: float = 0) -> None:
    started(ctx, entry)
    await asyncio.sleep(seconds)
    ended(ctx, entry)


@app.job
def work_in_thread(ctx: forebay.Context, entry: int, seconds: float = 0) -> None:
    started(ctx, entry)
    time.sleep(seconds)
    ended(ctx, entry)


@app.job(retry=QUICK_RETRY)
async def step(ctx: forebay.Context, entry: int, seconds: float = 0, failures: int = 0) -> None:
    started(ctx, entry)
    await asyncio.sleep(seconds)
    if ctx.attempt <= failures:
        note("fail", entry, ctx.job.job_id, ctx.attempt)
        raise ValueError(entry)
    ended(ctx, entry)


@app.job(transaction=True, retry=QUICK_RETRY)
def step_in_transaction(
    ctx: forebay.Context, entry: int, seconds: float = 0, failures: int = 0
) -> None:
    started(ctx, entry)
    time.sleep(seconds)
    if ctx.attempt <= failures:
        note("fail", entry, ctx.job.job_id, ctx.attempt)
        raise ValueError(entry)
    ctx.conn.execute("insert into effect (entry, job_id) values (%s, %s)", _row(ctx, entry))
    ended(ctx, entry)


@app.job(transaction=True)
async def write(ctx: forebay.Context, entry: int, seconds: float = 0) -> None:
    started(ctx, entry)
    await ctx.conn.execute("insert into effect (entry, job_id) values (%s, %s)", _row(ctx, entry))
    await asyncio.sleep(seconds)
    ended(ctx, entry)


@app.job(transaction=True)
def write_in_thread(ctx: forebay.Context, entry: int, seconds: float = 0) -> None:
    started(ctx, entry)
    ctx.conn.execute("insert into effect (entry, job_id) values (%s, %s)", _row(ctx, entry))
    time.sleep(seconds)
    ended(ctx, entry)


def _row(ctx: forebay.Context, entry: int) -> list[int]:
    return [entry, ctx.job.job_id]


@app.job(retry=QUICK_RETRY)
async def kill_process(ctx: forebay.Context, entry: int, how: str) -> None:
    started(ctx, entry)
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


@app.job(retry=QUICK_RETRY)
async def fail_twice(ctx: forebay.Context, entry: int) -> None:
    started(ctx, entry)
    if ctx.attempt <= 2:
        raise RuntimeError(f"attempt {ctx.attempt}")
    ended(ctx, entry)


@app.job
async def block_the_loop(ctx: forebay.Context, entry: int, seconds: float) -> None:
    started(ctx, entry)
    if ctx.attempt == 1 and not os.environ.get("TEST_DO_NOT_BLOCK"):
        time.sleep(seconds)
    ended(ctx, entry)


@app.job
async def ignore_cancellation(ctx: forebay.Context, entry: int) -> None:
    started(ctx, entry)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@app.job
def sleep_in_thread(ctx: forebay.Context, entry: int) -> None:
    started(ctx, entry)
    time.sleep(3600)


@app.job
async def sleep_in_an_executor(ctx: forebay.Context, entry: int) -> None:
    started(ctx, entry)
    await asyncio.to_thread(time.sleep, 3600)


@app.job
async def finish_unless_retried(
    ctx: forebay.Context, entry: int, seconds: float, fate: str
) -> forebay.Outcome | None:
    started(ctx, entry)
    effects = Effects(Path(os.environ[PATH_VARIABLE]))
    is_first = effects.count("start")[entry] == 1
    if fate == "dead" and not is_first:
        return forebay.Dead("decided by the second worker")
    await asyncio.sleep(seconds)
    ended(ctx, entry)
    return None


@app.job
async def snooze_until(ctx: forebay.Context, entry: int, seconds: float) -> forebay.Outcome | None:
    started(ctx, entry)
    effects = Effects(Path(os.environ[PATH_VARIABLE]))
    if effects.count("start")[entry] == 1:
        now = datetime.now(UTC) + timedelta(seconds=CLOCK_SKEW)
        return forebay.Snooze(until=now + timedelta(seconds=seconds))
    ended(ctx, entry)
    return None


def _set_the_clock_wrong() -> None:
    """Let this process believe in another time of day, as the library sees it."""
    real = time.time
    time.time = lambda: real() + CLOCK_SKEW

    class Skewed(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=CLOCK_SKEW)

    for module in [m for name, m in sys.modules.items() if name.startswith("forebay.")]:
        if getattr(module, "datetime", None) is datetime:
            module.datetime = Skewed


CLOCK_SKEW = float(os.environ.get("TEST_CLOCK_SKEW", "0"))
if CLOCK_SKEW:
    import forebay.worker.process.worker  # so that it is among the modules

    _set_the_clock_wrong()


if os.environ.get("TEST_WITHOUT_OWN_FENCE"):
    from forebay.worker.lease.leases import LeaseKeeper

    async def _watch_nothing(leases: LeaseKeeper) -> None:
        await asyncio.Event().wait()

    LeaseKeeper.watch = _watch_nothing
    LeaseKeeper.confirm = lambda *_: None


@app.job(keep_result=True)
def report(ctx: forebay.Context, entry: int) -> dict[str, bool]:
    ctx.progress(0.5, "half")
    started(ctx, entry)
    is_child = "_child" in sys.argv[0]
    time.sleep(1.2 if is_child else 30)
    return {"child": is_child}


@app.job(executor="process", keep_result=True, timeout=90)
def in_process(ctx: forebay.Context, entry: int, seconds: float = 0) -> dict[str, int]:
    started(ctx, entry)
    ctx.wait_cancelled(seconds)
    ctx.raise_if_cancelled()
    return {"pid": os.getpid()}


@app.job(executor="process")
def not_run_in_process(entry: int) -> Any:
    return asyncio.sleep(entry)


@app.job(executor="process", max_attempts=2, retry=QUICK_RETRY, keep_result=True)
def hostile_in_process(ctx: forebay.Context, entry: int) -> Any:
    calls = hostile_calls[entry] = hostile_calls.get(entry, 0) + 1
    rng = random.Random(f"{entry} {calls}")
    with contextlib.suppress(forebay.errors.OutcomeRefused):
        ctx.progress(0.5, hostile(rng))
    return answer(rng) if calls < 4 else None


hostile_calls: dict[int, int] = {}


@app.job(executor="process", timeout=3)
def hang_in_process(ctx: forebay.Context, entry: int, how: str) -> None:
    started(ctx, entry)
    while True:
        if how == "C code":
            ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock
        elif how == "patient":
            time.sleep(0.01)


@app.job
async def read_words(ctx: forebay.Context, entry: int, words: list[str]) -> None:
    assert len(words) == 40_000
    ended(ctx, entry)


@app.job(executor="process", timeout=2)
def start_programs(ctx: forebay.Context, entry: int, end: str = "") -> None:
    """Start a program, which starts another one, and wait for them."""
    program = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 120 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    note("program", entry, program.pid)
    note("program", entry, int(program.stdout.readline()))
    started(ctx, entry)
    if end == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    program.wait()


@app.job(executor="process", memory_bytes=50_000_000, cpu_seconds=1, timeout=60)
def exceed(ctx: forebay.Context, entry: int, what: str) -> None:
    started(ctx, entry)
    if what == "memory":
        bytearray(200_000_000)
    while what == "cpu":
        pass


class Item(msgspec.Struct):
    entry: int
    fatal: bool


@app.batch_job(size=10, executor="process", timeout=60)
def batch_in_process(ctx: forebay.Context, items: list[Item]) -> None:
    for job, item in zip(ctx.jobs, items, strict=True):
        note("start", item.entry, job.job_id, job.attempt)
        if item.fatal:
            os._exit(7)
    for job, item in zip(ctx.jobs, items, strict=True):
        note("end", item.entry, job.job_id, job.attempt)


@app.job(executor="process", transaction=True)
def write_in_process(ctx: forebay.Context, entry: int) -> None:
    ctx.conn.execute("insert into effect (entry, job_id) values (%s, %s)", _row(ctx, entry))

"""Handlers that take all memory, copy or wreck their process, or wait for each other's slots."""

import asyncio
import os
import resource
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import forebay
from forebay.worker.ground.threads import NoThreadError, Threads
from tests.support.engine import enqueue, enqueue_many, one, state
from tests.support.fix_worker import running
from tests.support.waiting import wait_for, wait_for_async

APP = "tests.support.misbehaving_app:app"


@pytest.fixture(autouse=True)
def copies(effects):
    """Ends what handlers forked."""
    yield
    for copy in effects.all("copy"):
        with suppress(ProcessLookupError):
            os.kill(copy.pid, signal.SIGKILL)


def is_done(conn, *jobs: int) -> bool:
    return all(state(conn, job) == "done" for job in jobs)


def result_of(conn, job: int) -> list[str]:
    return forebay.App(conn.info.dsn).handle(job).result(0)


# --- memory ---


def memory_of(pid: int) -> int:
    """Return the size of a process in bytes, as RLIMIT_AS counts it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.slow
def test_a_memory_bomb_in_a_thread_ends_as_a_failed_job(conn, workers, effects):
    """
    The worker's own process has a limit, as under ``ulimit -v``, and a plain function uses it up:
    its job fails and dies of its attempts, the worker lives, and what ran beside it is done at the
    first attempt.
    """
    worker = workers.start(app=APP, concurrency=4)
    resource.prlimit(
        worker.pid,
        resource.RLIMIT_AS,
        (memory_of(worker.pid) + 400_000_000, resource.RLIM_INFINITY),
    )
    bomb = enqueue(conn, kind="take_all_memory", args={"entry": 0})
    others = enqueue_many(conn, [{"kind": "work", "args": {"entry": n}} for n in range(1, 200)])
    wait_for(lambda: state(conn, bomb) == "dead", 60, lambda: workers.logs)
    wait_for(lambda: is_done(conn, *others), 60, lambda: workers.logs)
    assert worker.is_running
    errors = conn.execute("select distinct error_type from forebay.failure").fetchall()
    assert errors == [("MemoryError",)]
    assert {effect.attempt for effect in effects.all("end")} == {1}
    assert effects.count("start") == {0: 2}


@pytest.mark.anyio
async def test_a_thread_that_cannot_be_had_is_asked_for_again(app, conn, monkeypatch):
    """
    With no memory for one more thread a job is released, at no attempt, and runs when there is one.
    No slot is lost.
    """
    missing = [True] * 5
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "forebay-handler" and missing:
            missing.pop()
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    attempts = []

    @app.job
    def work(ctx: forebay.Context, number: int) -> None:
        attempts.append((number, ctx.attempt))

    async with running(app, concurrency=2):
        work.enqueue_many(conn, [(n,) for n in range(8)])
        await wait_for_async(lambda: len(attempts) == 8, 30)
    assert sorted(attempts) == [(n, 1) for n in range(8)]


@pytest.mark.anyio
async def test_a_thread_that_never_started_does_not_count(monkeypatch):
    """
    However often none could be had: the next call gets one.
    """
    threads = Threads(2)
    with monkeypatch.context() as patch:

        def start(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", start)
        for _ in range(5):
            with pytest.raises(NoThreadError, match="can't start"):
                threads.submit(int)
    assert await asyncio.wait_for(threads.submit(lambda: 7).future, 5) == 7
    threads.close()


# --- the process ---


@pytest.mark.slow
def test_what_a_call_changes_of_its_process_is_put_back_for_the_next(conn, workers, tmp_path):
    """
    A process is used again: working folder, file mode mask and locale are for the next call what
    they were for the first.
    """
    workers.start(app=APP, concurrency=1)
    jobs = [
        enqueue(conn, kind="process_state"),
        enqueue(conn, kind="rearrange", args={"folder": str(tmp_path)}),
        enqueue(conn, kind="process_state"),
    ]
    wait_for(lambda: is_done(conn, *jobs), 60, lambda: workers.logs)
    assert result_of(conn, jobs[0]) == result_of(conn, jobs[2])


@pytest.mark.slow
def test_a_worker_that_was_taken_elsewhere_starts_processes_where_it_began(
    conn, workers, effects, tmp_path
):
    """
    A handler changed the worker's own folder, to one that is gone: handlers in processes find the
    application all the same.
    """
    gone = tmp_path / "gone"
    gone.mkdir()
    workers.start(app=APP, concurrency=1)
    left = enqueue(conn, kind="go_elsewhere", args={"folder": str(gone)})
    wait_for(lambda: is_done(conn, left), 60, lambda: workers.logs)
    job = enqueue(conn, kind="work_in_process", args={"entry": 1})
    wait_for(lambda: is_done(conn, job), 60, lambda: workers.logs)


@pytest.mark.slow
def test_a_process_that_dies_is_noticed_though_its_copy_lives(conn, workers, effects):
    """
    A handler in a process forks, and its process ends; the copy holds everything open that it had.
    The job has failed, and the next one gets another process.
    """
    workers.start(app=APP, concurrency=1)
    job = enqueue(conn, kind="fork_and_die", args={"entry": 1})
    other = enqueue(conn, kind="work_in_process", args={"entry": 2})
    wait_for(lambda: state(conn, job) == "dead", 60, lambda: workers.logs)
    assert one(conn, "select reason from forebay.dead_letter") == "worker lost"
    wait_for(lambda: is_done(conn, other), 60, lambda: workers.logs)
    wait_for(lambda: effects.all("copy"), 60, lambda: workers.logs)


@pytest.mark.slow
def test_processes_end_with_their_worker_though_its_copy_lives(conn, workers, effects):
    """
    A plain function forked within the worker, which is then killed: its processes end too, and do
    not run on beside those that get their jobs next.
    """
    worker = workers.start(app=APP, concurrency=2)
    enqueue(conn, kind="sleep_in_process", args={"entry": 1})
    wait_for(lambda: effects.all("start"), 60, lambda: workers.logs)
    enqueue(conn, kind="fork", args={"entry": 2})
    wait_for(lambda: effects.all("end") and effects.all("copy"), 60, lambda: workers.logs)
    worker.kill()
    (start,) = effects.all("start")
    wait_for(lambda: not Path(f"/proc/{start.pid}").exists(), 30)


@pytest.mark.slow
def test_a_handler_that_closes_every_descriptor_costs_one_worker(conn, workers, effects):
    """
    Without its descriptors a worker cannot go on: it ends by itself, for its supervisor to start it
    again. The job then runs alone, dies of its attempts, and nobody else's fails.
    """
    workers.start(app=APP, concurrency=2)
    poison = enqueue(conn, kind="close_everything", args={"entry": 0})
    wait_for(lambda: effects.all("start"), 60, lambda: workers.logs)
    wait_for(lambda: not workers.members[0].is_running, 60, lambda: workers.logs)
    workers.start(app=APP, concurrency=2)
    others = enqueue_many(conn, [{"kind": "work", "args": {"entry": n}} for n in range(1, 20)])
    wait_for(lambda: state(conn, poison) == "dead", 60, lambda: workers.logs)
    wait_for(lambda: is_done(conn, *others), 60, lambda: workers.logs)
    assert workers.members[1].is_running
    assert {effect.attempt for effect in effects.all("end")} == {1}


# --- slots and connections ---


@pytest.mark.anyio
async def test_handlers_that_hold_all_connections_and_wait_for_another_job(app, conn):
    """
    All slots but one are transactions that wait for a job which needs a connection as well: it gets
    one, heartbeats and settlements have their own, and all of them end.
    """
    last = asyncio.Event()

    @app.job(transaction=True)
    async def wait_for_the_last(ctx: forebay.Context) -> None:
        await ctx.conn.execute("select 1")
        await last.wait()

    @app.job(transaction=True)
    async def be_the_last(ctx: forebay.Context) -> None:
        await ctx.conn.execute("select 1")
        last.set()

    async with running(app, concurrency=8) as worker:
        wait_for_the_last.enqueue_many(conn, [()] * 7)
        await wait_for_async(lambda: worker._executor.busy == 7)
        be_the_last.enqueue(conn)
        await wait_for_async(lambda: worker.stats.claimed == 8 and worker._executor.is_idle, 30)
    assert worker.stats.leases_lost == 0
    assert one(conn, "select count(*) from forebay.settlement") == 8


@pytest.mark.slow
@pytest.mark.anyio
async def test_handlers_that_wait_for_a_job_without_a_slot_end_at_their_timeout(app, conn):
    """
    Every slot waits for a job that has none: nothing but the timeout can end this, and it does; the
    job runs then.
    """
    ran = asyncio.Event()

    @app.job(timeout=1, max_attempts=1)
    async def wait_for_it() -> None:
        await ran.wait()

    @app.job
    async def run() -> None:
        ran.set()

    async with running(app, concurrency=2):
        jobs = [wait_for_it.enqueue(conn) for _ in range(2)]
        jobs.append(run.enqueue(conn))
        await wait_for_async(lambda: [state(conn, j) for j in jobs] == ["dead", "dead", "done"], 30)

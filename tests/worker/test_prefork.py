"""``forebay worker --processes N``: one lease and one claimer, and every handler in one of N
child processes.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

import forebay
from forebay.client import Client
from forebay.config import WorkerSettings
from forebay.errors import ConfigError
from forebay.worker import Worker
from tests.support.engine import one, state
from tests.support.waiting import wait_for
from tests.support.worker_process import is_alive


def put(conn, kind: str, entry: int, **args) -> int:
    """Enqueue one job with a single attempt; return its id."""
    text = json.dumps({"entry": entry} | args)
    return one(conn, "select forebay.enqueue(%s, %s::jsonb, max_attempts => 1)", kind, text)


def failures(conn, job: int) -> list[str]:
    """Return the types of a job's errors."""
    rows = conn.execute("select error_type from forebay.failure where job_id = %s", [job])
    return [row[0] for row in rows]


@pytest.mark.slow
def test_handlers_of_every_sort_run_in_the_processes(conn, workers, effects):
    """
    At once in as many processes as there are, under one lease; a handler's transaction is one
    commit there too.
    """
    worker = workers.start(processes=3)
    wait_for(lambda: len(worker.children) == 3, 30, lambda: workers.logs)
    jobs = [
        put(conn, kind, entry, seconds=4)
        for entry, kind in enumerate(("work", "work_in_thread", "write"))
    ]
    wait_for(lambda: all(state(conn, job) == "done" for job in jobs), 30, lambda: workers.logs)
    pids = {event.pid for event in effects.all("start")}
    assert len(pids) == 3
    assert pids == worker.children
    assert one(conn, "select count(*) from forebay.lease where closed_at is null") == 1
    assert one(conn, "select count(*) from effect") == 1
    (found,) = Client(conn.info.dsn).workers()
    assert (found.concurrency, found.processes) == (3, 3)
    shown = subprocess.run(
        [sys.executable, "-m", "forebay", "workers", "list", "--dsn", conn.info.dsn],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "/3 slots in 3 processes" in shown.stdout


@pytest.mark.slow
def test_a_process_that_is_killed_takes_its_own_job_only(conn, workers, effects):
    """
    That job has used an attempt, those in the other processes end at their first; another process
    takes its place.
    """
    worker = workers.start(processes=3)
    victim = put(conn, "work_in_thread", 0, seconds=60)
    others = [put(conn, "work_in_thread", entry, seconds=3) for entry in (1, 2)]
    wait_for(lambda: len(effects.all("start")) == 3, 30, lambda: workers.logs)
    (pid,) = (event.pid for event in effects.all("start") if event.entry == 0)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: state(conn, victim) == "dead", 30, lambda: workers.logs)
    assert failures(conn, victim) == ["WorkerLost"]
    wait_for(lambda: all(state(conn, job) == "done" for job in others), 30, lambda: workers.logs)
    assert [failures(conn, job) for job in others] == [[], []]
    assert {event.attempt for event in effects.all("end")} == {1}
    wait_for(lambda: len(worker.children) == 3, 30, lambda: workers.logs)
    assert pid not in worker.children
    assert worker.is_running


@pytest.mark.slow
def test_the_hard_timeout_kills_one_process(conn, workers, effects):
    """
    Also for a kind that does not ask for a process, and in code that holds on.
    """
    worker = workers.start(processes=2, hard_timeout_seconds=2)
    wait_for(lambda: len(worker.children) == 2, 30, lambda: workers.logs)
    job = put(conn, "sleep_in_thread", 1)
    wait_for(lambda: state(conn, job) == "dead", 30, lambda: workers.logs)
    (event,) = effects.all("start")
    wait_for(lambda: not is_alive(event.pid), 10)
    other = put(conn, "work", 2)
    wait_for(lambda: state(conn, other) == "done", 30, lambda: workers.logs)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_no_process_outlives_the_worker(conn, workers, effects, how):
    """
    After the grace time running calls are killed and their jobs released, at no attempt; processes
    of a dead worker end themselves.
    """
    worker = workers.start(processes=2, grace_seconds=0.2)
    job = put(conn, "work_in_thread", 1, seconds=60)
    wait_for(lambda: effects.all("start"), 30, lambda: workers.logs)
    wait_for(lambda: len(worker.children) == 2, 30, lambda: workers.logs)
    children = worker.children
    getattr(worker, how)()
    worker.wait(15)
    wait_for(lambda: not any(is_alive(pid) for pid in children), 15)
    if how == "terminate":
        assert state(conn, job) == "ready"
        assert failures(conn, job) == []


@pytest.mark.anyio
async def test_an_app_that_no_process_can_find_is_refused(database):
    """
    Before anything is claimed.
    """
    app = forebay.App(database)

    @app.job
    def work() -> None: ...

    worker = Worker(app._internals, database, settings=WorkerSettings(processes=2))
    with pytest.raises(ConfigError, match="processes is set, and no process can import the app"):
        await worker.run()


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_a_number_out_of_range_is_refused(count):
    """
    With the name of the setting.
    """
    with pytest.raises(ConfigError, match="processes"):
        WorkerSettings(processes=count)

"""Handlers in processes of their own: limits that hold, deaths that hurt nobody else."""

import json

import pytest

import forebay
from forebay.errors import ConfigError
from tests.support.engine import one, state
from tests.support.waiting import wait_for
from tests.support.worker_process import is_alive


def put(conn, kind: str, entry: int, **args) -> int:
    """Enqueue one job for the worker processes; return its id."""
    text = json.dumps({"entry": entry} | args)
    return one(conn, "select forebay.enqueue(%s, %s::jsonb, max_attempts => 1)", kind, text)


def errors(conn, job: int) -> list[str]:
    """Return the types of a job's errors."""
    rows = conn.execute("select error_type from forebay.failure where job_id = %s", [job])
    return [row[0] for row in rows]


@pytest.mark.slow
def test_each_call_runs_in_a_process_that_is_used_again(conn, workers, effects):
    """
    Not in the worker; one after another in the same child, and what they return is kept.
    """
    worker = workers.start(concurrency=1)
    jobs = [put(conn, "in_process", entry) for entry in range(5)]
    wait_for(lambda: all(state(conn, job) == "done" for job in jobs), 30, lambda: workers.logs)
    pids = {event.pid for event in effects.all("start")}
    assert len(pids) == 1
    assert worker.pid not in pids
    app = forebay.App(conn.info.dsn)
    assert app.handle(jobs[0]).result(0) == {"pid": pids.pop()}


@pytest.mark.slow
def test_a_handler_in_a_process_that_returns_what_has_not_run_has_failed(conn, workers):
    """
    The child looks at it as the worker does.
    """
    workers.start(concurrency=1)
    job = put(conn, "not_run_in_process", 1)
    wait_for(lambda: state(conn, job) == "dead", 30, lambda: workers.logs)
    assert errors(conn, job) == ["TypeError"]


@pytest.mark.parametrize("how", ["C code", "busy loop"])
@pytest.mark.slow
def test_at_the_timeout_the_process_is_killed(conn, workers, effects, how):
    """
    Whatever it does: the attempt has failed, the process is gone, and the next call gets another
    one.
    """
    workers.start(concurrency=1)
    job = put(conn, "hang_in_process", 1, how=how)
    wait_for(lambda: state(conn, job) == "dead", 30, lambda: workers.logs)
    assert errors(conn, job) == ["forebay.errors.HardTimeout"]
    (event,) = effects.all("start")
    wait_for(lambda: not is_alive(event.pid), 5)
    other = put(conn, "in_process", 2)
    wait_for(lambda: state(conn, other) == "done", 30, lambda: workers.logs)


@pytest.mark.parametrize(("what", "error"), [("memory", "MemoryError"), ("cpu", "WorkerLost")])
@pytest.mark.slow
def test_limits_hold_and_concern_one_job_only(conn, workers, effects, what, error):
    """
    Memory that is not granted is an exception in the handler; processor time that is used up ends
    its process.
    """
    workers.start(concurrency=1)
    job = put(conn, "exceed", 1, what=what)
    other = put(conn, "in_process", 2)
    wait_for(lambda: state(conn, job) == "dead", 40, lambda: workers.logs)
    assert errors(conn, job) == [error]
    wait_for(lambda: state(conn, other) == "done", 30, lambda: workers.logs)


@pytest.mark.slow
def test_one_of_a_batch_that_kills_its_process_is_found(conn, workers, effects):
    """
    The others of its call are done, at their first attempt; it is dead, and the worker lives.
    """
    worker = workers.start(concurrency=1)
    rest = (
        "array(select jsonb_build_object('entry', g, 'fatal', g = 3) from generate_series(1, 6) g)"
    )
    conn.execute(f"select forebay.enqueue_many('batch_in_process', {rest}, max_attempts => 1)")
    wait_for(lambda: effects.entries("end") == {1, 2, 4, 5, 6}, 40, lambda: workers.logs)
    wait_for(lambda: one(conn, "select count(*) from forebay.dead_letter") == 1, 20)
    assert one(conn, "select reason from forebay.dead_letter") == "worker lost"
    assert {event.attempt for event in effects.all("start")} == {1}
    assert worker.is_running


@pytest.mark.slow
def test_a_transaction_in_a_process_is_one_commit(conn, workers, effects):
    """
    The child has a connection of its own; effect and completion are one there too.
    """
    workers.start(concurrency=2)
    jobs = [put(conn, "write_in_process", entry) for entry in range(4)]
    wait_for(lambda: all(state(conn, job) == "done" for job in jobs), 30, lambda: workers.logs)
    assert one(conn, "select count(*) from effect") == 4


@pytest.mark.slow
def test_a_cancelled_call_is_asked_to_stop(conn, workers, effects):
    """
    The request reaches the handler in its process.
    """
    workers.start(concurrency=1)
    job = put(conn, "in_process", 1, seconds=60)
    wait_for(lambda: effects.all("start"), 30, lambda: workers.logs)
    one(conn, "select forebay.cancel(%s)", job)
    wait_for(lambda: state(conn, job) == "cancelled", 20, lambda: workers.logs)


@pytest.mark.slow
def test_a_worker_that_stops_takes_its_processes_along(conn, workers, effects):
    """
    After the grace time the call is killed and its job released, at no attempt.
    """
    worker = workers.start(concurrency=1, grace_seconds=0.2)
    job = put(conn, "hang_in_process", 1, how="patient")
    wait_for(lambda: effects.all("start"), 30, lambda: workers.logs)
    worker.terminate()
    worker.wait(15)
    (event,) = effects.all("start")
    wait_for(lambda: not is_alive(event.pid), 5)
    assert state(conn, job) == "ready"
    assert errors(conn, job) == []


@pytest.mark.parametrize("how", ["timeout", "its own death", "worker stops", "worker is killed"])
@pytest.mark.slow
def test_programs_that_a_handler_started_end_with_its_process(conn, workers, effects, how):
    """
    Also those that they started: they must not work on while the job runs again elsewhere.
    """
    worker = workers.start(concurrency=1, grace_seconds=0.2)
    put(conn, "start_programs", 1, end="die" if how == "its own death" else "")
    wait_for(lambda: effects.all("start"), 30, lambda: workers.logs)
    programs = [event.job_id for event in effects.all("program")]
    assert len(programs) == 2
    if how == "worker stops":
        worker.terminate()
    elif how == "worker is killed":
        worker.kill()
    wait_for(lambda: not any(is_alive(pid) for pid in programs), 15, lambda: workers.logs)
    (event,) = effects.all("start")
    wait_for(lambda: not is_alive(event.pid), 5)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"executor": "thread"}, "executor is 'thread'"),
        ({"memory_bytes": 10**9}, "needs a handler in a process"),
        ({"executor": "process", "memory_bytes": 5}, "memory_bytes is 5"),
        ({"executor": "process", "cpu_seconds": 0}, "cpu_seconds is 0"),
    ],
)
def test_what_cannot_be_served_is_refused_when_declared(options, problem):
    """
    With the name of the kind and the option.
    """
    with pytest.raises(ConfigError, match=problem):
        forebay.App().job(name="x", **options)(lambda: None)


@pytest.mark.anyio
async def test_an_app_that_no_process_can_find_is_refused_by_its_worker(database):
    """
    Before anything is claimed, and not at the first job.
    """
    app = forebay.App(database)

    @app.job(executor="process")
    def work() -> None: ...

    with pytest.raises(ConfigError, match="cannot import the app"):
        await app.worker().run()

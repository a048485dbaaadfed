"""Handlers that fork: their copies are no workers."""

import os
import signal
from contextlib import suppress

import pytest

import forebay
from tests.support.engine import enqueue, state
from tests.support.waiting import wait_for
from tests.support.worker_process import is_alive

APP = "tests.support.forking_app:app"

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def copies(effects):
    """Ends what handlers forked."""
    yield
    for copy in effects.all("copy"):
        with suppress(ProcessLookupError):
            os.kill(copy.pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["in_thread", "in_coroutine", "in_process"])
def test_a_signal_to_a_forked_process_is_none_to_the_worker(conn, workers, effects, kind):
    """
    A handler starts a process and terminates it: the process ends by that signal, the job is done,
    and the worker goes on.
    """
    worker = workers.start(app=APP, concurrency=2)
    job = enqueue(conn, kind=kind, args={})
    wait_for(lambda: state(conn, job) == "done", 30, lambda: workers.logs)
    assert forebay.App(conn.info.dsn).handle(job).result(0) == -signal.SIGTERM
    other = enqueue(conn, kind="work", args={"entry": 2})
    wait_for(lambda: state(conn, other) == "done", 30, lambda: workers.logs)
    assert worker.is_running
    assert "SIGTERM" not in worker.log


@pytest.mark.parametrize("processes", [False, True], ids=["worker", "processes"])
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *(("plain", how) for how in ("return", "raise", "exit")),
        *(("plain_in_transaction", how) for how in ("return", "raise")),
        *(("coroutine", how) for how in ("return", "raise", "exit", "await")),
    ],
)
def test_a_copy_ends_where_it_would_go_on_as_the_worker(
    conn, workers, effects, kind, how, processes
):
    """
    The copy returns, raises, exits or awaits: it ends there. The job ends once, as the handler in
    the worker says, and jobs before and after it are done.
    """
    more = {"processes": 1} if processes else {"concurrency": 2}
    worker = workers.start(app=APP, **more)
    jobs = [
        enqueue(conn, kind="work", args={"entry": 1}),
        enqueue(conn, kind=kind, args={"entry": 2, "how": how}),
        *(enqueue(conn, kind="work", args={"entry": n}) for n in range(3, 30)),
    ]
    wait_for(lambda: all(state(conn, job) == "done" for job in jobs), 30, lambda: workers.logs)
    (copy,) = wait_for(lambda: effects.all("copy"), 10)
    wait_for(lambda: not is_alive(copy.pid), 10, lambda: workers.logs)
    assert sorted(event.entry for event in effects.all("end")) == list(range(1, 30))
    assert copy.pid not in {event.pid for event in effects.all("end")}
    assert worker.is_running


def test_a_copy_holds_no_session_of_a_dead_worker(conn, workers, effects, sessions):
    """
    A copy that lives on has none of the worker's sockets: when the worker is killed, the server
    ends its sessions, with their transactions and locks.
    """
    worker = workers.start(app=APP, concurrency=2)
    enqueue(conn, kind="leave_a_copy", args={"entry": 1})
    (copy,) = wait_for(lambda: effects.all("copy"), 30, lambda: workers.logs)
    of_worker = f":{worker.pid}:"
    assert any(of_worker in name for name in sessions())
    worker.kill()
    wait_for(lambda: not any(of_worker in name for name in sessions()), 10)
    assert is_alive(copy.pid)


@pytest.mark.parametrize("processes", [False, True], ids=["process", "processes"])
def test_a_process_that_lost_its_descriptors_holds_no_job(conn, workers, effects, processes):
    """
    A handler closed the socket to the worker and the descriptors of its event loop: the process
    lives and says nothing. It is ended, its job has failed, and the next jobs are done.
    """
    more = {"processes": 1} if processes else {"concurrency": 1}
    workers.start(app=APP, **more)
    first = enqueue(conn, kind="work_in_process", args={"entry": 1})
    job = enqueue(conn, kind="lose_descriptors", args={"entry": 2})
    others = [enqueue(conn, kind="work_in_process", args={"entry": n}) for n in range(3, 20)]
    wait_for(
        lambda: all(state(conn, each) == "done" for each in [first, *others]),
        40,
        lambda: workers.logs,
    )
    assert state(conn, job) == "dead"
    (start,) = effects.all("start")
    wait_for(lambda: not is_alive(start.pid), 10)

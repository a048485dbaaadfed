"""Handlers that crash their process: their last stack is told."""

import pytest

from tests.support.engine import enqueue, one, state
from tests.support.waiting import wait_for

APP = "tests.support.forking_app:app"

pytestmark = pytest.mark.slow


def test_a_crash_in_a_process_is_recorded_with_its_python_stack(conn, workers):
    """
    The error of the job has the signal, and the lines of the handler, the innermost first.
    """
    workers.start(app=APP, concurrency=1)
    job = enqueue(conn, kind="crash", args={"entry": 1})
    wait_for(lambda: state(conn, job) == "dead", 30, lambda: workers.logs)
    message = one(conn, "select message from forebay.failure where job_id = %s", job)
    assert "SIGSEGV" in message
    text = one(conn, "select traceback from forebay.failure where job_id = %s", job)
    lines = text.splitlines()
    assert lines[0] == "Fatal Python error: Segmentation fault"
    assert text.index("in crash_in_c") < text.index("in crash\n")


def test_a_crash_of_the_worker_is_in_its_log(conn, workers):
    """
    A handler in a thread takes the worker along: its standard error has the stack.
    """
    worker = workers.start(app=APP, concurrency=1)
    enqueue(conn, kind="crash_the_worker", args={"entry": 1})
    wait_for(lambda: not worker.is_running, 30, lambda: workers.logs)
    assert "in crash_the_worker" in worker.log

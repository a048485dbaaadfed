"""Child processes that live and say nothing: no wait for one is without a limit."""

import os
import signal
import sys

import pytest

from forebay.config import WorkerSettings
from forebay.worker.run import _child, children
from forebay.worker.run.children import Child, Children
from forebay.worker.run.messages import Start, settings_of
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


@pytest.fixture
async def child():
    settings = WorkerSettings()
    start = Start(
        "tests.support.forking_app",
        "app",
        is_script=False,
        path=sys.path,
        dsn="",
        name="test",
        group="default",
        settings=settings_of(settings),
    )
    some = Children(start, settings, lambda *_: None)
    found = await some._child()
    yield found
    # No call uses it, so that the children do not know it any more: it would leave a socket open.
    await found.kill()
    await some.close()


@pytest.mark.slow
async def test_a_child_that_stands_still_is_killed(monkeypatch, child: Child):
    """
    It uses no processor time, not even in the thread that watches its worker. A child that only
    waits does.
    """
    monkeypatch.setattr(children, "_STILL_CHECK_SECONDS", 1.5)
    await wait_for_async(lambda: children._processor_seconds(child.process.pid), 10)
    used = children._processor_seconds(child.process.pid)
    await wait_for_async(lambda: children._processor_seconds(child.process.pid) > used, 10)
    os.kill(child.process.pid, signal.SIGSTOP)
    await wait_for_async(lambda: child.process.returncode == -signal.SIGKILL, 30)


async def test_a_child_whose_messages_ended_is_killed(child: Child):
    """
    It lives, and the worker reads the end of its messages: the wait for its death is short.
    """
    os.kill(child.process.pid, signal.SIGSTOP)
    assert "lost its connection" in await child.death()
    assert child.process.returncode == -signal.SIGKILL


async def test_an_event_loop_that_answers_no_more_is_noticed(monkeypatch):
    """
    Not before a number of checks, and not while a coroutine may block it.
    """

    class Executor:
        running = ()

        def coroutine_calls(self):
            return self.running

    check = _child._LoopCheck()
    executor = Executor()
    assert all(check.is_well() for _ in range(100))
    check.begin(executor)
    most = _child._SILENT_CHECKS
    assert [check.is_well() for _ in range(most + 1)] == [True] * most + [False]
    executor.running = ("a call",)
    assert all(check.is_well() for _ in range(100))
    executor.running = ()
    await wait_for_async(lambda: check._is_answered, 10)
    assert [check.is_well() for _ in range(most + 1)] == [True] * most + [False]

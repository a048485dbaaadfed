"""What a fork resets in the copy of a worker's process."""

import asyncio
import os
import signal
import socket
import time

import pytest

from forebay.db.session import open_connection
from forebay.forks import end_if_copy, keep_from_copies, on_signals, worker_runs
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_a_signal_to_a_copy_does_what_signals_do_by_default():
    """
    It ends the copy, also before the copy ran a line, and the worker's handler is not called.
    """
    received = []
    with worker_runs(), on_signals(received.append):
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(7)
            os.kill(pid, signal.SIGTERM)
            assert exit_code(pid) == -signal.SIGTERM
        await asyncio.sleep(0)
        assert not received
        os.kill(os.getpid(), signal.SIGTERM)
        await wait_for_async(lambda: received, 10)


async def test_a_copy_that_awaits_ends():
    """
    Nothing that waits in the loop of the worker runs in the copy.
    """
    with worker_runs():
        loop = asyncio.get_running_loop()
        here = os.getpid()
        loop.call_soon(lambda: os.getpid() == here or os._exit(8))
        pid = os.fork()
        if pid == 0:
            await asyncio.sleep(0)
            os._exit(7)
        assert exit_code(pid) == 0
    await asyncio.sleep(0)


@pytest.mark.parametrize(("raised", "code"), [(None, 0), (SystemExit(3), 3), (ValueError(), 1)])
async def test_the_exit_code_of_a_copy_that_comes_back(raised, code, capfd):
    with worker_runs():
        pid = os.fork()
        if pid == 0:
            try:
                if raised is not None:
                    raise raised
            finally:
                end_if_copy()
        assert exit_code(pid) == code
    assert ("ValueError" in capfd.readouterr().err) == (code == 1)
    end_if_copy()


async def test_a_copy_uses_no_descriptor_of_the_worker():
    """
    The other end sees neither what the copy sends nor that it closes its socket.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    keep_from_copies(ours, socket.socket.fileno)
    with ours, theirs, worker_runs():
        pid = os.fork()
        if pid == 0:
            try:
                ours.send(b"copy")
            except OSError:
                os._exit(5)
            os._exit(7)
        assert exit_code(pid) == 5
        with pytest.raises(BlockingIOError):
            theirs.recv(10)
        ours.send(b"worker")
        assert theirs.recv(10) == b"worker"


async def test_a_copy_holds_no_connection_that_is_being_made():
    """
    The server has not answered when the fork happens. When the worker gives up, the server sees
    that, though the copy lives. What the handler opened before stays open in the copy.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, worker_runs():
        address = f"postgresql://127.0.0.1:{server.getsockname()[1]}/none"
        ours, theirs = socket.socketpair()
        connecting = asyncio.create_task(
            open_connection(address, name="test", seconds=60, settings={}, pooler="detect")
        )
        accepted, _ = await asyncio.to_thread(server.accept)
        later, last = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.send(b"1")
            later.send(b"2")
            time.sleep(60)
            os._exit(7)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        accepted.settimeout(10)
        try:
            while await asyncio.to_thread(accepted.recv, 1000):
                pass
            assert theirs.recv(1) == b"1"
        finally:
            os.kill(pid, signal.SIGKILL)
            assert exit_code(pid) == -signal.SIGKILL
            for each in (ours, theirs, later, last, accepted):
                each.close()


async def test_other_processes_fork_as_ever():
    """
    Without a worker a fork changes nothing: a server that loads the application before it forks.
    """
    pid = os.fork()
    if pid == 0:
        end_if_copy()
        os._exit(7)
    assert exit_code(pid) == 7

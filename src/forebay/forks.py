"""What a fork of a process with a worker resets in its copy, and what the copy may never do.

A handler may fork: by ``multiprocessing``, or by ``os.fork()``. The *copy* has everything that the
worker has: sockets to the database, the event loop, its wake-up descriptor, its signal handlers.

Invariant "a copy is no worker": a signal to a copy is not a signal to the worker; a copy sends
nothing on a connection of the worker and closes none; it settles and releases no job; and it ends
where it would continue as the worker. A handler's copy that returns, raises or awaits ends there.

So in a copy the descriptors of the worker are ``/dev/null``, the event loop that ran is a loop
that ends the process, and signals have their default effects. The end is ``os._exit()``: nothing
that the worker registered for its exit runs. ``multiprocessing`` ends its processes in this way.

A crash of a copy leaves nothing to repair. Programs that C code forks are not copies: what
Python's ``os.fork()`` calls is called for them only if they ask for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What a signal does in a copy, by its number, for the handlers that ``on_signals`` installed.
_DEFAULTS: Final = {signal.SIGINT: signal.default_int_handler}


class _Process:
    """What is known of this process."""

    #: Workers, and child processes of workers, that run here.
    workers = 0
    #: Whether this is a copy of a process with a worker.
    is_copy = False


_this = _Process()
#: What holds a descriptor that no copy may use, with how to find its number.
_held: weakref.WeakKeyDictionary[Any, Callable[[Any], int]] = weakref.WeakKeyDictionary()
#: The open descriptors, with their inodes, before each connection that is being made.
_before_connecting: dict[object, set[tuple[int, int]]] = {}
#: The signals whose handlers wake an event loop.
_signals: set[int] = set()
#: What the thread that forks keeps from before the fork: its signal mask and its event loop.
_before = threading.local()


@contextlib.contextmanager
def worker_runs() -> Iterator[None]:
    """Hold the invariant for forks in this block."""
    was_copy, _this.is_copy = _this.is_copy, False  # A copy may run another worker.
    _this.workers += 1
    try:
        yield
    finally:
        _this.workers -= 1
        _this.is_copy = _this.is_copy or was_copy


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a process to end in order.

    SIGHUP tells that the terminal is closed. A process that ignores it, as under ``nohup``,
    continues.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@contextlib.contextmanager
def on_signals(callback: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``callback(signal)`` in the running event loop in this block, for each signal that asks
    to stop; not for copies.

    A SIGHUP that follows another signal is left out: of one terminal that is closed, the kernel
    and the shell each send one.
    """
    loop, numbers = asyncio.get_running_loop(), stop_signals()
    is_asked = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal is_asked
        if number is not signal.SIGHUP or not is_asked:
            is_asked = True
            callback(number)

    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    _signals.update(numbers)
    try:
        yield
    finally:
        _signals.difference_update(numbers)
        for number in numbers:
            loop.remove_signal_handler(number)


def keep_from_copies(holder: Any, descriptor: Callable[[Any], int]) -> None:
    """Let no copy use the descriptor of a socket or a connection, until the holder is collected.

    Args:
        holder: the socket or connection.
        descriptor: returns its number when called with the holder; may raise if it is closed.
    """
    _held[holder] = descriptor


@contextlib.contextmanager
def connects() -> Iterator[None]:
    """Let no copy use a connection that is being made in this block.

    A library shows its socket only when it has connected. Until then what counts is any stream
    socket that was opened since, and that another process is or may be at the other end of. Call
    ``keep_from_copies`` in the block.
    """
    _before_connecting[mark := object()] = _open_descriptors()
    try:
        yield
    finally:
        del _before_connecting[mark]


def _open_descriptors() -> set[tuple[int, int]]:
    found = set()
    for path in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # That of the list itself is closed now.
            found.add((int(path.name), os.fstat(int(path.name)).st_ino))
    return found


def _is_connection(descriptor: int) -> bool:
    """Whether it is a stream socket that leads or may lead out: not one end of a socket pair."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            if found.type != socket.SOCK_STREAM:
                return False
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            with contextlib.suppress(OSError):
                return bool(found.getpeername())
            return True  # It is not connected yet.
    except OSError:
        return False


def end_if_copy() -> None:
    """End the process if it is a copy; call it where the worker continues after a handler.

    The exit code is 0 after a return, that of ``sys.exit()``, and 1 after another exception, whose
    traceback goes to standard error.
    """
    if _this.is_copy:
        _end(sys.exc_info()[1])


def _end(error: BaseException | None = None) -> NoReturn:
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            text = "".join(traceback.format_exception(error))
            # Not by a log: another thread of the worker may have held its locks.
            os.write(2, f"in a process that a handler forked: {text}".encode(errors="replace"))
    finally:
        os._exit(code & 0xFF)


class _EndedLoop:
    """Stands for the selector of an event loop in a copy: it does not continue.

    The real one is shared with the worker: what a copy changed in it, it would change there.
    """

    def __getattr__(self, name: str) -> Any:
        _end()


def _before_fork() -> None:
    # A signal for the copy must not find the handlers of the worker there.
    _before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _before.loop = asyncio._get_running_loop()  # noqa: SLF001 - the documented one raises


def _in_worker() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before.mask)


def _in_copy() -> None:
    try:
        if _this.workers:
            _this.workers, _this.is_copy = 0, True
            _reset_signals()
            _keep_descriptors()
            if _before.loop is not None:
                _end_loop(_before.loop)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, _before.mask)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _signals:
        signal.signal(number, _DEFAULTS.get(signal.Signals(number), signal.SIG_DFL))
    _signals.clear()


def _keep_descriptors() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for holder, descriptor in list(_held.items()):
        # It is open in the worker, so this closes nothing there: no server notices.
        with contextlib.suppress(Exception):
            os.dup2(null, descriptor(holder), inheritable=False)
    for before in _before_connecting.values():
        for number, _ in _open_descriptors() - before:
            if _is_connection(number):
                os.dup2(null, number, inheritable=False)
    _held.clear()
    _before_connecting.clear()
    os.close(null)


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Make the event loop that the fork interrupted end the process when its turn comes."""
    asyncio._set_running_loop(None)  # noqa: SLF001 - Python does this itself from 3.12 on
    if (ready := getattr(loop, "_ready", None)) is not None:
        ready.clear()  # Other handlers and parts of the worker would run before the end.
    loop.call_soon(_end)
    if hasattr(loop, "_selector"):
        loop._selector = _EndedLoop()  # noqa: SLF001 - nothing public stops a loop at once


os.register_at_fork(before=_before_fork, after_in_parent=_in_worker, after_in_child=_in_copy)

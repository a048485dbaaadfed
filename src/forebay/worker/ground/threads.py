"""Threads for plain functions. A call can be interrupted and, if that fails, abandoned.

A ``ThreadPoolExecutor`` does not fit: its threads keep the interpreter from exiting, and it does
not show which thread runs which call. An interruption raises an exception in the thread at its next
bytecode (``PyThreadState_SetAsyncExc``, Python/C API manual, "Thread State and the Global
Interpreter Lock"). A thread inside C code does not see the exception and is abandoned at the hard
timeout.
"""

from __future__ import annotations

import asyncio
import ctypes
import queue
import threading
from typing import TYPE_CHECKING, Any

from forebay.errors import HandlerError
from forebay.forks import end_if_copy
from forebay.in_threads import for_future

if TYPE_CHECKING:
    from collections.abc import Callable


class NoThreadError(RuntimeError):
    """The system refused another thread: memory or a process limit is exhausted."""


class _Call:
    __slots__ = ("abandoned", "function", "future", "interruption", "loop", "replaced", "thread_id")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.thread_id: int | None = None
        self.interruption: type[HandlerError] | None = None
        self.abandoned = False
        self.replaced = False


class Threads:
    """A few daemon threads, started when needed.

    Every call must have a thread at once: a call that waited for a thread would occupy a slot
    without running. So submitting a call, and not the wake-up of its thread, removes an idle thread
    from the count.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        #: Threads without a call, less the calls without a thread.
        self._idle = 0
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.abandoned = 0

    def resize(self, most: int) -> None:
        """Allow this many threads; idle ones beyond stay."""
        with self._lock:
            self._most = most

    def submit(self, function: Callable[[], Any]) -> _Call:
        """Run a function in a thread; ``call.future`` gets its result, in this loop.

        Raises:
            NoThreadError: the system refused another thread; the function did not run.
        """
        call = _Call(function, asyncio.get_running_loop())
        with self._lock:
            if self._idle <= 0 and self._count < self._most:
                try:
                    threading.Thread(target=self._work, name="forebay-handler", daemon=True).start()
                except (RuntimeError, MemoryError) as error:
                    raise NoThreadError(str(error)) from error
                self._count += 1
            else:
                self._idle -= 1
        self._calls.put(call)
        return call

    def interrupt(self, call: _Call, error: type[HandlerError]) -> None:
        """Raise an exception in the thread that runs the call, now or when it starts."""
        with self._lock:
            call.interruption = error
            if call.thread_id is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(call.thread_id), ctypes.py_object(error)
                )

    def abandon(self, call: _Call) -> None:
        """Stop waiting for a call.

        Its thread ends with the function, and a new thread may replace it.
        """
        with self._lock:
            if call.abandoned:
                return
            call.abandoned = True
            if call.thread_id is not None:
                call.replaced = True
                self._count -= 1
                self.abandoned += 1

    def close(self) -> None:
        """Let idle threads end."""
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            result: Any = None
            error: BaseException | None = None
            try:
                with self._lock:
                    call.thread_id = threading.get_ident()
                    if call.interruption is not None:
                        raise call.interruption
                    is_wanted = not call.abandoned
                if is_wanted:
                    result = call.function()
            except BaseException as raised:  # the thread must survive any exception of a handler
                error = raised
                end_if_copy()
            end_if_copy()
            while True:
                try:
                    with self._lock:
                        # From here on no interruption is sent; one that was sent and not yet raised
                        # is withdrawn.
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(threading.get_ident()), None
                        )
                        call.thread_id = None
                        if call.replaced:
                            return
                        self._idle += 1
                    break
                except HandlerError as raised:
                    error = error or raised
            try:
                call.loop.call_soon_threadsafe(_deliver, call.future, result, error)
            except RuntimeError:
                return  # The loop is closed.
            del call, result, error  # An idle thread must not keep what the handler had in memory.


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(for_future(error))

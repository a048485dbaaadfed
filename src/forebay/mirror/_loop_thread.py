"""An event loop in a separate thread, in which a mirror calls its source and its target.

So the connections of both belong to one loop, whether a worker, a web process with threads or
another event loop calls. A source or target that blocks or hangs delays neither the heartbeats of a
worker nor other requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay.errors import TargetUnavailable
from forebay.in_threads import for_future

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

#: With this many threads whose call did not return, no more threads are started.
HANGING_MAX: Final = 32

#: How long each step of the loop's end may take.
_END_SECONDS: Final = 5.0


class LoopThread:
    """A loop in a daemon thread, started when first needed, and again in a forked process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        forked = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (forget := forked()) and forget())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def close(self) -> None:
        """End the loop, its thread, and what runs there; a later call starts them again."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(_END_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_END_SECONDS)
            if not thread.is_alive():
                loop.close()

    def _forget(self) -> None:
        # A forked process does not have the thread, and a thread that it does not have may hold the
        # lock.
        self._lock = threading.Lock()
        self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Calls:
    """Calls plain functions in threads and coroutine functions on the loop, each with a
    deadline.
    """

    def __init__(self) -> None:
        self._hanging = 0

    async def call(self, function: Callable[..., Any], *args: Any, seconds: float) -> Any:
        """Return what a function returns.

        A plain function that does not return keeps its thread; when too many do not, no more are
        called.

        Raises:
            TimeoutError: the function did not return in time.
            TargetUnavailable: too many calls hang.
            Exception: what the function raises.
        """
        # Not wait_for(): when the loop ends its task would be cancelled twice, the second time in
        # the middle of what a driver does after the first.
        if inspect.iscoroutinefunction(function):
            async with asyncio.timeout(seconds):
                return await function(*args)
        if self._hanging >= HANGING_MAX:
            raise TargetUnavailable(f"{self._hanging} calls have not returned")
        self._hanging += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._run, args=(function, args, future), daemon=True).start()
        async with asyncio.timeout(seconds):
            found = await future
        async with asyncio.timeout(seconds):
            return await found if inspect.isawaitable(found) else found

    def _run(
        self, function: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any]
    ) -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = function(*args)
        except BaseException as error:  # for the caller, in another thread
            failure = error

        def deliver() -> None:
            self._hanging -= 1
            if future.done():
                return
            if failure is None:
                future.set_result(result)
            elif isinstance(failure, Exception):
                future.set_exception(for_future(failure))
            else:
                future.set_exception(RuntimeError(f"raised {type(failure).__name__}"))

        try:
            future.get_loop().call_soon_threadsafe(deliver)
        except RuntimeError:
            self._hanging -= 1  # The loop is closed: no caller waits any more.

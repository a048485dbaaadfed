"""Counters of direct writes, written to the database some seconds later: no settlement can carry
them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from forebay.ops import mirrors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forebay.mirror._loop_thread import LoopThread
    from forebay.ops.operation import Operation

#: The time from the first count to its record, so that one record holds many counts; it is longer
#: after each failure.
_EVERY_SECONDS: Final = 5.0
_EVERY_SECONDS_MAX: Final = 60.0

#: Of a direct write that is slow, recorded sooner, because backlogs wait for it.
SLOW: Final = "direct.slow"
_SLOW_SECONDS: Final = 1.0

#: How long the end of the process, or of the mirror, waits for the last record.
_LAST_SECONDS: Final = 1.0


class DirectRecords:
    """Collects counts from any thread, and writes them in the loop thread.

    A killed process loses its last counts.

    Args:
        name: of the mirror.
        loop_thread: the thread that writes.
        keep: runs an operation and returns whether it succeeded; never raises.
    """

    def __init__(
        self,
        name: str,
        loop_thread: LoopThread,
        keep: Callable[[Operation[Any]], Awaitable[bool]],
    ) -> None:
        self._name = name
        self._loop_thread = loop_thread
        self._keep = keep
        self._lock = threading.Lock()
        self._begin()
        flushed = weakref.WeakMethod(self.flush)
        atexit.register(lambda: (flush := flushed()) and flush())
        forked = weakref.WeakMethod(self._begin)
        os.register_at_fork(after_in_child=lambda: (begin := forked()) and begin())

    def _begin(self) -> None:
        # In a forked process, the collected counts and the pending write belong to the parent.
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._breaker: dict[str, Any] | None = None
        self._is_reported_open = False
        self._is_coming = False

    def add(self, outcome: str) -> None:
        """Count an event that belongs to no job."""
        with self._lock:
            self._counts[outcome] += 1
            is_first, self._is_coming = not self._is_coming, True
        if is_first:
            coming = self._later()
            try:
                self._loop_thread.submit(coming)
            except RuntimeError:  # no thread can be started: a direct write must not fail for it
                coming.close()
                self._is_coming = False

    def breaker(self, open_seconds: float, why: str | None = None) -> None:
        """Record that the breaker of direct writes is open for this long, or closed."""
        with self._lock:
            if open_seconds > 0 or self._is_reported_open:
                self._is_reported_open = open_seconds > 0
                self._breaker = {
                    "place": "direct",
                    "open_seconds": open_seconds or None,
                    "why": why,
                }

    def flush(self) -> None:
        """Write pending counts, if that takes only a moment."""
        if self._counts or self._breaker:
            with contextlib.suppress(Exception):
                self._loop_thread.submit(self._write()).result(_LAST_SECONDS)

    async def _later(self) -> None:
        pause = _EVERY_SECONDS
        try:
            while True:
                await self._pause(pause)
                if await self._write():
                    return
                pause = min(2 * pause, _EVERY_SECONDS_MAX)
        finally:
            with self._lock:
                self._is_coming = False

    async def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _SLOW_SECONDS))
            if SLOW in self._counts and seconds <= _EVERY_SECONDS:
                return

    async def _write(self) -> bool:
        with self._lock:
            counts, self._counts = self._counts, Counter()
            breaker, self._breaker = self._breaker, None
        if not counts and breaker is None:
            return True
        rows = [[outcome, None, None, count] for outcome, count in counts.items()]
        counters: dict[str, Any] = {"mirror": self._name, "counts": rows}
        if breaker is not None:
            counters["breaker"] = breaker
        is_kept = False
        try:
            is_kept = await self._keep(mirrors.record_direct(counters, _who()))
        finally:
            if not is_kept:
                self._put_back(counts, breaker)
        return is_kept

    def _put_back(self, counts: Counter[str], breaker: dict[str, Any] | None) -> None:
        with self._lock:
            self._counts.update(counts)
            self._breaker = self._breaker or breaker


def _who() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"

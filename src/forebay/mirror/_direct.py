"""Direct writes: they try to bring the target up to date about one item right after the commit.

They are an optimisation only: the item's job repairs whatever a direct write fails to do. A direct
write never raises, never takes longer than its limit, and is not tried for some seconds after
several failures in a row.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Final

from forebay.mirror._breaker import SharedBreaker
from forebay.mirror._direct_records import SLOW
from forebay.mirror._model import (
    Document,
    checked_entries,
    checked_errors,
    checked_id,
    with_digest,
)
from forebay.mirror._reconcile import UNAVAILABLE, problem_of
from forebay.mirror.targets import DualTarget
from forebay.model.text import logger

if TYPE_CHECKING:
    from concurrent.futures import Future
    from uuid import UUID

    from forebay.mirror._direct_records import DirectRecords
    from forebay.mirror._loop_thread import Calls, LoopThread
    from forebay.mirror._model import Gone, Id, Source, Target
    from forebay.mirror._reconcile import Counts

log = logger("forebay.mirror")

#: Concurrent direct writes in one process; when a target does not answer, more writes would only
#: wait.
DIRECT_MAX: Final = 16

#: A direct write is slow if it takes more than this part of the time that it has.
_SLOW: Final = 0.25


class DirectWrites:
    """Writes single items for the caller, within a time limit.

    Args:
        name: of the mirror.
        source: the first store.
        target: the second store.
        loop_thread: the thread in which both are called.
        calls: runs the methods of both.
        counts: counters of this process.
        records: what is kept in the database.
        hashes: add a hash to each document.
        seconds: the time limit of a direct write.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        target: Target,
        *,
        loop_thread: LoopThread,
        calls: Calls,
        counts: Counts,
        records: DirectRecords,
        hashes: bool,
        seconds: float,
    ) -> None:
        self._name = name
        self._source = source
        self._target = target
        self._loop_thread = loop_thread
        self._calls = calls
        self._counts = counts
        self._direct_records = records
        self._hashes = hashes
        self._seconds = seconds
        self._breaker = SharedBreaker(failures=5, seconds_max=10.0)
        self._places = threading.Semaphore(DIRECT_MAX)

    def write(self, item: Id | UUID) -> bool:
        """Write an item; return whether the target accepted it."""
        begun = time.monotonic()
        future = None
        try:
            future = self._begin(item)
            return future is not None and future.result(self._seconds)
        except Exception as error:
            if future is not None:
                future.cancel()
            return self._failed(error)
        finally:
            self._took(time.monotonic() - begun)

    async def awrite(self, item: Id | UUID) -> bool:
        """Do as ``write``, without blocking the event loop."""
        begun = time.monotonic()
        try:
            future = self._begin(item)
            if future is None:
                return False
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except Exception as error:  # let a cancellation of the caller pass
            return self._failed(error)
        finally:
            self._took(time.monotonic() - begun)

    def _took(self, seconds: float) -> None:
        """Note how long the caller waited."""
        if seconds > _SLOW * self._seconds:
            self._direct_records.add(SLOW)

    def _begin(self, item: Id | UUID) -> Future[bool] | None:
        """Begin a direct write; None when none may begin now."""
        if not self._places.acquire(blocking=False):
            self._count("direct.skipped")
            self._direct_records.add(SLOW)
            return None
        future = None
        try:
            if self._breaker.allows():
                until = time.monotonic() + self._seconds
                future = self._loop_thread.submit(self._write(item, until))
                future.add_done_callback(lambda _: self._places.release())
            else:
                self._count("direct.skipped")
        finally:
            if future is None:
                self._places.release()
        return future

    async def _write(self, item: Id | UUID, until: float) -> bool:
        name = checked_id(item)
        answer = await self._calls.call(self._source.read, [name], seconds=_left(until))
        entry: Document | Gone = checked_entries([name], answer)[name]
        errors: object
        # A process that was paused in between must not send an outdated document: it then has no
        # time left.
        target = self._target.direct if isinstance(self._target, DualTarget) else self._target
        if isinstance(entry, Document):
            document = with_digest(entry) if self._hashes else entry
            errors = await self._calls.call(target.write, [document], seconds=_left(until))
        else:
            errors = await self._calls.call(target.delete, [entry], seconds=_left(until))
        self._breaker.succeeded()
        self._direct_records.breaker(0.0)
        for error in checked_errors(errors).values():
            raise error
        self._count("direct.accepted")
        return True

    def _count(self, outcome: str) -> None:
        self._counts.add(outcome)
        self._direct_records.add(outcome)

    def _failed(self, error: Exception) -> bool:
        self._count("direct.timeout" if isinstance(error, TimeoutError) else "direct.failed")
        if isinstance(error, UNAVAILABLE):
            self._breaker.failed()
            self._direct_records.breaker(self._breaker.wait_seconds, problem_of(error))
        log.info("mirror %s: a direct write failed: %s", self._name, problem_of(error))
        return False


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("no time left")
    return left

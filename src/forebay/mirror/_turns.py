"""The turns of a backlog, with rests between them for others, and its share of the time, by how
long direct writes and the statements of the worker take.

Invariants "a backlog leaves room" and "a backlog makes progress": docs/design/reconcile.md.
Shown by: tests/mirror/test_turns.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

#: How long one call should take: short, so that what waits beside it waits a moment only.
_CALL_SECONDS: Final = 0.1

#: The number of items of the first call, and of the smallest.
_FIRST: Final = 250
_LEAST: Final = 25

#: The time between two looks, and the time without one after which nothing is known.
_LOOK_SECONDS: Final = 1.0
_FORGET_SECONDS: Final = 10.0

#: The fraction of slow direct writes that is noise.
_FEW: Final = 0.1

#: How much the share grows with each look.
_STEP: Final = 0.05

#: A look is slow if it took this much longer than the quickest of some minutes; it is judged by the
#: quickest of the last ones.
_DELAY_SECONDS: Final = 0.05
_LAST: Final = 3
_BASE_SECONDS: Final = 300.0


class NoTurn(Exception):  # noqa: N818 - not an error: others work
    """The turn did not come in time."""


class Turns:
    """The share of the time in which a backlog is worked on, and its turns.

    The share follows marks, by the rule of DCTCP (RFC 8257): it decreases in proportion to the
    fraction of slow direct writes, and increases by steps. A slow answer to the look itself, judged
    by its delay above the least one as in LEDBAT (RFC 6817), is a mark too. The share is
    never below the least.

    A turn is short, and a rest follows that is in proportion to the time it took.

    Args:
        least: the least share; 1 for turns of any size, side by side, without a rest.
        look: returns the fraction of the direct writes of the last seconds that were slow; None
            without direct writes.
        clock: a monotonic clock in seconds.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        least: float,
        look: Callable[[], Awaitable[float | None]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._least = least
        self._look = look
        self._clock = clock
        self._sleep = sleep
        self._size = _FIRST
        #: When the last turn ended, and what it took.
        self._ended_at, self._took = 0.0, 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self._delays = _Delays()
        self.restart()

    def restart(self) -> None:
        """Begin with the least share, since nothing is known of the stores any more."""
        self._share = self._least
        self._slow = 0.0
        self._size = min(self._size, _FIRST)

    async def share(self) -> float:
        """Return the share, after a look if one is due."""
        now = self._clock()
        if self._least < 1 and now - self._looked_at >= _LOOK_SECONDS:
            if now - self._looked_at >= _FORGET_SECONDS:
                self.restart()
            self._looked_at = now
            slow = await self._look()
            self._saw(slow, self._clock() - now)
        return self._share

    def _saw(self, slow: float | None, took: float) -> None:
        is_late = self._delays.add(took, self._clock())
        self._slow = (self._slow + (1.0 if is_late else slow or 0.0)) / 2
        if self._slow > _FEW:
            self._share = max(self._least, self._share * (1 - self._slow / 2))
        else:
            self._share = 1.0 if slow is None else min(1.0, self._share + _STEP)

    @asynccontextmanager
    async def turn(self, count: int, seconds: float) -> AsyncGenerator[int]:
        """Wait for the turn, and give the number of items that it may have, up to a count.

        Raises:
            NoTurn: it did not come within these seconds.
        """
        if self._least >= 1:
            yield count
            return
        lock = self._lock_of_loop()
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError:
            raise NoTurn from None
        try:
            rest = self._took * (1 / await self.share() - 1) - (self._clock() - self._ended_at)
            if rest > seconds:
                raise NoTurn
            if rest > 0:
                await self._sleep(rest)
            size = min(count, self._size)
            begun = self._clock()
            try:
                yield size
            finally:
                self._ended_at = self._clock()
                self._took = self._ended_at - begun
                self._adapt(size, self._took)
        finally:
            lock.release()

    def _adapt(self, size: int, took: float) -> None:
        """Choose the size of the next turn from the time of one."""
        if took > _CALL_SECONDS:
            self._size = max(_LEAST, min(self._size, int(size * _CALL_SECONDS / took)))
        elif size == self._size and took < _CALL_SECONDS / 2:
            self._size *= 2

    def _lock_of_loop(self) -> asyncio.Lock:
        # After a fork, or the end of the mirror, its calls run on another loop.
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


class _Delays:
    """How long looks take beyond the quickest."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_LAST)
        #: The quickest of this period, and of the one before it.
        self._base, self._base_before = float("inf"), float("inf")
        self._since = float("-inf")

    def add(self, took: float, now: float) -> bool:
        """Whether the last looks were slow, the one that took this time included."""
        if now - self._since >= _BASE_SECONDS:
            self._base, self._base_before, self._since = float("inf"), self._base, now
        self._base = min(self._base, took)
        self._last.append(took)
        return min(self._last) > min(self._base, self._base_before) + _DELAY_SECONDS


async def _unknown() -> None:
    """Look at nothing."""


#: For reads.
UNLIMITED: Final = Turns(1, _unknown)

"""The share of the time in which jobs write to a target, or work at all, so that other work
continues beside a backlog.

Invariant "a backlog leaves room": docs/design/reconcile.md.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

#: How long one call should take: short, so that what waits beside it waits a moment only.
_CALL_SECONDS: Final = 0.1

#: The number of items of the first call, and of the smallest.
_FIRST: Final = 250
_LEAST: Final = 25


class NoTurn(Exception):  # noqa: N818 - not an error: others write
    """The turn did not come in time."""


class WriteShare:
    """Calls that write, or whole passes, take turns in a process, are short, and are followed by
    a rest in proportion to the time they took.

    One that takes long, because the target or the machine is busy, makes the next one smaller and
    the rest longer.

    Args:
        share: their share of the time; 1 for any size, side by side, without a rest.
        clock: a monotonic clock in seconds.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        share: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._share = share
        self._clock = clock
        self._sleep = sleep
        self._size = _FIRST
        self._rested_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    @property
    def is_limited(self) -> bool:
        """Whether there are turns at all."""
        return self._share < 1

    @asynccontextmanager
    async def turn(self, count: int, seconds: float) -> AsyncGenerator[int]:
        """Wait for the turn, and give the number of items that may be written in it, up to a count.

        Raises:
            NoTurn: it did not come within these seconds.
        """
        if not self.is_limited:
            yield count
            return
        lock = self._lock_of_loop()
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError:
            raise NoTurn from None
        try:
            rest = self._rested_at - self._clock()
            if rest > seconds:
                raise NoTurn
            if rest > 0:
                await self._sleep(rest)
            size = min(count, self._size)
            begun = self._clock()
            try:
                yield size
            finally:
                now = self._clock()
                self._rested_at = now + (now - begun) * (1 / self._share - 1)
                self._adapt(size, now - begun)
        finally:
            lock.release()

    def _adapt(self, size: int, took: float) -> None:
        """Choose the size of the next call from the time of one."""
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


#: For reads.
UNLIMITED: Final = WriteShare(1)

"""The times in which a worker cannot use its database, and the pauses between its attempts.

The database may be unreachable, or it may refuse: it starts up, has no free connection, or is a
standby. Both are an outage.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Final

from forebay.model.text import logger
from forebay.policy.backoff import RECONNECT_SECONDS_MAX, reconnect_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

log = logger("forebay.worker")

#: A part that another one woke waits up to this long, so that the connections of many workers do
#: not come together.
_SPREAD_SECONDS: Final = 0.1

#: An outage that begins this soon after an equal one is not reported again.
_QUIET_SECONDS: Final = 60.0


class Outage:
    """What the parts of one worker know about the database together.

    Owns the set of parts that cannot use the database. It guarantees that the first of them that
    reaches the database again wakes the others, that no part tries more often than its pauses allow
    unless it is woken so, and that a state of the database is reported once and not at each
    attempt.

    Belongs to the worker's loop. Leaves nothing behind.

    Args:
        clock: returns monotonic seconds.
        draw: returns a random number, uniform in [0, 1).
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._draw = draw
        self._without: set[str] = set()
        self._since = 0.0
        self._reported: dict[str, float] = {}
        self._wake = asyncio.Event()
        #: The longest pause between two attempts, in seconds.
        self.pause_seconds_max = RECONNECT_SECONDS_MAX
        #: Called when the database answers again.
        self.on_end: Callable[[], None] = lambda: None

    @property
    def is_on(self) -> bool:
        """Whether a part cannot use the database."""
        return bool(self._without)

    def failed(self, part: str, error: Exception) -> None:
        """Record that a part of the worker cannot use the database."""
        now = self._clock()
        if not self._without:
            self._since = now
            self._reported = {
                text: at for text, at in self._reported.items() if now - at < _QUIET_SECONDS
            }
        self._without.add(part)
        if str(error) not in self._reported:
            self._reported[str(error)] = now
            log.warning("%s; the worker tries again until it works", error)

    def answered(self, part: str) -> None:
        """Record that a part used the database, and if it could not before, wake all parts that
        wait.
        """
        # Only then: otherwise a part that gets no connection would be woken at every call of
        # another one.
        if part not in self._without:
            return
        self._without.clear()
        log.info("the database is back after %.1f s", self._clock() - self._since)
        self.wake()
        self.on_end()

    def wake(self) -> None:
        """End all pauses."""
        self._wake.set()
        self._wake = asyncio.Event()

    async def pause(self, failures: int) -> None:
        """Wait before the next attempt: until another part reached the database, at most a second
        or so.

        Args:
            failures: failed attempts in a row, from 1.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(
                reconnect_seconds(failures, self._draw(), cap_seconds=self.pause_seconds_max)
            ):
                await self._wake.wait()
                await asyncio.sleep(_SPREAD_SECONDS * self._draw())

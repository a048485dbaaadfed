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

#: An outage that begins this soon after one that was logged is logged only if it lasts longer than
#: the second time.
_QUIET_SECONDS: Final = 60.0
_BRIEF_SECONDS: Final = 2.0


class Outage:
    """What the parts of one worker know about the database together.

    Owns the set of parts that cannot use the database. It guarantees that the first of them that
    reaches the database again wakes the others, that no part tries more often than its pauses allow
    unless it is woken so, and that an outage is two lines of the log, one when it begins and one
    when it ends, however many parts notice it in whatever words.

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
        self._logged_at: float | None = None
        self._is_logged = False
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
            self._since, self._is_logged = now, False
        self._without.add(part)
        is_news = self._logged_at is None or now - self._logged_at >= _QUIET_SECONDS
        if not self._is_logged and (is_news or now - self._since >= _BRIEF_SECONDS):
            self._is_logged, self._logged_at = True, now
            log.warning("%s; the worker tries again until it works", error)

    def answered(self, part: str) -> None:
        """Record that a part used the database, and if it could not before, wake all parts that
        wait.
        """
        # A part is woken only then: otherwise one that gets no connection would be woken at every
        # call of another one.
        if part not in self._without:
            return
        self._without.clear()
        if self._is_logged:
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

"""The events that start, wake and end the claim loop of a worker."""

from __future__ import annotations

import asyncio
import contextlib

from forebay.worker.ground.outage import Outage


class Signals:
    """The events that the parts of a worker share.

    Owns the decision to stop, which is never reversed. It guarantees that a part that is about to
    sleep misses neither a wake-up nor the request to stop.
    """

    def __init__(self) -> None:
        #: Set when the worker has its lease and looks for work.
        self.started = asyncio.Event()
        #: Set when there may be work: a slot is free, a job may be ready, a lease is lost.
        self.wake = asyncio.Event()
        #: Set when the worker must stop.
        self.stop_event = asyncio.Event()
        #: Whether claiming has ended.
        self.is_stopping = False
        #: Whether the database answered a poll.
        self.has_polled = False
        #: Polls and claims that failed since the last one that succeeded.
        self.failed_claims = 0
        #: Whether the database can be used.
        self.outage = Outage()
        #: Whether running jobs get no grace time.
        self.at_once = False

    def stop(self, *, at_once: bool = False) -> None:
        """Make the worker stop."""
        self.at_once = self.at_once or at_once
        self.is_stopping = True
        self.stop_event.set()
        self.wake.set()
        self.outage.wake()

    async def sleep(self, seconds: float | None) -> None:
        """Wait for a wake-up, at most this long; None means without limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()

    async def pause(self, seconds: float) -> None:
        """Wait this long, or until the worker must stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stop_event.wait()

    async def pause_in_outage(self, failures: int) -> None:
        """Wait before the next attempt to use the database, or until the worker must stop."""
        if not self.is_stopping:
            await self.outage.pause(failures)

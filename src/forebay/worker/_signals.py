"""What starts, wakes and ends the claim loop of a worker."""

from __future__ import annotations

import asyncio
import contextlib


class Signals:
    """The events that the parts of a worker share.

    Owns whether the worker stops, which is never taken back. It promises that neither a wake-up nor the order to stop is missed by
    a part that was about to sleep.
    """

    def __init__(self) -> None:
        #: Set when the worker has its lease and looks for work.
        self.started = asyncio.Event()
        #: Set when there may be something to do: a slot is free, a job may be ready, a lease is lost.
        self.wake = asyncio.Event()
        #: Set when the worker was told to stop.
        self.stop_event = asyncio.Event()
        #: Whether nothing more is claimed.
        self.is_stopping = False
        #: Whether running jobs get no grace time.
        self.at_once = False

    def stop(self, *, at_once: bool = False) -> None:
        """Tell the worker to stop."""
        self.at_once = self.at_once or at_once
        self.is_stopping = True
        self.stop_event.set()
        self.wake.set()

    async def sleep(self, seconds: float | None) -> None:
        """Wait for a wake-up; None for as long as it takes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()

    async def pause(self, seconds: float) -> None:
        """Wait, unless the worker is told to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stop_event.wait()

"""Payloads of events, read for many deliveries at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from forebay.ops.deliveries import PublishedEvent

Key: TypeAlias = "tuple[int, datetime]"
Read: TypeAlias = "Callable[[Sequence[Key]], Awaitable[dict[Key, PublishedEvent]]]"

#: The most events of one call. Payloads may be large.
_EVENTS_MAX: Final = 200

#: How many bytes of payloads are kept for the deliveries of the same events to other endpoints.
_BYTES_MAX: Final = 32_000_000

#: About what an event takes beside its payload.
_EVENT_BYTES: Final = 500


class Payloads:
    """Reads the payloads of events.

    Owns a bounded cache: an event usually has deliveries to several endpoints, at about the same
    time. While a call runs, the events that others ask for are collected for the next one.

    Args:
        read: reads some events.
        bytes_max: of the cache.
    """

    def __init__(self, read: Read, *, bytes_max: int = _BYTES_MAX) -> None:
        self._read = read
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Key, PublishedEvent] = OrderedDict()
        self._bytes = 0
        self._wanted: dict[Key, asyncio.Future[PublishedEvent | None]] = {}
        self._reading: asyncio.Task[None] | None = None

    def get(self, key: Key) -> PublishedEvent | asyncio.Future[PublishedEvent | None]:
        """Return an event if it is kept, else a future of it; the future's None: the event was
        deleted.

        The future is shared: do not cancel it. It raises what the call raised.
        """
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        future = self._wanted.get(key)
        if future is None:
            future = self._wanted[key] = asyncio.get_running_loop().create_future()
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_all())
        return future

    async def close(self) -> None:
        """End the call under way, and those who wait for it."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._give_up()  # A task that was cancelled before its first step ran none of its code.

    async def _read_all(self) -> None:
        batch: dict[Key, asyncio.Future[PublishedEvent | None]] = {}
        try:
            while self._wanted:
                batch = {key: self._wanted[key] for key in list(self._wanted)[:_EVENTS_MAX]}
                try:
                    found = await self._read(list(batch))
                except Exception as error:
                    self._settle(batch, error=error)
                    continue
                for key, event in found.items():
                    self._keep(key, event)
                self._settle(batch, found)
        finally:
            self._reading = None
            self._give_up()

    def _give_up(self) -> None:
        for future in self._wanted.values():
            future.cancel()
        self._wanted.clear()

    def _settle(
        self,
        batch: dict[Key, asyncio.Future[PublishedEvent | None]],
        found: dict[Key, PublishedEvent] | None = None,
        *,
        error: Exception | None = None,
    ) -> None:
        for key, future in batch.items():
            del self._wanted[key]
            if future.done():
                continue
            if error is None:
                future.set_result((found or {}).get(key))
            else:
                future.set_exception(error)
                future.exception()  # The callers may have left.

    def _keep(self, key: Key, event: PublishedEvent) -> None:
        size = len(event.payload) + _EVENT_BYTES
        if key in self._kept or size > self._bytes_max:
            return
        self._kept[key] = event
        self._bytes += size
        while self._bytes > self._bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped.payload) + _EVENT_BYTES

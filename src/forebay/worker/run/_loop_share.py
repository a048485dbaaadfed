"""A share of the event loop's time for one kind of work."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: By how much work may exceed its share. Timers are not more precise.
_AHEAD_SECONDS = 0.001


class LoopShare:
    """Lets work use a share of the event loop's time: after each piece it has to pause in
    proportion.

    Args:
        share: above 0, at most 1.
        resume: called when the pause is over.
    """

    def __init__(self, share: float, resume: Callable[[], None]) -> None:
        self._share = share
        self._resume = resume
        #: Until this time (monotonic clock) the work has used its share.
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Count the time of a block."""
        began = time.monotonic()
        yield
        self._until = max(self._until, began) + (time.monotonic() - began) / self._share

    def must_pause(self) -> bool:
        """Return whether the work has used its share.

        ``resume`` is called when it has not any more.
        """
        pause = self._until - time.monotonic()
        if pause < _AHEAD_SECONDS:
            return False
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._on_timer)
        return True

    def close(self) -> None:
        """Call ``resume`` no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self._resume()

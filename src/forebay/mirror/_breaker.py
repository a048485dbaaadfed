"""A circuit breaker that several threads share."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from forebay.policy.breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Callable


class SharedBreaker(Breaker):
    """A circuit breaker that is safe to use from any thread; see ``Breaker``.

    Args:
        failures: this many in a row open it.
        seconds: how long it stays open the first time; twice as long each time after.
        seconds_max: the longest.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        seconds: float = 1.0,
        seconds_max: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock, failures=failures, seconds=seconds, seconds_max=seconds_max)
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Whether a call may be made now; a trial call must report its result."""
        with self._lock:
            return super().allows()

    def succeeded(self) -> None:
        """Report that a call succeeded."""
        with self._lock:
            super().succeeded()

    def failed(self) -> None:
        """Report that a call failed."""
        with self._lock:
            super().failed()

"""A circuit breaker: after some failures in a row nothing is tried for a while, then one call tries for all."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Breaker:
    """Says whether a call may be made; may be asked from any thread.

    Args:
        failures: so many in a row open it.
        seconds: how long it stays open the first time; each time after, twice as long.
        seconds_max: the longest.
        clock: seconds that only grow.

    >>> now = [0.0]
    >>> breaker = Breaker(failures=2, seconds=1, clock=lambda: now[0])
    >>> breaker.failed(); breaker.failed()
    >>> breaker.allows(), breaker.wait_seconds
    (False, 1.0)
    >>> now[0] = 1.0
    >>> breaker.allows(), breaker.allows()
    (True, False)
    >>> breaker.failed(); breaker.failed()  # the one that tried, and one that began long ago
    >>> breaker.wait_seconds
    2.0
    >>> breaker.succeeded()
    >>> breaker.allows()
    True
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        seconds: float = 1.0,
        seconds_max: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = failures
        self._first, self._longest = seconds, seconds_max
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._seconds = seconds
        self._open_until: float | None = None
        #: Whether a call is on its way that tries for all.
        self._tries = False

    @property
    def wait_seconds(self) -> float:
        """How long until the next call may try, at least."""
        until = self._open_until
        return 0.0 if until is None else max(0.0, until - self._clock())

    def allows(self) -> bool:
        """Whether a call may be made now; one that tries for all is to tell how it went."""
        with self._lock:
            if self._open_until is None:
                return True
            now = self._clock()
            if now < self._open_until:
                return False
            self._open_until = now + self._seconds  # Whoever tries may never come back.
            self._tries = True
            return True

    def succeeded(self) -> None:
        """Tell that a call went well."""
        with self._lock:
            self._failures, self._seconds, self._open_until = 0, self._first, None
            self._tries = False

    def failed(self) -> None:
        """Tell that a call did not."""
        with self._lock:
            self._failures += 1
            if self._open_until is None:
                if self._failures < self._most:
                    return
            elif self._tries:
                self._tries = False
                self._seconds = min(2 * self._seconds, self._longest)
            else:
                return  # It began before the breaker opened, beside those that opened it.
            self._open_until = self._clock() + self._seconds

"""A circuit breaker: after several failures in a row it blocks calls for a while, then admits
one trial call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Breaker:
    """Decides whether a call may be made. For one thread.

    Args:
        clock: a monotonic clock in seconds.
        failures: this many in a row open it.
        seconds: how long it stays open the first time; twice as long each time after.
        seconds_max: the longest.

    >>> now = [0.0]
    >>> breaker = Breaker(lambda: now[0], failures=2, seconds=1)
    >>> breaker.failed(); breaker.failed()
    >>> breaker.allows(), breaker.wait_seconds
    (False, 1.0)
    >>> now[0] = 1.0
    >>> breaker.allows(), breaker.allows()
    (True, False)
    >>> breaker.failed(); breaker.failed()  # the trial, and a call that began long ago
    >>> breaker.wait_seconds
    2.0
    >>> breaker.succeeded()
    >>> breaker.allows(), breaker.is_closed
    (True, True)
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        failures: int = 3,
        seconds: float = 1.0,
        seconds_max: float = 60.0,
    ) -> None:
        self._clock = clock
        self._most = failures
        self._first, self._longest = seconds, seconds_max
        self._failures = 0
        self._seconds = seconds
        self._open_until: float | None = None
        #: Whether a trial call is running.
        self._tries = False

    @property
    def is_closed(self) -> bool:
        """Whether calls are made without limit."""
        return self._open_until is None

    @property
    def wait_seconds(self) -> float:
        """The time until the next call may be made, at least."""
        until = self._open_until
        return 0.0 if until is None else max(0.0, until - self._clock())

    @property
    def unused_seconds(self) -> float:
        """For how long a trial call could have been made.

        The result is 0 while calls are blocked or made without limit.
        """
        until = self._open_until
        return 0.0 if until is None else max(0.0, self._clock() - until)

    def allows(self) -> bool:
        """Whether a call may be made now; a trial call must report its result."""
        if self._open_until is None:
            return True
        now = self._clock()
        if now < self._open_until:
            return False
        self._open_until = now + self._seconds  # A trial call may never return.
        self._tries = True
        return True

    def succeeded(self) -> None:
        """Report that a call succeeded."""
        self._failures, self._seconds, self._open_until = 0, self._first, None
        self._tries = False

    def failed(self) -> None:
        """Report that a call failed."""
        self._failures += 1
        if self._open_until is None:
            if self._failures < self._most:
                return
        elif self._tries:
            self._tries = False
            self._seconds = min(2 * self._seconds, self._longest)
        else:
            return  # It began before the breaker opened, like those that opened it.
        self._open_until = self._clock() + self._seconds

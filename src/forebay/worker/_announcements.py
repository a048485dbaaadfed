"""Notifications of producers that wait for a claim."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: How much later than its job a notification may come.
_DELAY_SECONDS: Final = 0.01


class Announcements:
    """Counts the notifications of each queue, and the jobs that were claimed before theirs came.

    A claim takes jobs whose notifications are under way. These need no claim when they come. It owns these numbers only: a wrong one costs
    a claim that finds nothing, or delays a job until the next poll.

    Args:
        clock: the monotonic clock, in seconds.

    >>> notified = Announcements(clock=lambda: 0.0)
    >>> notified.add("mail")
    >>> notified.explain("mail", notified.take()["mail"], taken=3)
    True
    >>> notified.add("mail"), bool(notified), notified.add("mail"), notified.add("mail"), dict(notified.take())
    (None, False, None, None, {'mail': 1})
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        #: By queue, how many claimed jobs may still be announced, and until when.
        self._early: dict[str, tuple[int, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, queue: str) -> bool:
        """Whether a notification of this queue waits."""
        return queue in self._waiting

    def add(self, queue: str) -> None:
        """Record a notification."""
        early, until = self._early.pop(queue, (0, 0.0))
        if early and self._clock() <= until:
            if early > 1:
                self._early[queue] = early - 1, until
            return
        self._waiting[queue] += 1

    def take(self) -> Counter[str]:
        """Return the number of notifications that wait, by queue, and forget them."""
        waiting, self._waiting = self._waiting, Counter()
        return waiting

    def explain(self, queue: str, notifications: int, taken: int) -> bool:
        """Record how many jobs a claim found after some notifications; return whether there were as many."""
        if taken > notifications:
            self._early[queue] = taken - notifications, self._clock() + _DELAY_SECONDS
        return taken >= notifications

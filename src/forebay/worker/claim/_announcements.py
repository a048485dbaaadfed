"""Notifications of producers that wait for a claim."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: How much later than its job a notification may come.
DELAY_SECONDS: Final = 0.01


class Announcements:
    """Counts the notifications of each queue, and the jobs that were claimed before theirs came.

    A claim takes jobs whose notifications are under way. These need no claim when they come. A job
    of another transaction may be mistaken for one of them, since a transaction with many jobs
    notifies once. So the caller that adds a notification which needs no claim calls ``recheck`` a
    little later. A wrong number costs a claim that finds nothing, or this delay.

    Args:
        clock: the monotonic clock, in seconds.

    >>> notified = Announcements(clock=lambda: 0.0)
    >>> notified.add("mail")
    True
    >>> notified.explain("mail", notified.take()["mail"], taken=3)
    True
    >>> [notified.add("mail") for _ in range(3)], dict(notified.take())
    ([False, False, True], {'mail': 1})
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        #: By queue, how many claimed jobs may still be announced, and until when.
        self._early: dict[str, tuple[int, float]] = {}
        #: The queues with a notification that was explained, and no claim since.
        self._doubtful: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, queue: object) -> bool:
        """Whether a notification of this queue waits."""
        return queue in self._waiting

    def add(self, queue: str) -> bool:
        """Record a notification; return whether it needs a claim: none has taken its job, as far as
        is known.
        """
        early, until = self._early.pop(queue, (0, 0.0))
        if early and self._clock() <= until:
            if early > 1:
                self._early[queue] = early - 1, until
            self._doubtful.add(queue)
            return False
        self._waiting[queue] += 1
        return True

    def recheck(self, queue: str) -> bool:
        """Return whether a claim is needed after all: a notification was explained, and no claim
        came since. It will rarely find a job.
        """
        if queue not in self._doubtful:
            return False
        self._doubtful.remove(queue)
        self._waiting[queue] += 0
        return True

    def take(self) -> Counter[str]:
        """Return the number of notifications that wait, by queue, and forget them."""
        waiting, self._waiting = self._waiting, Counter()
        self._doubtful -= waiting.keys()
        return waiting

    def explain(self, queue: str, notifications: int, taken: int) -> bool:
        """Record how many jobs a claim found after some notifications.

        Return whether there were as many.
        """
        early = taken - notifications
        # These came while the claim was under way.
        arrived = min(early, self._waiting.get(queue, 0))
        if arrived > 0:
            early -= arrived
            self._waiting[queue] -= arrived
            if not self._waiting[queue]:
                del self._waiting[queue]
        if early > 0:
            self._early[queue] = early, self._clock() + DELAY_SECONDS
        return taken >= notifications

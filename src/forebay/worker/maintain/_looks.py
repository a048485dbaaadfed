"""When the leader of maintenance looks for due jobs: rarely while all that is added is announced,
often otherwise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Longest pause between two looks while those who add jobs notify. Each look also renews the
#: leadership.
LOOK_SECONDS_MAX: Final = 0.8

#: Least pause after a look that found due jobs, and after one that did not.
_AGAIN_SECONDS: Final = 0.1
_SECONDS_MIN: Final = 0.02

#: The part of the time that looks may take that follow notifications.
_SHARE: Final = 0.3

#: For how long it looks as often as without notifications after it found a job that none announced,
#: and how long a notification may take.
_MISSED_SECONDS: Final = 60.0
_NOTIFICATION_SECONDS: Final = 0.1


class Looks:
    """The pauses between looks for due jobs.

    A look tells the database for how long the leader sleeps. Sessions that add a job that is due
    earlier notify it. A job that was due and not announced shows that notifications are lost: then
    the leader looks every ``often_seconds`` for a minute.

    Args:
        often_seconds: the pause without notifications.
        clock: returns seconds, monotonic.
    """

    def __init__(self, often_seconds: float, clock: Callable[[], float]) -> None:
        self._often_seconds = self._pause_seconds = often_seconds
        self._clock = clock
        #: When the last look began, and when one found a job that was not announced in time.
        self._began_at = self._missed_at = -math.inf
        self._longest_seconds = often_seconds
        self._took_seconds = 0.0
        self._may_sleep = False
        #: Whether the last look knew that a job would be due at the next one.
        self._is_expecting = False
        #: Whether a notification came before the look under way, whose jobs are announced then; and
        #: whether one came since: perhaps too late for it.
        self._is_notified = self._is_notified_again = False
        #: When a look found a due job that was not announced yet.
        self._unannounced_at: float | None = None

    def begin(self, *, is_announced: bool) -> int | None:
        """Begin a look. Return for how many milliseconds the leader will sleep if nothing is due.

        The result is None if the leader needs no notification.

        Args:
            is_announced: whether this process is notified of what others add, as far as it knows.
        """
        self._began_at = now = self._clock()
        self._is_notified, self._is_notified_again = self._is_notified_again, False
        found_at = self._unannounced_at
        if found_at is not None and now - found_at > _NOTIFICATION_SECONDS:
            self._missed_at, self._unannounced_at = found_at, None
        self._may_sleep = is_announced and now - self._missed_at > _MISSED_SECONDS
        self._longest_seconds = min(2 * self._pause_seconds, LOOK_SECONDS_MAX)
        return int(self._longest_seconds * 1000) if self._may_sleep else None

    def end(self, *, has_found: bool, due_seconds: float) -> float | None:
        """End a look. Return the pause until the next one, in seconds; None for the usual one.

        Args:
            has_found: whether jobs were due.
            due_seconds: until when nothing is due, as the database answered.
        """
        self._took_seconds = self._clock() - self._began_at
        if not self._may_sleep:
            self._pause_seconds, self._is_expecting = self._often_seconds, False
            return None
        is_known = self._is_notified or self._is_notified_again or self._is_expecting
        if has_found and not is_known and self._pause_seconds > self._often_seconds:
            self._unannounced_at = self._began_at
        self._is_expecting = due_seconds < self._longest_seconds
        self._pause_seconds = self._often_seconds if has_found else self._longest_seconds
        if self._is_notified_again:
            return self._soon()
        least = _AGAIN_SECONDS if has_found else _SECONDS_MIN
        return max(least, min(due_seconds, self._pause_seconds))

    def after_notification(self) -> float:
        """A job was added that is due soon: return the earliest time of the next look."""
        self._unannounced_at, self._is_notified_again = None, True
        return max(self._clock(), self._began_at + self._soon())

    def _soon(self) -> float:
        """Return the pause that keeps looks to their share of the time, however many notify."""
        return max(_SECONDS_MIN, self._took_seconds / _SHARE)

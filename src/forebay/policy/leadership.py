"""Leadership: duties that one worker at a time does for all.

This module knows which ones this process holds, and when it must call again.

The flag sequence of a duty is in the database (``forebay.lead_v1``); this module keeps the last
answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: The duty of maintenance. The duty of polling for a group is the group's id.
MAINTENANCE: Final = 0

#: The duty of schedules: to decide their instants.
SCHEDULES: Final = -1

#: Poll interval of a worker that leads nothing. Notifications and the heartbeat usually wake it
#: earlier.
IDLE_POLL_SECONDS: Final = 30.0

#: The same for a worker without notifications. A job waits up to this long for a second worker
#: while the leader is busy.
POLL_SECONDS_WITHOUT_NOTIFICATIONS: Final = 1.0


#: A worker draws its leader id below this number. Two workers with the same id do no harm.
LEADER_IDS: Final = 1 << 20


def idle_poll_pause(u: float, seconds: float = IDLE_POLL_SECONDS) -> float:
    """Return a pause of about this length, with jitter, so that processes do not synchronize.

    Args:
        u: uniform in [0, 1).
        seconds: the mean pause.
    """
    return seconds * (0.75 + 0.5 * u)


class Leadership:
    """The duties that one worker wants to lead, and those it leads now.

    Args:
        wanted: the duties.
        seconds: how long a leadership lasts unless renewed.
        clock: returns monotonic seconds.
        draw: returns a random number, uniform in [0, 1).
        looks: whether it also calls from time to time without a report that a duty is leaderless.
    """

    def __init__(
        self,
        wanted: Collection[int],
        *,
        seconds: float,
        clock: Callable[[], float],
        draw: Callable[[], float],
        looks: bool = True,
    ) -> None:
        self._looks = looks
        self.wanted = list(wanted)
        self.seconds = seconds
        self._clock = clock
        self._draw = draw
        self._held: frozenset[int] = frozenset()
        self._held_until = 0.0
        self._call_at = 0.0 if looks else math.inf

    @property
    def held(self) -> frozenset[int]:
        """The duties that this worker certainly leads now."""
        return self._held if self._clock() < self._held_until else frozenset()

    @property
    def missing(self) -> list[int]:
        """The wanted duties that this worker does not lead now."""
        held = self.held
        return [duty for duty in self.wanted if duty not in held]

    @property
    def is_due(self) -> bool:
        """Whether a call is due: to renew leaderships, or because a duty may be leaderless."""
        return self._clock() >= self._call_at

    def answered(
        self, held: Collection[int], called_at: float, *, renewal_share: float = 0.25
    ) -> None:
        """Record the answer of the database to a call sent at ``called_at``.

        Args:
            held: the duties that the worker leads now.
            called_at: when the call was sent.
            renewal_share: the part of the leadership's time after which a call is due.
        """
        self._held = frozenset(held)
        self._held_until = called_at + self.seconds
        if held:
            self._call_at = called_at + self.seconds * renewal_share
        elif self._looks:
            self._call_at = called_at + idle_poll_pause(self._draw())
        else:
            self._call_at = math.inf

    def assume_leaderless(self, duties: Collection[int]) -> bool:
        """Make a call due if one of these duties is wanted and not led.

        Return whether that is so.
        """
        if not set(duties) & set(self.missing):
            return False
        self._call_at = 0.0
        return True

    def resigned(self) -> None:
        """Record that this worker resigned from all duties; when idle it may lead again."""
        self._held = frozenset()
        self._call_at = 0.0

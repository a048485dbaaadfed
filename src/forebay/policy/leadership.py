"""Leadership: what one worker at a time does for all. Which ones this process holds, and when it has to ask.

The flag sequence of a duty is in the database (``forebay.lead_v1``); here is what was heard of it last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: The duty of the maintenance; that of a group's watch is the group's number.
MAINTENANCE: Final = 0

#: Who holds no duty looks for itself so often, whatever it is_notified: the other lines of defence are the wake-up and the heartbeat.
IDLE_POLL_SECONDS: Final = 30.0

#: The same for a worker that no wake-up wakes: so long may a job wait for a second worker while the one at the duty is busy.
POLL_SECONDS_WITHOUT_NOTIFICATIONS: Final = 1.0


#: A worker draws its name for the flag sequences below this number; two workers with one name do no harm.
LEADER_IDS: Final = 1 << 20


def idle_poll_pause(u: float, seconds: float = IDLE_POLL_SECONDS) -> float:
    """Return a pause of about that long, so that processes do not come in step.

    Args:
        u: uniform in [0, 1).
        seconds: the middle of the pauses.
    """
    return seconds * (0.75 + 0.5 * u)


class Leadership:
    """Some duties, from the side of one that may hold them.

    Args:
        wanted: the duties.
        seconds: how long they are held unless renewed.
        clock: seconds from anywhere.
        draw: a random number, uniform in [0, 1).
    """

    def __init__(
        self,
        wanted: Collection[int],
        *,
        seconds: float,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        self.wanted = list(wanted)
        self.seconds = seconds
        self._clock = clock
        self._draw = draw
        self._held: frozenset[int] = frozenset()
        self._held_until = 0.0
        self._call_at = 0.0

    @property
    def held(self) -> frozenset[int]:
        """The duties that are certainly held now."""
        return self._held if self._clock() < self._held_until else frozenset()

    @property
    def missing(self) -> list[int]:
        """The duties that are not."""
        held = self.held
        return [duty for duty in self.wanted if duty not in held]

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask: to renew what is held, or because a duty may be leaderless."""
        return self._clock() >= self._call_at

    def answered(self, held: Collection[int], called_at: float) -> None:
        """Note what the database said to a call that was sent at that time."""
        self._held = frozenset(held)
        self._held_until = called_at + self.seconds
        self._call_at = called_at + (self.seconds / 4 if held else idle_poll_pause(self._draw()))

    def assume_leaderless(self, duties: Collection[int]) -> bool:
        """Ask soon if one of these is wanted and not held; return whether that is so."""
        if not set(duties) & set(self.missing):
            return False
        self._call_at = 0.0
        return True

    def resigned(self) -> None:
        """Note that all were left; whoever finds nothing to do asks for them again."""
        self._held = frozenset()
        self._call_at = 0.0

"""Posts: what one worker at a time does for all. Which ones this process holds, and when it has to ask.

The register of a post is in the database (``forebay.hold_posts_v1``); here is what was heard of it last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: The post of the upkeep; that of a group's lookout is the group's number.
UPKEEP: Final = 0

#: Who holds no post looks for itself so often, whatever it hears: the other lines of defence are the bell and the heartbeat.
FAR_SECONDS: Final = 30.0

#: The same for a worker that no bell wakes: so long may a job wait for a second worker while the one at the post is busy.
DEAF_SECONDS: Final = 1.0


#: A holder's name in the registers is a number below this, drawn at random; that two workers draw the same one does no harm.
HOLDERS: Final = 1 << 20


def far_pause(chance: float, seconds: float = FAR_SECONDS) -> float:
    """Return a pause of about that long, so that processes do not come in step.

    Args:
        chance: a random number from 0 to 1.
        seconds: the mean.
    """
    return seconds * (0.75 + 0.5 * chance)


class Posts:
    """Some posts, from the side of one that may hold them.

    Args:
        wanted: the posts.
        seconds: how long they are held unless renewed.
        clock: seconds from anywhere.
        random: random numbers from 0 to 1.
    """

    def __init__(
        self,
        wanted: Collection[int],
        *,
        seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self.wanted = list(wanted)
        self.seconds = seconds
        self._clock = clock
        self._random = random
        self._held: frozenset[int] = frozenset()
        self._held_until = 0.0
        self._ask_at = 0.0

    @property
    def held(self) -> frozenset[int]:
        """The posts that are certainly held now."""
        return self._held if self._clock() < self._held_until else frozenset()

    @property
    def missing(self) -> list[int]:
        """The posts that are not."""
        held = self.held
        return [post for post in self.wanted if post not in held]

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask: to renew what is held, or because a post may be vacant."""
        return self._clock() >= self._ask_at

    def answered(self, held: Collection[int], asked_at: float) -> None:
        """Note what the database said to a call that was sent at that time."""
        self._held = frozenset(held)
        self._held_until = asked_at + self.seconds
        self._ask_at = asked_at + (self.seconds / 4 if held else far_pause(self._random()))

    def suppose_vacant(self, posts: Collection[int]) -> bool:
        """Ask soon if one of these is wanted and not held; return whether that is so."""
        if not set(posts) & set(self.missing):
            return False
        self._ask_at = 0.0
        return True

    def left(self) -> None:
        """Note that all were left; whoever finds nothing to do asks for them again."""
        self._held = frozenset()
        self._ask_at = 0.0

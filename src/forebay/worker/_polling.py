"""How soon an idle worker looks for work again: the leader of a group's idle workers soon, the others seldom.

The leadership of a group is a flag in the database (``forebay.hold_posts_v1``) that guards nothing: two workers that both lead for
a moment do no harm, and a group without a leader finds one within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from forebay.ops import protocol
from forebay.policy.posts import DEAF_SECONDS, UPKEEP, Posts, far_pause

if TYPE_CHECKING:
    from collections.abc import Collection

    from forebay.config import WorkerSettings
    from forebay.db.session import Session

log = logging.getLogger("forebay.worker")

#: A leader that is saturated for this long resigns, so that an idle worker leads.
_SATURATED_SECONDS = 0.05

#: How long the database may take to hear that a worker resigns because it stops.
_RESIGN_SECONDS = 1.0


class PollLeadership:
    """The leadership of this worker among the idle workers of its groups.

    Owns what the database last answered about it. It promises that a leader looks for work every ``poll_seconds``, that a worker which has
    more to do than it can take resigns, and that a leadership is renewed only by the loop that does the work.

    A crash leaves the leadership to run out, after 1.5 s and two polls; another worker takes it over.

    Args:
        session: the connection of the claims.
        settings: how often to look, and whether to listen.
        holder: the name under which it leads.
        alone: it never leads, and looks as soon as a leader: for a worker that ends when it is idle.
    """

    def __init__(
        self, session: Session, settings: WorkerSettings, holder: int, *, alone: bool
    ) -> None:
        self._session = session
        self._settings = settings
        self._holder = holder
        self._alone = alone
        self._saturated_since: float | None = None
        self._posts = self._of([])

    def _of(self, groups: Collection[int]) -> Posts:
        # Long enough for one that polls seldom: it renews when it looks.
        return Posts(
            groups,
            seconds=1.5 + 2 * self._settings.poll_seconds,
            clock=time.monotonic,
            draw=random.random,
        )

    def set_groups(self, groups: Collection[int]) -> None:
        """Take up the groups that the worker reads for, by number."""
        self._posts = self._of(groups)

    @property
    def held(self) -> frozenset[int]:
        """The groups that this worker leads now."""
        return self._posts.held

    @property
    def missing(self) -> list[int]:
        """The groups that it does not lead, and would."""
        return self._posts.missing

    @property
    def without_notifications(self) -> bool:
        """Whether nothing wakes the worker when a job is enqueued."""
        # A pooler accepts LISTEN and delivers nothing.
        return self._settings.listen == "never" or self._session.is_pooled

    def suppose_vacant(self, groups: Collection[int]) -> bool:
        """Ask soon whether a group has no leader, if it is among these; return whether that is so."""
        return self._posts.suppose_vacant(groups)

    async def idle_seconds(self) -> float:
        """Return how long to sleep when nothing was ready; renews the leadership, or takes it, when that is due."""
        settings, posts = self._settings, self._posts
        if self._alone:
            return settings.poll_seconds
        if posts.is_due:
            asked_at = time.monotonic()
            held = await self._session.run(
                protocol.hold_posts(self._holder, posts.wanted, posts.seconds)
            )
            posts.answered(held, asked_at)
        if posts.held:
            return settings.poll_seconds
        if self.without_notifications:
            return max(settings.poll_seconds, far_pause(random.random(), DEAF_SECONDS))
        return far_pause(random.random())

    def record_idle(self) -> None:
        """Nothing was ready: the worker is not saturated."""
        self._saturated_since = None

    async def resign_when_saturated(self) -> None:
        """Something was ready: resign when that has been so for some time, so that an idle worker leads."""
        now = time.monotonic()
        if self._saturated_since is None:
            self._saturated_since = now
        held = self._posts.held
        since = now - self._saturated_since
        if held and since >= max(_SATURATED_SECONDS, self._settings.poll_seconds):
            await self._session.run(protocol.leave_posts(self._holder, held))
            self._posts.left()

    async def resign(self) -> None:
        """Give up every leadership at the end, that of the maintenance too, so that others need not wait until it runs out."""
        try:
            async with asyncio.timeout(_RESIGN_SECONDS):
                await self._session.run(
                    protocol.leave_posts(self._holder, [UPKEEP, *self._posts.wanted])
                )
        except Exception as error:
            log.debug("posts are left to run out: %s", error)

"""How soon an idle worker looks for work again: the leader of a group's idle workers soon, the others seldom.

The leadership of a group is a flag in the database (``forebay.lead_v1``) that guards nothing: two workers that both lead for
a moment do no harm, and a group without a leader finds one within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from forebay.ops import protocol
from forebay.policy.leadership import (
    MAINTENANCE,
    POLL_SECONDS_WITHOUT_NOTIFICATIONS,
    Leadership,
    idle_poll_pause,
)

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
        leader_id: the name under which it leads.
        alone: it never leads, and looks as soon as a leader: for a worker that ends when it is idle.
    """

    def __init__(
        self, session: Session, settings: WorkerSettings, leader_id: int, *, alone: bool
    ) -> None:
        self._session = session
        self._settings = settings
        self._leader_id = leader_id
        self._alone = alone
        self._saturated_since: float | None = None
        self._leadership = self._of([])

    def _of(self, groups: Collection[int]) -> Leadership:
        # Long enough for one that polls seldom: it renews when it looks.
        return Leadership(
            groups,
            seconds=1.5 + 2 * self._settings.poll_seconds,
            clock=time.monotonic,
            draw=random.random,
        )

    def set_groups(self, groups: Collection[int]) -> None:
        """Take up the groups that the worker reads for, by number."""
        self._leadership = self._of(groups)

    @property
    def held(self) -> frozenset[int]:
        """The groups that this worker leads now."""
        return self._leadership.held

    @property
    def missing(self) -> list[int]:
        """The groups that it does not lead, and would."""
        return self._leadership.missing

    @property
    def without_notifications(self) -> bool:
        """Whether nothing wakes the worker when a job is enqueued."""
        # A pooler accepts LISTEN and delivers nothing.
        return self._settings.listen == "never" or self._session.is_pooled

    def assume_leaderless(self, groups: Collection[int]) -> bool:
        """Ask soon whether a group has no leader, if it is among these; return whether that is so."""
        return self._leadership.assume_leaderless(groups)

    async def idle_seconds(self) -> float:
        """Return how long to sleep when nothing was ready; renews the leadership, or takes it, when that is due."""
        settings, duties = self._settings, self._leadership
        if self._alone:
            return settings.poll_seconds
        if duties.is_due:
            called_at = time.monotonic()
            held = await self._session.run(
                protocol.lead(self._leader_id, duties.wanted, duties.seconds)
            )
            duties.answered(held, called_at)
        if duties.held:
            return settings.poll_seconds
        if self.without_notifications:
            return max(
                settings.poll_seconds,
                idle_poll_pause(random.random(), POLL_SECONDS_WITHOUT_NOTIFICATIONS),
            )
        return idle_poll_pause(random.random())

    def record_idle(self) -> None:
        """Nothing was ready: the worker is not saturated."""
        self._saturated_since = None

    async def resign_when_saturated(self) -> None:
        """Something was ready: resign when that has been so for some time, so that an idle worker leads."""
        now = time.monotonic()
        if self._saturated_since is None:
            self._saturated_since = now
        held = self._leadership.held
        since = now - self._saturated_since
        if held and since >= max(_SATURATED_SECONDS, self._settings.poll_seconds):
            await self._session.run(protocol.resign(self._leader_id, held))
            self._leadership.resigned()

    async def resign(self) -> None:
        """Give up every leadership at the end, that of the maintenance too, so that others need not wait until it runs out."""
        try:
            async with asyncio.timeout(_RESIGN_SECONDS):
                await self._session.run(
                    protocol.resign(self._leader_id, [MAINTENANCE, *self._leadership.wanted])
                )
        except Exception as error:
            log.debug("duties are left to run out: %s", error)

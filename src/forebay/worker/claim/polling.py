"""How soon an idle worker polls for work again: the leader of a group polls often, the other
workers rarely.

Where producers notify, the leader polls less often too: a poll only finds what no notification
announced. It watches whether that happens, since it cannot know how each producer's session is set.

The leadership of a group is a flag in the database (``forebay.lead_v1``) that protects no data: two
workers may both lead for a moment without harm, and a group without a leader gets one within
seconds.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import TYPE_CHECKING

from forebay.model.text import logger
from forebay.ops import protocol
from forebay.policy.leadership import (
    MAINTENANCE,
    POLL_SECONDS_WITHOUT_NOTIFICATIONS,
    SCHEDULES,
    Leadership,
    idle_poll_pause,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from forebay.config import WorkerSettings
    from forebay.db.session import Session
    from forebay.ops.protocol import ReadyLane

log = logger("forebay.worker")

#: A leader that is saturated for this long resigns, so that an idle worker leads.
_SATURATED_SECONDS = 0.05

#: How much longer than ``poll_seconds`` a leader waits for its next poll while notifications of new
#: jobs arrive, and when it has been idle for some time.
_NOTIFIED_FACTOR = 4
_QUIET_FACTOR = 20

#: The longest such wait, unless ``poll_seconds`` is longer. Producers ignore a sleep of more than
#: 70 s, see ``forebay._is_ahead()``.
_STRETCHED_SECONDS_MAX = 5.0

#: For how long a notification shows that they arrive; and after how long without work a worker is
#: quiet.
_NOTIFIED_SECONDS = 10.0
_QUIET_SECONDS = 2.0

#: For how long a leader polls every ``poll_seconds`` after a poll found a job that no notification
#: announced.
_MISSED_SECONDS = 60.0

#: How long a notification may take after a poll found its job.
_NOTIFICATION_DELAY_SECONDS = 0.1

#: A leadership of many groups lasts longer, so that it is renewed less often: one second more for
#: this number of groups, up to this number of seconds.
_GROUPS_PER_SECOND = 200
_MANY_GROUPS_SECONDS_MAX = 30.0

#: Deadline of the call by which a stopping worker resigns.
_RESIGN_SECONDS = 1.0


class PollLeadership:
    """The leadership of this worker among the idle workers of its groups.

    Owns the last answer of the database about it. It guarantees that a leader polls for work every
    ``poll_seconds``, that a saturated worker resigns, and that only the loop that does the work
    renews a leadership.

    After a crash the leadership expires, after 1.5 s and two polls, and 5 ms more for each group;
    another worker then takes it.

    Args:
        session: the connection for claims.
        settings: the poll interval, and whether to listen for notifications.
        leader_id: the id under which this worker leads.
        alone: never lead, and poll as often as a leader: for a worker that ends when it is idle.
    """

    def __init__(
        self, session: Session, settings: WorkerSettings, leader_id: int, *, alone: bool
    ) -> None:
        self._session = session
        self._settings = settings
        self._leader_id = leader_id
        self._alone = alone
        self._saturated_since: float | None = None
        #: Whether enqueues notify, as far as the settings of this worker's session tell; None: not
        #: read yet.
        self.producers_notify: bool | None = None
        self._notified_at = self._missed_at = -math.inf
        self._worked_at = time.monotonic()
        #: By queue, when a poll found a job that was not announced yet.
        self._unannounced: dict[str, float] = {}
        self._leadership = self._of([])

    def _of(self, groups: Collection[int]) -> Leadership:
        # Long enough for a long poll interval: a leader renews when it polls. Each group has a flag
        # to renew.
        seconds = min(len(groups) / _GROUPS_PER_SECOND, _MANY_GROUPS_SECONDS_MAX)
        return Leadership(
            groups,
            seconds=1.5 + 2 * self._settings.poll_seconds + seconds,
            clock=time.monotonic,
            draw=random.random,
        )

    def set_groups(self, groups: Collection[int]) -> None:
        """Set the ids of the groups that the worker serves."""
        self._leadership = self._of(groups)

    @property
    def held(self) -> frozenset[int]:
        """The groups that this worker leads now."""
        return self._leadership.held

    @property
    def missing(self) -> list[int]:
        """The groups that this worker wants to lead and does not."""
        return self._leadership.missing

    @property
    def without_notifications(self) -> bool:
        """Whether the worker gets no notification when a job is enqueued."""
        # A pooler accepts LISTEN and delivers no notification.
        return self._settings.listen == "never" or self._session.is_pooled

    @property
    def is_announced(self) -> bool:
        """Whether the worker is notified of what others add, as far as it knows."""
        return bool(self.producers_notify) and not self.without_notifications

    @property
    def sleep_millis(self) -> int | None:
        """For how long producers must notify if no lane is ready.

        The result is None where notifications do not arrive.
        """
        if self.without_notifications:
            return None
        return int(self.poll_seconds * 1000) + 30

    @property
    def poll_seconds(self) -> float:
        """How long a leader waits for its next poll: ``poll_seconds``, or longer where
        notifications arrive.
        """
        seconds, now = self._settings.poll_seconds, time.monotonic()
        if self._alone or self.without_notifications or self.misses_notifications:
            return seconds
        factor = 1
        if self.is_notified:
            factor = _NOTIFIED_FACTOR
        elif self.producers_notify and now - self._worked_at > _QUIET_SECONDS:
            factor = _QUIET_FACTOR
        return max(seconds, min(seconds * factor, _STRETCHED_SECONDS_MAX))

    @property
    def misses_notifications(self) -> bool:
        """Whether a poll found a job a short time ago that its producer did not announce."""
        now = time.monotonic()
        for queue, found_at in list(self._unannounced.items()):
            if now - found_at > _NOTIFICATION_DELAY_SECONDS:
                self._missed_at = max(self._missed_at, found_at)
                del self._unannounced[queue]
        return now - self._missed_at < _MISSED_SECONDS

    @property
    def is_notified(self) -> bool:
        """Whether producers notified this worker of new jobs a short time ago."""
        return time.monotonic() - self._notified_at < _NOTIFIED_SECONDS

    def record_notification(self, queue: str) -> None:
        """A producer notified this worker of a new job of a queue."""
        self._notified_at = time.monotonic()
        self._unannounced.pop(queue, None)

    def record_unannounced(self, queues: Iterable[str]) -> None:
        """A poll found new jobs of these queues while producers had to notify.

        Unless the notification is under way, it was missed.
        """
        now = time.monotonic()
        for queue in queues:
            self._unannounced.setdefault(queue, now)

    def assume_leaderless(self, groups: Collection[int]) -> bool:
        """Try soon to lead if one of these groups is wanted and not led by this worker.

        Return whether that is so.
        """
        return self._leadership.assume_leaderless(groups)

    async def poll(self, groups: list[int]) -> list[ReadyLane]:
        """Poll; if no lane is ready, renew or take the leadership with the same call if that is
        due.
        """
        duties = self._leadership
        if self._alone or not duties.is_due:
            return await self._session.run(protocol.ready(groups, sleep_millis=self.sleep_millis))
        called_at = time.monotonic()
        lanes, held = await self._session.run(
            protocol.poll(
                groups,
                sleep_millis=self.sleep_millis,
                leader_id=self._leader_id,
                seconds=duties.seconds,
            )
        )
        if held is not None:
            # Of many groups, the renewal costs more than the poll.
            share = 0.5 if len(duties.wanted) > _GROUPS_PER_SECOND else 0.25
            duties.answered(held, called_at, renewal_share=share)
        return lanes

    def idle_seconds(self) -> float:
        """Return how long to sleep after a poll without work."""
        settings, duties = self._settings, self._leadership
        if self._alone:
            return settings.poll_seconds
        if duties.held:
            return self.poll_seconds
        if self.without_notifications:
            return max(
                settings.poll_seconds,
                idle_poll_pause(random.random(), POLL_SECONDS_WITHOUT_NOTIFICATIONS),
            )
        return idle_poll_pause(random.random())

    def record_idle(self) -> None:
        """A poll found no work: the worker is not saturated."""
        self._saturated_since = None

    async def resign_when_saturated(self) -> None:
        """A poll found work: resign if that has been so for some time, so that an idle worker
        leads.
        """
        self._worked_at = now = time.monotonic()
        if self._saturated_since is None:
            self._saturated_since = now
        held = self._leadership.held
        since = now - self._saturated_since
        if held and since >= max(_SATURATED_SECONDS, self._settings.poll_seconds):
            await self._session.run(protocol.resign(self._leader_id, held))
            self._leadership.resigned()

    async def resign(self) -> None:
        """At the end, give up every leadership, including maintenance, so that others need not wait
        for it to expire.
        """
        try:
            async with asyncio.timeout(_RESIGN_SECONDS):
                await self._session.run(
                    protocol.resign(
                        self._leader_id, [MAINTENANCE, SCHEDULES, *self._leadership.wanted]
                    )
                )
        except Exception as error:
            log.debug("cannot resign, the leadership expires by itself: %s", error)

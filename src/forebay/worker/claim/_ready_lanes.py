"""Polls: which lanes have jobs that this worker can claim."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from forebay.ops import protocol
from forebay.policy.claims import LANES_PER_CLAIM

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

    from forebay.db.session import Session
    from forebay.ops.protocol import ReadyLane
    from forebay.worker.claim.polling import PollLeadership
    from forebay.worker.ground.held import Lease
    from forebay.worker.ground.signals import Signals
    from forebay.worker.lease.leases import LeaseKeeper

#: How long claimed jobs wait for the answer to a poll before they are started. The poll comes first
#: because handlers that never wait occupy the loop: the next claim would be sent only when they
#: have ended.
_POLL_FIRST_SECONDS: Final = 0.005


#: For how long an answer with very many lanes is used, and the least multiple of its poll's
#: duration.
_PARTS_SECONDS: Final = 0.1
_PARTS_FACTOR: Final = 5

#: A poll of one queue among this many, or more, is cheaper than a poll of all.
_FEW_QUEUES: Final = 4


class ReadyLanes:
    """The answers to the polls of a worker.

    Owns the last answer, the known lanes of each queue, and a poll that is under way between two
    claims. It guarantees that no lane of an answer is used twice. It stores nothing: a poll changes
    nothing except the wake-ups of sleeping workers.

    An answer with more queues than a call claims from is used in parts, the longest unserved queues
    first. So a poll of a thousand lanes is paid once for many claims.

    Args:
        session: the connection for claims.
        leases: has the groups that the worker serves.
        leadership: decides for how long producers notify after a poll without a ready lane, and who
            leads.
        signals: has the state of the claim loop.
        weights: the queues. Answers are used in parts only if all have the same weight: otherwise
            the plan needs all lanes.
    """

    def __init__(
        self,
        session: Session,
        leases: LeaseKeeper,
        leadership: PollLeadership,
        signals: Signals,
        weights: Mapping[str, int],
    ) -> None:
        self._session = session
        self._leases = leases
        self._leadership = leadership
        self._signals = signals
        self._between_claims: asyncio.Task[list[ReadyLane]] | None = None
        self._weights = weights
        self._is_divisible = len(set(weights.values())) <= 1
        #: The queues of the last answer that were not used yet, and until when they may be.
        self._parts: list[list[ReadyLane]] = []
        self._parts_until = 0.0
        #: By queue, the lanes of new jobs that any poll found.
        self._public: dict[str, dict[int, ReadyLane]] = {}
        #: By queue, the number of the part that served it last.
        self._served: dict[str, int] = {}
        self._part_no = 0
        #: The lanes that were ready at the last poll, and are the only ones as far as is known
        #: until ``until``.
        self.last: frozenset[int] = frozenset()
        #: The time (monotonic clock) at which the last poll is no longer recent.
        self.until = 0.0
        #: Until when (monotonic clock) producers notify, after the last poll that found no lane.
        self.announced_until = 0.0

    async def next(self, wanted: int, notified: Container[str] | None = None) -> list[ReadyLane]:
        """Return ready lanes, by the poll that was sent between two claims, by the rest of the last
        answer, or by a new poll.

        Args:
            wanted: how many jobs the worker can claim.
            notified: the queues with a notification that waits, if all other lanes were empty;
                None: some may have had jobs before.
        """
        poll, self._between_claims = self._between_claims, None
        if poll is None and self._parts and time.monotonic() < self._parts_until:
            return self._next_part(wanted)
        # An answer without lanes is not used: a job that ran meanwhile may have made some ready.
        called_at = time.monotonic()
        # A poll that comes later than planned tells nothing: producers need not notify any more.
        announced = notified if called_at < self.announced_until else None
        lanes = (await poll if poll else []) or await self._poll()
        if announced is not None:
            new = {lane.queue for lane in lanes if not lane.is_private}
            self._leadership.record_unannounced(queue for queue in new if queue not in announced)
        self._parts = []
        if not self._is_divisible or len(lanes) <= LANES_PER_CLAIM:
            return lanes
        now = time.monotonic()
        self._parts_until = now + max(_PARTS_SECONDS, _PARTS_FACTOR * (now - called_at))
        return self._divided(lanes, wanted)

    def _divided(self, lanes: Sequence[ReadyLane], wanted: int) -> list[ReadyLane]:
        by_queue: dict[str, list[ReadyLane]] = {}
        for lane in lanes:
            by_queue.setdefault(lane.queue, []).append(lane)
        served = self._served
        # The longest unserved one is the last of the list.
        queues = sorted(by_queue, key=lambda queue: served.get(queue, 0), reverse=True)
        self._served = {queue: served[queue] for queue in queues if queue in served}
        self._parts = [by_queue[queue] for queue in queues]
        return self._next_part(wanted)

    def _next_part(self, wanted: int) -> list[ReadyLane]:
        self._part_no += 1
        part: list[ReadyLane] = []
        for _ in range(max(1, min(wanted, LANES_PER_CLAIM))):
            if not self._parts:
                break
            lanes = self._parts.pop()
            self._served[lanes[0].queue] = self._part_no
            part += lanes
        return part

    async def only_until(self, lease: Lease, lane: ReadyLane) -> float:
        """Poll between two claims: return until when (monotonic clock) a lane counts as the only
        ready one, 0.0 if it is not.

        The jobs of the claim before wait for the answer, for a short time only, and whatever the
        answer is: this does not raise its error. ``next`` returns an answer with other lanes. A
        leader does not poll here, because it has to resign.
        """
        if self._leases.current is not lease or self._leadership.held:
            return 0.0
        self._between_claims = poll = asyncio.create_task(self._poll())
        await asyncio.wait({poll}, timeout=_POLL_FIRST_SECONDS)
        if not poll.done() or poll.exception() or poll.result() != [lane]:
            return 0.0
        self._between_claims = None
        self._signals.failed_claims = 0
        self._signals.outage.answered("claims")
        return self.until

    def public(self, queue: str) -> list[ReadyLane]:
        """Return the lanes of new jobs of a queue, as far as they are known."""
        return list(self._public.get(queue, {}).values())

    async def learn(self, queues: Collection[str]) -> None:
        """Poll the queues among these whose lanes are not known, if they are few of many."""
        unknown = {queue for queue in queues if queue not in self._public}
        if not unknown or _FEW_QUEUES * len(unknown) > len(self._weights):
            return
        groups = [group_id for group_id, queue in self._leases.groups.items() if queue in unknown]
        lanes = await self._session.run(protocol.ready(groups))
        self._record_public(lanes)

    def _record_public(self, lanes: Iterable[ReadyLane]) -> None:
        for lane in lanes:
            if not lane.is_private:
                self._public.setdefault(lane.queue, {})[lane.lane] = lane

    def forget(self) -> None:
        """Forget the answers and the lanes: the groups have other ids now, or the worker stops."""
        self._parts = []
        self._public.clear()
        if self._between_claims is not None:
            self._between_claims.cancel()
            self._between_claims = None

    async def _poll(self) -> list[ReadyLane]:
        called_at, recent = time.monotonic(), self._leadership.poll_seconds
        sleep_millis = self._leadership.sleep_millis
        lanes = await self._leadership.poll(list(self._leases.groups))
        self._signals.has_polled = True
        self.last = frozenset(lane.lane for lane in lanes)
        self._record_public(lanes)
        self.until = called_at + recent
        if not lanes:
            self.announced_until = called_at + (sleep_millis or 0) / 1000
        return lanes

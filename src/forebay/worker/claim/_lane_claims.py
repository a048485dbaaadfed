"""Claims from ready lanes: which of them, how many jobs each, and again while a lane has more."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from forebay.ops.claimed import RawKinds
from forebay.policy.claims import ClaimOrder, LaneName, LaneSizes, is_full_claim
from forebay.worker.claim._claim_calls import ClaimCalls
from forebay.worker.claim._linger import Linger
from forebay.worker.ground.held import HeldJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from forebay.arguments.kinds import Kind
    from forebay.db.session import Session
    from forebay.ops.protocol import ReadyLane
    from forebay.worker.claim._ready_lanes import ReadyLanes
    from forebay.worker.claim._wanted import Wanted
    from forebay.worker.ground.common import Common
    from forebay.worker.ground.held import Lease
    from forebay.worker.run.runners import Runners

#: For how long, and how many jobs at a time, a worker claims from one lane without a poll while
#: jobs of other lanes come too, and for how long it remembers that they do. Their producers do not
#: notify a worker that is busy.
_SHARED_SECONDS = 0.01
_SHARED_ROWS = 250
_SHARED_MEMORY_SECONDS = 10.0


class LaneClaims:
    """Claims jobs from lanes and passes them to the executor.

    Owns what is known of the lanes: how large their jobs are, which of them emptied, and whether
    jobs of several come. It guarantees that queues get slots by their weights, that no lane
    starves, and that nothing is claimed under a lost lease or once the worker stops.

    Args:
        common: the queues with their weights, the kinds, and the limits of claims.
        session: the connection for claims.
        runners: run what is claimed.
        ready: the polls, to claim from one lane again.
        wanted: the number of jobs to claim.
        on_claimed: called after a claim that returned jobs.
    """

    def __init__(
        self,
        common: Common,
        session: Session,
        runners: Runners,
        *,
        ready: ReadyLanes,
        wanted: Wanted,
        on_claimed: Callable[[], None],
    ) -> None:
        self._common = common
        self._executor = runners.executor
        self._suspects = runners.suspects
        self._ready = ready
        self._wanted = wanted
        kinds = common.app.kinds
        self._order = ClaimOrder(common.weights, common.settings.starving_share, random.random)
        self._sizes, self._linger = LaneSizes(), Linger(kinds)
        raw = [kind for kind in kinds if kind.takes_raw]
        raw_kinds = RawKinds({kind.name for kind in raw}, {kind.queue for kind in raw})
        self._calls = ClaimCalls(
            session, self._sizes, self._linger, common.stats, on_claimed, raw_kinds=raw_kinds
        )
        #: The lanes of the last poll that found any, and until when (monotonic clock) jobs of
        #: several are expected.
        self._last_names: set[LaneName] = set()
        self._shared_until = 0.0

    def set_queue_attempts(self, attempts: Mapping[str, int]) -> None:
        """Set the maximum attempts by queue, as of the last heartbeat.

        The database decides by the numbers that it has.
        """
        self._calls.queue_attempts = attempts

    def pause_after_nothing(self, lanes: Iterable[ReadyLane], seconds: float) -> float:
        """Return the pause after ready lanes gave no job: until calls of a batch handler may be
        fuller, at most this long.
        """
        return self._linger.pause_seconds(lanes, seconds)

    async def planned(self, lease: Lease, lanes: Sequence[ReadyLane], wanted: int) -> int:
        """Claim up to ``wanted`` jobs from ready lanes, by weight and priority.

        Return how many were claimed.
        """
        settings = self._common.settings
        names = {*map(_name, lanes)}
        if len(names | self._last_names) > 1:
            self._shared_until = time.monotonic() + _SHARED_MEMORY_SECONDS
        self._last_names = names
        open_lanes = self._linger.open(lanes)
        if self._executor.is_decoding_behind:
            # More large jobs would only take the places of small ones.
            open_lanes = _without_large(open_lanes, self._sizes)
            if not open_lanes:
                await self._common.signals.sleep(settings.poll_seconds)
                return 0
        shares = _smallest_first(self._order.shares(open_lanes, wanted), self._sizes)
        # A single lane, or the shards of one queue, need not give way to other lanes: claim from it
        # again until the next poll is due.
        alone = len({*map(_name, open_lanes)}) == 1 and not any(lane.is_private for lane in lanes)
        again_until = self._repeat_until() if alone or len(lanes) == 1 else 0.0
        claimed = 0
        if len(shares) > 1:
            taken_jobs, shares = await self._calls.together(lease, shares)
            for lane, batch, rows in taken_jobs:
                claimed += len(rows)
                self._executor.take([HeldJob(row, batch, lane) for row in rows])
        return claimed + await self._claim_shares(lease, shares, again_until)

    async def freed(self, lease: Lease, lanes: Iterable[ReadyLane], wanted: int) -> int:
        """Claim up to ``wanted`` jobs from lanes that a settlement freed.

        Return how many were claimed.
        """
        return await self._claim_shares(lease, self._order.shares(lanes, wanted))

    async def _claim_shares(
        self,
        lease: Lease,
        shares: Iterable[tuple[list[ReadyLane], int]],
        again_until: float = 0.0,
    ) -> int:
        """Claim the shares lane by lane; each lane gets what those of its name before it left.

        Return how many were claimed.
        """
        claimed = 0
        for lanes, count in shares:
            left = count
            for lane in lanes:
                if left <= 0 or self._common.signals.is_stopping or lease.lost:
                    break
                left -= await self.lane(lease, lane, left, again_until)
            claimed += count - left
        return claimed

    def _rows(self, lane: ReadyLane, count: int) -> int:
        """Return how many of the wanted jobs one claim asks for."""
        most = _SHARED_ROWS if time.monotonic() < self._shared_until else count
        return self._sizes.rows(lane.lane, self._linger.rows(lane, min(count, most)))

    def _repeat_until(self) -> float:
        """Return until when (monotonic clock) to claim from a single ready lane without a poll."""
        now, seconds = time.monotonic(), self._common.settings.poll_seconds
        return now + (min(seconds, _SHARED_SECONDS) if now < self._shared_until else seconds)

    async def lane(self, lease: Lease, lane: ReadyLane, count: int, again_until: float) -> int:
        """Claim from a lane, and repeat while each claim is full, from ``again_until`` on only if
        no other lane is ready.

        Return how many jobs were claimed. With 0.0 it claims once.
        """
        if lane.is_suspect:
            return await self._claim_suspects(lease, lane, count)
        if lane.is_limited:
            return await self._claim_limited(lease, lane, count)
        taken = 0
        count = self._rows(lane, count)
        if count <= 0:
            return 0
        claim = asyncio.create_task(self._calls.one(lease, lane, count))
        try:
            while True:
                batch, rows = await claim
                taken += len(rows)
                is_full = is_full_claim(count, jobs=len(rows), size=sum(row.size for row in rows))
                is_due = is_full and 0 < again_until <= time.monotonic()
                if is_due and not self._executor.is_decoding_behind:
                    again_until = await self._ready.only_until(lease, lane)
                    again_until = min(again_until, self._repeat_until())
                if is_full and time.monotonic() < again_until:
                    # More jobs are likely: the server looks for them while the executor takes
                    # these.
                    count = self._rows(lane, self._wanted.jobs(coming=len(rows)))
                    again = count > 0 and not (self._common.signals.is_stopping or lease.lost)
                else:
                    again = False
                if again:
                    claim = asyncio.create_task(self._calls.one(lease, lane, count))
                    await asyncio.sleep(0)
                if batch is not None and not lease.lost:
                    self._executor.take([HeldJob(row, batch, lane) for row in rows])
                if not again:
                    return taken
        finally:
            claim.cancel()

    async def _claim_limited(self, lease: Lease, lane: ReadyLane, count: int) -> int:
        """Claim from a lane whose queue has limits on starts; return how many jobs were claimed.

        It claims nothing in advance, except for calls of batch handlers: a job that waits here for
        a slot would use its limits without running.
        """
        taken = 0
        until = time.monotonic() + self._common.settings.poll_seconds
        if not _has_only_batches(self._common.app.kinds, lane.queue):
            free = self._executor.slots.concurrency - self._executor.busy - self._executor.buffered
            count = min(count, free)
        while taken < count and not (self._common.signals.is_stopping or lease.lost):
            asked = self._sizes.rows(lane.lane, count - taken)
            batch, rows = await self._calls.one(lease, lane, asked)
            if batch is None or lease.lost:
                break
            taken += len(rows)
            self._executor.take([HeldJob(row, batch, lane) for row in rows])
            if len(rows) < asked or time.monotonic() > until:
                break  # The limits admit no more, or other lanes are to be served.
        return taken

    async def _claim_suspects(self, lease: Lease, lane: ReadyLane, count: int) -> int:
        taken = 0
        while (
            taken < count
            and self._executor.busy < self._executor.slots.concurrency
            and not (self._common.signals.is_stopping or lease.lost)
        ):
            batch, rows = await self._calls.one(lease, lane, 1)
            if batch is None or lease.lost:
                break
            taken += 1
            await self._suspects.start(HeldJob(rows[0], batch, lane, alone=True))
        return taken


def _has_only_batches(kinds: Iterable[Kind], queue: str) -> bool:
    """Return whether the queue has handlers, and all of them are batch handlers."""
    sizes = [kind.batch_size for kind in kinds if kind.queue == queue]
    return bool(sizes) and all(sizes)


def _name(lane: ReadyLane) -> LaneName:
    return LaneName(lane.queue, lane.priority)


def _without_large(lanes: Iterable[ReadyLane], sizes: LaneSizes) -> list[ReadyLane]:
    """Return the lanes of the names whose jobs are not known to be large."""
    lanes = list(lanes)
    large = {_name(lane) for lane in lanes if sizes.mean(lane.lane)}
    return [lane for lane in lanes if _name(lane) not in large]


def _smallest_first(
    shares: list[tuple[list[ReadyLane], int]], sizes: LaneSizes
) -> list[tuple[list[ReadyLane], int]]:
    """Return the shares of a plan with queues of small jobs first: a claim of large jobs takes
    long. The order within a queue stays.
    """
    largest: dict[str, int] = {}
    for lanes, _ in shares:
        for lane in lanes:
            largest[lane.queue] = max(largest.get(lane.queue, 0), sizes.mean(lane.lane))
    return sorted(shares, key=lambda share: largest[share[0][0].queue])

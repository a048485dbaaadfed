"""The calls that claim jobs, and the batches that they make."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from forebay.model.spans import PLACE
from forebay.ops import protocol
from forebay.policy.claims import LANES_PER_CLAIM, needs_no_order
from forebay.worker.ground.held import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.db.session import Session
    from forebay.ops.claimed import ClaimedJob, RawKinds
    from forebay.ops.protocol import ReadyLane
    from forebay.policy.claims import LaneSizes
    from forebay.worker.claim._linger import Linger
    from forebay.worker.ground.held import Lease
    from forebay.worker.ground.stats import Stats

#: For how long a lane is claimed alone after a claim of several lanes left it out, and for how many
#: lanes that is remembered.
_ALONE_SECONDS: Final = 5.0
_LANES_REMEMBERED: Final = 10_000


class ClaimCalls:
    """Claims from one lane, or from several lanes by one call.

    It guarantees that no claim number is used twice, and that a batch is part of its lease before
    its jobs are passed on. An error whose claim may have been committed is raised: the caller
    retires the lease.

    Args:
        session: the connection for claims.
        sizes: learns how large the jobs of a lane are.
        linger: learns which claims emptied their lane.
        stats: counts the claimed jobs.
        on_claimed: called for each batch.
        raw_kinds: the kinds whose handlers take arguments as text.
    """

    def __init__(
        self,
        session: Session,
        sizes: LaneSizes,
        linger: Linger,
        stats: Stats,
        on_claimed: Callable[[], None],
        *,
        raw_kinds: RawKinds,
    ) -> None:
        self._raw_kinds = raw_kinds
        self._session = session
        self._sizes = sizes
        self._linger = linger
        self._stats = stats
        self._on_claimed = on_claimed
        #: Lanes that cannot be claimed together with others, and until when that is remembered.
        self._alone_until: dict[int, float] = {}
        #: Maximum attempts by queue.
        self.queue_attempts: Mapping[str, int] = {}

    async def one(
        self, lease: Lease, lane: ReadyLane, count: int
    ) -> tuple[Batch | None, list[ClaimedJob]]:
        """Make one claim; the claimed jobs become a batch of the lease."""
        claim_no = lease.next_claim_no()
        began_at = time.time()
        try:
            rows = await self._session.run(
                protocol.claim(
                    lease_id=lease.lease_id,
                    claim_no=claim_no,
                    floor=lease.floor,
                    group_id=lane.group_id,
                    lane=lane.lane,
                    limit=count,
                    queue=lane.queue,
                    raw=self._raw_kinds,
                )
            )
        except Exception as error:
            if count > 1 and self._session.is_too_large(error):
                return await self.one(lease, lane, count // 2)
            raise
        return self._new_batch(lease, claim_no, lane, asked=count, rows=rows, began_at=began_at)

    def _new_batch(
        self,
        lease: Lease,
        claim_no: int,
        lane: ReadyLane,
        *,
        asked: int,
        rows: list[ClaimedJob],
        began_at: float,
    ) -> tuple[Batch | None, list[ClaimedJob]]:
        """Make claimed jobs a batch of the lease."""
        if not rows:
            return None, []
        if PLACE.installed is not None:
            PLACE.installed.claimed(lane.queue, len(rows), began_at)
        self._sizes.record(lane.lane, size=sum(row.size for row in rows), jobs=len(rows))
        self._linger.record(lane, asked=asked, rows=rows)
        if lease.lost:
            # The lease was lost during the call. The jobs come back when it is revoked.
            return None, []
        if most := self.queue_attempts.get(lane.queue):
            for row in rows:
                row.max_attempts = row.max_attempts or most
        batch = Batch(lease, claim_no, len(rows), set(range(1, len(rows) + 1)))
        batch.frees_others = lane.is_limited or any(row.ordering_key is not None for row in rows)
        batch.lane = lane
        lease.batches[claim_no] = batch
        self._on_claimed()
        self._stats.claimed += len(rows)
        return batch, rows

    async def together(
        self, lease: Lease, shares: Sequence[tuple[list[ReadyLane], int]]
    ) -> tuple[list[tuple[ReadyLane, Batch, list[ClaimedJob]]], list[tuple[list[ReadyLane], int]]]:
        """Claim from many lanes by one call.

        Return the batches with their jobs, and the shares that have to be claimed one by one: those
        of names whose lanes have an order, and of lanes that ``claim_lanes_v1`` leaves out.

        Args:
            lease: the open lease.
            shares: the lanes of each name, in order, and how many of their jobs.
        """
        now = time.monotonic()
        picks: list[tuple[ReadyLane, int]] = []
        rest: list[tuple[list[ReadyLane], int]] = []
        for lanes, count in shares:
            lane = lanes[0]
            rows = self._sizes.rows(lane.lane, self._linger.rows(lane, count))
            is_small = not self._sizes.mean(lane.lane) and rows > 0
            is_alone = self._alone_until.get(lane.lane, 0.0) > now
            if needs_no_order(lanes) and is_small and not is_alone and len(picks) < LANES_PER_CLAIM:
                picks.append((lane, rows))
            else:
                rest.append((lanes, count))
        if len(picks) < 2:
            return [], list(shares)
        first, *_ = claim_nos = lease.next_claim_nos(len(picks))
        began_at = time.time()
        found = await self._session.run(
            protocol.claim_lanes(
                lease_id=lease.lease_id,
                claim_no=first,
                floor=min(lease.batches, default=first),
                lanes=[lane for lane, _ in picks],
                limits=[rows for _, rows in picks],
                raw=self._raw_kinds,
            )
        )
        batches = []
        for place, (lane, count) in enumerate(picks):
            if place not in found:
                self._alone_until[lane.lane] = now + _ALONE_SECONDS
                rest.append(([lane], count))
                continue
            batch, jobs = self._new_batch(
                lease,
                claim_nos[place],
                lane,
                asked=count,
                rows=found[place] or [],
                began_at=began_at,
            )
            if batch is not None:
                batches.append((lane, batch, jobs))
        if len(self._alone_until) > _LANES_REMEMBERED:
            self._alone_until = {
                lane: until for lane, until in self._alone_until.items() if until > now
            }
        return batches, rest

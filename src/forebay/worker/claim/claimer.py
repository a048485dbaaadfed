"""The claim loop of a worker: it finds ready lanes, plans how many jobs to claim from each, and claims them.

Invariant: if the answer to a claim is lost, the claim may have been committed. The worker then retires the lease and claims
nothing more under it.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from forebay.errors import (
    DatabaseUnavailable,
    ForeignCluster,
    GroupNotFound,
    LeaseLost,
    SchemaError,
)
from forebay.model.text import logger
from forebay.ops import protocol
from forebay.ops.claimed import RawKinds
from forebay.policy.backoff import reconnect_seconds
from forebay.policy.claims import (
    ClaimOrder,
    LaneName,
    LaneSizes,
    is_full_claim,
)
from forebay.worker.claim._announcements import DELAY_SECONDS, Announcements
from forebay.worker.claim._claim_calls import ClaimCalls
from forebay.worker.claim._linger import Linger
from forebay.worker.claim._ready_lanes import ReadyLanes
from forebay.worker.claim._wanted import Wanted
from forebay.worker.ground.held import HeldJob
from forebay.worker.ground.lock_warnings import holders_after_timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from forebay.arguments.kinds import Kind
    from forebay.config import WorkerSettings
    from forebay.db.session import Session
    from forebay.ops.protocol import ReadyLane
    from forebay.worker.claim.polling import PollLeadership
    from forebay.worker.ground.application import Application, Intake
    from forebay.worker.ground.held import Batch, Lease
    from forebay.worker.ground.signals import Signals
    from forebay.worker.ground.stats import Stats
    from forebay.worker.lease.leases import LeaseKeeper
    from forebay.worker.run.executor import Executor
    from forebay.worker.run.suspects import Suspects

log = logger("forebay.worker")

#: Pause after a ready lane gave no job because another worker was faster.
_EMPTY_CLAIM_PAUSE_SECONDS = 0.002

#: For how long, and how many jobs at a time, a worker claims from one lane without a poll while jobs of other lanes come too, and for
#: how long it remembers that they do. Their producers do not notify a worker that is busy.
_SHARED_SECONDS = 0.01
_SHARED_ROWS = 250
_SHARED_MEMORY_SECONDS = 10.0

#: How long a call that is under way may take once the worker stops.
_LAST_CALL_SECONDS = 1.0


class Claimer:
    """Claims jobs for the free slots, and a few in advance, and passes them to the executor.

    Owns the state of the lanes: which are ready, which is next, and which had a notification or were freed by a settlement. It
    guarantees that it claims nothing once the worker stops or the lease is retired or lost, that queues get slots by their
    weights, and that no lane starves.

    After a crash the claimed jobs stay under the open leases. They come back when these are revoked.

    Args:
        app: the application with the handlers.
        session: the connection for claims.
        settings: the poll interval and other limits of claims.
        weights: the queues with their weights.
        leases: provides the current lease.
        executor: runs claimed jobs.
        suspects: runs claimed suspects.
        leadership: decides when to poll again.
        signals: wake and end the loop.
        stats: counts the claims.
        on_claimed: called after a claim that returned jobs.
        is_finished: called when no lane was ready; true ends the loop. None: the loop runs until it is stopped.
        intake: bounds the claims; None: only the free slots do.
    """

    def __init__(
        self,
        app: Application,
        session: Session,
        settings: WorkerSettings,
        weights: Mapping[str, int],
        *,
        leases: LeaseKeeper,
        executor: Executor,
        suspects: Suspects,
        leadership: PollLeadership,
        signals: Signals,
        stats: Stats,
        on_claimed: Callable[[], None],
        is_finished: Callable[[], Awaitable[bool]] | None = None,
        intake: Intake | None = None,
    ) -> None:
        self._app = app
        self._session = session
        self._settings = settings
        self._weights = weights
        self._leases = leases
        self._executor = executor
        self._suspects = suspects
        self._leadership = leadership
        self._signals = signals
        self._stats = stats
        self._is_finished = is_finished
        self._intake = intake
        self._order = ClaimOrder(weights, settings.starving_share, random.random)
        #: Until this time (monotonic clock) no poll is needed: producers notify of new jobs.
        self._polled_until = 0.0
        #: The lanes of the last poll that found any, and until when (monotonic clock) jobs of several are expected.
        self._last_names: set[LaneName] = set()
        self._shared_until = 0.0
        #: Whether this worker claimed all that was ready at the last poll, or was announced since.
        self._is_drained = False
        self._notified = Announcements()
        #: Lanes whose limits may admit more jobs, because some of their jobs were settled.
        self._freed: dict[int, ReadyLane] = {}
        self._sizes, self._linger = LaneSizes(), Linger(app.kinds)
        raw = [kind for kind in app.kinds if kind.takes_raw]
        raw_kinds = RawKinds({kind.name for kind in raw}, {kind.queue for kind in raw})
        self._calls = ClaimCalls(
            session, self._sizes, self._linger, stats, on_claimed, raw_kinds=raw_kinds
        )
        self._wanted = Wanted(app.kinds, settings, weights, executor, intake)
        self._ready = ReadyLanes(session, leases, leadership, signals, weights)
        self._must_check_batches = False
        #: Whether the worker stopped without an answer from the database.
        self.was_cut = False

    def set_queue_attempts(self, attempts: Mapping[str, int]) -> None:
        """Set the maximum attempts by queue, as of the last heartbeat; the database decides by its own."""
        self._calls.queue_attempts = attempts

    def notify(self, queue: str) -> None:
        """Record the notification of a producer for a queue."""
        self._leadership.record_notification(queue)
        if self._notified.add(queue):
            self._signals.wake.set()
        else:
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self._recheck, queue)

    def _recheck(self, queue: str) -> None:
        if self._notified.recheck(queue):
            self._signals.wake.set()

    def look(self) -> None:
        """Poll soon: jobs became ready that no producer announced."""
        self._is_drained = False
        self._signals.wake.set()

    def forget_lanes(self) -> None:
        """Forget the known lanes: the groups that read them have other ids now."""
        self._freed.clear()
        self._is_drained = False
        self._ready.forget()

    def free(self, batches: Iterable[Batch]) -> None:
        """Record that the settlement of some batches may have made other jobs ready."""
        for batch in batches:
            if batch.lane is not None and batch.lane.is_limited and not batch.lane.is_suspect:
                self._freed[batch.lane.lane] = batch.lane
        self.look()

    async def run(self) -> None:
        """Claim until stopped; a call that is under way then has one second to return."""
        claiming = asyncio.create_task(self._claim_until_stopped())
        stopped = asyncio.create_task(self._signals.stop_event.wait())
        try:
            await asyncio.wait({claiming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({claiming}, timeout=_LAST_CALL_SECONDS)
            if not claiming.done():
                self.was_cut = True
                self._session.cut()
                await asyncio.wait({claiming}, timeout=0.2)
                claiming.cancel()
                await asyncio.wait({claiming})
            if not claiming.cancelled():
                claiming.result()
        finally:
            stopped.cancel()
            claiming.cancel()
            self._ready.forget()

    async def _claim_until_stopped(self) -> None:
        signals = self._signals
        while not signals.is_stopping:
            try:
                if self._leases.current is None:
                    await self._leases.open()
                    continue
                if self._leadership.producers_notify is None:
                    self._leadership.producers_notify = await self._session.run(
                        protocol.producers_notify()
                    )
                if self._must_check_batches:
                    await self._leases.drop_missing_batches()
                    self._must_check_batches = False
                busy = await self._claim_once(self._leases.current)
                signals.failed_claims = 0
                signals.outage.answered("claims")
                if not busy and self._is_finished is not None and await self._is_finished():
                    return
            except LeaseLost:
                signals.failed_claims += 1
                if self._leases.current is not None:
                    self._leases.lose(self._leases.current)
                await signals.pause_in_outage(signals.failed_claims)
            except DatabaseUnavailable as error:
                signals.failed_claims += 1
                self._stats.reconnects += 1
                signals.outage.failed("claims", error)
                self._leases.retire()
                self._must_check_batches = True
                await signals.pause_in_outage(signals.failed_claims)
            except (ForeignCluster, SchemaError) as error:
                signals.failed_claims += 1
                log.error("claims stopped: %s", error)
                await signals.pause(5.0)
            except Exception as error:
                signals.failed_claims += 1
                if signals.failed_claims in {1, 10, 100}:
                    log.error("cannot claim jobs: %s", error)
                    for holder in await holders_after_timeout(self._session, error):
                        log.warning("a claim waited for a lock: %s. %s", holder, holder.remedy)
                if isinstance(error, GroupNotFound) or not self._session.refused(error):
                    # A group is opened with the next lease. Or the server did not refuse the claim, but its answer could not
                    # be read: the claimed jobs are unknown.
                    self._leases.retire()
                await signals.pause(
                    reconnect_seconds(signals.failed_claims, random.random(), cap_seconds=5.0)
                )

    async def _claim_once(self, lease: Lease) -> bool:
        """Look for ready lanes and claim jobs for the free slots; return whether there was work."""
        settings, signals = self._settings, self._signals
        signals.wake.clear()
        if self._intake is not None and (pause := self._intake.pause_seconds()) > 0:
            await self._leadership.resign_when_saturated()
            await self._signals.sleep(pause)
            return True
        if self._notified:
            self._is_drained = await self._claim_notified(lease)
        if self._freed and await self._claim_freed(lease):
            return True
        pause = self._polled_until - time.monotonic()
        if self._is_drained and pause > 0 and self._leadership.is_notified:
            # All lanes were polled a moment ago, and producers notify until the next poll.
            await self._signals.sleep(pause)
            return True
        # The jobs just claimed start here, so that their slots no longer count as free.
        await asyncio.sleep(0)
        wanted = self._wanted.jobs()
        if wanted <= 0:
            await self._leadership.resign_when_saturated()
            await self._signals.sleep(settings.poll_seconds if self._leadership.held else None)
            return True
        idle = self._executor.is_idle
        lanes = await self._ready.next(wanted, self._notified if self._is_drained else None)
        self._is_drained = not lanes
        if not lanes:
            signals.failed_claims = 0  # now, since this call may sleep
            self._polled_until = self._ready.until
            self._leadership.record_idle()
            if self._is_finished is None or not idle:
                await self._signals.sleep(self._leadership.idle_seconds())
            return False
        claimed = await self._claim_planned(lease, lanes, wanted)
        await self._leadership.resign_when_saturated()
        if claimed == 0:
            # Without a free slot only suspects are left: the next free slot wakes this loop.
            is_full = self._executor.busy >= self._executor.slots.concurrency
            pause = self._linger.pause_seconds(lanes, _EMPTY_CLAIM_PAUSE_SECONDS)
            await self._signals.sleep(settings.poll_seconds if is_full else pause)
        return True

    async def _claim_planned(self, lease: Lease, lanes: Sequence[ReadyLane], wanted: int) -> int:
        """Claim up to ``wanted`` jobs from ready lanes, by weight and priority; return how many were claimed."""
        settings = self._settings
        names = {*map(_name, lanes)}
        if len(names | self._last_names) > 1:
            self._shared_until = time.monotonic() + _SHARED_MEMORY_SECONDS
        self._last_names = names
        open_lanes = self._linger.open(lanes)
        if self._executor.is_decoding_behind:
            # More large jobs would only take the places of small ones.
            open_lanes = _without_large(open_lanes, self._sizes)
            if not open_lanes:
                await self._signals.sleep(settings.poll_seconds)
                return 0
        shares = _smallest_first(self._order.shares(open_lanes, wanted), self._sizes)
        # A single lane, or the shards of one queue, need not give way to other lanes: claim from it again until the next
        # poll is due.
        alone = len({*map(_name, open_lanes)}) == 1 and not any(lane.is_private for lane in lanes)
        again_until = self._repeat_until() if alone or len(lanes) == 1 else 0.0
        claimed = 0
        if len(shares) > 1:
            taken_jobs, shares = await self._calls.together(lease, shares)
            for lane, batch, rows in taken_jobs:
                claimed += len(rows)
                self._executor.take([HeldJob(row, batch, lane) for row in rows])
        return claimed + await self._claim_shares(lease, shares, again_until)

    async def _claim_shares(
        self,
        lease: Lease,
        shares: Iterable[tuple[list[ReadyLane], int]],
        again_until: float = 0.0,
    ) -> int:
        """Claim the shares lane by lane; each lane gets what those of its name before it left. Return how many were claimed."""
        claimed = 0
        for lanes, count in shares:
            left = count
            for lane in lanes:
                if left <= 0 or self._signals.is_stopping or lease.lost:
                    break
                left -= await self._claim_lane(lease, lane, left, again_until)
            claimed += count - left
        return claimed

    def _rows(self, lane: ReadyLane, count: int) -> int:
        """Return how many of the wanted jobs one claim asks for."""
        most = _SHARED_ROWS if time.monotonic() < self._shared_until else count
        return self._sizes.rows(lane.lane, self._linger.rows(lane, min(count, most)))

    def _repeat_until(self) -> float:
        """Return until when (monotonic clock) to claim from a single ready lane without a poll."""
        now, seconds = time.monotonic(), self._settings.poll_seconds
        return now + (min(seconds, _SHARED_SECONDS) if now < self._shared_until else seconds)

    async def _claim_notified(self, lease: Lease) -> bool:
        """Claim from queues that had a notification, without a poll; return whether that took all their jobs.

        Only if there are free slots and the queue has one known public lane, and for at most half of the queue's share: retries,
        other lanes and other queues get theirs from the call of ``ready_v1`` that follows. Where the last poll found nothing, the
        slots are shared by the notified queues alone. Only a leader does this, because a notification wakes every worker and
        claims from one lane run one after another.
        """
        notified = self._notified.take()
        # The jobs just claimed start here, so that their slots no longer count as free.
        await asyncio.sleep(0)
        wanted, total = self._wanted.jobs(), sum(self._weights.values())
        if wanted <= 0 or not (self._leadership.held and self._suspects.is_idle):
            return False
        if self._is_drained and time.monotonic() < self._polled_until:
            total = sum(self._weights[queue] for queue in notified)
            await self._ready.learn(notified)
        was_all = True
        for queue in notified:
            lanes = self._ready.public(queue)
            if len(lanes) != 1 or self._signals.is_stopping or lease.lost:
                was_all = False
                continue
            count = max(1, (wanted * self._weights[queue] // total + 1) // 2)
            taken = await self._claim_lane(lease, lanes[0], count, again_until=0.0)
            was_all &= self._notified.explain(queue, notified[queue], taken) and taken < count
        return was_all

    async def _claim_freed(self, lease: Lease) -> bool:
        """Claim from limited lanes that a settlement freed, without a poll; return whether any job was claimed.

        Only shortly after a poll that found no other lane; the next poll serves all other lanes.
        """
        freed, self._freed = self._freed, {}
        taken = 0
        if time.monotonic() < self._ready.until and self._ready.last <= freed.keys():
            await asyncio.sleep(0)
            if (wanted := self._wanted.jobs()) > 0:
                shares = self._order.shares(freed.values(), wanted)
                taken = await self._claim_shares(lease, shares)
        return taken > 0

    async def _claim_lane(
        self, lease: Lease, lane: ReadyLane, count: int, again_until: float
    ) -> int:
        """Claim from a lane, and repeat while each claim is full, from ``again_until`` on only if no other lane is ready.

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
                    # More jobs are likely: the server looks for them while the executor takes these.
                    count = self._rows(lane, self._wanted.jobs(coming=len(rows)))
                    again = count > 0 and not (self._signals.is_stopping or lease.lost)
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

        It claims nothing in advance, except for calls of batch handlers: a job that waits here for a slot would use its
        limits without running.
        """
        taken = 0
        until = time.monotonic() + self._settings.poll_seconds
        if not _has_only_batches(self._app.kinds, lane.queue):
            free = self._executor.slots.concurrency - self._executor.busy - self._executor.buffered
            count = min(count, free)
        while taken < count and not (self._signals.is_stopping or lease.lost):
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
            and not (self._signals.is_stopping or lease.lost)
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
    """Return the shares of a plan with queues of small jobs first: a claim of large jobs takes long. The order within a queue stays."""
    largest: dict[str, int] = {}
    for lanes, _ in shares:
        for lane in lanes:
            largest[lane.queue] = max(largest.get(lane.queue, 0), sizes.mean(lane.lane))
    return sorted(shares, key=lambda share: largest[share[0][0].queue])

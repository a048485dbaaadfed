"""The claim loop of a worker: which lanes are ready, how many jobs to take of which, and taking them.

Invariant: a claim whose answer was lost may have been committed. Its lease is then retired, and nothing more is claimed under it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from forebay.errors import DatabaseUnavailable, ForeignCluster, LeaseLost, SchemaError
from forebay.ops import protocol
from forebay.policy.backoff import reconnect_seconds
from forebay.policy.claims import Fairness, LaneName, claim_size, plan_claims
from forebay.worker._held import Batch, HeldJob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from forebay.config import WorkerSettings
    from forebay.db.session import Session
    from forebay.ops.protocol import ClaimedJob, ReadyLane
    from forebay.worker._application import Application
    from forebay.worker._executor import Executor
    from forebay.worker._held import Lease
    from forebay.worker._leases import LeaseKeeper
    from forebay.worker._polling import PollLeadership
    from forebay.worker._signals import Signals
    from forebay.worker._stats import Stats
    from forebay.worker._suspects import Suspects

log = logging.getLogger("forebay.worker")

#: After a claim of a lane that was reported ready gave nothing, another worker was faster.
_EMPTY_CLAIM_PAUSE_SECONDS = 0.002

#: How long a call to the database may take when the worker is told to stop.
_LAST_CALL_SECONDS = 1.0


class Claimer:
    """Claims jobs for the free slots, and a little ahead, and hands them to the executor.

    Owns what is known of the lanes: which ones are ready, whose turn it is, and which ones were notified of or freed. It promises
    that nothing is claimed once the worker stops or the lease is retired or lost, that queues get slots by their weights, and that
    no lane starves.

    A crash leaves what was claimed under the open leases: it comes back when they are revoked.

    Args:
        app: its handlers.
        session: the connection of the claims.
        settings: how many slots, and how often to look.
        weights: the queues with their weights.
        leases: gives the lease to claim under.
        executor: runs what was claimed.
        suspects: runs claimed suspects.
        leadership: says how soon to look again.
        signals: what wakes and ends the loop.
        stats: where claims are counted.
        on_claimed: called after a claim that gave jobs.
        is_finished: called when nothing was ready; true ends the loop. None for a loop that runs until it is stopped.
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
        self._on_claimed = on_claimed
        self._is_finished = is_finished
        self._fairness = Fairness()
        #: Until then, by our clock, what was ready was looked at closely enough, and producers notify of what comes.
        self._polled_until = 0.0
        self._notified: set[str] = set()
        self._public_lanes: dict[str, dict[int, ReadyLane]] = {}
        #: Lanes whose limits may let more through, since jobs of theirs were settled.
        self._freed: dict[int, ReadyLane] = {}
        #: Until then nothing but these is known to be ready.
        self._only: frozenset[int] = frozenset()
        self._only_until = 0.0
        self._must_check_batches = False
        #: Whether the database did not answer when the worker stopped.
        self.was_cut = False

    def notify(self, queue: str) -> None:
        """A producer notified of a queue."""
        self._notified.add(queue)
        self._signals.wake.set()

    def free(self, batches: Iterable[Batch]) -> None:
        """The settlement of some batches may have made other jobs ready."""
        for batch in batches:
            if batch.lane is not None and batch.lane.is_limited and not batch.lane.is_private:
                self._freed[batch.lane.lane] = batch.lane
        self._signals.wake.set()

    async def run(self) -> None:
        """Claim until stopped; a call that is under way then has a second to come back."""
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

    async def _claim_until_stopped(self) -> None:
        failures = 0
        while not self._signals.is_stopping:
            try:
                if self._leases.current is None:
                    await self._leases.open()
                    continue
                if self._must_check_batches:
                    await self._leases.drop_missing_batches()
                    self._must_check_batches = False
                busy = await self._claim_once(self._leases.current)
                failures = 0
                if not busy and self._is_finished is not None and await self._is_finished():
                    return
            except (LeaseLost, DatabaseUnavailable) as error:
                failures += 1
                self._stats.reconnects += 1
                if isinstance(error, LeaseLost) and self._leases.current is not None:
                    self._leases.lose(self._leases.current)
                else:
                    if failures in {1, 10, 100}:
                        log.warning("claims interrupted: %s", error)
                    self._leases.retire()
                    self._must_check_batches = True
                await self._signals.pause(
                    min(
                        reconnect_seconds(failures, random.random()),
                        self._settings.reconnect_seconds_max,
                    )
                )
            except (ForeignCluster, SchemaError) as error:
                failures += 1
                log.error("claims stopped: %s", error)
                await self._signals.pause(5.0)
            except Exception as error:
                failures += 1
                if failures in {1, 10, 100}:
                    log.error("cannot claim: %s", error)
                if not self._session.refused(error):
                    # Not the server said no, but we stumbled over its answer: what it gave is unknown here.
                    self._leases.retire()
                await self._signals.pause(min(reconnect_seconds(failures, random.random()), 5.0))

    async def _claim_once(self, lease: Lease) -> bool:
        """Look for work and claim for the free slots; returns whether there was anything to do."""
        settings = self._settings
        self._signals.wake.clear()
        if self._notified and await self._claim_notified(lease):
            # All else was looked at a moment ago, and producers notify until it is again.
            pause = self._polled_until - time.monotonic()
            if pause > 0:
                await self._signals.sleep(pause)
                return True
        if self._freed and await self._claim_freed(lease):
            return True
        # What was just claimed begins to run, so that its slots do not count as free.
        await asyncio.sleep(0)
        wanted = self._wanted()
        if wanted <= 0:
            await self._leadership.resign_when_saturated()
            await self._signals.sleep(settings.poll_seconds if self._leadership.held else None)
            return True
        idle = self._executor.is_idle
        called_at = time.monotonic()
        lanes = await self._session.run(
            protocol.ready(list(self._leases.groups), sleep_millis=self._sleep_millis())
        )
        self._only = frozenset(lane.lane for lane in lanes)
        self._only_until = called_at + settings.poll_seconds
        if not lanes:
            self._polled_until = called_at + settings.poll_seconds
            self._leadership.record_idle()
            if self._is_finished is not None and idle:
                return False
            await self._signals.sleep(await self._leadership.idle_seconds())
            return False
        claimed = await self._claim_planned(lease, lanes, wanted)
        await self._leadership.resign_when_saturated()
        if claimed == 0:
            # With no slot free, what is ready are suspects: a slot that becomes free wakes us.
            is_full = self._executor.busy >= settings.concurrency
            await self._signals.sleep(
                settings.poll_seconds if is_full else _EMPTY_CLAIM_PAUSE_SECONDS
            )
        return True

    async def _claim_planned(self, lease: Lease, lanes: Sequence[ReadyLane], wanted: int) -> int:
        """Claim that many jobs from lanes that are ready, by weight and priority; return how many came."""
        settings = self._settings
        by_name: dict[LaneName, list[ReadyLane]] = {}
        for lane in lanes:
            if not lane.is_private:
                self._public_lanes.setdefault(lane.queue, {})[lane.lane] = lane
            by_name.setdefault(LaneName(lane.queue, lane.priority), []).append(lane)
        plan = plan_claims(
            dict.fromkeys(by_name),
            slots=wanted,
            fairness=self._fairness,
            weights=self._weights,
            starving_share=settings.starving_share,
        )
        self._fairness = plan.fairness
        # One lane owes its turn to no other, nor do those of a sharded queue; what is new is noticed as soon as by a poll.
        alone = len(by_name) == 1 and not any(lane.is_private for lane in lanes)
        again_until = time.monotonic() + settings.poll_seconds if alone or len(lanes) == 1 else 0.0
        claimed = 0
        for name, count in plan.shares:
            left = count
            # Retries first, then suspects, then what is new: of a sharded queue in any order, lest all begin alike.
            for lane in sorted(
                by_name[name],
                key=lambda lane: (not lane.is_private, lane.is_suspect, random.random()),
            ):
                if left <= 0 or self._signals.is_stopping or lease.lost:
                    break
                taken = await self._claim_lane(lease, lane, left, again_until)
                claimed += taken
                left -= taken
        return claimed

    async def _claim_notified(self, lease: Lease) -> bool:
        """Claim from queues that were notified of, without claim what is ready; return whether that was all there was.

        Only when nothing runs and the queue has one public lane as far as we know, and at most half of the queue's share:
        retries, other lanes and other queues get theirs when ``ready_v1`` is called, after this. Only a leader does it, since a
        notification wakes every worker and claims of one lane take fairness.
        """
        notified, self._notified = self._notified, set()
        if not (self._leadership.held and self._executor.is_idle and self._suspects.is_idle):
            return False
        wanted, total = self._wanted(), sum(self._weights.values())
        was_all = True
        for queue in notified:
            lanes = list(self._public_lanes.get(queue, {}).values())
            if len(lanes) != 1 or self._signals.is_stopping or lease.lost:
                was_all = False
                continue
            count = max(1, (wanted * self._weights[queue] // total + 1) // 2)
            taken = await self._claim_lane(lease, lanes[0], count, again_until=0.0)
            was_all &= 0 < taken < count
        return was_all

    async def _claim_freed(self, lease: Lease) -> bool:
        """Claim where a settlement let more through a limit, without claim what is ready; return whether that gave any.

        Only a moment after a look that found nothing else: all else that waits has its turn at the next look.
        """
        freed, self._freed = self._freed, {}
        taken = 0
        if time.monotonic() < self._only_until and self._only <= freed.keys():
            await asyncio.sleep(0)
            for lane in freed.values():
                if (wanted := self._wanted()) > 0 and not (self._signals.is_stopping or lease.lost):
                    taken += await self._claim_limited(lease, lane, wanted)
        return taken > 0

    def _sleep_millis(self) -> int | None:
        """Return for how long producers shall notify when nothing is ready; None where no notification arrives."""
        if self._leadership.without_notifications:
            return None
        return int(self._settings.poll_seconds * 1000) + 30

    def _wanted(self, *, coming: int = 0) -> int:
        """Return how many jobs to claim.

        Args:
            coming: jobs that are claimed already and not taken up.
        """
        settings, executor = self._settings, self._executor
        means = executor.mean_seconds.values()
        size = claim_size(
            max(0, settings.concurrency - executor.busy - coming),
            concurrency=settings.concurrency,
            buffered=executor.buffered + coming,
            waiting_for_key=executor.waiting_for_key,
            # The slowest queue decides: work taken ahead of a slow handler would wait here.
            mean_seconds=max(means) if means else None,
            ahead_seconds=settings.ahead_seconds,
            rows_max=settings.claim_rows_max,
        )
        if executor.busy < settings.concurrency and not (executor.buffered or coming):
            # A batch handler's slot takes as many jobs as its batch.
            sizes = [
                kind.batch_size
                for kind in self._app.kinds
                if kind.batch_size and kind.queue in self._weights
            ]
            # One that is larger than a claim otherwise may be, was asked for by name.
            return max([min(size, settings.claim_rows_max), *sizes])
        return min(size, settings.claim_rows_max)

    async def _claim_lane(
        self, lease: Lease, lane: ReadyLane, count: int, again_until: float
    ) -> int:
        """Claim from a lane, and while it gives all that is asked, again until that time; return how many."""
        if lane.is_suspect:
            return await self._claim_suspects(lease, lane, count)
        if lane.is_limited:
            return await self._claim_limited(lease, lane, count)
        taken = 0
        claim = asyncio.create_task(self._claim(lease, lane, count))
        try:
            while True:
                batch, rows = await claim
                taken += len(rows)
                if len(rows) == count and time.monotonic() < again_until:
                    # There is probably more: the server looks for it while we take these up.
                    count = self._wanted(coming=len(rows))
                    again = count > 0 and not (self._signals.is_stopping or lease.lost)
                else:
                    again = False
                if again:
                    claim = asyncio.create_task(self._claim(lease, lane, count))
                    await asyncio.sleep(0)
                if batch is not None and not lease.lost:
                    self._executor.take([HeldJob(row, batch, lane) for row in rows])
                if not again:
                    return taken
        finally:
            claim.cancel()

    async def _claim_limited(self, lease: Lease, lane: ReadyLane, count: int) -> int:
        """Claim where each claim gives jobs of one limit key, until there are enough or no more; return how many.

        Nothing is taken ahead, except for the calls of batch handlers: a job that waits here for a slot would use up
        what its limits allow.
        """
        taken = 0
        until = time.monotonic() + self._settings.poll_seconds
        if not all(kind.batch_size for kind in self._app.kinds if kind.queue == lane.queue):
            free = self._settings.concurrency - self._executor.busy - self._executor.buffered
            count = min(count, free)
        while taken < count and not (self._signals.is_stopping or lease.lost):
            batch, rows = await self._claim(lease, lane, count - taken)
            if batch is None or lease.lost:
                break
            taken += len(rows)
            self._executor.take([HeldJob(row, batch, lane) for row in rows])
            if time.monotonic() > until:
                break  # Other lanes have their turn.
        return taken

    async def _claim(
        self, lease: Lease, lane: ReadyLane, count: int
    ) -> tuple[Batch | None, list[ClaimedJob]]:
        """Make one claim; what it gave is a batch of the lease from then on."""
        claim_no = lease.next_claim_no()
        try:
            rows = await self._session.run(
                protocol.claim(
                    lease_id=lease.lease_id,
                    claim_no=claim_no,
                    floor=lease.floor,
                    group_id=lane.group_id,
                    lane=lane.lane,
                    limit=count,
                )
            )
        except Exception as error:
            if count > 1 and self._session.is_too_large(error):
                return await self._claim(lease, lane, count // 2)
            raise
        if not rows:
            return None, []
        if lease.lost:
            return None, []  # Lost during the call. They come back when the lease is revoked.
        batch = Batch(lease, claim_no, len(rows), set(range(1, len(rows) + 1)))
        batch.frees_others = lane.is_limited or any(row.ordering_key is not None for row in rows)
        batch.lane = lane
        lease.batches[claim_no] = batch
        self._on_claimed()
        self._stats.claimed += len(rows)
        return batch, rows

    async def _claim_suspects(self, lease: Lease, lane: ReadyLane, count: int) -> int:
        taken = 0
        while (
            taken < count
            and self._executor.busy < self._settings.concurrency
            and not (self._signals.is_stopping or lease.lost)
        ):
            batch, rows = await self._claim(lease, lane, 1)
            if batch is None or lease.lost:
                break
            taken += 1
            await self._suspects.start(HeldJob(rows[0], batch, lane, alone=True))
        return taken

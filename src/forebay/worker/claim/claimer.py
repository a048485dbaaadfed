"""The claim loop of a worker: it finds ready lanes, plans how many jobs to claim from each, and
claims them.

Invariant: if the answer to a claim is lost, the claim may have been committed. The worker then
retires the lease and claims nothing more under it.
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
from forebay.policy.backoff import reconnect_seconds
from forebay.worker.claim._announcements import DELAY_SECONDS, Announcements
from forebay.worker.claim._lane_claims import LaneClaims
from forebay.worker.claim._ready_lanes import ReadyLanes
from forebay.worker.claim._wanted import Wanted
from forebay.worker.ground.lock_warnings import holders_after_timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from forebay.db.session import Session
    from forebay.ops.protocol import ReadyLane
    from forebay.worker.claim.polling import PollLeadership
    from forebay.worker.ground.common import Common
    from forebay.worker.ground.held import Batch, Lease
    from forebay.worker.lease.leases import LeaseKeeper
    from forebay.worker.run.runners import Runners

log = logger("forebay.worker")

#: Pause after a ready lane gave no job because another worker was faster.
_EMPTY_CLAIM_PAUSE_SECONDS = 0.002

#: How long a call that is under way may take once the worker stops.
_LAST_CALL_SECONDS = 1.0


class Claimer:
    """Claims jobs for the free slots, and a few in advance, and passes them to the executor.

    Owns the state of the lanes: which are ready, which is next, and which had a notification or
    were freed by a settlement. It guarantees that it claims nothing once the worker stops or the
    lease is retired or lost, that queues get slots by their weights, and that no lane starves.

    After a crash the claimed jobs stay under the open leases. They come back when these are
    revoked.

    Args:
        common: the poll interval, the queues with their weights, and the signals that wake and end
            the loop.
        session: the connection for claims.
        leases: provides the current lease.
        runners: run claimed jobs.
        leadership: decides when to poll again.
        on_claimed: called after a claim that returned jobs.
    """

    def __init__(
        self,
        common: Common,
        session: Session,
        leases: LeaseKeeper,
        runners: Runners,
        leadership: PollLeadership,
        *,
        on_claimed: Callable[[], None],
    ) -> None:
        self._session = session
        self._settings = common.settings
        self._weights = common.weights
        self._signals = common.signals
        self._stats = common.stats
        self._intake = common.app.intake
        self._leases = leases
        self._runners = runners
        self._leadership = leadership
        #: Until this time (monotonic clock) no poll is needed: producers notify of new jobs.
        self._polled_until = 0.0
        #: Whether this worker claimed all that was ready at the last poll, or was announced since.
        self._is_drained = False
        self._notified = Announcements()
        #: Lanes whose limits may admit more jobs, because some of their jobs were settled.
        self._freed: dict[int, ReadyLane] = {}
        self._wanted = Wanted(common, runners.executor)
        self._ready = ReadyLanes(session, leases, leadership, common.signals, common.weights)
        self._lanes = LaneClaims(
            common, session, runners, ready=self._ready, wanted=self._wanted, on_claimed=on_claimed
        )
        #: Set the maximum attempts by queue, as of the last heartbeat; the database decides by its
        #: own.
        self.set_queue_attempts = self._lanes.set_queue_attempts
        self._must_check_batches = False
        self._is_finished: Callable[[], Awaitable[bool]] | None = None
        #: Whether the worker stopped without an answer from the database.
        self.was_cut = False

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

    async def run(self, is_finished: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Claim until stopped; a call that is under way then has one second to return.

        Args:
            is_finished: called when no lane was ready; true ends the loop. None: the loop runs
                until it is stopped.
        """
        self._is_finished = is_finished
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
                self._leases.retire_old()
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
                    # A group is opened with the next lease. Or the server did not refuse the claim,
                    # but its answer could not be read: the claimed jobs are unknown.
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
        idle = self._runners.executor.is_idle
        lanes = await self._ready.next(wanted, self._notified if self._is_drained else None)
        self._is_drained = not lanes
        if not lanes:
            signals.failed_claims = 0  # now, since this call may sleep
            self._polled_until = self._ready.until
            self._leadership.record_idle()
            if self._is_finished is None or not idle:
                await self._signals.sleep(self._leadership.idle_seconds())
            return False
        claimed = await self._lanes.planned(lease, lanes, wanted)
        await self._leadership.resign_when_saturated()
        if claimed == 0:
            executor = self._runners.executor
            # Without a free slot only suspects are left: the next free slot wakes this loop.
            is_full = executor.busy >= executor.slots.concurrency
            pause = self._lanes.pause_after_nothing(lanes, _EMPTY_CLAIM_PAUSE_SECONDS)
            await self._signals.sleep(settings.poll_seconds if is_full else pause)
        return True

    async def _claim_notified(self, lease: Lease) -> bool:
        """Claim from queues that had a notification, without a poll.

        Return whether that took all their jobs.

        It claims only if there are free slots and the queue has one known public lane, and at most
        half of the queue's share: retries, other lanes and other queues get theirs from the call of
        ``ready_v1`` that follows. Where the last poll found nothing, the slots are shared by the
        notified queues alone. Only a leader does this, because a notification wakes every worker
        and claims from one lane run one after another.
        """
        notified = self._notified.take()
        # The jobs just claimed start here, so that their slots no longer count as free.
        await asyncio.sleep(0)
        wanted, total = self._wanted.jobs(), sum(self._weights.values())
        if wanted <= 0 or not (self._leadership.held and self._runners.suspects.is_idle):
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
            taken = await self._lanes.lane(lease, lanes[0], count, again_until=0.0)
            was_all &= self._notified.explain(queue, notified[queue], taken) and taken < count
        return was_all

    async def _claim_freed(self, lease: Lease) -> bool:
        """Claim from limited lanes that a settlement freed, without a poll.

        Return whether any job was claimed.

        It claims only shortly after a poll that found no other lane; the next poll serves all
        others.
        """
        freed, self._freed = self._freed, {}
        taken = 0
        if time.monotonic() < self._ready.until and self._ready.last <= freed.keys():
            await asyncio.sleep(0)
            if (wanted := self._wanted.jobs()) > 0:
                taken = await self._lanes.freed(lease, freed.values(), wanted)
        return taken > 0

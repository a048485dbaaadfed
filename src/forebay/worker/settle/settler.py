"""Settling: one call writes the outcomes of all jobs that ended since the last flush.

While a flush is under way the next one collects outcomes, so a busier worker sends larger flushes.
Flushes of jobs that are simply done also keep a short distance, so that a few hundred jobs a second
do not cost as many calls. A flush is identified by (lease, claim_no, flush_no) and is repeated
under the same name until it is answered: after a lost connection it is unknown whether it arrived,
and a second arrival changes nothing. A flush that the database refuses is set aside and retried
later, so that it does not block the others. If it refuses a value, or if an outcome cannot be sent
at all, a retry would end in the same way: then the flush is divided, and the job of that outcome
becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

from forebay.db.session import Session
from forebay.errors import DatabaseUnavailable, LeaseLost
from forebay.model.text import logger
from forebay.ops.protocol import Ended, Flush
from forebay.policy.backoff import reconnect_seconds
from forebay.worker.ground.outage import Outage
from forebay.worker.settle.bad_outcomes import settlement, without_bad_data
from forebay.worker.settle.settlement_session import REST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.worker.ground.held import Batch, HeldJob, Lease
    from forebay.worker.settle.listeners import Listeners
    from forebay.worker.settle.settlement_session import SettlementSession

log = logger("forebay.worker")

#: Least time between the starts of two flushes, unless something waits for the second one. The
#: first flush after a pause is sent at once.
_BETWEEN_FLUSHES_SECONDS = 0.01

#: Outcomes besides done in a transaction. Each has statements of its job, so thousands in one would
#: keep its locks for seconds, and could exceed the statement's time again and again.
_ENDED_MAX = 200

#: Pause before refused flushes are retried.
_SET_ASIDE_SECONDS = 3.0


class Settler:
    """Collects outcomes and writes them.

    Args:
        session: the connection for settlements.
        on_lease_lost: called with a lease that the database reports as closed.
        on_freed: called with batches whose settlement may have made other jobs ready: of an
            ordering key, or of a queue with limits.
        listeners: told of the outcomes that the database has.
        outage: wakes the retries; None: only their pauses do.
    """

    def __init__(
        self,
        session: SettlementSession,
        on_lease_lost: Callable[[Lease], None],
        on_freed: Callable[[list[Batch]], None] = lambda _: None,
        *,
        outage: Outage | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        self._listeners = listeners
        self._outage = outage or Outage()
        self._session = session
        self.lease_lost = on_lease_lost
        self._on_freed = on_freed
        self._dirty: dict[Batch, None] = {}
        self._solo: list[tuple[Batch, Flush]] = []
        self._under_way: list[tuple[Batch, Flush]] = []
        self._set_aside: list[tuple[Batch, Flush]] = []
        self._set_aside_until = 0.0
        self._wake = asyncio.Event()
        #: Set when something waits for a settlement.
        self._hurry = asyncio.Event()
        self._flushed_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        #: Settlements that the database refused, and those that had already arrived.
        self.refused = 0
        self.repeated = 0

    def done(self, jobs: Sequence[HeldJob]) -> None:
        """Record that jobs of one batch are done."""
        first, now = jobs[0], time.monotonic()
        batch = first.batch
        batch.done += [job.row.offset for job in jobs]
        # The jobs of a batch handler's call have one start.
        began, millis = first.started_at, first.millis(now)
        batch.millis += [millis if job.started_at == began else job.millis(now) for job in jobs]
        for job in jobs:
            if job.child is not None:
                batch.note_child(job.row.offset, job.child)
        self._mark_dirty(batch)

    def end(self, job: HeldJob, ended: Ended, *, solo: bool = False) -> None:
        """Record another outcome of a job. ``solo``: settle it under the name that its own
        transaction may have used.
        """
        job.measure(ended)
        if solo:
            flush = Flush(
                claim_no=job.batch.claim_no, flush_no=-job.row.offset, done=[], ended=[ended]
            )
            if job.child is not None and ended.outcome == "done":
                flush.children = [job.child]
                job.batch.child_offsets[job.child.job_id] = job.row.offset
            self._solo.append((job.batch, flush))
            self._hurry.set()
            self._notice()
            return
        if job.child is not None and ended.outcome == "done":
            job.batch.note_child(ended.offset, job.child)
        job.batch.ended.append(ended)
        self._hurry.set()
        self._mark_dirty(job.batch)

    def settled_by_handler(self, job: HeldJob) -> None:
        """Record that the job's own transaction settled it."""
        job.batch.untouched = False
        job.batch.close([job.row.offset])

    def _mark_dirty(self, batch: Batch) -> None:
        if batch.is_awaited:
            self._hurry.set()
        if batch not in self._dirty:  # Otherwise the next flush takes this job too.
            self._dirty[batch] = None
            self._notice()

    def _notice(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Flush whenever jobs have ended, until cancelled."""
        failures = 0
        while True:
            if not self._under_way:
                await self._something_to_do()
                await self._keep_distance()
                self._under_way = self._collect()
            try:
                await self._write()
                failures = 0
                self._outage.answered("settlements")
            except DatabaseUnavailable as error:
                failures += 1
                self._outage.failed("settlements", error)
                await self._outage.pause(failures)
            except Exception as error:
                # For example a full disk. Keep the flush; write the batches that can be written.
                failures += 1
                log.error("cannot settle jobs, will retry: %s", error)
                await self._write_one_by_one()
                await asyncio.sleep(reconnect_seconds(failures, random.random(), cap_seconds=5.0))
            if not (self._under_way or self._set_aside or self._dirty or self._solo):
                self._idle.set()

    async def _something_to_do(self) -> None:
        due_in = None
        if self._set_aside:
            due_in = max(0.0, self._set_aside_until - time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS if due_in is None else due_in):
                await self._wake.wait()
        if due_in is None and not self._wake.is_set():
            await self._session.rest()
            await self._wake.wait()
        self._wake.clear()

    async def _keep_distance(self) -> None:
        """Let the outcomes of a few milliseconds gather, unless something waits for one of them."""
        pause = self._flushed_at + _BETWEEN_FLUSHES_SECONDS - time.monotonic()
        if pause > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
        self._hurry.clear()
        self._flushed_at = time.monotonic()

    async def drained(self, seconds: float) -> bool:
        """Wait until all ended jobs are settled; False if that takes too long."""
        self._hurry.set()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no outcome waits to be settled."""
        return self._idle.is_set()

    def _collect(self) -> list[tuple[Batch, Flush]]:
        dirty, self._dirty = self._dirty, {}
        solo, self._solo = self._solo, []
        flushes = []
        if self._set_aside and time.monotonic() >= self._set_aside_until:
            aside, self._set_aside = self._set_aside, []
            flushes += aside
        for batch in dirty:
            while (flush := batch.take_flush(_ENDED_MAX)) is not None:
                flushes.append((batch, flush))
        # The order is that of execution: the database must learn that a job ended before it learns
        # that the next job of its key will run again, or it would requeue that job.
        return sorted([*flushes, *solo], key=lambda item: item[1].claim_no)

    async def _write(self) -> None:
        while self._under_way:
            lease = self._under_way[0][0].lease
            mine = [item for item in self._under_way if item[0].lease is lease]
            others = [item for item in self._under_way if item[0].lease is not lease]
            now = _of_one_transaction(mine)
            await self._write_some(lease, mine[:now])
            self._under_way = mine[now:] + others

    async def _write_one_by_one(self) -> None:
        kept = []
        for batch, flush in self._under_way:
            try:
                await self._write_some(batch.lease, [(batch, flush)])
            except DatabaseUnavailable:
                kept.append((batch, flush))
            except Exception as error:
                log.warning("cannot settle batch %s: %s", flush.claim_no, error)
                if Session.is_bad_data(error) and (parts := without_bad_data(batch, flush, error)):
                    kept += parts
                    continue
                self._set_aside.append((batch, flush))
                self._set_aside_until = time.monotonic() + _SET_ASIDE_SECONDS
        self._under_way = kept

    async def _write_some(self, lease: Lease, items: list[tuple[Batch, Flush]]) -> None:
        if lease.lost:
            for batch, flush in items:
                batch.close(_offsets(flush))
                self._announce(batch, flush, is_recorded=False)
            return
        try:
            statuses = await self._session.run(settlement(lease, items))
        except LeaseLost as error:
            log.warning("LeaseLost: %s; %s settlements had no effect", error, len(items))
            self.lease_lost(lease)
            for batch, flush in items:
                self._announce(batch, flush, is_recorded=False)
            return
        freed = [batch for batch, _ in items if batch.frees_others]
        if freed:
            self._on_freed(freed)
        for (batch, flush), status in zip(items, statuses, strict=True):
            batch.close(_offsets(flush))
            self._announce(batch, flush, is_recorded=status in {"settled", "repeated"})
            if status == "repeated":
                self.repeated += 1
            elif status != "settled":
                self.refused += 1
                log.warning(
                    "settlement of batch %s refused: %s; its jobs will be claimed again",
                    flush.claim_no,
                    status,
                )

    def _announce(self, batch: Batch, flush: Flush, *, is_recorded: bool) -> None:
        if not batch.announced or self._listeners is None:
            return
        report = self._listeners.recorded if is_recorded else self._listeners.refused
        for announcement in batch.take_announced(_offsets(flush)):
            report(announcement)


def _of_one_transaction(items: list[tuple[Batch, Flush]]) -> int:
    """Return how many of these flushes, from the first, one transaction writes."""
    ended = 0
    for number, (_, flush) in enumerate(items):
        ended += len(flush.ended)
        if number and ended > _ENDED_MAX:
            return number
    return len(items)


def _offsets(flush: Flush) -> list[int] | None:
    if flush.done is None:
        return None
    return flush.done + [ended.offset for ended in flush.ended]

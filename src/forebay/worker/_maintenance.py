"""Maintenance of the log: every worker can do it, and one worker does it.

Promotion of due jobs, revocation of lost leases, sealing and creating segments, expiry, retention, trimming. Each task is
one SQL function under a try-lock, so that several workers may call it at the same time. Normally only the leader of
maintenance calls these functions: see ``docs/design/worker.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forebay.errors import DatabaseUnavailable, ForeignCluster
from forebay.model.text import logger
from forebay.ops import protocol, queues
from forebay.ops.locks import lock_holders
from forebay.policy.backoff import reconnect_seconds
from forebay.policy.leadership import MAINTENANCE, Leadership, idle_poll_pause
from forebay.policy.server_clock import ServerClock
from forebay.worker._lock_warnings import LockWatch
from forebay.worker._outage import Outage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from datetime import datetime

    from forebay.db.session import Session

log = logger("forebay.maintenance")

#: Jobs promoted by one call; after a full call the next one follows at once.
_PROMOTE_ROWS = 5000
_TRIM_ROWS = 20_000  # most rows of one kind that trim_v1 deletes
_SWEEP_ROWS = 1000  # most rows of one kind that sweep_v1 takes

#: Longest pause after a task failed for another reason than an unreachable database.
_FAILED_SECONDS_MAX = 30.0

#: How long the leadership lasts unless renewed. After a leader dies, no worker promotes jobs for this long.
_LEAD_SECONDS = 1.6


@dataclass(slots=True)
class _Task:
    name: str
    every_seconds: float
    run: Callable[[], Awaitable[bool]]  # true: more work is left
    due_at: float = field(default_factory=time.monotonic)
    failures: int = 0


class Maintenance:
    """The maintenance tasks of one process, on one connection.

    Args:
        session: a connection that no other part uses.
        on_work: called when jobs became claimable.
        promote_seconds: pause between checks for due jobs; it delays a due job by half of this on average.
        revoke_seconds: pause between checks for lost leases.
        outage: wakes the attempts to lead; None: only their pauses do.
        leader_id: the id under which this worker leads. None: do the maintenance without leadership.
    """

    def __init__(
        self,
        session: Session,
        *,
        on_work: Callable[[], None] = lambda: None,
        promote_seconds: float = 0.1,
        revoke_seconds: float = 1.0,
        outage: Outage | None = None,
        leader_id: int | None = None,
    ) -> None:
        self._outage = outage or Outage()
        self._session = session
        self._on_work = on_work
        self._leader_id = leader_id
        self._leadership = Leadership(
            [MAINTENANCE], seconds=_LEAD_SECONDS, clock=time.monotonic, draw=random.random
        )
        self._lead_failures = 0
        self._is_over = False
        self._hint = asyncio.Event()
        self._server_clock = ServerClock()
        self._swept_at: datetime | None = None
        self._deep: set[tuple[str, str]] = set()
        self._lock_watch = LockWatch(log)
        self.counts: dict[str, int] = {}
        self._tasks = [
            _Task("promote", promote_seconds, self._promote),
            _Task("revoke", revoke_seconds, self._revoke),
            _Task("seal", 1.0, self._seal),
            _Task("extend", 5.0, self._extend),
            _Task("sweep", 10.0, self._sweep),
            _Task("summarize", 5.0, self._summarize),
            _Task("retain", 30.0, self._retain),
            _Task("drop", 5.0, self._drop),
            _Task("trim", 15.0, self._trim),
            _Task("close", 2.0, self._close),
            _Task("forget", 10.0, self._forget),
            _Task("count", 60.0, self._count),
            _Task("locks", 60.0, self._watch_locks),
        ]

    async def run(self) -> None:
        """Run the tasks that are due while this process leads, until cancelled."""
        while True:
            if not await self._leads():
                await self._wait_for_hint()
                continue
            now = time.monotonic()
            for task in self._tasks:
                if task.due_at <= now:
                    await self._do(task)
            await asyncio.sleep(max(0.0, min(d.due_at for d in self._tasks) - time.monotonic()))

    @property
    def leaderless(self) -> list[int]:
        """The leadership of maintenance, if this process wants it and does not hold it."""
        return [] if self._leader_id is None or self._is_over else self._leadership.missing

    def assume_leaderless(self, duties: Collection[int]) -> None:
        """Try soon to lead if maintenance is among these leaderless duties."""
        if self._leadership.assume_leaderless(duties):
            self._hint.set()

    def step_down(self) -> None:
        """Start no further task and do not renew the leadership, so that another worker can lead."""
        if self._leader_id is not None:
            self._is_over = True

    async def _leads(self) -> bool:
        if self._leader_id is None:
            return True
        if self._is_over:
            return False
        if self._leadership.is_due:
            called_at = time.monotonic()
            try:
                held = await self._session.run(
                    protocol.lead(
                        self._leader_id, self._leadership.wanted, self._leadership.seconds
                    )
                )
            except DatabaseUnavailable as error:
                self._lead_failures += 1
                self._outage.failed("maintenance", error)
                await self._outage.pause(self._lead_failures)
                # Tasks that failed during the outage are due at its end, and not after their long pauses.
                for task in self._tasks:
                    task.failures = 0
                    task.due_at = min(task.due_at, time.monotonic() + task.every_seconds)
                self._hint.set()
                return False
            except Exception as error:
                self._lead_failures += 1
                if self._lead_failures in {3, 30, 300}:
                    log.warning("maintenance failed %s times: %s", self._lead_failures, error)
                await asyncio.sleep(
                    reconnect_seconds(
                        self._lead_failures, random.random(), cap_seconds=_FAILED_SECONDS_MAX
                    )
                )
                self._hint.set()
                return False
            self._lead_failures = 0
            self._outage.answered("maintenance")
            self._leadership.answered(held, called_at)
        return bool(self._leadership.held)

    async def _wait_for_hint(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(idle_poll_pause(random.random())):
                await self._hint.wait()
        self._hint.clear()

    async def run_once(self) -> int:
        """Promote due jobs once; return how many became claimable."""
        return await self._session.run(protocol.promote(_PROMOTE_ROWS))

    async def _do(self, task: _Task) -> None:
        try:
            more = await task.run()
        except (DatabaseUnavailable, ForeignCluster) as error:
            self._failed(task, error)
        except Exception as error:
            # For example a lock of another session. Every task is safe to repeat, and one that fails must not block
            # the others.
            self._failed(task, error)
        else:
            if task.failures >= 3:
                log.info("%s works again", task.name)
            task.failures = 0
            # A little jitter, so that processes do not synchronize.
            pause = task.every_seconds * (0.9 + 0.2 * random.random())
            task.due_at = time.monotonic() + (0.0 if more else pause)

    def _failed(self, task: _Task, error: Exception) -> None:
        task.failures += 1
        if task.failures in {3, 30, 300}:
            log.warning("%s failed %s times: %s", task.name, task.failures, error)
        pause = reconnect_seconds(task.failures, random.random(), cap_seconds=_FAILED_SECONDS_MAX)
        task.due_at = time.monotonic() + min(max(task.every_seconds, pause), 60.0)

    def _record(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count

    async def _promote(self) -> bool:
        count = await self._session.run(protocol.promote(_PROMOTE_ROWS))
        self._record("promoted", count)
        if count:
            self._on_work()
        return count >= _PROMOTE_ROWS

    def observe_clock(self, reading: datetime, sent_at: float, answered_at: float) -> None:
        """Record a reading of the server's clock, also while another worker leads: see ``ServerClock.observe``."""
        self._server_clock.observe(reading, sent_at, answered_at)

    async def _revoke(self) -> bool:
        asked_at = time.monotonic()
        clock = await self._session.run(protocol.now())
        observed = self._server_clock.observe(clock, asked_at, time.monotonic())
        if observed is None:
            return False
        revoked = await self._session.run(protocol.revoke_lost(observed, clock))
        if revoked is None:
            return False
        self._record("revoked", 1)
        log.warning(
            "lease %s of %s revoked after %.1f s without a heartbeat: %s jobs returned to the queue",
            revoked.lease_id,
            revoked.worker,
            revoked.silent_seconds,
            revoked.jobs,
        )
        self._on_work()
        return True

    async def _seal(self) -> bool:
        self._record("sealed", await self._session.run(protocol.seal()))
        return False

    async def _extend(self) -> bool:
        made: Any = await self._session.run(protocol.extend())
        self._record("extended", made)
        return False

    async def _sweep(self) -> bool:
        started = await self._session.run(protocol.now())
        # One minute of overlap, for transactions that committed after the last pass.
        # If the clock was set back, also for all that expires from now on.
        swept_at = self._swept_at
        since = None if swept_at is None else min(swept_at, started) - timedelta(minutes=1)
        count = await self._session.run(protocol.sweep(since))
        self._record("expired", count)
        if count >= _SWEEP_ROWS:
            return True  # The limit was reached: repeat from the same time.
        self._swept_at = started
        return False

    async def _summarize(self) -> bool:
        self._record("summarized", await self._session.run(protocol.summarize()))
        return False

    async def _retain(self) -> bool:
        emptied = await self._session.run(protocol.retain())
        if emptied is None:
            return False
        log.info("segment %s of the archive emptied", emptied)
        self._record("emptied", 1)
        return True

    async def _drop(self) -> bool:
        dropped = await self._session.run(protocol.drop_segments())
        self._record("dropped", dropped)
        return dropped > 0

    async def _close(self) -> bool:
        count = await self._session.run(queues.continue_closing())
        self._record("closed", count)
        return count > 0

    async def _forget(self) -> bool:
        lanes = await self._session.run(protocol.forget())
        self._record("forgotten", lanes)
        return lanes > 0

    async def _count(self) -> bool:
        deep = await self._session.run(protocol.count())
        for queue, group, waiting in deep:
            if (queue, group) not in self._deep:
                log.warning("queue %s: %s jobs wait for group %s", queue, f"{waiting:,}", group)
        # Logged once, and again only after the queue was shorter in between.
        self._deep = {(queue, group) for queue, group, _ in deep}
        return False

    async def _watch_locks(self) -> bool:
        self._lock_watch.record(await self._session.run(lock_holders()))
        return False

    async def _trim(self) -> bool:
        count = await self._session.run(protocol.trim())
        self._record("trimmed", count)
        return count >= _TRIM_ROWS

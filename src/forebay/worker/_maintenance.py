"""Maintenance of the log: any worker can do it, and one does.

Promotion of due jobs, revocation of lost leases, sealing and making segments, expiry, retention, trimming. Each
duty is one SQL function under a try-lock, so that several at it do no harm. Of many workers only the leader_id of the
maintenance's duty calls them: see ``docs/design/worker.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forebay.errors import DatabaseUnavailable, ForeignCluster
from forebay.ops import protocol
from forebay.policy.backoff import reconnect_seconds
from forebay.policy.leadership import MAINTENANCE, Leadership, idle_poll_pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from datetime import datetime

    from forebay.db.session import Session

log = logging.getLogger("forebay.maintenance")

#: Promotions of one call; a full one is followed by another at once.
_PROMOTE_ROWS = 5000
_TRIM_ROWS = 20_000  # what trim_v1 deletes of one kind
_SWEEP_ROWS = 1000  # what sweep_v1 takes at most of one kind

#: How long the duty is kept unless renewed: so long nobody promotes after its leader_id died.
_LEAD_SECONDS = 1.6


@dataclass(slots=True)
class _Duty:
    name: str
    every_seconds: float
    run: Callable[[], Awaitable[bool]]  # true: there is more to do at once
    due_at: float = field(default_factory=time.monotonic)
    failures: int = 0


class Maintenance:
    """The duties of one process, on one connection.

    Args:
        session: a connection of its own.
        on_work: called when something became claimable.
        promote_seconds: pause between looks for due jobs; half of it is the mean delay it adds.
        revoke_seconds: pause between looks for lost leases.
        leader_id: the name under which the leadership of maintenance is held; None does the maintenance whoever else does.
    """

    def __init__(
        self,
        session: Session,
        *,
        on_work: Callable[[], None] = lambda: None,
        promote_seconds: float = 0.1,
        revoke_seconds: float = 1.0,
        leader_id: int | None = None,
    ) -> None:
        self._session = session
        self._on_work = on_work
        self._leader_id = leader_id
        self._leadership = Leadership(
            [MAINTENANCE], seconds=_LEAD_SECONDS, clock=time.monotonic, draw=random.random
        )
        self._lead_failures = 0
        self._is_over = False
        self._hint = asyncio.Event()
        self._swept_at: datetime | None = None
        self._deep: set[tuple[str, str]] = set()
        self.counts: dict[str, int] = {}
        self._duties = [
            _Duty("promote", promote_seconds, self._promote),
            _Duty("revoke", revoke_seconds, self._revoke),
            _Duty("seal", 1.0, self._seal),
            _Duty("extend", 5.0, self._extend),
            _Duty("sweep", 10.0, self._sweep),
            _Duty("summarize", 5.0, self._summarize),
            _Duty("retain", 30.0, self._retain),
            _Duty("trim", 15.0, self._trim),
            _Duty("count", 60.0, self._count),
        ]

    async def run(self) -> None:
        """Do what is due, as long as this process holds the duty, until cancelled."""
        while True:
            if not await self._leads():
                await self._wait_for_hint()
                continue
            now = time.monotonic()
            for duty in self._duties:
                if duty.due_at <= now:
                    await self._do(duty)
            await asyncio.sleep(max(0.0, min(d.due_at for d in self._duties) - time.monotonic()))

    @property
    def leaderless(self) -> list[int]:
        """The duty, while this process would take it and does not hold it."""
        return [] if self._leader_id is None or self._is_over else self._leadership.missing

    def assume_leaderless(self, duties: Collection[int]) -> None:
        """Ask for the duty if it is among these."""
        if self._leadership.assume_leaderless(duties):
            self._hint.set()

    def step_down(self) -> None:
        """Begin no duty any more and do not renew the duty, so that somebody else may have it."""
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
            except Exception as error:
                self._lead_failures += 1
                if self._lead_failures in {3, 30, 300}:
                    log.warning("maintenance failed %s times: %s", self._lead_failures, error)
                await asyncio.sleep(
                    min(reconnect_seconds(self._lead_failures, random.random()), 60.0)
                )
                self._hint.set()
                return False
            self._lead_failures = 0
            self._leadership.answered(held, called_at)
        return bool(self._leadership.held)

    async def _wait_for_hint(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(idle_poll_pause(random.random())):
                await self._hint.wait()
        self._hint.clear()

    async def run_once(self) -> int:
        """Promote what is due and revoke what is lost, once; returns how many jobs became claimable."""
        return await self._session.run(protocol.promote(_PROMOTE_ROWS))

    async def _do(self, duty: _Duty) -> None:
        try:
            more = await duty.run()
        except (DatabaseUnavailable, ForeignCluster) as error:
            self._failed(duty, error)
        except Exception as error:
            # For example a lock somebody holds. Every duty is safe to try again, and one that fails must not keep
            # the others from their turn.
            self._failed(duty, error)
        else:
            if duty.failures >= 3:
                log.info("%s works again", duty.name)
            duty.failures = 0
            # A little jitter, so that processes do not come in step.
            pause = duty.every_seconds * (0.9 + 0.2 * random.random())
            duty.due_at = time.monotonic() + (0.0 if more else pause)

    def _failed(self, duty: _Duty, error: Exception) -> None:
        duty.failures += 1
        if duty.failures in {3, 30, 300}:
            log.warning("%s failed %s times: %s", duty.name, duty.failures, error)
        pause = max(duty.every_seconds, reconnect_seconds(duty.failures, random.random()))
        duty.due_at = time.monotonic() + min(pause, 60.0)

    def _record(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count

    async def _promote(self) -> bool:
        count = await self._session.run(protocol.promote(_PROMOTE_ROWS))
        self._record("promoted", count)
        if count:
            self._on_work()
        return count >= _PROMOTE_ROWS

    async def _revoke(self) -> bool:
        revoked = await self._session.run(protocol.revoke_lost())
        if revoked is None:
            return False
        self._record("revoked", 1)
        log.warning(
            "lease %s of %s is lost, silent for %.1f s: %s jobs sent back",
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
        # A minute of overlap for transactions that committed after the last pass.
        since = None if self._swept_at is None else self._swept_at - timedelta(minutes=1)
        count = await self._session.run(protocol.sweep(since))
        self._record("expired", count)
        if count >= _SWEEP_ROWS:
            return True  # It was cut short: look from the same time on once more.
        self._swept_at = started
        return False

    async def _summarize(self) -> bool:
        self._record("summarized", await self._session.run(protocol.summarize()))
        return False

    async def _retain(self) -> bool:
        emptied = await self._session.run(protocol.retain())
        if emptied is None:
            return False
        log.info("segment %s left the archive", emptied)
        self._record("emptied", 1)
        return True

    async def _count(self) -> bool:
        deep = await self._session.run(protocol.count())
        for queue, group, waiting in deep:
            if (queue, group) not in self._deep:
                log.warning("queue %s: %s jobs wait for group %s", queue, f"{waiting:,}", group)
        # Said once, and again after it was better for a while.
        self._deep = {(queue, group) for queue, group, _ in deep}
        return False

    async def _trim(self) -> bool:
        count = await self._session.run(protocol.trim())
        self._record("trimmed", count)
        return count >= _TRIM_ROWS

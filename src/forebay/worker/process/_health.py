"""Whether a worker lives, and whether it is ready: what probes of a process manager ask."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Literal

from forebay._dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.config import WorkerSettings
    from forebay.worker.ground.application import Intake
    from forebay.worker.ground.signals import Signals
    from forebay.worker.lease.leases import LeaseKeeper

#: Pause between two records that the loop runs.
_TICK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a probe.

    Attributes:
        state: starting until the worker had its first lease, stopping after SIGTERM, else running.
        is_live: whether the event loop runs. A process that is not live must be restarted.
        is_ready: whether the worker claims jobs, or would if there were any.
        reasons: why it is not live or not ready. They contain no text of the database.
    """

    state: Literal["starting", "running", "stopping"]
    is_live: bool
    is_ready: bool
    reasons: tuple[str, ...]


class HealthCheck:
    """Reads the health of a worker from its parts.

    It guarantees that a worker is ready only while it makes progress: its lease is confirmed by
    recent heartbeats, its last poll succeeded, it does not stop, and its event loop runs. Owns the
    time of the loop's last turn. ``read`` may be called in any thread: it reads single attributes
    only. Leaves nothing behind.

    Args:
        signals: whether the worker stops, and whether the database can be used.
        settings: how long a lease lasts without a heartbeat.
        intake: what bounds the claims, and whether the handlers make progress.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        signals: Signals,
        settings: WorkerSettings,
        *,
        intake: Intake | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signals = signals
        self._intake = intake
        self._clock = clock
        self._trusted_at_first = settings.lease_seconds - settings.lease_margin_seconds
        self._late_seconds = settings.suspect_seconds
        self._turned_at = clock()
        self._leases: LeaseKeeper | None = None

    @property
    def _trusted_seconds(self) -> float:
        return self._trusted_at_first if self._leases is None else self._leases.trusted_seconds

    def begin(self) -> None:
        """Record that the loop runs now; the worker may have been made long ago."""
        self._turned_at = self._clock()

    def watch(self, leases: LeaseKeeper) -> None:
        """Read the leases from now on."""
        self._leases = leases

    async def tick(self) -> None:
        """Record that the loop runs, until cancelled."""
        while True:
            self._turned_at = self._clock()
            await asyncio.sleep(_TICK_SECONDS)

    def read(self) -> Health:
        """Return the health now."""
        blocked = self._clock() - self._turned_at
        reasons = []
        if blocked > self._late_seconds:
            reasons.append(f"the event loop is blocked for {blocked:.0f} s")
        if self._signals.is_stopping:
            reasons.append("stopping")
        if self._signals.outage.is_on:
            reasons.append("waiting for the database")
        reasons += self._without_progress()
        if self._intake is not None and (problem := self._intake.problem()) is not None:
            reasons.append(problem)
        is_starting = not self._signals.started.is_set()
        return Health(
            state="stopping"
            if self._signals.is_stopping
            else ("starting" if is_starting else "running"),
            # The heartbeats end and the lease is given up at the same moment.
            is_live=blocked <= self._trusted_seconds,
            is_ready=not reasons,
            reasons=tuple(reasons),
        )

    def _without_progress(self) -> list[str]:
        if self._leases is None:
            return ["starting"]
        lease = self._leases.current
        if lease is None or lease.lost:
            return [self._leases.problem or "no lease"]
        silent = self._clock() - (lease.trusted_until - lease.trusted_seconds)
        # The longest pause between two heartbeats of an idle worker is less than this.
        if silent > lease.trusted_seconds / 2:
            return [f"no heartbeat was confirmed for {silent:.0f} s"]
        if self._signals.failed_claims:
            return ["polls or claims fail"]
        return [] if self._signals.has_polled else ["no poll yet"]


class FleetHealth:
    """Reads the health of several workers in one process.

    The process is live and ready while all of them are.

    It guarantees that each reason is there once. ``read`` may be called in any thread. Leaves
    nothing behind.

    Args:
        checks: those of the workers, at least one.
    """

    def __init__(self, checks: Sequence[HealthCheck]) -> None:
        self._checks = checks

    async def tick(self) -> None:
        """Record that the loop runs, until cancelled."""
        await asyncio.gather(*(check.tick() for check in self._checks))

    def read(self) -> Health:
        """Return the health now."""
        found = [check.read() for check in self._checks]
        states = {each.state for each in found}
        reasons = dict.fromkeys(reason for each in found for reason in each.reasons)
        return Health(
            state="stopping"
            if "stopping" in states
            else ("starting" if "starting" in states else "running"),
            is_live=all(each.is_live for each in found),
            is_ready=not reasons,
            reasons=tuple(reasons),
        )

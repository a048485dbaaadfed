"""Counters of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.protocol import Ended, OutcomeName
    from forebay.worker._held import HeldJob
    from forebay.worker._settler import Settler


@dataclass(slots=True)
class Stats:
    """What a worker did since it started.

    Attributes:
        ended: attempts that ended in any way but done; ``retried``, ``dead`` and ``released`` are part of it.
    """

    claimed: int = 0
    done: int = 0
    ended: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    leases_lost: int = 0
    reconnects: int = 0

    def count(self, outcome: OutcomeName) -> None:
        """Count the end of one attempt."""
        if outcome == "done":
            self.done += 1
            return
        self.ended += 1
        if outcome in ("retried", "lost"):
            self.retried += 1
        elif outcome == "dead":
            self.dead += 1
        elif outcome == "released":
            self.released += 1


class CountedOutcomes:
    """The settler with counters of the outcomes. A crash loses the counters."""

    def __init__(self, settler: Settler, stats: Stats) -> None:
        self._settler = settler
        self._stats = stats

    def done(self, jobs: Sequence[HeldJob]) -> None:
        """The jobs, of one batch, are done."""
        self._stats.done += len(jobs)
        self._settler.done(jobs)

    def end(self, job: HeldJob, ended: Ended, *, solo: bool = False) -> None:
        """The job ended otherwise, or is done and leaves a result."""
        self._stats.count(ended.outcome)
        self._settler.end(job, ended, solo=solo)

    def settled_by_handler(self, job: HeldJob) -> None:
        """The job's own transaction settled it."""
        self._stats.done += 1
        self._settler.settled_by_handler(job)

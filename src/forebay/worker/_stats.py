"""What a worker did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.protocol import Ended
    from forebay.worker._held import HeldJob
    from forebay.worker._settler import Settler


@dataclass(slots=True)
class Stats:
    """What a worker did since it started."""

    claimed: int = 0
    done: int = 0
    ended: int = 0
    leases_lost: int = 0
    reconnects: int = 0


class CountedOutcomes:
    """The settler, with a count of what passes. A crash leaves no trace of the count."""

    def __init__(self, settler: Settler, stats: Stats) -> None:
        self._settler = settler
        self._stats = stats

    def done(self, jobs: Sequence[HeldJob]) -> None:
        """The jobs, of one batch, are done."""
        self._stats.done += len(jobs)
        self._settler.done(jobs)

    def end(self, job: HeldJob, ended: Ended, *, solo: bool = False) -> None:
        """The job ended otherwise, or is done and leaves a result."""
        if ended.outcome == "done":
            self._stats.done += 1
        else:
            self._stats.ended += 1
        self._settler.end(job, ended, solo=solo)

    def settled_by_handler(self, job: HeldJob) -> None:
        """The job's own transaction settled it."""
        self._stats.done += 1
        self._settler.settled_by_handler(job)

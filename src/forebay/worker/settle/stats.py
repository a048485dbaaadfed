"""Counters of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay._dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.model.attempts import AttemptOutcome
    from forebay.ops.protocol import Ended, OutcomeName
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.ground.job_log import JobLog
    from forebay.worker.settle.settler import Settler


@dataclass(slots=True)
class Stats:
    """What a worker did since it started.

    Attributes:
        claimed: jobs that were claimed.
        done: attempts that ended done.
        ended: attempts that ended in any other way: the sum of the following six.
        retried: failed attempts of jobs that run again.
        dead: jobs that ended as dead letters.
        cancelled: jobs that ended as cancelled.
        snoozed: jobs that run again because their handlers returned ``Snooze``.
        postponed: jobs without a handler in this worker.
        released: jobs given back without using an attempt.
        leases_lost: leases that the worker lost.
        reconnects: how often claims lost the database.
        listener_errors: exceptions of listeners, and of middlewares around settlements.
        events_dropped: events whose listeners were not called, because too many waited.
    """

    claimed: int = 0
    done: int = 0
    ended: int = 0
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    snoozed: int = 0
    postponed: int = 0
    released: int = 0
    leases_lost: int = 0
    reconnects: int = 0
    listener_errors: int = 0
    events_dropped: int = 0

    def count(self, outcome: OutcomeName) -> None:
        """Count the end of one attempt."""
        if outcome != "done":
            self.ended += 1
        counter = COUNTERS[outcome]
        setattr(self, counter, getattr(self, counter) + 1)


#: The counter of each outcome.
COUNTERS: Final[dict[OutcomeName, AttemptOutcome]] = {
    "done": "done",
    "retried": "retried",
    "lost": "retried",
    "dead": "dead",
    "cancelled": "cancelled",
    "snoozed": "snoozed",
    "unknown": "postponed",
    "released": "released",
}


class RecordedOutcomes:
    """The settler, with counters and a log of the outcomes: every outcome of a job in this worker passes here.

    A crash loses the counters.

    Args:
        on_end: called with each job and its outcome, None for done, before the outcome is logged.
    """

    def __init__(
        self,
        settler: Settler,
        stats: Stats,
        job_log: JobLog,
        *,
        on_end: Callable[[HeldJob, Ended | None], None] | None = None,
    ) -> None:
        self._settler = settler
        self._stats = stats
        self._log = job_log
        self._on_end = on_end

    def done(self, jobs: Sequence[HeldJob]) -> None:
        """The jobs, of one batch, are done."""
        self._stats.done += len(jobs)
        self._settler.done(jobs)
        if self._on_end is not None:
            for job in jobs:
                self._on_end(job, None)
        self._log.done(jobs)

    def end(self, job: HeldJob, ended: Ended, *, solo: bool = False) -> None:
        """The job ended otherwise, or is done and leaves a result."""
        self._stats.count(ended.outcome)
        self._settler.end(job, ended, solo=solo)
        if self._on_end is not None:
            self._on_end(job, ended)
        self._log.ended(job, ended)

    def settled_by_handler(self, job: HeldJob, ended: Ended | None) -> None:
        """The job's own transaction settled it; None for done."""
        self._stats.count("done" if ended is None else ended.outcome)
        self._settler.settled_by_handler(job)
        if self._on_end is not None:
            self._on_end(job, ended)
        self._log.ended(job, ended)

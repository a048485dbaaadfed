"""Where every outcome of a job in a worker passes: it is settled, counted, told and logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.ops.protocol import Ended
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.ground.job_log import JobLog
    from forebay.worker.ground.stats import Stats
    from forebay.worker.settle.progress import ProgressReports
    from forebay.worker.settle.settler import Settler


class RecordedOutcomes:
    """The settler, with counters and a log of the outcomes: every outcome of a job in this worker
    passes here.

    A crash loses the counters.

    Args:
        on_end: each is called with each job and its outcome, None for done, before the outcome is
            logged.
        holds_back: whether a job is released instead of run, because its limit key fails.
    """

    def __init__(
        self,
        settler: Settler,
        progress: ProgressReports,
        stats: Stats,
        job_log: JobLog,
        *,
        on_end: Sequence[Callable[[HeldJob, Ended | None], None]] = (),
        holds_back: Callable[[HeldJob], bool] = lambda _: False,
    ) -> None:
        self._settler = settler
        self.progress = progress.record
        self.lease_lost = settler.lease_lost
        self.holds_back = holds_back
        self._stats = stats
        self._log = job_log
        self._on_end = on_end

    def done(self, jobs: Sequence[HeldJob]) -> None:
        """The jobs, of one batch, are done."""
        self._stats.done += len(jobs)
        self._settler.done(jobs)
        for listener in self._on_end:
            for job in jobs:
                listener(job, None)
        self._log.done(jobs)

    def end(self, job: HeldJob, ended: Ended, *, solo: bool = False) -> None:
        """The job ended otherwise, or is done and leaves a result."""
        self._stats.count(ended.outcome)
        self._settler.end(job, ended, solo=solo)
        for listener in self._on_end:
            listener(job, ended)
        self._log.ended(job, ended)

    def settled_by_handler(self, job: HeldJob, ended: Ended | None) -> None:
        """The job's own transaction settled it; None for done."""
        self._stats.count("done" if ended is None else ended.outcome)
        self._settler.settled_by_handler(job)
        for listener in self._on_end:
            listener(job, ended)
        self._log.ended(job, ended)

"""What happened to jobs, for the listeners of an application and for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from forebay._dataclass import dataclass

if TYPE_CHECKING:
    from forebay.model.job import Job

AttemptOutcome = Literal["done", "retried", "dead", "cancelled", "snoozed", "postponed", "released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """How one attempt of a job ended.

    Attributes:
        job: the job; ``job.attempt`` is the number of this attempt. Its arguments are empty if they
            were not decoded, as for a handler in a separate process.
        outcome: ``done``; ``retried``: it failed and runs again; ``dead``: it failed and is a dead
            letter; ``cancelled``; ``snoozed``; ``postponed``: this worker has no handler for it;
            ``released``: given back without using an attempt.
        error: the exception with which the attempt ended. One from a child process has the same
            name and message, and the traceback as the text of its cause. None without an exception,
            as after ``Dead("...")``.
        message: type and message of the error, or the reason of an outcome; None for neither.
        reason: why it is a dead letter: ``exhausted``, ``permanent`` or ``worker lost``; else None.
        seconds: how long the attempt took; None if its handler did not start.
        runs_again_in: the time until the next attempt, in seconds; None if there is none.
        worker: the name of the worker.
    """

    job: Job
    outcome: AttemptOutcome
    error: BaseException | None
    message: str | None
    reason: str | None
    seconds: float | None
    runs_again_in: float | None
    worker: str

    @property
    def failed(self) -> bool:
        """Whether the attempt failed: it was retried, or the job is dead."""
        return self.outcome in {"retried", "dead"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """A worker whose lease was revoked, because it sent no heartbeat. Its jobs run again.

    Attributes:
        worker: its name: host, process id and a random part.
        jobs: how many jobs returned to the queue.
        silent_seconds: how long it was silent.
    """

    worker: str
    jobs: int
    silent_seconds: float

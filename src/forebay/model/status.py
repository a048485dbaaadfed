"""What operators see: the status of jobs, the depth of queues, dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import date, datetime
from typing import Any, Final, Literal

from forebay._dataclass import dataclass
from forebay.model.flows import ChildDeath
from forebay.model.job import JobState

#: What a cancellation means for a job: it will not start; a worker has it and is requested to stop;
#: it ended before; no such job.
CancelAnswer = Literal["cancelled", "requested", "already ended", "unknown"]


#: Options of a job that people see with it and its dead letter, if they are set.
SHOWN_OPTIONS: Final = ("tag", "correlation_id", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The status of one job in one group.

    Attributes:
        attempt: the attempt that runs or runs next, from 1; for an ended job the last that ran, 0
            if none did.
        max_attempts: maximum number of attempts: of the job, or as the worker reported it at a
            failure; None if neither is known, and the retry policy of the kind decides.
        run_at: when a scheduled or retrying job is due; None for any other.
        cancel_requested: a cancellation was requested; it is decided at the next claim or
            settlement.
        worker: the worker that has the job or had it last.
        redriven_from: the job whose dead letter was redriven as this one.
        redriven_as: the job that this one's dead letter was redriven as.
        redriven_from_dead_id: the dead letter that was redriven as this job.
        dead_id: the dead letter of this job.
        unique_key: what its uniqueness mode compares; None without one.
        endpoint: the name of the endpoint to which it is delivered; None: it is no delivery.
        place: the sort number in lists, the ``before`` of the next page; None outside a list.
    """

    job_id: int
    group: str
    state: JobState
    queue: str
    priority: int
    kind: str
    args: Mapping[str, Any]
    attempt: int
    max_attempts: int | None
    enqueued_at: datetime
    run_at: datetime | None
    expires_at: datetime | None
    tag: str | None
    correlation_id: str | None
    headers: Mapping[str, str] | None
    ordering_key: str | None
    limit_key: str | None
    cancel_requested: bool
    worker: str | None
    claimed_at: datetime | None
    ended_at: datetime | None
    redriven_from: int | None
    redriven_as: int | None
    redriven_from_dead_id: int | None
    dead_id: int | None
    unique_key: str | None = None
    endpoint: str | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Numbers of waiting and running jobs of one queue, priority and group.

    Attributes:
        cancelled: jobs that were cancelled or replaced while they were ready, and that no worker
            has passed yet. They never start, and count in no other number.
    """

    queue: str
    priority: int
    group: str
    scheduled: int
    ready: int
    claimed: int
    running: int
    retrying: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt, as kept in a dead letter.

    Attributes:
        attempt: number of the attempt, from 1.
        type: the class of the exception; None without an exception.
        traceback: only the end, if it was too long.
        max_attempts: maximum number of attempts, if known at that time.
    """

    attempt: int
    failed_at: datetime
    outcome: str
    type: str | None = None
    message: str | None = None
    traceback: str | None = None
    worker: str | None = None
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress that a handler reported.

    Attributes:
        done: from 0 to 1.
    """

    done: float
    note: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUpdate:
    """How far a job is in one group: what ``JobHandle.watch`` yields at each change.

    Attributes:
        attempt: the attempt that runs or runs next, from 1; of a job that has ended, the last that
            ran, 0 if none did.
        progress: the last progress that the handler reported; None if it reported none.
        has_result: whether the job is done and ``JobHandle.result`` returns what it returned.
    """

    job_id: int
    group: str
    state: JobState
    attempt: int
    progress: Progress | None = None
    has_result: bool = False

    @property
    def is_final(self) -> bool:
        """Whether the job has ended: no further update follows."""
        return self.state.is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """What a handler returned, as JSON.

    Attributes:
        problem: why the value could not be kept; None if it was.
    """

    value: Any
    problem: str | None
    kept_at: datetime
    kept_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """The history of a job in one group.

    Attributes:
        errors: its failed attempts, oldest first.
    """

    group: str
    errors: Sequence[Failure]
    progress: Progress | None = None
    result: KeptResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead job of one group, with everything needed to understand and redrive it.

    Attributes:
        reason: exhausted, permanent, expired or worker lost.
        attempt: the last attempt that ran, from 1; 0 if none did.
        max_attempts: maximum number of attempts: of the job, or as the worker reported it; None if
            neither is known.
        errors: every failed attempt, oldest first.
        redriven_as: the new job; None if it was not redriven.
        cause: the id of the cause by which dead letters are grouped.
        ordering_key: the job's ordering key; None for none.
        holds_key: whether later jobs of the ordering key wait for this letter, or for the job it
            was redriven as.
        endpoint: the name of the endpoint to which it is delivered; None: it is no delivery.
        place: the innermost function of the application that raised the last error; None if it is
            not known.
    """

    dead_id: int
    job_id: int
    group: str
    reason: str
    died_at: datetime
    queue: str
    priority: int
    kind: str
    args: Mapping[str, Any]
    attempt: int
    max_attempts: int | None
    enqueued_at: datetime
    expires_at: datetime | None
    tag: str | None
    correlation_id: str | None
    headers: Mapping[str, str] | None
    errors: Sequence[Failure] = field(repr=False)
    redriven_at: datetime | None
    redriven_as: int | None
    cause: str
    place: str | None
    ordering_key: str | None
    holds_key: bool
    endpoint: str | None = None


def shown_args(job: JobStatus | DeadLetter) -> Mapping[str, Any]:
    """Return the arguments of a job for people: a delivery has the name of its endpoint, and not
    the number by which the deliverers know it.
    """
    if job.endpoint is None:
        return job.args
    return {"endpoint": job.endpoint} | {
        name: value for name, value in job.args.items() if name != "endpoint"
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead letters of one cause that were not redriven; of deliveries, those to one endpoint.

    Attributes:
        cause: the id of the cause: of kind, class of the error, and place.
        error_type: the class of the last error; None if there was none.
        place: the innermost function of the application that raised it; None if it is not known.
        reason: of the newest: exhausted, permanent, expired or worker lost.
        jobs: how many there are.
        first_at: the time of the first death.
        last_at: the time of the last death.
        dead_id: the newest dead letter.
        message: its last error, at most 500 characters; None if there was none.
        is_muted: whether deaths of this cause are no errors in the log.
        muted_until: when that ends; None if it does not, or is not muted.
        endpoint: the endpoint to which they were delivered; None: they are no deliveries.
        died_of: of the newest, the child of which it died: the cause is a consequence; redrive the
            child.
    """

    cause: str
    kind: str
    error_type: str | None
    place: str | None
    reason: str
    jobs: int
    first_at: datetime
    last_at: datetime
    dead_id: int
    message: str | None
    is_muted: bool
    muted_until: datetime | None
    endpoint: str | None = None
    died_of: ChildDeath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """What a redrive would do; nothing was redriven.

    Attributes:
        token: pass it to the redrive: exactly these dead letters are redriven, or none.
        jobs: the number of dead letters.
        oldest_at: when the first of them died; None for none.
        newest_at: when the last of them died; None for none.
    """

    token: str
    jobs: int
    oldest_at: datetime | None
    newest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """What a deletion of dead letters would do; nothing was deleted.

    Attributes:
        token: pass it to the deletion: exactly these dead letters are deleted, or none.
        jobs: the number of dead letters.
        redriven: how many of them were redriven before.
        oldest_at: when the first of them died; None for none.
        newest_at: when the last of them died; None for none.
    """

    token: str
    jobs: int
    redriven: int
    oldest_at: datetime | None
    newest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadSummary:
    """Dead letters of one queue, endpoint, kind, reason and error.

    Attributes:
        error_type: the class of the last error; empty if there was none.
        kept: dead letters that exist.
        not_redriven: those of them that were not redriven.
        deleted: deleted ones, of jobs that died in the last 400 days.
        last_died_on: the day of the last death, in UTC.
        keep_days: how many days the queue keeps dead letters; None forever.
        endpoint: the endpoint to which they were delivered; None: they are no deliveries.
        redriven: those that exist and were redriven.
        oldest_at: when the first of those that exist died; None: none exists.
        newest_at: when the last of them died; None: none exists.
    """

    queue: str
    kind: str
    reason: str
    error_type: str
    kept: int
    not_redriven: int
    deleted: int
    last_died_on: date
    keep_days: int | None
    endpoint: str | None
    redriven: int
    oldest_at: datetime | None
    newest_at: datetime | None

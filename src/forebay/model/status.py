"""What operators see: where a job stands, how deep a queue is, what died and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forebay.model.job import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Where one job stands for one group.

    Attributes:
        attempt: the attempt that runs, or runs next, from 1; of a job that has ended, the last that ran, 0 if none did.
        max_attempts: attempts in all: the job's own number, else what the worker said when one failed; None while
            neither is known, and the retry policy of its kind decides.
        run_at: when a scheduled or retrying job comes due; None for any other.
        cancel_requested: somebody asked for it; decided at its next claim or settlement.
        worker: who holds it or held it last.
        redriven_from: the job whose dead letter was redriven as this one.
        redriven_as: the job that this one's dead letter was redriven as.
        place: the number that orders lists; the ``before`` of the next page. None outside a list.
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
    cancel_requested: bool
    worker: str | None
    claimed_at: datetime | None
    ended_at: datetime | None
    redriven_from: int | None
    redriven_as: int | None
    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How many jobs of one queue, priority and group wait and run."""

    queue: str
    priority: int
    group: str
    scheduled: int
    ready: int
    claimed: int
    running: int
    retrying: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt, as kept in a dead letter.

    Attributes:
        attempt: which one it was, from 1.
        type: the exception's class; None for an end without an exception.
        traceback: its end, when it was too long.
        max_attempts: attempts in all, as far as it was known then.
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
    """How far a handler said it is.

    Attributes:
        done: from 0 to 1.
    """

    done: float
    note: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """What a handler returned, as JSON.

    Attributes:
        problem: why there is no value, though it was to be kept; None when there is.
    """

    value: Any
    problem: str | None
    kept_at: datetime
    kept_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """What happened to a job so far, for one group.

    Attributes:
        errors: its failed attempts, oldest first.
    """

    group: str
    errors: Sequence[Failure]
    progress: Progress | None = None
    result: KeptResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that ended dead for one group, with everything needed to understand and redrive it.

    Attributes:
        reason: exhausted, permanent, expired or worker lost.
        attempt: the last attempt that ran, from 1; 0 if none did.
        max_attempts: attempts in all: the job's own number, else what the worker said; None if neither is known.
        errors: every failed attempt, oldest first.
        redriven_as: the job it became; None when it was not redriven.
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

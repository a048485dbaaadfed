"""Looking back: where a job is, searches, replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from forebay._dataclass import dataclass
from forebay.model.explanation import Explanation
from forebay.model.flows import FlowState
from forebay.model.job import JobState
from forebay.model.status import JobHistory, JobStatus

#: How a job was found by ``where``.
FoundAs = Literal[
    "job",
    "subject",
    "correlation id",
    "ordering key",
    "limit key",
    "endpoint",
    "unique key",
    "signal",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt:
    """How a worker took a job of one consumer group.

    Attributes:
        attempt: number of the attempt, from 1.
        seq: number of its row in the log.
        xid: the transaction that wrote the row; that of the enqueue, if it is the first row.
        same_xid: jobs that this transaction has enqueued in the same lane, at most 1000; None but
            for the first row.
        is_first: whether the enqueue wrote the row; False for a retry, and for a job that was
            scheduled.
        claimed_at: when a worker took it; None while it waits.
        worker: who took it; None if it was not started.
        outcome: done, retried, dead, cancelled, snoozed, released, lost, unknown, requeued, expired
            or moved; None before its end.
        ended_at: when it was settled.
        millis: how long the handler ran, in milliseconds; None if that was not measured.
    """

    group: str
    attempt: int
    seq: int
    xid: int
    same_xid: int | None
    is_first: bool
    claimed_at: datetime | None
    worker: str | None
    outcome: str | None
    ended_at: datetime | None
    millis: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """A job that another one enqueued, or that enqueued it.

    Attributes:
        job_id: its id.
        kind: None if the job is past retention.
        state: in its first group; None if the job is past retention.
    """

    job_id: int
    kind: str | None = None
    state: JobState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What enqueued a job, and what it has enqueued.

    Attributes:
        parent: the job whose handler enqueued it, that it follows, or that gathers it; None for
            none.
        children: the newest jobs that it has enqueued so.
        is_complete: whether the search for children was complete; else there may be more.
    """

    parent: Relative | None = None
    children: Sequence[Relative] = ()
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a job is, and what happens next.

    Attributes:
        what: what was looked for.
        found_as: what it is of the jobs; None if no job was found.
        is_complete: whether all of the log was searched.
        jobs: the states of the jobs that were found, the newest job first, one entry for each
            group.
        job_id: the job that the rest is about: the newest unfinished one, or the newest; None if no
            job was found.
        attempts: how workers took it, oldest first.
        histories: its errors, progress and result, by group.
        flows: the steps that it has recorded, by group.
        explanations: what it waits for, or what became of it, by group.
        next_steps: what happens next, by group.
        family: what enqueued it, and what it has enqueued.
    """

    what: str
    found_as: FoundAs | None
    is_complete: bool
    jobs: Sequence[JobStatus]
    job_id: int | None
    attempts: Sequence[JobAttempt]
    histories: Sequence[JobHistory]
    explanations: Sequence[Explanation]
    next_steps: Mapping[str, str]
    flows: Sequence[FlowState] = ()
    family: Family = Family()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJobs:
    """One page of a search.

    Attributes:
        jobs: the states of the jobs that were found, the newest job first, one entry for each
            group.
        next: the ``before`` of the next page; None if nothing is left. A page without jobs can have
            a next one.
        looked_at: the number of rows that were read.
        remaining: the number of rows that are left, at most.
    """

    jobs: Sequence[JobStatus]
    next: int | None
    looked_at: int
    remaining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What a replay would enqueue; nothing was enqueued.

    Attributes:
        token: pass it to the replay: it copies exactly these jobs, once, or none.
        jobs: the number of jobs.
        oldest_at: when the oldest of them was enqueued; None for none.
        newest_at: when the newest of them was enqueued; None for none.
        redacted: the number of jobs that match and are left out, because their arguments were
            erased.
    """

    token: str
    jobs: int
    oldest_at: datetime | None
    newest_at: datetime | None
    redacted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay that is over.

    Attributes:
        replay_id: its number, which is in the header ``forebay-replay`` of its jobs.
        jobs: the number of jobs that it has enqueued.
        redacted: the number of jobs that match and were left out, because their arguments were
            erased.
    """

    replay_id: int
    jobs: int
    redacted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAt:
    """A job at a moment of the past.

    Attributes:
        state: ``ready`` or ``running``: a worker had it.
        attempt: the attempt that waited or ran, from 1.
        worker: who had it; None if it waited.
        claimed_at: when that worker took it; None if it waited.
    """

    job_id: int
    group: str
    queue: str
    state: Literal["ready", "running"]
    kind: str
    attempt: int
    enqueued_at: datetime
    worker: str | None
    claimed_at: datetime | None

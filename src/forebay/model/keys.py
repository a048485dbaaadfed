"""Ordering keys and limit keys as operators see them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from forebay._dataclass import dataclass
from forebay.model.limits import KeyLimits

#: What kind of key it is.
KeySort = Literal["ordering", "limit"]

#: Why the next job of a key does not run; the entry of ``forebay.keys`` in the reference of SQL
#: functions explains the words.
KeyReason = Literal[
    "group_closing", "group_paused", "paused", "held", "retry", "running", "concurrency", "rate",
    "breaker", "queue_concurrency", "queue_rate", "due", "free",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBreaker:
    """The breaker of a limit key that has failed since its last success.

    Attributes:
        failures: failures in a row.
        threshold: the number that opens it.
        failed_at: when the last one was reported; None if none was reported.
        error: of the last failure: the type of the exception and its message without values; None
            if none was reported.
        opened_at: since when it is open; None: it is closed.
        probes: those that failed since then; None: it is closed.
        probe_at: the earliest time of the next probe; None: it is closed.
    """

    failures: int
    threshold: int
    failed_at: datetime | None = None
    error: str | None = None
    opened_at: datetime | None = None
    probes: int | None = None
    probe_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """One ordering key or limit key of a queue, in one consumer group.

    Attributes:
        queue: its queue.
        group: the consumer group.
        sort: ``ordering`` or ``limit``.
        key: the key.
        waiting: jobs that a claim has met and that wait for the key. Jobs that no claim has met yet
            are not counted.
        running: jobs of the key that workers have.
        reason: why the next job of the key does not run: a word of ``KeyReason``.
        until: when a job that runs again or the next start of a rate is due, or a pause ends; None
            if no time is known.
        blocking_jobs: the job of the ordering key that must end first, or running jobs of the limit
            key, at most 10.
        blocking_workers: the worker of each of them; None: no worker has it.
        held_by: the dead letter that holds the ordering key; None for none.
        first_job_id: the first waiting job; None if none waits.
        waits_for: the limit key that holds back the first waiting job of the ordering key; None for
            none.
        pause_at: when a planned pause begins; None if none is planned.
        resume_at: when the planned pause ends; None: it lasts until the key is resumed.
        limits: of a limit key that has limits itself; None: it has those of its queue.
        breaker: of a limit key that has failed since its last success; else None.
    """

    queue: str
    group: str
    sort: KeySort
    key: str
    waiting: int
    running: int
    reason: KeyReason
    until: datetime | None
    blocking_jobs: Sequence[int]
    blocking_workers: Sequence[str | None]
    held_by: int | None
    first_job_id: int | None
    waits_for: str | None = None
    pause_at: datetime | None = None
    resume_at: datetime | None = None
    limits: KeyLimits | None = None
    breaker: KeyBreaker | None = None

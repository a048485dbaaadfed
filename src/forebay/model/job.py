"""A job as handlers and operators see it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec


class JobState(StrEnum):
    """State of a job in one group. The last four are final.

    Attributes:
        SCHEDULED: the job waits until it is due: delayed, snoozed, or postponed without a handler
            or store.
        READY: the job waits for a worker.
        CLAIMED: a worker has the job and has not reported yet that its handler runs.
        RUNNING: the handler runs, as the worker reported with its last heartbeat. A job shorter
            than the interval between heartbeats may be shown as claimed until it ends.
        RETRYING: the last attempt failed; the job waits for the next one.
    """

    SCHEDULED = "scheduled"
    READY = "ready"
    CLAIMED = "claimed"
    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"

    @property
    def is_held(self) -> bool:
        """Whether a worker has the job: it is claimed or running.

        >>> JobState.CLAIMED.is_held, JobState.RETRYING.is_held
        (True, False)
        """
        return self in {JobState.CLAIMED, JobState.RUNNING}

    @property
    def is_final(self) -> bool:
        """Whether the state never changes again, except by a redrive.

        >>> JobState.DEAD.is_final, JobState.RUNNING.is_final
        (True, False)
        """
        return self in _FINAL


_FINAL = frozenset({JobState.DONE, JobState.CANCELLED, JobState.EXPIRED, JobState.DEAD})


#: Options that a job has for life, and its handler reads.
CARRIED: Final = ("tag", "correlation_id", "headers", "ordering_key")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job, for one group.

    Attributes:
        job_id: the same in all attempts. After a crash or failover of the database that lost
            commits, a number can be assigned again: outside the database, identify a job by
            ``job_id``, ``enqueued_at`` and ``group`` together.
        attempt: number of this attempt, from 1.
        max_attempts: maximum number of attempts.
        args: the arguments as decoded JSON.
        expires_at: from this instant on the job is not started.
        group: the consumer group.
        ordering_key: jobs of the queue with the same key run one at a time, in order; None for no
            order.
    """

    job_id: int
    kind: str
    queue: str
    priority: int
    args: dict[str, Any]
    attempt: int
    max_attempts: int
    enqueued_at: datetime
    expires_at: datetime | None = None
    tag: str | None = None
    correlation_id: str | None = None
    headers: dict[str, str] = {}
    ordering_key: str | None = None
    group: str = "default"

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt makes the job a dead letter."""
        return self.attempt >= self.max_attempts

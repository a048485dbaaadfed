"""A job as a handler and an operator see it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec


class JobState(StrEnum):
    """Where a job stands for one group. The last four are final.

    Attributes:
        SCHEDULED: waits for its time: delayed, snoozed, or postponed because no handler or no store was there.
        READY: waits for a worker.
        CLAIMED: a worker has it and has not reported yet that its handler runs.
        RUNNING: its handler runs, as its worker said with the last heartbeat. A job that is shorter than the pause
            between heartbeats may be shown as claimed until it ends.
        RETRYING: its last attempt failed, and it waits for the next one.
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
        """Whether the state never changes again, short of a redrive.

        >>> JobState.DEAD.is_final, JobState.RUNNING.is_final
        (True, False)
        """
        return self in _FINAL


_FINAL = frozenset({JobState.DONE, JobState.CANCELLED, JobState.EXPIRED, JobState.DEAD})


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job, for one group.

    Attributes:
        job_id: stays the same over all attempts. After a database crash or failover that lost
            commits a number can be given out again: outside the database, name a job by
            ``job_id``, ``enqueued_at`` and ``group`` together.
        attempt: number of this attempt, from 1.
        max_attempts: attempts allowed in all.
        args: the arguments as decoded JSON.
        expires_at: from this instant on the job is not started any more.
        group: the reader of the queue this view belongs to.
        ordering_key: jobs of the queue with the same key run one at a time, in order; None has no order to keep.
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

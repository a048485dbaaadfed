"""Consumer groups as operators see them."""

from __future__ import annotations

from datetime import datetime

from forebay._dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    """One consumer group of a queue.

    Attributes:
        queue: its queue.
        group: its name.
        is_implied: no worker or user has opened it: the queue has not been served, and the next
            group takes it over.
        is_served: a worker serves the group now.
        created_at: when it was opened.
        paused_at: since when it is paused; None if it is not.
        resume_at: when that pause ends by itself; None if it does not.
        closing_at: since when it is being closed; None if it is not.
        unread: jobs that wait for it, without scheduled and retrying ones.
        oldest_unread_at: when the oldest of them was enqueued; None if none waits, or only behind
            an ordering key.
        running: jobs that workers have.
        open_batches: the claims these jobs belong to.
        held_segments: segments of the log that only this group keeps.
        held_bytes: their size.
        claimed_at: when a worker last claimed jobs; None if never.
    """

    queue: str
    group: str
    is_implied: bool
    is_served: bool
    created_at: datetime
    paused_at: datetime | None
    resume_at: datetime | None
    closing_at: datetime | None
    unread: int
    oldest_unread_at: datetime | None
    running: int
    open_batches: int
    held_segments: int
    held_bytes: int
    claimed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedGroup:
    """What closing a consumer group gives up and releases.

    Attributes:
        cancelled: jobs that waited for it, retries included: the group never runs them.
        running: jobs that workers have: they finish first.
        segments: segments of the log that can be emptied now, once they are past
            ``retention_days``.
        bytes: their size.
    """

    cancelled: int
    running: int
    segments: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedQueue:
    """What dropping a queue gives up and removes.

    Attributes:
        cancelled: jobs that waited, without the runs of subjects.
        running: jobs that workers have: they finish.
        groups: the consumer groups that are closed.
        settings: what is removed: ``limits``, ``key limits``, ``shards``, ``paused keys``, ``max
            attempts``, ``dead letters`` (the time for which they are kept), ``declared`` (what an
            application applied last), ``kinds`` (that kinds belong to it), ``subjects``.
        subjects: its subjects, whatever their state.
    """

    cancelled: int
    running: int
    groups: tuple[str, ...]
    settings: tuple[str, ...]
    subjects: int

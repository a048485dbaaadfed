"""Counters of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from forebay._dataclass import dataclass

#: Upper bounds, in milliseconds, of the buckets of ``waits`` and ``durations``. A further
#: bucket has the longer ones.
STATS_BOUNDS: Final = (
    5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 20_000, 30_000, 60_000, 120_000,
    300_000, 600_000, 1_800_000, 3_600_000,
)  # fmt: skip

#: The steps of a time series.
StatsStep = Literal["second", "minute", "hour"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The counters of one queue, group, priority, kind and tag."""

    queue: str
    group: str
    priority: int
    kind: str
    tag: str | None
    scheduled: int
    ready: int
    claimed: int
    retrying: int
    enqueued: int
    handed: int
    done: int
    failed: int
    dead: int
    expired: int
    cancelled: int
    snoozed: int
    released: int
    lost: int
    requeued: int
    wait_ms: int
    duration_ms: int
    waits: list[int]
    durations: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(_Counted):
    """The counters of one queue, group, priority, kind and tag, at one moment.

    ``scheduled`` to ``retrying``, ``held`` and ``running`` are jobs now, in the states of a job.
    The others count since the group was opened.

    Attributes:
        kind: empty for the jobs of further kinds and tags, beyond 2,000 of a group.
        tag: None for jobs without a tag.
        ready: with those of ``held``.
        held: jobs that wait for their ordering key or limit key.
        claimed: with those of ``running``.
        running: those that the last heartbeat of their worker has named.
        enqueued: jobs that were enqueued to run at once.
        handed: jobs that workers have had, once for each claim.
        failed: attempts that ended with an error and were repeated.
        dead: jobs that died; their last attempt is not in ``failed``.
        cancelled: before or after a claim.
        snoozed: with those sent back for an unknown kind.
        released: sent back by a worker that had not started them.
        lost: sent back from workers that were lost.
        requeued: sent back behind an earlier job of their ordering key.
        wait_ms: milliseconds from enqueue to claim, the sum over jobs that were enqueued to run at
            once.
        duration_ms: milliseconds that handlers ran, the sum over attempts with a measured duration.
        waits: how many of these waits lie in each bucket of ``STATS_BOUNDS``.
        durations: the same for durations.
    """

    held: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSample(_Counted):
    """The counters of one queue, group, priority, kind and tag, for one step of a time series.

    ``scheduled`` to ``retrying`` are jobs at the end of the step, the others how many since the
    sample before; see ``Stats``.

    Attributes:
        at: the end of the step.
    """

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsAudit:
    """The comparison of the counters with a full count.

    Attributes:
        equal: whether all numbers agree.
        counted: rows and ends of jobs that were counted.
        differences: what does not agree, at most 100: queue, group, priority, kind, tag, state, and
            the numbers ``stats`` and ``counted``.
    """

    equal: bool
    counted: int
    differences: list[dict[str, Any]]

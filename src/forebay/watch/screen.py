"""What ``forebay top`` shows: queues with rates and latencies, workers, keys that wait, and
alerts.
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay._dataclass import dataclass
from forebay.model.keys import KeyInfo
from forebay.model.problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """One queue in one consumer group, now. Rates and latencies are None if nothing is known.

    Attributes:
        cancelled: jobs that were cancelled or replaced while they were ready, and that no worker
            has passed yet.
        dead: dead letters of the queue that were not redriven and whose cause is not muted; the
            same in all its groups.
        is_served: whether a live worker serves it.
        oldest_ready_seconds: age of the oldest ready job, in seconds.
        claims_per_second: jobs that workers took.
        enqueued_per_second: jobs that were enqueued, between two folds of the counters, as
            ``done_per_second``.
        done_per_second: jobs that were done, between two folds of the counters; None until two are
            known.
        failed_per_second: attempts that ended with an error, and jobs that died.
        wait_p50: seconds from enqueue to claim, of jobs that were enqueued to run at once.
        run_p50: seconds that handlers ran.
        latency_is_recent: whether wait and run are of the last minute; else they are of all jobs
            since the group was opened.
    """

    queue: str
    group: str
    scheduled: int
    ready: int
    claimed: int
    running: int
    retrying: int
    cancelled: int
    dead: int
    is_paused: bool
    is_served: bool
    oldest_ready_seconds: float | None
    claims_per_second: float | None
    enqueued_per_second: float | None
    done_per_second: float | None
    failed_per_second: float | None
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None
    latency_is_recent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One worker with an open lease.

    Attributes:
        running: jobs that its last heartbeat named.
        slots: its concurrency; None if unknown.
        delivers: whether it serves deliveries and events only.
        heartbeat_seconds: age of the last heartbeat; None before the first.
        memory_bytes: of its process; None if unknown.
    """

    worker: str
    group: str | None
    app: str | None
    running: int
    slots: int | None
    delivers: bool
    is_alive: bool
    heartbeat_seconds: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One screen.

    Attributes:
        at: time of the database, in seconds since 1970.
        rate_seconds: the period of the rates; None for one read only, which has no rates.
        problems: what is wrong, the worst first, as ``forebay status`` lists it.
        keys: keys that jobs wait for, most waiting jobs first, at most 100.
    """

    at: float
    rate_seconds: float | None
    problems: Sequence[Problem]
    queues: Sequence[QueueLoad]
    workers: Sequence[WorkerLoad]
    keys: Sequence[KeyInfo]

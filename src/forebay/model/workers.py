"""What operators see of workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from forebay._dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs.

    Attributes:
        kind: its kind; None if it has just ended.
        claimed_at: when the worker claimed it; None if it has just ended.
    """

    job_id: int
    kind: str | None
    claimed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOverview:
    """A worker with an open lease.

    Attributes:
        worker: its name, which no other worker ever has: host, process id and a random part.
        host: the name of its machine or container; None for a worker that reports nothing of
            itself, as all until the heartbeat.
        pid: its process id there.
        group: the consumer group that it serves.
        queues: the queues that it serves, at most the first 100.
        app: module and attribute of its application.
        app_version: the setting ``app_version`` of the worker; None if it is not set.
        forebay_version: the version of this library in the worker.
        started_at: when the process started to work.
        heartbeat_at: its last heartbeat.
        concurrency: its slots: as set by ``set_concurrency``, else as it was started.
        memory_bytes: resident memory of its process without child processes; None where the system
            does not tell.
        running: the number of running jobs, at most 1,000.
        running_jobs: the first of them.
        processes: how many child processes run its handlers, as it was started; None: they run in
            its own process.
    """

    worker: str
    host: str | None
    pid: int | None
    group: str | None
    queues: Sequence[str] | None
    app: str | None
    app_version: str | None
    forebay_version: str | None
    started_at: datetime
    heartbeat_at: datetime | None
    concurrency: int | None
    memory_bytes: int | None
    running: int
    running_jobs: Sequence[RunningJob]
    processes: int | None = None

"""What operators see of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

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
        stop_at: when it was asked to stop, by ``stop_workers``; None: it was not.
        stop_by: who asked it: the name given with ``acting_as``, else the role.
        is_silent: its last heartbeat is older than it should be: others take its jobs when its
            lease has ended.
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
    stop_at: datetime | None = None
    stop_by: str | None = None
    is_silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWorker:
    """A worker whose lease has ended.

    Attributes:
        worker: its name, which no other worker ever has: host, process id and a random part.
        how: ``stopped`` by itself; ``crashed`` by ``signal``; ``lost``: it was silent for so
            long that its jobs went to others; ``adopted`` after a restore of the database.
        signal: the number of the signal that ended its process; None: not known.
        is_back: whether it has a lease again: its process was frozen or cut off.
        host: the name of its machine or container; None for a worker that reported nothing of
            itself, as the next five.
        pid: its process id there.
        group: the consumer group that it served.
        queues: the queues that it served, at most the first 100.
        app: module and attribute of its application.
        app_version: the setting ``app_version`` of the worker.
        started_at: when the process started to work.
        heartbeat_at: the last sign of life.
        ended_at: when its lease ended.
        jobs: how many jobs it held then.
        used_attempt: how many of them have used an attempt, each with an error; all others were
            returned as if they had not been claimed.
        kinds: the kinds of these jobs with their numbers, at most 20 kinds.
        job_ids: the first 20 of them, those first that ran at its last heartbeat.
        stop_by: who had requested it to stop, by ``stop_workers``; None: no operator.
    """

    worker: str
    how: Literal["stopped", "crashed", "lost", "adopted"]
    signal: int | None
    is_back: bool
    host: str | None
    pid: int | None
    group: str | None
    queues: Sequence[str] | None
    app: str | None
    app_version: str | None
    started_at: datetime
    heartbeat_at: datetime | None
    ended_at: datetime
    jobs: int
    used_attempt: int
    kinds: Mapping[str, int]
    job_ids: Sequence[int]
    stop_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlan:
    """What a request to stop would do; no worker was told.

    Attributes:
        token: pass it to ``stop_workers``: exactly these workers stop, or none.
        workers: their names.
        jobs: how many jobs they run, at most 1,000 of each.
    """

    token: str
    workers: Sequence[str]
    jobs: int

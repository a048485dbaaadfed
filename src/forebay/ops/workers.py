"""Workers, as operators see and change them."""

from __future__ import annotations

from typing import Final

from forebay.model import checks
from forebay.model.workers import WorkerOverview
from forebay.ops.operation import Operation, scalar
from forebay.ops.records import rows_as

#: Most running jobs of each worker in a list.
JOBS_MAX: Final = 100

_WORKERS: Final = """\
select json_build_object(
    'worker', w.worker, 'host', w.host, 'pid', w.pid, 'group', w.group_name, 'queues', w.queues, 'app', w.app,
    'app_version', w.app_version, 'forebay_version', w.forebay_version, 'started_at', w.started_at,
    'heartbeat_at', w.heartbeat_at, 'concurrency', w.concurrency, 'memory_bytes', w.memory_bytes, 'running', w.running,
    'running_jobs', w.running_jobs, 'processes', w.processes)::text
from forebay.workers(%(jobs)s::integer) w"""


def workers(jobs: int) -> Operation[list[WorkerOverview]]:
    """Return the workers, with at most this many running jobs of each."""
    return Operation(
        _WORKERS,
        lambda rows: rows_as(WorkerOverview, rows),
        {"jobs": checks.checked_integer(jobs, "jobs", least=0, most=JOBS_MAX)},
    )


def set_concurrency(concurrency: int | None, worker: str | None) -> Operation[int]:
    """Set the concurrency of workers; return how many."""
    if concurrency is not None:
        checks.checked_integer(concurrency, "concurrency", least=1, most=10_000)
    return Operation(
        "select forebay.set_concurrency(%(concurrency)s::integer, %(worker)s::text)",
        scalar,
        {"concurrency": concurrency, "worker": worker},
    )

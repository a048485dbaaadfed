"""Workers, as operators see and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.model import checks
from forebay.model.workers import EndedWorker, StopPlan, WorkerOverview
from forebay.ops.operation import Operation, number, scalar
from forebay.ops.records import rows_as

if TYPE_CHECKING:
    from datetime import datetime

#: Most running jobs of each worker in a list.
JOBS_MAX: Final = 100

#: Most ended workers in a list.
ENDED_MAX: Final = 1000

_WORKERS: Final = """\
select to_jsonb(w)::text
from forebay.workers(%(jobs)s::integer) w"""


def workers(jobs: int) -> Operation[list[WorkerOverview]]:
    """Return the workers, with at most this many running jobs of each."""
    return Operation(
        _WORKERS,
        lambda rows: rows_as(WorkerOverview, rows),
        {"jobs": checks.checked_integer(jobs, "jobs", least=0, most=JOBS_MAX)},
    )


def ended_workers(since: datetime | None, limit: int) -> Operation[list[EndedWorker]]:
    """Return the workers that ended since a time, newest first; None: within a day."""
    return Operation(
        "select to_jsonb(w)::text"
        " from forebay.ended_workers(%(since)s::timestamptz, %(limit)s::integer) w",
        lambda rows: rows_as(EndedWorker, rows),
        {
            "since": checks.instant_text(since, "since"),
            "limit": checks.checked_integer(limit, "limit", least=1, most=ENDED_MAX),
        },
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


def plan_stop(worker: str | None, app_version: str | None) -> Operation[StopPlan]:
    """Return the call that tells which workers a request to stop would ask."""
    return Operation(
        "select to_jsonb(p)::text"
        " from forebay.plan_stop(%(worker)s::text, %(app_version)s::text) p",
        lambda rows: rows_as(StopPlan, rows)[0],
        _chosen(worker, app_version),
    )


def stop_workers(
    worker: str | None, app_version: str | None, token: str | None = None
) -> Operation[int]:
    """Ask workers to stop; return how many were asked."""
    return Operation(
        "select forebay.stop_workers(%(worker)s::text, %(app_version)s::text, %(token)s::text)",
        number,
        {**_chosen(worker, app_version), "token": token},
    )


def _chosen(worker: str | None, app_version: str | None) -> dict[str, str | None]:
    return {"worker": worker, "app_version": app_version}

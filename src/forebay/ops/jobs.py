"""Show, list, cancel and count jobs."""

from __future__ import annotations

import json
from typing import Final, cast

from forebay.errors import InvalidJob, JobNotFound, shown
from forebay.model import JobState, checks
from forebay.model.change import JobFilter
from forebay.model.status import CancelAnswer, Depth, JobStatus
from forebay.ops.operation import Operation, ResultRows, scalar
from forebay.ops.records import rows_as

#: Most rows of a list.
LIST_MAX: Final = 1000

#: A row ``j`` of ``forebay.job`` with the members of ``JobStatus``.
STATUS: Final = """\
to_jsonb(j) operator(pg_catalog.||) jsonb_build_object(
    'group', j.group_name,
    'endpoint', case when j.queue operator(pg_catalog.=) 'forebay.deliver' then j.limit_key end,
    'expires_at',
    case when j.expires_at
              operator(pg_catalog.<) (j.enqueued_at operator(pg_catalog.+) interval '90 years')
         then j.expires_at end)"""

_JOB: Final = f"select ({STATUS})::text from forebay.job(%(job_id)s::bigint) j"

_JOBS: Final = f"""\
select ({STATUS})::text
from forebay.jobs(only_queue => %(queue)s, only_kind => %(kind)s, only_state => %(state)s,
                  most => %(limit)s::integer, before => %(before)s::bigint,
                      filter => %(filter)s::jsonb) j"""

_DEPTH: Final = """\
select to_jsonb(d)::text
from forebay.depth(only_queue => %(queue)s) d"""


def cancel(job_id: int, group: str | None = None, *, now: bool = False) -> Operation[CancelAnswer]:
    """Return the call that cancels a job; it returns what that means for the job."""
    return Operation(
        "select forebay.cancel(%(job_id)s::bigint, %(group)s, %(now)s::boolean)",
        lambda rows: cast("CancelAnswer", scalar(rows)),
        {"job_id": checked_id(job_id, "job_id"), "group": group, "now": now},
    )


def job(job_id: int) -> Operation[list[JobStatus]]:
    """Return the call that reads the state of a job for each group of its queue.

    Running it raises ``JobNotFound`` if the job does not exist.
    """

    def decode(rows: ResultRows) -> list[JobStatus]:
        if not rows:
            raise JobNotFound(job_id)
        return rows_as(JobStatus, rows)

    return Operation(_JOB, decode, {"job_id": checked_id(job_id, "job_id")})


def jobs(
    *,
    queue: str | None = None,
    kind: str | None = None,
    state: JobState | str | None = None,
    limit: int = 50,
    before: int | None = None,
    which: JobFilter | None = None,
) -> Operation[list[JobStatus]]:
    """Return the call that lists the newest jobs."""
    if state is not None and state not in set(JobState):
        raise InvalidJob("state", f"is {shown(state)}", hint=f"States are {', '.join(JobState)}.")
    return Operation(
        _JOBS,
        lambda rows: rows_as(JobStatus, rows),
        {
            "queue": queue,
            "kind": kind,
            "state": None if state is None else str(state),
            "limit": checks.checked_integer(limit, "limit", least=1, most=LIST_MAX),
            "before": before,
            "filter": None if which is None else json.dumps(which.as_json()),
        },
    )


def depth(queue: str | None = None) -> Operation[list[Depth]]:
    """Return the call that counts waiting and running jobs: it continues from the last counts."""
    return Operation(_DEPTH, lambda rows: rows_as(Depth, rows), {"queue": queue})


def checked_id(value: object, field: str) -> int:
    """Return an id; raise ``InvalidJob`` if it does not fit a bigint."""
    return checks.checked_integer(value, field, least=0, most=checks.BIGINT_MAX)

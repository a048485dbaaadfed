"""Counters of jobs, their audit and their time series."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from forebay.errors import InvalidJob
from forebay.model.stats import Stats, StatsAudit, StatsSample, StatsStep
from forebay.ops.operation import Operation
from forebay.ops.records import rows_as

_STATS: Final = """\
select to_jsonb(s)::text
from forebay.stats(only_queue => %(queue)s) s"""

_AUDIT: Final = """\
select json_build_object('equal', a.equal, 'counted', a.counted, 'differences',
    coalesce(a.differences, '[]'))::text
from forebay.audit_stats(only_queue => %(queue)s) a"""

_SERIES: Final = """\
select to_jsonb(s)::text
from forebay.stats_series(%(step)s, %(since)s::timestamptz, %(until)s::timestamptz, %(queue)s) s"""


def stats(queue: str | None = None) -> Operation[list[Stats]]:
    """Return the call that reads the counters; it visits no job that just waits or has ended."""
    return Operation(_STATS, lambda rows: rows_as(Stats, rows), {"queue": queue})


def audit_stats(queue: str | None = None) -> Operation[StatsAudit]:
    """Return the call that compares the counters with a full count; it reads every job."""
    return Operation(_AUDIT, lambda rows: rows_as(StatsAudit, rows)[0], {"queue": queue})


def stats_series(
    step: StatsStep,
    since: datetime | None = None,
    until: datetime | None = None,
    queue: str | None = None,
) -> Operation[list[StatsSample]]:
    """Return the call that reads the counters over time."""
    if step not in ("second", "minute", "hour"):
        raise InvalidJob("step", "is not one of second, minute, hour")
    for name, value in (("since", since), ("until", until)):
        if value is not None and value.tzinfo is None:
            raise InvalidJob(name, "has no time zone", hint="Give a datetime with a time zone.")
    return Operation(
        _SERIES,
        lambda rows: rows_as(StatsSample, rows),
        {
            "step": step,
            "since": since.isoformat() if since else None,
            "until": until.isoformat() if until else None,
            "queue": queue,
        },
    )

"""Exports of the archive before segments are emptied."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from forebay.model import checks
from forebay.model.exports import Export, ExportedJob, JobsToExport, SegmentToExport
from forebay.ops.archive import checked_state
from forebay.ops.jobs import LIST_MAX, STATUS
from forebay.ops.operation import Operation, boolean, nothing
from forebay.ops.records import rows_as

if TYPE_CHECKING:
    from forebay.model import JobState
    from forebay.model.change import JobFilter
    from forebay.ops.operation import ResultRows

#: Most row numbers of one page.
PAGE_MAX: Final = 10_000

_EXPORTS: Final = """\
select to_jsonb(e)::text
from forebay.exports() e"""

#: A row ``j`` of ``forebay.job`` with the members of ``ExportedJob``, from the joins below.
_EXPORTED: Final = f"""\
{STATUS} operator(pg_catalog.||) jsonb_build_object(
    'outcome', a.outcome, 'seconds', a.seconds, 'seconds_all', a.seconds_all,
    'error_type', h.error operator(pg_catalog.->>) 'type',
    'error', h.error operator(pg_catalog.->>) 'message', 'result', h.value)"""

_ENDS: Final = """\
cross join lateral (
    select (array_agg(t.outcome order by t.seq desc, t.attempt desc))[1] as outcome,
           (array_agg(t.millis order by t.seq desc, t.attempt desc))[1]
               operator(pg_catalog./) 1000.0 as seconds,
           sum(t.millis) operator(pg_catalog./) 1000.0 as seconds_all
    from forebay.job_attempts(j.job_id) t
    where t.group_name operator(pg_catalog.=) j.group_name and t.outcome is not null) a
cross join lateral (
    select (case when max(h.errors::text) operator(pg_catalog.<>) '[]'
                 then max(h.errors::text)::jsonb
                 else (select d.errors from forebay.dead_letter d
                       where d.dead_id operator(pg_catalog.=) j.dead_id) end)
               operator(pg_catalog.->) -1 as error,
           max(h.value::text)::jsonb as value
    from forebay.job_history(j.job_id) h
    where h.group_name operator(pg_catalog.=) j.group_name) h"""

_FOUND: Final = f"""\
select json_build_object(
    'next', s.next,
    'jobs', (select coalesce(jsonb_agg({_EXPORTED} order by u.nr), '[]')
             from unnest(s.job_ids) with ordinality u (job_id, nr)
             cross join lateral forebay.job(u.job_id) j
             {_ENDS}))::text
from forebay.search_jobs(%(filter)s::jsonb, only_state => %(state)s,
    most => %(limit)s::integer, before => %(before)s::bigint) s"""

_JOBS: Final = f"""\
select ({_EXPORTED})::text
from forebay.jobs_to_export(%(segment_id)s::bigint, %(first)s::bigint,
    %(last)s::bigint) with ordinality e (job_id, nr)
cross join lateral forebay.job(e.job_id) j
{_ENDS}
where j.state operator(pg_catalog.=) any ('{{done,cancelled,expired,dead}}') order by e.nr"""


def create_export(name: str, hold_hours: int) -> Operation[None]:
    """Return the call that creates an export."""
    return Operation(
        "select forebay.create_export(%(name)s, %(hold_hours)s::integer)",
        nothing,
        {
            "name": checks.checked_text(name, "name", characters_max=100),
            "hold_hours": checks.checked_integer(hold_hours, "hold_hours", least=1, most=87_600),
        },
    )


def drop_export(name: str) -> Operation[bool]:
    """Return the call that drops an export; it returns whether there was one."""
    return Operation("select forebay.drop_export(%(name)s)", boolean, {"name": name})


def exports() -> Operation[list[Export]]:
    """Return the call that lists exports."""
    return Operation(_EXPORTS, lambda rows: rows_as(Export, rows))


def next_to_export(
    name: str, after: int | None
) -> Operation[tuple[SegmentToExport | None, int | None]]:
    """Return the call that finds the oldest segment to write.

    It returns it, or where to continue, or twice None.
    """

    def decode(rows: ResultRows) -> tuple[SegmentToExport | None, int | None]:
        if not rows:
            return None, None
        ((segment_id, low, high, following),) = rows
        if segment_id is None:
            return None, following
        return SegmentToExport(segment_id=segment_id, first=low, last=high - 1), None

    return Operation(
        "select segment_id, lo, hi, next from forebay.next_to_export(%(name)s, %(after)s::bigint)",
        decode,
        {"name": checks.checked_text(name, "name", characters_max=100), "after": after},
    )


def jobs_to_export(segment_id: int, first: int, last: int) -> Operation[list[ExportedJob]]:
    """Return the call that reads the ended jobs of some rows of a segment."""
    return Operation(
        _JOBS,
        lambda rows: rows_as(ExportedJob, rows),
        {"segment_id": segment_id, "first": first, "last": last},
    )


def find_jobs(
    which: JobFilter | None, state: JobState | str | None, before: int | None
) -> Operation[JobsToExport]:
    """Return the call that finds jobs to write, the newest first: one page."""
    params = {
        "filter": json.dumps({"all": True} if which is None else which.as_json()),
        "state": checked_state(state),
        "limit": LIST_MAX,
        "before": before,
    }
    return Operation(_FOUND, lambda rows: rows_as(JobsToExport, rows)[0], params)


def mark_exported(name: str, segment_id: int, jobs: int, file: str) -> Operation[bool]:
    """Return the call that marks a segment as written.

    It returns False if it was emptied meanwhile.
    """
    return Operation(
        (
            "select forebay.mark_exported(%(name)s, %(segment_id)s::bigint, %(jobs)s::bigint, "
            "%(file)s)"
        ),
        boolean,
        {
            "name": checks.checked_text(name, "name", characters_max=100),
            "segment_id": segment_id,
            "jobs": jobs,
            "file": checks.checked_text(file, "file", characters_max=1000),
        },
    )

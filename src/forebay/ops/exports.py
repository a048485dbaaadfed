"""Exports of the archive before segments are emptied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.model import checks
from forebay.model.exports import Export, SegmentToExport
from forebay.model.status import JobStatus
from forebay.ops.jobs import STATUS
from forebay.ops.operation import Operation, boolean, nothing
from forebay.ops.records import rows_as

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

#: Most row numbers of one page.
PAGE_MAX: Final = 10_000

_EXPORTS: Final = """\
select to_jsonb(e)::text
from forebay.exports() e"""

_JOBS: Final = f"""\
select ({STATUS})::text
from forebay.jobs_to_export(%(segment_id)s::bigint, %(first)s::bigint,
    %(last)s::bigint) with ordinality e (job_id, nr)
cross join lateral forebay.job(e.job_id) j
where j.state in ('done', 'cancelled', 'expired', 'dead') order by e.nr"""


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


def jobs_to_export(segment_id: int, first: int, last: int) -> Operation[list[JobStatus]]:
    """Return the call that reads the ended jobs of some rows of a segment."""
    return Operation(
        _JOBS,
        lambda rows: rows_as(JobStatus, rows),
        {"segment_id": segment_id, "first": first, "last": last},
    )


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

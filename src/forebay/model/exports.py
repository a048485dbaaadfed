"""Exports of the archive: files of jobs that segments wait for before they are emptied."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from forebay._dataclass import dataclass
from forebay.model.status import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An export, for which retention waits.

    Attributes:
        name: its name.
        hold_hours: how long a segment waits for it, from the time at which retention would have
            emptied it.
        created_at: when it was created.
        exported: segments that it has written and that still exist.
        exported_at: when it has written the last of them; None: none of them.
        waiting: full segments that it has not written.
        due: those of them that retention would have emptied.
        due_at: since when the first of these waits; None: none.
        missed: segments that were emptied before it had written them.
        missed_at: when the last of them was emptied; None: none.
    """

    name: str
    hold_hours: int
    created_at: datetime
    exported: int
    exported_at: datetime | None
    waiting: int
    due: int
    due_at: datetime | None
    missed: int
    missed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToExport:
    """A full segment in which every job has ended, or continues in a later one.

    Attributes:
        segment_id: its number.
        first: the number of its first row.
        last: the number that its last row can have.
    """

    segment_id: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob(JobStatus):
    """The status of one job in one group, with how its attempts ended.

    Attributes:
        outcome: of its last attempt that has ended: done, retried, dead, lost and so on; None: none
            has ended.
        error_type: the class of its last error, also of a job that was done later; None: it had
            none.
        error: the message of that error.
        seconds: how long the handler ran in that attempt; None: it was not measured.
        seconds_all: how long it ran in all attempts together.
        result: its result, while it is kept.
    """

    outcome: str | None = None
    error_type: str | None = None
    error: str | None = None
    seconds: float | None = None
    seconds_all: float | None = None
    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsToExport:
    """One page of jobs to write.

    Attributes:
        jobs: the newest job first, an entry for each group.
        next: the ``before`` of the next page; None: nothing is left.
    """

    jobs: Sequence[ExportedJob]
    next: int | None

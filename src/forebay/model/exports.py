"""Exports of the archive: files of jobs that segments wait for before they are emptied."""

from __future__ import annotations

from datetime import datetime

from forebay._dataclass import dataclass


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

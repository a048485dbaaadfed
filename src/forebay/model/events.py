"""Events: what operators did."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from forebay._dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One act of an operator.

    Attributes:
        at: when it was recorded, by the clock of the database.
        role: the login role of the session.
        actor: who acted, as the client says: see ``acting_as``; None if it says nothing.
        act: the command: ``queues.pause``, ``jobs.cancel``, ``guard.terminate``.
        subject_id: the job, dead letter or backfill, if it was one.
        old: what was before; None if nothing was.
        new: what is now, or which jobs were chosen.
        count: the number of jobs, dead letters or groups.
    """

    event_id: int
    at: datetime
    role: str
    actor: str | None
    act: str
    queue: str | None
    group: str | None
    kind: str | None
    subject_id: int | None
    old: Any
    new: Any
    count: int | None
    detail: str | None

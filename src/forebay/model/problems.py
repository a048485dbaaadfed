"""Problems: what is wrong now, as every screen lists it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from forebay._dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem, with what mends it.

    Attributes:
        name: the code of the alert, or the check of the doctor, and what it concerns.
        severity: ``error``, jobs do not run or will never; ``warning``, they soon may not.
        state: ``holds``; ``pending``, it has not lasted long enough to count; ``ending``, it is
            over, and an alert until it has been over for two minutes; ``noted``, it is no
            problem by itself: a pause that is wanted, or what cannot be seen.
        since: its start; None if unknown.
        for_seconds: how long it has to last until it counts.
        cause: what is wrong, in one sentence.
        command: the command or statement that mends it or shows more.
        hint: the whole advice; often just the command.
        code: the code of the alert, or the check.
        subject: the queue, endpoint, mirror or schedule; empty for the database.
        group: the consumer group; empty for none.
    """

    name: str
    severity: Literal["error", "warning"]
    state: Literal["holds", "pending", "ending", "noted"] = "holds"
    since: datetime | None = None
    for_seconds: float = 0.0
    cause: str
    command: str
    hint: str
    code: str
    subject: str = ""
    group: str = ""

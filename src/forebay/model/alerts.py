"""Alerts: what is wrong with queues, endpoints, mirrors, schedules and the database."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from forebay._dataclass import dataclass

#: Where the age of a transaction in seconds is unknown, it is too old after as many others began.
UNSEEN_AGE_MOST: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A problem that an operator should know.

    Attributes:
        code: ``A1`` too few completed jobs, ``A2`` too many waiting jobs, ``A3`` jobs that may
            never succeed; other codes are words. docs/howto/monitoring.md has all of them.
        problem: a description.
        hint: what to do, or where to look.
        since: start of the problem, if known.
        subject: the queue, endpoint, mirror or schedule; empty for the database.
        group: the consumer group; empty for none.
        severity: ``error``, jobs do not run or will never; ``warning``, they soon may not.
        for_seconds: the condition must last this long before the alert fires; 0 for an alert that
            fires now.
        fired_at: when it fired; None while it is not recorded or has not lasted long enough.
    """

    code: str
    problem: str
    hint: str
    since: datetime | None = None
    subject: str = ""
    group: str = ""
    severity: Literal["error", "warning"] = "warning"
    for_seconds: float = 0.0
    fired_at: datetime | None = None

    @property
    def place(self) -> str:
        """The subject, with its group if it is not the default one.

        >>> Alert(code="A2", problem="", hint="", subject="mail", group="audit").place
        'mail/audit'
        """
        return self.subject if self.group in ("", "default") else f"{self.subject}/{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChange:
    """An alert that fired or cleared with a check.

    Attributes:
        act: what happened.
    """

    act: Literal["fired", "cleared"]
    alert: Alert

"""What a run of a subject may return: when the subject is due again, or that it is over.

A *subject* is a standing job: ``App.subject`` describes it. Its handler may return every
``Outcome``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, OutcomeRefused, shown
from forebay.model import checks

#: The units of an interval, with the word that SQL gets.
_UNITS: Final = {
    "s": "seconds", "sec": "seconds", "second": "seconds", "seconds": "seconds", "min": "minutes",
    "minute": "minutes",
    "minutes": "minutes", "h": "hours", "hour": "hours", "hours": "hours", "d": "days",
    "day": "days", "days": "days",
    "w": "weeks", "week": "weeks", "weeks": "weeks", "month": "months", "months": "months",
    "year": "years", "years": "years",
}  # fmt: skip
_SECONDS: Final = {
    "seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800,
    "months": 31 * 86_400, "years": 366 * 86_400,
}  # fmt: skip
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]+)")
_INTERVAL: Final = re.compile(rf"\+?\s*{_PART.pattern}(?:(?:\s+|\s*,\s*){_PART.pattern})*")
_CHARACTERS_MAX: Final = 100


def checked_interval(text: str, field: str = "interval") -> str:
    """Return an interval such as ``+1 week`` or ``2 days 4 h`` in the words of PostgreSQL.

    Weeks, months and years are those of the calendar, by the database: a month after 31 January is
    the last day of February.

    Raises:
        InvalidJob: the text is not an interval, a unit is unknown, or it is longer than 100 years.

    >>> checked_interval("+1 week"), checked_interval("2 days 4 h")
    ('1 weeks', '2 days 4 hours')
    """
    plain = text.strip().lower()
    hint = 'Write numbers with s, min, h, day, week, month or year: "+1 week", "2 days 4 h".'
    if len(plain) > _CHARACTERS_MAX or not _INTERVAL.fullmatch(plain):
        raise InvalidJob(field, f"is {shown(text)}, not an interval or an ISO 8601 time", hint=hint)
    parts = _PART.findall(plain)
    seconds = 0.0
    for number, unit in parts:
        if unit not in _UNITS:
            raise InvalidJob(field, f"has an unknown unit: {shown(unit)}", hint=hint)
        word = _UNITS[unit]
        if "." in number and word in ("months", "years"):
            raise InvalidJob(field, f"has a part of a {word[:-1]}: {shown(text)}", hint=hint)
        seconds += float(number) * _SECONDS[word]
    if seconds > checks.DELAY_SECONDS_MAX:
        raise InvalidJob(field, f"is {shown(text)}, longer than 100 years")
    return " ".join(f"{number} {_UNITS[unit]}" for number, unit in parts)


@dataclass(frozen=True, slots=True)
class Again:
    """The run has ended, and its subject is due again.

    Args:
        when: seconds or a timedelta from the end of the run; an aware datetime; or a text: an
            interval such as ``"+1 week"`` or ``"2 days 4 h"``, or an ISO 8601 time with an offset.
            None: as the handler's ``every`` says.
        state: what the next run finds in ``ctx.state``. None: ``ctx.state`` as the handler left it.
        args: new arguments for the runs from now on, by name. None: as they are.

    Raises:
        OutcomeRefused: the time is refused, or state or args is not a mapping. A time in the past
            means now.

    >>> Again(30), Again("+1 week").interval
    (Again(when=30.0, state=None, args=None), '1 weeks')
    """

    when: float | timedelta | datetime | str | None = None
    state: Mapping[str, Any] | None = None
    args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "when", _checked_when(self.when))
        except InvalidJob as error:
            raise as_outcome_refused(error) from None
        _check_mappings(self)

    @property
    def seconds(self) -> float | None:
        """The time from the end of the run in seconds; None if ``when`` is something else."""
        return self.when if isinstance(self.when, float) else None

    @property
    def interval(self) -> str | None:
        """The interval, in the words of PostgreSQL; None if ``when`` is something else."""
        return self.when if isinstance(self.when, str) else None

    @property
    def at(self) -> datetime | None:
        """The instant; None if ``when`` is something else."""
        return self.when if isinstance(self.when, datetime) else None


@dataclass(frozen=True, slots=True)
class Complete:
    """The run has ended, and its subject is completed: it stays, is not due again, and a push of
    its name is skipped.

    Args:
        state: see ``Again``.
        args: see ``Again``.

    Raises:
        OutcomeRefused: state or args is not a mapping.
    """

    state: Mapping[str, Any] | None = None
    args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_mappings(self)


@dataclass(frozen=True, slots=True)
class Drop:
    """The run has ended, and its subject is dropped: its name is free."""


def _checked_when(when: object) -> float | datetime | str | None:
    if when is None:
        return None
    if isinstance(when, str):
        try:
            found = datetime.fromisoformat(when)
        except ValueError:
            return checked_interval(when, "when")
        return checks.checked_instant(found, "when")
    if isinstance(when, datetime):
        return checks.checked_instant(when, "when")
    return checks.checked_seconds(when, "when")


def _check_mappings(outcome: Again | Complete) -> None:
    for name in ("state", "args"):
        value: object = getattr(outcome, name)
        if value is not None and not isinstance(value, Mapping):
            raise OutcomeRefused(
                name,
                f"must be a mapping of names to values, not {type(value).__name__}: {shown(value)}",
            )


def as_outcome_refused(error: InvalidJob) -> OutcomeRefused:
    """Return the error for a value that a handler returns.

    ``InvalidJob`` is for what is enqueued, and would make the job of the handler a dead letter.
    """
    return OutcomeRefused(str(error.field), str(error.problem), error.hint)

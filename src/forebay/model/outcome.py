"""Outcomes: values that a handler may return to decide how its attempt ends.

With any other return value the job is done; with an exception the attempt failed. Outcomes are
values, not exceptions, because they are not errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, OutcomeRefused, shown
from forebay.model import checks
from forebay.model.again import Again, Complete, Drop, as_outcome_refused
from forebay.model.text import bounded_text

if TYPE_CHECKING:
    from datetime import datetime, timedelta

#: A longer reason is cut, not refused: a handler that has done its work must not fail because of
#: its explanation.
REASON_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run the job again later; the attempt does not count.

    Args:
        delay: the delay, in seconds or as a timedelta. Give either this or ``until``.
        until: the instant to run again, an aware datetime.
        reason: shown to operators.

    >>> Snooze(30, reason="rate limited").delay_seconds
    30.0
    """

    delay: float | timedelta | None = None
    until: datetime | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.delay is None) == (self.until is None):
            raise OutcomeRefused(
                "delay", "and until: Snooze takes one of them", hint="Snooze(60), for example."
            )
        if self.delay is not None:
            object.__setattr__(self, "delay", _seconds(self.delay, "delay"))
        if self.until is not None:
            try:
                checks.checked_instant(self.until, "until")
            except InvalidJob as error:
                raise as_outcome_refused(error) from None
        _clean_reason(self)

    @property
    def delay_seconds(self) -> float | None:
        """The delay in seconds; None if ``until`` is given."""
        return None if self.delay is None else _seconds(self.delay, "delay")


@dataclass(frozen=True, slots=True)
class Retry:
    """End the attempt as failed and run the job again, up to max_attempts.

    Args:
        after: the delay, in seconds or as a timedelta. Default: by the retry policy.
        reason: kept in the error history.
    """

    after: float | timedelta | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            object.__setattr__(self, "after", _seconds(self.after, "after"))
        _clean_reason(self)

    @property
    def after_seconds(self) -> float | None:
        """The delay in seconds; None if the retry policy decides."""
        return None if self.after is None else _seconds(self.after, "after")


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the job as cancelled: it is no longer needed."""

    reason: str | None = None

    def __post_init__(self) -> None:
        _clean_reason(self)


@dataclass(frozen=True, slots=True)
class Dead:
    """End the job as a dead letter without further attempts."""

    reason: str | None = None

    def __post_init__(self) -> None:
        _clean_reason(self)


@dataclass(frozen=True, slots=True)
class Release:
    """For internal batch handlers: run the job again as if it had not started.

    Args:
        after: seconds until then; None: at once.
    """

    after: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """For internal handlers with their own number of attempts: one has failed.

    Args:
        reason: kept in the error history.
        of: how many attempts the job has, for people; what its kind says does not count.
        after: seconds until it runs again; None: that was the last attempt, and the job becomes a
            dead letter.
        permanent: it becomes a dead letter now, since another attempt could not help either.
    """

    reason: str
    of: int
    after: float | None = None
    permanent: bool = False

    def __post_init__(self) -> None:
        _clean_reason(self)


@dataclass(frozen=True, slots=True)
class Keep:
    """For internal handlers: the job is done, and its result is kept, whatever its kind says.

    Args:
        result: a JSON value.
        seconds: how long it is kept; None: as long as ended jobs.
    """

    result: Any
    seconds: float | None


Outcome = Snooze | Retry | Cancel | Dead | Again | Complete | Drop


class Endings(list["Outcome | Release | BaseException | None"]):
    """The return value of an internal batch handler: the outcome of each job, and counters to
    record with them.

    Attributes:
        counters: argument of ``forebay._record_counters()``; None for none.
    """

    def __init__(
        self,
        endings: Iterable[Outcome | Release | BaseException | None] = (),
        *,
        counters: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(endings)
        self.counters = counters

    def are_done(self, jobs: int) -> bool:
        """Whether there is an entry for each of ``jobs`` jobs, and each is done."""
        return len(self) == jobs == self.count(None)


def _seconds(value: object, field: str) -> float:
    try:
        return checks.checked_seconds(value, field)
    except InvalidJob as error:
        raise as_outcome_refused(error) from None


def _clean_reason(outcome: Snooze | Retry | Cancel | Dead | Failed) -> None:
    reason: object = outcome.reason
    if reason is None:
        return
    if not isinstance(reason, str):
        raise OutcomeRefused(
            "reason", f"must be text, not {type(reason).__name__}: {shown(reason)}"
        )
    object.__setattr__(outcome, "reason", bounded_text(reason, bytes_max=REASON_BYTES_MAX))

"""What a handler may return to decide how its attempt ends.

Returning anything else ends the job as done; raising ends the attempt as failed. These are values
and not exceptions, since asking for them is not an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import InvalidJob
from forebay.model import checks
from forebay.model.text import bounded_text

if TYPE_CHECKING:
    from datetime import datetime, timedelta

#: A reason is a sentence for an operator; longer ones are cut, never refused: a handler that has
#: done its work must not fail over its explanation.
REASON_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run the job again later; the attempt does not count.

    Args:
        delay: how long to wait, in seconds or as a timedelta. Either this or ``until``.
        until: wait up to this instant, an aware datetime.
        reason: shown to operators.

    >>> Snooze(30, reason="rate limited").delay_seconds
    30.0
    """

    delay: float | timedelta | None = None
    until: datetime | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.delay is None) == (self.until is None):
            message = "Snooze takes either a delay or until"
            raise TypeError(message)
        if self.delay is not None:
            object.__setattr__(self, "delay", _seconds(self.delay, "delay"))
        if self.until is not None:
            try:
                checks.checked_instant(self.until, "until")
            except InvalidJob as error:
                raise ValueError(error.message) from None
        _clean_reason(self)

    @property
    def delay_seconds(self) -> float | None:
        """The delay in seconds; None when ``until`` was given."""
        return None if self.delay is None else _seconds(self.delay, "delay")


@dataclass(frozen=True, slots=True)
class Retry:
    """End the attempt as failed and run the job again; it counts, up to max_attempts.

    Args:
        after: how long to wait, in seconds or as a timedelta; None means by the retry policy.
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
        """The wait in seconds; None when the retry policy decides."""
        return None if self.after is None else _seconds(self.after, "after")


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the job as cancelled: it turned out not to be wanted."""

    reason: str | None = None

    def __post_init__(self) -> None:
        _clean_reason(self)


@dataclass(frozen=True, slots=True)
class Dead:
    """End the job as a dead letter at once: no further attempt can help."""

    reason: str | None = None

    def __post_init__(self) -> None:
        _clean_reason(self)


Outcome = Snooze | Retry | Cancel | Dead


class Endings(list["Outcome | BaseException | None"]):
    """What a batch handler of ours returns: how each job ended, and what is to be counted if that is settled.

    Attributes:
        counters: for ``forebay._record_counters()``; None for nothing.
    """

    def __init__(
        self,
        endings: Iterable[Outcome | BaseException | None] = (),
        *,
        counters: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(endings)
        self.counters = counters


def _seconds(value: object, field: str) -> float:
    # A plain ValueError: InvalidJob is about enqueuing, and would end the job for good.
    try:
        return checks.checked_seconds(value, field)
    except InvalidJob as error:
        raise ValueError(error.message) from None


def _clean_reason(outcome: Outcome) -> None:
    reason: object = outcome.reason
    if reason is None:
        return
    if not isinstance(reason, str):
        message = f"reason must be text, not {type(reason).__name__}"
        raise TypeError(message)
    object.__setattr__(outcome, "reason", bounded_text(reason, bytes_max=REASON_BYTES_MAX))

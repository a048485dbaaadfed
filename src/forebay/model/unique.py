"""Uniqueness modes: what happens if a job with the same key already waits or runs.

A mode is the value of the option ``unique``. A table in docs/howto/unique-jobs.md defines the modes
exactly, also for a job that is claimed at the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal, Self

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, shown
from forebay.model import checks

KEY_CHARACTERS_MAX: Final = 200

#: The range of every duration here: a millisecond to ten years of 365.25 days.
SECONDS_MIN: Final = 0.001
SECONDS_MAX: Final = 315_576_000.0


@dataclass(frozen=True, slots=True)
class Unique:
    """Base class of the uniqueness modes. A key is scoped by its queue and its mode.

    Attributes:
        key: the unique key, 1 to 200 characters.
        on_busy: what to do while another open transaction is taking the key: ``"wait"`` until it
            ends, or ``"raise"`` ``KeyBusy``.

    Raises:
        InvalidJob: a value is of the wrong type or out of range.
    """

    mode: ClassVar[str] = ""

    key: str
    on_busy: Literal["wait", "raise"] = field(default="wait", kw_only=True)

    def __post_init__(self) -> None:
        if not self.mode:
            raise InvalidJob(
                "unique", "must be a uniqueness mode: Once, Coalesce, Replace and so on"
            )
        key = checks.checked_text(self.key, "unique key", characters_max=KEY_CHARACTERS_MAX)
        object.__setattr__(self, "key", key)
        if self.on_busy not in ("wait", "raise"):
            raise InvalidJob("on_busy", f"is {shown(self.on_busy)}, neither 'wait' nor 'raise'")

    def as_json(self) -> dict[str, Any]:
        """Return the form that the SQL functions take as ``unique_as``.

        >>> Debounce("document:42", wait=10, max_wait=60).as_json()
        {'debounce': 'document:42', 'wait': 10.0, 'max_wait': 60.0}
        """
        busy = {} if self.on_busy == "wait" else {"on_busy": self.on_busy}
        return {self.mode: self.key} | self._more() | busy

    def _more(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Once(Unique):
    """No second job while a job with the key waits or runs; the call returns that job."""

    mode: ClassVar[str] = "once"


@dataclass(frozen=True, slots=True)
class Idempotent(Unique):
    """As ``Once``, but other kind or arguments raise ``PayloadDiffers``.

    Attributes:
        request: what is compared instead of the arguments, a JSON object; a handler gives their
            canonical form. None: the arguments.
    """

    mode: ClassVar[str] = "idempotent"

    request: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)

    def _more(self) -> dict[str, Any]:
        return {} if self.request is None else {"request": dict(self.request)}


@dataclass(frozen=True, slots=True)
class Coalesce(Unique):
    """No second job while a job with the key waits; while one runs, one more may wait."""

    mode: ClassVar[str] = "coalesce"


@dataclass(frozen=True, slots=True)
class Replace(Unique):
    """The new job, with its arguments and its time, replaces a waiting job with the key."""

    mode: ClassVar[str] = "replace"


@dataclass(frozen=True, slots=True)
class Debounce(Unique):
    """As ``Replace``, and the job starts after a period without calls.

    Attributes:
        wait: time from the last call to the start, in seconds or as a timedelta.
        max_wait: maximum time from the first call to the start; None for no maximum.
    """

    mode: ClassVar[str] = "debounce"

    wait: float | timedelta
    max_wait: float | timedelta | None = None

    def __post_init__(self) -> None:
        Unique.__post_init__(self)
        wait = _duration(self.wait, "wait")
        object.__setattr__(self, "wait", wait)
        if self.max_wait is not None:
            most = _duration(self.max_wait, "max_wait")
            if most < wait:
                raise InvalidJob("max_wait", f"is {most:g} s, shorter than wait {wait:g} s")
            object.__setattr__(self, "max_wait", most)

    def _more(self) -> dict[str, Any]:
        return {"wait": self.wait} | ({} if self.max_wait is None else {"max_wait": self.max_wait})


@dataclass(frozen=True, slots=True)
class Throttle(Unique):
    """No second job with the key within a period after the last one, whatever its state.

    Attributes:
        period: time from the enqueue, in seconds or as a timedelta.
    """

    mode: ClassVar[str] = "throttle"

    period: float | timedelta

    def __post_init__(self) -> None:
        Unique.__post_init__(self)
        object.__setattr__(self, "period", _duration(self.period, "period"))

    def _more(self) -> dict[str, Any]:
        return {"period": self.period}


_MODES: Final[dict[str, type[Unique]]] = {
    mode.mode: mode for mode in (Once, Idempotent, Coalesce, Replace, Debounce, Throttle)
}


def unique_from(form: Mapping[str, Any]) -> Unique:
    """Return the uniqueness mode of a JSON form, the inverse of ``Unique.as_json``.

    >>> unique_from({"throttle": "report", "period": 3600})
    Throttle(key='report', on_busy='wait', period=3600.0)

    Raises:
        InvalidJob: the form names no mode or several, or an entry is unknown or missing.
    """
    named = [mode for mode in _MODES if mode in form]
    if len(named) != 1:
        raise InvalidJob("unique", f"must have one of {', '.join(_MODES)}: {shown(dict(form))}")
    more = {name: value for name, value in form.items() if name != named[0]}
    try:
        return _MODES[named[0]](form[named[0]], **more)
    except TypeError:
        raise InvalidJob(
            "unique",
            f"has entries that {named[0]} does not take, or lacks one: {shown(dict(form))}",
        ) from None


def _duration(value: object, name: str) -> float:
    seconds = checks.checked_seconds(value, name, most=SECONDS_MAX)
    if seconds < SECONDS_MIN:
        raise InvalidJob(name, f"is {shown(value)}, less than a millisecond")
    return seconds


class JobId(int):
    """The id of an enqueued job: a number that also tells whether the job is new.

    Attributes:
        is_new: False if the id is that of an existing job with the same unique key.
        replaced: the waiting job that the new job replaced; None if there was none.

    >>> job_id = JobId(42, is_new=False)
    >>> job_id, job_id.is_new, job_id + 1
    (42, False, 43)
    """

    is_new: bool
    replaced: int | None

    def __new__(cls, job_id: int, *, is_new: bool = True, replaced: int | None = None) -> Self:
        """Create an id; ``int`` keeps the number."""
        self = super().__new__(cls, job_id)
        self.is_new = is_new
        self.replaced = replaced
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _job_id, (int(self), self.is_new, self.replaced)


def as_number(value: object) -> int:
    """Return an id as a plain number.

    A hook for msgspec, which does not support subclasses of ``int``.
    """
    if not isinstance(value, JobId):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return int(value)


def _job_id(job_id: int, is_new: bool, replaced: int | None) -> JobId:
    return JobId(job_id, is_new=is_new, replaced=replaced)

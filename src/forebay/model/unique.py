"""What is to happen when a job of the same key waits or runs already.

Each uniqueness mode is a value of its own, given as the option ``unique``. What exactly they mean, also when a
job is claimed at that very moment, is a table in docs/howto/unique-jobs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal, Self

from forebay.errors import InvalidJob, shown
from forebay.model import checks

KEY_CHARACTERS_MAX: Final = 200

#: The range of every duration here: a millisecond to ten years of 365.25 days.
SECONDS_MIN: Final = 0.001
SECONDS_MAX: Final = 315_576_000.0


@dataclass(frozen=True, slots=True)
class Unique:
    """Base of the uniqueness modes. A key belongs to its queue and its uniqueness mode.

    Attributes:
        key: what is to be there once, 1 to 200 characters.
        on_busy: what to do while another open transaction is taking the key: ``"wait"`` for its
            end, or ``"raise"`` ``KeyBusy``.

    Raises:
        InvalidJob: a value is of the wrong type or out of range.
    """

    mode: ClassVar[str] = ""

    key: str
    on_busy: Literal["wait", "raise"] = field(default="wait", kw_only=True)

    def __post_init__(self) -> None:
        if not self.mode:
            raise InvalidJob("unique", "must be an mode: Once, Coalesce, Replace and so on")
        checks.checked_text(self.key, "unique key", characters_max=KEY_CHARACTERS_MAX)
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
    """No second job while one of the key waits or runs; the call answers with that one."""

    mode: ClassVar[str] = "once"


@dataclass(frozen=True, slots=True)
class Idempotent(Unique):
    """As ``Once``, and kind and arguments must be the same: ``PayloadDiffers`` otherwise."""

    mode: ClassVar[str] = "idempotent"


@dataclass(frozen=True, slots=True)
class Coalesce(Unique):
    """No second job while one of the key waits; while one runs, one more may wait."""

    mode: ClassVar[str] = "coalesce"


@dataclass(frozen=True, slots=True)
class Replace(Unique):
    """A waiting job of the key is replaced by the new one, with its arguments and its time."""

    mode: ClassVar[str] = "replace"


@dataclass(frozen=True, slots=True)
class Debounce(Unique):
    """As ``Replace``, and the job starts when no call has come for a while.

    Attributes:
        wait: so long after the last call, in seconds or as a timedelta.
        max_wait: but at most so long after the first; None for no bound.
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
    """No second job of the key within a period of the last one, whatever became of that.

    Attributes:
        period: counted from the enqueue, in seconds or as a timedelta.
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
    """Return the uniqueness mode that a JSON form names, as ``Unique.as_json`` makes it.

    >>> unique_from({"throttle": "report", "period": 3600})
    Throttle(key='report', on_busy='wait', period=3600.0)

    Raises:
        InvalidJob: it names none or several, or an entry is unknown or missing.
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
    """The id of an enqueued job: a number that also tells where it comes from.

    Attributes:
        is_new: False when a job of the same unique key was there and the id is its.
        replaced: the waiting job whose place the new one took; None when there was none.

    >>> job_id = JobId(42, is_new=False)
    >>> job_id, job_id.is_new, job_id + 1
    (42, False, 43)
    """

    is_new: bool
    replaced: int | None

    def __new__(cls, job_id: int, *, is_new: bool = True, replaced: int | None = None) -> Self:
        """Make an id; ``int`` keeps the number."""
        self = super().__new__(cls, job_id)
        self.is_new = is_new
        self.replaced = replaced
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _job_id, (int(self), self.is_new, self.replaced)


def as_number(value: object) -> int:
    """Return an id as the number it is: msgspec, which calls this, knows no kinds of ``int``."""
    if not isinstance(value, JobId):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return int(value)


def _job_id(job_id: int, is_new: bool, replaced: int | None) -> JobId:
    return JobId(job_id, is_new=is_new, replaced=replaced)

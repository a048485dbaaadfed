"""The base of all errors: declared fields, a message from a template, and the facts that SQL
functions send.
"""

from __future__ import annotations

import copyreg
import json
import re
import reprlib
import string
from typing import Any, ClassVar, Final, Self, dataclass_transform

from forebay._dataclass import dataclass


def is_database_error(error: BaseException) -> bool:
    """Return whether the driver raised the error, without importing the driver."""
    return hasattr(error, "sqlstate") and hasattr(error, "diag")


@dataclass_transform(eq_default=False)
class ForebayError(Exception):
    """Base class of all errors of this library; also of a SQLSTATE that only a newer schema has.

    Attributes:
        message: the facts, in one line without a capital.
        detail: further facts, possibly in several lines; None if there are none.
        hint: what to do; None if there is no advice.
    """

    retryable: ClassVar[bool] = False
    sqlstate: ClassVar[str | None] = None
    fields: ClassVar[tuple[str, ...]] = ()
    default_hint: ClassVar[str | None] = None

    #: The message: {name} is a field, {name!r} a short form of its value, {name!l} its first line.
    #: A part in brackets is omitted if one of its fields is None or empty.
    template: str = ""

    message: str
    detail: str | None = None
    hint: str | None = None

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint or self.default_hint

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; the hint is also a note, which tracebacks, logs and pytest show."""
        if name == "hint":
            old, new = f"hint: {self.hint}", f"hint: {value}"
            notes = [note for note in getattr(self, "__notes__", ()) if note not in (old, new)]
            if value:
                notes.insert(0, new)
            if notes or hasattr(self, "__notes__"):
                super().__setattr__("__notes__", notes)
        super().__setattr__(name, value)

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        """Create the constructor of a class with a template: it takes the declared fields."""
        super().__init_subclass__()
        if "template" in vars(cls):
            dataclass(eq=False, repr=False, kw_only=kw_only)(cls)
            names = cls.__dataclass_fields__  # type: ignore[attr-defined]  # it is a dataclass now
            cls.fields = tuple(name for name in names if name not in ("detail", "hint"))

    def __post_init__(self) -> None:
        ForebayError.__init__(self, _Messages().of(self), detail=self.detail, hint=self.hint)

    @classmethod
    def from_sql(
        cls,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        column: str | None = None,
    ) -> Self:
        """Return the error that a SQL function raised, from the parts of the server's message.

        DETAIL contains the fields of the error as a JSON object. Unknown members of it, and any
        other text, become ``detail``. COLUMN names the parameter that was refused. All other fields
        are None.
        """
        facts = facts_in(detail)
        if facts:
            others = (f"{name}: {value}" for name, value in facts.items() if name not in cls.fields)
            detail = "\n".join(others) or None
        error = cls.__new__(cls)
        message = message.replace("\n", "\\n")  # a message repeats values, and is one line
        ForebayError.__init__(error, message, detail=detail, hint=hint)
        for name in cls.fields:
            setattr(error, name, facts.get(name, column if name == "field" else None))
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call __init__ with the message alone, which no subclass accepts.
        again = copyreg.__newobj__  # type: ignore[attr-defined]  # as pickle does for other classes
        return again, (type(self), *self.args), self.__dict__


def facts_in(detail: str | None) -> dict[str, Any]:
    """Return the members of a DETAIL that is a JSON object; empty for any other text."""
    try:
        facts = json.loads(detail or "")
    except (ValueError, RecursionError):
        facts = None
    return facts if isinstance(facts, dict) else {}


class _Messages(string.Formatter):
    _OPTIONAL: Final = re.compile(r"\[(.*?)\]")

    def of(self, error: ForebayError) -> str:
        """Return the message of an error, from its template and fields."""
        values = vars(error)
        parts = self._OPTIONAL.split(error.template)
        for place in range(1, len(parts), 2):
            names = [name for _, name, _, _ in self.parse(parts[place]) if name]
            if any(values[name] in (None, "") for name in names):
                parts[place] = ""
        return "".join(self.vformat(part, (), values) for part in parts)

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion == "r":
            return shown(value)
        if conversion == "l":
            return str(value).partition("\n")[0]
        return super().convert_field(value, conversion)


_SHOWN: Final = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 80
_SHOWN.maxlong = 40


def shown(value: object) -> str:
    """Return a short one-line form of any value, even if its ``__repr__`` fails.

    >>> shown("x" * 200)[:12], len(shown("x" * 200))
    ("'xxxxxxxxxxx", 80)
    """
    try:
        text = _SHOWN.repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text.replace("\n", " ").replace("\x00", "\\x00")


class OutcomeRefused(ForebayError):  # noqa: N818 - as in forebay.errors
    """An outcome has a value that it cannot have, or a run of a subject returned a state, arguments
    or a time that cannot be saved.

    The attempt has failed.
    """

    template = "{field} {problem}"
    field: str
    problem: str
    hint: str | None = None


class SubjectNotFound(ForebayError, kw_only=True):  # noqa: N818 - as in forebay.errors
    """The subject does not exist, or it was dropped."""

    sqlstate = "JQ065"
    template = "subject {subject!r} not found in queue {queue!r}"
    queue: str | None
    subject: str | None


class ScheduleError(ForebayError):
    """A schedule cannot be used or changed as requested."""

    template = "schedule {schedule!r}"
    schedule: str | None


class ScheduleNotFound(ScheduleError):  # noqa: N818 - as in forebay.errors
    """No schedule has the name."""

    sqlstate = "JQ060"
    template = "schedule {schedule!r} not found"


class ScheduleChanged(ScheduleError):  # noqa: N818 - as in forebay.errors
    """The schedule was changed, or the instants of a backfill differ from those of the token.

    Nothing was enqueued.
    """

    sqlstate = "JQ061"
    template = "schedule {schedule!r} or the instants of its backfill have changed"
    default_hint = "Do a new dry run."

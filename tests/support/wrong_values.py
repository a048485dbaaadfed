"""Wrong values for public doors, and what may come of them.

A door is a function that a user may call: a public function, the constructor of a public class, or
a public method. Whatever a door is given, it succeeds, or refuses by an error of the library that
names the parameter or the value. Nothing is written if it refuses.
"""

import inspect
import math
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from forebay.errors import ConfigError, ForebayError, InvalidJob, SchemaError, shown


async def coroutine_function(*_args, **_named):
    """Stand for an asynchronous function where another is wanted."""


class Surprise:
    """An object with no use anywhere, which cannot even be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


#: By a name, which the output of a failed test shows.
WRONG: Mapping[str, Any] = {
    "none": None,
    "empty text": "",
    "blank": " ",
    "newline": "a\nb",
    "nul": "a\x00b",
    "surrogate": "a\ud800",
    "long text": "x" * 5000,
    "no name": "a b/c",
    "digits": "5",
    "zero": 0,
    "negative": -1,
    "beyond an integer": 2**31,
    "beyond a bigint": 2**63,
    "beyond a float": 10**400,
    "fraction": 0.5,
    "nan": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "true": True,
    "bytes": b"mail",
    "list": ["mail"],
    "list of a number": [5],
    "list of nan": [math.nan],
    "list of none": [None],
    "list of a surrogate": ["\ud800"],
    "empty list": [],
    "dict": {"a": 1},
    "dict of a number": {1: 2},
    "dict of an object": {"a": Surprise()},
    "dict of nan": {"a": math.nan},
    "dict of nul": {"a": "\x00"},
    "empty dict": {},
    "set": {"mail"},
    "object": Surprise(),
    "naive": datetime(2030, 1, 1),  # noqa: DTZ001 - on purpose
    "first instant": datetime.min.replace(tzinfo=UTC),
    "last instant": datetime.max.replace(tzinfo=UTC),
    "date": date(2030, 1, 1),
    "negative time": timedelta(seconds=-1),
    "longest time": timedelta.max,
    "decimal": Decimal("NaN"),
    "uuid": uuid.UUID(int=0),
    "coroutine function": coroutine_function,
    "function": lambda: None,
    "class": Surprise,
    "exception": ValueError("x"),
}

#: What stands for an option that the door does not have.
UNKNOWN = "countdown"


@dataclass(frozen=True)
class Attempt:
    """One call of a door with one wrong value.

    Attributes:
        door: its name.
        parameter: the one with the wrong value.
        wrong: the name of the value.
        arguments: all that are given by name.
    """

    door: str
    parameter: str
    wrong: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.door}({self.parameter}=<{self.wrong}>)"

    @property
    def value(self) -> Any:
        """The wrong value."""
        return self.arguments[self.parameter]


def parameters_of(function: Callable[..., Any]) -> dict[str, bool]:
    """Return the names of what a door takes by name, and whether each must be given."""
    found: dict[str, bool] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            if "Unpack[" in str(parameter.annotation):
                hint = typing.get_type_hints(function)[name]
                found |= dict.fromkeys(typing.get_type_hints(typing.get_args(hint)[0]), False)
        elif name not in ("self", "conn") and parameter.kind is not parameter.VAR_POSITIONAL:
            found[name] = parameter.default is parameter.empty
    return found


def good_arguments(
    function: Callable[..., Any], good: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that a door needs, and those of its own."""
    needed = (name for name, is_needed in parameters_of(function).items() if is_needed)
    return {name: good[name] for name in needed} | dict(own)


def attempts(
    door: str, function: Callable[..., Any], good: Mapping[str, Any], own: Mapping[str, Any]
) -> Iterator[Attempt]:
    """Yield the calls of a door: each parameter in turn with each wrong value.

    Args:
        door: the name of the door.
        function: its function.
        good: good values by names of parameters.
        own: good values for this door, also of parameters that it could do without.

    Raises:
        KeyError: a parameter has no good value: give it one.
    """
    base = good_arguments(function, good, own)
    for name in parameters_of(function):
        for wrong, value in WRONG.items():
            yield Attempt(door, name, wrong, base | {name: value})
    yield Attempt(door, UNKNOWN, "unknown option", base | {UNKNOWN: 5})


def chosen(all_attempts: Iterable[Attempt], count: int, seed: int) -> list[Attempt]:
    """Return some of the calls, at random."""
    return Random(seed).sample(list(all_attempts), count)


def problem(attempt: Attempt, error: BaseException | None) -> str | None:
    """Return what is wrong with the answer to a call; None for a good one.

    Without an error the value was no wrong one.
    """
    if error is None:
        return None if attempt.wrong != "unknown option" else f"{attempt}: accepted"
    if not isinstance(error, ForebayError) or isinstance(error, SchemaError):
        text = " ".join(f"{error} {getattr(error, 'detail', '') or ''}".split())[:200]
        return f"{attempt}: {type(error).__name__}: {text}"
    if attempt.wrong == "unknown option" and not error.hint:
        return f"{attempt}: no hint: {error}"
    if not isinstance(error, InvalidJob | ConfigError) or "not found" in error.message:
        return None  # The value is a good one, and what it names is not there or not so.
    words = (attempt.parameter, getattr(error, "field", None) or "\x00", shown(attempt.value)[:12])
    if not any(word in error.message for word in words):
        return f"{attempt}: names neither parameter nor value: {error.message}"
    return None

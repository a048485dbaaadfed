"""What of an argument would change between the enqueue and the handler.

The text of a job is read back at the enqueue and compared with what the caller gave, by value: a
type may write less than it holds (a secret, an excluded field, a subclass, a private attribute),
and what is written may still be valid.

Not a change, because the declaration or JSON says so: a tuple for a list, an undeclared date or
enum as its text, an undeclared object as a dict, a dict for a declared object.
"""

from __future__ import annotations

import dataclasses
import functools
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from forebay.errors import InvalidJob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Values of these types are written as they are, whatever their declared type.
EXACT: Final = frozenset({str, float, bool, type(None)})

_WITH_TEXT_FORM: Final = (datetime, date, time, timedelta, UUID, Decimal)

_SCALARS: Final = EXACT | {int}
_BY_IDENTITY: Final[tuple[Any, ...]] = (object.__eq__,)
_LOST: Final = object()
_NOTHING: Final[dict[str, Any]] = {}

_HINT: Final = "Pass plain values, or declare a type that keeps them in its JSON form."


def refuse_change(sent: Any, arrived: Any, name: str | None) -> None:
    """Refuse an argument that would not arrive as it was given.

    Args:
        sent: what the caller gave.
        arrived: what its stored form reads back as.
        name: of the argument, None for a whole item.

    Raises:
        InvalidJob: they differ; the error names the path, and never the value, which may be a
            secret.
    """
    if type(sent) in EXACT and sent == arrived:
        return
    found = _difference(sent, arrived)
    if found is not None:
        path, problem = found
        raise InvalidJob(f"{name or ''}{path}".removeprefix(".") or "args", problem, hint=_HINT)


#: The path from a value to the first one inside it that differs, and in what.
_Difference = tuple[str, str]


def _difference(sent: Any, arrived: Any) -> _Difference | None:
    kind: Any = type(sent)
    if sent is arrived or (kind in _SCALARS and sent == arrived):
        return None
    if isinstance(sent, dict):
        others = arrived if isinstance(arrived, dict) else _by_written_name(arrived)
        return _of_parts(
            sent, others, f"would not arrive: {type(arrived).__name__} has no such entry"
        )
    if isinstance(sent, list | tuple) and isinstance(arrived, list | tuple):
        return _of_elements(sent, arrived)
    if _shape(kind) is None:
        return None if _is_same(sent, arrived) else ("", _changed(sent, arrived))
    problem = "would not arrive: it is not in the JSON form"
    if isinstance(arrived, dict):
        return _of_parts(_by_written_name(sent), arrived, problem)
    if kind is not type(arrived):
        return "", _changed(sent, arrived)
    return _of_parts(_parts(sent), _parts(arrived), problem)


def _of_parts(sent: Mapping[Any, Any], arrived: Mapping[Any, Any], lost: str) -> _Difference | None:
    for name, value in sent.items():
        other = arrived.get(name, _LOST)
        if value is other or (type(value) in _SCALARS and value == other):
            continue
        if other is _LOST:
            if value is msgspec.UNSET:
                continue
            return f".{name}", lost
        if found := _difference(value, other):
            return f".{name}{found[0]}", found[1]
    return None


def _of_elements(sent: Sequence[Any], arrived: Sequence[Any]) -> _Difference | None:
    if len(sent) != len(arrived):
        return "", f"has {len(sent)} values, and would arrive with {len(arrived)}"
    for index, value in enumerate(sent):
        if found := _difference(value, arrived[index]):
            return f"[{index}]{found[0]}", found[1]
    return None


def _is_same(sent: Any, arrived: Any) -> bool:
    if isinstance(sent, datetime) and isinstance(arrived, datetime):
        # Times of one zone compare by the clock, and those of a repeated hour are never equal.
        return _instant(sent) == _instant(arrived)
    if isinstance(sent, float) and isinstance(arrived, Decimal):
        return Decimal(repr(sent)) == arrived
    if isinstance(sent, Enum) and not isinstance(arrived, Enum):
        return _difference(sent.value, arrived) is None
    if isinstance(arrived, str) and isinstance(sent, _WITH_TEXT_FORM):
        return True  # undeclared: written as text
    if isinstance(sent, str) and not isinstance(arrived, str):
        return True  # the caller gave the text
    if type(sent) is type(arrived) and type(sent).__eq__ in _BY_IDENTITY:
        return True  # such as a lock in a private attribute: only its identity could differ
    return bool(sent == arrived)


def _instant(value: datetime) -> object:
    offset = value.utcoffset()
    if offset is None:
        return value
    # Not astimezone(): at both ends of the calendar it overflows.
    return value.replace(tzinfo=UTC, fold=0) - datetime.min.replace(tzinfo=UTC) - offset


def _changed(sent: Any, arrived: Any) -> str:
    one, other = type(sent).__name__, type(arrived).__name__
    return f"is {one}, and would arrive as {'another value' if one == other else other}"


@functools.lru_cache(maxsize=1024)
def _shape(cls: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a class of structs, dataclasses or models.

    The result is None for any other type.
    """
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return tuple(cls.__pydantic_fields__) if hasattr(cls, "__pydantic_fields__") else None


@functools.lru_cache(maxsize=1024)
def _cached_properties(cls: type) -> frozenset[str]:
    names = (
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if isinstance(value, functools.cached_property)
    )
    return frozenset(names)


def _parts(value: Any) -> dict[str, Any]:
    """Return everything that an object holds, also what is no field.

    The value of a cached property is left out.
    """
    cls: Any = type(value)
    parts: dict[str, Any] = getattr(value, "__dict__", _NOTHING)
    slots = [name for name in _shape(cls) or () if name not in parts]
    if slots:
        parts = parts | {name: getattr(value, name, msgspec.UNSET) for name in slots}
    if cached := _cached_properties(cls):
        parts = {name: part for name, part in parts.items() if name not in cached}
    for more in (
        getattr(value, "__pydantic_extra__", None),
        getattr(value, "__pydantic_private__", None),
    ):
        if more:
            parts = parts | more
    return parts


def _by_written_name(value: Any) -> dict[str, Any]:
    """Return the fields of an object by each name that its JSON form may use."""
    parts = _parts(value)
    if isinstance(value, msgspec.Struct):
        written = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {name: parts[field] for name, field in written}
    parts = dict(parts)
    for name, field in getattr(type(value), "__pydantic_fields__", {}).items():
        for alias in (field.alias, field.validation_alias):
            for choice in getattr(alias, "choices", [alias]):
                if isinstance(choice, str):
                    parts[choice] = parts[name]
    return parts

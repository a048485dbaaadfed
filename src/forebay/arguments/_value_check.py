"""The check of one value against its declared type, by msgspec or pydantic.

pydantic checks a type that contains a pydantic model; this module uses pydantic only if the
application has imported it. All failures become ``InvalidJob`` with the path of the value.
"""

from __future__ import annotations

import re
import sys
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from forebay.arguments._arrival import EXACT, refuse_change
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model.unique import as_number

_NATIVE: Final = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
#: What msgspec reads from a text.
_FROM_TEXT: Final = (
    msgspec.inspect.AnyType,
    msgspec.inspect.StrType,
    msgspec.inspect.BytesType,
    msgspec.inspect.ByteArrayType,
    msgspec.inspect.DateTimeType,
    msgspec.inspect.DateType,
    msgspec.inspect.TimeType,
    msgspec.inspect.TimeDeltaType,
    msgspec.inspect.UUIDType,
    msgspec.inspect.DecimalType,
)
_PATH: Final = re.compile(r"^(?P<problem>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)

_PROBLEM_CHARACTERS_MAX: Final = 300


class ValueCheck:
    """The type of one parameter: for msgspec, or with an adapter for pydantic.

    ``may_change``: a value that passes may be read back as another one.
    """

    __slots__ = ("adapter", "declared", "has_objects", "hint", "may_change")

    def __init__(
        self,
        hint: Any,
        *,
        declared: frozenset[type],
        has_objects: bool,
        may_change: bool,
        adapter: Any = None,
    ) -> None:
        self.hint = hint
        self.declared = declared
        self.has_objects = has_objects
        self.may_change = may_change
        self.adapter = adapter

    def dumped(self, value: Any, name: str | None) -> Any:
        """Return the form of a value that pydantic gives the encoder.

        It reads back as the value.
        """
        try:
            self.adapter.validate_python(value, strict=True)
            # By alias: the model reads its output by alias.
            wire = self.adapter.dump_python(
                value, mode="json", by_alias=True, round_trip=True, warnings=False
            )
        except ValueError as error:
            raise _pydantic_problem(error, name) from None
        refuse_change(value, self.loaded(wire, name), name)
        return wire

    def check(self, value: Any, name: str | None) -> None:
        """Check a value that the guard has passed, for the encoder."""
        convert(plain(value) if self.has_objects else value, self.hint, name)
        if self.may_change and type(value) not in EXACT:
            text = msgspec.json.encode(value, enc_hook=as_number)
            refuse_change(value, read_back(text, self.hint, name), name)

    def loaded(self, wire: Any, name: str | None) -> Any:
        """Return a value for the handler from decoded JSON."""
        if self.adapter is None:
            return convert(wire, self.hint, name)
        try:
            # The value is checked as JSON text: only then does strict mode refuse text for a number
            # but accept it for a date.
            return self.adapter.validate_json(msgspec.json.encode(wire), strict=True)
        except ValueError as error:
            raise _pydantic_problem(error, name) from None


def value_check(hint: Any, where: str) -> ValueCheck:
    """Return the check of a type.

    Raises:
        ConfigError: values of the type have no JSON form, or cannot be distinguished.
    """
    if _has_pydantic_model(hint):
        try:
            adapter = sys.modules["pydantic"].TypeAdapter(hint)
        except Exception as error:
            raise ConfigError(where, f"has a type that pydantic refuses: {error}") from error
        return ValueCheck(
            hint, declared=frozenset(), has_objects=False, may_change=True, adapter=adapter
        )
    if hint is object:
        hint = Any
    try:
        found = _types_within(msgspec.inspect.type_info(hint))
    except TypeError as error:
        hint = None
        if "union" in str(error):
            hint = (
                "JSON has one form for all of them, and the handler could not know which was meant."
                " Declare one of them, or str, and convert it in the handler."
            )
        raise ConfigError(where, f"has a type that cannot be checked: {error}", hint=hint) from None
    for info in found:
        if isinstance(info, msgspec.inspect.CustomType | msgspec.inspect.ExtType):
            name = getattr(info, "cls", type(info)).__name__
            raise ConfigError(
                where,
                f"is declared as {name}, which has no JSON form",
                hint=(
                    "Pass its key instead. A context must come first; a connection cannot be "
                    "an argument."
                ),
            )
        if isinstance(info, msgspec.inspect.DictType) and not _takes_text(info.key_type):
            raise ConfigError(
                where,
                "has a dict whose keys cannot be text: those of JSON are",
                hint="Declare dict[str, ...], and convert the keys in the handler.",
            )
    kinds = {type(info) for info in found}
    if msgspec.inspect.RawType in kinds:
        raise ConfigError(
            where,
            "is declared with msgspec.Raw, which only the items of a batch handler can be",
            hint="def handler(items: list[msgspec.Raw])",
        )
    binary = {msgspec.inspect.BytesType, msgspec.inspect.ByteArrayType}
    sets = {msgspec.inspect.SetType, msgspec.inspect.FrozenSetType}
    objects = {
        msgspec.inspect.StructType,
        msgspec.inspect.DataclassType,
        msgspec.inspect.TypedDictType,
        msgspec.inspect.NamedTupleType,
    }
    declared = frozenset[type]([bytes] if kinds & binary else [])
    declared |= frozenset[type]([set] if kinds & sets else [])
    # Objects may write less than they hold. A float takes integers that it cannot hold. What is
    # declared as bytes or as a set may be given where anything is allowed.
    may_change = bool(kinds & (objects | {msgspec.inspect.FloatType}))
    may_change |= bool(declared) and msgspec.inspect.AnyType in kinds
    return ValueCheck(
        hint, declared=declared, has_objects=bool(kinds & objects), may_change=may_change
    )


def _takes_text(info: Any) -> bool:
    """Whether a value of this type may be read from a text, as keys of JSON are."""
    match info:
        case msgspec.inspect.UnionType():
            return any(map(_takes_text, info.types))
        case msgspec.inspect.EnumType():
            return any(isinstance(member.value, str) for member in info.cls)
        case msgspec.inspect.LiteralType():
            return any(isinstance(value, str) for value in info.values)
    return isinstance(info, _FROM_TEXT)


def _types_within(info: Any) -> list[Any]:
    found, waiting, seen = [], [info], set[Any]()
    while waiting:
        current = waiting.pop()
        if isinstance(current, tuple):
            waiting.extend(current)
        elif isinstance(current, msgspec.inspect.Field):
            waiting.append(current.type)
        elif isinstance(current, msgspec.inspect.Type):
            cls = getattr(current, "cls", None)
            if cls is not None and cls in seen:
                continue
            seen.add(cls)
            found.append(current)
            waiting.extend(getattr(current, name) for name in current.__struct_fields__)
    return found


def _has_pydantic_model(hint: Any) -> bool:
    if "pydantic" not in sys.modules:
        return False
    if isinstance(hint, type) and hasattr(hint, "__pydantic_core_schema__"):
        return True
    return any(_has_pydantic_model(part) for part in typing.get_args(hint))


def plain(value: Any) -> Any:
    """Return a value with plain dicts for its objects.

    msgspec does not check an instance of a declared class; its fields must be checked.
    """
    return msgspec.to_builtins(value, builtin_types=_NATIVE, str_keys=False, enc_hook=as_number)


def convert(value: Any, hint: Any, name: str | None) -> Any:
    """Return the value in the given type; text never becomes a number."""
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise _msgspec_problem(str(error), name) from None
    except UnicodeEncodeError as error:  # of a text that is looked at as a number, for example
        raise InvalidJob(
            name or "args", f"has a lone surrogate, which is not text: {shown(error.object)}"
        ) from None


def read_back(text: str | bytes, hint: Any, name: str | None) -> Any:
    """Return what the handler will get from a JSON text."""
    try:
        return msgspec.json.decode(text, type=hint)
    except msgspec.ValidationError as error:
        raise _msgspec_problem(str(error), name) from None


def _msgspec_problem(text: str, name: str | None) -> InvalidJob:
    matched = _PATH.match(text)
    problem, path = (matched["problem"], matched["path"]) if matched else (text, "$")
    return _invalid((name or "") + path.removeprefix("$"), problem.replace("`", ""))


def _pydantic_problem(error: ValueError, name: str | None) -> InvalidJob:
    if not hasattr(error, "errors"):
        return _invalid(name or "", str(error))
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]]
    return _invalid((name or "") + "".join(steps), first["msg"])


def _invalid(path: str, problem: str) -> InvalidJob:
    # Both libraries put values into their messages, which may be long and have many lines.
    line = problem.partition("\n")[0][:_PROBLEM_CHARACTERS_MAX]
    field = path.removeprefix(".")[:_PROBLEM_CHARACTERS_MAX]
    return InvalidJob(field or "args", "is invalid: " + line[:1].lower() + line[1:])

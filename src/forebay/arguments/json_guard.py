"""The JSON guard: it refuses values that would not return unchanged from the database.

jsonb of PostgreSQL refuses NUL characters and lone surrogates. JSON has no NaN, no infinity and
only text keys; encoders of Python silently write some of these as something else (``null``,
``"1"``). The guard refuses all of them before anything is written, with the path of the value.

One change remains: jsonb writes a large float without an exponent, so without a declared type
1e16 returns as an integer of the same value.

One walk over the value finds what the encoder would hide; the encoder's output shows the rest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, PayloadTooDeep, PayloadTooLarge, shown
from forebay.model.checks import ARGS_BYTES_MAX, ARGS_DEPTH_MAX
from forebay.model.unique import JobId, as_number

#: jsonb stores integers of any size; other programs can read 300 digits as a double.
_INTEGER_LIMIT: Final = 10**300

#: Longer texts are counted before they are encoded.
_SHORT_TEXT: Final = 65_536

_WITH_TEXT_FORM: Final = frozenset({datetime, date, time, timedelta, UUID})
_WITH_OFFSET: Final = frozenset({datetime, time})
_MINUTE: Final = timedelta(minutes=1)
_BINARY: Final = (bytes, bytearray, memoryview)
_SETS: Final = (set, frozenset)
_ENCODER: Final = msgspec.json.Encoder(enc_hook=as_number)


@dataclass(frozen=True, slots=True)
class ArgumentLimits:
    """How large and how deep the arguments of one job may be."""

    bytes_max: int = ARGS_BYTES_MAX
    depth_max: int = ARGS_DEPTH_MAX


DEFAULT_LIMITS: Final = ArgumentLimits()


def encode_json(
    value: Any,
    *,
    bytes_max: int = ARGS_BYTES_MAX,
    depth_max: int = ARGS_DEPTH_MAX,
    declared: frozenset[type] = frozenset(),
) -> str:
    """Return the value as JSON text that PostgreSQL accepts as jsonb.

    It accepts the types of JSON; datetime, date, time, timedelta, UUID, Decimal and Enum, written
    as text; and dataclasses and msgspec structs, written as objects.

    Args:
        value: the arguments of a job.
        bytes_max: maximum size of the text in UTF-8.
        depth_max: maximum number of levels of objects and arrays; the value itself is level 1.
        declared: bytes or set, if the handler's signature declares them. Without a
            declaration they would return as text and list, so they are refused.

    Raises:
        InvalidJob: a value has no JSON form, or would return as another value.
        PayloadTooLarge: the text has too many bytes.
        PayloadTooDeep: the value is nested too deeply.

    >>> encode_json({"id": 7, "at": date(2026, 1, 31)})
    '{"id":7,"at":"2026-01-31"}'
    """
    guard_values(value, bytes_max=bytes_max, depth_max=depth_max, declared=declared)
    return encode_guarded(value, bytes_max=bytes_max)


def encode_args(args: object, *, limits: ArgumentLimits = DEFAULT_LIMITS) -> str:
    """Return the JSON text of the arguments of a job that is enqueued by the name of its kind.

    Raises:
        InvalidJob: ``args`` is not a dict, or a value in it is refused; see ``encode_json``.
        PayloadTooLarge: the text has too many bytes.
        PayloadTooDeep: the value is nested too deeply.
    """
    if not isinstance(args, dict):
        raise InvalidJob("args", f"must be a dict, not {type(args).__name__}: {shown(args)}")
    return encode_json(args, bytes_max=limits.bytes_max, depth_max=limits.depth_max)


def guard_values(
    value: Any,
    *,
    bytes_max: int = ARGS_BYTES_MAX,
    depth_max: int = ARGS_DEPTH_MAX,
    declared: frozenset[type] = frozenset(),
) -> None:
    """Refuse what the encoder would write as something else; see ``encode_json``."""
    if type(value) is dict and depth_max > 1 and _is_flat(value):
        return
    _Guard(value, bytes_max, depth_max, declared).visit(value, 1, ())


def encode_guarded(value: Any, *, bytes_max: int = ARGS_BYTES_MAX) -> str:
    """Return the JSON text of a value that ``guard_values`` has accepted."""
    try:
        data = _ENCODER.encode(value)
        if b"\\u0000" in data:
            _refuse_nul(value)
    except UnicodeEncodeError as error:
        raise InvalidJob(
            "args", f"has a lone surrogate, which is not text: {shown(error.object)}"
        ) from None
    except RecursionError:
        raise InvalidJob("args", "cannot be encoded: the call stack is exhausted") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidJob("args", f"has no JSON form: {error}") from None
    if len(data) > bytes_max:
        raise PayloadTooLarge(bytes=len(data), limit=bytes_max)
    return data.decode()


def _is_flat(value: dict[Any, Any]) -> bool:
    # Most arguments are a few short scalars; this check halves the cost of a bulk enqueue.
    for key, item in value.items():
        if type(key) is not str:
            return False
        kind = type(item)
        if kind is str:
            if len(item) > _SHORT_TEXT:
                return False
        elif kind is int:
            if not -_INTEGER_LIMIT < item < _INTEGER_LIMIT:
                return False
        elif kind is float:
            if not math.isfinite(item):
                return False
        elif kind is not bool and item is not None:
            return False
    return True


class _Guard:
    """One walk over a value. It counts characters, so that a huge value is refused early."""

    __slots__ = ("bytes_max", "declared", "depth_max", "root", "size")

    def __init__(
        self, root: Any, bytes_max: int, depth_max: int, declared: frozenset[type]
    ) -> None:
        self.root = root
        self.bytes_max = bytes_max
        self.depth_max = depth_max
        self.declared = declared
        self.size = 0

    def visit(self, value: Any, depth: int, path: tuple[str | int, ...]) -> None:
        kind = type(value)
        if kind is str:
            self._count(len(value))
        elif kind is int:
            if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
                raise InvalidJob(_name(path), "is an integer of more than 300 digits")
        elif kind is float:
            if not math.isfinite(value):
                raise InvalidJob(_name(path), f"is {value}, which JSON cannot express")
        elif kind is bool or value is None:
            pass
        elif kind is dict:
            self._visit_items(value, depth, path)
        elif kind is list or kind is tuple:
            self._visit_elements(value, depth, path)
        else:
            self._visit_other(value, depth, path)

    def _visit_items(
        self, value: Mapping[Any, Any], depth: int, path: tuple[str | int, ...]
    ) -> None:
        self._enter(value, depth, path)
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidJob(
                    _name(path),
                    f"has a key that is not text: {shown(key)}",
                    hint=(
                        "Keys of JSON objects are text: convert them first. A handler that declares"
                        " dates, UUIDs or enums as keys gets them from their texts."
                    ),
                )
            self._count(len(key))
            self.visit(item, depth + 1, (*path, key))

    def _visit_elements(self, value: Any, depth: int, path: tuple[str | int, ...]) -> None:
        self._enter(value, depth, path)
        for index, item in enumerate(value):
            self.visit(item, depth + 1, (*path, index))

    def _visit_other(self, value: Any, depth: int, path: tuple[str | int, ...]) -> None:
        if type(value) in _WITH_TEXT_FORM or type(value) is JobId:
            if type(value) in _WITH_OFFSET and (offset := value.utcoffset()) is not None:
                self._check_offset(offset, path)
            return
        if isinstance(value, Decimal):
            if not value.is_finite():
                raise InvalidJob(_name(path), f"is {value}, which JSON cannot express")
            return
        if isinstance(value, Enum):
            self.visit(value.value, depth, path)
            return
        if isinstance(value, _BINARY + _SETS):
            self._visit_declared(value, depth, path)
        elif isinstance(value, msgspec.Struct):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            self._visit_fields(fields, depth, path, value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {
                field.name: getattr(value, field.name)
                for field in dataclasses.fields(value)
                if hasattr(value, field.name)
            }
            self._visit_fields(fields, depth, path, value)
        elif isinstance(value, dict):
            self._visit_items(value, depth, path)
        elif isinstance(value, list | tuple):
            self._visit_elements(value, depth, path)
        elif value is not msgspec.UNSET:
            raise InvalidJob(
                _name(path),
                f"has no JSON form: {type(value).__name__} {shown(value)}",
                hint="Pass its key, or plain values made from it.",
            )

    def _check_offset(self, offset: timedelta, path: tuple[str | int, ...]) -> None:
        if offset % _MINUTE:
            raise InvalidJob(
                _name(path),
                f"has an offset of {offset} from UTC, and its text has no seconds of an offset",
                hint="Convert it first: value.astimezone(UTC).",
            )

    def _visit_fields(
        self, fields: dict[str, Any], depth: int, path: tuple[str | int, ...], owner: object
    ) -> None:
        self._enter(owner, depth, path)
        for name, item in fields.items():
            self.visit(item, depth + 1, (*path, name))

    def _visit_declared(self, value: Any, depth: int, path: tuple[str | int, ...]) -> None:
        binary = isinstance(value, _BINARY)
        if (bytes if binary else set) not in self.declared:
            raise InvalidJob(
                _name(path),
                f"is a {type(value).__name__}, which would return as "
                f"{'text' if binary else 'a list'}",
                hint="Declare its type in the handler's signature, or convert it first.",
            )
        if binary:
            self._count(len(value))
        else:
            self._visit_elements(value, depth, path)

    def _enter(self, value: Any, depth: int, path: tuple[str | int, ...]) -> None:
        if depth > self.depth_max:
            if self._is_cycle(path):
                raise InvalidJob(_name(path[:3]), "is part of a value that contains itself")
            raise PayloadTooDeep(depth=depth, limit=self.depth_max)
        self._count(len(value) if hasattr(value, "__len__") else 0)

    def _is_cycle(self, path: tuple[str | int, ...]) -> bool:
        value: Any = self.root
        seen = {id(value)}
        for step in path:
            if isinstance(value, dict | list | tuple):
                value = value[step]  # type: ignore[index]
            elif isinstance(step, str):
                value = getattr(value, step)
            else:
                return False
            if id(value) in seen:
                return True
            seen.add(id(value))
        return False

    def _count(self, characters: int) -> None:
        # A lower bound of the encoded size: a byte for each character and for each separator.
        self.size += characters + 1
        if self.size > self.bytes_max:
            raise PayloadTooLarge(bytes=self.size, limit=self.bytes_max)


def _refuse_nul(value: Any) -> None:
    # The escape may also be a literal backslash, written as \\u0000: check the text.
    def search(item: Any, path: tuple[str | int, ...]) -> None:
        if isinstance(item, str):
            if "\x00" in item:
                raise InvalidJob(_name(path), "has a NUL character, which PostgreSQL cannot store")
        elif isinstance(item, dict):
            for key, inner in item.items():
                search(key, path)
                search(inner, (*path, key))
        elif isinstance(item, list | tuple):
            for index, inner in enumerate(item):
                search(inner, (*path, index))

    search(msgspec.to_builtins(value, str_keys=True, enc_hook=as_number), ())


def _name(path: tuple[str | int, ...]) -> str:
    """Return a path as text: ``items[2].name``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return shown(text).strip("'") if text else "args"

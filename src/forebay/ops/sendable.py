"""JSON that PostgreSQL can keep, of whatever a handler has said.

Errors, reasons and notes of handlers have any text: names of files that are not UTF-8, bytes that
were decoded. UTF-8 cannot encode a lone surrogate, and jsonb refuses a NUL character. Both are
escaped here, where all that a worker sends of its jobs becomes JSON, so that one text cannot keep
a settlement, and those of other jobs with it, from the database.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.model.text import storable_bytes


def sendable_json(value: Any) -> bytes:
    r"""Return a value as JSON, with lone surrogates and NUL characters of its texts escaped.

    >>> sendable_json({"message": "caf\udce9\x00"})
    b'{"message":"caf\\\\udce9\\\\x00"}'
    """
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        pass
    else:
        # The escape may be a literal backslash: then escaping changes nothing.
        if b"\\u0000" not in data:
            return data
    return msgspec.json.encode(_escaped(value))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return storable_bytes(value).decode()
    if isinstance(value, Mapping):
        return {_escaped(key): _escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    if isinstance(value, msgspec.Struct):
        return _members(value, value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return _members(value, [each.name for each in dataclasses.fields(value)])
    return value


def _members(value: Any, names: Any) -> dict[str, Any]:
    found = {name: getattr(value, name) for name in names}
    return {name: _escaped(each) for name, each in found.items() if each is not msgspec.UNSET}

"""Converts ``%(name)s`` parameters for drivers with numbered parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

_PARAMETER: Final = re.compile(r"%%|%\((\w+)\)s(?:::((?:double )?\w+)(\[\])?)?")

#: Types whose values are sent unchanged; operations send all other values as text.
_NUMBERS: Final = frozenset({"integer", "bigint", "smallint", "double precision", "boolean"})


def numbered(sql: str, params: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return a statement with ``$1``, ``$2``, ... and its parameters in that order.

    asyncpg reads each parameter's type from the server and encodes the value for it. Operations
    send times and JSON as text, so these parameters are declared as text and cast: the caller's
    codecs for json, jsonb or timestamptz are not used.

    >>> numbered("select f(%(a)s, %(b)s::jsonb, %(a)s, %(n)s::integer)", {"a": 1, "b": 2, "n": 3})
    ('select f($1, $2::text::jsonb, $1, $3::integer)', [1, 2, 3])
    """
    text, names = _numbered(sql)
    return text, [params[name] for name in names]


@lru_cache(maxsize=256)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    names: dict[str, int] = {}

    def replaced(match: re.Match[str]) -> str:
        name, kind, is_array = match.groups()
        if name is None:
            return "%"
        number = names.setdefault(name, len(names) + 1)
        if kind is None:
            return f"${number}"
        if is_array or kind in _NUMBERS:
            return f"${number}::{kind}{is_array or ''}"
        return f"${number}::text" if kind == "text" else f"${number}::text::{kind}"

    return _PARAMETER.sub(replaced, sql), tuple(names)

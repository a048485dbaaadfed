"""Rows that come as one JSON text each, turned into the values of ``model``.

Our queries answer in JSON because the connection may be the caller's, with row factories and type
loaders of the caller's own; text arrives as text everywhere.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

T = TypeVar("T")


def rows_as(cls: type[T], rows: ResultRows) -> list[T]:
    """Return the rows as instances of a class of ``model``."""
    # The standard decoder, which keeps integers of any size; jsonb may hold them.
    return [msgspec.convert(json.loads(text), cls) for (text,) in rows]

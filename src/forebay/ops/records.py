"""Converts rows of one JSON text each to the classes of ``model``.

The queries of this package return JSON because the connection may belong to the caller, with the caller's row factories and
type loaders; text arrives as text everywhere.
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
    # The standard decoder keeps integers of any size, which jsonb may contain.
    return [msgspec.convert(json.loads(text), cls) for (text,) in rows]

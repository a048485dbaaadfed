"""Converts rows of one JSON text each to the classes of ``model``.

The queries of this package return JSON because the connection may belong to the caller, with the
caller's row factories and type loaders; text arrives as text everywhere. They return whole rows,
and members are found by name: ``to_jsonb(w)``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

T = TypeVar("T")


def rows_as(cls: type[T], rows: ResultRows) -> list[T]:
    """Return the rows as instances of a class of ``model``; other columns are left out.

    ``group`` is the column ``group_name``.
    """
    return [msgspec.convert(_members(text), cls) for (text,) in rows]


def _members(text: str) -> dict[str, Any]:
    # The standard decoder keeps integers of any size, which jsonb may contain.
    members: dict[str, Any] = json.loads(text)
    if "group_name" in members:  # GROUP is a word of SQL.
        members["group"] = members.pop("group_name")
    return members

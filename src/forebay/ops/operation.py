"""One call to the database as a value: text, parameters, and how to read its rows.

``ops`` creates operations and ``db`` runs them. Creating one needs neither a connection nor an
event loop, so the SQL and the decoding of a call can be tested without both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, TypeVar

from forebay._dataclass import dataclass

T = TypeVar("T")

ResultRows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """A statement with ``%(name)s`` parameters, and the decoder of its rows.

    Attributes:
        outside_block: it must run outside of any transaction block.
    """

    sql: str
    decode: Callable[[ResultRows], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    outside_block: bool = False


def nothing(rows: ResultRows) -> None:
    """Decode a result without rows."""


def scalar(rows: ResultRows) -> Any:
    """Return the only column of the only row."""
    ((value,),) = rows
    return value


def scalar_or_none(rows: ResultRows) -> Any:
    """Return the only column of the first row; None without a row."""
    return rows[0][0] if rows else None


def number(rows: ResultRows) -> int:
    """Return the only value, an integer."""
    return int(scalar(rows))


def boolean(rows: ResultRows) -> bool:
    """Return the only value, a truth value."""
    return bool(scalar(rows))

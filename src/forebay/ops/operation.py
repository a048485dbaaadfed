"""One call to the database as a value: text, parameters, and how to read its rows.

Operations are made in ``ops`` and run in ``db``. Making one needs neither a connection nor a loop, so
whatever is decided about a call, its SQL and its decoding, is tested without either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")

ResultRows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """A statement with ``%(name)s`` parameters, and the decoder of its rows.

    Attributes:
        outside_block: it must stand outside of any transaction block, even one of its own.
    """

    sql: str
    decode: Callable[[ResultRows], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    outside_block: bool = False


def nothing(rows: ResultRows) -> None:
    """Read no rows."""


def scalar(rows: ResultRows) -> Any:
    """Return the only column of the only row."""
    ((value,),) = rows
    return value


def scalar_or_none(rows: ResultRows) -> Any:
    """Return the only column of the first row; None when there is no row."""
    return rows[0][0] if rows else None

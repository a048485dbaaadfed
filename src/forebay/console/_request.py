"""What the address of a page asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay.console._text import instant_of
from forebay.errors import ConfigError, shown
from forebay.model.text import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from starlette.requests import Request

#: Rows of a list.
ROWS: Final = 50


class Part(NamedTuple):
    """A part of a list of which everything is known.

    Attributes:
        rows: those that the page shows.
        first: how many are before them.
        total: how many there are.
        name: the part of the address that says where a page begins.
    """

    rows: Sequence[Any]
    first: int
    total: int
    name: str


def part_of(request: Request, rows: list[Any], name: str = "from", most: int = ROWS) -> Part:
    """Return the part of a list that the address names; the last one if it names none there is."""
    first = min(whole_in(request, name) or 0, max(0, len(rows) - 1))
    return Part(rows[first : first + most], first, len(rows), name)


def text_in(request: Request, name: str) -> str | None:
    """Return a value of the address; None for none."""
    return request.query_params.get(name) or None


def needed_in(request: Request, name: str) -> str:
    """Return a value that the address must have."""
    found = text_in(request, name)
    if found is None:
        raise ConfigError(name, "is missing in the address of this page")
    return found


def whole_in(request: Request, name: str) -> int | None:
    """Return a whole number of the address; None for none."""
    found = text_in(request, name)
    if found is None:
        return None
    if (number := whole_number(found)) is None:
        raise ConfigError(name, f"is {shown(found)}, not a whole number")
    return number


def instant_in(request: Request, name: str) -> datetime | None:
    """Return an instant of the address; None for none."""
    found = text_in(request, name)
    return None if found is None else instant_of(found, name)

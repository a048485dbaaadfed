"""The settings of a database, which hold for what nobody else has set."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from forebay._dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSetting:
    """A setting of a database, with what it may be and who has set it.

    Attributes:
        name: its name.
        value: the value that holds: a number, a text, a truth value, or, for retries, also a list
            or a dict; None for none.
        built_in: the value while nobody has set it.
        range: what it may be, in words.
        unit: of a number; None if it has none.
        set_by: the actor that the client gave, else the login role; None: nobody has set it.
        set_at: when it was set; None: nobody has.
        meaning: what it does.
    """

    name: str
    value: Any
    built_in: Any
    range: str
    unit: str | None
    set_by: str | None
    set_at: datetime | None
    meaning: str

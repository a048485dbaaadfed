"""The settings of a database, which hold where nothing else is set."""

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
        built_in: the value while it is not set.
        range: what it may be, in words.
        unit: of a number; None if it has none.
        set_by: the actor that the client gave, else the login role; None: it is not set.
        set_at: when it was set; None: it is not set.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSetting:
    """A setting that holds for a queue, and where it comes from.

    Attributes:
        part: waiting, starts, retries, retention, groups, keys, alerts or kinds.
        setting: its name; a group, a threshold (with its tag after a colon) or a kind by name.
        value: the value that holds; None for none. Of a group a dict of its pause; of a kind which
            arguments make keys.
        source: ``"queue"``, ``"all queues"``, ``"database"`` or ``"built in"``.
        set_by: who set it last; None: not known, or not set.
        set_at: when; None as ``set_by``.
        applied_by: the application that declares it; None for none.
    """

    part: str
    setting: str
    value: Any
    source: str
    set_by: str | None
    set_at: datetime | None
    applied_by: str | None

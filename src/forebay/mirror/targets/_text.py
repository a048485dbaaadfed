"""The searchable text of a document, by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def texts_of(body: Any) -> str:
    """Return all texts in a body, one after the other.

    >>> texts_of({"title": "Weirs", "tags": ["water", "mill"], "pages": 12})
    'Weirs water mill'
    """
    found: list[str] = []
    _collect(body, found)
    return " ".join(found)


def _collect(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, Mapping):
        for part in value.values():
            _collect(part, found)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for part in value:
            _collect(part, found)

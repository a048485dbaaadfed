"""The objects that the migrations of this version create, as the doctor reads them.

``tools/write_catalog.py`` writes ``catalog.json`` from a newly migrated database; a test compares
the two on every supported version of PostgreSQL.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@functools.cache
def expected_catalog() -> Mapping[str, str]:
    """Return the definition of every object of the schema."""
    text = (resources.files("forebay.sql") / "catalog.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))

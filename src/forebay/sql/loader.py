"""The migrations that this version of the library carries.

They are files named ``0007_add_something.sql``, numbered from 1 without a gap. A file that was
released is never changed; its checksum is recorded in the database and compared ever after.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass, field
from importlib import resources
from typing import Final

_FILE_NAME: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema.

    Attributes:
        version: its number, from 1; the version of the schema once it is applied.
        name: what it does, from the file's name.
        text: its statements, without ``begin`` and ``commit``.
        checksum: SHA-256 of the text, in hexadecimal digits.
    """

    version: int
    name: str
    text: str = field(repr=False)
    checksum: str


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations in their order."""
    folder = resources.files("forebay.sql") / "migrations"
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        matched = _FILE_NAME.fullmatch(file.name)
        if matched:
            # Line ends are normalised: a checkout on another system must not look like drift.
            text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
            checksum = hashlib.sha256(text.encode()).hexdigest()
            found.append(Migration(int(matched[1]), matched[2], text, checksum))
    assert [step.version for step in found] == list(range(1, len(found) + 1)), "gap in migrations"
    return tuple(found)


def latest_version() -> int:
    """Return the version of the schema that this library was made for."""
    return migrations()[-1].version

"""The migrations that this version of the library carries.

They are files named ``0007_add_something.sql``, numbered from 1 without a gap. A file that was
released is never changed; its checksum is recorded in the database and compared ever after.

A file says in its name and in its first comments how it is to be applied:

``0023_post_drop_claim_v1.sql``
    A *post* migration takes away what code of the release before calls, and runs when no such worker
    lives. Every other one is a *pre* migration: it only adds, and runs under the old code.
``-- locks: log, lane``
    Tables that it alters. They are locked at its beginning, within a short time or not at all.
``-- outside a transaction``
    Its statements are committed one by one, as ``create index concurrently`` demands, and can be repeated.
``-- after all that has begun``
    It waits for statements and writing transactions that began before it, as what copies rows must that those may
    still be writing in the old way.
``-- for each segment``
    As outside a transaction, once for each segment of the log, whose number replaces ``{segment}``.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Final

from forebay.sql.statements import split_statements

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_FILE_NAME: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_HEAD: Final = re.compile(r"\A(?:--.*\n|\s*\n)*")
_LOCKS: Final = re.compile(r"^-- locks: (.+)$", re.MULTILINE)
_OUTSIDE: Final = re.compile(r"^-- outside a transaction$", re.MULTILINE)
_AFTER_ALL: Final = re.compile(r"^-- after all that has begun$", re.MULTILINE)
_PER_SEGMENT: Final = re.compile(r"^-- for each segment$", re.MULTILINE)
_TABLE: Final = re.compile(r"[a-z_][a-z0-9_]*")
_SEGMENT: Final = "{segment}"


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

    @property
    def is_post(self) -> bool:
        """Whether it takes away what code of the release before calls."""
        return is_post(self.name)

    @property
    def locks(self) -> tuple[str, ...]:
        """The tables that it alters, in the order in which they are locked."""
        named = _LOCKS.search(self._head)
        return tuple(name.strip() for name in named[1].split(",")) if named else ()

    @property
    def is_outside(self) -> bool:
        """Whether its statements are committed one by one."""
        return bool(_OUTSIDE.search(self._head)) or self.is_per_segment

    @property
    def is_after_all(self) -> bool:
        """Whether it waits for writing transactions that began before it, and not for statements only."""
        return bool(_AFTER_ALL.search(self._head))

    @property
    def is_per_segment(self) -> bool:
        """Whether it is applied to each segment of the log."""
        return bool(_PER_SEGMENT.search(self._head))

    def statements(self, segment: int | None = None) -> list[str]:
        """Return its statements; of one that is applied to each segment, those for one of them."""
        text = self.text if segment is None else self.text.replace(_SEGMENT, str(segment))
        return split_statements(text)

    def problem(self) -> str | None:
        """Return what is wrong with how it says it is to be applied; None when nothing is."""
        if not all(map(_TABLE.fullmatch, self.locks)):
            return f"locks {', '.join(self.locks)}: names of tables, without the schema"
        if self.locks and self.is_outside:
            return "takes locks at its beginning, but is outside a transaction"
        if self.is_per_segment is not (_SEGMENT in self.text):
            return f"is for each segment exactly if it says {_SEGMENT}"
        return None

    @property
    def _head(self) -> str:
        matched = _HEAD.match(self.text)
        assert matched is not None
        return matched[0]


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations in their order."""
    found = []
    for file in sorted(_files(), key=lambda file: file.name):
        matched = _FILE_NAME.fullmatch(file.name)
        if matched:
            # Line ends are normalised: a checkout on another system must not look like drift.
            text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
            found.append(Migration(int(matched[1]), matched[2], text, checksum(text)))
    assert [step.version for step in found] == list(range(1, len(found) + 1)), "gap in migrations"
    for step in found:
        problem = step.problem()
        assert problem is None, f"migration {step.version} {problem}"
    return tuple(found)


def is_post(name: str) -> bool:
    """Return whether a migration of that name takes away what code of the release before calls."""
    return name.startswith("post_")


def checksum(text: str) -> str:
    """Return the checksum of a migration's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def latest_version() -> int:
    """Return the version of the schema once all migrations of this library are applied."""
    return migrations()[-1].version


def required_version() -> int:
    """Return the oldest version of the schema that this library works with: all but the last post migrations."""
    return max(step.version for step in migrations() if not step.is_post)


def _files() -> list[Traversable]:
    return list((resources.files("forebay.sql") / "migrations").iterdir())

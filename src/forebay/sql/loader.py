"""The migrations of this version of the library.

They are files named ``0007_add_something.sql``, numbered from 1 without a gap. A released file
never changes; the database records its checksum, and each later migration compares it. A checkout
has no first file before it is released: it is composed from ``schema/`` when it is read.

The name of a file and its first comments define how it is applied:

``0023_post_drop_claim_v1.sql``
    A *post* migration removes what code of the previous release calls, and runs when no such worker
    lives. Every other migration is a *pre* migration: it only adds, and runs under the old code.
``-- locks: log, lane``
    Tables that it alters. It locks them at its beginning, within a short time or not at all.
``-- outside a transaction``
    Its statements commit one by one, as ``create index concurrently`` requires, and can be
    repeated.
``-- after all that has begun``
    It waits for statements and writing transactions that began before it. A migration that copies
    rows needs this, since such transactions may still write rows in the old way.
``-- for each segment``
    Like outside a transaction, once for each segment of the log; the segment's number replaces
    ``{segment}``.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import field
from importlib import resources
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from forebay._dataclass import dataclass
from forebay.sql.catalog import expected_catalog
from forebay.sql.statements import split_statements

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

_FILE_NAME: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_HEAD: Final = re.compile(r"\A(?:--.*\n|\s*\n)*")
_LOCKS: Final = re.compile(r"^-- locks: (.+)$", re.MULTILINE)
_OUTSIDE: Final = re.compile(r"^-- outside a transaction$", re.MULTILINE)
_AFTER_ALL: Final = re.compile(r"^-- after all that has begun$", re.MULTILINE)
_PER_SEGMENT: Final = re.compile(r"^-- for each segment$", re.MULTILINE)
_TABLE: Final = re.compile(r"[a-z_][a-z0-9_]*")
_SEGMENT: Final = "{segment}"
#: The function that grants the roles, the functions of each role in it, and the name of one.
_GRANT: Final = re.compile(r"function forebay\._grant\(\).*?\$\$.*?\$\$", re.DOTALL)
_GRANTED: Final = re.compile(r"when '(forebay_\w+)' then array\[(.*?)\]", re.DOTALL)
_NAME: Final = re.compile(r"'(\w+)'")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema.

    Attributes:
        version: its number, from 1; the version of the schema after it.
        name: what it does, from the file name.
        text: its statements, without ``begin`` and ``commit``.
        checksum: SHA-256 of the text, in hexadecimal digits.
    """

    version: int
    name: str
    text: str = field(repr=False)
    checksum: str

    @property
    def is_post(self) -> bool:
        """Whether it removes what code of the previous release calls."""
        return is_post(self.name)

    @property
    def locks(self) -> tuple[str, ...]:
        """The tables that it alters, in the order in which it locks them."""
        named = _LOCKS.search(self._head)
        return tuple(name.strip() for name in named[1].split(",")) if named else ()

    @property
    def is_outside(self) -> bool:
        """Whether its statements commit one by one."""
        return bool(_OUTSIDE.search(self._head)) or self.is_per_segment

    @property
    def is_after_all(self) -> bool:
        """Whether it waits for writing transactions that began before it, not only for
        statements.
        """
        return bool(_AFTER_ALL.search(self._head))

    @property
    def is_per_segment(self) -> bool:
        """Whether it is applied to each segment of the log."""
        return bool(_PER_SEGMENT.search(self._head))

    def statements(self, segment: int | None = None) -> list[str]:
        """Return its statements; for a migration of each segment, those for one segment."""
        text = self.text if segment is None else self.text.replace(_SEGMENT, str(segment))
        return split_statements(text)

    def problem(self) -> str | None:
        """Return the problem with its directives; None when there is none."""
        if not all(map(_TABLE.fullmatch, self.locks)):
            return f"locks {', '.join(self.locks)}: name tables without the schema"
        if self.locks and self.is_outside:
            return "locks tables at its beginning, but runs outside a transaction"
        if self.is_per_segment is not (_SEGMENT in self.text):
            return f"must contain {_SEGMENT} if, and only if, it is for each segment"
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
    for version, name, file in _named():
        # Normalise line ends: a checkout on another system must not look like drift.
        text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
        found.append(Migration(version, name, text, checksum(text)))
    for step in found:
        problem = step.problem()
        assert problem is None, f"migration {step.version} {problem}"
    return tuple(found)


def is_post(name: str) -> bool:
    """Return whether a migration of that name removes what code of the previous release calls."""
    return name.startswith("post_")


def checksum(text: str) -> str:
    """Return the checksum of a migration's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def latest_version() -> int:
    """Return the version of the schema after all migrations of this library."""
    return _named()[-1][0]


def required_version() -> int:
    """Return the oldest version of the schema that this library works with: without the last
    post migrations.
    """
    return max(version for version, name, _ in _named() if not is_post(name))


@functools.cache
def roles_by_object() -> Mapping[str, tuple[str, ...]]:
    """Return the roles that may call each function or read each table of the schema.

    The value is None if only the owner may.
    """
    texts = [found for step in migrations() if (found := _GRANT.search(step.text))]
    roles: dict[str, list[str]] = {}
    for role, names in _GRANTED.findall(texts[-1][0]):
        for name in _NAME.findall(names):
            roles.setdefault(name, []).append(role)
    allowed: dict[str, tuple[str, ...]] = {}
    for kind, _, name in (entry.partition(" ") for entry in expected_catalog()):
        if kind == "column":
            allowed.setdefault(name.partition(".")[0], ("forebay_operator", "forebay_reader"))
        elif kind == "function":
            call = name.partition("(")[0]
            allowed[call] = tuple(roles.get(call, ()))
    allowed["schema_migration"] = ()  # Readers can read it; what else needs it is a migration.
    return MappingProxyType(allowed)


class _Composed:
    """The first migration in a checkout before its release.

    It is composed when it is read, so it is never out of date.
    """

    name: Final = "0001_initial.sql"

    def read_text(self, encoding: str) -> str:  # noqa: ARG002 - as a file's
        """Return its text."""
        from forebay.sql.composer import compose  # noqa: PLC0415 - a wheel has the file instead

        return compose()


def _named() -> list[tuple[int, str, Traversable | _Composed]]:
    """Return version, name and file of each migration. A worker reads none of them: the first
    one has a megabyte.
    """
    found = [
        (int(matched[1]), matched[2], file)
        for file in _files()
        if (matched := _FILE_NAME.fullmatch(file.name))
    ]
    found.sort(key=itemgetter(0))
    assert [version for version, *_ in found] == list(range(1, len(found) + 1)), "gap in migrations"
    return found


def _files() -> list[Traversable | _Composed]:
    folder = resources.files("forebay.sql") / "migrations"
    files: list[Traversable | _Composed] = list(folder.iterdir()) if folder.is_dir() else []
    if not any(file.name == _Composed.name for file in files):
        files.append(_Composed())
    return files

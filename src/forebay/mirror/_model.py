"""The values that a source, a target and the reconciler exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

import msgspec

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model.doors import declaring_door

#: The name of an item in both stores.
Id: TypeAlias = int | str

ID_CHARACTERS_MAX: Final = 500
VERSION_MAX: Final = 2**63 - 1

#: How long a target remembers a deletion, by default.
TOMBSTONE_SECONDS_DEFAULT: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Document:
    """An item as it should be in the target.

    Attributes:
        id: its name in both stores.
        version: grows with each change of the item, 0 to 2**63 - 2. An older version never
            overwrites a newer one.
        body: what the target makes its copy from; for the targets of this library a mapping that
            has a JSON form.
        digest: of the body; set when copies are compared by hash.
    """

    id: Id
    version: int
    body: Any
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """An item that is not, or no longer, to be in the target.

    Attributes:
        id: its name.
        version: of its deletion, if the source knows it, for example where a row is only flagged: a
            document with a higher version may come back. None is above all versions: no document
            comes back while the target remembers the deletion.
    """

    id: Id
    version: int | None = None


class Seen(NamedTuple):
    """The state of a copy in the target."""

    version: int
    digest: str | None = None


class Checksum(NamedTuple):
    """The checksum of a range of ids in a store.

    Attributes:
        rows: the number of rows.
        last: the last id; None without rows.
        value: of ids and versions: for each row, the first eight bytes, as a signed number, of the
            SHA-256 of the id, a colon and the version; all of them combined by exclusive or.
            ``checksum_of`` computes it.
    """

    rows: int
    last: Id | None
    value: int


class Rejected(Exception):  # noqa: N818 - a verdict on one item, by the target
    """A target refused one item; the job is retried after longer and longer waits."""


#: The errors of a bulk call, by item, for the items it did not take; None or empty when it took
#: all.
Errors: TypeAlias = Mapping[Id, Exception | str] | None

#: The checksum of a row with an ``id`` and a ``version``, in SQL.
CHECKSUM_SQL: Final = (
    "('x' || substr(encode(sha256(convert_to(id::text || ':' || version::bigint::text, "
    "'UTF8')), 'hex'), 1, 16))"
    "::bit(64)::bigint"
)

#: Whether a copy is right: by version, by hash of the body, or by a function of the document and
#: the seen copy.
Compare: TypeAlias = Literal["version", "hash"] | Callable[[Document, Seen], bool]


class Source(Protocol):
    """The first store.

    Methods may be plain functions, which run in threads, or coroutine functions.

    A source may also have ``close``, and ``checksum(after, until, limit)``: the ``Checksum`` of its
    first items, at most ``limit``, after one id and up to another. If target and source have it, an
    audit reads only where these differ.
    """

    def read(
        self, ids: Sequence[Id], /
    ) -> Iterable[Document | Gone] | Awaitable[Iterable[Document | Gone]]:
        """Return the committed state of these items; an item that is left out is gone."""

    def scan(
        self, after: Id | None, limit: int, /
    ) -> Iterable[tuple[Id, int]] | Awaitable[Iterable[tuple[Id, int]]]:
        """Return ids and versions of the next items in the order of their ids, at most
        ``limit``.
        """


class Target(Protocol):
    """The second store.

    Methods may be plain functions, which run in threads, or coroutine functions.

    A target may also have ``lag_seconds``, the time until accepted writes can be read; ``close``;
    and ``checksum`` like a source. ``forebay.testing.TargetContract`` tests one.
    """

    def read(
        self, ids: Sequence[Id], /
    ) -> Mapping[Id, int | Seen] | Awaitable[Mapping[Id, int | Seen]]:
        """Return the versions of the copies that exist."""

    def write(self, documents: Sequence[Document], /) -> Errors | Awaitable[Errors]:
        """Store documents, but never over a newer one; return the errors of those it did not take.

        Leaving a newer copy or a newer deletion unchanged is not an error.
        """

    def delete(self, gone: Sequence[Gone], /) -> Errors | Awaitable[Errors]:
        """Remove copies and remember the deletions, so that no older document restores a copy.

        Return errors likewise.
        """

    def scan(
        self, after: Id | None, until: Id | None, limit: int, /
    ) -> Iterable[tuple[Id, int | Seen]] | Awaitable[Iterable[tuple[Id, int | Seen]]]:
        """Return the copies after one id and up to another, in the order of the ids, at most
        ``limit``.
        """


@declaring_door
def checksum_of(rows: Iterable[tuple[Id, int | Seen]]) -> Checksum:
    """Return the checksum of rows from a scan.

    >>> checksum_of([(1, 5), (2, 7)]) == checksum_of([(1, Seen(5)), (2, Seen(7))])
    True
    >>> checksum_of([(1, 5), (2, 7)]).value == checksum_of([(1, 7), (2, 5)]).value
    False
    """
    count, last, value = 0, None, 0
    for name, seen in rows:
        version = seen.version if isinstance(seen, Seen) else seen
        digest = hashlib.sha256(f"{name}:{version}".encode()).digest()
        count, last = count + 1, name
        value ^= int.from_bytes(digest[:8], "big", signed=True)
    return Checksum(count, last, value)


def checked_id(value: object) -> Id:
    """Return an item's id in the form used in a job.

    >>> checked_id(42), checked_id(UUID(int=1))
    (42, '00000000-0000-0000-0000-000000000001')

    Raises:
        InvalidJob: it is neither a number, a text nor a UUID, or it is too long.
    """
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidJob("id", f"must be a number, a text or a UUID, not {type(value).__name__}")
    if isinstance(value, str) and not 0 < len(value) <= ID_CHARACTERS_MAX:
        raise InvalidJob("id", f"must have 1 to {ID_CHARACTERS_MAX} characters: {shown(value)}")
    return value


def with_digest(document: Document) -> Document:
    """Return a document with the digest of its body.

    >>> first = with_digest(Document(1, 1, {"a": 1, "b": 2}))
    >>> first.digest == with_digest(Document(1, 2, {"b": 2, "a": 1})).digest
    True
    """
    if document.digest is not None:
        return document
    text = msgspec.json.encode(document.body, order="deterministic")
    return replace(document, digest=hashlib.sha256(text).hexdigest())


def rule_of(compare: Compare) -> Callable[[Document, Seen], bool]:
    """Return the function that decides whether a copy is right.

    Raises:
        ConfigError: the value has none of the three forms.
    """
    if compare == "version":
        return _same_version
    if compare == "hash":
        return _same_digest
    if callable(compare):
        return compare
    raise ConfigError("compare", f'is {shown(compare)}, not "version", "hash" or a function')


def _same_version(document: Document, seen: Seen) -> bool:
    return document.version == seen.version


def _same_digest(document: Document, seen: Seen) -> bool:
    return seen.digest is not None and document.digest == seen.digest


def checked_entries(
    ids: Iterable[Id], answer: Iterable[Document | Gone]
) -> dict[Id, Document | Gone]:
    """Return the entry of a source for each requested item.

    Raises:
        TypeError: an entry is neither a document nor gone, or its version is invalid.
    """
    entries: dict[Id, Document | Gone] = {item: Gone(item) for item in ids}
    for entry in answer:
        if not isinstance(entry, Document | Gone):
            raise TypeError(f"a source returns documents or Gone, not {type(entry).__name__}")
        _check_version(entry)
        if entry.id in entries:
            entries[entry.id] = entry
    return entries


def checked_seen(answer: object) -> dict[Id, Seen]:
    """Return the copies that a target reported.

    Raises:
        TypeError: the result is not a mapping of ids to versions.
    """
    if not isinstance(answer, Mapping):
        raise TypeError(f"a target's read returns a mapping, not {type(answer).__name__}")
    return {
        item: seen if isinstance(seen, Seen) else Seen(int(seen)) for item, seen in answer.items()
    }


def checked_errors(answer: object) -> dict[Id, Exception]:
    """Return the errors that a target reported for items that it did not take.

    Raises:
        TypeError: the result is neither None nor a mapping.
    """
    if answer is None:
        return {}
    if not isinstance(answer, Mapping):
        raise TypeError(
            f"a target's write and delete return None or a mapping, not {type(answer).__name__}"
        )
    return {
        item: error if isinstance(error, Exception) else Rejected(str(error))
        for item, error in answer.items()
    }


def _check_version(entry: Document | Gone) -> None:
    version = entry.version
    if version is None:
        return
    if type(version) is not int or not 0 <= version < VERSION_MAX:
        raise TypeError(
            f"a version is a whole number from 0 to 2**63 - 2, not {shown(version)} of "
            f"item {shown(entry.id)}"
        )

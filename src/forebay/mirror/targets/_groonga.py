"""A target: full text search in Groonga, over HTTP.

Groonga has no versions and no transactions, and its conditional load is a read followed by a write:
two concurrent loads can leave the words of one under the version of the other. So this target never
overwrites a row. Each version of an item is a separate row; a field that says it is complete is
written last, and the newest complete row counts. Any process that sees older rows removes them,
which is safe at any time and can be repeated. A deletion is also a row, a *tombstone*, for a while,
and newer than a document of its version.

Invariant "older never over newer": docs/design/reconcile.md. Shown by:
tests/mirror/test_groonga.py.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from forebay.errors import ConfigError, TargetUnavailable, shown
from forebay.mirror._model import (
    TOMBSTONE_SECONDS_DEFAULT,
    VERSION_MAX,
    Document,
    Gone,
    Rejected,
    Seen,
)
from forebay.mirror.targets._http import Http, run_apart, understood
from forebay.mirror.targets._text import texts_of
from forebay.model.doors import declaring_door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from forebay.mirror._model import Id

_PURGE_SECONDS: Final = 600.0
_PURGE_MAX: Final = 10_000
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ID_TYPES: Final = {"integer": "Int64", "text": "ShortText"}
_CONTROL: Final = re.compile(r"[\x00-\x1f]")


class _Row(NamedTuple):
    """A version of an item, or of a deletion if ``gone_at`` is not 0."""

    key: str
    item: Id
    version: int
    digest: str
    gone_at: int

    @property
    def seen(self) -> Seen:
        return Seen(self.version, self.digest or None)

    @property
    def place(self) -> tuple[int, bool]:
        """The sort key of versions."""
        return self.version, self.gone_at > 0


class GroongaTarget:
    """Full text search in a table of a Groonga server.

    Args:
        url: of the server, such as ``http://localhost:10041``.
        table: its table; ``create`` creates it.
        id_type: of the ids, ``"integer"`` or ``"text"``.
        text: makes the searchable text from the body of a document; None takes all texts in it.
        tokenizer: splits texts into words.
        normalizer: maps letters that match each other to one form.
        tombstone_seconds: how long a deletion is remembered.
        headers: sent with each request.
        timeout: how long a request may take, in seconds.

    Raises:
        ConfigError: an argument is refused.
    """

    #: Loaded rows can be read at once.
    lag_seconds = 0.0

    @declaring_door
    def __init__(
        self,
        url: str,
        *,
        table: str = "Documents",
        id_type: Literal["integer", "text"] = "integer",
        text: Callable[[Any], str] | None = None,
        tokenizer: str = "TokenBigram",
        normalizer: str = "NormalizerAuto",
        tombstone_seconds: float = TOMBSTONE_SECONDS_DEFAULT,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        if not _NAME.fullmatch(table):
            raise ConfigError("table", f"is {shown(table)}, not letters, digits and underscores")
        if id_type not in _ID_TYPES:
            raise ConfigError("id_type", f'is {shown(id_type)}, not "integer" or "text"')
        self._table = table
        self._is_text = id_type == "text"
        self._id_type = _ID_TYPES[id_type]
        self._text = text or texts_of
        self._words = {"default_tokenizer": tokenizer, "normalizer": normalizer}
        self._tombstone_seconds = tombstone_seconds
        self._purge_at = 0.0
        self._http = Http(url, extra="groonga", headers=headers, seconds=timeout)

    def create(self) -> None:
        """Create the table and its indexes if they do not exist.

        Raises:
            ConfigError: the server refuses them.
            TargetUnavailable: the server is unavailable.
        """

        async def create() -> None:
            try:
                await self._create()
            finally:
                await self._http.close()

        run_apart(create)

    async def read(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """Return the versions of the copies that exist; remove older rows."""
        given: dict[Id, Id] = {}
        for item in ids:
            with contextlib.suppress(Rejected):  # An id that cannot be in the table is not there.
                given[self._known(item)] = item
        newest = await self._tidied(given)
        return {given[name]: row.seen for name, row in newest.items() if not row.gone_at}

    async def write(self, documents: Sequence[Document]) -> dict[Id, Exception]:
        """Store documents, but never over a newer one or a newer deletion.

        Return the errors of refused ones.
        """
        return await self._put(documents, self._document)

    async def delete(self, gone: Sequence[Gone]) -> dict[Id, Exception]:
        """Leave tombstones, but never over a newer document; return the errors of refused ones."""
        errors = await self._put(gone, self._tombstone)
        if time.monotonic() >= self._purge_at:
            self._purge_at = time.monotonic() + _PURGE_SECONDS
            await self._purge()
        return errors

    async def scan(self, after: Id | None, until: Id | None, limit: int) -> list[tuple[Id, Seen]]:
        """Return the copies after one id and up to another, in the order of the ids."""
        found: dict[Id, Seen] = {}
        while len(found) < limit:
            rows = await self._rows(f"{_range(after, until)}gone_at == 0", limit)
            for row in rows:
                # The newest comes first. A second row is rare; an audit that it misleads checks the
                # item again.
                found.setdefault(row.item, row.seen)
            if len(rows) < limit:
                break
            after = rows[-1].item
        return list(found.items())[:limit]

    async def search(self, words: str, limit: int = 20) -> list[Id]:
        """Return the ids of the best matching documents.

        Args:
            words: a query of Groonga.
            limit: the maximum number of ids.

        Raises:
            ValueError: the query is malformed.
            TargetUnavailable: the server is unavailable.
        """
        answer = await self._request(
            "select",
            {
                "table": self._table,
                "match_columns": "scorer_tf_idf(words)",
                "query": words,
                "query_flags": "NONE",
                "filter": "gone_at == 0 && whole == true",
                "sort_keys": "-_score,item",
                "output_columns": "item",
                # An item that is being written may briefly have two rows.
                "limit": str(2 * limit),
            },
        )
        if answer.code in _SYNTAX:
            raise ValueError(answer.problem)
        with understood(self._table):
            records = answer.checked()["records"]
            return list(dict.fromkeys(item for (item,) in records))[:limit]

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    # --- rows ---

    async def _put(
        self, entries: Sequence[Any], row_of: Callable[[Any], dict[str, Any]]
    ) -> dict[Id, Exception]:
        """Add rows, unless there are newer ones, and remove rows that became old."""
        errors: dict[Id, Exception] = {}
        rows: list[dict[str, Any]] = []
        for entry in entries:
            try:
                rows.append(row_of(entry))
            except Exception as error:  # the user's function may make its text
                errors[entry.id] = error
        if not rows:
            return errors
        items = [row["item"] for row in rows]
        newest = await self._tidied(items)
        # Only saves work: a newer row that is loaded meanwhile still wins.
        rows = [
            row
            for row in rows
            if row["item"] not in newest
            or (row["version"], row["gone_at"] > 0) >= newest[row["item"]].place
        ]
        if rows:
            await self._load(rows)
            await self._tidied(items)
        return errors

    def _document(self, document: Document) -> dict[str, Any]:
        name = self._known(document.id)
        words, digest = self._text(document.body), document.digest or ""
        version = document.version
        return _row(f"{name}:{version}", name, version=version, words=words, digest=digest)

    def _tombstone(self, gone: Gone) -> dict[str, Any]:
        name = self._known(gone.id)
        version = VERSION_MAX if gone.version is None else gone.version
        now = int(time.time() * 1000)
        return _row(f"{name}:{version}:gone", name, version=version, gone_at=now)

    def _known(self, item: Id) -> Id:
        if not self._is_text:
            if not isinstance(item, int):
                raise Rejected(f"an id must be a number in this table, not {shown(item)}")
            return item
        name = str(item)
        if _CONTROL.search(name):
            raise Rejected(f"an id has control characters: {shown(name)}")
        return name

    async def _tidied(self, items: Iterable[Id]) -> dict[Id, _Row]:
        """Return the newest rows of items, and remove the others."""
        listed = ",".join(_literal(item) for item in items)
        if not listed:
            return {}
        rows = await self._rows(f"in_values(item, {listed})")
        newest: dict[Id, _Row] = {}
        await self._remove(row for row in rows if newest.setdefault(row.item, row) is not row)
        return newest

    async def _purge(self) -> None:
        """Remove old tombstones, some at a time."""
        old = int((time.time() - self._tombstone_seconds) * 1000)
        rows = await self._rows(f"gone_at > 0 && gone_at < {old}", _PURGE_MAX)
        # Remove the rows that they replaced first: such a row would otherwise count again.
        await self._tidied({row.item for row in rows})
        await self._remove(rows)

    async def _rows(self, condition: str, limit: int = -1) -> list[_Row]:
        """Return complete rows in the order of their items, the newest of each first."""
        answer = await self._request(
            "select",
            {
                "table": self._table,
                "filter": f"{condition} && whole == true",
                "sort_keys": "item,-version,-gone_at",
                "output_columns": ",".join(_COLUMNS),
                "limit": str(limit),
                "cache": "no",
            },
        )
        with understood(self._table):
            return [_checked_row(*record) for record in answer.checked()["records"]]

    async def _load(self, rows: Sequence[Mapping[str, Any]]) -> None:
        answer = await self._request("load", {"table": self._table}, body=msgspec.json.encode(rows))
        with understood(self._table):
            count = answer.checked()["n_loaded_records"]
        if count != len(rows):
            raise TargetUnavailable(f"only {count} of {len(rows)} rows were loaded")

    async def _remove(self, rows: Iterable[_Row]) -> None:
        keys = ",".join(_literal(row.key) for row in rows)
        if keys:
            condition = f"in_values(_key, {keys})"
            (await self._request("delete", {"table": self._table, "filter": condition})).checked()

    # --- requests ---

    async def _create(self) -> None:
        table, ids, words = self._table, f"{self._table}_items", f"{self._table}_words"
        await self._make(table, flags="TABLE_HASH_KEY", key_type="ShortText")
        for name, kind in (
            ("item", self._id_type),
            ("words", "LongText"),
            ("digest", "ShortText"),
            ("version", "Int64"),
            ("gone_at", "Int64"),
            ("whole", "Bool"),
        ):
            await self._make(f"{table}.{name}", flags="COLUMN_SCALAR", type=kind)
        await self._make(ids, flags="TABLE_PAT_KEY", key_type=self._id_type)
        await self._make(f"{ids}.rows", flags="COLUMN_INDEX", type=table, source="item")
        await self._make(words, flags="TABLE_PAT_KEY", key_type="ShortText", **self._words)
        index = "COLUMN_INDEX|WITH_POSITION"
        await self._make(f"{words}.rows", flags=index, type=table, source="words")

    async def _make(self, name: str, **options: str) -> None:
        """Create a table or column if it does not exist.

        Another process may be creating it at the same time.
        """
        if await self._exists(name):
            return
        table, _, column = name.partition(".")
        if column:
            answer = await self._request(
                "column_create", {"table": table, "name": column} | options
            )
        else:
            answer = await self._request("table_create", {"name": table} | options)
        if answer.code and not await self._exists(name):
            raise ConfigError("create()", f"{name} was refused: {answer.problem}")

    async def _exists(self, name: str) -> bool:
        return bool((await self._request("object_exist", {"name": name})).checked())

    async def _request(
        self, command: str, arguments: Mapping[str, str], body: bytes | None = None
    ) -> _Answer:
        arguments = {"command_version": "3", **arguments}
        if body is not None:
            answer = await self._http.send("POST", f"/d/{command}", query=arguments, body=body)
        else:
            answer = await self._http.send("POST", f"/d/{command}", form=arguments)
        header = answer.body.get("header") if isinstance(answer.body, dict) else None
        if not isinstance(header, dict) or not isinstance(header.get("return_code"), int):
            raise TargetUnavailable(f"status {answer.status}: {answer.body}")
        with understood(self._table):
            problem = str(header.get("error", {}).get("message", "")).replace("\n", " ")
        return _Answer(header["return_code"], problem, answer.body.get("body"))


_COLUMNS: Final = ("_key", "item", "version", "digest", "gone_at")

#: Return codes of the server for a malformed query: invalid format, and syntax error.
_SYNTAX: Final = frozenset({-54, -63})


class _Answer(NamedTuple):
    """The answer of the server; code 0 means success."""

    code: int
    problem: str
    body: Any

    def checked(self) -> Any:
        """Return the result of the request.

        Raises:
            TargetUnavailable: the request failed: the library made all of it, so no item is at
                fault.
        """
        if self.code:
            hint = (
                "If the table does not exist, create() creates it."
                if "invalid name" in self.problem
                else None
            )
            raise TargetUnavailable(f"return code {self.code}: {self.problem}", hint=hint)
        return self.body


def _checked_row(key: Any, item: Any, version: Any, digest: Any, gone_at: Any) -> _Row:
    for value, kind in (
        (key, str),
        (item, int | str),
        (version, int),
        (digest, str),
        (gone_at, int),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} among {_COLUMNS}")
    return _Row(key, item, version, digest, gone_at)


def _row(
    key: str, item: Id, *, version: int, words: str = "", digest: str = "", gone_at: int = 0
) -> dict[str, Any]:
    """Return a row with its fields in the order of writing: without the last field it does not
    count.
    """
    return {
        "_key": key,
        "item": item,
        "words": words,
        "digest": digest,
        "version": version,
        "gone_at": gone_at,
        "whole": True,
    }


def _range(after: Id | None, until: Id | None) -> str:
    """Return a condition on items, ending in ``&&``; with both ends the server uses an index.

    >>> _range(1, 9), _range(None, "b"), _range(1, None)
    ('between(item, 1, "exclude", 9, "include") && ', 'item <= "b" && ', 'item > 1 && ')
    """
    if after is not None and until is not None:
        return f'between(item, {_literal(after)}, "exclude", {_literal(until)}, "include") && '
    if after is not None:
        return f"item > {_literal(after)} && "
    return "" if until is None else f"item <= {_literal(until)} && "


def _literal(item: Id) -> str:
    """Return a value as a literal of a Groonga script.

    >>> _literal(7), _literal("a")
    ('7', '"a"')
    """
    return msgspec.json.encode(item).decode()

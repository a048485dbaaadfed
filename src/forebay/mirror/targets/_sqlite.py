"""A target: full text search in a SQLite file, with FTS5."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from forebay.errors import ConfigError, TargetUnavailable, shown
from forebay.mirror._model import (
    TOMBSTONE_SECONDS_DEFAULT,
    VERSION_MAX,
    Checksum,
    Document,
    Gone,
    Seen,
    checksum_of,
)
from forebay.mirror.targets._text import texts_of
from forebay.model.doors import declaring_door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from forebay.mirror._model import Id


_TABLES: Final = """
create table if not exists document (
    place integer primary key,
    id {id_type} not null unique,
    version integer not null,
    digest text,
    gone integer not null default 0,
    written_at real not null);
create index if not exists document_gone on document (written_at) where gone;
create virtual table if not exists document_words using fts5 (words);
"""


class SQLiteTarget:
    """Full text search in a SQLite file.

    Args:
        path: of the file; it is created when first needed.
        id_type: of the ids, ``"integer"`` or ``"text"``.
        text: makes the searchable text from the body of a document; None takes all texts in it.
        tombstone_seconds: how long a deletion is remembered.
        timeout: how long to wait for another writer, in seconds.

    Raises:
        ConfigError: the type is refused.
    """

    #: Committed rows can be read at once.
    lag_seconds = 0.0

    @declaring_door
    def __init__(
        self,
        path: str | Path,
        *,
        id_type: Literal["integer", "text"] = "integer",
        text: Callable[[Any], str] | None = None,
        tombstone_seconds: float = TOMBSTONE_SECONDS_DEFAULT,
        timeout: float = 10.0,
    ) -> None:
        if id_type not in ("integer", "text"):
            raise ConfigError("id_type", f'is {shown(id_type)}, not "integer" or "text"')
        self._path = path
        self._type = id_type
        self._text = text or texts_of
        self._tombstone_seconds = tombstone_seconds
        self._timeout = timeout
        self._is_made = False

    def read(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """Return the versions of the copies that exist."""
        given = {self._known(item): item for item in ids}
        with self._connected() as conn:
            rows = conn.execute(
                "select id, version, digest from document"
                " where id in (select value from json_each(?)) and not gone",
                [_json(list(given))],
            ).fetchall()
        return {given[name]: Seen(version, digest) for name, version, digest in rows}

    def write(self, documents: Sequence[Document]) -> None:
        """Store documents, but never over a newer one or a newer deletion."""
        with self._connected(to_write=True) as conn:
            for document in documents:
                row = conn.execute(
                    """
                    insert into document as d (id, version, digest, gone, written_at) values (?, ?,
                        ?, 0, ?)
                    on conflict (id) do update set version = excluded.version,
                        digest = excluded.digest, gone = 0,
                        written_at = excluded.written_at
                        where d.version < excluded.version or (d.version = excluded.version
                            and not d.gone)
                    returning place""",
                    [self._known(document.id), document.version, document.digest, time.time()],
                ).fetchone()
                if row is not None:
                    conn.execute(
                        "insert or replace into document_words (rowid, words) values (?, ?)",
                        [row[0], self._text(document.body)],
                    )

    def delete(self, gone: Sequence[Gone]) -> None:
        """Leave tombstones, but never over a newer copy."""
        now = time.time()
        with self._connected(to_write=True) as conn:
            for each in gone:
                version = VERSION_MAX if each.version is None else each.version
                row = conn.execute(
                    """
                    insert into document as d (id, version, gone, written_at) values (?, ?, 1, ?)
                    on conflict (id) do update set version = excluded.version, digest = null,
                        gone = 1,
                        written_at = excluded.written_at
                        where d.version <= excluded.version
                    returning place""",
                    [self._known(each.id), version, now],
                ).fetchone()
                if row is not None:
                    conn.execute("delete from document_words where rowid = ?", row)
            conn.execute(
                "delete from document where gone and written_at < ?",
                [now - self._tombstone_seconds],
            )

    def scan(self, after: Id | None, until: Id | None, limit: int) -> list[tuple[Id, Seen]]:
        """Return the copies after one id and up to another, in the order of the ids."""
        with self._connected() as conn:
            rows = conn.execute(
                "select id, version, digest from document where not gone"
                " and (:after is null or id > :after) and (:until is null or id <= :until)"
                " order by id limit :limit",
                {"after": after, "until": until, "limit": limit},
            ).fetchall()
        return [(name, Seen(version, digest)) for name, version, digest in rows]

    def checksum(self, after: Id | None, until: Id | None, limit: int) -> Checksum:
        """Return the checksum of the copies after one id and up to another, at most ``limit``."""
        return checksum_of(self.scan(after, until, limit))

    def search(self, words: str, limit: int = 20) -> list[Id]:
        """Return the ids of the best matching documents.

        Args:
            words: a query of FTS5.
            limit: the maximum number of ids.

        Raises:
            ValueError: the query is malformed.
            TargetUnavailable: the file cannot be read now.
        """
        with self._connected() as conn:
            # If this read succeeds, an error of the next one is due to the query.
            conn.execute("select 1 from document_words limit 1").fetchone()
            try:
                rows = conn.execute(
                    "select d.id from document_words w join document d on d.place = w.rowid"
                    " where w.words match ? and not d.gone order by w.rank limit ?",
                    [words, limit],
                ).fetchall()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                    raise ValueError(f"malformed query of FTS5: {error}") from error
                raise
        return [name for (name,) in rows]

    @contextlib.contextmanager
    def _connected(self, *, to_write: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction.

        Each call has a new connection, because calls come from any thread.
        """
        try:
            conn = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
            with contextlib.closing(conn):
                if not self._is_made:
                    conn.execute("pragma journal_mode = wal")
                    conn.executescript(_TABLES.format(id_type=self._type))
                    self._is_made = True
                conn.execute("begin immediate" if to_write else "begin")
                yield conn
                conn.execute("commit")
        except sqlite3.OperationalError as error:
            # Locked, full, or no such folder.
            self._is_made = False
            raise TargetUnavailable(str(error)) from error

    def _known(self, item: Id) -> Id:
        return str(item) if self._type == "text" else item


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

"""A target: full text search in a PostgreSQL database, which may be another server.

A table of ids, versions and search vectors. A deleted item leaves a row without words for a while,
a *tombstone*, so that a process that read the item earlier cannot restore it. The bodies stay in
the source: a search returns ids.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from forebay.db.foreign_session import ForeignSession
from forebay.errors import ConfigError, shown
from forebay.mirror._model import (
    CHECKSUM_SQL,
    TOMBSTONE_SECONDS_DEFAULT,
    VERSION_MAX,
    Checksum,
    Document,
    Gone,
    Seen,
)
from forebay.mirror.targets._text import texts_of
from forebay.model.doors import declaring_door
from forebay.ops.operation import Operation, ResultRows, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.mirror._model import Id

_PURGE_SECONDS: Final = 60.0
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")
_ID_TYPES: Final = {"bigint": "bigint", "text": 'text collate "C"'}


class PostgresTarget:
    """Full text search in PostgreSQL, in another database or on another server.

    Search its table on any connection: ``select id from documents where words @@
    websearch_to_tsquery('english', 'water mill')``.

    Args:
        dsn: the database, or a function that returns its address when it is first needed.
        table: its table, with or without a schema; ``create`` creates it.
        id_type: of the ids, ``"bigint"`` or ``"text"``.
        language: the text search configuration.
        text: makes the searchable text from the body of a document; None takes all texts in it.
        tombstone_seconds: how long a deletion is remembered.
        timeout: how long a statement may take, in seconds.

    Raises:
        ConfigError: the name of the table or the type is refused.
    """

    #: Committed rows can be read at once.
    lag_seconds = 0.0

    @declaring_door
    def __init__(
        self,
        dsn: str | Callable[[], str],
        *,
        table: str = "documents",
        id_type: Literal["bigint", "text"] = "bigint",
        language: str = "english",
        text: Callable[[Any], str] | None = None,
        tombstone_seconds: float = TOMBSTONE_SECONDS_DEFAULT,
        timeout: float = 30.0,
    ) -> None:
        if not _NAME.fullmatch(table):
            raise ConfigError("table", f"is {shown(table)}, not a plain name in lower case")
        if id_type not in _ID_TYPES:
            raise ConfigError("id_type", f'is {shown(id_type)}, not "bigint" or "text"')
        self._table = table
        self._type = id_type
        self._language = language
        self._text = text or texts_of
        self._tombstone_seconds = tombstone_seconds
        self._purge_at = 0.0
        self._database = ForeignSession(dsn, name="forebay target", seconds=timeout)

    def create(self) -> None:
        """Create the table and its indexes if they do not exist."""
        bare = self._table.rpartition(".")[2]
        self._database.run_once(
            Operation(
                f"""
                create table if not exists {self._table} (
                    id         {_ID_TYPES[self._type]} primary key,
                    version    bigint not null,  -- of a tombstone: of the deletion, or the highest
                    digest     text,
                    words      tsvector,
                    gone       boolean not null default false,
                    written_at timestamptz not null default now());
                create index if not exists {bare}_words on {self._table} using gin (words);
                create index if not exists {bare}_gone on {self._table} (written_at) where gone""",
                nothing,
            )
        )

    async def read(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """Return the versions of the copies that exist."""
        if self._type == "text":
            given: dict[Any, Id] = {str(item): item for item in ids}
        else:
            given = {item: item for item in ids}
        rows = await self._database.run(
            Operation(
                f"select id, version, digest from {self._table}"
                f" where id = any(%(ids)s::{self._type}[]) and not gone",
                _rows,
                {"ids": list(given)},
            )
        )
        return {given[name]: Seen(version, digest) for name, version, digest in rows}

    async def write(self, documents: Sequence[Document]) -> None:
        """Store documents, but never over a newer one or a newer deletion."""
        given = [
            {
                "id": document.id,
                "version": document.version,
                "digest": document.digest,
                "words": self._text(document.body),
            }
            for document in documents
        ]
        # In the order of the ids, so that two writers wait for each other instead of a deadlock.
        await self._database.run(
            Operation(
                f"""
                insert into {self._table} as d (id, version, digest, words)
                select g.id, g.version, g.digest, to_tsvector(%(language)s::text::regconfig,
                    g.words)
                from jsonb_to_recordset(%(given)s::jsonb) as g(
                    id {_ID_TYPES[self._type]}, version bigint, digest text, words text)
                order by g.id
                on conflict (id) do update
                    set version = excluded.version, digest = excluded.digest,
                        words = excluded.words,
                        gone = false, written_at = now()
                    where d.version < excluded.version or (d.version = excluded.version
                        and not d.gone)""",
                nothing,
                {"given": _json(given), "language": self._language},
            )
        )

    async def delete(self, gone: Sequence[Gone]) -> None:
        """Leave tombstones, but never over a newer copy."""
        given = [
            {"id": each.id, "version": VERSION_MAX if each.version is None else each.version}
            for each in gone
        ]
        await self._database.run(
            Operation(
                f"""
                insert into {self._table} as d (id, version, gone)
                select g.id, g.version, true
                from jsonb_to_recordset(%(given)s::jsonb) as g(id {_ID_TYPES[self._type]},
                    version bigint)
                order by g.id
                on conflict (id) do update
                    set version = excluded.version, digest = null, words = null, gone = true,
                        written_at = now()
                    where d.version <= excluded.version""",
                nothing,
                {"given": _json(given)},
            )
        )
        if time.monotonic() >= self._purge_at:
            self._purge_at = time.monotonic() + _PURGE_SECONDS
            await self._database.run(
                Operation(
                    f"delete from {self._table}"
                    " where gone and written_at < now() - make_interval(secs => %(seconds)s)",
                    nothing,
                    {"seconds": self._tombstone_seconds},
                )
            )

    async def scan(self, after: Id | None, until: Id | None, limit: int) -> list[tuple[Id, Seen]]:
        """Return the copies after one id and up to another, in the order of the ids."""
        rows = await self._database.run(
            Operation(
                f"""
                select id, version, digest from {self._table}
                where not gone
                  and (%(after)s::{self._type} is null or id > %(after)s::{self._type})
                  and (%(until)s::{self._type} is null or id <= %(until)s::{self._type})
                order by id limit %(limit)s""",
                _rows,
                {"after": after, "until": until, "limit": limit},
            )
        )
        return [(name, Seen(version, digest)) for name, version, digest in rows]

    async def checksum(self, after: Id | None, until: Id | None, limit: int) -> Checksum:
        """Return the checksum of the copies after one id and up to another, at most ``limit``."""
        return await self._database.run(
            Operation(
                f"""
                select count(*), max(id), coalesce(bit_xor({CHECKSUM_SQL}), 0)
                from (select id, version from {self._table}
                      where not gone
                        and (%(after)s::{self._type} is null or id > %(after)s::{self._type})
                        and (%(until)s::{self._type} is null or id <= %(until)s::{self._type})
                      order by id limit %(limit)s) found""",
                lambda rows: Checksum(*rows[0]),
                {"after": after, "until": until, "limit": limit},
            )
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._database.close()


def _rows(rows: ResultRows) -> ResultRows:
    return rows


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

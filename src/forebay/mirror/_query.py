"""A source made of two queries on a PostgreSQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forebay.db.foreign_session import ForeignSession
from forebay.mirror._model import CHECKSUM_SQL, Checksum, Document, Gone
from forebay.model.doors import declaring_door
from forebay.ops.operation import Operation, ResultRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.mirror._model import Id


class QuerySource:
    """Reads items with your queries.

    Args:
        dsn: the database, or a function that returns its address when it is first needed.
        read: has a parameter ``%(ids)s``, an array, and returns ``id``, ``version`` and one column
            for each field of the document. A true column ``gone`` means that the item is not, or no
            longer, to be in the target.
        scan: has parameters ``%(after)s``, null at the beginning, and ``%(limit)s``, and returns
            ``id`` and ``version`` in the order of the ids; texts in the order of their bytes
            (``collate "C"``).
        timeout: how long a query may take, in seconds.

    >>> source = QuerySource(
    ...     "dbname=shop",
    ...     read="select id, version, title, deleted as gone from article where id = any(%(ids)s)",
    ...     scan="select id, version from article where id > coalesce(%(after)s, 0)"
    ...     " order by id limit %(limit)s",
    ... )
    """

    @declaring_door
    def __init__(
        self, dsn: str | Callable[[], str], *, read: str, scan: str, timeout: float = 30.0
    ) -> None:
        # The rows are read as JSON: columns have their names, and dates and similar values a form
        # that a document can have.
        self._read = f"select to_jsonb(found)::text from (\n{read.rstrip().rstrip(';')}\n) found"
        rows = f"(\n{scan.rstrip().rstrip(';')}\n) found"
        self._scan = f"select id, version from {rows}"
        self._checksum = (
            f"select count(*), (array_agg(id order by place desc))[1], "
            f"coalesce(bit_xor({CHECKSUM_SQL}), 0)"
            f" from (select id, version, row_number() over () as place from {rows}"
        )
        self._database = ForeignSession(dsn, name="forebay source", seconds=timeout)

    async def read(self, ids: Sequence[Id]) -> list[Document | Gone]:
        """Return the committed state of these items."""
        return await self._database.run(Operation(self._read, _entries, {"ids": list(ids)}))

    async def scan(self, after: Id | None, limit: int) -> list[tuple[Id, int]]:
        """Return ids and versions of the next items."""
        parameters = {"after": after, "limit": limit}
        return await self._database.run(Operation(self._scan, _versions, parameters))

    async def checksum(self, after: Id | None, until: Id | None, limit: int) -> Checksum:
        """Return the checksum of the next items up to an id, at most ``limit``."""
        # Texts are ordered by their bytes here too, whatever the collation of the column.
        if until is None:
            where = ""
        elif isinstance(until, str):
            where = ' where id::text collate "C" <= %(until)s::text'
        else:
            where = " where id <= %(until)s"
        return await self._database.run(
            Operation(
                f"{self._checksum}{where}) numbered",
                lambda rows: Checksum(*rows[0]),
                {"after": after, "until": until, "limit": limit},
            )
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._database.close()


def _entries(rows: ResultRows) -> list[Document | Gone]:
    return [_entry(msgspec.json.decode(text)) for (text,) in rows]


def _entry(found: dict[str, Any]) -> Document | Gone:
    name, version = found.pop("id"), found.pop("version")
    if found.pop("gone", False):
        return Gone(name, version)
    return Document(name, version, found)


def _versions(rows: ResultRows) -> list[tuple[Id, int]]:
    return [(name, int(version)) for name, version in rows]

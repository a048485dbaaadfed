"""The part of the asynchronous client for looking back: where a job is, searches, replays."""

from __future__ import annotations

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.model.archive import Whereabouts
from forebay.ops import where


class AsyncArchive(AsyncClientBase):
    """Find jobs, ended ones too, and see what became of them."""

    async def where(self, what: int | str, *, conn: AsyncConnection | None = None) -> Whereabouts:
        """Return where a job is: its attempts and errors, what it waits for, and what happens next.

        Several jobs can have one correlation id or key: all are listed, the newest 20, and the newest unfinished one is described.

        Args:
            what: the id of a job; or a correlation id, an ordering key, a limit key or a unique key.
            conn: the connection to use. It needs the rights of an operator or reader.

        Raises:
            InvalidJob: ``what`` is empty or too long.
        """
        found = await self._run(conn, where.find(what))
        if found.chosen is None:
            return where.nothing_found(found)
        return await self._run(conn, where.details(found))

# Generated from src/forebay/client/_async/archive.py by tools/async_to_sync.py. Do not edit.
"""The part of the synchronous client for looking back: where a job is, searches, replays."""

from __future__ import annotations

from forebay.client._sync.base import ClientBase
from forebay.db.drivers import SyncConnection
from forebay.model.archive import Whereabouts
from forebay.ops import where


class Archive(ClientBase):
    """Find jobs, ended ones too, and see what became of them."""

    def where(self, what: int | str, *, conn: SyncConnection | None = None) -> Whereabouts:
        """Return where a job is: its attempts and errors, what it waits for, and what happens next.

        Several jobs can have one correlation id or key: all are listed, the newest 20, and the newest unfinished one is described.

        Args:
            what: the id of a job; or a correlation id, an ordering key, a limit key or a unique key.
            conn: the connection to use. It needs the rights of an operator or reader.

        Raises:
            InvalidJob: ``what`` is empty or too long.
        """
        found = self._run(conn, where.find(what))
        if found.chosen is None:
            return where.nothing_found(found)
        return self._run(conn, where.details(found))

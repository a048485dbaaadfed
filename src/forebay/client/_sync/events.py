# Generated from src/forebay/client/_async/events.py by tools/async_to_sync.py. Do not edit.
"""The part of the synchronous client for the event log."""

from __future__ import annotations

from datetime import datetime

from forebay.client._sync.base import ClientBase
from forebay.db.drivers import SyncConnection
from forebay.model.events import Event
from forebay.ops import events


class Events(ClientBase):
    """Read what operators did."""

    def events(
        self,
        *,
        queue: str | None = None,
        act: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        conn: SyncConnection | None = None,
    ) -> list[Event]:
        """Return what operators did, newest first: pauses, limits, cancellations, redrives,
        settings, acts of the guard.

        Events are kept as long as errors of jobs: 60 days, or twice ``retention_days`` if that is
        longer.

        Args:
            queue: only of this queue.
            act: only this act, such as ``queues.pause``, or all acts with this first part, such as
                ``queues``.
            since: only from this time on.
            until: only before this time.
            limit: maximum number of events, 1 to 10,000.
            conn: the connection to use.
        """
        return self._run(
            conn, events.events(queue=queue, act=act, since=since, until=until, limit=limit)
        )

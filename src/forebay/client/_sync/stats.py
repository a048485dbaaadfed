# Generated from src/forebay/client/_async/stats.py by tools/async_to_sync.py. Do not edit.
"""The part of the synchronous client for counters of jobs."""

from __future__ import annotations

from datetime import datetime

from forebay.client._sync.base import ClientBase
from forebay.db.drivers import SyncConnection
from forebay.model.stats import Stats, StatsAudit, StatsSample, StatsStep
from forebay.ops import stats


class Counters(ClientBase):
    """Read the counters of jobs."""

    def stats(self, queue: str | None = None, *, conn: SyncConnection | None = None) -> list[Stats]:
        """Return the counters by queue, group, priority, kind and tag, exact at the moment of
        the call.

        It visits no job that just waits or has ended, so its cost depends on the number of kinds
        and tags.

        Args:
            queue: only of this queue.
            conn: the connection to use; jobs that its open transaction has enqueued count.
        """
        return self._run(conn, stats.stats(queue))

    def audit_stats(
        self, queue: str | None = None, *, conn: SyncConnection | None = None
    ) -> StatsAudit:
        """Compare the counters with a full count of all jobs, in one snapshot.

        It reads every job: seconds for each million.

        Args:
            queue: only of this queue.
            conn: the connection to use.
        """
        return self._run(conn, stats.audit_stats(queue))

    def stats_series(
        self,
        step: StatsStep,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        queue: str | None = None,
        conn: SyncConnection | None = None,
    ) -> list[StatsSample]:
        """Return the counters over time, oldest first: a sample for each step in which something
        changed.

        Workers keep the seconds of the last hour, the minutes of a week and the hours of a year.
        What happened in the last second or two may not be there yet.

        Args:
            step: second, minute or hour.
            since: only from this time on; None: all that is kept.
            until: only up to this time; None: now.
            queue: only of this queue.
            conn: the connection to use.

        Raises:
            InvalidJob: an unknown step, or a time without a time zone.
        """
        return self._run(conn, stats.stats_series(step, since, until, queue))

"""The part of the asynchronous client for exports: segments are written to files before they are
emptied.
"""

from __future__ import annotations

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.model import JobState
from forebay.model.change import JobFilter
from forebay.model.exports import Export, ExportedJob, JobsToExport, SegmentToExport
from forebay.ops import exports


class AsyncExports(AsyncClientBase):
    """Keep segments until their jobs are written elsewhere.

    ``forebay exports run`` writes files with these calls.
    """

    async def create_export(
        self, name: str, *, hold_hours: int = 72, conn: AsyncConnection | None = None
    ) -> None:
        """Let the emptying of segments wait for an export.

        It wants each segment that is not emptied yet.

        Args:
            name: 1 to 100 letters, digits and ``_ . -``.
            hold_hours: how long a segment waits, from the time at which retention would have
                emptied it; 1 to 87,600. The log grows meanwhile.
            conn: the connection to use. It needs the rights of an operator.

        Raises:
            InvalidJob: the name is bad or taken, or the number is out of range.
        """
        await self._run(conn, exports.create_export(name, hold_hours))

    async def drop_export(self, name: str, *, conn: AsyncConnection | None = None) -> bool:
        """Let no segment wait for an export any more; its files stay.

        Return whether there was one.
        """
        return await self._run(conn, exports.drop_export(name))

    async def exports(self, *, conn: AsyncConnection | None = None) -> list[Export]:
        """Return the exports, by name."""
        return await self._run(conn, exports.exports())

    async def next_to_export(
        self, name: str, *, conn: AsyncConnection | None = None
    ) -> SegmentToExport | None:
        """Return the oldest full segment that an export has not written and whose jobs have
        ended or continue elsewhere; None: none.

        Raises:
            InvalidJob: there is no such export.
        """
        after = None
        while True:
            found, after = await self._run(conn, exports.next_to_export(name, after))
            if after is None:
                return found

    async def jobs_to_export(
        self, segment_id: int, first: int, last: int, *, conn: AsyncConnection | None = None
    ) -> list[ExportedJob]:
        """Return the ended jobs that have a row with a number from ``first`` to ``last`` in a
        segment, an entry for each group.

        What it returns is final. A job appears once for the segment, and again in a later segment
        if it was retried there: an entry for the same job and group is the same.

        Args:
            segment_id: of ``next_to_export``.
            first: the first number.
            last: the last number, at most 9,999 more.
            conn: the connection to use.

        Raises:
            InvalidJob: the numbers are too many.
        """
        return await self._run(conn, exports.jobs_to_export(segment_id, first, last))

    async def find_to_export(
        self,
        which: JobFilter | None = None,
        *,
        state: JobState | str | None = None,
        before: int | None = None,
        conn: AsyncConnection | None = None,
    ) -> JobsToExport:
        """Find jobs of the log, ended ones too, with how their attempts ended: one page.

        Args:
            which: the jobs; None for all.
            state: only jobs in this state in a consumer group; slow for a rare state.
            before: ``next`` of the previous page.
            conn: the connection to use.

        Raises:
            InvalidJob: a condition is refused.
        """
        return await self._run(conn, exports.find_jobs(which, state, before))

    async def mark_exported(
        self,
        name: str,
        segment_id: int,
        jobs: int,
        file: str,
        *,
        conn: AsyncConnection | None = None,
    ) -> bool:
        """Record that an export has written a segment and that the file is safe: retention may
        empty the segment once this commits.

        Args:
            name: of the export.
            segment_id: of ``next_to_export``.
            jobs: the number of entries that were written.
            file: where they are, at most 1,000 characters.
            conn: the connection to use.

        Returns:
            False if the segment was emptied meanwhile: what was read may be incomplete, and nothing
                is recorded.

        Raises:
            InvalidJob: there is no such export.
        """
        return await self._run(conn, exports.mark_exported(name, segment_id, jobs, file))

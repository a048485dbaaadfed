"""The part of the asynchronous client for looking back: where a job is, searches, replays."""

from __future__ import annotations

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.model import JobState
from forebay.model.archive import FoundJobs, Whereabouts
from forebay.model.change import JobFilter
from forebay.ops import archive, where


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

    async def search_jobs(
        self,
        which: JobFilter | None = None,
        *,
        state: JobState | str | None = None,
        contains: str | None = None,
        limit: int = 50,
        before: int | None = None,
        budget: int = archive.BUDGET,
        conn: AsyncConnection | None = None,
    ) -> FoundJobs:
        """Find jobs, ended ones too, until retention removes them: one page, the newest first.

        A call reads a bounded number of rows, and may find nothing although older jobs match: call it with ``before=page.next`` until
        that is None. Conditions on kind, tag, correlation id, keys and times skip most of the log.

        Args:
            which: only jobs that match this filter; without state. Default: all.
            state: only jobs in this state in a consumer group. A call asks for the states of 1,000 jobs at most.
            contains: only jobs whose arguments, or an error, contain this text, in upper or lower case.
            limit: maximum number of jobs, 1 to 1000.
            before: ``next`` of the previous page.
            budget: the number of rows to read, 1,000 to 10,000,000, about a million in a second.
            conn: the connection to use. It needs the rights of an operator or reader.

        Raises:
            InvalidJob: a condition is refused.
        """
        operation = archive.search(
            which=which, state=state, contains=contains, limit=limit, before=before, budget=budget
        )
        return await self._run(conn, operation)

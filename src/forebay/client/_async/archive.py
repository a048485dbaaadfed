"""The part of the asynchronous client for looking back: where a job is, searches, replays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Unpack

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.errors import ForebayError
from forebay.model import JobState
from forebay.model.archive import Family, FoundJobs, JobAt, Replay, ReplayPlan, Whereabouts
from forebay.model.change import JobFilter
from forebay.ops import archive
from forebay.watch import where


class AsyncArchive(AsyncClientBase):
    """Find jobs, ended ones too, and see what became of them."""

    async def where(
        self, what: int | str, *, as_key: bool = False, conn: AsyncConnection | None = None
    ) -> Whereabouts:
        """Return where a job is: its attempts and errors, what it waits for, and what happens next.

        Several jobs can have one correlation id or key: all are listed, the newest 20, and the
        newest unfinished one is described.

        Args:
            what: the id of a job; or a correlation id, an ordering key, a limit key or a unique
                key.
            as_key: whether a number is looked for as a key only, also if a job has this id.
            conn: the connection to use. It needs the rights of an operator or reader.

        Raises:
            InvalidJob: ``what`` is empty or too long.
        """
        return await self._run(conn, where.where(what, as_key=as_key))

    async def family(
        self, job_id: int, *, most: int = 20, conn: AsyncConnection | None = None
    ) -> Family:
        """Return the job whose handler enqueued a job, and the newest jobs that it has enqueued.

        A follow-up has the job that it follows as its parent, a job that is gathered the one that
        waits for it. What a handler enqueues by SQL has none, nor what a batch handler enqueues.
        The search for children is bounded: ``is_complete`` says whether it saw all.

        Args:
            job_id: the job.
            most: maximum number of children, 1 to 100.
            conn: the connection to use. It needs the rights of an operator or reader.

        Raises:
            InvalidJob: ``most`` is out of range.
        """
        return await self._run(conn, archive.family(job_id, most))

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

        A call reads a bounded number of rows, and may find nothing although older jobs match: call
        it with ``before=page.next`` until that is None. Conditions on kind, tag, correlation id,
        subject, keys and times skip most of the log.

        Args:
            which: only jobs that match this filter; without state. Default: all.
            state: only jobs in this state in a consumer group. A call asks for the states of 1,000
                jobs at most.
            contains: only jobs whose arguments, or an error, contain this text, in upper or lower
                case.
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

    async def plan_replay(
        self,
        which: JobFilter,
        *,
        conn: AsyncConnection | None = None,
        **options: Unpack[archive.ReplayOptions],
    ) -> ReplayPlan:
        """Return what ``replay_jobs`` would enqueue, and its token; enqueue nothing.

        Raises:
            InvalidJob: the filter or an option is refused.
        """
        checked = archive.replay_options(options)
        return await self._run(conn, archive.plan_replay(which, checked))

    async def replay_jobs(
        self,
        which: JobFilter,
        *,
        token: str | None = None,
        progress: Callable[[int, int], object] | None = None,
        **options: Unpack[archive.ReplayOptions],
    ) -> Replay:
        """Enqueue jobs again, oldest first, in steps, each a separate transaction.

        The new jobs have the queue, arguments, priority, tag, correlation id, headers, ordering and
        limit key of the old ones, new attempts and a new expiry, and no unique key. Their header
        ``forebay-replayed-from`` is the id of the old job. Jobs that wait or run match, too: bound
        the filter by ``enqueued_before``, or name a state. After an error, or if the program was
        killed, the jobs of earlier steps are enqueued: call again with the same token, or
        ``continue_replay``. A new call without a token enqueues them again.

        Args:
            which: the jobs; without state.
            token: of ``plan_replay``: copy exactly the jobs that it counted. Repeated calls with it
                mean one replay.
            progress: called after each step with the number of the replay and the jobs so far.
            options: ``group``: only this consumer group of their queue gets the new jobs.
                ``state``: only jobs in this state in a consumer group; about 2,000 jobs a second,
                dead ones from their dead letters. ``unfinished_at``: only jobs that had been
                enqueued and had not ended at this time; about 2,000 jobs a second. ``died_after``
                and ``died_before``, with the state ``"dead"``: only jobs that died then.

        Raises:
            InvalidJob: the filter or an option is refused.
            GroupNotFound: a queue does not have the group; jobs of earlier steps are enqueued.
            JobsChanged: other jobs match than those of the token; none was enqueued.
        """
        checked = archive.replay_options(options)
        return await self._replay(archive.ReplaySteps(which, checked, token), progress)

    async def continue_replay(
        self, replay_id: int, *, progress: Callable[[int, int], object] | None = None
    ) -> Replay:
        """Finish a replay that was interrupted; a replay that is over stays as it is.

        See ``replay_jobs``.

        Raises:
            InvalidJob: there is no such replay; one that is over is forgotten after 60 days.
        """
        return await self._replay(archive.ReplaySteps(None, {}, replay_id=replay_id), progress)

    async def _replay(
        self, steps: archive.ReplaySteps, progress: Callable[[int, int], object] | None
    ) -> Replay:
        try:
            for operation in steps.operations():
                jobs = await self._run(None, operation)
                if progress is not None:
                    progress(steps.result.replay_id, jobs)
        except ForebayError as error:
            if steps.jobs:
                error.hint = (
                    f"{error.hint or ''} {steps.jobs} jobs are enqueued; continue replay "
                    f"{steps.replay_id}."
                ).strip()
            raise
        return steps.result

    async def jobs_at(
        self,
        at: datetime,
        *,
        queue: str | None = None,
        limit: int = 100,
        conn: AsyncConnection | None = None,
    ) -> list[JobAt]:
        """Return which jobs were ready or running at a moment of the past, one entry for each
        group.

        Jobs that waited for a key or a limit, and scheduled and retrying jobs that have started
        since, are not among them.

        Args:
            at: the moment, with a time zone.
            queue: only of this queue.
            limit: maximum number of entries of each state and lane, 1 to 10,000.
            conn: the connection to use. It needs the rights of an operator or reader.

        Raises:
            InvalidJob: the moment is not in the past.
        """
        return await self._run(conn, archive.jobs_at(at, queue, limit))

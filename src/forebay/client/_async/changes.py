"""The part of the asynchronous client for acts on many jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.errors import ForebayError, InvalidJob
from forebay.model import checks
from forebay.model.change import ChangeAct, ChangePlan, ChangeResult, JobFilter
from forebay.model.groups import DroppedQueue
from forebay.ops import change, queues
from forebay.ops.enqueue import database_clock


class AsyncChanges(AsyncClientBase):
    """Cancel, purge, truncate, retry, reschedule and reprioritise the jobs that match a filter.

    The methods work in steps, each a separate transaction. After an error the jobs of earlier steps
    are changed; call the method again to finish. ``progress`` is called after each step with the
    number of jobs so far.
    """

    async def plan_change(
        self,
        act: ChangeAct,
        which: JobFilter,
        *,
        run_at: datetime | None = None,
        priority: int | None = None,
        now: bool = False,
        conn: AsyncConnection | None = None,
    ) -> ChangePlan:
        """Return what an act would do, and its token; change nothing. It reads every waiting job.

        Args:
            act: cancel, purge, truncate, retry, reschedule or reprioritise.
            which: the jobs.
            run_at: the time, for ``"reschedule"``.
            priority: the priority, for ``"reprioritise"``.
            now: as for the act, for ``"cancel"`` and ``"purge"``.
            conn: the connection to use.

        Raises:
            InvalidJob: the filter or an option is refused.
        """
        return await self._run(
            conn,
            change.plan(change.change(act, which, run_at=run_at, priority=priority, now=now)),
        )

    async def cancel_matching(
        self,
        which: JobFilter,
        *,
        token: str | None = None,
        now: bool = False,
        progress: Callable[[int], object] | None = None,
        conn: AsyncConnection | None = None,
    ) -> ChangeResult:
        """Cancel the jobs that match; a running handler is requested to stop.

        Args:
            which: the jobs.
            token: of ``plan_change``: take only jobs that it counted.
            now: flows that wait end without running again; else they continue, and may compensate.
            progress: called after each step.
            conn: the connection whose transaction to use, for all jobs at once.

        Raises:
            InvalidJob: the filter is refused.
            JobsChanged: the token is that of another act; none was cancelled.
        """
        return await self._change(change.change("cancel", which, now=now), token, progress, conn)

    async def purge_queue(
        self,
        queue: str,
        *,
        token: str | None = None,
        now: bool = False,
        progress: Callable[[int], object] | None = None,
        conn: AsyncConnection | None = None,
    ) -> ChangeResult:
        """Cancel every unfinished job of a queue. See ``cancel_matching``, also for ``now``."""
        what = change.change("purge", JobFilter(queue=queue), now=now)
        return await self._change(what, token, progress, conn)

    async def truncate_queue(
        self,
        queue: str,
        *,
        token: str | None = None,
        progress: Callable[[int], object] | None = None,
        conn: AsyncConnection | None = None,
    ) -> ChangeResult:
        """Cancel the jobs of a queue that wait at this call: ready, scheduled and retrying ones.

        Running jobs finish, and may run again. Jobs that are enqueued later stay, also those that
        commit between two steps. A job that a worker starts before its step runs. An interrupted
        call leaves the rest waiting; a further call also takes what was enqueued in between.

        Args:
            queue: the queue.
            token: of ``plan_change("truncate", ...)``: take only jobs that it counted.
            progress: called after each step.
            conn: the connection whose transaction to use, for all jobs at once.

        Raises:
            JobsChanged: the token is that of another act; none was cancelled.
        """
        what = change.change("truncate", JobFilter(queue=queue))
        return await self._change(what, token, progress, conn)

    async def drop_queue(
        self,
        queue: str,
        *,
        token: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        conn: AsyncConnection | None = None,
    ) -> DroppedQueue:
        """Drop a queue: cancel the jobs that wait, close its consumer groups and remove its
        settings, in one transaction.

        Dead letters and results stay. The workers' maintenance does the rest of closing the groups.
        A job that is enqueued later makes the queue anew. For a queue with millions of waiting
        jobs, call ``truncate_queue`` before, which works in steps.

        Args:
            queue: the queue.
            token: of ``plan_change("truncate", ...)``: refuse if other jobs wait now.
            force: drop it although workers serve it. Their running jobs finish.
            dry_run: change nothing.
            conn: the connection whose transaction to use.

        Raises:
            GroupNotFound: there is no such queue.
            GroupInUse: workers serve the queue; nothing was changed.
            JobsChanged: other jobs wait than those of the token; nothing was changed.
        """
        operation = queues.drop_queue(queue, token=token, force=force, dry_run=dry_run)
        return await self._run(conn, operation)

    async def redact_queue(
        self,
        queue: str,
        *,
        before: datetime | None = None,
        dead: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Erase what jobs of a queue that have ended have brought with them.

        Return the number of rows that were erased.

        Erased are arguments and headers, messages and tracebacks of errors, results, and notes of
        progress. Ids, kind, tag, correlation id, keys, times and states stay. Jobs that have not
        ended in every consumer group keep everything. After an error the rows of earlier steps are
        erased; call the method again to finish. What the database cannot erase is described in the
        guide to queues: WAL, backups, logical replicas, and old versions of rows until vacuum.

        Args:
            queue: the queue.
            before: only of jobs that were enqueued before this time, with a time zone. Default:
                now.
            dead: delete the dead letters that died before, too. They cannot be redriven then.
            progress: called after each step with the number of rows so far.

        Raises:
            InvalidJob: the name or the time is refused.
        """
        steps = queues.Redaction(queue, before, dead)
        for operation in steps.operations():
            redacted = await self._run(None, operation)
            if progress is not None:
                progress(redacted)
        return steps.redacted

    async def retry_matching(
        self,
        which: JobFilter,
        *,
        token: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> ChangeResult:
        """Make scheduled and retrying jobs ready now. They keep their attempts, errors and expiry.

        Running jobs and jobs that are ready already stay as they are.

        Raises:
            InvalidJob: the filter is refused.
            JobsChanged: the token is that of another act; none was changed.
        """
        return await self._change(change.change("retry", which), token, progress, None)

    async def reschedule_matching(
        self,
        which: JobFilter,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        token: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> ChangeResult:
        """Let waiting jobs start at another time.

        Running jobs stay as they are, and so do jobs that would expire before (``"expires
        before"``) and ready jobs with an ordering key (``"ordering key"``), which would lose their
        place.

        Args:
            which: the jobs.
            run_at: the earliest start.
            delay: instead of ``run_at``: this time from now, by the clock of the database; in
                seconds or as a timedelta.
            token: of ``plan_change``: take only jobs that it counted.
            progress: called after each step.

        Raises:
            InvalidJob: the filter or the time is refused.
            JobsChanged: the token is that of another act; none was changed.
        """
        if (run_at is None) == (delay is None):
            raise InvalidJob("run_at", "or delay is needed: give exactly one of them")
        if delay is not None:
            seconds = checks.checked_seconds(delay, "delay")
            run_at = await self._run(None, database_clock()) + timedelta(seconds=seconds)
        what = change.change("reschedule", which, run_at=run_at)
        return await self._change(what, token, progress, None)

    async def reprioritise_matching(
        self,
        which: JobFilter,
        priority: int,
        *,
        token: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> ChangeResult:
        """Give waiting jobs another priority. A lower number runs first.

        Running jobs stay as they are, and so do jobs with an ordering key (``"ordering key"``).

        Raises:
            InvalidJob: the filter or the priority is refused.
            JobsChanged: the token is that of another act; none was changed.
        """
        what = change.change("reprioritise", which, priority=priority)
        return await self._change(what, token, progress, None)

    async def _change(
        self,
        what: change.Change,
        token: str | None,
        progress: Callable[[int], object] | None,
        conn: AsyncConnection | None,
    ) -> ChangeResult:
        steps = change.Steps(what, token, at_once=conn is not None)
        taken = 0
        try:
            for operation in steps.operations():
                taken = await self._run(conn, operation)
                if progress is not None:
                    progress(taken)
        except ForebayError as error:
            if taken:
                error.hint = (
                    f"{error.hint or ''} {taken} jobs are changed; call it again to finish.".strip()
                )
            raise
        return steps.result

# Generated from src/forebay/client/_async.py by tools/async_to_sync.py. Do not edit.
"""The synchronous client."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from forebay.arguments.json_guard import encode_args
from forebay.client._address import address_of
from forebay.db.drivers import SyncConnection, run
from forebay.db.own import await_own, run_own
from forebay.errors import ForebayError, InvalidJob, ResultTimeout
from forebay.model import JobId, JobOptionChanges, JobOptions, JobState, checks
from forebay.model.backfill import BackfillPlan, BackfillProgress, Rows
from forebay.model.limits import UNSET, Limits, QueueLimits, Unset
from forebay.model.status import DeadLetter, Depth, JobHistory, JobStatus
from forebay.ops import backfill as backfills
from forebay.ops import dead, enqueue, jobs, queues, results
from forebay.ops.operation import Operation

T = TypeVar("T")


class Client:
    """Enqueue jobs by name, inspect them, and manage queues and dead letters.

    Every method can take a connection of the application. It then works in the transaction of that connection and
    never commits, rolls back or configures it. Without a connection, each call opens one and commits.

    Args:
        dsn: the database for calls without a connection: a libpq string or URL, or a function that
            returns one on first use. Default: FOREBAY_DATABASE_URL, DATABASE_URL or PG*, looked up on
            first use.

    Every call may raise:
        ConfigError: neither a connection nor an address is given.
        WrongConnection: the connection is not a synchronous connection.
        SchemaError: the database has no schema, or an old one.
        DatabaseUnavailable: the connection that the call opened failed or was lost.
    """

    def __init__(self, dsn: str | Callable[[], str] | None = None) -> None:
        self._dsn = dsn

    # --- producing ---

    def enqueue(
        self,
        conn: SyncConnection,
        kind: str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> JobId:
        """Enqueue a job by the name of its kind, in the connection's transaction; return its id.

        The arguments must have a JSON form. They are not checked against the signature of the handler, which is
        unknown here.

        Args:
            conn: the connection, or one of its cursors.
            kind: the kind of the job.
            args: the handler's arguments by name.
            options: see ``JobOptions``.

        Raises:
            InvalidJob: an argument or option is refused.
            PayloadTooLarge: the arguments are too large.
            PayloadTooDeep: the arguments are nested too deeply.
            KeyBusy: another open transaction is taking the unique key, with ``on_busy="raise"``.
            PayloadDiffers: the idempotency key belongs to another request.
        """
        return run(conn, enqueue.enqueue(_call(kind, args, options)))

    def enqueue_now(
        self,
        kind: str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> JobId:
        """Enqueue and commit a job on a new connection; return its id.

        The job is not atomic with any other write: use ``enqueue`` for that. After
        ``DatabaseUnavailable`` the job may or may not exist.
        """
        return self._run(None, enqueue.enqueue(_call(kind, args, options)))

    def cancel(
        self, job_id: int, *, group: str | None = None, conn: SyncConnection | None = None
    ) -> str:
        """Request the cancellation of a job; return ``"requested"``.

        The job is cancelled at its next claim or settlement. A job that finishes before stays done. A running
        handler is requested to stop.

        Args:
            job_id: the job.
            group: only in this consumer group of its queue. Default: all groups.
            conn: the connection whose transaction to use.

        Raises:
            JobNotFound: no job has this id.
            GroupNotFound: the queue does not have this group.
        """
        return self._run(conn, jobs.cancel(job_id, group))

    # --- backfilling ---

    def backfill(
        self,
        kind: str,
        rows: Rows | str,
        *,
        args: Mapping[str, Any] | None = None,
        expires_in: float | timedelta | None = None,
        token: str | None = None,
        chunk: int | None = None,
        key: str | None = None,
        progress: Callable[[BackfillProgress], object] | None = None,
        conn: SyncConnection | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> int:
        """Enqueue a job for each row of a table or query inside the database; return the number of jobs.

        By default their priority is 1000, after all other jobs, and their tag is ``backfill``.

        Args:
            kind: the kind of the jobs.
            rows: the rows; a text is a query whose columns are the handler's arguments.
            args: arguments that all jobs share; those of a row take precedence.
            expires_in: jobs expire this time after they were due, by the database's clock.
            token: the token of ``plan_backfill``: enqueue exactly the jobs that it counted, or none.
            chunk: number of jobs per transaction, each committed. Default: all in one.
            key: the column that chunks are formed by. Default: the ``id_column`` of ``Rows``.
            progress: called after each chunk.
            conn: the connection whose transaction to use; not with ``chunk``.
            options: options of all jobs; see ``JobOptions``.

        Raises:
            InvalidJob: an argument or option is refused.
            BackfillChanged: the jobs differ from those of the token.
            QueueFull: as many jobs wait as the queue's ``max_waiting`` allows.
        """
        what = backfills.backfill_of(kind, rows, args=args, expires_in=expires_in, options=options)
        if chunk is None:
            return self._run(conn, backfills.backfill(what, token))
        if conn is not None:
            raise InvalidJob("chunk", "contradicts conn: each chunk is a separate transaction")
        backfill_id = self._run(None, backfills.begin(what, key, chunk, token))
        return self.resume_backfill(backfill_id, progress=progress)

    def plan_backfill(
        self,
        kind: str,
        rows: Rows | str,
        *,
        args: Mapping[str, Any] | None = None,
        expires_in: float | timedelta | None = None,
        conn: SyncConnection | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> BackfillPlan:
        """Return what ``backfill`` would enqueue with the same arguments; enqueue nothing.

        It reads all the rows and all waiting jobs of the queue.
        """
        what = backfills.backfill_of(kind, rows, args=args, expires_in=expires_in, options=options)
        return self._run(conn, backfills.plan(what))

    def resume_backfill(
        self, backfill_id: int, *, progress: Callable[[BackfillProgress], object] | None = None
    ) -> int:
        """Continue a backfill in chunks where it stopped; return the number of jobs that this call enqueued.

        No job is enqueued twice and none is skipped: the jobs of a chunk and the position after it are written in one
        transaction. A completed backfill enqueues nothing.

        Args:
            backfill_id: its number, from ``progress`` or from the hint of the error that stopped it.
            progress: called after each chunk.

        Raises:
            BackfillNotFound: no backfill has this number, or another role began it.
            BackfillChanged: it was begun with a token, and its next chunk now contains other jobs.
        """
        begun = time.monotonic()
        count = 0
        try:
            while step := self._run(None, backfills.next_chunk(backfill_id)):
                count += step.enqueued
                if progress is not None:
                    progress(replace(step, seconds=time.monotonic() - begun))
        except ForebayError as error:
            error.hint = f"{error.hint or ''} Backfill {backfill_id} can be resumed.".strip()
            raise
        return count

    # --- inspecting ---

    def job(self, job_id: int, *, conn: SyncConnection | None = None) -> list[JobStatus]:
        """Return the status of a job, one entry for each consumer group of its queue.

        Raises:
            JobNotFound: the job does not exist: it is past retention, or not committed.
        """
        return self._run(conn, jobs.job(job_id))

    def job_history(self, job_id: int, *, conn: SyncConnection | None = None) -> list[JobHistory]:
        """Return the failed attempts, progress and kept result of a job, one entry for each group with any of them."""
        return self._run(conn, results.history(job_id))

    def result(
        self,
        job_id: int,
        *,
        group: str = "default",
        timeout: float | None = None,
        as_type: Any = Any,
    ) -> Any:
        """Wait until a job has ended and return what its handler returned; see ``JobHandle.result``.

        The call opens its own connection, since a result is visible only after its commit.
        """
        self._dsn = address_of(self._dsn)
        answer = await_own(
            self._dsn,
            lambda seconds: results.result(job_id, group, wait_seconds=seconds),
            lambda answer: answer.is_final,
            channel=results.CHANNEL,
            key=str(job_id),
            seconds=timeout,
        )
        if not answer.is_final:
            raise ResultTimeout(job_id, state=answer.state, seconds=timeout or 0.0)
        return answer.read(as_type)

    def jobs(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        state: JobState | str | None = None,
        limit: int = 50,
        before: int | None = None,
        conn: SyncConnection | None = None,
    ) -> list[JobStatus]:
        """Return the newest jobs, newest first; a retry counts as new.

        The search is bounded: for a rare state, older jobs may not be found.

        Args:
            queue: only this queue.
            kind: only this kind.
            state: only this state.
            limit: maximum number of entries, 1 to 1000; the entries of one job stay together.
            before: the ``place`` of the last entry of the previous page.
            conn: the connection to use.
        """
        return self._run(
            conn, jobs.jobs(queue=queue, kind=kind, state=state, limit=limit, before=before)
        )

    def depth(self, queue: str | None = None, *, conn: SyncConnection | None = None) -> list[Depth]:
        """Return the numbers of waiting and running jobs by queue, priority and group.

        It reads every waiting job: seconds for millions of jobs.
        """
        return self._run(conn, jobs.depth(queue))

    # --- dead letters ---

    def dead_letters(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        reason: dead.Reason | None = None,
        tag: str | None = None,
        group: str | None = None,
        job_id: int | None = None,
        redriven: bool | None = None,
        limit: int = 50,
        before: int | None = None,
        conn: SyncConnection | None = None,
    ) -> list[DeadLetter]:
        """Return dead letters, newest first.

        Args:
            queue: only this queue.
            kind: only this kind.
            reason: exhausted, permanent, expired or worker lost.
            tag: only this tag.
            group: only this consumer group.
            job_id: only this job.
            redriven: True for only redriven dead letters, False for only the others.
            limit: maximum number of entries, 1 to 1000.
            before: the ``dead_id`` of the last entry of the previous page.
            conn: the connection to use.
        """
        return self._run(
            conn,
            dead.dead_letters(
                queue=queue,
                kind=kind,
                reason=reason,
                tag=tag,
                group=group,
                job_id=job_id,
                redriven=redriven,
                limit=limit,
                before=before,
            ),
        )

    def dead_letter(self, dead_id: int, *, conn: SyncConnection | None = None) -> DeadLetter:
        """Return one dead letter with every error of its job.

        Raises:
            DeadLetterNotFound: no dead letter has this id; it may have been purged.
        """
        return self._run(conn, dead.dead_letter(dead_id))

    def redrive(self, dead_id: int, *, conn: SyncConnection | None = None) -> int:
        """Enqueue a new job from a dead letter, for its group; return the new job's id.

        The new job keeps arguments, priority, tag, correlation id and headers; attempts and expiry start
        again. Job and dead letter refer to each other.

        Raises:
            DeadLetterNotFound: no dead letter has this id.
            AlreadyRedriven: the dead letter was redriven before.
        """
        return self._run(conn, dead.redrive(dead_id))

    def redrive_matching(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        reason: dead.Reason | None = None,
        tag: str | None = None,
        group: str | None = None,
        died_after: datetime | None = None,
        died_before: datetime | None = None,
        limit: int | None = None,
        conn: SyncConnection | None = None,
    ) -> int:
        """Redrive all matching dead letters in the original order of their jobs; return their number.

        Args:
            queue: only this queue.
            kind: only this kind.
            reason: exhausted, permanent, expired or worker lost.
            tag: only this tag.
            group: only this consumer group.
            died_after: only those that died since this instant.
            died_before: only those that died before this instant.
            limit: maximum number. Default: all.
            conn: the connection whose transaction to use.
        """
        return self._run(
            conn,
            dead.redrive_matching(
                queue=queue,
                kind=kind,
                reason=reason,
                tag=tag,
                group=group,
                died_after=died_after,
                died_before=died_before,
                limit=limit,
            ),
        )

    def purge_dead(
        self,
        age: float | timedelta,
        *,
        queue: str | None = None,
        conn: SyncConnection | None = None,
    ) -> int:
        """Delete dead letters older than ``age``; return their number.

        Args:
            age: in seconds or as a timedelta.
            queue: only this queue.
            conn: the connection whose transaction to use.
        """
        return self._run(conn, dead.purge_dead(age, queue))

    # --- queues ---

    def open_group(
        self,
        queue: str,
        name: str = "default",
        *,
        start: queues.Start | None = None,
        conn: SyncConnection | None = None,
    ) -> int:
        """Open a consumer group of a queue; return its id. The call is safe to repeat.

        Args:
            queue: the queue.
            name: the name of the group.
            start: ``"beginning"`` for every job still in the log, ``"now"`` for future jobs only.
                Default: the beginning for a queue's first group, now for any other.
            conn: the connection whose transaction to use.
        """
        return self._run(conn, queues.open_group(queue, name, start))

    def pause_queue(
        self, queue: str, *, group: str | None = None, conn: SyncConnection | None = None
    ) -> int:
        """Stop claiming jobs of a queue; return the number of groups that changed.

        Running jobs finish; enqueueing continues.

        Raises:
            GroupNotFound: the queue does not have this group.
        """
        return self._run(conn, queues.pause_queue(queue, group))

    def resume_queue(
        self, queue: str, *, group: str | None = None, conn: SyncConnection | None = None
    ) -> int:
        """Claim jobs of a paused queue again; return the number of groups that changed.

        Raises:
            GroupNotFound: the queue or group does not exist.
        """
        return self._run(conn, queues.resume_queue(queue, group))

    def shard_queue(self, queue: str, lanes: int, *, conn: SyncConnection | None = None) -> int:
        """Trade ordering for parallel claims: split a queue into shards; return the previous number of shards.

        New jobs of each priority are distributed over the shards. Use it for many worker processes that claim few
        jobs at a time; a process that claims for many slots gains nothing.

        Args:
            queue: the queue.
            lanes: number of shards, 1 to 64, about the number of processes that claim concurrently. 1 restores the
                order for jobs enqueued from then on.
            conn: the connection whose transaction to use.

        Raises:
            InvalidArguments: a bad name or number.
        """
        return self._run(conn, queues.shard_queue(queue, lanes))

    def limit_queue(
        self,
        queue: str,
        *,
        max_waiting: int | Unset | None = UNSET,
        rate: float | Unset | None = UNSET,
        burst: int | Unset | None = UNSET,
        concurrency: int | Unset | None = UNSET,
        key_rate: float | Unset | None = UNSET,
        key_burst: int | Unset | None = UNSET,
        key_concurrency: int | Unset | None = UNSET,
        conn: SyncConnection | None = None,
    ) -> Limits | None:
        """Set limits of a queue; return the previous limits, or None.

        Only the given limits change: a number sets a limit, None removes it. ``rate=None`` also removes ``burst``, and
        ``key_rate=None`` also removes ``key_burst``. All limits except ``max_waiting`` apply across all workers, to each
        group of the queue, from the next claim on.

        Args:
            queue: the queue.
            max_waiting: maximum number of waiting jobs, at least 1. Enqueueing more raises ``QueueFull``. Scheduled
                jobs and retries are not counted.
            rate: maximum number of starts per second: 0.000001 to 1,000,000.
            burst: maximum number of starts at once after a pause. Default: those of one second, at least 1.
            concurrency: maximum number of running jobs, 1 to 1,000,000.
            key_rate: as ``rate``, for the jobs of each limit key.
            key_burst: as ``burst``, for the jobs of each limit key.
            key_concurrency: as ``concurrency``, for the jobs of each limit key.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: the name or a number is refused; nothing was changed.
        """
        changes = {
            "max_waiting": max_waiting,
            "rate": rate,
            "burst": burst,
            "concurrency": concurrency,
            "key_rate": key_rate,
            "key_burst": key_burst,
            "key_concurrency": key_concurrency,
        }
        return self._run(conn, queues.limit_queue(queue, changes))

    def limits(
        self, queue: str | None = None, *, conn: SyncConnection | None = None
    ) -> list[QueueLimits]:
        """Return the limits and running jobs, by group, of all queues with limits or limit keys.

        Args:
            queue: only this queue.
            conn: the connection to use.
        """
        return self._run(conn, queues.limits(queue))

    def configure(self, name: str, value: int, *, conn: SyncConnection | None = None) -> int:
        """Change a setting of the whole database; return its previous value.

        Raises:
            InvalidJob: the setting does not exist, or the value is out of range.
        """
        return self._run(conn, queues.configure(name, value))

    def _run(self, conn: SyncConnection | None, operation: Operation[T]) -> T:
        if conn is not None:
            return run(conn, operation)
        self._dsn = address_of(self._dsn)
        return run_own(self._dsn, operation)


def _call(kind: str, args: Mapping[str, Any] | None, options: JobOptionChanges) -> enqueue.Call:
    return enqueue.Call(
        kind=checks.checked_name(kind, "kind"),
        args=encode_args({} if args is None else args),
        options=JobOptions().merged(**options),
    )


def backfill(
    kind: str,
    rows: Rows | str,
    *,
    dsn: str | Callable[[], str] | None = None,
    args: Mapping[str, Any] | None = None,
    expires_in: float | timedelta | None = None,
    token: str | None = None,
    chunk: int | None = None,
    key: str | None = None,
    progress: Callable[[BackfillProgress], object] | None = None,
    conn: SyncConnection | None = None,
    **options: Unpack[JobOptionChanges],
) -> int:
    """Enqueue a job for each row of a table or query; return the number. See ``Client.backfill``."""
    return Client(dsn).backfill(
        kind,
        rows,
        args=args,
        expires_in=expires_in,
        token=token,
        chunk=chunk,
        key=key,
        progress=progress,
        conn=conn,
        **options,
    )

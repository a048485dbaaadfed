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
    """Enqueue jobs by name, look at them, and manage queues and dead letters.

    Every method takes the caller's connection and works in its transaction, whatever its state;
    it is never committed, rolled back or configured here. Without one, each call opens a
    connection of its own and commits.

    Args:
        dsn: the database for calls without a connection: a libpq string or URL, or a function that
            returns one when it is first needed. None means FOREBAY_DATABASE_URL, DATABASE_URL or
            PG*, looked up then.

    Every call may raise:
        ConfigError: there is no connection and no address.
        WrongConnection: what was passed is not a synchronous connection.
        SchemaError: the database has no schema, or an old one.
        DatabaseUnavailable: on a connection of its own: it failed or was lost.
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

        The arguments are checked for having a JSON form, not against a signature, which only the
        process that has the handler knows.

        Args:
            conn: the connection, or a cursor of it.
            kind: which handler.
            args: the handler's arguments by name.
            options: see ``JobOptions``.

        Raises:
            InvalidJob: an argument or option is refused.
            PayloadTooLarge: the arguments are too large.
            PayloadTooDeep: the arguments are nested too deeply.
            KeyBusy: another open transaction is taking the unique key, with ``on_busy="raise"``.
            PayloadDiffers: an idempotency key belongs to another request.
        """
        return run(conn, enqueue.enqueue(_call(kind, args, options)))

    def enqueue_now(
        self,
        kind: str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> JobId:
        """Enqueue a job in a transaction of its own, committed when this returns.

        With anything written elsewhere it is not atomic: that is what ``enqueue`` is for. After
        ``DatabaseUnavailable`` the job may or may not exist.
        """
        return self._run(None, enqueue.enqueue(_call(kind, args, options)))

    def cancel(
        self, job_id: int, *, group: str | None = None, conn: SyncConnection | None = None
    ) -> str:
        """Ask for a job to be cancelled; return ``"requested"``.

        It is decided at the job's next claim or settlement, and the first writer wins: a job that
        finishes before stays done. A running handler is asked to stop.

        Args:
            job_id: the job.
            group: only for this reader of its queue; None for all.
            conn: the connection whose transaction the request belongs to.

        Raises:
            JobNotFound: no job has had this id.
            GroupNotFound: the queue has no such group.
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
        """Enqueue a job for each of many rows, without their passing through this process; return how many.

        Their priority is 1000, behind all others, and their tag ``backfill``, unless the options say otherwise.

        Args:
            kind: which handler.
            rows: which rows; a text is a query, whose columns are the handler's arguments.
            args: arguments that all jobs have; those of a row go before them.
            expires_in: jobs expire so long after they were due, by the database's clock.
            token: of ``plan_backfill``: enqueue the jobs that it counted, or nothing.
            chunk: so many jobs in a transaction, each committed at once; None for all in one.
            key: the column of the rows that chunks are made by; None for the one that ``Rows`` calls ``id_column``.
            progress: called after each chunk.
            conn: the connection whose transaction it belongs to; not with ``chunk``.
            options: of all jobs; see ``JobOptions``.

        Raises:
            InvalidJob: an argument or option is refused.
            BackfillChanged: the jobs are not those of the token.
            QueueFull: as many jobs wait as the queue's ``max_waiting`` allows.
        """
        what = backfills.backfill_of(kind, rows, args=args, expires_in=expires_in, options=options)
        if chunk is None:
            return self._run(conn, backfills.backfill(what, token))
        if conn is not None:
            raise InvalidJob("chunk", "contradicts conn: each chunk is a transaction of its own")
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
        """Return what ``backfill`` with the same arguments would enqueue, and enqueue nothing.

        It reads all the rows, and visits what waits in the queue.
        """
        what = backfills.backfill_of(kind, rows, args=args, expires_in=expires_in, options=options)
        return self._run(conn, backfills.plan(what))

    def resume_backfill(
        self, backfill_id: int, *, progress: Callable[[BackfillProgress], object] | None = None
    ) -> int:
        """Go on with a backfill in chunks where it stopped; return how many jobs this call enqueued.

        Nothing is enqueued twice, and nothing left out: a chunk's jobs and the mark behind them are one transaction. One that is
        done already enqueues nothing.

        Args:
            backfill_id: its number, of ``progress``, and in the hint of the error it stopped with.
            progress: called after each chunk.

        Raises:
            BackfillNotFound: there is none of this number, or another role began it.
            BackfillChanged: it was begun with a token, and its next chunk has other jobs now.
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

    # --- looking ---

    def job(self, job_id: int, *, conn: SyncConnection | None = None) -> list[JobStatus]:
        """Return where a job stands, one entry for each group that reads its queue.

        Raises:
            JobNotFound: there is no such job; it may be past retention, or not committed.
        """
        return self._run(conn, jobs.job(job_id))

    def job_history(self, job_id: int, *, conn: SyncConnection | None = None) -> list[JobHistory]:
        """Return a job's failed attempts, progress and kept result, an entry for each group that has any of it."""
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

        On a connection of its own: a result is seen when its commit is.
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

        The search is bounded: with a rare state, older jobs that have it may not be found.

        Args:
            queue: only of this queue.
            kind: only of this kind.
            state: only in this state.
            limit: most entries, 1 to 1000; a job with several groups is not cut apart.
            before: the ``place`` of the last entry of the page before.
            conn: the connection to look through.
        """
        return self._run(
            conn, jobs.jobs(queue=queue, kind=kind, state=state, limit=limit, before=before)
        )

    def depth(self, queue: str | None = None, *, conn: SyncConnection | None = None) -> list[Depth]:
        """Return how many jobs wait and run, by queue, priority and group.

        It visits every waiting job: seconds at millions.
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
            queue: only of this queue.
            kind: only of this kind.
            reason: exhausted, permanent, expired or worker lost.
            tag: only with this tag.
            group: only of this reader.
            job_id: only of this job.
            redriven: only those redriven already, or only those that were not.
            limit: most entries, 1 to 1000.
            before: the ``dead_id`` of the last entry of the page before.
            conn: the connection to look through.
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
        """Return one dead letter, with every error of its job.

        Raises:
            DeadLetterNotFound: there is none of this id; it may have been purged.
        """
        return self._run(conn, dead.dead_letter(dead_id))

    def redrive(self, dead_id: int, *, conn: SyncConnection | None = None) -> int:
        """Make a new job of a dead letter, for its group; return the new job's id.

        Arguments, priority, tag, correlation id and headers are kept; attempts and expiry begin
        anew. Job and dead letter name each other.

        Raises:
            DeadLetterNotFound: there is none of this id.
            AlreadyRedriven: it was redriven before.
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
        """Redrive all dead letters that fit, in the order their jobs had; return how many.

        Args:
            queue: only of this queue.
            kind: only of this kind.
            reason: exhausted, permanent, expired or worker lost.
            tag: only with this tag.
            group: only of this reader.
            died_after: dead since this instant.
            died_before: dead before this instant.
            limit: at most so many; None for all.
            conn: the connection whose transaction it belongs to.
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
        """Delete dead letters that died longer ago than ``age``; return how many.

        Args:
            age: in seconds or as a timedelta.
            queue: only of this queue.
            conn: the connection whose transaction it belongs to.
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
        """Open a group, an independent reader of a queue; return its id. Repeating it is harmless.

        Args:
            queue: which queue it reads.
            name: of the group.
            start: ``"beginning"`` for every job still in the log, ``"now"`` for those to come;
                None means the beginning for a queue's first group and now for any other.
            conn: the connection whose transaction it belongs to.
        """
        return self._run(conn, queues.open_group(queue, name, start))

    def pause_queue(
        self, queue: str, *, group: str | None = None, conn: SyncConnection | None = None
    ) -> int:
        """Let nothing more of a queue be claimed; return how many groups changed.

        What runs goes on, and enqueuing too.

        Raises:
            GroupNotFound: the queue has no such group.
        """
        return self._run(conn, queues.pause_queue(queue, group))

    def resume_queue(
        self, queue: str, *, group: str | None = None, conn: SyncConnection | None = None
    ) -> int:
        """Let a paused queue be claimed again; return how many groups changed.

        Raises:
            GroupNotFound: there is no such queue or group.
        """
        return self._run(conn, queues.resume_queue(queue, group))

    def shard_queue(self, queue: str, lanes: int, *, conn: SyncConnection | None = None) -> int:
        """Give up the order of a queue's jobs, so that claims need not take turns; return the number before.

        New jobs are spread over so many lanes of each priority. For many worker processes that claim few
        jobs at a time; one that claims for many slots gains nothing by it.

        Args:
            queue: which queue.
            lanes: 1 to 64, about as many as processes claim at once; 1 keeps the order again, for jobs
                enqueued from then on.
            conn: the connection whose transaction it belongs to.

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
        """Set limits of a queue; return the limits before, None for none.

        Only what is given changes: a number sets a limit, None removes it. ``rate=None`` also removes ``burst``, and
        ``key_rate=None`` also ``key_burst``. Except for ``max_waiting`` the limits hold over all workers, for each
        group of the queue, from the next claim on.

        Args:
            queue: the queue.
            max_waiting: how many jobs may wait, at least 1. Enqueuing more raises ``QueueFull``. Jobs that wait for a
                time, and retries, are not counted.
            rate: how many start per second, also below 1: 0.000001 to 1,000,000.
            burst: how many may start at once after a rest; without it, what comes in a second, at least 1.
            concurrency: how many jobs run at once, 1 to 1,000,000.
            key_rate: as ``rate``, for the jobs of each limit key.
            key_burst: as ``burst``, for the jobs of each limit key.
            key_concurrency: as ``concurrency``, for the jobs of each limit key.
            conn: the connection whose transaction it belongs to.

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
        """Return the limits of the queues that have any or whose jobs have limit keys, and what runs of them, by group.

        Args:
            queue: only this one.
            conn: the connection to ask on.
        """
        return self._run(conn, queues.limits(queue))

    def configure(self, name: str, value: int, *, conn: SyncConnection | None = None) -> int:
        """Change a setting of the whole database; return its value before.

        Raises:
            InvalidJob: there is no such setting, or the value is out of range.
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
    """Enqueue a job for each of many rows; return how many. As ``Client(dsn).backfill``, which says more."""
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

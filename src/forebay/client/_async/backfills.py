"""The part of the asynchronous client for backfills."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Unpack

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.errors import ForebayError, InvalidJob
from forebay.model import JobOptionChanges
from forebay.model.backfill import BackfillPlan, BackfillProgress, Rows
from forebay.model.subjects import kind_of_version
from forebay.ops import backfill as backfills


class AsyncBackfills(AsyncClientBase):
    """Enqueue a job for each row of a table or query."""

    async def backfill(
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
        begun: Callable[[int], object] | None = None,
        conn: AsyncConnection | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> int:
        """Enqueue a job for each row of a table or query inside the database.

        Return the number of jobs.

        By default their priority is 1000, after all other jobs, and their tag is ``backfill``.

        Args:
            kind: the kind of the jobs.
            rows: the rows; a text is a query whose columns are the handler's arguments.
            args: arguments that all jobs share; those of a row take precedence.
            expires_in: jobs expire this time after they were due, by the database's clock.
            token: the token of ``plan_backfill``: enqueue exactly the jobs that it counted, or
                none.
            chunk: number of jobs per transaction, each committed. Default: all in one.
            key: the column that chunks are formed by. Default: the ``id_column`` of ``Rows``.
            progress: called after each chunk.
            begun: called before the first chunk with the number that resumes the backfill; not
                without ``chunk``.
            conn: the connection whose transaction to use; not with ``chunk``.
            options: options of all jobs; see ``JobOptions``.

        Raises:
            InvalidJob: an argument or option is refused.
            BackfillChanged: the jobs differ from those of the token.
            QueueFull: as many jobs wait as the queue's ``max_waiting`` allows.
        """
        what = backfills.backfill_of(
            kind, rows, args=args, expires_in=expires_in, options=self._in_queue(kind, options)
        )
        return await self._backfill(
            what, token=token, chunk=chunk, key=key, progress=progress, begun=begun, conn=conn
        )

    async def backfill_subjects(
        self,
        kind: str,
        rows: Rows | str,
        *,
        args: Mapping[str, Any] | None = None,
        version: int | None = None,
        token: str | None = None,
        chunk: int | None = None,
        key: str | None = None,
        progress: Callable[[BackfillProgress], object] | None = None,
        begun: Callable[[int], object] | None = None,
        conn: AsyncConnection | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> int:
        """Create a subject for each row of a table or query inside the database.

        Return the number of rows. Subjects that exist, in any state, are left as they are; so a
        repeated call makes nothing twice.

        Args:
            kind: the kind of their runs.
            rows: the rows. The column ``subject`` is the name of the subject, and the other columns
                are the handler's arguments. Beside a column ``args`` with all arguments, the others
                are options of each subject.
            args: see ``backfill``.
            version: of the arguments, 0 to 9999; None: 0.
            token: the token of ``plan_subjects``: create exactly the counted subjects, or none.
            chunk: number of subjects per transaction, each committed. Default: all in one.
            key: see ``backfill``.
            progress: see ``backfill``.
            begun: see ``backfill``.
            conn: see ``backfill``.
            options: options of all runs, of ``JobOptions``, as in ``push_subjects``.

        Raises:
            InvalidJob: an argument or option is refused, or a row has no name.
            BackfillChanged: the subjects differ from those of the token.
        """
        what = self._subjects_of(kind, rows, args, version, options)
        return await self._backfill(
            what, token=token, chunk=chunk, key=key, progress=progress, begun=begun, conn=conn
        )

    async def plan_subjects(
        self,
        kind: str,
        rows: Rows | str,
        *,
        args: Mapping[str, Any] | None = None,
        version: int | None = None,
        conn: AsyncConnection | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> BackfillPlan:
        """Return what ``backfill_subjects`` would do with the same arguments; create nothing.

        ``jobs`` is the number of rows, those whose subject exists included.
        """
        what = self._subjects_of(kind, rows, args, version, options)
        return await self._run(conn, backfills.plan(what))

    def _subjects_of(
        self,
        kind: str,
        rows: Rows | str,
        args: Mapping[str, Any] | None,
        version: int | None,
        options: JobOptionChanges,
    ) -> backfills.Backfill:
        declared = kind_of_version(kind, version or 0)
        given = self._in_queue(declared, self._in_queue(kind, options))
        return backfills.backfill_of(
            kind, rows, args=args, subjects=True, version=version, options=given
        )

    async def _backfill(
        self,
        what: backfills.Backfill,
        *,
        token: str | None,
        chunk: int | None,
        key: str | None,
        progress: Callable[[BackfillProgress], object] | None,
        begun: Callable[[int], object] | None,
        conn: AsyncConnection | None,
    ) -> int:
        if chunk is None:
            return await self._run(conn, backfills.backfill(what, token))
        if conn is not None:
            raise InvalidJob("chunk", "contradicts conn: each chunk is a separate transaction")
        backfill_id = await self._run(None, backfills.begin(what, key, chunk, token))
        if begun is not None:
            begun(backfill_id)
        return await self.resume_backfill(backfill_id, progress=progress)

    async def plan_backfill(
        self,
        kind: str,
        rows: Rows | str,
        *,
        args: Mapping[str, Any] | None = None,
        expires_in: float | timedelta | None = None,
        conn: AsyncConnection | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> BackfillPlan:
        """Return what ``backfill`` would enqueue with the same arguments; enqueue nothing.

        It reads all the rows and all waiting jobs of the queue.
        """
        what = backfills.backfill_of(
            kind, rows, args=args, expires_in=expires_in, options=self._in_queue(kind, options)
        )
        return await self._run(conn, backfills.plan(what))

    async def resume_backfill(
        self, backfill_id: int, *, progress: Callable[[BackfillProgress], object] | None = None
    ) -> int:
        """Continue a backfill in chunks where it stopped.

        Return the number of jobs that this call enqueued.

        No job is enqueued twice and none is skipped: the jobs of a chunk and the position after it
        are written in one transaction. A completed backfill enqueues nothing.

        Args:
            backfill_id: its number, from ``progress`` or from the hint of the error that stopped
                it.
            progress: called after each chunk.

        Raises:
            BackfillNotFound: no backfill has this number, or another role began it.
            BackfillChanged: it was begun with a token, and its next chunk now contains other jobs.
        """
        begun = time.monotonic()
        count = 0
        try:
            while step := await self._run(None, backfills.next_chunk(backfill_id)):
                count += step.enqueued
                if progress is not None:
                    progress(replace(step, seconds=time.monotonic() - begun))
        except ForebayError as error:
            error.hint = f"{error.hint or ''} Backfill {backfill_id} can be resumed.".strip()
            raise
        return count

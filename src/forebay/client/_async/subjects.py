"""The part of the asynchronous client for subjects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from forebay.client._address import address_of
from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.db.own import own_transaction_async, pause_async
from forebay.errors import EnqueueError, ForebayError, InvalidJob, SubjectNotFound, shown
from forebay.model import checks
from forebay.model.subjects import (
    SubjectCount,
    SubjectEvent,
    SubjectResult,
    SubjectStatus,
    TraceEntry,
    UpgradeProgress,
    kind_of_version,
)
from forebay.ops import subjects as ops
from forebay.ops.enqueue import shifted, with_written

#: Pauses between the passes of an upgrade that waits for runs to end, in seconds.
_PASS_PAUSES: Final = (0.05, 2.0)


class AsyncSubjects(AsyncClientBase):
    """Push, upsert, read, change and upgrade subjects."""

    async def push_subjects(
        self,
        subjects: Iterable[Mapping[str, Any] | ops.SubjectItem],
        *,
        chunk: int = ops.CHUNK_DEFAULT,
        conn: AsyncConnection | None = None,
    ) -> list[SubjectResult]:
        """Create subjects; those that exist, in any state, are left as they are.

        Return what became of each, in order.

        All are checked before the first one is written.

        Args:
            subjects: each with ``kind``, ``subject`` (a name of at most 512 bytes, unique in its
                queue; None: a random one), ``args``, and of ``JobOptions``: queue, priority, delay
                or run_at, expires_at, tag, correlation_id, headers, max_attempts, limit_key,
                ordering_key; ``version`` of the arguments, 0 to 9999. Times may be ISO 8601 texts.
                Without a queue: that of the kind.
            chunk: maximum number of subjects per statement.
            conn: the connection whose transaction to use. Default: a new one for each chunk, and
                commit.

        Raises:
            InvalidJob: a subject is refused, or is given twice; its ``index`` counts from 0.
            PayloadTooLarge, PayloadTooDeep: as for the arguments of a job.
        """
        return await self._put(subjects, ops.push_subjects, chunk, conn)

    async def upsert_subjects(
        self,
        subjects: Iterable[Mapping[str, Any] | ops.SubjectItem],
        *,
        revive: bool = False,
        chunk: int = ops.CHUNK_DEFAULT,
        conn: AsyncConnection | None = None,
    ) -> list[SubjectResult]:
        """Create subjects, or change those that exist. Return what became of each, in order.

        What a mapping does not name stays as it is. A subject whose run a worker has is skipped.

        Args:
            subjects: see ``push_subjects``; ``kind`` is needed for new ones only.
            revive: schedule those that are completed, dead or killed. Without it they are skipped.
            chunk: see ``push_subjects``.
            conn: see ``push_subjects``.

        Raises:
            InvalidJob: see ``push_subjects``.
            PayloadTooLarge, PayloadTooDeep: as for the arguments of a job.
        """
        return await self._put(
            subjects, lambda items: ops.upsert_subjects(items, revive=revive), chunk, conn
        )

    async def subject(
        self, queue: str, subject: str, *, conn: AsyncConnection | None = None
    ) -> SubjectStatus:
        """Return a subject.

        Args:
            queue: its queue.
            subject: its name.
            conn: the connection to use.

        Raises:
            SubjectNotFound: the queue has no subject of this name.
        """
        found = await self._run(conn, ops.subject(queue, subject))
        if found is None:
            raise SubjectNotFound(queue=queue, subject=subject)
        return found

    async def subjects(
        self,
        queue: str,
        *,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
        conn: AsyncConnection | None = None,
    ) -> list[SubjectStatus]:
        """Return subjects of a queue in the order of their names.

        With a state, at most 100,000 are looked at.

        Args:
            queue: the queue.
            state: only those in this state: scheduled, ready, running, completed, dead, killed.
            after: begin after this name.
            limit: maximum number of rows, 1 to 10,000.
            conn: the connection to use.

        Raises:
            InvalidJob: the state is unknown.
        """
        return await self._run(conn, ops.subjects(queue, state, after, limit))

    async def subject_history(
        self, queue: str, subject: str, *, limit: int = 100, conn: AsyncConnection | None = None
    ) -> list[SubjectEvent]:
        """Return what happened to a subject, newest first.

        Maintenance keeps about a day, and always the newest entry.

        Args:
            queue: its queue.
            subject: its name.
            limit: maximum number of rows, 1 to 10,000.
            conn: the connection to use.

        Raises:
            SubjectNotFound: the queue has no subject of this name.
        """
        return await self._run(conn, ops.subject_history(queue, subject, limit))

    async def trace(
        self, name: str, *, limit: int = 200, conn: AsyncConnection | None = None
    ) -> list[TraceEntry]:
        """Return history and errors of a subject, or of the jobs of a correlation id, over all
        queues, newest first.

        Args:
            name: the subject, or the correlation id.
            limit: maximum number of rows, 1 to 1,000.
            conn: the connection to use.
        """
        return await self._run(conn, ops.trace_subject(name, limit))

    async def drop_subject(
        self, queue: str, subject: str, *, conn: AsyncConnection | None = None
    ) -> str:
        """Drop a subject: its name is free. Return ``dropped``, or ``requested``: its run is
        requested to stop.

        Args:
            queue: its queue.
            subject: its name.
            conn: the connection whose transaction to use.

        Raises:
            SubjectNotFound: the queue has no subject of this name.
        """
        return await self._run(conn, ops.drop_subject(queue, subject))

    async def drop_subjects(self, queue: str, *, chunk: int = 1000) -> int:
        """Drop all subjects of a queue, in the order of their names, and return how many.

        Each chunk is a transaction: after an error those before are dropped, and the call can be
        repeated. A subject whose run is requested to stop counts. One that is pushed meanwhile
        under an earlier name stays.

        Args:
            queue: the queue; one without subjects is no error.
            chunk: number of subjects of a transaction, 1 to 10,000.
        """
        dropped, after = 0, ""
        while True:
            count, passed = await self._run(None, ops.drop_subjects(queue, after, chunk))
            dropped += count
            if passed is None:
                return dropped
            after = passed

    async def kill_subject(
        self,
        queue: str,
        subject: str,
        reason: str | None = None,
        *,
        conn: AsyncConnection | None = None,
    ) -> str:
        """Kill a subject: it is not due until it is revived.

        Return ``killed``, ``requested`` (its run is requested to stop) or ``unchanged``.

        Args:
            queue: its queue.
            subject: its name.
            reason: why, for people.
            conn: the connection whose transaction to use.

        Raises:
            SubjectNotFound: the queue has no subject of this name.
        """
        return await self._run(conn, ops.kill_subject(queue, subject, reason))

    async def revive_subject(
        self,
        queue: str,
        subject: str,
        run_at: datetime | None = None,
        *,
        conn: AsyncConnection | None = None,
    ) -> str:
        """Schedule a subject that is completed, dead or killed.

        Return ``revived``, or ``unchanged``: it is scheduled, ready or running.

        Args:
            queue: its queue.
            subject: its name.
            run_at: when it is due. None: now.
            conn: the connection whose transaction to use.

        Raises:
            SubjectNotFound: the queue has no subject of this name.
        """
        return await self._run(conn, ops.revive_subject(queue, subject, run_at))

    async def subject_counts(
        self, queue: str | None = None, *, conn: AsyncConnection | None = None
    ) -> list[SubjectCount]:
        """Return the numbers of subjects by queue and state. It reads counters, not the subjects.

        Args:
            queue: only this queue.
            conn: the connection to use.
        """
        return await self._run(conn, ops.subject_counts(queue))

    async def upgrade_subjects(
        self,
        queue: str,
        kind: str,
        from_version: int,
        to_version: int,
        function: Callable[[dict[str, Any], dict[str, Any] | None], Any],
        *,
        wait: float | timedelta = 60.0,
        chunk: int = 100,
        progress: Callable[[UpgradeProgress], object] | None = None,
    ) -> UpgradeProgress:
        """Give all subjects of a version another version, with arguments and state that a
        function returns.

        Each chunk is a transaction that locks its subjects: none of them is issued or upserted
        meanwhile. A subject whose run has not ended comes with a later pass. The passes end when
        one from the first to the last name leaves none of the version. An upgrade that was stopped
        continues where it stopped when the call is repeated.

        Args:
            queue: the queue.
            kind: of the subjects, without a version.
            from_version: the version of their arguments now.
            to_version: the version after that.
            function: gets arguments and state (None: none); returns new arguments, or a tuple of
                new arguments and new state.
            wait: for how many seconds, or as a timedelta, to pass again for subjects whose runs
                have not ended.
            chunk: number of subjects that are looked at in a transaction, 1 to 10,000.
            progress: called after each chunk.

        Raises:
            InvalidJob: a version is out of range, or what the function returned is refused; nothing
                of its chunk was written.
            Exception: what the function raised; nothing of its chunk was written.
        """
        until = time.monotonic() + checks.checked_seconds(wait, "wait")
        if from_version == to_version:
            raise InvalidJob("to_version", f"is from_version: {to_version}")
        self._dsn = address_of(self._dsn)
        upgraded, passes, seconds = 0, 0, _PASS_PAUSES[0]
        after: str | None = None  # where the last call stopped
        while True:
            passes += 1
            running = 0
            is_whole = after is not None
            while True:
                count = 0
                async with own_transaction_async(self._dsn) as run:
                    found = await run(
                        ops.lock_subjects_for_upgrade(queue, kind, from_version, after, chunk)
                    )
                    for one in found.subjects:
                        if one.is_running:
                            running += 1
                            continue
                        args, data = _converted(one, function)
                        changed = await run(
                            ops.upgrade_subject(one, from_version, to_version, args, data)
                        )
                        count += changed
                        running += not changed
                    await run(
                        ops.record_upgrade(
                            queue, kind, (from_version, to_version), found.passed, count
                        )
                    )
                upgraded += count
                after = found.passed
                is_done = after is None and is_whole and running == 0
                step = UpgradeProgress(
                    upgraded=upgraded, running=running, passes=passes, is_done=is_done
                )
                if progress is not None:
                    progress(step)
                if after is None:
                    break
            after = ""
            if step.is_done or (running and time.monotonic() >= until):
                return step
            if running:
                await pause_async(seconds)
                seconds = min(seconds * 2, _PASS_PAUSES[1])

    async def _put(
        self,
        subjects: Iterable[Mapping[str, Any] | ops.SubjectItem],
        operation: Callable[[list[ops.SubjectItem]], Any],
        chunk: int,
        conn: AsyncConnection | None,
    ) -> list[SubjectResult]:
        items = ops.checked_items(self._items(subjects))
        results: list[SubjectResult] = []
        for begin, some in ops.chunks(items, chunk):
            try:
                results += await self._run(conn, operation(some))
            except EnqueueError as error:
                raise with_written(shifted(error, begin), begin) from error.__cause__
        return results

    def _items(
        self, subjects: Iterable[Mapping[str, Any] | ops.SubjectItem]
    ) -> Iterable[ops.SubjectItem | EnqueueError]:
        for each in subjects:
            try:
                yield ops.item_from(each, self._queue_of(each))
            except EnqueueError as error:
                yield error

    def _queue_of(self, given: Any) -> str | None:
        if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
            return None
        version = given.get("version") or 0
        for kind in (kind_of_version(given["kind"], version), given["kind"]):
            declared = self._declared(kind)
            if declared is not None:
                return declared.options.queue
        return None


def _converted(
    one: ops.LockedSubject, function: Callable[[dict[str, Any], dict[str, Any] | None], Any]
) -> tuple[Any, Any]:
    try:
        found = function(dict(one.args), None if one.data is None else dict(one.data))
    except ForebayError:
        raise
    except Exception as error:
        error.add_note(f"in the upgrade of subject {shown(one.subject)}")
        raise
    if isinstance(found, tuple) and len(found) == 2:
        return found
    return found, one.data

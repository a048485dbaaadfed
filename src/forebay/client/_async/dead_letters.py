"""The part of the asynchronous client for dead letters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal, Unpack

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.errors import JobsChanged
from forebay.model.status import DeadGroup, DeadLetter, DeadSummary, PurgePlan, RedrivePlan
from forebay.ops import dead


class AsyncDeadLetters(AsyncClientBase):
    """List, summarize, redrive, keep and purge dead letters."""

    async def dead_letters(
        self,
        *,
        redriven: bool | Literal["any"] | None = None,
        limit: int = 50,
        before: int | None = None,
        conn: AsyncConnection | None = None,
        **which: Unpack[dead.DeadFilter],
    ) -> list[DeadLetter]:
        """Return dead letters, newest first; those that were redriven only on request.

        Args:
            redriven: True for only redriven dead letters, False for only the others, ``"any"`` for
                both. Default: False; with ``job_id``, any.
            limit: maximum number of entries, 1 to 1000.
            before: the ``dead_id`` of the last entry of the previous page.
            conn: the connection to use.
            which: which dead letters: ``queue``, ``kind``, ``tag``, ``group``, ``job_id``;
                ``reason``: exhausted, permanent, expired or worker lost; ``cause``, from
                ``dead_groups``; ``endpoint``, of deliveries; ``died_after`` and ``died_before``,
                instants of which the first is included.
        """
        operation = dead.dead_letters(redriven=redriven, limit=limit, before=before, **which)
        return await self._run(conn, operation)

    async def dead_letter(self, dead_id: int, *, conn: AsyncConnection | None = None) -> DeadLetter:
        """Return one dead letter with every error of its job.

        For the id of a job that died, the error names its dead letter.

        Raises:
            DeadLetterNotFound: no dead letter has this id; it may have been purged. If it is the id
                of a job that died, the hint names the dead letter.
        """
        return await self._run(conn, dead.dead_letter(dead_id))

    async def redrive(
        self,
        dead_id: int,
        *,
        to_group: str | None = None,
        from_step: str | None = None,
        from_key: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> int:
        """Enqueue a new job from a dead letter, for its group or ``to_group``; return its id.

        The new job keeps arguments, priority, tag, correlation id and headers; attempts and expiry
        start again. Job and dead letter refer to each other. If the dead letter holds its ordering
        key, the new job takes its place: it runs before the later jobs of the key. A flow continues
        behind its recorded steps; a failure at their end is tried again.

        Args:
            dead_id: the dead letter.
            to_group: this group of its queue gets the job.
            from_step: do this step of a flow and all later ones again.
            from_key: the key of that step.
            conn: the connection whose transaction to use.

        Raises:
            DeadLetterNotFound: no dead letter has this id.
            AlreadyRedriven: the dead letter was redriven before.
            InvalidJob: its job has not recorded that step.
        """
        operation = dead.redrive(dead_id, to_group, from_step=from_step, from_key=from_key)
        return await self._run(conn, operation)

    async def skip_dead(self, dead_id: int, *, conn: AsyncConnection | None = None) -> bool:
        """Free the ordering key that a dead letter holds, without running its job.

        Return whether it held the key.

        The dead letter stays. See ``holds_key`` of ``App.job``.

        Raises:
            DeadLetterNotFound: no dead letter has this id.
            AlreadyRedriven: it was redriven, and its key waits for the new job.
        """
        return await self._run(conn, dead.skip_dead(dead_id))

    async def redrive_matching(
        self,
        *,
        limit: int | None = None,
        to_group: str | None = None,
        token: str | None = None,
        progress: Callable[[int], object] | None = None,
        conn: AsyncConnection | None = None,
        **which: Unpack[dead.DeadFilter],
    ) -> int:
        """Redrive all matching dead letters in the original order of their jobs.

        Return their number. It works in steps, each a separate transaction. After an error the dead
        letters of earlier steps are redriven; call again to finish.

        Args:
            limit: maximum number. Default: all.
            to_group: this group of their queues gets the jobs, not the one in which they died.
            token: of ``plan_redrive``: only those that it counted and that are left are redriven.
                A repeated call finishes the first.
            progress: called after each step with the number of dead letters so far.
            conn: the connection whose transaction to use, for all dead letters at once.
            which: see ``dead_letters``.

        Raises:
            JobsChanged: dead letters of the token were deleted, or others match; none was redriven.
                Without a token, only if others change them in each of ten attempts.
            GroupNotFound: a queue has no group ``to_group``; nothing of this step was redriven.
        """
        steps = dead.RedriveSteps(which, limit, to_group, token, at_once=conn is not None)
        is_planned_here = token is None and conn is None
        while True:
            if is_planned_here:
                steps.token = (await self._run(None, steps.plan())).token
            try:
                for operation in steps.operations():
                    redriven = await self._run(conn, operation)
                    if progress is not None:
                        progress(redriven)
            except JobsChanged:  # Others redrive or delete some of them at the same time.
                if not (is_planned_here and steps.may_plan_again()):
                    raise
            else:
                return steps.redriven

    async def plan_redrive(
        self,
        *,
        limit: int | None = None,
        to_group: str | None = None,
        conn: AsyncConnection | None = None,
        **which: Unpack[dead.DeadFilter],
    ) -> RedrivePlan:
        """Return what ``redrive_matching`` would redrive, and its token; change nothing.

        Args:
            limit: as there.
            to_group: as there.
            conn: the connection to use.
            which: see ``dead_letters``.
        """
        return await self._run(conn, dead.plan_redrive(which, limit, to_group))

    async def purge_dead(
        self,
        age: float | timedelta,
        *,
        queue: str | None = None,
        cause: str | None = None,
        token: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> int:
        """Delete dead letters older than ``age``; return their number.

        Args:
            age: in seconds or as a timedelta.
            queue: only this queue.
            cause: only this cause, from ``dead_groups``.
            token: of ``plan_purge_dead``: exactly those that it counted. Newer ones are left.
            conn: the connection whose transaction to use.

        Raises:
            JobsChanged: other dead letters match by now than those of the token, or another session
                works on one of them; none was deleted.
        """
        return await self._run(conn, dead.purge_dead(age, queue, cause, token))

    async def plan_purge_dead(
        self,
        age: float | timedelta,
        *,
        queue: str | None = None,
        cause: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> PurgePlan:
        """Return what ``purge_dead`` would delete, and its token; change nothing.

        Args:
            age: as there.
            queue: as there.
            cause: as there.
            conn: the connection to use.
        """
        return await self._run(conn, dead.plan_purge_dead(age, queue, cause))

    async def dead_groups(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        cause: str | None = None,
        endpoint: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> list[DeadGroup]:
        """Return the dead letters that were not redriven, grouped by cause, the newest death first.

        Deliveries are grouped by endpoint too.

        Args:
            queue: only this queue.
            kind: only this kind.
            cause: only this cause.
            endpoint: only deliveries to this endpoint.
            conn: the connection to use.
        """
        return await self._run(conn, dead.dead_groups(queue, kind, cause, endpoint))

    async def mute_cause(
        self,
        cause: str,
        duration: float | timedelta | None = None,
        *,
        conn: AsyncConnection | None = None,
    ) -> datetime | None:
        """Expect the deaths of a cause, for a time or until ``unmute_cause``.

        Return when that ends, None if it does not.

        They are recorded and counted as before. Workers log them as information instead of as
        errors, from their next heartbeat on, and the doctor does not report them.

        Args:
            cause: from ``dead_groups``.
            duration: in seconds or as a timedelta. Default: without an end.
            conn: the connection whose transaction to use.

        Raises:
            DeadLetterNotFound: no dead letter has this cause.
            InvalidJob: a bad duration, or 1,000 causes are muted.
        """
        return await self._run(conn, dead.mute_cause(cause, duration))

    async def unmute_cause(self, cause: str, *, conn: AsyncConnection | None = None) -> bool:
        """Let the deaths of a cause be errors again; return whether it was muted."""
        return await self._run(conn, dead.unmute_cause(cause))

    async def keep_dead(
        self,
        queue: str | None = None,
        *,
        days: int | None = None,
        inherit: bool = False,
        conn: AsyncConnection | None = None,
    ) -> int | None:
        """Set how long dead letters are kept; return the previous number of days, None forever.

        Without this call dead letters are kept forever. The workers' maintenance deletes older
        ones, redriven or not; ``dead_summary`` counts what it deleted.

        Args:
            queue: the queue; None for all queues without their own setting.
            days: days since the death of the job, 1 to 36,500; None forever.
            inherit: remove the setting of the queue, so that the one for all queues applies.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: a bad name or number; nothing was changed.
        """
        return await self._run(conn, dead.keep_dead(queue, days=days, inherit=inherit))

    async def dead_summary(
        self,
        queue: str | None = None,
        *,
        endpoint: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> list[DeadSummary]:
        """Return how many dead letters are kept, were redriven and were deleted, by queue,
        endpoint, kind, reason and error.

        Args:
            queue: only this queue.
            endpoint: only deliveries to this endpoint.
            conn: the connection to use.
        """
        return await self._run(conn, dead.dead_summary(queue, endpoint))

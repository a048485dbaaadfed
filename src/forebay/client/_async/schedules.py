"""The part of the asynchronous client for schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.errors import InvalidJob, ScheduleNotFound
from forebay.model import checks
from forebay.model.schedules import (
    Missed,
    Occurrence,
    Overlap,
    PlannedInstant,
    Schedule,
    ScheduleBackfill,
    ScheduleDifference,
    ScheduleStatus,
)
from forebay.ops import schedules as ops
from forebay.policy.cron import Timing


class AsyncSchedules(AsyncClientBase):
    """Create, preview, pause, run and backfill schedules."""

    async def create_schedule(
        self,
        name: str,
        kind: str,
        cron: str | None = None,
        *,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        args: Mapping[str, Any] | None = None,
        queue: str | None = None,
        priority: int = checks.PRIORITY_DEFAULT,
        overlap: Overlap = "skip",
        missed: Missed = "latest",
        jitter: float | timedelta = 0.0,
        catch_up: float | timedelta = 86_400.0,
        missed_max: int = 100,
        starts_at: datetime | None = None,
        options: Mapping[str, Any] | None = None,
        pause_on_failure: bool = False,
        conn: AsyncConnection | None = None,
    ) -> ops.Created:
        """Create a schedule, or replace the definition of the one of this name.

        Return ``created``, ``changed`` or ``unchanged``.

        With another expression, interval, zone or start, earlier instants are not caught up.

        Args:
            name: letters, digits and ``_ . : -``, at most 128.
            kind: the kind of its jobs.
            cron: five fields, minute to day of week, or six with seconds first, as in Debian's
                cron.
            every: instead of ``cron``: seconds between two instants, a whole number, at least 1,
                counted from ``starts_at``.
            tz: the time zone of ``cron``.
            args: the arguments of each job.
            queue: the queue of its jobs. Default: that of the kind, see ``queue_of``.
            priority: of its jobs.
            overlap: when the job before has not ended in each group: ``"allow"``, enqueue another
                one; ``"skip"``; ``"queue"``, enqueue it to run after, if none waits; ``"cancel"``
                the job before; ``"replace"``, cancel it only if it waits.
            missed: instants that no worker decided within a minute: ``"skip"``, ``"latest"`` or
                ``"all"``.
            jitter: a job starts up to this many seconds after its instant; for one instant always
                the same.
            catch_up: missed instants older than these seconds are not enqueued; at most 366 days.
            missed_max: with ``missed="all"``, maximum number of jobs, 1 to 10,000, the newest
                instants.
            starts_at: no instant before it. Default: now, or as it is.
            options: of its jobs: tag, correlation_id, headers, max_attempts, limit_key, expires_in
                in seconds.
            pause_on_failure: a dead job pauses the schedule before its next instant.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: the definition is refused.
            PayloadTooLarge, PayloadTooDeep: as for the arguments of a job.
        """
        schedule = Schedule(
            name=name,
            kind=kind,
            cron=cron,
            every=every,
            tz=tz,
            args=args or {},
            queue=queue,
            priority=priority,
            overlap=overlap,
            missed=missed,
            jitter=jitter,
            catch_up=catch_up,
            missed_max=missed_max,
            starts_at=starts_at,
            options=options or {},
            pause_on_failure=pause_on_failure,
        )
        return await self._run(conn, ops.create_schedule(schedule))

    async def apply_schedules(
        self,
        app: str,
        schedules: Iterable[Schedule],
        *,
        overwrite: bool = False,
        dry_run: bool = False,
        conn: AsyncConnection | None = None,
    ) -> list[ScheduleDifference]:
        """Make schedules what an app declares; see ``App.apply_schedules``.

        Args:
            app: the name of the app.
            schedules: all that it declares.
            overwrite: take the declaration also for what was changed or made by hand, or declared
                by another app.
            dry_run: change nothing.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: a declaration is refused.
        """
        call = ops.compare_schedules if dry_run else ops.apply_schedules
        return await self._run(conn, call(app, schedules, overwrite=overwrite))

    async def drop_schedule(self, name: str, *, conn: AsyncConnection | None = None) -> bool:
        """Drop a schedule with its history; return whether there was one. Its jobs stay.

        Args:
            name: of the schedule.
            conn: the connection whose transaction to use.
        """
        return await self._run(conn, ops.drop_schedule(name))

    async def pause_schedule(
        self, name: str, note: str | None = None, *, conn: AsyncConnection | None = None
    ) -> bool:
        """Pause a schedule; return whether that changed anything. Its jobs run.

        Args:
            name: of the schedule.
            note: why, for people; None for no note.
            conn: the connection whose transaction to use.

        Raises:
            ScheduleNotFound: no schedule has this name.
        """
        return await self._run(conn, ops.pause_schedule(name, note))

    async def resume_schedule(self, name: str, *, conn: AsyncConnection | None = None) -> bool:
        """Resume a schedule; return whether it was paused. Instants of the pause are not caught up.

        Args:
            name: of the schedule.
            conn: the connection whose transaction to use.

        Raises:
            ScheduleNotFound: no schedule has this name.
        """
        return await self._run(conn, ops.resume_schedule(name))

    async def run_schedule(self, name: str, *, conn: AsyncConnection | None = None) -> int:
        """Enqueue a job of a schedule now, whatever its overlap and also if it is paused.

        Return the id of the job.

        Args:
            name: of the schedule.
            conn: the connection whose transaction to use.

        Raises:
            ScheduleNotFound: no schedule has this name.
            QueueFull: the queue is full.
        """
        return await self._run(conn, ops.run_schedule(name))

    async def schedules(self, *, conn: AsyncConnection | None = None) -> list[ScheduleStatus]:
        """Return the schedules, by name.

        Args:
            conn: the connection to use.
        """
        return await self._run(conn, ops.schedules())

    async def schedule(self, name: str, *, conn: AsyncConnection | None = None) -> ScheduleStatus:
        """Return a schedule.

        Args:
            name: of the schedule.
            conn: the connection to use.

        Raises:
            ScheduleNotFound: no schedule has this name.
        """
        found = await self._run(conn, ops.schedules(checks.checked_name(name, "name")))
        if not found:
            raise ScheduleNotFound(name)
        return found[0]

    async def schedule_history(
        self,
        name: str,
        *,
        limit: int = 50,
        before: datetime | None = None,
        conn: AsyncConnection | None = None,
    ) -> list[Occurrence]:
        """Return decisions of a schedule, newest first.

        They are kept for 30 days, and at most the newest 10,000.

        Args:
            name: of the schedule.
            limit: the maximum number, 1 to 10,000.
            before: only earlier instants; None: all.
            conn: the connection to use.

        Raises:
            ScheduleNotFound: no schedule has this name.
        """
        return await self._run(conn, ops.schedule_history(name, limit, before))

    async def preview_schedule(
        self,
        name: str,
        start: datetime | None = None,
        end: datetime | None = None,
        *,
        limit: int = 100,
        conn: AsyncConnection | None = None,
    ) -> list[PlannedInstant]:
        """Return the instants of a schedule from ``start`` to before ``end``, and when their
        jobs start; the first ones.

        Args:
            name: of the schedule.
            start: None: now, by the clock of the database.
            end: None: without an end.
            limit: the maximum number, 1 to 10,000.
            conn: the connection to use.

        Raises:
            ScheduleNotFound: no schedule has this name.
            InvalidJob: an argument is refused, or the expression of the schedule is not valid.
        """
        checks.checked_integer(limit, "limit", least=1, most=ops.INSTANTS_MAX)
        found = await self.schedule(name, conn=conn)
        begin = found.server_time if start is None else checks.checked_instant(start, "start")
        until = None if end is None else checks.checked_instant(end, "end")
        timing = Timing(found.cron, found.every, found.tz, found.starts_at)
        instants = timing.between(begin, until, limit)
        return await self._run(conn, ops.schedule_starts(name, instants))

    async def backfill_schedule(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        token: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> ScheduleBackfill:
        """Enqueue the jobs of past instants from ``start`` to before ``end`` that have none.

        Without a token, only count them.

        Instants that are past the history count as without a job. Instants that are not decided yet
        are left to the schedulers. The time before ``starts_at`` counts too.

        Args:
            name: of the schedule.
            start: the first possible instant.
            end: where the interval ends.
            token: of a call that counted: enqueue exactly those jobs, or nothing.
            conn: the connection whose transaction to use.

        Raises:
            ScheduleNotFound: no schedule has this name.
            ScheduleChanged: the schedule or its undecided instants differ from those that were
                counted.
            InvalidJob: more than 10,000 instants, or an argument is refused.
        """
        begin, until = checks.checked_instant(start, "start"), checks.checked_instant(end, "end")
        if until <= begin:
            raise InvalidJob("end", f"is {until.isoformat()}, not after start {begin.isoformat()}")
        found = await self.schedule(name, conn=conn)
        until = min(until, found.decided_to + timedelta(microseconds=1))
        timing = Timing(found.cron, found.every, found.tz, found.starts_at, is_bounded=False)
        instants = timing.between(begin, until, ops.INSTANTS_MAX + 1)
        if len(instants) > ops.INSTANTS_MAX:
            raise InvalidJob("end", f"leaves more than {ops.INSTANTS_MAX:,} instants")
        return await self._run(conn, ops.backfill_schedule(name, instants, found.revision, token))

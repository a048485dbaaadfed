"""Enqueue the jobs of a mirror: for changes, heartbeats and backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.errors import InvalidJob, shown
from forebay.mirror._model import checked_id
from forebay.model import checks
from forebay.model.doors import Doors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from uuid import UUID

    from forebay.app import Handler, Jobs
    from forebay.db.drivers import AsyncConnection, SyncConnection
    from forebay.mirror._model import Id
    from forebay.model import JobId
    from forebay.model.backfill import BackfillPlan, BackfillProgress, Rows
    from forebay.model.mirrors import Thresholds

#: The priority of jobs that repair what an audit found: after all others.
REPAIR_PRIORITY: Final = checks.PRIORITY_BULK


class MirrorJobs(Doors):
    """The part of ``Mirror`` that enqueues jobs: for changes, heartbeats and backfills.

    Args:
        app: the application whose workers run the jobs.
        handler: the handler of the jobs.
        grace_seconds: the delay of a job after the change.
        thresholds: which jobs alerts ignore.
    """

    handler: Handler[..., ..., Any]
    thresholds: Thresholds

    def __init__(
        self,
        app: Jobs,
        handler: Handler[..., ..., Any],
        grace_seconds: float,
        thresholds: Thresholds,
    ) -> None:
        self.handler = handler
        self.thresholds = thresholds
        self._app = app
        self._grace = grace_seconds

    # --- reporting changes ---

    def changed(
        self,
        conn: SyncConnection,
        item: Id | UUID,
        *,
        tag: str | None = None,
        force: bool = False,
        delay: float | timedelta | None = None,
        priority: int | None = None,
    ) -> JobId:
        """Enqueue a job for an item, in the transaction of the connection; return its id.

        A deletion is a change too.

        Args:
            conn: the connection whose transaction changes the item.
            item: its id.
            tag: which part of the application changed it.
            force: write the copy even if it looks right, for example after a change that keeps the
                version.
            delay: the delay from now; None for the grace.
            priority: lower first; None for the priority of the mirror.

        Raises:
            InvalidJob: an argument is refused.
            WrongConnection: the first argument is not a synchronous connection.
            SchemaError: the database has no schema.
        """
        handler = self._using(tag, delay, priority)
        return handler.enqueue(conn, **args_of(item, force=force))

    async def achanged(
        self,
        conn: AsyncConnection,
        item: Id | UUID,
        *,
        tag: str | None = None,
        force: bool = False,
        delay: float | timedelta | None = None,
        priority: int | None = None,
    ) -> JobId:
        """Do as ``changed``, on an asynchronous connection."""
        handler = self._using(tag, delay, priority)
        return await handler.aenqueue(conn, **args_of(item, force=force))

    def changed_many(
        self,
        conn: SyncConnection,
        items: Iterable[Id | UUID],
        *,
        tag: str | None = None,
        force: bool = False,
        delay: float | timedelta | None = None,
        priority: int | None = None,
    ) -> int:
        """Enqueue a job for each of many items, as ``changed`` does; return how many."""
        handler = self._using(tag, delay, priority)
        return handler.enqueue_many(conn, (args_of(item, force=force) for item in items))

    async def achanged_many(
        self,
        conn: AsyncConnection,
        items: Iterable[Id | UUID],
        *,
        tag: str | None = None,
        force: bool = False,
        delay: float | timedelta | None = None,
        priority: int | None = None,
    ) -> int:
        """Do as ``changed_many``, on an asynchronous connection."""
        handler = self._using(tag, delay, priority)
        return await handler.aenqueue_many(conn, (args_of(item, force=force) for item in items))

    def heartbeat(self, conn: SyncConnection) -> JobId:
        """Enqueue a job that changes nothing and completes when both stores can be read.

        Return its id.

        Where changes are rare, a regular heartbeat distinguishes a quiet period from a pipeline
        that has stopped: the alert for too few completed jobs counts heartbeats. Send it from the
        process that makes the changes, about twice per ``thresholds.completed_within``, so that it
        is missing when the changes are.
        """
        return self._using("heartbeat", 0.0, None).enqueue(conn, heartbeat=True)

    def heartbeat_now(self) -> JobId:
        """Do as ``heartbeat``, on a new connection."""
        return self._using("heartbeat", 0.0, None).enqueue_now(heartbeat=True)

    async def aheartbeat(self, conn: AsyncConnection) -> JobId:
        """Do as ``heartbeat``, on an asynchronous connection."""
        return await self._using("heartbeat", 0.0, None).aenqueue(conn, heartbeat=True)

    # --- backfills ---

    def backfill(
        self,
        rows: Rows | str,
        *,
        tag: str = "backfill",
        priority: int = REPAIR_PRIORITY,
        force: bool = False,
        token: str | None = None,
        chunk: int | None = None,
        key: str | None = None,
        progress: Callable[[BackfillProgress], object] | None = None,
        conn: SyncConnection | None = None,
    ) -> int:
        """Enqueue a job, due at once, for each of many items, by one statement in the database.

        Return the number of jobs.

        Args:
            rows: the items, from tables in the app's database; their only column is ``id``. A text
                is a query.
            tag: of the jobs: ``backfill``, ``backfill.`` and more, or another of
                ``thresholds.bulk_tags``, so that alerts ignore the jobs. With a priority from
                ``thresholds.bulk_priority`` on, any tag.
            priority: of the jobs, lower first; by default after all others.
            force: write the copies even if they look right.
            token: from ``plan_backfill``: enqueue the jobs that it counted, or none.
            chunk: jobs per transaction; see ``Client.backfill``. ``Client.resume_backfill`` resumes
                an interrupted one.
            key: the column that divides the chunks; None for the id.
            progress: called after each chunk.
            conn: enqueue in the transaction of this connection; not with ``chunk``.

        Raises:
            InvalidJob: an argument is refused, or alerts would not ignore the jobs.
            BackfillChanged: the jobs are not those of the token.
        """
        return self._app.client().backfill(
            self.handler.kind.name,
            rows,
            token=token,
            chunk=chunk,
            key=key or "id",
            progress=progress,
            conn=conn,
            **self._backfill_options(tag, priority, force=force),
        )

    def plan_backfill(
        self,
        rows: Rows | str,
        *,
        tag: str = "backfill",
        priority: int = REPAIR_PRIORITY,
        force: bool = False,
        conn: SyncConnection | None = None,
    ) -> BackfillPlan:
        """Return what ``backfill`` with the same arguments would enqueue; enqueue nothing."""
        return self._app.client().plan_backfill(
            self.handler.kind.name,
            rows,
            conn=conn,
            **self._backfill_options(tag, priority, force=force),
        )

    def _using(
        self, tag: str | None, delay: float | timedelta | None, priority: int | None
    ) -> Handler[..., ..., Any]:
        options: dict[str, Any] = {"delay": self._grace if delay is None else delay}
        if tag is not None:
            options["tag"] = tag
        if priority is not None:
            options["priority"] = priority
        return self.handler.using(**options)

    def _bulk(self, tag: str, priority: int) -> Handler[..., ..., Any]:
        """Return the handler for jobs that are due at once and that alerts ignore."""
        if not self.thresholds.is_bulk(tag, priority):
            raise InvalidJob(
                "tag",
                (
                    f"is {shown(tag)} with priority {priority}: alerts would count these jobs "
                    f"as ordinary changes"
                ),
                hint=(
                    f"Use the tag {shown(f'backfill.{tag}')}, or add yours to "
                    f"Thresholds(bulk_tags=...)."
                ),
            )
        return self.handler.using(delay=None, tag=tag, priority=priority)

    def _backfill_options(self, tag: str, priority: int, *, force: bool) -> dict[str, Any]:
        handler = self._bulk(tag, priority)
        return {
            "args": {"force": True} if force else None,
            "expires_in": handler.expires_in_seconds,
            **handler.options.given(),
        }


def args_of(item: Id | UUID, *, force: bool) -> dict[str, Any]:
    """Return the arguments of the job for an item."""
    args: dict[str, Any] = {"id": checked_id(item)}
    if force:
        args["force"] = True
    return args

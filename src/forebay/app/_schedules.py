"""The part of an app for schedules: they are declared in code and applied to the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.app._handler import Handler
from forebay.errors import ConfigError, ForebayError, InvalidJob
from forebay.model.doors import Doors
from forebay.model.schedules import Missed, Overlap, Schedule, ScheduleDifference
from forebay.ops.schedules import schedule_facts

if TYPE_CHECKING:
    from forebay.app._internals import Internals
    from forebay.client import AsyncClient, Client
    from forebay.db.drivers import AsyncConnection, SyncConnection

F = TypeVar("F", bound=Callable[..., Any])


class JobsSchedules(Doors, declares=True):
    """Declares schedules."""

    if TYPE_CHECKING:

        @property
        def _internals(self) -> Internals: ...
        def job(self, *functions: Any, **options: Any) -> Any: ...

    def cron(
        self,
        expression: str | None = None,
        *,
        tz: str = "UTC",
        every: float | timedelta | None = None,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        overlap: Overlap = "skip",
        missed: Missed = "latest",
        jitter: float | timedelta = 0.0,
        catch_up: float | timedelta = 86_400.0,
        missed_max: int = 100,
        starts_at: datetime | None = None,
        pause_on_failure: bool = False,
        correlation_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        limit_key: str | None = None,
    ) -> Callable[[F], F]:
        """Declare a schedule of a handler: a decorator above ``@app.job``, or of a function,
        which becomes a handler with all defaults.

        A worker of the app applies the declaration when it starts, and ``forebay apply`` does.
        Queue, priority, tag, ``max_attempts`` and ``expires_in`` are those of the handler. Decorate
        a handler more than once for several schedules; each but one needs a name.

        Args:
            expression: five fields, minute to day of week, or six with seconds first, as in
                Debian's cron.
            tz: the time zone of the expression.
            every: instead of an expression: seconds between two instants, a whole number, at least
                1, counted from ``starts_at``.
            name: the name of the schedule. Default: the kind.
            args: the arguments of each job, by name.
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
            starts_at: no instant before it. Default: when the schedule is created.
            pause_on_failure: a dead job pauses the schedule before its next instant.
            correlation_id: see ``JobOptions``, also for the following options.
            headers: ...
            limit_key: ...

        Raises:
            ConfigError: the declaration is invalid, or another schedule has the name.

        >>> app = App()
        >>> @app.cron("0 9 * * MON-FRI", tz="Europe/Rome")
        ... def report() -> None: ...
        >>> app.schedules["report"].kind
        'report'
        """

        def decorate(function: F) -> F:
            handler: Any = function if isinstance(function, Handler) else self.job(function)
            kind = handler.kind.name
            chosen = name or kind
            options = {
                "tag": handler.options.tag,
                "correlation_id": correlation_id,
                "headers": None if headers is None else dict(headers),
                "max_attempts": handler.options.max_attempts,
                "limit_key": limit_key,
                "expires_in": handler.expires_in_seconds,
            }
            try:
                handler.call(**(args or {}))
                keys = handler.kind.keys
                if overlap == "queue" and keys is not None and "order_by" in keys.by:
                    raise InvalidJob(
                        "overlap",
                        "'queue' orders the jobs of the schedule, and order_by of the kind does",
                    )
                declared = Schedule(
                    name=chosen,
                    kind=kind,
                    cron=expression,
                    every=every,
                    tz=tz,
                    args=args or {},
                    queue=handler.options.queue,
                    priority=handler.options.priority,
                    overlap=overlap,
                    missed=missed,
                    jitter=jitter,
                    catch_up=catch_up,
                    missed_max=missed_max,
                    starts_at=starts_at,
                    options=options,
                    pause_on_failure=pause_on_failure,
                )
                schedule_facts(declared)
            except ForebayError as error:
                field = f": {error.field}" if isinstance(error, InvalidJob) else ""
                text = str(error.problem) if isinstance(error, InvalidJob) else str(error)
                raise ConfigError(f"schedule {chosen}{field}", text) from None
            self._internals.add_schedule(declared)
            return handler  # type: ignore[no-any-return]

        return decorate


class AppSchedules(Doors, declares=True):
    """Applies the declarations of schedules."""

    if TYPE_CHECKING:

        @property
        def _internals(self) -> Internals: ...
        def client(self) -> Client: ...
        def async_client(self) -> AsyncClient: ...

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The declared schedules, by name."""
        return self._internals.schedules

    def apply_schedules(
        self,
        conn: SyncConnection | None = None,
        *,
        overwrite: bool = False,
        dry_run: bool = False,
    ) -> list[ScheduleDifference]:
        """Make schedules in the database what the app declares; return what differed.

        A schedule that was changed by hand is kept as it is until its declaration changes. One that
        is no longer declared is reported, and still runs. A worker does the same when it starts.

        Args:
            conn: the connection whose transaction to use. Default: a new one, and commit.
            overwrite: take the declaration also for schedules that were changed or made by hand, or
                declared by another app.
            dry_run: change nothing.
        """
        return self.client().apply_schedules(
            self._internals.name,
            self.schedules.values(),
            overwrite=overwrite,
            dry_run=dry_run,
            conn=conn,
        )

    async def aapply_schedules(
        self,
        conn: AsyncConnection | None = None,
        *,
        overwrite: bool = False,
        dry_run: bool = False,
    ) -> list[ScheduleDifference]:
        """Asynchronous form of ``apply_schedules``."""
        return await self.async_client().apply_schedules(
            self._internals.name,
            self.schedules.values(),
            overwrite=overwrite,
            dry_run=dry_run,
            conn=conn,
        )

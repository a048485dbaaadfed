"""One tick: what is due, within a budget."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from forebay._dataclass import dataclass
from forebay.app import App, require_app
from forebay.db.kept import close_kept
from forebay.db.session import Session
from forebay.errors import ConfigError, InvalidJob
from forebay.model import checks
from forebay.model.doors import declaring_door
from forebay.ops import jobs, maintenance
from forebay.sending import phases_of
from forebay.worker import Maintenance, Scheduler, run_to_the_end, run_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from forebay.config import WorkerSettings
    from forebay.worker import Stats, Worker

BUDGET_SECONDS_DEFAULT: Final = 30.0
BUDGET_SECONDS_MIN: Final = 1.0
BUDGET_SECONDS_MAX: Final = 3600.0

#: The share of the budget in which running jobs may end, and that which maintenance may take.
_GRACE_SHARE: Final = 0.25
_MAINTENANCE_SHARE: Final = 0.2
#: The server's answer if nothing is due: a day.
_NOTHING_DUE: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What a tick did, and what it left.

    Attributes:
        done: attempts that ended done.
        retried: failed attempts of jobs that run again.
        dead: jobs that became dead letters.
        released: jobs given back without using an attempt, because the budget ended.
        scheduled: jobs that schedules enqueued.
        is_left: whether work is left that could run now: call again soon.
        next_at: when the next job or instant of a schedule is due; None: nothing within a day.
        seconds: how long it took.
    """

    done: int
    retried: int
    dead: int
    released: int
    scheduled: int
    is_left: bool
    next_at: datetime | None
    seconds: float


class Stopping(Protocol):
    """Is given the workers that run, so that a signal can stop them."""

    def __call__(self, running: Sequence[Worker], /) -> None: ...


@declaring_door
def run(
    app: App, *, budget: float | timedelta = BUDGET_SECONDS_DEFAULT, endpoints: bool = False
) -> Tick:
    """Do what is due, within a budget, and leave no session open.

    In this order: the instants of schedules; maintenance, among it jobs that become due; the
    handlers, with what lost workers held; the drains of the app. Two ticks may overlap: each takes
    other jobs.

    Args:
        app: the application.
        budget: seconds or a timedelta, 1 s to an hour. After three quarters of it no further job
            starts; at its end the jobs that still run are released, without using an attempt.
        endpoints: also expand published events and send deliveries.

    Raises:
        ConfigError: an argument is refused, or the app has no address.
        DatabaseUnavailable: no connection.
        SchemaError: the schema is missing, too old or too new.
    """
    return run_to_the_end(arun(app, budget=budget, endpoints=endpoints))


@declaring_door
async def arun(
    app: App, *, budget: float | timedelta = BUDGET_SECONDS_DEFAULT, endpoints: bool = False
) -> Tick:
    """Asynchronous form of ``run``, on the running event loop."""
    return await tick(app, budget=budget, endpoints=endpoints)


def checked_budget(value: Any, name: str = "budget") -> float:
    """Return a budget in seconds.

    Raises:
        ConfigError: it is not a duration, or out of range.
    """
    try:
        seconds = checks.checked_seconds(value, name)
    except InvalidJob as error:
        raise ConfigError(name, str(error.problem)) from None
    if not BUDGET_SECONDS_MIN <= seconds <= BUDGET_SECONDS_MAX:
        raise ConfigError(name, f"is {seconds:g} s, not within 1 s to an hour", value=value)
    return seconds


def as_json(found: Tick) -> dict[str, Any]:
    """Return what is known of a tick as it is written in JSON."""
    return {
        "done": found.done,
        "retried": found.retried,
        "dead": found.dead,
        "released": found.released,
        "scheduled": found.scheduled,
        "is_left": found.is_left,
        "next_at": None if found.next_at is None else found.next_at.isoformat(),
        "seconds": round(found.seconds, 3),
    }


async def tick(
    app: App,
    *,
    budget: float | timedelta,
    endpoints: bool = False,
    location: tuple[str, str, bool] | None = None,
    on_start: Stopping = lambda _running: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Tick:
    """Do as ``arun``.

    Args:
        app: see ``run``.
        budget: see ``run``.
        endpoints: see ``run``.
        location: see ``Worker``.
        on_start: called with the workers before they run.
        is_stopped: whether a signal came: then nothing more begins.
    """
    require_app(app)
    began_at = time.monotonic()
    ends_at = began_at + checked_budget(budget)
    grace = min(app.settings.worker.grace_seconds, _GRACE_SHARE * (ends_at - began_at))
    settings = replace(app.settings.worker, grace_seconds=grace, health=None)
    # Before anything is done: it may refuse the declarations.
    phases = phases_of(app, settings, location=location, endpoints=endpoints)
    try:
        async with _Look(app, settings) as look:
            await look.decide()
            await look.maintain(_MAINTENANCE_SHARE * (ends_at - began_at))
        is_cut = False
        all_stats: list[Stats] = []
        for workers in phases:
            seconds = ends_at - grace - time.monotonic()
            if seconds <= 0 or is_stopped():
                is_cut = True
                break
            on_start(workers)
            stats, was_cut = await _run_for(workers, settings, seconds)
            all_stats += stats
            is_cut = is_cut or was_cut
        async with _Look(app, settings) as again:
            next_at, is_due = await again.next_due()
    finally:
        close_kept()
    total = {
        name: sum(getattr(stats, name) for stats in all_stats)
        for name in ("done", "retried", "dead", "released")
    }
    return Tick(
        **total,
        scheduled=look.scheduled,
        is_left=is_cut or is_stopped() or is_due,
        next_at=next_at,
        seconds=time.monotonic() - began_at,
    )


async def look_at(app: App) -> Tick:
    """Return whether work is left and when more is due, without running a job.

    Raises:
        PermissionDenied: the role may not count jobs.
    """
    require_app(app)
    began_at = time.monotonic()
    settings = app.settings.worker
    async with _Look(app, settings) as looking:
        next_at, is_due = await looking.next_due()
        ready = await looking.ready(settings.queue_weights or app.kinds.queues())
    return Tick(
        done=0,
        retried=0,
        dead=0,
        released=0,
        scheduled=0,
        is_left=is_due or ready > 0,
        next_at=next_at,
        seconds=time.monotonic() - began_at,
    )


async def _run_for(
    workers: Sequence[Worker], settings: WorkerSettings, seconds: float
) -> tuple[list[Stats], bool]:
    """Run workers until they have nothing to do, or are stopped after a time.

    Return what each did, and whether they were stopped.
    """
    was_cut = False

    def stop() -> None:
        nonlocal was_cut
        was_cut = True
        for worker in workers:
            worker.stop()

    running = asyncio.create_task(run_workers(workers, settings, until_idle=True))
    timer = asyncio.get_running_loop().call_later(seconds, stop)
    try:
        return await asyncio.shield(running), was_cut
    except asyncio.CancelledError:
        # A client of the route went away: end in order, so that no lease is left to be revoked.
        stop()
        with contextlib.suppress(Exception):
            await running
        raise
    finally:
        timer.cancel()


class _Look:
    """The session of a tick beside those of its workers."""

    def __init__(self, app: App, settings: WorkerSettings) -> None:
        self._session = Session(
            app.dsn,
            name="forebay tick",
            connect_seconds=settings.connect_timeout_seconds,
            lock_timeout="1s",
            pooler=settings.pooler,
        )
        declared = app._internals.declared_schedules()
        self._scheduler = (
            None if settings.schedules == "off" else Scheduler(lambda: self._session, declared)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @property
    def scheduled(self) -> int:
        """How many jobs the schedules have enqueued."""
        return 0 if self._scheduler is None else self._scheduler.enqueued

    async def decide(self) -> None:
        """Apply the declared schedules, and decide the instants that are due."""
        if self._scheduler is not None:
            await self._scheduler.apply()
            await self._scheduler.step()

    async def maintain(self, seconds: float) -> None:
        """Do each duty of maintenance that the time allows."""
        await Maintenance(self._session).run_all(seconds)

    async def ready(self, names: Collection[str]) -> int:
        """Return how many jobs of some queues are ready."""
        found = await self._session.run(jobs.depth())
        return sum(each.ready for each in found if each.queue in names)

    async def next_due(self) -> tuple[datetime | None, bool]:
        """Return when something is due next, None if nothing is within a day, and whether it is
        due now.
        """
        found = await self._session.run(
            maintenance.maintain(
                5000,
                leader_id=0,
                duties=[],
                seconds=1.0,
                observed_seconds=None,
                sleep_millis=None,
            )
        )
        wait = timedelta(milliseconds=found.sleep_millis)
        times = [found.server_time + wait] if wait < _NOTHING_DUE else []
        if self._scheduler is not None:
            await self._scheduler.look()
            times += self._scheduler.next_instants
        next_at = min(times, default=None)
        is_due = next_at is not None and next_at <= found.server_time
        return next_at, is_due or found.promoted > 0

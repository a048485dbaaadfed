"""Schedules: every worker decides their instants, and the database lets one decide each.

A scheduler computes instants from the definitions and the clock of the database.
``forebay.fire_v1`` refuses what another scheduler decided first. So workers need no leader, and any
one that runs is enough. To save calls, one of them leads: it decides at each instant, and the
others look about once a minute: see ``docs/design/schedules.md``.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from forebay.errors import DatabaseUnavailable, ForebayError, ForeignCluster, SchemaError
from forebay.in_threads import in_thread
from forebay.model.text import logger
from forebay.ops import schedules
from forebay.policy.cron import Timing
from forebay.worker.ground.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from forebay.config import WorkerSettings
    from forebay.db.session import Session
    from forebay.model.schedules import Schedule
    from forebay.ops.schedules import Definition
    from forebay.worker.ground.application import Application
    from forebay.worker.ground.signals import Signals

log = logger("forebay.scheduler")

#: Longest pause between two looks at the definitions.
_POLL_SECONDS: Final = 5.0
#: Pause of a scheduler that does not lead, and between its checks whether it does.
_FOLLOWER_SECONDS: Final = 60.0
_LEADS_SECONDS: Final = 0.5
#: Shortest pause; after an instant, a random part of it keeps many schedulers from calling at the
#: same moment.
_SPREAD_SECONDS: Final = 0.05
#: Pause before a decision that failed, or that another transaction keeps from being made, is tried
#: again.
_AGAIN_SECONDS: Final = 1.0
#: More time than this between an instant and the position is searched in a thread.
_LONG_SECONDS: Final = 600.0
#: Instants of the last minute are never missed ones; a schedule has at most this many.
_FRESH_MAX: Final = 61


class Scheduler:
    """Decides the instants of all schedules of a database.

    Owns the definitions as last read. It guarantees that no instant is passed over: an instant is
    decided by this scheduler or another one, or stays undecided and is computed again. Leaves
    nothing behind.

    Args:
        session: returns a connection in autocommit mode; other parts may use it too.
        app: the name of the application, and the schedules that it declares; applied once, at the
            beginning.
        outage: what the parts of the worker know about the database.
        leads: returns whether this scheduler decides at each instant. One that does not looks once
            a minute whether any is left undecided.
    """

    def __init__(
        self,
        session: Callable[[], Session],
        app: tuple[str, Sequence[Schedule]],
        outage: Outage | None = None,
        *,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._session = session
        self._leads = leads
        self._app = app
        self._outage = outage or Outage()
        self._digest: str | None = None
        self._schedules: dict[int, _Known] = {}
        self._reported: set[str] = set()
        self._failures = 0
        #: How many jobs it enqueued.
        self.enqueued = 0

    async def run(self) -> None:
        """Decide instants until cancelled."""
        is_applied = False
        while True:
            try:
                if not is_applied:
                    await self.apply()
                    is_applied = True
                pause = await self.step()
            except DatabaseUnavailable as error:
                self._failures += 1
                self._outage.failed("scheduler", error)
                await self._outage.pause(self._failures)
                continue
            except (ForeignCluster, SchemaError) as error:
                self._report(str(error))
                pause = _POLL_SECONDS
            else:
                self._failures = 0
                self._outage.answered("scheduler")
            await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        """Sleep; one that does not lead sleeps for about a minute, or until it leads."""
        if not self._leads():
            seconds = _FOLLOWER_SECONDS * random.uniform(0.75, 1.25)
            until = time.monotonic() + seconds
            while not self._leads() and (left := until - time.monotonic()) > 0:  # noqa: ASYNC110 - a leadership also ends by the clock
                await asyncio.sleep(min(left, _LEADS_SECONDS))
            return
        await asyncio.sleep(seconds)

    async def step(self) -> float:
        """Decide what is due; return the seconds until something can be due again."""
        now = await self.look()
        read_at = time.monotonic()
        for known in self._schedules.values():
            if known.next_at is not None and known.next_at <= now:
                await self._decide(known, now)
        now += timedelta(seconds=time.monotonic() - read_at)
        wait = min([(at - now).total_seconds() for at in self.next_instants], default=_POLL_SECONDS)
        if any(each.is_failing for each in self._schedules.values()):
            wait = max(wait, _AGAIN_SECONDS)
        spread = random.uniform(0.2, 1.0)
        if wait < _POLL_SECONDS / 2:
            return max(0.0, wait) + _SPREAD_SECONDS * spread
        return min(wait, _POLL_SECONDS * spread) + _SPREAD_SECONDS * spread

    async def look(self) -> datetime:
        """Read the definitions if they have changed; return the time of the server."""
        found = await self._session().run(schedules.read_schedules(self._digest))
        if found.definitions is not None:
            await self._know(found.definitions)
        self._digest = found.digest
        return found.server_time

    @property
    def next_instants(self) -> list[datetime]:
        """The next instant of each schedule that was read."""
        return [each.next_at for each in self._schedules.values() if each.next_at is not None]

    async def apply(self) -> None:
        """Make the schedules in the database what the application declares."""
        name, declared = self._app
        try:
            differences = await self._session().run(schedules.apply_schedules(name, declared))
        except (DatabaseUnavailable, SchemaError):
            raise
        except ForebayError as error:
            log.warning("declared schedules are not applied: %s", error)
            return
        for each in differences:
            if each.action in ("create", "change"):
                log.info("schedule %s: %sd as declared", each.name, each.action)
            elif each.action == "kept":
                log.info("schedule %s: changed by hand, not as declared", each.name)
            elif each.action == "conflict":
                log.warning("schedule %s: %s, not as declared here", each.name, each.detail)
            else:
                log.warning(
                    (
                        "schedule %s is not declared any more and still runs; remove it with "
                        "`forebay schedules drop %s`"
                    ),
                    each.name,
                    each.name,
                )

    async def _know(self, definitions: list[Definition]) -> None:
        before = self._schedules
        self._schedules = {}
        for each in definitions:
            old = before.get(each.schedule_id)
            if old is not None and old.definition.revision == each.revision:
                old.move(each)
                self._schedules[each.schedule_id] = old
                continue
            try:
                self._schedules[each.schedule_id] = _Known(each)
            except ForebayError as error:
                self._report(f"schedule {each.name}: {error}")
                await self._session().run(schedules.record_problem(each, str(error)))

    async def _decide(self, known: _Known, now: datetime) -> None:
        definition = known.definition
        if (now - definition.decided_to).total_seconds() > _LONG_SECONDS:
            instants, older = await in_thread(known.undecided, now)
        else:
            instants, older = known.undecided(now)
        if not instants:
            # Only instants before the catch-up window: the newest of them stands for all.
            if older is None:
                return
            instants, older = [older], None
        try:
            fired = await self._session().run(schedules.fire(definition, instants, older))
        except (DatabaseUnavailable, ForeignCluster, SchemaError):
            raise
        except Exception as error:
            known.is_failing = True
            self._digest = None  # Read it again: the definition or the position may be the reason.
            self._report(f"schedule {definition.name}: {error}")
            await self._session().run(schedules.record_problem(definition, str(error)))
            return
        known.is_failing = fired.status == "busy"
        self.enqueued += fired.enqueued
        if fired.decided_to is not None:
            known.move_to(fired.decided_to)
        elif fired.status == "paused":
            log.warning("schedule %s is paused: one of its jobs is dead", definition.name)
        if fired.status in ("stale", "paused"):
            self._digest = None
            known.next_at = None

    def _report(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            log.warning("%s", text)


def firing(
    app: Application,
    settings: WorkerSettings,
    session: Callable[[], Session],
    signals: Signals,
    *,
    leads: Callable[[], bool],
) -> list[Callable[[], Awaitable[None]]]:
    """Return the service of a worker that decides instants, if its settings and its application say
    so.

    Args:
        app: has the declared schedules.
        settings: whether the worker decides instants.
        session: returns the connection for the next call.
        signals: has what the parts of the worker know about the database.
        leads: returns whether this worker is the leader for schedules.
    """
    declared = app.declared_schedules()
    if declared is None or not decides_schedules(app, settings):
        return []
    return [Scheduler(session, declared, signals.outage, leads=leads).run]


def decides_schedules(app: Application, settings: WorkerSettings) -> bool:
    """Whether a worker decides instants: its settings do not forbid it, and it is not a drain."""
    return settings.schedules != "off" and app.declared_schedules() is not None


class _Known:
    """A schedule as last read, and its next instant."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.is_failing = False
        self._timing = Timing(
            definition.cron, definition.every, definition.tz, definition.starts_at
        )
        self.next_at: datetime | None = None
        self.move_to(definition.decided_to)

    def move(self, definition: Definition) -> None:
        """Take the position of a definition of the same revision."""
        self.definition = definition
        self.move_to(definition.decided_to)

    def move_to(self, decided_to: datetime) -> None:
        self.definition = _moved(self.definition, decided_to)
        self.next_at = next(self._timing.after(decided_to), None)

    def undecided(self, now: datetime) -> tuple[list[datetime], datetime | None]:
        """Return the instants to decide; see ``Timing.undecided``."""
        definition = self.definition
        return self._timing.undecided(
            definition.decided_to,
            now,
            catch_up=definition.catch_up,
            newest=definition.missed_max + _FRESH_MAX,
        )


def _moved(definition: Definition, decided_to: datetime) -> Definition:
    return msgspec.structs.replace(definition, decided_to=decided_to)

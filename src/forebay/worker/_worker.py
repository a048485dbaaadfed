"""A worker process: its parts, what connects them, and how it starts and stops.

The claimer asks which lanes are ready, plans how many jobs to take of which, and claims; the executor runs them, the
settler writes how they ended, the heartbeat keeps the lease alive from a thread of its own, maintenance keeps the log in order.
Of several idle workers one looks closely and one does the maintenance: the *leaders*.

What a crash leaves: jobs claimed and not settled. Their lease is revoked after ``suspect_seconds`` without a
heartbeat, and they come back as suspects, each run alone in a child process.

A lost connection during a claim leaves a doubt: the claim may have been committed. The lease is then *retired*: what
is known to be in it is finished and settled, nothing more is claimed under it, and when it is closed the database sends
back whatever it held in vain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any

from forebay.config import WorkerSettings
from forebay.db.session import Session
from forebay.errors import ConfigError, DatabaseUnavailable
from forebay.ops import protocol
from forebay.policy.backoff import reconnect_seconds
from forebay.policy.leadership import HOLDERS
from forebay.worker._children import Children, start_of
from forebay.worker._claimer import Claimer
from forebay.worker._executor import Executor
from forebay.worker._heartbeat import Heartbeat, Held
from forebay.worker._leases import LeaseKeeper
from forebay.worker._maintenance import Maintenance
from forebay.worker._polling import PollLeadership
from forebay.worker._progress import ProgressReports
from forebay.worker._settler import Settler
from forebay.worker._signals import Signals
from forebay.worker._stats import CountedOutcomes, Stats
from forebay.worker._suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from forebay.ops.protocol import HeartbeatAnswer
    from forebay.worker._application import Application
    from forebay.worker._held import Batch, Lease
    from forebay.worker._messages import Start

log = logging.getLogger("forebay.worker")

#: A call that takes longer has lost its connection without a word; none waits for a lock so long.
_CALL_SECONDS = 20.0


class Worker:
    """Runs the jobs of some queues.

    Owns the parts of a worker process and its connections. It promises that every claimed job is settled, released, or left to a
    lease that another worker revokes, and that stopping takes a bounded time, whatever the database does.

    A crash leaves jobs claimed and not settled; another worker revokes their lease, and they come back as suspects.

    Args:
        app: what the application with the handlers keeps for its workers.
        dsn: the database.
        queues: queues to serve with their weights; None means all queues the app's kinds wait in.
        settings: see ``WorkerSettings``; None means its defaults.
        group: the group of each queue to read for.
        location: where a child process finds the app: (module, attribute, is_script); None means as the app itself
            knows. Without it suspects run in this process.

    Raises:
        ConfigError: there is no queue to serve.
    """

    def __init__(
        self,
        app: Application,
        dsn: str,
        *,
        queues: Mapping[str, int] | None = None,
        settings: WorkerSettings | None = None,
        group: str = "default",
        location: tuple[str, str, bool] | None = None,
    ) -> None:
        self._app = app
        self._dsn = dsn
        self._settings = settings or WorkerSettings()
        weights = queues or self._settings.queue_weights
        self._weights = dict(weights) if weights else dict.fromkeys(app.kinds.queues(), 1)
        if not self._weights:
            raise ConfigError(
                "queue",
                "names no queue, and the app declares no job",
                hint="Declare a handler with @app.job.",
            )
        self._group = group
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._location = location or app.location()
        self.stats = Stats()
        self._signals = Signals()
        #: Set when the worker has its lease and looks for work.
        self.started = self._signals.started
        self._leader_id = secrets.randbelow(HOLDERS)
        self._heartbeat: Heartbeat | None = None
        self._until_idle = False

    # --- from outside ---

    def stop(self) -> None:
        """Stop claiming, finish what runs within the grace time, release the rest."""
        self._signals.stop()

    def stop_now(self) -> None:
        """Stop without the grace time."""
        self._signals.stop(at_once=True)

    async def run(self, *, until_idle: bool = False) -> Stats:
        """Work until stopped, or until there is nothing left to do.

        Args:
            until_idle: return when no job is ready, claimed or running; scheduled and retrying jobs that are not due stay.

        Raises:
            SchemaError: the schema is missing or of another version.
            ForeignCluster: the schema was restored from another cluster and not adopted.
        """
        self._until_idle = until_idle
        start = self._child_start()
        self._require_location(start)
        self._make_sessions()
        self._progress = ProgressReports()
        self._settler = Settler(self._settles, self._on_lease_lost, self._on_freed)
        self._maintenance = Maintenance(
            self._maintenance_session,
            on_work=self._signals.wake.set,
            leader_id=None if until_idle else self._leader_id,
        )
        self._children = Children(start, self._settings, self._progress.note)
        # Apart from those of suspects, so that neither wait for each other.
        self._processes = Children(start, self._settings, self._progress.note)
        async with contextlib.AsyncExitStack() as stack:
            self._make_parts(await self._app.open_resources(stack))
            heartbeat = self._heartbeat = self._make_heart()
            claimer = self._make_claimer(heartbeat)
            tasks: list[asyncio.Task[None]] = []
            try:
                await self._leases.open(first=True)
                self._executor.transactions.is_pooled = self._claims.is_pooled
                if start is not None:
                    start.is_pooled = self._claims.is_pooled
                heartbeat.start()
                tasks += [asyncio.create_task(_supervised(service)) for service in self._services()]
                await claimer.run()
                await self._finish()
            finally:
                heartbeat.stop()
                sessions = (self._settles, self._maintenance_session, self._notifications)
                for session in sessions:
                    session.cut()  # A server that is gone would not answer a polite cancellation.
                await asyncio.sleep(0.01)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await heartbeat.join(0.5)
                await self._children.close()
                await self._processes.close()
                await self._executor.close()
                for session in (self._claims, *sessions):
                    await session.close()
        return self.stats

    # --- the parts ---

    @property
    def _application_name(self) -> str:
        return f"forebay {self.name}"[:63]

    def _child_start(self) -> Start | None:
        """Return what a child process needs to start; None when it would not find the app."""
        if self._location is None:
            return None
        module, attribute, is_script = self._location
        return start_of(
            module,
            attribute,
            is_script=is_script,
            dsn=self._dsn,
            name=self._application_name,
            group=self._group,
            settings=self._settings,
        )

    def _require_location(self, start: Start | None) -> None:
        wanting = [kind.name for kind in self._app.kinds if kind.in_process]
        if start is None and wanting:
            raise ConfigError(
                f"kind {wanting[0]}",
                "is to run in a process of its own, which cannot find the app",
                hint="Make the app a global of a module that can be imported.",
            )

    def _make_sessions(self) -> None:
        settings, name = self._settings, self._application_name
        connect = settings.connect_timeout_seconds

        def new_session(lock_timeout: str) -> Session:
            return Session(
                self._dsn,
                name=name,
                lock_timeout=lock_timeout,
                connect_seconds=connect,
                call_seconds=_CALL_SECONDS,
                pooler=settings.pooler,
            )

        self._claims, self._settles = new_session("5s"), new_session("5s")
        self._maintenance_session = new_session("1s")
        self._notifications = Session(
            self._dsn, name=name, connect_seconds=connect, pooler=settings.pooler
        )

    def _make_parts(self, resources: Mapping[str, Any]) -> None:
        """Make what runs jobs, and what keeps the leases that they are claimed under."""
        settings = self._settings
        self._executor = Executor(
            self._app.kinds,
            settings,
            CountedOutcomes(self._settler, self.stats),
            dsn=self._dsn,
            name=self._application_name,
            group=self._group,
            resources=resources,
            on_free=self._signals.wake.set,
            on_lease_lost=self._on_lease_lost,
            on_progress=self._progress.note,
            processes=self._processes,
        )
        self._suspects = Suspects(
            self._claims,
            self._children,
            self._executor,
            self._settler,
            self.stats,
            group=self._group,
            on_lease_lost=self._on_lease_lost,
        )
        self._leadership = PollLeadership(
            self._claims, settings, self._leader_id, alone=self._until_idle
        )
        self._leases = LeaseKeeper(
            self._claims,
            settings,
            executor=self._executor,
            settler=self._settler,
            signals=self._signals,
            stats=self.stats,
            name=self.name,
            queues=self._weights,
            group=self._group,
            on_groups=self._leadership.set_groups,
        )

    def _make_heart(self) -> Heartbeat:
        settings = self._settings
        trusted = settings.lease_seconds - settings.lease_margin_seconds
        return Heartbeat(
            self._dsn,
            name=self._application_name,
            heartbeat_seconds=settings.heartbeat_seconds,
            idle_seconds=_idle_heartbeat_seconds(settings),
            spread_seconds_max=trusted / 3,
            stall_seconds=trusted,
            held=self._held,
            heard=self._on_heartbeat,
            pooler=settings.pooler,
        )

    def _make_claimer(self, heartbeat: Heartbeat) -> Claimer:
        self._claimer = Claimer(
            self._app,
            self._claims,
            self._settings,
            self._weights,
            leases=self._leases,
            executor=self._executor,
            suspects=self._suspects,
            leadership=self._leadership,
            signals=self._signals,
            stats=self.stats,
            on_claimed=heartbeat.hurry,
            is_finished=self._is_finished if self._until_idle else None,
        )
        return self._claimer

    def _services(self) -> list[Callable[[], Awaitable[None]]]:
        """Return what runs beside the claimer until the worker ends."""
        services: list[Callable[[], Awaitable[None]]] = [
            self._settler.run,
            self._maintenance.run,
            self._leases.watch,
            lambda: self._progress.run(self._maintenance_session),
            self._leases.close_retired,
        ]
        if not self._leadership.without_notifications:
            services.append(self._listen)
        return services

    # --- what the parts report ---

    def _on_lease_lost(self, lease: Lease) -> None:
        self._leases.lose(lease)

    def _on_freed(self, batches: list[Batch]) -> None:
        self._claimer.free(batches)

    def _held(self) -> Held:
        leases = [lease for lease in self._leases.open_leases.values() if not lease.lost]
        duties = self._maintenance.leaderless + self._leadership.missing
        return Held(
            [lease.lease_id for lease in leases],
            self._executor.running_job_ids() + self._children.running_job_ids(),
            [] if self._until_idle or self._signals.is_stopping else duties,
            is_busy=any(lease.batches for lease in leases),
        )

    def _on_heartbeat(self, beat: HeartbeatAnswer, asked: Sequence[int], sent_at: float) -> None:
        self._leases.confirm(beat, asked, sent_at)
        if beat.cancelled_jobs:
            self._executor.cancel(beat.cancelled_jobs)
            self._children.cancel(set(beat.cancelled_jobs))
        if beat.leaderless:
            self._assume_leaderless(beat.leaderless)

    def _assume_leaderless(self, duties: Collection[int]) -> None:
        self._maintenance.assume_leaderless(duties)
        if self._leadership.assume_leaderless(duties):
            self._signals.wake.set()

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                async for queue in self._notifications.notifications(protocol.CHANNEL):
                    failures = 0
                    if queue in self._weights:
                        self._claimer.notify(queue)
                    elif queue.isdecimal():  # No queue's name: a leader resigned.
                        self._assume_leaderless([int(queue)])
            except DatabaseUnavailable as error:
                failures += 1
                log.debug("the wakeup is silent: %s", error)
            await asyncio.sleep(min(reconnect_seconds(max(failures, 1), random.random()), 10.0))

    # --- the end ---

    def _is_quiet(self) -> bool:
        return self._executor.is_idle and self._suspects.is_idle

    async def _is_finished(self) -> bool:
        """Nothing was ready: return whether nothing is left to do at once."""
        if not self._is_quiet():
            await self._signals.sleep(self._settings.poll_seconds)
            return False
        if not await self._settler.drained(5.0):
            return False
        promoted = await self._maintenance.run_once()
        lanes = await self._claims.run(protocol.ready(list(self._leases.groups)))
        return not promoted and not lanes and self._is_quiet() and self._settler.is_idle

    async def _finish(self) -> None:
        """Finish what runs within the grace time, release the rest, close the leases."""
        settings, signals = self._settings, self._signals
        signals.is_stopping = True
        self._maintenance.step_down()
        back = self._executor.release_waiting()
        until = time.monotonic() + (0.0 if signals.at_once else settings.grace_seconds)
        while not self._is_quiet() and time.monotonic() < until and not signals.at_once:
            signals.wake.clear()
            await signals.sleep(min(0.2, max(0.0, until - time.monotonic())))
        back += self._executor.release_running()
        await self._suspects.stop()
        if back:
            log.info("%s jobs handed back", back)
        is_short = signals.at_once or self._claimer.was_cut
        if not await self._settler.drained(1.0 if is_short else 3.0):
            log.warning(
                "not everything could be settled; the rest comes back when the lease is revoked"
            )
            return
        if await self._leases.close_all() and not self._until_idle:
            await self._leadership.resign()


def _idle_heartbeat_seconds(settings: WorkerSettings) -> float:
    """Return the pause between heartbeats while no job runs, among few workers: long, at most three times the usual."""
    most = min(settings.suspect_seconds, settings.lease_seconds - settings.lease_margin_seconds) / 2
    return max(settings.heartbeat_seconds, min(3 * settings.heartbeat_seconds, most))


async def _supervised(service: Any) -> None:
    """Run a service for ever: what it did not expect is logged, and it starts again."""
    while True:
        try:
            await service()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a service of the worker failed and is started again")
            await asyncio.sleep(1.0)

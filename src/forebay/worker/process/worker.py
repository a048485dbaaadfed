"""A worker process: its parts, their connections, and how it starts and stops.

The claimer finds ready lanes, plans how many jobs to take from each, and claims them. The executor
runs the jobs. The settler writes how they ended. The heartbeat keeps the lease alive from a
separate thread. Maintenance runs its tasks. Of several idle workers, one polls often for its group
and one does the maintenance: the *leaders*.

After a crash, jobs are claimed and not settled. Another worker revokes their lease after
``suspect_seconds`` without a heartbeat. The jobs come back as suspects, and each runs alone in a
child process.

If the connection is lost during a claim, the claim may have been committed. The lease is then
*retired*: the worker finishes and settles the jobs it knows, claims nothing more under the lease,
and closes it. Closing releases the jobs that the worker does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any

from forebay.config import (
    WorkerSettings,
    checked_group,
    parse_queue_weights,
)
from forebay.db.address import parsed_address
from forebay.db.session import Session
from forebay.errors import ConfigError
from forebay.forks import worker_runs
from forebay.model.text import counted, logger, replaced_controls, whole_number
from forebay.ops import protocol
from forebay.ops.maintenance import DUE
from forebay.policy.leadership import LEADER_IDS, MAINTENANCE, SCHEDULES
from forebay.worker.claim.claimer import Claimer
from forebay.worker.claim.polling import PollLeadership
from forebay.worker.ground.application import OneHandlerApplication
from forebay.worker.ground.common import Common
from forebay.worker.ground.job_log import JobLog
from forebay.worker.lease.heartbeat import Heartbeat, Held
from forebay.worker.lease.identity import identity
from forebay.worker.lease.leases import LeaseKeeper
from forebay.worker.maintain.maintenance import Leading, Maintenance
from forebay.worker.maintain.scheduler import decides_schedules, firing
from forebay.worker.process._deaths import log_deaths
from forebay.worker.process._health import HealthCheck
from forebay.worker.process._loop_watch import LoopWatch
from forebay.worker.process._metrics import exporter_of
from forebay.worker.process.probes import answer_probes
from forebay.worker.run.children import start_of
from forebay.worker.run.runners import Runners
from forebay.worker.settle.breakers import BreakerReports
from forebay.worker.settle.events import Announcer
from forebay.worker.settle.listeners import Listeners, require_middleware
from forebay.worker.settle.outcomes import RecordedOutcomes
from forebay.worker.settle.progress import ProgressReports
from forebay.worker.settle.settlement_session import SettlementSession
from forebay.worker.settle.settler import Settler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence

    from forebay.arguments.kinds import Kinds
    from forebay.config import Queues
    from forebay.model.attempts import AttemptEnded
    from forebay.ops.protocol import HeartbeatAnswer
    from forebay.worker.ground.application import Application
    from forebay.worker.ground.held import Lease
    from forebay.worker.ground.stats import Stats
    from forebay.worker.run.messages import Start

log = logger("forebay.worker")

#: Time in which a call whose connection was cut notices it; it takes a moment.
_CUT_SECONDS = 0.5

#: A call that takes longer has silently lost its connection: no call waits this long for a lock.
_CALL_SECONDS = 20.0


class Worker:
    """Runs the jobs of some queues.

    Owns the parts of a worker process and its connections. It guarantees that every claimed job is
    settled, released, or left to a lease that another worker revokes, and that stopping takes a
    bounded time, even without the database.

    Args:
        app: the part of the application that workers use.
        dsn: the database.
        queues: queues to serve: names, names with weights, or their short form; None means all
            queues of the app's kinds.
        settings: see ``WorkerSettings``; None means its defaults.
        group: the consumer group to serve in each queue.
        location: where a child process imports the app from: (module, attribute, is_script); None
            means the app's own location. Without a location suspects run in this process.

    Attributes:
        on_attempt: called with the end of each attempt, on the event loop; for tests.
        on_asked: called on the event loop when an operator has asked the worker to stop; stops it.
        asked_by: who has asked; None: no operator.
        answers_probes: whether it answers probes itself; set it before it runs.

    Raises:
        ConfigError: no queue to serve, or an argument is refused.
    """

    def __init__(
        self,
        app: Application,
        dsn: str,
        *,
        queues: Queues | None = None,
        settings: WorkerSettings | None = None,
        group: str = "default",
        location: tuple[str, str, bool] | None = None,
    ) -> None:
        parsed_address(dsn)
        settings = settings or WorkerSettings()
        self._app = app
        self._settings = settings
        self._common = common = Common(
            app,
            dsn,
            settings,
            checked_group(group),
            f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
            _weights_of(app, settings.queue if queues is None else queues),
        )
        self._signals = common.signals
        self._location = location or app.location()
        self._describe = identity(
            common, self._location, schedules=decides_schedules(app, settings)
        )
        self.on_attempt: Callable[[AttemptEnded], None] | None = None
        self.on_asked: Callable[[], None] = self.stop
        self.asked_by: str | None = None
        self.answers_probes = True
        self.name = common.name
        self.stats = common.stats
        #: Whether the worker lives, and whether it is ready.
        self.health = HealthCheck(self._signals, settings, intake=app.intake)
        #: Set when the worker has its lease and looks for work.
        self.started = self._signals.started
        self._leader_id = secrets.randbelow(LEADER_IDS)

    @property
    def dsn(self) -> str:
        """The database."""
        return self._common.dsn

    def stop(self) -> None:
        """Stop claiming, finish running jobs within the grace time, release the rest."""
        self._signals.stop()

    def stop_now(self) -> None:
        """Stop without the grace time."""
        self._signals.stop(at_once=True)

    async def run(self, *, until_idle: bool = False) -> Stats:
        """Work until stopped, or until there is nothing left to do.

        Args:
            until_idle: return when no job is ready, claimed or running, after taking over what
                lost workers held; scheduled and retrying jobs that are not due stay.

        Raises:
            SchemaError: the schema is too new; or it is missing or too old, and the setting
                ``without_schema`` is fail, or ``until_idle`` is set.
            ForeignCluster: the schema was restored from another cluster and not adopted.
            ConfigError: the process cannot listen at the address of the setting ``health``.
        """
        app, common, outage = self._app, self._common, self._signals.outage
        common.until_idle = until_idle
        start = None if self._location is None else start_of(common, self._location)
        _require_location(start, app.kinds, self._settings)
        require_middleware(app.kinds, app.middleware)
        self._make_sessions()
        self._progress = ProgressReports()
        outage.pause_seconds_max = self._settings.reconnect_seconds_max
        outage.on_end = self._on_outage_end
        self._listeners = Listeners(app.listeners, app.middleware, self.stats)
        self._settler = Settler(
            SettlementSession(self._settles, self._claims),
            self._on_lease_lost,
            lambda batches: self._claimer.free(batches),
            outage=outage,
            listeners=self._listeners,
        )
        leading = Leading(
            self._leader_id,
            [SCHEDULES] if decides_schedules(app, self._settings) else [],
            lambda: self._leadership.is_announced,
        )
        self._maintenance = Maintenance(
            self._maintenance_session,
            on_work=lambda: self._claimer.look(),
            on_worker_lost=self._listeners.worker_lost,
            outage=outage,
            leading=None if until_idle else leading,
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(worker_runs())
            self.health.begin()
            if self.answers_probes:
                text = exporter_of(common.dsn, self.health, [self.stats]).atext
                probes = answer_probes(self.health, self.name, self._settings.health, text)
                await stack.enter_async_context(probes)
            self._make_parts(await app.open_resources(stack), start)
            self.health.watch(self._leases)
            heartbeat, claimer = self._heartbeat, self._claimer
            loop_watch = LoopWatch(self._executor.coroutine_calls)
            tasks: list[asyncio.Task[None]] = []
            try:
                await self._leases.open(first=True)
                self._runners.set_pooled(self._claims.is_pooled)
                heartbeat.start()
                loop_watch.start()
                tasks += [asyncio.create_task(_supervised(service)) for service in self._services()]
                await claimer.run(self._is_finished if until_idle else None)
                await self._finish()
                await self._listeners.drained()
            finally:
                loop_watch.stop()
                await _to_the_end(self._close_parts(tasks))
        return self.stats

    async def _close_parts(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        heartbeat = self._heartbeat
        heartbeat.stop()
        sessions = (self._claims, self._settles, self._maintenance_session)
        # A server that is gone would not answer a cancel request.
        await asyncio.gather(*(session.end(_CUT_SECONDS) for session in sessions))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await heartbeat.join(0.5)
        await self._runners.close()
        self._listeners.close()
        for session in sessions:
            await session.close()

    # --- the parts ---

    def _make_sessions(self) -> None:
        def new_session(lock_timeout: str) -> Session:
            return Session(
                self._common.dsn,
                name=self._common.application_name,
                lock_timeout=lock_timeout,
                connect_seconds=self._settings.connect_timeout_seconds,
                call_seconds=_CALL_SECONDS,
                on_deaths=lambda found: log_deaths(found, self._job_log.muted),
                pooler=self._settings.pooler,
            )

        self._claims, self._settles = new_session("5s"), new_session("5s")
        self._maintenance_session = new_session("1s")

    def _make_parts(self, resources: Mapping[str, Any], start: Start | None) -> None:
        """Create the parts that claim and run jobs, and those that keep the leases."""
        common = self._common
        self._job_log = JobLog(self._app.kinds)
        announcer = Announcer(
            self._listeners,
            self.on_attempt,
            kinds=self._app.kinds,
            group=common.group,
            worker=self.name,
        )
        self._breakers = BreakerReports(self._app.kinds, self.name, lambda: common.followed)
        listens = [part.ended for part in (self._breakers, announcer) if part.is_needed]
        outcomes = RecordedOutcomes(
            self._settler,
            self._progress,
            self.stats,
            self._job_log,
            on_end=listens,
            holds_back=self._breakers.holds_back,
        )
        self._runners = Runners(common, self._claims, outcomes, resources, start)
        self._executor = self._runners.executor
        self._leadership = PollLeadership(
            self._claims, self._settings, self._leader_id, alone=common.until_idle
        )
        self._leases = LeaseKeeper(
            common,
            self._claims,
            self._executor,
            self._settler,
            describe=self._describe,
            on_groups=self._on_groups,
        )
        self._heartbeat = Heartbeat(common, self._held, self._on_heartbeat)
        self._claimer = Claimer(
            common,
            self._claims,
            self._leases,
            self._runners,
            self._leadership,
            on_claimed=self._heartbeat.hurry,
        )

    def _services(self) -> list[Callable[[], Awaitable[None]]]:
        """Return the services that run beside the claimer until the worker ends."""
        services: list[Callable[[], Awaitable[None]]] = [
            self._settler.run,
            self._maintenance.run,
            self._listeners.run,
            self._leases.watch,
            lambda: self._progress.run(self._maintenance_session),
            self._leases.close_retired,
        ]
        if not self._leadership.without_notifications:
            self._claims.listen(protocol.CHANNEL, self._notified, self._claimer.look)
            self._claimer.look()
        if self._breakers.is_needed:
            services.append(lambda: self._breakers.run(self._maintenance_session))
        if self._runners.keep_ready is not None:
            services.append(self._runners.keep_ready)
        if not self._common.until_idle:
            leads = self._maintenance.leads
            services += firing(
                self._app,
                self._settings,
                # A worker that does not lead has no connection for maintenance.
                lambda: self._maintenance_session if leads(MAINTENANCE) else self._claims,
                self._signals,
                leads=lambda: leads(SCHEDULES),
            )
        return services

    # --- what the parts report ---

    def _on_groups(self, groups: Collection[int]) -> None:
        self._leadership.set_groups(groups)
        self._claimer.forget_lanes()

    def _on_lease_lost(self, lease: Lease) -> None:
        self._leases.lose(lease)

    def _held(self) -> Held:
        leases = [lease for lease in self._leases.open_leases.values() if not lease.lost]
        duties = self._maintenance.leaderless + self._leadership.missing
        return Held(
            [lease.lease_id for lease in leases],
            self._runners.running_job_ids(),
            [] if self._common.until_idle or self._signals.is_stopping else duties,
            is_busy=any(lease.batches for lease in leases),
            trusted_seconds=self._leases.trusted_seconds,
        )

    def _on_heartbeat(
        self,
        answer: HeartbeatAnswer,
        lease_ids: Sequence[int],
        sent_at: float,
        answered_at: float,
    ) -> None:
        self._signals.outage.answered("heartbeat")
        if answer.server_time is not None:
            self._maintenance.observe_clock(answer.server_time, sent_at, answered_at)
        self._leases.confirm(answer, lease_ids, sent_at)
        self._leases.follow(answer.settings)
        self._executor.slots.adjust(answer.concurrency or self._settings.slots)
        self._job_log.muted = answer.muted_causes
        self._claimer.set_queue_attempts(answer.queue_attempts)
        if answer.cancelled_jobs:
            self._runners.cancel(answer.cancelled_jobs)
        if answer.stop_by is not None and self.asked_by is None:
            self._stop_for(answer.stop_by)
        if answer.leaderless:
            self._assume_leaderless(answer.leaderless)

    def _stop_for(self, operator: str) -> None:
        self.asked_by = operator
        if not self._signals.is_stopping:
            log.info(
                "worker %s: asked to stop by %s; finishing running jobs (%g s)",
                self.name,
                " ".join(replaced_controls(operator).split()),
                self._settings.grace_seconds,
            )
        self.on_asked()

    def _on_outage_end(self) -> None:
        # The leaders from before it may be gone.
        self._assume_leaderless([MAINTENANCE, SCHEDULES, *self._leases.groups])

    def _assume_leaderless(self, duties: Collection[int]) -> None:
        self._maintenance.assume_leaderless(duties)
        if self._leadership.assume_leaderless(duties):
            self._claimer.look()

    def _notified(self, message: str) -> None:
        if message in self._common.weights:
            self._claimer.notify(message)
        elif message == DUE:
            self._maintenance.promote_soon()
        elif (duty := whole_number(message.removeprefix("-"))) is not None:
            # Not the name of a queue: a leader resigned.
            self._assume_leaderless([-duty if message.startswith("-") else duty])

    # --- the end ---

    def _is_quiet(self) -> bool:
        return self._runners.is_idle

    async def _is_finished(self) -> bool:
        """After a poll without work: return whether all work is finished."""
        if not self._is_quiet():
            await self._signals.sleep(self._settings.poll_seconds)
            return False
        if not await self._settler.drained(5.0):
            return False
        has_more = await self._maintenance.run_once()
        lanes = await self._claims.run(protocol.ready(list(self._leases.groups)))
        if has_more or lanes or not (self._is_quiet() and self._settler.is_idle):
            return False
        if isinstance(self._app, OneHandlerApplication) and await self._app.has_more():
            await self._signals.sleep(self._settings.poll_seconds)
            return False
        return True

    async def _finish(self) -> None:
        """Finish running jobs within the grace time, release the rest, close the leases."""
        settings, signals = self._settings, self._signals
        signals.is_stopping = True
        self._maintenance.step_down()
        released = self._executor.release_waiting()
        until = time.monotonic() + (0.0 if signals.at_once else settings.grace_seconds)
        while not self._is_quiet() and time.monotonic() < until and not signals.at_once:
            signals.wake.clear()
            await signals.sleep(min(0.2, max(0.0, until - time.monotonic())))
        released += self._executor.release_running()
        await self._runners.suspects.stop()
        if released:
            log.info("%s released", counted(released, "job"))
        is_short = signals.at_once or self._claimer.was_cut
        if not await self._settler.drained(1.0 if is_short else 3.0):
            log.warning("some jobs could not be settled; they come back when the lease is revoked")
            return
        await self._progress.flush(self._maintenance_session)  # A closed lease records nothing.
        await self._breakers.flush(self._maintenance_session)
        if await self._leases.close_all() and not self._common.until_idle:
            await self._leadership.resign()


def _require_location(start: Start | None, kinds: Kinds, settings: WorkerSettings) -> None:
    """Refuse handlers that run in a child process if none can import the app."""
    if start is None and settings.processes is not None:
        raise ConfigError(
            "processes",
            "is set, and no process can import the app",
            hint="Make the app a global variable of a module that can be imported.",
        )
    wanting = [kind.name for kind in kinds if kind.in_process]
    if start is None and wanting:
        raise ConfigError(
            f"kind {wanting[0]}",
            "runs in a child process, which cannot import the app",
            hint="Make the app a global variable of a module that can be imported.",
        )


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run work that a cancellation does not interrupt; it is raised afterwards.

    Some frameworks cancel at every await.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _supervised(service: Any) -> None:
    """Run a service until cancelled: log an unexpected error and start the service again."""
    while True:
        try:
            await service()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a service of the worker failed and restarts")
            await asyncio.sleep(1.0)


def _weights_of(app: Application, queues: Queues | None) -> dict[str, int]:
    """Return the queues of a worker with their weights: without a choice, those of its kinds."""
    if queues is not None:
        return parse_queue_weights(queues)
    found = dict.fromkeys(app.kinds.queues(), 1)
    if not found:
        raise ConfigError(
            "app",
            "has no handler, and no queue is named",
            hint="Declare a handler with @app.job. If another module declares it, import it in the"
            " module of the app.",
        )
    return found

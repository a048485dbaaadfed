"""A worker process: one lease, one claimer, some slots.

The claimer asks which lanes are ready, plans how many jobs to take of which, and claims; the executor runs them, the
settler writes how they ended, the heart keeps the lease alive from a thread of its own, maintenance keeps the log in order.
Of several idle workers one looks closely and one does the upkeep: those who hold the *posts*.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.config import WorkerSettings
from forebay.db.session import Session
from forebay.errors import (
    ConfigError,
    DatabaseUnavailable,
    ForeignCluster,
    LeaseLost,
    SchemaError,
)
from forebay.maintenance import Maintenance
from forebay.ops import protocol
from forebay.ops.schema import require_version, schema_version
from forebay.policy.backoff import reconnect_seconds
from forebay.policy.claims import LaneName, Turns, claim_size, plan_claims
from forebay.policy.posts import DEAF_SECONDS, UPKEEP, Posts, draw_holder, far_pause
from forebay.worker._children import Children, start_of
from forebay.worker._executor import Executor
from forebay.worker._heart import Heart, Held
from forebay.worker._held import Batch, HeldJob, Lease
from forebay.worker._progress import ProgressNotes
from forebay.worker._running import job_of
from forebay.worker._settler import Settler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from forebay.app import App
    from forebay.ops.protocol import Beat, ClaimedJob, ReadyLane
    from forebay.worker._messages import Start

log = logging.getLogger("forebay.worker")

#: After an empty-handed claim of a lane that was reported ready, somebody else was faster.
_EMPTY_CLAIM_PAUSE_SECONDS = 0.002

#: A call that takes longer has lost its connection without a word; none waits for a lock so long.
_CALL_SECONDS = 20.0

#: Who is never idle for so long leaves its posts to those who are.
_PRESSED_SECONDS = 0.05

#: How long a call to the database may take when the worker is told to stop.
_LAST_CALL_SECONDS = 1.0


@dataclass(slots=True)
class Stats:
    """What a worker did since it started."""

    claimed: int = 0
    done: int = 0
    ended: int = 0
    leases_lost: int = 0
    reconnects: int = 0


class Worker:
    """Runs the jobs of some queues.

    Args:
        app: the application with the handlers.
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
        app: App,
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
        self._lease: Lease | None = None
        self._leases: dict[int, Lease] = {}
        self._groups: dict[int, str] = {}
        self._turns = Turns()
        self._wake = asyncio.Event()
        self._holder = draw_holder()
        self._posts = self._make_posts()
        self._heart: Heart | None = None
        #: Until then, by our clock, what was ready was looked at closely enough, and the bell rings for what comes.
        self._looked_until = 0.0
        self._pressed_since: float | None = None
        self._rung: set[str] = set()
        self._public_lanes: dict[str, dict[int, ReadyLane]] = {}
        #: Lanes whose limits may let more through, since jobs of theirs were settled.
        self._freed: dict[int, ReadyLane] = {}
        #: Until then nothing but these is known to be ready.
        self._only: frozenset[int] = frozenset()
        self._only_until = 0.0
        self._stopping = False
        self._now = False
        self._stop_event = asyncio.Event()
        self._until_idle = False
        self._suspect_tasks: set[asyncio.Task[None]] = set()
        self._must_look = False
        self._is_deaf = False
        #: Set when the worker has its lease and looks for work.
        self.started = asyncio.Event()

    # --- from outside ---

    def stop(self) -> None:
        """Stop claiming, finish what runs within the grace time, hand the rest back."""
        self._stopping = True
        self._stop_event.set()
        self._wake.set()

    def stop_now(self) -> None:
        """Stop without the grace time."""
        self._now = True
        self.stop()

    async def run(self, *, until_idle: bool = False) -> Stats:
        """Work until stopped, or until there is nothing left to do.

        Args:
            until_idle: return when no job is ready, claimed or running; scheduled and retrying jobs that are not due stay.

        Raises:
            SchemaError: the schema is missing or of another version.
            ForeignCluster: the schema was restored from another cluster and not adopted.
        """
        self._until_idle = until_idle
        settings = self._settings
        name = f"forebay {self.name}"[:63]
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

        self._progress = ProgressNotes()
        self._claims = new_session("5s")
        settles, upkeep = new_session("5s"), new_session("1s")
        bell = Session(self._dsn, name=name, connect_seconds=connect, pooler=settings.pooler)
        self._settler = Settler(settles, self._on_lease_lost, self._on_freed)
        self._maintenance = Maintenance(
            upkeep, on_work=self._wake.set, holder=None if until_idle else self._holder
        )
        start = None
        if self._location is not None:
            module, attribute, is_script = self._location
            start = start_of(
                module,
                attribute,
                is_script=is_script,
                dsn=self._dsn,
                name=name,
                group=self._group,
                settings=settings,
            )
        self._children = Children(start, settings, self._progress.note)
        # Apart from those of suspects, so that neither wait for each other.
        self._processes = Children(start, settings, self._progress.note)
        self._require_location(start)
        async with contextlib.AsyncExitStack() as stack:
            resources = await self._app.open_resources(stack)
            self._executor = Executor(
                self._app.kinds,
                settings,
                _Counted(self._settler, self.stats),
                dsn=self._dsn,
                name=name,
                group=self._group,
                resources=resources,
                on_free=self._wake.set,
                on_lease_lost=self._on_lease_lost,
                on_progress=self._progress.note,
                processes=self._processes,
            )
            heart = self._heart = Heart(
                self._dsn,
                name=name,
                beat_seconds=settings.heartbeat_seconds,
                idle_seconds=_idle_beat_seconds(settings),
                crowd_seconds=(settings.lease_seconds - settings.lease_margin_seconds) / 3,
                stall_seconds=settings.lease_seconds - settings.lease_margin_seconds,
                held=self._held,
                heard=self._on_beat,
                pooler=settings.pooler,
            )
            tasks: list[asyncio.Task[None]] = []
            try:
                await self._open(first=True)
                self._executor.is_pooled = self._claims.is_pooled
                if start is not None:
                    start.is_pooled = self._claims.is_pooled
                heart.start()
                services: tuple[Callable[[], Awaitable[None]], ...] = (
                    self._settler.run,
                    self._maintenance.run,
                    self._watch,
                    lambda: self._progress.run(upkeep),
                    self._close_retired,
                )
                if not self._polls_only:
                    services += (lambda: self._listen(bell),)
                tasks += [asyncio.create_task(_supervised(service)) for service in services]
                await self._claim_or_be_cut_short()
                await self._finish()
            finally:
                heart.stop()
                for session in (settles, upkeep, bell):
                    session.cut()  # A server that is gone would not answer a polite cancellation.
                await asyncio.sleep(0.01)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await heart.join(0.5)
                await self._children.close()
                await self._processes.close()
                await self._executor.close()
                for session in (self._claims, settles, upkeep, bell):
                    await session.close()
        return self.stats

    def _require_location(self, start: Start | None) -> None:
        wanting = [kind.name for kind in self._app.kinds if kind.in_process]
        if start is None and wanting:
            raise ConfigError(
                f"kind {wanting[0]}",
                "is to run in a process of its own, which cannot find the app",
                hint="Make the app a global of a module that can be imported.",
            )

    # --- leases ---

    async def _open(self, *, first: bool = False) -> None:
        """Open a lease; waits for the database, except for what only a person can mend at the start."""
        failures = 0
        while not self._stopping:
            try:
                if not self._groups:
                    found = await self._claims.run(schema_version())
                    require_version(found, newer_is_fine=True)
                    groups = {}
                    for queue in self._weights:
                        groups[await self._claims.run(protocol.open_group(queue, self._group))] = (
                            queue
                        )
                    self._groups = groups
                    self._posts = self._make_posts()
                sent_at = time.monotonic()
                lease_seconds = self._settings.lease_seconds
                lease_id = await self._claims.run(
                    protocol.open_lease(
                        self.name,
                        lease_seconds=lease_seconds,
                        # Whether a pooler's server session lives says nothing about us.
                        suspect_seconds=lease_seconds
                        if self._claims.is_pooled
                        else self._settings.suspect_seconds,
                    )
                )
            except (SchemaError, ForeignCluster) as error:
                if first:
                    raise
                log.error("no lease: %s", error)
            except DatabaseUnavailable as error:
                if failures in {0, 10, 100}:
                    log.warning("no lease: %s", error)
            except Exception as error:
                log.error("no lease: %s", error)
            else:
                lease = Lease(
                    lease_id,
                    sent_at + self._settings.lease_seconds - self._settings.lease_margin_seconds,
                )
                self._leases[lease_id] = lease
                self._lease = lease
                self._connects = self._claims.connects
                self.started.set()
                log.info("worker %s has lease %s", self.name, lease_id)
                if first and self._claims.is_pooled:
                    log.info("through a pooler: jobs are found by polling")
                return
            failures += 1
            await self._pause(
                min(
                    reconnect_seconds(failures, random.random()),
                    self._settings.reconnect_seconds_max,
                )
            )

    @property
    def _polls_only(self) -> bool:
        # A pooler accepts LISTEN and delivers nothing.
        return self._settings.listen == "never" or self._claims.is_pooled

    def _retire(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.retired = True

    def _held(self) -> Held:
        leases = [lease for lease in self._leases.values() if not lease.lost]
        posts = self._maintenance.vacancies + self._posts.missing
        return Held(
            [lease.lease_id for lease in leases],
            self._executor.running_job_ids() + self._children.running_job_ids(),
            [] if self._until_idle or self._stopping else posts,
            is_busy=any(lease.batches for lease in leases),
        )

    def _on_beat(self, beat: Beat, asked: Sequence[int], sent_at: float) -> None:
        trusted = self._settings.lease_seconds - self._settings.lease_margin_seconds
        for lease in list(self._leases.values()):
            if lease.lease_id in beat.open_leases:
                lease.trusted_until = max(lease.trusted_until, sent_at + trusted)
            elif lease.lease_id in asked:
                # One opened since that beat was put together is not in its answer either.
                self._on_lease_lost(lease)
        if beat.cancelled_jobs:
            self._executor.cancel(beat.cancelled_jobs)
            self._children.cancel(set(beat.cancelled_jobs))
        if beat.vacant_posts:
            self._suppose_vacant(beat.vacant_posts)

    def _on_lease_lost(self, lease: Lease) -> None:
        if lease.lost:
            return
        lease.lost = True
        if lease.retired and not lease.batches:
            # We wanted to close it and did not hear that we had.
            self._leases.pop(lease.lease_id, None)
            return
        self.stats.leases_lost += 1
        dropped = self._executor.drop(lease)
        log.warning(
            "LeaseLost: lease %s of %s is no longer ours; %s jobs dropped%s",
            lease.lease_id,
            self.name,
            len(dropped),
            f", running ones stopped: {dropped[:20]}" if dropped else "",
        )
        self._leases.pop(lease.lease_id, None)
        if self._lease is lease:
            self._lease = None
        self._wake.set()

    async def _watch(self) -> None:
        """Stop trusting leases that nobody confirmed; waits for nothing but the clock."""
        while True:
            await asyncio.sleep(0.25)
            now = time.monotonic()
            for lease in list(self._leases.values()):
                if now > lease.trusted_until:
                    log.warning("no heartbeat was answered in time")
                    self._on_lease_lost(lease)

    async def _close_retired(self) -> None:
        """Close retired leases that are empty, as far as we know."""
        while True:
            await asyncio.sleep(0.25)
            for lease in list(self._leases.values()):
                if not lease.retired or lease.batches or not self._settler.is_idle:
                    continue
                try:
                    held = await self._claims.run(protocol.close_lease(lease.lease_id))
                except DatabaseUnavailable:
                    continue
                except Exception as error:
                    log.info("lease %s is not closed yet: %s", lease.lease_id, error)
                    await asyncio.sleep(1.0)
                    continue
                self._leases.pop(lease.lease_id, None)
                if held:
                    log.info(
                        "retired lease %s held %s jobs in vain; they went back",
                        lease.lease_id,
                        held,
                    )

    # --- posts ---

    def _make_posts(self) -> Posts:
        # Long enough for one that polls seldom: it renews when it looks.
        return Posts(list(self._groups), seconds=1.5 + 2 * self._settings.poll_seconds)

    def _suppose_vacant(self, posts: Collection[int]) -> None:
        self._maintenance.suppose_vacant(posts)
        if self._posts.suppose_vacant(posts):
            self._wake.set()

    async def _idle_pause(self) -> float:
        """Return how long to sleep when nothing was ready: a holder of a post looks again soon, others seldom."""
        if self._until_idle:
            return self._settings.poll_seconds
        if self._posts.is_due:
            asked_at = time.monotonic()
            held = await self._claims.run(
                protocol.hold_posts(self._holder, self._posts.wanted, self._posts.seconds)
            )
            self._posts.answered(held, asked_at)
        if self._posts.held:
            return self._settings.poll_seconds
        if self._polls_only:
            return max(self._settings.poll_seconds, far_pause(DEAF_SECONDS))
        return far_pause()

    async def _leave_when_pressed(self) -> None:
        """Leave the posts when for some time there was more to do than could be taken: others are to look."""
        now = time.monotonic()
        if self._pressed_since is None:
            self._pressed_since = now
        held = self._posts.held
        if held and now - self._pressed_since >= max(_PRESSED_SECONDS, self._settings.poll_seconds):
            await self._claims.run(protocol.leave_posts(self._holder, held))
            self._posts.left()

    async def _leave_for_good(self) -> None:
        """Leave all posts, so that others need not wait until they run out."""
        try:
            async with asyncio.timeout(_LAST_CALL_SECONDS):
                await self._claims.run(
                    protocol.leave_posts(self._holder, [UPKEEP, *self._posts.wanted])
                )
        except Exception as error:
            log.debug("posts are left to run out: %s", error)

    # --- claiming ---

    async def _claim_or_be_cut_short(self) -> None:
        """Claim until stopped; a call that is under way then has a second to come back."""
        claiming = asyncio.create_task(self._claim_until_stopped())
        stopped = asyncio.create_task(self._stop_event.wait())
        try:
            await asyncio.wait({claiming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({claiming}, timeout=_LAST_CALL_SECONDS)
            if not claiming.done():
                self._is_deaf = True
                self._claims.cut()
                await asyncio.wait({claiming}, timeout=0.2)
                claiming.cancel()
                await asyncio.wait({claiming})
            if not claiming.cancelled():
                claiming.result()
        finally:
            stopped.cancel()
            claiming.cancel()

    async def _claim_until_stopped(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                if self._lease is None:
                    await self._open()
                    continue
                if self._must_look:
                    await self._look_for_missing_batches()
                    self._must_look = False
                busy = await self._claim_once(self._lease)
                failures = 0
                if self._until_idle and not busy and await self._is_idle():
                    return
            except (LeaseLost, DatabaseUnavailable) as error:
                failures += 1
                self.stats.reconnects += 1
                if isinstance(error, LeaseLost) and self._lease is not None:
                    self._on_lease_lost(self._lease)
                else:
                    if failures in {1, 10, 100}:
                        log.warning("claims interrupted: %s", error)
                    self._retire()
                    self._must_look = True
                await self._pause(
                    min(
                        reconnect_seconds(failures, random.random()),
                        self._settings.reconnect_seconds_max,
                    )
                )
            except (ForeignCluster, SchemaError) as error:
                failures += 1
                log.error("claims stopped: %s", error)
                await self._pause(5.0)
            except Exception as error:
                failures += 1
                if failures in {1, 10, 100}:
                    log.error("cannot claim: %s", error)
                if not self._claims.refused(error):
                    # Not the server said no, but we stumbled over its answer: what it gave is unknown here.
                    self._retire()
                await self._pause(min(reconnect_seconds(failures, random.random()), 5.0))

    async def _claim_once(self, lease: Lease) -> bool:
        """Look for work and claim for the free slots; returns whether there was anything to do."""
        settings = self._settings
        self._wake.clear()
        if self._rung and await self._claim_rung(lease):
            # All else was looked at a moment ago, and the bell goes on ringing until it is again.
            pause = self._looked_until - time.monotonic()
            if pause > 0:
                await self._sleep(pause)
                return True
        if self._freed and await self._claim_freed(lease):
            return True
        # What was just claimed begins to run, so that its slots do not count as free.
        await asyncio.sleep(0)
        wanted = self._room()
        if wanted <= 0:
            await self._leave_when_pressed()
            await self._sleep(settings.poll_seconds if self._posts.held else None)
            return True
        idle = self._executor.is_idle
        asked_at = time.monotonic()
        lanes = await self._claims.run(
            protocol.ready(list(self._groups), sleep_millis=self._sleep_millis())
        )
        self._only = frozenset(lane.lane for lane in lanes)
        self._only_until = asked_at + settings.poll_seconds
        if not lanes:
            self._looked_until = asked_at + settings.poll_seconds
            self._pressed_since = None
            if self._until_idle and idle:
                return False
            await self._sleep(await self._idle_pause())
            return False
        by_name: dict[LaneName, list[ReadyLane]] = {}
        for lane in lanes:
            if not lane.is_private:
                self._public_lanes.setdefault(lane.queue, {})[lane.lane] = lane
            by_name.setdefault(LaneName(lane.queue, lane.priority), []).append(lane)
        plan = plan_claims(
            dict.fromkeys(by_name),
            slots=wanted,
            turns=self._turns,
            weights=self._weights,
            starving_share=settings.starving_share,
        )
        self._turns = plan.turns
        # One lane owes its turn to no other, nor do those of an unordered queue; what is new is noticed as soon as by a poll.
        alone = len(by_name) == 1 and not any(lane.is_private for lane in lanes)
        again_until = time.monotonic() + settings.poll_seconds if alone or len(lanes) == 1 else 0.0
        claimed = 0
        for name, count in plan.shares:
            left = count
            # Retries first, then suspects, then what is new: of an unordered queue in any order, lest all begin alike.
            for lane in sorted(
                by_name[name],
                key=lambda lane: (not lane.is_private, lane.is_suspect, random.random()),
            ):
                if left <= 0 or self._stopping or lease.lost:
                    break
                taken = await self._claim_lane(lease, lane, left, again_until)
                claimed += taken
                left -= taken
        await self._leave_when_pressed()
        if claimed == 0:
            # With no slot free, what is ready are suspects: a slot that becomes free wakes us.
            is_full = self._executor.busy >= settings.concurrency
            await self._sleep(settings.poll_seconds if is_full else _EMPTY_CLAIM_PAUSE_SECONDS)
        return True

    async def _claim_rung(self, lease: Lease) -> bool:
        """Claim where the bell rang without asking first what is ready; return whether that was all there was.

        Only when nothing runs and the queue has one public lane as far as we know, and at most half of the queue's share:
        retries, other lanes and other queues get theirs when ``ready_v1`` is asked, after this. Only who
        holds a post, since the bell wakes everybody and claims of one lane take turns.
        """
        rung, self._rung = self._rung, set()
        if not (self._posts.held and self._is_quiet()):
            return False
        wanted, total = self._room(), sum(self._weights.values())
        was_all = True
        for queue in rung:
            lanes = list(self._public_lanes.get(queue, {}).values())
            if len(lanes) != 1 or self._stopping or lease.lost:
                was_all = False
                continue
            count = max(1, (wanted * self._weights[queue] // total + 1) // 2)
            taken = await self._claim_lane(lease, lanes[0], count, again_until=0.0)
            was_all &= 0 < taken < count
        return was_all

    def _on_freed(self, batches: list[Batch]) -> None:
        for batch in batches:
            if batch.lane is not None and batch.lane.is_paced and not batch.lane.is_private:
                self._freed[batch.lane.lane] = batch.lane
        self._wake.set()

    async def _claim_freed(self, lease: Lease) -> bool:
        """Claim where a settlement has made room under a limit, without asking what is ready; return whether that gave any.

        Only a moment after a look that found nothing else: whatever else waits has its turn at the next one.
        """
        freed, self._freed = self._freed, {}
        taken = 0
        if time.monotonic() < self._only_until and self._only <= freed.keys():
            await asyncio.sleep(0)
            for lane in freed.values():
                if (room := self._room()) > 0 and not (self._stopping or lease.lost):
                    taken += await self._claim_paced(lease, lane, room)
        return taken > 0

    def _sleep_millis(self) -> int | None:
        """Return for how long producers shall ring when nothing is ready; None for nobody who hears it."""
        if self._polls_only:
            return None
        return int(self._settings.poll_seconds * 1000) + 30

    def _room(self, *, coming: int = 0) -> int:
        """Return how many jobs to ask for, when so many are claimed already and not taken up."""
        settings, executor = self._settings, self._executor
        means = executor.mean_seconds.values()
        size = claim_size(
            max(0, settings.concurrency - executor.busy - coming),
            concurrency=settings.concurrency,
            buffered=executor.buffered + coming,
            chained=executor.chained,
            # The slowest queue decides: work taken ahead of a slow handler would wait here.
            mean_seconds=max(means) if means else None,
            ahead_seconds=settings.ahead_seconds,
            rows_max=settings.claim_rows_max,
        )
        if executor.busy < settings.concurrency and not (executor.buffered or coming):
            # A batch handler's slot takes as many jobs as its batch.
            sizes = [
                kind.batch_size
                for kind in self._app.kinds
                if kind.batch_size and kind.queue in self._weights
            ]
            # One that is larger than a claim otherwise may be, was asked for by name.
            return max([min(size, settings.claim_rows_max), *sizes])
        return min(size, settings.claim_rows_max)

    async def _claim_lane(
        self, lease: Lease, lane: ReadyLane, count: int, again_until: float
    ) -> int:
        """Claim from a lane, and while it gives all that is asked, again until that time; return how many."""
        if lane.is_suspect:
            return await self._claim_suspects(lease, lane, count)
        if lane.is_paced:
            return await self._claim_paced(lease, lane, count)
        taken = 0
        asking = asyncio.create_task(self._ask(lease, lane, count))
        try:
            while True:
                batch, rows = await asking
                taken += len(rows)
                if len(rows) == count and time.monotonic() < again_until:
                    # There is probably more: the server looks for it while we take these up.
                    count = self._room(coming=len(rows))
                    again = count > 0 and not (self._stopping or lease.lost)
                else:
                    again = False
                if again:
                    asking = asyncio.create_task(self._ask(lease, lane, count))
                    await asyncio.sleep(0)
                if batch is not None and not lease.lost:
                    self._executor.take([HeldJob(row, batch, lane) for row in rows])
                if not again:
                    return taken
        finally:
            asking.cancel()

    async def _claim_paced(self, lease: Lease, lane: ReadyLane, count: int) -> int:
        """Claim where each claim gives jobs of one limit key, until there are enough or no more; return how many.

        Nothing is taken ahead, except for the calls of batch handlers: a job that waits here for a slot would use up
        what its limits allow.
        """
        taken = 0
        until = time.monotonic() + self._settings.poll_seconds
        if not all(kind.batch_size for kind in self._app.kinds if kind.queue == lane.queue):
            free = self._settings.concurrency - self._executor.busy - self._executor.buffered
            count = min(count, free)
        while taken < count and not (self._stopping or lease.lost):
            batch, rows = await self._ask(lease, lane, count - taken)
            if batch is None or lease.lost:
                break
            taken += len(rows)
            self._executor.take([HeldJob(row, batch, lane) for row in rows])
            if time.monotonic() > until:
                break  # Other lanes have their turn.
        return taken

    async def _ask(
        self, lease: Lease, lane: ReadyLane, count: int
    ) -> tuple[Batch | None, list[ClaimedJob]]:
        """Claim; what came is a batch of the lease from then on."""
        claim_no = lease.next_claim_no()
        try:
            rows = await self._claims.run(
                protocol.claim(
                    lease_id=lease.lease_id,
                    claim_no=claim_no,
                    floor=lease.floor,
                    group_id=lane.group_id,
                    lane=lane.lane,
                    limit=count,
                )
            )
        except Exception as error:
            if count > 1 and self._claims.is_too_large(error):
                return await self._ask(lease, lane, count // 2)
            raise
        if not rows:
            return None, []
        if lease.lost:
            return None, []  # Found out while we asked. They come back when the lease is revoked.
        batch = Batch(lease, claim_no, len(rows), set(range(1, len(rows) + 1)))
        batch.frees_others = lane.is_paced or any(row.ordering_key is not None for row in rows)
        batch.lane = lane
        lease.batches[claim_no] = batch
        if self._heart is not None:
            self._heart.hurry()
        self.stats.claimed += len(rows)
        return batch, rows

    async def _claim_suspects(self, lease: Lease, lane: ReadyLane, count: int) -> int:
        taken = 0
        while (
            taken < count
            and self._executor.busy < self._settings.concurrency
            and not (self._stopping or lease.lost)
        ):
            batch, rows = await self._ask(lease, lane, 1)
            if batch is None or lease.lost:
                break
            taken += 1
            held = HeldJob(rows[0], batch, lane, alone=True)
            prepared = self._executor.prepare(held)
            if prepared is None:
                continue
            if not self._children.available:
                # Here, among others: should the process die of it, that counts as an attempt all the same.
                await self._claims.run(protocol.start_suspect(lease.lease_id, batch.claim_no))
                self._executor.take([held])
                continue
            self._executor.reserve()
            kind, _item = prepared
            job = job_of(held, kind, self._group)
            task = asyncio.create_task(self._run_suspect(held, kind, job))
            self._suspect_tasks.add(task)
            task.add_done_callback(self._suspect_tasks.discard)
        return taken

    async def _run_suspect(self, held: HeldJob, kind: Any, job: Any) -> None:
        lease = held.lease
        try:
            held.begin()
            await self._claims.run(protocol.start_suspect(lease.lease_id, held.batch.claim_no))
            answer = await self._children.run(held, kind, job)
            if held.ended or lease.lost:
                return
            held.ended = True
            if answer.settled:
                self._settler.settled_elsewhere(held)
                self.stats.done += 1
            elif answer.lease_lost:
                self._on_lease_lost(lease)
            elif answer.ended is not None:
                answer.ended.offset = held.row.offset
                self._settler.end(held, answer.ended, solo=answer.solo)
                if answer.ended.outcome == "done":
                    self.stats.done += 1
                else:
                    self.stats.ended += 1
            else:
                self._settler.done([held])
                self.stats.done += 1
        except LeaseLost:
            self._on_lease_lost(lease)
        except DatabaseUnavailable as error:
            # It was not started: its start is not recorded.
            log.warning("suspect %s put back: %s", job.job_id, error)
            if not held.ended:
                held.ended = True
                self._settler.end(held, protocol.Ended(held.row.offset, "handed_back", after=1.0))
        finally:
            self._executor.release()

    async def _look_for_missing_batches(self) -> None:
        """After the database was away: which claims did its crash take back?"""
        for lease in list(self._leases.values()):
            if not lease.batches or lease.lost:
                continue
            missing = await self._claims.run(
                protocol.missing_batches(lease.lease_id, list(lease.batches))
            )
            if missing:
                dropped = self._executor.drop(lease, missing)
                for claim_no in missing:
                    lease.batches.pop(claim_no, None)
                log.warning(
                    "the database does not know %s batches of lease %s any more: %s jobs dropped, they are claimed anew",
                    len(missing),
                    lease.lease_id,
                    len(dropped),
                )

    async def _is_idle(self) -> bool:
        if not self._is_quiet():
            await self._sleep(self._settings.poll_seconds)
            return False
        if not await self._settler.drained(5.0):
            return False
        promoted = await self._maintenance.run_once()
        lanes = await self._claims.run(protocol.ready(list(self._groups)))
        return not promoted and not lanes and self._is_quiet() and self._settler.is_idle

    def _is_quiet(self) -> bool:
        return self._executor.is_idle and not self._suspect_tasks

    async def _sleep(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop_event.wait()

    async def _listen(self, bell: Session) -> None:
        failures = 0
        while True:
            try:
                async for queue in bell.notifications(protocol.CHANNEL):
                    failures = 0
                    if queue in self._weights:
                        self._rung.add(queue)
                        self._wake.set()
                    elif queue.isdecimal():  # No queue's name: a post that was left.
                        self._suppose_vacant([int(queue)])
            except DatabaseUnavailable as error:
                failures += 1
                log.debug("the bell is silent: %s", error)
            await asyncio.sleep(min(reconnect_seconds(max(failures, 1), random.random()), 10.0))

    # --- stopping ---

    async def _finish(self) -> None:
        """Finish what runs within the grace time, hand the rest back, close the leases."""
        settings = self._settings
        self._stopping = True
        self._maintenance.step_down()
        back = self._executor.hand_back_waiting()
        until = time.monotonic() + (0.0 if self._now else settings.grace_seconds)
        while (
            not (self._executor.is_idle and not self._suspect_tasks)
            and time.monotonic() < until
            and not self._now
        ):
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(0.2, max(0.0, until - time.monotonic()))):
                    await self._wake.wait()
        back += self._executor.hand_back_running()
        for task in list(self._suspect_tasks):
            task.cancel()
        await self._children.kill_running()
        if back:
            log.info("%s jobs handed back", back)
        settled = await self._settler.drained(1.0 if self._now or self._is_deaf else 3.0)
        if not settled:
            log.warning(
                "not everything could be settled; the rest comes back when the lease is revoked"
            )
            return
        # Taken out first: the heartbeat goes on, and what is closed is not lost.
        closing = list(self._leases.values())
        self._leases.clear()
        for lease in closing:
            try:
                async with asyncio.timeout(1.0 if self._now else 2.0):
                    await self._claims.run(protocol.close_lease(lease.lease_id), seconds=1.5)
            except Exception as error:
                log.warning("lease %s stays open until it is revoked: %s", lease.lease_id, error)
                return
        if closing and not self._until_idle:
            await self._leave_for_good()


def _idle_beat_seconds(settings: WorkerSettings) -> float:
    """Return the pause between heartbeats while no job runs, among few workers: long, at most three times the usual."""
    most = min(settings.suspect_seconds, settings.lease_seconds - settings.lease_margin_seconds) / 2
    return max(settings.heartbeat_seconds, min(3 * settings.heartbeat_seconds, most))


class _Counted:
    """The settler, with a count of what passes."""

    def __init__(self, settler: Settler, stats: Stats) -> None:
        self._settler = settler
        self._stats = stats

    def done(self, jobs: Sequence[HeldJob]) -> None:
        self._stats.done += len(jobs)
        self._settler.done(jobs)

    def end(self, job: HeldJob, ended: protocol.Ended, *, solo: bool = False) -> None:
        if ended.outcome == "done":
            self._stats.done += 1
        else:
            self._stats.ended += 1
        self._settler.end(job, ended, solo=solo)

    def settled_elsewhere(self, job: HeldJob) -> None:
        self._stats.done += 1
        self._settler.settled_elsewhere(job)


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

"""Opens, retires, loses and closes the leases of a worker process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from forebay.db.errors import translate_own
from forebay.errors import (
    ConfigError,
    DatabaseUnavailable,
    ForeignCluster,
    PermissionDenied,
    SchemaError,
)
from forebay.model.text import counted, logger
from forebay.ops import protocol
from forebay.ops.queues import paused_queues
from forebay.ops.schema import require_version, schema_version
from forebay.worker.ground.held import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from forebay.arguments.kinds import Kinds
    from forebay.config import WorkerSettings
    from forebay.db.session import Session
    from forebay.ops.protocol import HeartbeatAnswer
    from forebay.worker.ground.common import Common
    from forebay.worker.run.executor import Executor
    from forebay.worker.settle.settler import Settler

log = logger("forebay.worker")

#: Pause between two checks for leases without a confirmed heartbeat, and for empty retired leases.
_CHECK_SECONDS = 0.25

#: Pause after the database refused a lease: most of the causes need an operator.
_REFUSED_SECONDS = 3.0

#: A run that ends by itself waits for its database as long; the next run of cron comes anyway.
_SHORT_RUN_SECONDS = 60.0


#: How many groups are opened in one transaction.
_GROUPS_PER_CALL = 50


class LeaseKeeper:
    """The leases of this process. At most one of them is used for claims.

    Owns the leases and the ids of the worker's consumer groups. It guarantees that nothing is
    claimed under a retired or lost lease; that a lease without a heartbeat confirmed in time counts
    as lost here before another worker can get its jobs; and that the jobs of a lost lease are
    dropped once and not settled.

    After a crash the leases stay open. Another worker revokes them after ``suspect_seconds``
    without a heartbeat, and their jobs come back as suspects.

    Args:
        common: the queues, the group, the kinds and how long leases last.
        session: the connection for claims.
        executor: drops the jobs of lost leases.
        settler: reports whether all ended jobs are settled.
        describe: returns what the worker reports of itself with each lease.
        on_groups: called with the ids of its groups once they are known.
    """

    def __init__(
        self,
        common: Common,
        session: Session,
        executor: Executor,
        settler: Settler,
        *,
        describe: Callable[[], Mapping[str, object]],
        on_groups: Callable[[Collection[int]], None],
    ) -> None:
        settings = common.settings
        self._common = common
        self._settings = settings
        self._signals = common.signals
        self._stats = common.stats
        self._name = common.name
        self._session = session
        self._executor = executor
        self._settler = settler
        self._describe = describe
        self._on_groups = on_groups
        #: Those that new leases have, and the length that the database has; None: it is not set.
        self._lease_settings = settings
        self._followed_seconds: float | None = None
        #: Whether it waits while the schema is missing or too old; else that is an error.
        self._waits_for_schema = settings.without_schema == "wait" and not common.until_idle
        self._groups: dict[int, str] = {}
        #: Follow-ups without a worker that a warning has named.
        self._warned_of: set[str] = set()
        #: All leases that are not known to be closed, by id.
        self.open_leases: dict[int, Lease] = {}
        #: The lease for new claims.
        self.current: Lease | None = None
        #: Why there is none, in a few words; empty: it is about to be opened.
        self.problem = ""

    @property
    def groups(self) -> Mapping[int, str]:
        """The queues by the id of the worker's group; empty before the first lease."""
        return self._groups

    async def open(self, *, first: bool = False) -> None:
        """Open a lease; wait until the database accepts it.

        Args:
            first: the worker starts: raise errors that waiting does not end.

        Raises:
            SchemaError: the schema is too new for this library; or it is missing or too old, and
                the worker must not wait for it.
            ForeignCluster: the schema was restored from another cluster and not adopted.
            PermissionDenied: the login is no worker's, and the run ends by itself.
            DatabaseUnavailable: the run ends by itself, and has not reached it for a minute.
        """
        failures = 0
        problem = ""
        began: float | None = None
        while not self._signals.is_stopping:
            try:
                await self._open_groups()
                self.follow(await self._session.run(protocol.followed_settings()))
                settings = self._lease_settings
                sent_at = time.monotonic()
                lease_id = await self._session.run(
                    protocol.open_lease(
                        self._name,
                        lease_seconds=settings.lease_seconds,
                        # The lifetime of a pooler's server session says nothing about this worker.
                        suspect_seconds=settings.lease_seconds
                        if self._session.is_pooled
                        else settings.suspect_seconds,
                        details=self._describe(),
                    )
                )
            except DatabaseUnavailable as error:
                if first and self._common.until_idle:
                    began = began or time.monotonic()
                    if time.monotonic() - began >= _SHORT_RUN_SECONDS:
                        raise
                self._signals.outage.failed("claims", error)
                failures += 1
                await self._signals.pause_in_outage(failures)
            except Exception as error:
                refused = translate_own(error)
                if isinstance(refused, PermissionDenied):  # Whatever came first, it needs all.
                    error = PermissionDenied(refused.problem, roles=("forebay_worker",))
                if first and not self._waits_after(error):
                    raise error  # noqa: TRY201
                is_schema = isinstance(error, SchemaError)
                self.problem = "waiting for the schema" if is_schema else "no lease: refused"
                if str(error) != problem:
                    problem = str(error)
                    hint = getattr(error, "hint", None) or ""
                    if first and isinstance(error, SchemaError):
                        log.warning("%s; the worker waits for it. %s", error.message, hint)
                    else:
                        log.error("%s", f"no lease: {error}. {hint}".removesuffix(". "))
                await self._signals.pause(_REFUSED_SECONDS)
            else:
                self.problem = ""
                self._signals.outage.answered("claims")
                trusted = _trusted_seconds(settings)
                lease = Lease(lease_id, sent_at + trusted, trusted)
                self.open_leases[lease_id] = lease
                self.current = lease
                self._signals.started.set()
                log.info("worker %s has lease %s", self._name, lease_id)
                if first and self._session.is_pooled:
                    log.info("connected through a pooler: the worker polls for jobs")
                return

    def _waits_after(self, error: Exception) -> bool:
        """Return whether a worker that starts waits after an error: a migration may be about to
        run, or a role to be granted. No run that ends by itself waits for a role.
        """
        if isinstance(error, SchemaError):
            is_older = error.found is None or error.needed is None or error.found < error.needed
            return is_older and self._waits_for_schema
        if isinstance(error, PermissionDenied):
            return not self._common.until_idle
        return not isinstance(error, ForeignCluster)

    async def _open_groups(self) -> None:
        """Open the worker's groups and record its kinds, with each lease: both may have been lost
        with their server.
        """
        found = await self._session.run(schema_version())
        require_version(found, newer_is_fine=True)
        kinds = self._common.app.kinds
        for kind, queue, before in await self._session.run(
            protocol.record_kinds(
                self._name,
                {kind.name: kind.queue for kind in kinds},
                [kind.name for kind in kinds if kind.holds_key],
                {kind.name: kind.keys.as_json() for kind in kinds if kind.keys is not None},
                {kind.name: kind.on_dead.as_json() for kind in kinds if kind.on_dead is not None},
            )
        ):
            log.info(
                "jobs of %s enqueued without a queue go to %s now, not to %s", kind, queue, before
            )
        await self._warn_of_unknown_follow_ups(kinds)
        groups: dict[int, str] = {}
        queues = list(self._common.weights)
        # A part at a time: a new group makes others wait that open one, until the commit.
        for first in range(0, len(queues), _GROUPS_PER_CALL):
            part = queues[first : first + _GROUPS_PER_CALL]
            ids = await self._session.run(protocol.open_groups(part, self._common.group))
            groups.update(zip(ids, part, strict=True))
        if groups != self._groups:
            self._groups = groups
            self._on_groups(groups)
        await self._warn_of_pauses()

    async def _warn_of_pauses(self) -> None:
        """Say why the worker claims nothing from some of its queues."""
        for queue, paused_at, resume_at in await self._session.run(paused_queues(self._groups)):
            until = "" if resume_at is None else f" until {resume_at:%Y-%m-%d %H:%M:%S %Z}"
            log.warning(
                "queue %s is paused since %s%s: no job of it starts before `forebay queues"
                " resume %s`",
                queue,
                f"{paused_at:%Y-%m-%d %H:%M:%S %Z}",
                until,
                queue,
            )

    async def _warn_of_unknown_follow_ups(self, kinds: Kinds) -> None:
        """Warn once of follow-ups that no worker has declared: another application may, later."""
        names = {
            follow_up.kind: kind.name
            for kind in kinds
            for follow_up in (kind.on_done, kind.on_dead)
            if follow_up is not None
            and follow_up.kind not in kinds
            and follow_up.kind not in self._warned_of
        }
        if not names:
            return
        for name in await self._session.run(protocol.unknown_kinds(names)):
            self._warned_of.add(name)
            log.warning(
                "no worker has declared kind %s, the follow-up of %s: its jobs go to queue default",
                name,
                names[name],
            )

    @property
    def trusted_seconds(self) -> float:
        """For how long after a confirmed heartbeat every open lease can be trusted."""
        wanted = _trusted_seconds(self._lease_settings)
        return min((lease.trusted_seconds for lease in self.open_leases.values()), default=wanted)

    def follow(self, found: Mapping[str, Any]) -> None:
        """Take the settings of the database. New leases have their length."""
        self._common.follow(found)
        wanted = found.get("lease_seconds")
        if wanted == self._followed_seconds:
            return
        self._followed_seconds = wanted
        settings = self._settings
        try:
            if wanted is not None:
                settings = settings.with_lease_seconds(wanted)
        except ConfigError as error:
            log.warning("lease_seconds %s of the database is not used: %s", wanted, error.message)
        self._lease_settings = settings

    def retire_old(self) -> None:
        """Between two claims: retire the lease if new ones have another length."""
        lease = self.current
        if lease is not None and lease.trusted_seconds != _trusted_seconds(self._lease_settings):
            log.info("leases last %g s from now on", self._lease_settings.lease_seconds)
            self.retire()

    def retire(self) -> None:
        """Claim nothing more under the current lease: it may hold jobs that this process does not
        know.
        """
        lease, self.current = self.current, None
        if lease is not None:
            lease.retired = True

    def confirm(self, answer: HeartbeatAnswer, lease_ids: Sequence[int], sent_at: float) -> None:
        """Process the answer to a heartbeat.

        Args:
            answer: the answer.
            lease_ids: the leases that the heartbeat was sent for.
            sent_at: when the heartbeat was sent.
        """
        for lease in list(self.open_leases.values()):
            if lease.lease_id in answer.open_leases:
                lease.trusted_until = max(lease.trusted_until, sent_at + lease.trusted_seconds)
            elif lease.lease_id in lease_ids:
                # Only leases of the heartbeat count: one opened after it was sent is not in the
                # answer either.
                self.lose(lease)

    def lose(self, lease: Lease) -> None:
        """A lease is lost: stop and drop its jobs."""
        if lease.lost:
            return
        lease.lost = True
        if lease.retired and not lease.batches:
            # This worker closed it, and the answer was lost.
            self.open_leases.pop(lease.lease_id, None)
            return
        self._stats.leases_lost += 1
        dropped = self._executor.drop(lease)
        log.warning(
            "LeaseLost: lease %s of %s is lost; %s dropped%s",
            lease.lease_id,
            self._name,
            counted(len(dropped), "job"),
            f", running handlers stopped: {dropped[:20]}" if dropped else "",
        )
        self.open_leases.pop(lease.lease_id, None)
        if self.current is lease:
            self.current = None
        self._signals.wake.set()

    async def watch(self) -> None:
        """Lose leases without a heartbeat confirmed in time, until cancelled.

        It depends on the clock only.
        """
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = time.monotonic()
            for lease in list(self.open_leases.values()):
                if now > lease.trusted_until:
                    log.warning("no heartbeat confirmed in time")
                    self.lose(lease)

    async def close_retired(self) -> None:
        """Close retired leases without known jobs, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for lease in list(self.open_leases.values()):
                if not lease.retired or lease.batches or not self._settler.is_idle:
                    continue
                try:
                    held = await self._session.run(
                        protocol.close_lease(lease.lease_id, is_retired=True)
                    )
                except DatabaseUnavailable:
                    await self._signals.outage.pause(1)
                    continue
                except Exception as error:
                    log.info("lease %s is not closed yet: %s", lease.lease_id, error)
                    await asyncio.sleep(1.0)
                    continue
                self.open_leases.pop(lease.lease_id, None)
                if held:
                    log.info(
                        "retired lease %s closed: %s of a lost answer released",
                        lease.lease_id,
                        counted(held, "job"),
                    )

    async def drop_missing_batches(self) -> None:
        """After the database was unavailable: drop the batches whose claims its crash rolled
        back.
        """
        for lease in list(self.open_leases.values()):
            if not lease.batches or lease.lost:
                continue
            missing = await self._session.run(
                protocol.missing_batches(lease.lease_id, list(lease.batches))
            )
            if missing:
                dropped = self._executor.drop(lease, missing)
                for claim_no in missing:
                    lease.batches.pop(claim_no, None)
                log.warning(
                    (
                        "the database lost %s of lease %s in a crash: %s dropped, "
                        "they will be claimed again"
                    ),
                    counted(len(missing), "batch", "batches"),
                    lease.lease_id,
                    counted(len(dropped), "job"),
                )

    async def close_all(self) -> bool:
        """Close all leases at the end; return whether there was one and all are closed."""
        # Removed first: heartbeats continue, and a closed lease must not count as lost.
        closing = list(self.open_leases.values())
        self.open_leases.clear()
        for lease in closing:
            try:
                async with asyncio.timeout(1.0 if self._signals.at_once else 2.0):
                    await self._session.run(
                        # The last one says that the worker has ended.
                        protocol.close_lease(lease.lease_id, is_retired=lease is not closing[-1]),
                        seconds=1.5,
                    )
            except Exception as error:
                log.warning("lease %s stays open until it is revoked: %s", lease.lease_id, error)
                return False
        return bool(closing)


def _trusted_seconds(settings: WorkerSettings) -> float:
    return settings.lease_seconds - settings.lease_margin_seconds

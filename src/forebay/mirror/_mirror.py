"""``Mirror``: what an application declares and calls."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from forebay.app import require_jobs
from forebay.arguments.kinds import BATCH_SIZE_MAX
from forebay.db.foreign_session import ForeignSession
from forebay.db.own import enqueue_own, run_own
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.mirror._audit import PAGE_DEFAULT, PAGE_MAX, Auditor, Drift, recorded
from forebay.mirror._direct import DirectWrites
from forebay.mirror._direct_records import DirectRecords
from forebay.mirror._jobs import REPAIR_PRIORITY, MirrorJobs, args_of
from forebay.mirror._loop_thread import Calls, LoopThread
from forebay.mirror._model import rule_of
from forebay.mirror._reconcile import Counts, Reconciler, problem_of
from forebay.mirror._turns import Turns
from forebay.model import Job, Snooze, checks
from forebay.model.doors import declaring_door
from forebay.model.mirrors import AuditRecord, MirrorStatus, Thresholds
from forebay.model.outcome import Endings
from forebay.model.spans import reconciling
from forebay.model.text import logger
from forebay.ops import mirrors
from forebay.policy.retry import RetryPolicy
from forebay.watch.mirror_rules import alerts_of

if TYPE_CHECKING:
    from uuid import UUID

    from forebay.app import Jobs
    from forebay.mirror._model import Compare, Id, Source, Target
    from forebay.ops.operation import Operation

T = TypeVar("T")

#: More than any store reads.
ROWS_PER_SECOND_MAX: Final = 1e9

log = logger("forebay.mirror")

#: The time between two samples of the number of due jobs.
_SAMPLE_SECONDS: Final = 60.0

QUEUE_DEFAULT: Final = "mirror"
BATCH_SIZE_DEFAULT: Final = 2500
GRACE_SECONDS_DEFAULT: Final = 60.0
EXPIRES_SECONDS_DEFAULT: Final = 30 * 86_400.0

#: The longest time between two checks of an item while its job exists.
BACKOFF_SECONDS_MAX: Final = 3600.0


class Mirror(MirrorJobs):
    """Keeps a second store, the target, up to date with a first one, the source.

    ``changed`` enqueues a job in the transaction that changes an item. When the job is due, it
    compares the copy in the target with the item in the source, and writes or deletes the copy if
    it is not right. The job ends only when a later read of the target shows the copy right. Call
    ``write_now`` after the commit, so that the target normally has the change at once.

    The methods that enqueue jobs, for changes, heartbeats and backfills, are in the base class
    ``MirrorJobs``.

    Args:
        app: the application whose workers run the jobs.
        name: of the mirror; its jobs are of the kind ``mirror.<name>``.
        source: the first store; see ``forebay.mirror.Source``.
        target: the second store; see ``forebay.mirror.Target``. It belongs to this mirror alone.
        queue: the queue of its jobs.
        priority: of its jobs, lower first.
        batch_size: the most jobs in one pass: one read of each store, one write, one delete.
        grace: the delay of a job after the change, so that a direct write can finish first.
        interval: the wait after a write that was not confirmed or was refused; longer each time, up
            to an hour.
        expires_in: a job that is not proved this long after it was due becomes a dead letter.
        compare: when a copy is right: "version", "hash" or a function of a ``Document`` and the
            ``Seen`` copy.
        lag: the time until accepted writes can be read; None takes the target's ``lag_seconds``, or
            0 without one.
        timeout: how long one call of the source or the target may take.
        direct_timeout: how long ``write_now`` may take in all.
        share_least: the least share of the time in which the jobs of one process work, above 0 and
            at most 1. They write in short calls, one at a time. While direct writes of any process
            are slow, or the database is, they also rest, reads included, and their share of the
            time falls to this at the least. 1: in calls for all items of a pass, several at a time,
            without a rest.
        thresholds: when its status is an alert; None for the defaults of ``Thresholds``.

    Durations are seconds or timedeltas.

    Raises:
        ConfigError: a value is refused, or the app already has a mirror of this name.

    Attributes:
        name: of the mirror.
        handler: the handler of its jobs; ``handler.kind`` has its declaration.
        source: the first store.
        target: the second store.
        thresholds: when its status is an alert.
    """

    name: str
    source: Source
    target: Target
    thresholds: Thresholds

    @declaring_door
    def __init__(
        self,
        app: Jobs,
        name: str,
        *,
        source: Source,
        target: Target,
        queue: str = QUEUE_DEFAULT,
        priority: int = checks.PRIORITY_DEFAULT,
        batch_size: int = BATCH_SIZE_DEFAULT,
        grace: float | timedelta = GRACE_SECONDS_DEFAULT,
        interval: float | timedelta = 5.0,
        expires_in: float | timedelta = EXPIRES_SECONDS_DEFAULT,
        compare: Compare = "version",
        lag: float | timedelta | None = None,
        timeout: float | timedelta = 30.0,
        direct_timeout: float | timedelta = 0.5,
        share_least: float = 0.2,
        thresholds: Thresholds | None = None,
    ) -> None:
        where = f"mirror {name}"
        require_jobs(app)
        for thing, methods in (
            (source, ("read", "scan")),
            (target, ("read", "write", "delete", "scan")),
        ):
            missing = [each for each in methods if not callable(getattr(thing, each, None))]
            if missing:
                raise ConfigError(where, f"{shown(thing)} has no {missing[0]}()")
        if not 1 <= batch_size <= BATCH_SIZE_MAX:
            raise ConfigError(
                where, f"batch_size is {batch_size}, not within 1 to {BATCH_SIZE_MAX}"
            )
        if not 0 < share_least <= 1:
            raise ConfigError(where, f"share_least is {share_least}, not above 0 and at most 1")
        self.name = name
        self.source = source
        self.target = target
        grace_seconds = _seconds(where, "grace", grace, least=0.0)
        direct_seconds = _seconds(where, "direct_timeout", direct_timeout)
        if lag is None:
            lag = getattr(target, "lag_seconds", 0.0)
        call_seconds = _seconds(where, "timeout", timeout)
        self._call_seconds = call_seconds
        self._lag = _seconds(where, "lag", lag, least=0.0)
        self._hashes = compare == "hash"
        self._queue = queue
        self._calls = Calls()
        self._counts = Counts()
        self._loop_thread = LoopThread(f"forebay mirror {name}")
        self._reconciler = Reconciler(
            name,
            source,
            target,
            calls=self._calls,
            counts=self._counts,
            is_right=rule_of(compare),
            hashes=self._hashes,
            lag_seconds=self._lag,
            call_seconds=call_seconds,
            turns=Turns(share_least, self._slow_direct_writes),
        )
        #: Keeps the counts of direct writes, samples and audits.
        self._records = ForeignSession(lambda: app.dsn, name="forebay mirror", seconds=call_seconds)
        self._direct_records = DirectRecords(name, self._loop_thread, self._keep_record)
        self._direct = DirectWrites(
            name,
            source,
            target,
            loop_thread=self._loop_thread,
            calls=self._calls,
            counts=self._counts,
            records=self._direct_records,
            hashes=self._hashes,
            seconds=direct_seconds,
        )
        self._sample_at = 0.0
        app._internals.add_mirror(self)
        base = _seconds(where, "interval", interval)
        self._expires_seconds = _seconds(where, "expires_in", expires_in)
        handler = app.batch_job(
            name=f"mirror.{name}",
            queue=queue,
            priority=priority,
            size=batch_size,
            # A pass makes a few calls, and as many again in the same time when it searches for
            # items that fail.
            timeout=10 * call_seconds + 60,
            expires_in=expires_in,
            retry=RetryPolicy(
                base_seconds=base,
                cap_seconds=max(base, BACKOFF_SECONDS_MAX),
                max_attempts=checks.MAX_ATTEMPTS_MAX,
            ),
        )(self._on_jobs())
        super().__init__(app, handler, grace_seconds, thresholds or Thresholds())

    def __repr__(self) -> str:
        return f"<mirror {self.name!r}>"

    # --- direct writes ---

    def write_now(self, item: Id | UUID) -> bool:
        """Try to bring the target up to date about an item at once.

        Return whether the target accepted it.

        Call it after the commit. It never raises and takes no longer than ``direct_timeout``; after
        several failures in a row it does not try for some seconds. The item's job repairs whatever
        fails here.

        Args:
            item: its id; an item that is gone from the source is deleted from the target.
        """
        return self._direct.write(item)

    async def awrite_now(self, item: Id | UUID) -> bool:
        """Do as ``write_now``, without blocking the event loop."""
        return await self._direct.awrite(item)

    # --- audits ---

    def audit(
        self,
        *,
        page: int = PAGE_DEFAULT,
        rows_per_second: float = 10_000.0,
        settle: float | timedelta | None = None,
        compare: Literal["version", "hash"] | None = None,
    ) -> Drift:
        """Compare both stores from end to end, and return the differences.

        It can run beside live writes: apparent differences are checked again after some time. Items
        whose jobs wait longer than that count as wrong. If both stores can compute the checksum of
        a range, the audit reads only ranges with different checksums. The result is recorded, see
        ``audits``.

        Args:
            page: rows of one read, 1 to 10,000.
            rows_per_second: the most rows read of both stores together, by the stores or by the
                audit.
            settle: the time before a difference is checked again; None for the grace, the lag and
                five seconds.
            compare: "hash" also reads all documents and compares their hashes, if the mirror is
                declared so; "version" does not; None as declared, where a function counts as
                "version".

        Raises:
            ConfigError: a value is refused, or a scan is not in the order of the ids.
            DatabaseUnavailable: the source cannot be read.
            TargetUnavailable: the target cannot be read.
        """
        where = f"mirror {self.name}"
        if not 1 <= page <= PAGE_MAX:
            raise ConfigError(where, f"page is {page}, not within 1 to {PAGE_MAX}")
        if not 0 < rows_per_second <= ROWS_PER_SECOND_MAX:
            raise ConfigError(
                where, f"rows_per_second is {shown(rows_per_second)}, not above 0 and at most 1e9"
            )
        if compare not in (None, "version", "hash"):
            raise ConfigError(where, f'compare is {shown(compare)}, not "version" or "hash"')
        if compare == "hash" and not self._hashes:
            raise ConfigError(
                where,
                "is not declared to compare by hash, so the target has no hashes",
                hint='Declare forebay.Mirror(..., compare="hash"), and write all items again.',
            )
        wait = self._grace + self._lag + 5.0
        auditor = Auditor(
            self.source,
            self.target,
            calls=self._calls,
            call_seconds=self._call_seconds,
            settle_seconds=wait if settle is None else _seconds(where, "settle", settle, least=0.0),
            page=page,
            rows_per_second=rows_per_second,
            hashes=self._hashes if compare is None else compare == "hash",
        )
        drift = self._loop_thread.submit(auditor.run()).result()
        drift.audit_id = self._record(mirrors.record_audit(self.name, recorded(drift)))
        return drift

    def audits(self, limit: int = 100) -> list[AuditRecord]:
        """Return the records of earlier audits, the newest first; they are kept for a year."""
        limit = checks.checked_integer(limit, "limit", least=1, most=10_000)
        return run_own(self._app.dsn, mirrors.mirror_audits(self.name, limit))

    def repair(self, drift: Drift, *, tag: str = "audit", priority: int = REPAIR_PRIORITY) -> int:
        """Enqueue a job, due at once, for each item that an audit found wrong, on a new connection.

        Return the number of jobs.

        Args:
            drift: what ``audit`` returned.
            tag: of the jobs; with the priority, one that alerts ignore, as in ``backfill``.
            priority: of the jobs, lower first; by default after all others.

        Raises:
            InvalidJob: alerts would not ignore the jobs.
            DatabaseUnavailable: no connection, or it was lost; some of the jobs may then exist.
        """
        handler = self._bulk(tag, priority)
        count = enqueue_own(
            self._app.dsn, (handler.call(**args_of(i, force=False)) for i in drift.repairable)
        )
        if drift.audit_id is not None:
            self._record(mirrors.record_repair(drift.audit_id, count))
        return count

    # --- status ---

    def status(self, *, group: str = "default") -> MirrorStatus:
        """Return the status of the mirror: waiting jobs, completed work, and alerts.

        It visits every waiting job, which takes seconds with millions of jobs.

        Args:
            group: the consumer group of its workers in its queue.

        Raises:
            DatabaseUnavailable: no connection.
            SchemaError: the database has no schema.
        """
        query = self._status_query(group)
        facts = run_own(self._app.dsn, query.facts())
        self._record(query.sample())
        return MirrorStatus(
            name=self.name,
            queue=self._queue,
            thresholds=self.thresholds,
            alerts=alerts_of(self.name, self._queue, facts, self.thresholds),
            facts=facts,
        )

    # --- other ---

    @property
    def counts(self) -> dict[str, int]:
        """The counters of this process, by name; docs/reference/python.md lists the names."""
        return self._counts.all()

    def close(self) -> None:
        """Close source and target, if they have a ``close``, and end the thread that calls them.

        The mirror can be used again afterwards.
        """
        self._direct_records.flush()
        for store in (self.source, self.target):
            close = getattr(store, "close", None)
            if close is not None:
                self._loop_thread.submit(self._calls.call(close, seconds=10.0)).result()
        self._loop_thread.submit(self._records.close()).result()
        self._loop_thread.close()

    def _on_jobs(self) -> Any:
        async def reconcile(jobs: list[Job]) -> Endings:
            work = self._loop_thread.submit(self._reconciler.run(jobs))
            try:
                with reconciling(self.name, jobs):
                    endings = await asyncio.wrap_future(work)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                # ``close`` ended the pass: what it wrote is found right by the next one.
                return Endings([Snooze(1.0, reason="the mirror was closed")] * len(jobs))
            if time.monotonic() >= self._sample_at:
                self._sample_at = time.monotonic() + _SAMPLE_SECONDS
                self._loop_thread.submit(self._sample(jobs[0].group))
            return endings

        return reconcile

    async def _sample(self, group: str) -> None:
        await self._keep_record(self._status_query(group).sample())

    def _status_query(self, group: str) -> mirrors.StatusQuery:
        return mirrors.StatusQuery(
            self.name, self._queue, group, self._expires_seconds, self.thresholds
        )

    def _record(self, operation: Operation[T]) -> T | None:
        """Run an operation that only keeps a record: if it fails, the result is still valid."""
        try:
            return run_own(self._app.dsn, operation)
        except Exception as error:
            log.warning("mirror %s: no record was kept: %s", self.name, problem_of(error))
            return None

    async def _slow_direct_writes(self) -> float | None:
        """The fraction of direct writes that were slow, of all processes; 1 without an answer."""
        try:
            return await self._records.run(mirrors.slow_direct_writes(self.name))
        except Exception as error:
            log.debug("mirror %s: direct writes are not known: %s", self.name, error)
            return 1.0

    async def _keep_record(self, operation: Operation[Any]) -> bool:
        try:
            await self._records.run(operation)
        except Exception as error:
            log.debug("mirror %s: no record was kept: %s", self.name, problem_of(error))
            return False
        return True


def _seconds(where: str, name: str, value: object, *, least: float = 0.001) -> float:
    try:
        seconds = checks.checked_seconds(value, name)
    except InvalidJob as error:
        raise ConfigError(where, error.message) from None
    if seconds < least:
        raise ConfigError(where, f"{name} is {seconds:g} s, below {least:g} s")
    return seconds

"""Maintenance of the log: every worker can do it, and one worker does it.

Promotion of due jobs, revocation of lost leases, sealing and creating segments, expiry, retention,
trimming. Each duty is one SQL function under a try-lock, so that several workers may call it at the
same time, and each call is a step bounded in rows. Normally only the leader of maintenance calls
these functions: see ``docs/design/worker.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.errors import DatabaseUnavailable
from forebay.model.attempts import LostWorker
from forebay.model.text import logger
from forebay.ops import maintenance, protocol, queues
from forebay.ops.locks import lock_holders
from forebay.policy.backoff import reconnect_seconds
from forebay.policy.leadership import MAINTENANCE, Leadership
from forebay.policy.server_clock import ServerClock
from forebay.watch.metrics import check_session
from forebay.worker.ground.lock_warnings import LockWatch
from forebay.worker.ground.outage import Outage
from forebay.worker.maintain._duties import Duty, Schedule
from forebay.worker.maintain._looks import Looks
from forebay.worker.maintain._lost import LostLeases

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from forebay.db.session import Session
    from forebay.model.alerts import AlertChange

log = logger("forebay.maintenance")

#: Pause between checks for due jobs; it delays a due job by half of this on average. Pause between
#: checks for lost leases.
_PROMOTE_SECONDS: Final = 0.1
_REVOKE_SECONDS: Final = 1.0

#: Jobs promoted by one call; after a full call the next one follows at once.
_PROMOTE_ROWS = 5000
#: How often a worker that would end looks after a silent lease.
_LOST_SECONDS: Final = 0.2
#: Longer than any lease.
_EVER: Final = 1e9
_EXTEND_SEGMENTS = 64  # most segments created by one call
_SWEEP_ROWS = 1000  # most jobs that a step of the sweep looks at
_SWEEP_LANES = 50  # most lanes that it looks at
_TRIM_ROWS = 5000  # most rows that a step of trimming looks at

#: Expiries that were committed long after their time are found by a sweep of all expiries, after
#: this time.
_SWEEP_ALL_SECONDS = 3600.0

#: Seconds between two sweeps. Those that visit each lane have pauses of a multiple of the duration
#: of one, up to the longest pause.
_SWEEP_SECONDS = 10.0
_SWEEP_PAUSE_FACTOR = 300
_SWEEP_SECONDS_MAX = 60.0

#: Segments whose block index is updated in each pass, the newest ones. The first pass of a leader
#: updates all.
_SUMMARIZED_SEGMENTS = 3

#: Seconds between two renewals of the counts of waiting jobs, and between two folds of the
#: counters, and the least multiple of the duration of one, up to the longest pauses. While a worker
#: is at its limit, folds come later, and reads add more.
_RENEW_SECONDS = 2.0
_RENEW_SECONDS_MAX = 60.0
_FOLD_SECONDS = 1.0
_FOLD_SECONDS_MAX = 10.0
_VISIT_PAUSE_FACTOR = 20

#: Duties that only report begin this long after the worker: a short drain does not wait for them.
_REPORTS_AFTER_SECONDS: Final = 2.0

#: Seconds between two steps of closing groups; while there is none, up to the second number.
_CLOSE_SECONDS = 2.0
_CLOSE_SECONDS_MAX = 10.0

#: Seconds between two checks of the alerts, and the least multiple of the duration of one, up to
#: the longest pause.
_ALERTS_SECONDS = 15.0
_ALERTS_PAUSE_FACTOR = 250
_ALERTS_SECONDS_MAX = 60.0

#: The parts of trimming with the seconds between two passes. Under a held snapshot a pass visits
#: what the passes before deleted, so most are rare.
_TRIMMED: Final = {
    "deferred": 15.0,
    "late_deferred": 3600.0,
    "promotions": 600.0,
    "subject_states": 60.0,
    "subject_counts": 60.0,
    "batches": 600.0,
    "key_runs": 600.0,
    "limit_runs": 600.0,
    "limiters": 60.0,
    "waiting": 60.0,
    "counters": 60.0,
    "heartbeats": 600.0,
    "leases": 600.0,
    "failures": 600.0,
    "events": 600.0,
    "guard_events": 600.0,
    "dead_letters": 600.0,
    "tombstones": 600.0,
    "results": 600.0,
    "progress": 600.0,
    "mirror_counts": 600.0,
    "mirror_samples": 600.0,
    "mirror_breakers": 600.0,
    "mirror_audits": 3600.0,
    "unique_keys": 600.0,
    "published": 60.0,
    "replays": 3600.0,
    "occurrences": 600.0,
    "breakers": 600.0,
}

#: Parts of trimming with this pause or more come less often while they find nothing.
_TRIM_IDLE_SECONDS: Final = 60.0

#: The longest pause of duties that find nothing. Activity ends it: any for folds and renewals, this
#: many new rows for trimming.
_IDLE_SECONDS_MAX: Final = 300.0
_ACTIVE_ROWS: Final = 1000

#: A fold or a renewal that found nothing is followed by a pause of this multiple of its duration at
#: least.
_IDLE_PAUSE_FACTOR: Final = 500

#: Most blocks of 4,096 numbers that a step summarizes.
_ARCHIVE_BLOCKS: Final = 16

#: The first passes of trimming are spread over this time.
_TRIM_SPREAD_SECONDS: Final = 10.0

#: Longest pause after a task failed for another reason than an unreachable database.
_FAILED_SECONDS_MAX = 30.0

#: How long the leadership lasts unless renewed. After a leader dies, no worker promotes jobs for
#: this long.
_LEAD_SECONDS = 1.6

#: A worker that does not lead closes the connection of maintenance after this time without a call.
_REST_SECONDS = 2.0


@dataclass(slots=True, frozen=True)
class Leading:
    """How a worker leads.

    Attributes:
        leader_id: the id under which it leads.
        duties: other duties that it leads beside maintenance.
        is_announced: returns whether this worker is notified when a job is added that is due soon.
    """

    leader_id: int
    duties: Collection[int] = ()
    is_announced: Callable[[], bool] = lambda: False


class Maintenance:
    """The maintenance tasks of one process, on one connection.

    Args:
        session: a connection that no other part uses.
        on_work: called when jobs became claimable.
        outage: wakes the attempts to lead; None: only their pauses do.
        leading: how this worker leads. None: do the maintenance without leadership.
    """

    def __init__(
        self,
        session: Session,
        *,
        on_work: Callable[[], None] = lambda: None,
        on_worker_lost: Callable[[LostWorker], None] = lambda _: None,
        outage: Outage | None = None,
        leading: Leading | None = None,
    ) -> None:
        self._looks = Looks(_PROMOTE_SECONDS, time.monotonic)
        self._leading = leading
        #: For how long the server's clock was seen to run evenly, and when it was read last.
        self._observed: tuple[float | None, float] = None, 0.0
        #: Grows with each job. What it was at the last answer, and when trimming began to come
        #: often.
        self._activity = self._trimmed_activity = 0
        self._outage = outage or Outage()
        self._session = session
        self._on_work = on_work
        self._leader_id = None if leading is None else leading.leader_id
        self._leadership = Leadership(
            [MAINTENANCE, *(() if leading is None else leading.duties)],
            seconds=_LEAD_SECONDS,
            clock=time.monotonic,
            draw=random.random,
            looks=False,
        )
        self._lead_failures = 0
        self._is_over = False
        self._hint = asyncio.Event()
        self._server_clock = ServerClock()
        self._lost_leases = LostLeases(session, self._server_clock, on_worker_lost)
        self._swept_at: datetime | None = None
        self._lock_watch = LockWatch(log)
        self.counts: dict[str, int] = {}
        self._summarized = 0
        self._sweep_began_at: datetime | None = None
        self._swept_all_at: float | None = None
        self._lanes_due_at = 0.0
        self._swept_lanes = 0
        self._promotion = Duty(
            "promote", _PROMOTE_SECONDS, self._promote, _PROMOTE_ROWS, is_urgent=True
        )
        self._revocation = Duty("revoke", _REVOKE_SECONDS, self._revoke, is_urgent=True)
        self._sealing = Duty("seal", 1.0, self._seal, is_urgent=True)
        self._folding = Duty(
            "fold", _FOLD_SECONDS, self._fold, due_at=time.monotonic() + _FOLD_SECONDS
        )
        later = time.monotonic() + _REPORTS_AFTER_SECONDS
        self._renewal = Duty("renew", _RENEW_SECONDS, self._renew, due_at=later)
        self._trimming = {
            # A worker that becomes the leader does not begin with all of them at once.
            part: Duty(
                f"trim {part}",
                seconds,
                self._trim,
                _TRIM_ROWS,
                due_at=time.monotonic() + random.uniform(0.0, _TRIM_SPREAD_SECONDS),
            )
            for part, seconds in _TRIMMED.items()
        }
        self._schedule = Schedule(
            [
                self._promotion,
                self._revocation,
                self._sealing,
                Duty("extend", 5.0, self._extend, is_urgent=True),
                Duty("sweep", _SWEEP_SECONDS, self._sweep, _SWEEP_ROWS),
                Duty("summarize", 5.0, self._summarize),
                Duty("archive", 5.0, self._archive, _ARCHIVE_BLOCKS),
                Duty("retain", 30.0, self._retain),
                Duty("drop", 5.0, self._drop),
                Duty("close", _CLOSE_SECONDS, self._close),
                Duty("forget", 10.0, self._forget),
                self._renewal,
                self._folding,
                Duty("locks", 60.0, self._watch_locks, due_at=later),
                Duty("alerts", _ALERTS_SECONDS, self._check_alerts, due_at=later),
                *self._trimming.values(),
            ],
            self._report,
            log,
        )

    async def run(self) -> None:
        """Run the tasks that are due while this process leads, until cancelled."""
        while True:
            if not await self._leads():
                await self._wait_for_hint()
                continue
            await self._schedule.run_next()
            await self._wait(self._schedule.pause_seconds)

    async def run_all(self, seconds: float) -> None:
        """Run a pass of each task, as far as the time allows: for a process that soon ends."""
        now = time.monotonic()
        for duty in self._schedule.duties:
            duty.due_at = now - random.random()  # Not always the same ones if the time is short.
        while not self._schedule.pause_seconds and time.monotonic() < now + seconds:
            await self._schedule.run_next()

    @property
    def leaderless(self) -> list[int]:
        """The leadership of maintenance, if this process wants it and does not hold it."""
        return [] if self._leader_id is None or self._is_over else self._leadership.missing

    def assume_leaderless(self, duties: Collection[int]) -> None:
        """Try soon to lead if maintenance is among these leaderless duties."""
        if self._leadership.assume_leaderless(duties):
            self._hint.set()

    def leads(self, duty: int) -> bool:
        """Whether this process leads a duty."""
        return not self._is_over and duty in self._leadership.held

    def promote_soon(self) -> None:
        """Look for due jobs: one was added that is due soon."""
        soon = self._looks.after_notification()
        if soon < self._promotion.due_at:
            self._promotion.due_at = soon
            self._hint.set()

    def step_down(self) -> None:
        """Start no further task and do not renew the leadership, so that another worker can
        lead.
        """
        if self._leader_id is not None:
            self._is_over = True

    async def _leads(self) -> bool:
        if self._leader_id is None:
            return True
        if self._is_over:
            return False
        if self._leadership.is_due:
            called_at = time.monotonic()
            try:
                held = await self._session.run(
                    protocol.lead(
                        self._leader_id, self._leadership.wanted, self._leadership.seconds
                    )
                )
            except DatabaseUnavailable as error:
                self._lead_failures += 1
                self._outage.failed("maintenance", error)
                await self._outage.pause(self._lead_failures)
                # Duties that failed during the outage are due at its end, and not after their long
                # pauses.
                self._schedule.forgive()
                self._hint.set()
                return False
            except Exception as error:
                self._lead_failures += 1
                if self._lead_failures in {3, 30, 300}:
                    log.warning("maintenance failed %s times: %s", self._lead_failures, error)
                await asyncio.sleep(
                    reconnect_seconds(
                        self._lead_failures, random.random(), cap_seconds=_FAILED_SECONDS_MAX
                    )
                )
                self._hint.set()
                return False
            self._lead_failures = 0
            self._outage.answered("maintenance")
            self._leadership.answered(held, called_at)
        return MAINTENANCE in self._leadership.held

    async def _wait_for_hint(self) -> None:
        await self._wait(_REST_SECONDS)
        await self._session.rest(_REST_SECONDS)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hint.wait()
        self._hint.clear()

    async def run_once(self) -> bool:
        """Promote due jobs once, and take over from a lost worker.

        Return whether something was done or is still to be done.

        Invariant "a short run recovers": a worker that ends when it is idle does not end while a
        lease is silent. It stays until it has observed the server's clock for long enough to revoke
        the lease, or until its worker was heard again.
        """
        answer = await self._session.run(
            maintenance.maintain(
                _PROMOTE_ROWS,
                leader_id=0,
                duties=[],
                seconds=self._leadership.seconds,
                observed_seconds=_EVER,  # Only what may revoke a lease asks what was observed.
                sleep_millis=None,
            )
        )
        if answer.has_lost and not await self._revoke(self._revocation):
            await asyncio.sleep(_LOST_SECONDS)
        return answer.promoted > 0 or answer.has_lost

    async def _report(self, name: str, seconds: float | None, error: str | None) -> None:
        await self._session.run(maintenance.record_duty(name, seconds, error))

    def _record(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count

    async def _maintain(self, duty: Duty) -> bool:
        """Promote, renew the leadership, and read which other duties have something to do."""
        called_at = time.monotonic()
        observed, observed_at = self._observed
        answer = await self._session.run(
            maintenance.maintain(
                duty.rows,
                leader_id=self._leader_id or 0,
                duties=self._leadership.wanted,
                seconds=self._leadership.seconds,
                observed_seconds=None if observed is None else observed + called_at - observed_at,
                sleep_millis=self._looks.begin(
                    is_announced=self._leading is not None and self._leading.is_announced()
                ),
            )
        )
        self._leadership.answered(answer.held, called_at, renewal_share=0.75)
        self.observe_clock(answer.server_time, called_at, time.monotonic())
        self._record("promoted", answer.promoted)
        if answer.promoted:
            self._on_work()
        duty.next_seconds = self._looks.end(
            has_found=answer.promoted > 0, due_seconds=answer.sleep_millis / 1000
        )
        self._postpone(answer, duty.next_seconds or duty.every_seconds)
        return answer.promoted >= duty.rows

    def _postpone(self, answer: maintenance.Maintained, seconds: float) -> None:
        """Let the duties wait that have nothing to do; bring back those that have."""
        now = time.monotonic()
        for duty, is_due in ((self._revocation, answer.has_lost), (self._sealing, answer.has_full)):
            if is_due:
                duty.due_at = min(duty.due_at, now) if not duty.failures else duty.due_at
            else:
                self._schedule.postpone(duty, max(duty.every_seconds, seconds + 0.5))
        if answer.activity != self._activity:
            self._activity = answer.activity
            self._folding.hasten()
            self._renewal.hasten()
        if abs(answer.activity - self._trimmed_activity) >= _ACTIVE_ROWS:
            self._trimmed_activity = answer.activity
            for duty in self._trimming.values():
                duty.hasten()

    async def _promote(self, duty: Duty) -> bool:
        if self._leader_id is not None:
            return await self._maintain(duty)
        count = await self._session.run(maintenance.promote(duty.rows))
        self._record("promoted", count)
        if count:
            self._on_work()
        return count >= duty.rows

    def observe_clock(self, reading: datetime, sent_at: float, answered_at: float) -> None:
        """Record a reading of the server's clock, also while another worker leads: see
        ``ServerClock.observe``.
        """
        observed = self._server_clock.observe(reading, sent_at, answered_at)
        self._observed = observed, answered_at

    async def _revoke(self, _: Duty) -> bool:
        if not await self._lost_leases.revoke():
            return False
        self._record("revoked", 1)
        self._on_work()
        return True

    async def _seal(self, _: Duty) -> bool:
        self._record("sealed", await self._session.run(maintenance.seal()))
        return False

    async def _extend(self, _: Duty) -> bool:
        made: Any = await self._session.run(maintenance.extend(_EXTEND_SEGMENTS))
        self._record("extended", made)
        return bool(made >= _EXTEND_SEGMENTS)

    async def _sweep(self, duty: Duty) -> bool:
        if duty.after is None:
            self._sweep_began_at = await self._session.run(protocol.now())
            self._swept_lanes = _SWEEP_LANES if time.monotonic() >= self._lanes_due_at else 0
            if (
                self._swept_all_at is None
                or time.monotonic() - self._swept_all_at > _SWEEP_ALL_SECONDS
            ):
                self._swept_at = None
        began_at = self._sweep_began_at
        # One minute of overlap, for transactions that committed after the last pass; later ones are
        # found by a pass over all. If the clock was set back, also for all that expires from now
        # on.
        since = None
        if self._swept_at is not None and began_at is not None:
            since = min(self._swept_at, began_at) - timedelta(minutes=1)
        count, duty.after = await self._session.run(
            maintenance.sweep(since, duty.after, duty.rows, self._swept_lanes)
        )
        self._record("expired", count)
        if duty.after is None:
            if self._swept_at is None:
                self._swept_all_at = time.monotonic()
            self._swept_at = began_at
            if self._swept_lanes:
                self._lanes_due_at = time.monotonic() + _pause_after(
                    duty.began_at, _SWEEP_SECONDS, _SWEEP_PAUSE_FACTOR, _SWEEP_SECONDS_MAX
                )
        return duty.after is not None

    async def _summarize(self, duty: Duty) -> bool:
        added, duty.after = await self._session.run(maintenance.summarize(duty.after))
        self._record("summarized", added)
        self._summarized += 1
        if duty.after is not None and (
            not duty.is_clear or self._summarized < _SUMMARIZED_SEGMENTS
        ):
            return True
        duty.after = None
        self._summarized = 0
        return False

    async def _archive(self, duty: Duty) -> bool:
        made = await self._session.run(maintenance.archive(duty.rows))
        self._record("archived", made)
        return made >= duty.rows

    async def _retain(self, duty: Duty) -> bool:
        emptied, duty.after = await self._session.run(maintenance.retain(duty.after))
        if emptied is not None:
            log.info("segment %s of the archive emptied", emptied)
            self._record("emptied", 1)
        return duty.after is not None

    async def _drop(self, _: Duty) -> bool:
        dropped = await self._session.run(maintenance.drop_segments())
        self._record("dropped", dropped)
        return dropped > 0

    async def _close(self, duty: Duty) -> bool:
        count = await self._session.run(queues.continue_closing())
        duty.pause(_CLOSE_SECONDS, count, _CLOSE_SECONDS_MAX)
        self._record("closed", count)
        return count > 0

    async def _forget(self, _: Duty) -> bool:
        count = await self._session.run(maintenance.forget())
        self._record("forgotten", count)
        return count > 0

    async def _renew(self, duty: Duty) -> bool:
        began_at = time.monotonic()
        renewed = await self._session.run(maintenance.renew_counters())
        self._record("renewed", renewed)
        _pause_visitor(duty, began_at, renewed, _RENEW_SECONDS, _RENEW_SECONDS_MAX)
        return False

    async def _fold(self, duty: Duty) -> bool:
        began_at = time.monotonic()
        folded = await self._session.run(maintenance.fold())
        self._record("folded", folded)
        _pause_visitor(duty, began_at, folded, _FOLD_SECONDS, _FOLD_SECONDS_MAX)
        return False

    async def _watch_locks(self, _: Duty) -> bool:
        self._lock_watch.record(await self._session.run(lock_holders()))
        return False

    async def _check_alerts(self, duty: Duty) -> bool:
        began_at = time.monotonic()
        checked = await check_session(self._session)
        for change in checked.changes:
            _log_alert(change)
            self._record(f"alerts {change.act}", 1)
        duty.every_seconds = _pause_after(
            began_at, _ALERTS_SECONDS, _ALERTS_PAUSE_FACTOR, _ALERTS_SECONDS_MAX
        )
        return False

    async def _trim(self, duty: Duty) -> bool:
        part = duty.name.removeprefix("trim ")
        count, duty.after = await self._session.run(maintenance.trim(part, duty.after, duty.rows))
        self._record("trimmed", count)
        if _TRIMMED[part] >= _TRIM_IDLE_SECONDS:
            duty.pause(_TRIMMED[part], count, _IDLE_SECONDS_MAX)
        return duty.after is not None


def _pause_after(began_at: float | None, least: float, factor: float, most: float) -> float:
    """Return the seconds until a duty comes again: a multiple of what it took since it began,
    between two bounds.
    """
    return min(max(least, factor * (time.monotonic() - (began_at or 0.0))), most)


def _pause_visitor(duty: Duty, began_at: float, found: int, least: float, most: float) -> None:
    """Set the pause of a duty that visits each lane: with very many lanes it comes less often."""
    seconds = _pause_after(began_at, least, _VISIT_PAUSE_FACTOR, most)
    idle_seconds = _pause_after(began_at, least, _IDLE_PAUSE_FACTOR, _IDLE_SECONDS_MAX)
    duty.pause(seconds, found, _IDLE_SECONDS_MAX, idle_seconds=idle_seconds)


def _log_alert(change: AlertChange) -> None:
    alert = change.alert
    place = f" {alert.place}" if alert.place else ""
    # The problem of an alert that cleared is the one before.
    level, words = (
        (logging.WARNING, "fired:") if change.act == "fired" else (logging.INFO, "cleared; it was:")
    )
    log.log(level, "alert %s%s %s %s", alert.code, place, words, alert.problem)

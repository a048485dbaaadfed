"""The schedule of the duties of maintenance: small steps in turn, and what is reported about duties
that fail or fall behind.
"""

from __future__ import annotations

import random
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.errors import DatabaseUnavailable
from forebay.policy.backoff import reconnect_seconds
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable, Iterable

#: A step that takes longer than this looks at half as many rows the next time; one of a quarter of
#: this at twice as many.
_STEP_SECONDS: Final = 1.0

#: A pass of several steps is followed by a pause of at least this multiple of its duration.
_PAUSE_FACTOR: Final = 4.0

#: A duty whose pass is not over after this time is behind.
_BEHIND_SECONDS: Final = 900.0

#: Time between two reports about one duty.
_REPORT_SECONDS: Final = 60.0

#: Failures in a row after which a duty is reported; earlier ones are often locks that are released
#: soon.
_REPORT_FAILURES: Final = 3
_LOG_FAILURES: Final = frozenset({_REPORT_FAILURES, 30, 300})

#: Longest pause after a duty failed for another reason than an unreachable database.
_FAILED_SECONDS_MAX: Final = 30.0


@dataclass(slots=True)
class Duty:
    """One duty of maintenance, done in passes of one or more steps.

    Attributes:
        every_seconds: pause between two passes.
        least_seconds: the pause after a pass that found something, where one that found nothing has
            a longer pause.
        step: does one step and returns whether the pass continues.
        most: maximum number of rows of a step; 0 if no parameter of the call bounds its rows.
        is_urgent: jobs wait for it, so it goes before the other duties.
        rows: number of rows of the next step.
        after: where the next step continues; None begins a pass.
    """

    name: str
    every_seconds: float
    step: Callable[[Duty], Awaitable[bool]]
    most: int = 0
    is_urgent: bool = False
    rows: int = field(init=False)
    after: Any = None
    due_at: float = field(default_factory=time.monotonic)
    failures: int = 0
    began_at: float | None = None  # The pass; None between passes.
    well_at: float = field(default_factory=time.monotonic)
    reported_at: float | None = None
    is_behind: bool = False
    is_logged: bool = False  # That it fails.
    is_clear: bool = False  # The database has no report about it.
    #: Set by a step: the pause after its pass, without jitter.
    next_seconds: float | None = None
    least_seconds: float | None = None

    def __post_init__(self) -> None:
        self.rows = self.most

    def pause(self, seconds: float, found: int, most: float, *, idle_seconds: float = 0.0) -> None:
        """Set the pause after a pass: after one that found nothing, twice the pause before or
        ``idle_seconds``, at most ``most``.
        """
        self.least_seconds = seconds
        longer = max(2 * self.every_seconds, idle_seconds)
        self.every_seconds = seconds if found else max(seconds, min(longer, most))

    def hasten(self) -> None:
        """End the long pauses of a duty that found nothing: there may be something now, or soon,
        when a transaction commits.
        """
        if self.least_seconds is not None and not self.failures:
            self.every_seconds = self.least_seconds
            self.due_at = min(self.due_at, self.well_at + self.least_seconds)


class Schedule:
    """Runs duties in turn, one step at a time.

    A duty with more work is due again at once, behind those that are due already. A duty that fails
    is tried again after a pause, with half as many rows. A duty that fails or falls behind is
    logged and reported to the database, for the doctor.

    Args:
        duties: all duties.
        report: stores name, seconds and error of a duty that is not well, or the name alone of one
            that is.
        log: gets the warnings.
    """

    def __init__(
        self,
        duties: Iterable[Duty],
        report: Callable[[str, float | None, str | None], Awaitable[object]],
        log: logging.Logger,
    ) -> None:
        self.duties = list(duties)
        self._report = report
        self._log = log
        self._was_urgent = False

    @property
    def pause_seconds(self) -> float:
        """Time until the next duty is due, 0 if one is."""
        return max(0.0, min(duty.due_at for duty in self.duties) - time.monotonic())

    async def run_next(self) -> None:
        """Do one step of the duty that is due longest.

        Urgent duties go first, in every other step at most.
        """
        now = time.monotonic()
        due = [duty for duty in self.duties if duty.due_at <= now]
        if not due:
            return
        urgent = [duty for duty in due if duty.is_urgent]
        others = [duty for duty in due if not duty.is_urgent]
        chosen = others if others and (self._was_urgent or not urgent) else urgent
        self._was_urgent = chosen is urgent
        await self.run_step(min(chosen, key=lambda duty: duty.due_at))

    async def run_step(self, duty: Duty) -> None:
        """Do one step of a duty. It does not raise what the step raises."""
        began_at = time.monotonic()
        if duty.began_at is None:
            duty.began_at = began_at
        try:
            has_more = await duty.step(duty)
        except Exception as error:
            # The cause may be a lock of another session. Every step is safe to repeat, and one that
            # fails must not stop the others.
            await self._failed(duty, error)
            return
        now = time.monotonic()
        if now - began_at > _STEP_SECONDS:
            duty.rows = max(1, duty.rows // 2)
        elif now - began_at < _STEP_SECONDS / 4:
            duty.rows = min(duty.most, duty.rows * 2)
        if duty.is_logged:
            duty.is_logged = False
            self._log.info("%s works again", duty.name)
        duty.failures = 0
        if has_more:
            duty.due_at = now
            await self._look_behind(duty, now)
            return
        # A little jitter, so that processes do not synchronize.
        pause = duty.every_seconds * (0.9 + 0.2 * random.random())
        if duty.began_at != began_at:
            pause = max(pause, _PAUSE_FACTOR * (now - duty.began_at))
        if duty.next_seconds is not None:
            pause, duty.next_seconds = duty.next_seconds, None
        duty.due_at = now + pause
        duty.began_at = None
        duty.well_at = now
        await self._clear(duty)

    def postpone(self, duty: Duty, seconds: float) -> None:
        """A duty has nothing to do now: it is due after this time.

        One that failed, or was reported, is not postponed.
        """
        now = time.monotonic()
        if duty.is_clear and not duty.failures and duty.began_at is None:
            duty.due_at = now + seconds
            duty.well_at = now

    def forgive(self) -> None:
        """Make duties that failed due after their usual pause: the database was unreachable and is
        back.
        """
        for duty in self.duties:
            duty.failures = 0
            duty.due_at = min(duty.due_at, time.monotonic() + duty.every_seconds)

    async def _failed(self, duty: Duty, error: Exception) -> None:
        duty.failures += 1
        duty.rows = max(1, duty.rows // 2)
        # The outage is logged once for all parts of the worker.
        if duty.failures in _LOG_FAILURES and not isinstance(error, DatabaseUnavailable):
            duty.is_logged = True
            self._log.warning("%s failed %s times: %s", duty.name, duty.failures, error)
        pause = reconnect_seconds(duty.failures, random.random(), cap_seconds=_FAILED_SECONDS_MAX)
        now = time.monotonic()
        duty.due_at = now + min(max(duty.every_seconds, pause), 60.0)
        if duty.failures >= _REPORT_FAILURES:
            await self._store(duty, now, f"{error}".partition("\n")[0])

    async def _look_behind(self, duty: Duty, now: float) -> None:
        if duty.began_at is None or now - duty.began_at < _BEHIND_SECONDS:
            return
        if not duty.is_behind:
            duty.is_behind = True
            self._log.warning(
                "%s is behind: its pass has lasted %s",
                duty.name,
                human_duration(now - duty.began_at),
            )
        await self._store(duty, now, None)

    async def _store(self, duty: Duty, now: float, error: str | None) -> None:
        if duty.reported_at is not None and now - duty.reported_at < _REPORT_SECONDS:
            return
        duty.reported_at = now
        duty.is_clear = False
        try:
            await self._report(duty.name, now - duty.well_at, error)
        except Exception as failure:
            # The log has the warning. The next failure reports again.
            self._log.debug("%s: not reported: %s", duty.name, failure)

    async def _clear(self, duty: Duty) -> None:
        duty.is_behind = False
        duty.reported_at = None
        if duty.is_clear:
            return
        try:
            await self._report(duty.name, None, None)
        except Exception as failure:
            self._log.debug("%s: not reported: %s", duty.name, failure)
        else:
            duty.is_clear = True

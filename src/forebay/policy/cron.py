"""The instants of a schedule: pure computation, the same in every process.

Rules for changes of the clock, as in Debian's cron: an expression with a fixed minute and hour runs
once, right after the gap, if its time does not exist, and once, at the first of the two, if its
time exists twice. Any other expression, and one with seconds, runs whenever the clock of the zone
shows a matching time. Intervals count in real time.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from forebay.errors import InvalidJob, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_MINUTE: Final = timedelta(minutes=1)
_HOUR_MINUTES: Final = 60
_FIELDS_WITHOUT_SECONDS: Final = 5
_DAY_MINUTES: Final = 24 * 60
#: A time that does not come within this one never comes.
_NEVER: Final = timedelta(days=50 * 366)
_YEAR_MAX: Final = 9990
#: Searches begin within these: at the ends of the calendar other zones have no time.
_FIRST: Final = datetime(1, 1, 3, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 29, tzinfo=UTC)

#: Names of expressions, as in crontab(5).
_NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: Files beside the zones: another zone on each machine, or none.
_NO_ZONES: Final = frozenset({"localtime", "posixrules", "Factory"})


class Timing:
    """The instants of one schedule.

    Args:
        cron: a cron expression; None: ``every`` is given.
        every: seconds between two instants; None: ``cron`` is given.
        tz: the name of the time zone of the expression.
        starts_at: the first possible instant, from which intervals count; None: an expression has
            no first instant.
        is_bounded: False: instants may also be before ``starts_at``.

    Raises:
        InvalidJob: the expression or the zone is not valid.

    >>> timing = Timing("0 9 * * *", None, "Europe/Rome", datetime(2026, 7, 1, tzinfo=UTC))
    >>> next(timing.after(datetime(2026, 7, 1, tzinfo=UTC))).isoformat()
    '2026-07-01T07:00:00+00:00'
    """

    def __init__(
        self,
        cron: str | None,
        every: float | None,
        tz: str,
        starts_at: datetime | None = None,
        *,
        is_bounded: bool = True,
    ) -> None:
        self._cron = None if cron is None else _parsed(cron, tz)
        self._every = None if every is None else timedelta(seconds=every)
        self._is_bounded = is_bounded
        self._starts_at = None if starts_at is None else _within_calendar(starts_at)

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Return the instants after this one, ascending, in UTC.

        The instants of an expression are endless unless none comes for 50 years.
        """
        instant = _within_calendar(instant)
        starts_at = self._starts_at
        if self._is_bounded and starts_at is not None and instant < starts_at:
            instant = starts_at - timedelta(microseconds=1)
        if self._cron is not None:
            yield from self._cron.after(instant)
            return
        if self._every is None or starts_at is None:
            return
        number = (instant - starts_at) // self._every + 1
        while True:
            try:
                yield starts_at + number * self._every
            except OverflowError:
                return
            number += 1

    def between(self, start: datetime, end: datetime | None, most: int) -> list[datetime]:
        """Return the instants from ``start`` to before ``end``, or without an end, at most this
        many, the first ones.
        """
        found = []
        for instant in self.after(_within_calendar(start) - timedelta(microseconds=1)):
            if end is not None and instant >= end:
                break
            found.append(instant)
            if len(found) >= most:
                break
        return found

    def undecided(
        self, decided_to: datetime, now: datetime, *, catch_up: float, newest: int
    ) -> tuple[list[datetime], datetime | None]:
        """Return the instants after ``decided_to`` up to ``now``, and one before them, if there
        are more.

        At least the newest ones within the catch-up window are returned; a window that grows is
        searched for them, so that a schedule with an instant each second is cheap after a long
        pause.

        Args:
            decided_to: where the search begins.
            now: where it ends.
            catch_up: seconds; older instants are not returned.
            newest: how many are needed.
        """
        found: deque[datetime] = deque(maxlen=20_000)
        for seconds in (120.0, 3600.0, 86_400.0, 30 * 86_400.0, catch_up):
            window = max(decided_to, now - timedelta(seconds=max(60.0, min(seconds, catch_up))))
            found.clear()
            for instant in self.after(window):
                if instant > now:
                    break
                found.append(instant)
            if window == decided_to or seconds >= catch_up or len(found) >= newest:
                break
        older = next(self.after(decided_to), None)
        if older is not None and (older > now or (found and older >= found[0])):
            older = None
        return list(found), older


def checked_timing(cron: str | None, every: float | None, tz: str) -> None:
    """Refuse an expression, an interval or a zone that gives no instants.

    Raises:
        InvalidJob: it is not valid.
    """
    Timing(cron, every, tz)


class _Cron:
    """A parsed expression in a zone."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        self._expression = expression
        self._zone = zone
        self._fields = CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
        parts = expression.split()
        self._is_plain = zone.key == "UTC" or (
            len(parts) == _FIELDS_WITHOUT_SECONDS
            and not parts[0].startswith("*")
            and not parts[1].startswith("*")
        )

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Return the instants after this one, ascending, in UTC."""
        last = instant
        for found in self._plain(instant) if self._is_plain else self._shown(instant):
            # Two times within a gap are one instant, and a search from within the repeated hour
            # begins before it.
            if found > last:
                last = found
                yield found

    def _plain(self, instant: datetime) -> Iterator[datetime]:
        zone = UTC if self._zone.key == "UTC" else self._zone
        # In the repeated hour, the first pass has the instants.
        start = instant.astimezone(zone).replace(fold=0) - timedelta(seconds=1)
        try:
            for found in CronSim(self._expression, start):
                if found.year > _YEAR_MAX:
                    return
                yield found.astimezone(UTC)
        except OverflowError:
            return

    def _shown(self, instant: datetime) -> Iterator[datetime]:
        """Return the instants at which the clock of the zone shows a matching time."""
        fields = self._fields
        seconds = [timedelta(seconds=second) for second in sorted(fields.seconds)]
        # From each minute, how far the next one is that matches, or the next hour.
        to_next = [
            min((other for other in fields.minutes if other > minute), default=_HOUR_MINUTES)
            - minute
            for minute in range(_HOUR_MINUTES)
        ]
        at = last = instant.replace(second=0, microsecond=0)
        day, is_day = None, False
        while at - last < _NEVER and at.year < _YEAR_MAX:
            local = at.astimezone(self._zone)
            if day != local.date():
                day = local.date()
                is_day = day.month in fields.months and fields.match_day(day)
            if not is_day:
                ahead = _DAY_MINUTES - local.hour * _HOUR_MINUTES - local.minute
            elif local.hour not in fields.hours:
                ahead = _HOUR_MINUTES - local.minute
            else:
                if local.minute in fields.minutes:
                    last = at
                    for second in seconds:
                        yield at + second
                ahead = to_next[local.minute]
            at += self._jump(at, local, ahead)

    def _jump(self, at: datetime, local: datetime, minutes: int) -> timedelta:
        """Return how far to go: this many minutes, less if the clock changes on the way."""
        if minutes == 1:
            return _MINUTE
        for ahead in (minutes, min(minutes, _HOUR_MINUTES - local.minute)):
            jump = ahead * _MINUTE
            if (at + jump).astimezone(self._zone).utcoffset() == local.utcoffset():
                return jump
        return _MINUTE


def _within_calendar(instant: datetime) -> datetime:
    return min(max(instant, _FIRST), _LAST).astimezone(UTC)


@lru_cache(maxsize=4096)
def _parsed(expression: str, tz: str) -> _Cron:
    expression = _NAMED.get(expression, expression)
    try:
        if tz in _NO_ZONES:
            raise ValueError
        zone = ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise InvalidJob(
            "tz", f"is not a time zone: {shown(tz)}", hint="Use a name such as Europe/Rome."
        ) from None
    try:
        return _Cron(expression, zone)
    except (CronSimError, AssertionError, ValueError):
        raise InvalidJob(
            "cron",
            f"is not a cron expression: {shown(expression)}",
            hint=(
                "Write minute, hour, day of month, month and day of week, after the second if "
                "there is one: 0 9 * * MON-FRI; or @hourly, @daily, @weekly, @monthly, @yearly."
            ),
        ) from None

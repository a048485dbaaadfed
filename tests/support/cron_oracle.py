"""The instants of a cron expression by brute force, apart from the code under test: no cron
library, and no search that jumps.
"""

import itertools
import zoneinfo
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times of the calendar, without a zone
_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


def values(text: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    """Read one field of an expression."""
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        if span == "*":
            first, last = low, high
        else:
            begin, _, end = span.partition("-")
            first = names.index(begin) if begin in names else int(begin)
            last = first if not end else names.index(end) if end in names else int(end)
        found |= set(range(first, last + 1, int(step or 1)))
    return found


class Oracle:
    """All instants of an expression, by looking at each minute."""

    def __init__(self, expression: str, zone: str) -> None:
        *second, minute, hour, day, month, weekday = expression.split()
        self.is_fixed = minute[0] != "*" and hour[0] != "*" and not second
        self.days_meet = day[0] == "*" or weekday[0] == "*"
        self.seconds = sorted(values(second[0], 0, 59)) if second else [0]
        self.minutes, self.hours = values(minute, 0, 59), values(hour, 0, 23)
        self.days, self.months = values(day, 1, 31), values(month, 1, 12)
        self.weekdays = {number % 7 for number in values(weekday, 0, 7, _NAMES)}
        self.zone = zoneinfo.ZoneInfo(zone)

    def is_day(self, local: datetime) -> bool:
        in_month, in_week = local.day in self.days, (local.weekday() + 1) % 7 in self.weekdays
        is_day = in_month and in_week if self.days_meet else in_month or in_week
        return is_day and local.month in self.months

    def matches(self, local: datetime) -> bool:
        return local.minute in self.minutes and local.hour in self.hours and self.is_day(local)

    def between(self, start: datetime, end: datetime) -> list[datetime]:
        """Return the instants from start to before end, which are whole minutes in UTC."""
        if not self.is_fixed:
            minutes = itertools.takewhile(
                lambda at: at < end, (start + n * MINUTE for n in itertools.count())
            )
            return [
                at + timedelta(seconds=second)
                for at in minutes
                if self.matches(at.astimezone(self.zone))
                for second in self.seconds
            ]
        found = set()
        # Each time of the calendar once, whether the clock shows it never, once or twice.
        day = start.replace(tzinfo=None, hour=0, minute=0) - timedelta(days=2)
        while day < end.replace(tzinfo=None) + timedelta(days=2):
            if self.is_day(day):
                found |= {
                    self.first_at(day.replace(hour=hour, minute=minute))
                    for hour in self.hours
                    for minute in self.minutes
                }
            day += timedelta(days=1)
        return sorted(at for at in found if start <= at < end)

    def first_at(self, local: datetime) -> datetime:
        """Return when the clock first shows a time, or the first one after it that it shows."""
        while True:
            at = local.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
            if at.astimezone(self.zone).replace(tzinfo=None) == local:
                return at
            local += MINUTE

    def of_hours(self, start: datetime, offsets: Sequence[int]) -> list[datetime]:
        """Return the same as ``between`` for an expression with wildcards, quicker.

        Args:
            start: a whole hour.
            offsets: see ``offsets_of``; one more than there are hours.
        """
        quarters = [
            [
                part
                for part in range(15)
                if quarter * 15 // 60 in self.hours and quarter * 15 % 60 + part in self.minutes
            ]
            for quarter in range(96)
        ]
        first = int((start.replace(tzinfo=None) - _EPOCH) / MINUTE)
        days: dict[int, bool] = {}
        found: list[datetime] = []
        for number, (offset, following) in enumerate(itertools.pairwise(offsets)):
            at = start + number * HOUR
            if offset != following or offset % 15:
                found += self.between(at, at + HOUR)
                continue
            for quarter in range(4):
                day, local = divmod(first + 60 * number + 15 * quarter + offset, 1440)
                parts = quarters[local // 15]
                if not parts:
                    continue
                if day not in days:
                    days[day] = self.is_day(_EPOCH + timedelta(days=day))
                if days[day]:
                    found += [at + (15 * quarter + part) * MINUTE for part in parts]
        return found


def offsets_of(zone: str, start: datetime, end: datetime) -> list[int]:
    """Return how many minutes the clock of a zone is ahead of UTC at each hour, also at the end."""
    clock = zoneinfo.ZoneInfo(zone)
    return [
        int(at.astimezone(clock).utcoffset() / MINUTE)  # type: ignore[operator]
        for at in _hours(start, end)
    ]


def changes_of(zone: str, first: int, last: int) -> list[datetime]:
    """Return days in which the clock of a zone changes."""
    clock = zoneinfo.ZoneInfo(zone)
    day, found = datetime(first, 1, 1, tzinfo=UTC), []
    while day.year < last:
        if (
            day.astimezone(clock).utcoffset()
            != (day + timedelta(days=1)).astimezone(clock).utcoffset()
        ):
            found.append(day)
        day += timedelta(days=1)
    return found


def all_zones() -> list[str]:
    """Return the names of the zones of the tz database."""
    return sorted(
        zone
        for zone in zoneinfo.available_timezones() - {"localtime", "Factory"}
        if not zone.startswith(("posix/", "right/"))
    )


def _hours(start: datetime, end: datetime) -> Iterator[datetime]:
    while start <= end:
        yield start
        start += HOUR

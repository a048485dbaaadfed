"""Instants of schedules, against a search minute by minute that shares no code with them."""

import itertools
import random
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest

from forebay.errors import InvalidJob
from forebay.policy.cron import Timing

MINUTE = timedelta(minutes=1)

#: Zones with unusual changes of the clock: of half an hour, at midnight, of a whole day, negative ones, in Ramadan, none.
ZONES = (
    "UTC",
    "Europe/Rome",
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Asia/Kathmandu",
    "Pacific/Chatham",
)

#: With fixed minute and hour, with wildcards, and with restricted days.
FIXED = (
    "30 2 * * *",
    "0 0 * * *",
    "15,45 1,2,3 * * *",
    "59 23 * * 5",
    "10 0 1 * *",
    "5 3 1-7 * MON",
)
FREE = (
    "*/20 * * * *",
    "7 * * * *",
    "*/15 0-2 * * SUN",
    "30 */2 * * *",
    "* 2 * * 7",
    "*/30 1 25-31 3,10 *",
)


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
        minute, hour, day, month, weekday = expression.split()
        self.is_fixed = minute[0] != "*" and hour[0] != "*"
        self.days_meet = day[0] == "*" or weekday[0] == "*"
        self.minutes, self.hours = values(minute, 0, 59), values(hour, 0, 23)
        self.days, self.months = values(day, 1, 31), values(month, 1, 12)
        names = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
        self.weekdays = {number % 7 for number in values(weekday, 0, 7, names)}
        self.zone = zoneinfo.ZoneInfo(zone)

    def matches(self, local: datetime) -> bool:
        in_month, in_week = local.day in self.days, (local.weekday() + 1) % 7 in self.weekdays
        is_day = in_month and in_week if self.days_meet else in_month or in_week
        return (
            is_day
            and local.minute in self.minutes
            and local.hour in self.hours
            and local.month in self.months
        )

    def between(self, start: datetime, end: datetime) -> list[datetime]:
        """Return the instants from start to before end, which are whole minutes in UTC."""
        if not self.is_fixed:
            minutes = itertools.takewhile(
                lambda at: at < end, (start + n * MINUTE for n in itertools.count())
            )
            return [at for at in minutes if self.matches(at.astimezone(self.zone))]
        found = set()
        # Each minute of the calendar once, whether the clock shows it never, once or twice.
        local = start.replace(tzinfo=None) - timedelta(days=2)
        while local < end.replace(tzinfo=None) + timedelta(days=2):
            if self.matches(local):
                at = self.first_at(local)
                if start <= at < end:
                    found.add(at)
            local += MINUTE
        return sorted(found)

    def first_at(self, local: datetime) -> datetime:
        """Return when the clock first shows a time, or the first one after it that it shows."""
        while True:
            at = local.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
            if at.astimezone(self.zone).replace(tzinfo=None) == local:
                return at
            local += MINUTE


def compare(expression: str, zone: str, start: datetime, days: int) -> int:
    """Compare a continuous search, and searches that begin anew, with the oracle; return the number of instants."""
    end = start + timedelta(days=days)
    wanted = Oracle(expression, zone).between(start, end)
    timing = Timing(expression, None, zone)
    assert timing.between(start, end, 10**9) == wanted, (expression, zone, start)
    draw = random.Random(f"{expression} {zone} {start}")
    for _ in range(20):
        place = (
            start
            + MINUTE * draw.randrange(days * 1440)
            + timedelta(seconds=draw.choice([0, 0, 31]))
        )
        following = [at for at in wanted if at > place]
        found = next(timing.after(place))
        assert found == following[0] if following else found >= end, (expression, zone, place)
    return len(wanted)


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


@pytest.mark.parametrize("zone", ZONES)
def test_instants_are_those_of_a_search_minute_by_minute(zone):
    """
    Over two years: the days around each change of the clock for each expression, and a whole year for one of each kind.
    """
    for expression in (*FIXED, *FREE):
        for day in changes_of(zone, 2025, 2027):
            compare(expression, zone, day - timedelta(days=2), 5)
    compare(random.Random(zone).choice(FIXED), zone, datetime(2025, 1, 1, tzinfo=UTC), 365)
    compare(random.Random(zone).choice(FREE), zone, datetime(2026, 1, 1, tzinfo=UTC), 365)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("part", range(24))
def test_all_zones_over_twenty_years(part):
    """
    Each change of the clock of each zone in twenty years, for each expression in turn: more than 100,000 instants.
    """
    count = 0
    turns = itertools.cycle((*FIXED, *FREE))
    for zone in sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})[part::24]:
        if zone.startswith(("posix/", "right/")):
            continue
        for day in changes_of(zone, 2010, 2030) or [datetime(2020, 3, 1, tzinfo=UTC)]:
            for expression in itertools.islice(turns, 3):
                count += compare(expression, zone, day - timedelta(days=1), 3)
    assert count > 5_000


def test_a_time_in_the_gap_runs_right_after_it_and_one_in_the_fold_once():
    rome = Timing("30 2 * * *", None, "Europe/Rome")
    gap = rome.between(datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 3, 30, tzinfo=UTC), 9)
    assert gap == [datetime(2026, 3, 29, 1, tzinfo=UTC)]
    fold = rome.between(datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 10, 26, tzinfo=UTC), 9)
    assert fold == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC)]
    each = Timing("*/30 2 * * *", None, "Europe/Rome")
    assert (
        each.between(datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 3, 29, 9, tzinfo=UTC), 9)
        == []
    )
    found = each.between(
        datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 10, 25, 9, tzinfo=UTC), 9
    )
    assert [at.hour for at in found] == [0, 0, 1, 1]


def test_seconds_and_intervals():
    start = datetime(2026, 3, 28, 23, 59, 50, tzinfo=UTC)
    for zone in ("UTC", "Europe/Rome"):
        found = Timing("*/20 * * * * *", None, zone).between(start, start + MINUTE, 9)
        assert [at.second for at in found] == [0, 20, 40]
        (one,) = Timing("5 30 4 29 3 *", None, zone).between(start, start + timedelta(days=1), 9)
        assert one == datetime(2026, 3, 29, 4 if zone == "UTC" else 2, 30, 5, tzinfo=UTC)
    anchor = datetime(2026, 3, 28, 0, 0, 7, tzinfo=UTC)
    every = Timing(None, 3600.0, "Europe/Rome", anchor)
    found = every.between(start, start + timedelta(hours=5), 9)
    assert [(at.hour, at.second) for at in found] == [(hour, 7) for hour in range(5)]
    assert next(every.after(anchor - timedelta(days=9))) == anchor
    assert next(every.after(anchor)) == anchor + timedelta(hours=1)


def test_no_instant_is_before_the_start():
    start = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    assert (
        next(Timing("0,30 * * * *", None, "UTC", start).after(start - timedelta(days=3))) == start
    )


def test_undecided_instants_after_a_long_pause_are_the_newest():
    """
    Only what the policy needs is computed, and one instant before tells that there are more.
    """
    now = datetime(2026, 5, 1, tzinfo=UTC)
    seconds = Timing("* * * * * *", None, "Europe/Rome")
    found, older = seconds.undecided(
        now - timedelta(days=200), now, catch_up=86_400.0 * 200, newest=161
    )
    assert len(found) >= 161
    assert found[-1] == now
    assert older == now - timedelta(days=200) + timedelta(seconds=1)
    hours = Timing("0 * * * *", None, "UTC")
    found, older = hours.undecided(now - timedelta(hours=5), now, catch_up=7200.0, newest=161)
    assert found == [now - timedelta(hours=1), now]
    assert older == now - timedelta(hours=4)
    found, older = hours.undecided(now - timedelta(hours=1), now, catch_up=86_400.0, newest=161)
    assert (found, older) == ([now], None)
    assert hours.undecided(now, now + MINUTE, catch_up=86_400.0, newest=161) == ([], None)
    found, older = hours.undecided(
        now - timedelta(hours=5), now + MINUTE * 30, catch_up=60.0, newest=1
    )
    assert (found, older) == ([], now - timedelta(hours=4))


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "60 * * * *", "* * 30 2 *", "x * * * *", "*/0 * * * *", "1" * 400]
)
def test_a_bad_expression_is_refused(expression):
    with pytest.raises(InvalidJob, match="cron"):
        Timing(expression, None, "UTC")


@pytest.mark.parametrize("zone", ["", "Europe/Nowhere", "../etc/passwd", "+3"])
def test_a_bad_zone_is_refused(zone):
    with pytest.raises(InvalidJob, match="tz"):
        Timing("* * * * *", None, zone)


def test_a_date_that_never_comes_gives_no_instant():
    assert (
        list(
            Timing("0 0 29 2 MON#5", None, "UTC").between(
                datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), 9
            )
        )
        == []
    )

"""Instants of schedules, against a search minute by minute that shares no code with them."""

import itertools
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from forebay.errors import InvalidJob
from forebay.policy.cron import Timing
from tests.support.cron_oracle import MINUTE, Oracle, all_zones, changes_of, offsets_of

#: Zones with unusual changes of the clock: of half an hour, at midnight, of a whole day, negative
#: ones, in Ramadan, none.
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


def compare(expression: str, zone: str, start: datetime, days: int) -> int:
    """Compare a continuous search, and searches that begin anew, with the oracle.

    Return the number of instants.
    """
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


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_instants_are_those_of_a_search_minute_by_minute(zone):
    """
    Over two years: the days around each change of the clock for each expression, and a whole year
    for one of each kind.
    """
    for expression in (*FIXED, *FREE):
        for day in changes_of(zone, 2025, 2027):
            compare(expression, zone, day - timedelta(days=2), 5)
    compare(random.Random(zone).choice(FIXED), zone, datetime(2025, 1, 1, tzinfo=UTC), 365)
    compare(random.Random(zone).choice(FREE), zone, datetime(2026, 1, 1, tzinfo=UTC), 365)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("part", range(24))
def test_each_change_of_the_clock_in_twenty_years(part):
    """
    Of each zone, for three of the expressions in turn, minute by minute.
    """
    count = 0
    turns = itertools.cycle((*FIXED, *FREE))
    for zone in all_zones()[part::24]:
        for day in changes_of(zone, 2010, 2030) or [datetime(2020, 3, 1, tzinfo=UTC)]:
            for expression in itertools.islice(turns, 3):
                count += compare(expression, zone, day - timedelta(days=1), 3)
    assert count > 5_000


def compare_years(
    zones: Iterable[str], first: int, last: int, expressions: Iterable[str]
) -> tuple[int, int]:
    """Compare all instants of these years with the oracle.

    Return the number of different clocks, and of instants.
    """
    start, end = datetime(first, 1, 1, tzinfo=UTC), datetime(last, 1, 1, tzinfo=UTC)
    known = set()
    count = 0
    for zone in zones:
        offsets = offsets_of(zone, start, end)
        if (clock := hash(tuple(offsets))) in known:  # Another name of a clock that was compared.
            continue
        known.add(clock)
        for expression in expressions:
            oracle = Oracle(expression, zone)
            wanted = (
                oracle.between(start, end) if oracle.is_fixed else oracle.of_hours(start, offsets)
            )
            found = Timing(expression, None, zone).between(start, end, 10**9)
            assert found == wanted, (expression, zone, sorted(set(found) ^ set(wanted))[:5])
            count += len(wanted)
    return len(known), count


#: Together they have instants in each hour of the day, and in each minute of some hours.
OF_YEARS = (
    "30 2 * * *",
    "0,45 0,1,3,23 * * *",
    "5 3 1-7 * MON",
    "*/15 0-3 * * *",
    "7 * * * *",
    "*/30 22-23 * * SAT",
)


@pytest.mark.slow
def test_the_quick_oracle_is_the_slow_one():
    """
    The one for years looks at whole quarters of an hour where the clock does not change.
    """
    for zone in ("Australia/Lord_Howe", "America/St_Johns", "Pacific/Chatham"):
        for day in changes_of(zone, 2010, 2012):
            start, end = day - timedelta(days=2), day + timedelta(days=3)
            for expression in FREE:
                oracle = Oracle(expression, zone)
                quick = oracle.of_hours(start, offsets_of(zone, start, end))
                assert quick == oracle.between(start, end)


@pytest.mark.slow
def test_some_zones_over_a_year():
    zones = random.Random(datetime.now(UTC).toordinal()).sample(all_zones(), 12)
    print("zones:", zones)
    assert compare_years(zones, 2026, 2027, OF_YEARS)[1] > 10_000


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("part", range(24))
def test_all_zones_over_twenty_years(part, record_property):
    """
    Every instant of 2010 to 2029 of each zone of the tz database.
    """
    clocks, instants = compare_years(all_zones()[part::24], 2010, 2030, OF_YEARS)
    print(f"{clocks} different clocks, {instants:,} instants")
    record_property("clocks", clocks)
    record_property("instants", instants)
    assert instants > 100_000


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


@pytest.mark.parametrize(
    "zone", ["", "Europe/Nowhere", "../etc/passwd", "+3", "localtime", "posixrules", "Factory"]
)
def test_a_bad_zone_is_refused(zone):
    with pytest.raises(InvalidJob, match="tz"):
        Timing("* * * * *", None, zone)


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ],
)
def test_a_named_expression_is_the_one_of_crontab(name, expression):
    start = datetime(2026, 3, 1, tzinfo=UTC)

    named = Timing(name, None, "Europe/Rome").between(start, None, 30)
    assert named == Timing(expression, None, "Europe/Rome").between(start, None, 30)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Rome", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/7 * * * *"])
def test_the_ends_of_the_calendar_are_no_error(zone, expression):
    timing = Timing(expression, None, zone)
    offsets = [UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))]

    for offset in offsets:
        first = timing.between(datetime.min.replace(tzinfo=offset), None, 1)
        assert [instant.year for instant in first] == [1]
        assert timing.between(datetime.max.replace(tzinfo=offset), None, 1) == []


def test_a_date_that_never_comes_gives_no_instant():
    assert (
        list(
            Timing("0 0 29 2 MON#5", None, "UTC").between(
                datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), 9
            )
        )
        == []
    )

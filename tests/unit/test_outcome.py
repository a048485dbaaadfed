from datetime import UTC, datetime, timedelta

import pytest

from forebay.errors import OutcomeRefused
from forebay.model import Cancel, Dead, Retry, Snooze

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_durations_are_seconds_or_timedeltas():
    """
    Both forms mean the same.
    """
    assert Snooze(90) == Snooze(timedelta(seconds=90))
    assert Retry(timedelta(hours=1)).after_seconds == 3600.0
    assert Retry().after_seconds is None
    assert Snooze(until=NOW).delay_seconds is None


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), timedelta(days=-1)])
def test_an_impossible_wait_is_an_ordinary_error_of_the_handler(delay):
    """
    A handler's miscalculation fails one attempt; it is not taken for a bad enqueue.
    """
    with pytest.raises(OutcomeRefused):
        Snooze(delay)
    with pytest.raises(OutcomeRefused):
        Retry(delay)


def test_a_snooze_needs_exactly_one_time():
    """
    Neither and both are refused, and so is an instant without a zone.
    """
    with pytest.raises(OutcomeRefused):
        Snooze()
    with pytest.raises(OutcomeRefused):
        Snooze(5, until=NOW)
    with pytest.raises(OutcomeRefused):
        Snooze(until=NOW.replace(tzinfo=None))


@pytest.mark.parametrize("make", [Cancel, Dead, lambda reason: Retry(reason=reason)])
def test_a_reason_always_fits_into_the_database(make):
    """
    Work that is done must not fail over its explanation: reasons are cut and cleaned.
    """
    reason = make("a\x00b\ud800" + "x" * 1_000_000).reason

    assert len(reason.encode()) <= 4096
    assert "\x00" not in reason


def test_a_reason_that_is_no_text_is_refused():
    """
    ``Cancel(error)`` is a mistake that shows at once.
    """
    with pytest.raises(OutcomeRefused):
        Cancel(ValueError("x"))

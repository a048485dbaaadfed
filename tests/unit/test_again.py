"""Again, Complete, Drop: times, state and arguments are checked when the handler makes them."""

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from forebay import Again, Complete, Drop
from forebay.errors import InvalidJob, OutcomeRefused
from forebay.model.again import checked_interval


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("+1 week", "1 weeks"),
        ("1week", "1 weeks"),
        ("90 s", "90 seconds"),
        ("90 seconds", "90 seconds"),
        ("5 min", "5 minutes"),
        ("1.5 h", "1.5 hours"),
        ("2 days 4 h", "2 days 4 hours"),
        ("1 day, 12 hours", "1 days 12 hours"),
        ("1 month", "1 months"),
        ("3 Years", "3 years"),
        ("0 s", "0 seconds"),
    ],
)
def test_an_interval_is_written_in_the_words_of_postgresql(text, interval):
    assert Again(text).interval == interval
    assert Again(text).seconds is None
    assert checked_interval(interval) == interval


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "+",
        "1",
        "week",
        ("-1 week"),
        "1 week ago",
        "1 fortnight",
        "1 m",
        "1h30",
        "1 month 1",
        "1.5 months",
        "101 years",
        ("9999999999 s"),
        "1 week; drop table x",
        "1 week'",
        "1e3 s",
        "infinity",
        "tomorrow",
        "1 week " * 50,
        "2027-01-01",
        "2027-01-01T00:00:00",
    ],
)
def test_what_is_no_interval_is_refused(text):
    """
    Nothing that PostgreSQL might read in another way is passed on.
    """
    with pytest.raises(OutcomeRefused, match="when"):
        Again(text)


@pytest.mark.parametrize("when", [-1, float("nan"), float("inf"), True, [], timedelta(days=-1)])
def test_a_wrong_time_is_refused(when):
    with pytest.raises(OutcomeRefused, match="when"):
        Again(when)


def test_the_forms_of_a_time():
    at = datetime(2027, 1, 1, tzinfo=UTC)
    assert (Again(30).seconds, Again(timedelta(minutes=1)).seconds) == (30.0, 60.0)
    assert Again(at).at == Again("2027-01-01T00:00:00+00:00").at == at
    assert (Again().seconds, Again().interval, Again().at) == (None, None, None)


@pytest.mark.parametrize("cls", [Again, Complete])
@pytest.mark.parametrize("field", ["state", "args"])
def test_state_and_arguments_are_mappings(cls, field):
    with pytest.raises(OutcomeRefused, match=field):
        cls(**{field: [1]})
    assert getattr(cls(**{field: {"a": 1}}), field) == {"a": 1}


def test_outcomes_are_values():
    assert Again("1 week") == Again("+1 week")
    for each in (Again("1 week", state={"a": 1}), Complete(args={"a": 1}), Drop()):
        assert pickle.loads(pickle.dumps(each)) == each


def test_the_error_of_an_interval_names_the_units():
    with pytest.raises(InvalidJob) as raised:
        checked_interval("1 fortnight")
    assert "week" in raised.value.hint

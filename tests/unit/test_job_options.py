from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidJob
from forebay.model import Job, JobOptions, JobState, checks

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

REFUSED = [
    ("queue", ""),
    ("queue", "1mail"),
    ("queue", "ma il"),
    ("queue", "mail\n"),
    ("queue", "é"),
    ("queue", "q" * 129),
    ("queue", b"mail"),
    ("priority", 32768),
    ("priority", -32769),
    ("priority", 1.0),
    ("priority", True),
    ("priority", "1"),
    ("tag", ""),
    ("tag", "t" * 201),
    ("tag", "a\x00b"),
    ("tag", "a\x1bb"),
    ("tag", "\ud800"),
    ("tag", 7),
    ("correlation_id", "c" * 201),
    ("correlation_id", "a\nb"),
    ("run_at", datetime(2026, 1, 1)),  # noqa: DTZ001
    ("run_at", "infinity"),
    ("run_at", 0),
    ("run_at", datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))),
    ("delay", float("nan")),
    ("delay", float("inf")),
    ("delay", float("-inf")),
    ("delay", timedelta.max),
    ("delay", 10**400),
    ("delay", "60"),
    ("delay", True),
    ("expires_at", datetime(2026, 1, 1)),  # noqa: DTZ001
    ("max_attempts", 0),
    ("max_attempts", 10_001),
    ("max_attempts", 2**63),
    ("max_attempts", 1.5),
    ("headers", [("a", "b")]),
    ("headers", {"a": 1}),
    ("headers", {1: "a"}),
    ("headers", {"": "a"}),
    ("headers", {"a": "b\r\nc"}),
    ("headers", {"a": "b" * 8192}),
    ("headers", {f"h{n}": "" for n in range(65)}),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=lambda value: repr(value)[:30])
def test_a_bad_option_is_refused_by_name(name, value):
    """
    Wrong types and values out of range are refused before anything is written.
    """
    with pytest.raises(InvalidJob) as caught:
        JobOptions(**{name: value})

    assert caught.value.field.startswith(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue", "_a.b:c-d_9"),
        ("queue", "q" * 128),
        ("priority", -32768),
        ("priority", 32767),
        ("tag", "Größe 🎉"),
        ("run_at", datetime(1970, 1, 1, tzinfo=UTC)),
        ("delay", 0),
        ("delay", checks.DELAY_SECONDS_MAX),
        ("max_attempts", 1),
        ("max_attempts", 10_000),
        ("headers", {}),
        ("headers", {"trace": "", "h": "x"}),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_options_at_their_bounds_are_taken(name, value):
    """
    The documented bounds are inclusive.
    """
    assert getattr(JobOptions(**{name: value}), name) == value


def test_an_unknown_option_is_refused_with_the_known_ones():
    """
    A typo in an option's name does not vanish.
    """
    with pytest.raises(InvalidJob, match="prioritiy") as caught:
        JobOptions().merged(prioritiy=3)

    assert "priority" in caught.value.hint


def test_expiry_must_lie_after_the_start():
    """
    A job that expires before it may start is a mistake.
    """
    with pytest.raises(InvalidJob) as caught:
        JobOptions(run_at=NOW, expires_at=NOW)

    assert caught.value.field == "expires_at"


def test_a_delay_and_an_instant_contradict_each_other():
    """
    Both at once are refused; changing one of them replaces the other.
    """
    with pytest.raises(InvalidJob):
        JobOptions(run_at=NOW, delay=5)

    later = JobOptions(run_at=NOW).merged(delay=timedelta(minutes=1))
    assert (later.run_at, later.delay_seconds) == (None, 60.0)
    assert later.merged(run_at=NOW).delay is None


def test_options_do_not_change_behind_the_callers_back():
    """
    A header dict that is changed later does not reach the job, and a merge makes a copy.
    """
    headers = {"trace": "1"}
    options = JobOptions(headers=headers)
    headers["trace"] = "2"

    assert options.headers == {"trace": "1"}
    assert options.merged(tag="x").given() == {"tag": "x", "headers": {"trace": "1"}}
    assert options.given() == {"headers": {"trace": "1"}}


@given(st.dictionaries(st.sampled_from(sorted(JobOptions.__slots__)), st.from_type(object)))
def test_any_options_are_taken_or_refused_with_a_typed_error(options):
    """
    Whatever is passed, the only exception is InvalidJob.
    """
    try:
        JobOptions.parse(options)
    except InvalidJob as error:
        assert error.field  # noqa: PT017 - both ways are right, a third is not.


def test_the_last_attempt_and_the_final_states_are_known():
    """
    Handlers can tell their last attempt; operators can tell what will not change.
    """
    job = Job(
        job_id=1,
        kind="mail",
        queue="mail",
        priority=100,
        args={},
        attempt=20,
        max_attempts=20,
        enqueued_at=NOW,
    )

    assert job.is_last_attempt
    assert [state for state in JobState if state.is_final] == [
        "done",
        "cancelled",
        "expired",
        "dead",
    ]

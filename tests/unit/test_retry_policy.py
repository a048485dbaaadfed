import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config import RetrySettings
from forebay.errors import ConfigError, InvalidJob, SoftTimeout
from forebay.policy.retry import GiveUp, RetryAfter, RetryPolicy, human_duration


def test_the_default_survives_about_eight_hours():
    """
    20 attempts, base 5 s, cap 1 h: the numbers users are told.
    """
    lifetime = RetryPolicy().lifetime()

    assert str(lifetime) == "up to 20 attempts over about 7.8 h"
    assert lifetime.seconds_max == 5 * (2**10 - 1) + 9 * 3600
    assert lifetime.seconds_min == lifetime.seconds_max / 2
    assert str(RetryPolicy(max_attempts=1).lifetime()) == "1 attempt, no retries"


def test_the_last_attempt_is_the_last():
    """
    max_attempts counts attempts, not retries, and a job's own limit comes first.
    """
    policy = RetryPolicy(max_attempts=3)

    assert isinstance(policy.decide(ValueError(), 2, 0.5), RetryAfter)
    assert policy.decide(ValueError(), 3, 0.5) == GiveUp("exhausted")
    assert policy.decide(ValueError(), 1, 0.5, max_attempts=1) == GiveUp("exhausted")
    assert isinstance(policy.decide(ValueError(), 3, 0.5, max_attempts=4), RetryAfter)


def test_exception_types_decide_whether_a_retry_can_help():
    """
    permanent_on ends a job at once; retry_on makes everything else permanent.
    """
    permanent = RetryPolicy(permanent_on=(LookupError,))
    only = RetryPolicy(retry_on=(OSError,))

    assert permanent.decide(KeyError(), 1, 0) == GiveUp("permanent")
    assert isinstance(permanent.decide(OSError(), 1, 0), RetryAfter)
    assert only.decide(KeyError(), 1, 0) == GiveUp("permanent")
    assert isinstance(only.decide(TimeoutError(), 1, 0), RetryAfter)


def test_the_nearer_base_class_decides():
    """
    Exceptions to a rule can be declared in both directions.
    """
    policy = RetryPolicy(retry_on=(TimeoutError,), permanent_on=(OSError,))
    reverse = RetryPolicy(retry_on=(OSError,), permanent_on=(FileNotFoundError,))

    assert not policy.is_permanent(TimeoutError())
    assert policy.is_permanent(FileNotFoundError())
    assert reverse.is_permanent(FileNotFoundError())
    assert not reverse.is_permanent(PermissionError())


def test_a_group_is_permanent_when_one_of_its_members_is():
    """
    Task groups wrap what their tasks raise; the wrapping must not undo a declaration.
    """
    policy = RetryPolicy(permanent_on=(ValueError,))
    group = ExceptionGroup("g", [OSError(), ExceptionGroup("inner", [ValueError()])])

    assert policy.is_permanent(group)
    assert not policy.is_permanent(ExceptionGroup("g", [OSError()]))


@pytest.mark.parametrize(
    "error", [SystemExit(), KeyboardInterrupt(), GeneratorExit(), SoftTimeout(1)]
)
def test_whatever_ends_an_attempt_is_retried_by_default(error):
    """
    Only a refused enqueue is permanent by itself: the same arguments would be refused again.
    """
    assert isinstance(RetryPolicy().decide(error, 1, 0), RetryAfter)
    assert RetryPolicy().is_permanent(InvalidJob("user_id", "is missing"))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("strategy", {"strategy": "cubic"}),
        ("base_seconds", {"base_seconds": 0}),
        ("base_seconds", {"base_seconds": float("nan")}),
        ("base_seconds", {"base_seconds": "5"}),
        ("cap_seconds", {"base_seconds": 10, "cap_seconds": 5}),
        ("cap_seconds", {"cap_seconds": float("inf")}),
        ("max_attempts", {"max_attempts": 0}),
        ("max_attempts", {"max_attempts": 10_001}),
        ("max_attempts", {"max_attempts": True}),
        ("retry_on", {"retry_on": (ValueError, "OSError")}),
        ("retry_on", {"retry_on": [ValueError]}),
        ("permanent_on", {"retry_on": (ValueError,), "permanent_on": (ValueError,)}),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_field(field, change):
    """
    A wrong policy shows when it is declared, not at the first failure at night.
    """
    with pytest.raises(ConfigError) as caught:
        RetryPolicy(**change)

    assert field in caught.value.field


def test_settings_make_the_policy_of_kinds_without_their_own():
    """
    The settings' defaults and the policy's are the same.
    """
    assert RetryPolicy.from_settings(RetrySettings()) == RetryPolicy()
    assert RetryPolicy.from_settings(RetrySettings(max_attempts=3)).max_attempts == 3


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_longer_than_the_cap(attempt, u):
    """
    Up to the ten-thousandth attempt.
    """
    assert 2.5 <= RetryPolicy(max_attempts=10_000).delay_seconds(attempt, u) <= 3600


@given(st.floats(0, 1e10))
def test_every_duration_can_be_written(seconds):
    """
    A number and a unit, never an exponent of hours.
    """
    number, unit = human_duration(seconds).split()

    assert float(number) >= 0
    assert unit in ("s", "min", "h", "d")

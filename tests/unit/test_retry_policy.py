from datetime import timedelta

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


def test_linear_waits_grow_by_an_increment():
    """
    base + increment * (n - 1), up to the cap; without an increment the base itself.
    """
    policy = RetryPolicy(
        strategy="linear", base_seconds=10, increment_seconds=3, cap_seconds=20, jitter=False
    )
    assert [policy.delay_seconds(n, 0.0) for n in (1, 2, 3, 4, 5, 50)] == [10, 13, 16, 19, 20, 20]
    assert policy.lifetime(max_attempts=4).seconds_expected == 10 + 13 + 16
    old = RetryPolicy(strategy="linear", base_seconds=10, jitter=False)
    assert [old.delay_seconds(n, 0.0) for n in (1, 2, 3)] == [10, 20, 30]
    flat = RetryPolicy(strategy="linear", base_seconds=10, increment_seconds=0, jitter=False)
    assert [flat.delay_seconds(n, 0.9) for n in (1, 9)] == [10, 10]


def test_waits_without_jitter_are_exact():
    """
    Whatever the draw is; then the least, expected and longest time are the same.
    """
    policy = RetryPolicy(jitter=False, max_attempts=4)
    assert {policy.delay_seconds(2, u) for u in (0.0, 0.3, 0.99)} == {10.0}
    lifetime = policy.lifetime()
    assert lifetime.seconds_min == lifetime.seconds_expected == lifetime.seconds_max == 35


def test_a_function_chooses_the_wait():
    """
    From the attempt and the exception; None leaves it to the strategy. It decides neither how often
    nor whether.
    """
    seen = []

    def delay(attempt: int, error: BaseException | None) -> float | timedelta | None:
        seen.append((attempt, type(error).__name__))
        if isinstance(error, TimeoutError):
            return timedelta(minutes=attempt)
        return 0 if isinstance(error, KeyError) else None

    policy = RetryPolicy(delay=delay, max_attempts=5, permanent_on=(PermissionError,))
    assert policy.decide(TimeoutError(), 3, 0.5) == RetryAfter(180.0)
    assert policy.decide(KeyError(), 1, 0.5) == RetryAfter(0.0)
    assert policy.decide(ValueError(), 1, 0.0) == RetryAfter(2.5)
    assert policy.decide(TimeoutError(), 5, 0.5) == GiveUp("exhausted")
    assert policy.decide(PermissionError(), 1, 0.5) == GiveUp("permanent")
    assert seen == [(3, "TimeoutError"), (1, "KeyError"), (1, "ValueError")]
    assert str(policy.lifetime()) == "up to 5 attempts, delayed by a function"


@pytest.mark.parametrize("answer", ["soon", -1, float("nan"), float("inf"), True, KeyError("bug")])
def test_a_bad_answer_of_the_function_loses_no_job(answer, caplog):
    """
    It is logged, and the strategy decides.
    """

    def delay(attempt: int, error: BaseException | None) -> float:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    assert RetryPolicy(delay=delay).decide(ValueError(), 1, 0.0) == RetryAfter(2.5)
    assert "the delay function of a retry policy failed, its strategy decides" in caplog.text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"increment_seconds": 5}, "increment_seconds has no meaning with strategy 'exponential'"),
        ({"strategy": "linear", "increment_seconds": -1}, "increment_seconds is -1"),
        ({"jitter": 0}, "jitter is 0, not True or False"),
        ({"delay": 60}, "delay is 60, not a function"),
    ],
)
def test_a_wrong_shape_of_waits_is_refused(options, field):
    """
    Where the policy is made, with the name of the field.
    """
    with pytest.raises(ConfigError, match=field):
        RetryPolicy(**options)

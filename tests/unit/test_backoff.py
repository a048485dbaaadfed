import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policy.backoff import (
    STRATEGIES,
    backoff_seconds,
    jittered,
    reconnect_seconds,
    total_seconds,
    unknown_kind_seconds,
)

attempts = st.integers(1, 10_000)
draws = st.floats(0, 1, exclude_max=True)
strategies = st.sampled_from(STRATEGIES)


@pytest.mark.parametrize(
    ("strategy", "waits"),
    [
        ("fixed", [5, 5, 5, 5]),
        ("linear", [5, 10, 15, 20]),
        ("exponential", [5, 10, 20, 40]),
        ("polynomial", [5, 40, 135, 320]),
    ],
)
def test_each_strategy_grows_as_documented(strategy, waits):
    """
    The first four waits with a base of 5 s.
    """
    assert [
        backoff_seconds(n, strategy=strategy, base_seconds=5, cap_seconds=3600)
        for n in (1, 2, 3, 4)
    ] == waits


@given(attempts, strategies, st.floats(0.001, 1e6), st.floats(1, 1e3))
def test_waits_lie_between_base_and_cap_and_never_shrink(attempt, strategy, base, factor):
    """
    No attempt number overflows, none waits longer than the cap or shorter than the one before.
    """
    cap = base * factor

    def wait(number):
        return backoff_seconds(number, strategy=strategy, base_seconds=base, cap_seconds=cap)

    assert base <= wait(attempt) <= cap
    assert wait(attempt) <= wait(attempt + 1)


@given(st.floats(0, 1e9), draws)
def test_jitter_covers_the_upper_half(seconds, u):
    """
    A job keeps at least half its wait.
    """
    assert seconds / 2 <= jittered(seconds, u) <= seconds


@given(st.integers(0, 10**6), draws)
def test_reconnecting_and_unknown_kinds_have_bounded_waits(times, u):
    """
    However long a trouble lasts, the next try is at most 30 s or 10 minutes away.
    """
    assert 0.05 <= reconnect_seconds(times, u) <= 1
    assert 2.5 <= unknown_kind_seconds(times, u) <= 600


@given(st.integers(1, 200), strategies, st.floats(0.01, 100), st.floats(1, 1000))
def test_the_total_is_the_sum_of_the_waits(attempt_count, strategy, base, factor):
    """
    The shortcut for waits at the cap changes nothing.
    """
    policy = {"strategy": strategy, "base_seconds": base, "cap_seconds": base * factor}
    total = sum(backoff_seconds(n, **policy) for n in range(1, attempt_count))

    assert total_seconds(attempt_count, **policy) == pytest.approx(total)


def test_attempts_count_from_one():
    """
    Attempt 0 is a mistake of the caller, not a short wait.
    """
    with pytest.raises(ValueError):
        backoff_seconds(0, strategy="fixed", base_seconds=1, cap_seconds=1)

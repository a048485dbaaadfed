"""Presets and lists of delays for failed deliveries."""

import pytest

from forebay.errors import ConfigError
from forebay.sending._presets import PRESETS, as_retries


@pytest.mark.parametrize(
    ("preset", "tries", "total"), [("standard", 10, 75 * 3600 + 35 * 60 + 5), ("ulak", 10, 1510)]
)
def test_presets_are_as_documented(preset, tries, total):
    retries = as_retries(preset)
    assert (retries.tries, retries.total) == (tries, total)


def test_each_delay_is_lengthened_by_at_most_a_tenth():
    retries = as_retries("standard")
    for attempt, delay in enumerate(PRESETS["standard"], 1):
        assert retries.delay_seconds(attempt, 0.0) == delay
        assert retries.delay_seconds(attempt, 1.0) == pytest.approx(delay * 1.1)
    assert retries.delay_seconds(10, 0.0) is None


def test_what_the_endpoint_asks_for_replaces_the_delay_but_adds_no_try():
    retries = as_retries([1])
    assert retries.delay_seconds(1, 0.0, after=120.0) == 120.0
    assert retries.delay_seconds(2, 0.0, after=120.0) is None


def test_no_delays_mean_one_try():
    assert as_retries([]).delay_seconds(1, 0.5) is None


@pytest.mark.parametrize(
    "value",
    ["hourly", None, 5, {}, [-1], ["1"], [True], [30 * 86_400 + 1], [1] * 101, [float("nan")]],
)
def test_other_values_are_refused(value):
    with pytest.raises(ConfigError, match="retry"):
        as_retries(value)

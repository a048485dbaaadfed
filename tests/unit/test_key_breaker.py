"""The breaker that a kind declares: what is refused, and what of an attempt it counts."""

from datetime import timedelta

import pytest

import forebay
from forebay import Breaker
from forebay.errors import ConfigError, HardTimeout, SoftTimeout, WorkerLost
from forebay.policy.key_breaker import with_settings


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"failures": 0}, "failures"),
        ({"failures": 1001}, "failures"),
        ({"failures": True}, "failures"),
        ({"cooldown": 0.5}, "cooldown"),
        ({"cooldown": timedelta(days=2)}, "cooldown"),
        ({"cooldown": "30"}, "cooldown"),
        ({"cooldown": 30, "cooldown_max": 20}, "cooldown_max"),
        ({"cooldown_max": float("nan")}, "cooldown_max"),
        ({"count_on": OSError}, "count_on"),
        ({"count_on": ("OSError",)}, "count_on"),
    ],
)
def test_a_bad_value_is_refused_by_name(options, field):
    with pytest.raises(ConfigError, match=f"breaker {field}"):
        Breaker(**options)


def test_times_are_seconds_or_timedeltas():
    breaker = Breaker(cooldown=timedelta(minutes=1), cooldown_max=timedelta(hours=1))
    assert (breaker.cooldown_seconds, breaker.cooldown_max_seconds) == (60.0, 3600.0)
    assert with_settings(Breaker(cooldown=3600), {}).cooldown_max_seconds == 3600.0


def test_what_a_breaker_leaves_out_is_that_of_the_database():
    found = {"breaker_failures": 3, "breaker_cooldown_seconds": 60}
    breaker = with_settings(Breaker(cooldown=5), found)
    assert (breaker.failures, breaker.cooldown_seconds, breaker.cooldown_max_seconds) == (3, 5, 600)
    assert with_settings(Breaker(failures=2), found) == Breaker(
        failures=2, cooldown=60.0, cooldown_max=600.0
    )
    assert with_settings(Breaker(), {}) == Breaker(failures=10, cooldown=30.0, cooldown_max=600.0)


@pytest.mark.parametrize("error", [SoftTimeout(1), HardTimeout(1), WorkerLost()])
def test_stopped_attempts_count_whatever_exceptions_do(error):
    assert Breaker(count_on=(OSError,)).works(error, is_permanent=False) is False


def test_an_exception_that_is_named_counts_also_where_it_is_permanent():
    assert Breaker(count_on=(OSError,)).works(TimeoutError(), is_permanent=True) is False
    assert Breaker().works(TimeoutError(), is_permanent=True) is True


def test_a_breaker_needs_a_limit_key():
    """Without one it would never open, and nobody would see it."""
    app = forebay.App()
    with pytest.raises(ConfigError, match="limit_by"):

        @app.job(breaker=Breaker())
        def fetch(host: str) -> None: ...

    with pytest.raises(ConfigError, match="must be a Breaker"):

        @app.job(limit_by=("host",), breaker=10)
        def fetch_more(host: str) -> None: ...


def test_all_sorts_of_handlers_take_one():
    app = forebay.App()
    breaker = Breaker(failures=3)

    @app.job(limit_by=("host",), breaker=breaker)
    def fetch(host: str) -> None: ...

    @app.batch_job(limit_by=("host",), breaker=breaker)
    def fetch_all(jobs: list[forebay.Job]) -> None: ...

    @app.subject(queue="crawl", limit_by=("host",), breaker=breaker)
    def crawl(host: str) -> None: ...

    assert [kind.breaker for kind in app.kinds] == [breaker] * 3

"""The latency scenario: every case is measured, and every commit found its handler."""

from itertools import pairwise

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import latency


@pytest.fixture(scope="module")
def report(server):
    """What a run gives that is a hundredth of a quick one."""
    place = Place(server.dsn(), is_own=False, postmaster_pid=server.pid)
    return latency.run(place, Options(scale=0.01), lambda _: None)


@pytest.mark.nightly
@pytest.mark.slow
def test_each_way_and_rate_is_measured(report):
    """
    The promised names, ordered percentiles, and a wait for each job that was committed.
    """
    cases = report.figures["cases"]
    assert {(case["case"], case["per_s"]) for case in cases} == {
        (way, rate) for way in ("listen", "poll", "slow_commit") for rate in (10, 200, 2000)
    }
    for case in cases:
        assert case["jobs"] >= 4
        assert case["p50_ms"] <= case["p95_ms"] <= case["p99_ms"]
        # A worker may be faster than the producer's answer, and never sees a job before its commit.
        assert case["p50_ms"] > -5


@pytest.mark.nightly
@pytest.mark.slow
def test_fewer_idle_workers_do_not_answer_for_two_hundred(report):
    """
    The cost is that of the workers that were there, a note says so, and the promise is left open.
    """
    few, many = report.figures["idle"]
    assert few["workers"] == 1
    assert 2 <= many["workers"] < 200
    assert report.figures["idle_core_share"] == many["core_share"]
    assert any("not of 200" in note for note in report.notes)
    (bar,) = [bar for bar in report.bars if "idle" in bar.what]
    assert bar.value is None


@pytest.mark.slow
def test_without_a_server_of_ours_the_idle_cost_is_not_known(server):
    """
    The processor time of a server elsewhere cannot be read: the figure is null, the bar open.
    """
    place = Place(server.dsn(), is_own=False)
    with place.database("idle") as dsn:
        idle = latency._measure_idle(place, dsn, 1, 0.05)
    assert idle.core_share is None


def test_arrivals_are_random_and_repeatable():
    """
    Rising moments with gaps that vary, about as many as the rate says, the same at each call.
    """
    moments = latency.arrivals(200, 2.0)
    assert moments == sorted(moments) == latency.arrivals(200, 2.0)
    assert 300 < len(moments) < 500
    gaps = [b - a for a, b in pairwise(moments)]
    assert max(gaps) > 5 * min(gaps)

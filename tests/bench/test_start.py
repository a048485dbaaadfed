"""The scenario of a start: each figure is measured."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import start


@pytest.mark.slow
def test_a_start_is_measured_from_the_process_to_the_job(server):
    """All figures are there; what they are is for the benchmark to judge."""
    report = start.run(Place(server.dsn(), is_own=False), Options(rounds=1), lambda _: None)
    assert all(value > 0 for value in report.figures.values())
    assert report.figures["start_ratio"] > 1

"""The scenario of ended jobs: its figures, and that a replay takes exactly the jobs of its plan."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import history


@pytest.mark.nightly
@pytest.mark.slow
def test_jobs_are_found_and_replayed(server):
    """
    The promised names, and as many new jobs as planned, each once.
    """
    report = history.run(Place(server.dsn(), is_own=False), Options(scale=0.02), lambda _: None)
    assert report.figures["jobs"] == 20_000
    assert report.figures["replayed_once"]
    assert report.figures["replay_jobs"] == report.figures["planned_jobs"] > 0
    assert {"where_id_p50_ms", "filter_first_ms", "replay_per_s"} <= report.figures.keys()

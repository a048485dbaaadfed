"""The scenario of jobs that are due at once: all are promoted, and fresh jobs run beside them."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import due


@pytest.mark.nightly
@pytest.mark.slow
def test_due_jobs_and_fresh_ones_are_counted(server):
    """Each due job is promoted once."""
    report = due.run(Place(server.dsn(), is_own=False), Options(scale=0.2), lambda _: None)
    assert report.figures["jobs"] == 20_000
    assert report.figures["promoted_per_s"] > 0
    assert report.figures["fresh_p99_ms"] > 0

"""The scenario of a table with a status: its figures, and that the jobs of both engines are worked."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import status


@pytest.mark.nightly
@pytest.mark.slow
def test_both_engines_are_measured(server):
    """Each step takes ten jobs of each engine."""
    report = status.run(Place(server.dsn(), is_own=False), Options(scale=0.05), lambda _: None)
    found = report.figures["status"]
    assert found["jobs"] == 1000
    for name in ("forebay", "status table"):
        assert found[name]["pick_p50_first_ms"] > 0
        assert found[name]["wal_bytes_per_job"] > 0

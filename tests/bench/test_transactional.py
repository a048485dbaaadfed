"""The scenario of handlers in transactions: its figures, and that each job is done once."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import transactional


@pytest.mark.nightly
@pytest.mark.slow
def test_both_forms_of_a_transaction_are_measured(server):
    """Jobs a second, and the CPU time of a job."""
    place = Place(server.dsn(), is_own=False, postmaster_pid=server.pid)
    report = transactional.run(place, Options(scale=0.01, rounds=1), lambda _: None)
    assert len(report.figures) == 12
    assert min(report.figures.values()) >= 0
    assert report.figures["update_per_s"] > 0
    assert len(report.bars) == 2

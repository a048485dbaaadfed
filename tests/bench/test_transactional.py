"""The scenario of handlers in transactions: its figures, and that each job is done once."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import transactional


@pytest.mark.nightly
@pytest.mark.slow
def test_both_forms_of_a_transaction_are_measured(server):
    """Jobs a second, and the CPU time of a job; a peer beside it runs the handler by hand."""
    pytest.importorskip("pgqueuer")
    place = Place(server.dsn(), is_own=False, postmaster_pid=server.pid)
    options = Options(scale=0.01, rounds=1, compare=("pgqueuer",))
    report = transactional.run(place, options, lambda _: None)
    peers = report.figures.pop("peers")
    assert len(report.figures) == 15
    assert min(report.figures.values()) >= 0
    assert report.figures["update_per_s"] > 0
    assert peers["pgqueuer"]["per_s"] > 0
    assert [bar.value is None for bar in report.bars] == [False, False, False, True]

"""The scenario of one worker with many handler processes: its figures."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import processes


@pytest.mark.nightly
@pytest.mark.slow
def test_both_sorts_of_handlers_are_measured(server):
    """
    With a snapshot held and without; the bars are about 16 processes only.
    """
    place = Place(server.dsn(), is_own=False)
    report = processes.run(place, Options(scale=0.01, rounds=1), lambda _: None)
    assert report.figures["processes"] == 2
    rates = [value for name, value in report.figures.items() if name.endswith("_per_s")]
    assert len(rates) == 6
    assert min(rates) > 0
    assert [bar.holds for bar in report.bars] == [None] * 4

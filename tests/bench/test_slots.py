"""The scenario of the slots of a limit: its figures, and that killed workers are counted."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import slots


@pytest.mark.nightly
@pytest.mark.slow
def test_slots_of_both_limits_are_measured(server):
    """
    Handlers use some of them, a killed worker holds some, and both together are not more than there are.
    """
    place = Place(server.dsn(), is_own=False)
    report = slots.run(place, Options(scale=0.1), lambda _: None)
    assert report.figures["kills"] == 1
    for name in ("key", "queue"):
        found = report.figures[name]
        assert 0 < found["used_quiet"] <= 1.05
        assert 0 < found["used"] <= 1.05
        assert found["held_by_killed"] >= 0
    assert len(report.bars) == 4

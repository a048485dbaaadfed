"""The scenario of idle lanes: its figures, and that idle lanes are idle."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.engines.forebay_log import Log
from forebay_bench.scenarios import lanes

NAMES = {"lanes", "claim_p50_ms", "idle_poll_ms"}


@pytest.mark.nightly
@pytest.mark.slow
def test_each_number_of_lanes_is_measured(server):
    """
    The promised names for each number.
    """
    place = Place(server.dsn(), is_own=False)
    report = lanes.run(place, Options(scale=0.03, rounds=2), lambda _: None)
    found = report.figures["lanes"]
    assert [each["lanes"] for each in found] == [1, 3, 30]
    assert all(each.keys() >= NAMES for each in found)


def test_all_lanes_but_one_are_idle(database):
    """
    After they were made a poll finds none; with jobs in one queue it finds that one only.
    """
    log = Log(database)
    made = lanes.Lanes(5, log)
    made.prepare()
    assert len(log.group_ids) == 5
    assert log.ready() == []
    log.enqueue(1)
    assert [lane.queue for lane in log.ready()] == ["bench"]
    log.close()

"""The scenario of waiting jobs: its figures, and that as many wait after a step as before."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.engines.forebay_log import Log
from forebay_bench.scenarios import backlog
from tests.support.engine import depth

NAMES = {"size", "claim_p50_ms", "claim_p99_ms", "enqueue_p50_ms", "claim_pages"}


@pytest.mark.nightly
@pytest.mark.slow
def test_each_size_is_measured(server):
    """
    The promised names for each size, and no enqueue failed.
    """
    place = Place(server.dsn(), is_own=False)
    report = backlog.run(place, Options(scale=0.01, rounds=2), lambda _: None)
    sizes = report.figures["backlog"]
    assert [each["size"] for each in sizes] == [100, 1000, 10_000]
    assert all(each.keys() >= NAMES for each in sizes)
    assert report.figures["enqueue_errors"] == 0
    assert report.draw is not None


def test_as_many_wait_after_a_step_as_before(database, conn):
    """
    A step takes ten jobs, ends them and enqueues ten.
    """
    assert backlog.fill(database, 12_345).errors == 0
    log = Log(database)
    size = backlog.Size(12_345, log)
    size.take_turn(3)
    assert [len(values) for values in (size.claims[0], size.enqueues[0])] == [3, 30]
    assert depth(conn)["default"] == (12_345, 0, 0)
    log.close()

"""The scenario of many queues: its figures, of Forebay and of a peer."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import queues


@pytest.mark.nightly
@pytest.mark.slow
def test_one_queue_and_many_are_measured(server):
    """
    A drain, the pickup and an idle worker of each; all jobs ended, or the run would have failed.
    """
    pytest.importorskip("pgqueuer")
    place = Place(server.dsn(), is_own=False, postmaster_pid=server.pid)
    options = Options(scale=0.01, rounds=1, compare=("pgqueuer",))
    report = queues.run(place, options, lambda _: None)
    found = report.figures
    assert found.pop("cpu_us").keys() == found.keys()
    assert list(found) == ["forebay_one", "forebay_many", "pgqueuer_many"]
    assert [each["queues"] for each in found.values()] == [1, 10, 10]
    assert all(each["per_s"] > 0 for each in found.values())
    assert all(each["pickup_p99_ms"] >= each["pickup_p50_ms"] for each in found.values())
    assert len(report.bars) == 4


@pytest.mark.nightly
@pytest.mark.slow
def test_a_peer_with_a_poller_for_each_queue_is_left_out_by_name(server):
    """
    The report says so, instead of a figure without meaning.
    """
    place = Place(server.dsn(), is_own=False)
    report = queues.run(place, Options(scale=0.01, rounds=1, compare=("pg-boss",)), lambda _: None)
    assert list(report.figures) == ["forebay_one", "forebay_many", "cpu_us"]
    assert any(note.startswith("left out: pg-boss") for note in report.notes)

"""The scenario of few jobs a second: its figures, of Forebay and of a peer that is named."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import trickle


@pytest.mark.nightly
@pytest.mark.slow
def test_a_job_and_an_idle_worker_are_measured(server):
    """
    What a job costs and how long it waited, the same for the peer that is named, and both idle.
    """
    pytest.importorskip("pgqueuer")
    place = Place(server.dsn(), is_own=False, postmaster_pid=server.pid)
    options = Options(scale=0.1, rounds=1, compare=("pgqueuer",))
    report = trickle.run(place, options, lambda _: None)
    names = ("server_us", "worker_us", "wal_bytes", "pickup_p50_ms", "idle_transactions_per_s")
    for found in (report.figures, report.figures["peers"]["pgqueuer"]):
        assert all(found[name] is not None for name in names)
        assert found["wal_bytes"] > 0
    assert report.figures["plain_wal_bytes"] > 0
    assert [row[0] for row in report.tables[0].rows] == ["Forebay", "plain", "pgqueuer"]

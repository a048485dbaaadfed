"""The scenario of flows: its figures, of each engine, and that each flow ends."""

import pytest

from forebay_bench import Options, Place
from forebay_bench._engine import runner
from forebay_bench.peers import FLOW_PEERS, installed
from forebay_bench.scenarios import steps
from tests.support.engine import connect, one


@pytest.mark.nightly
@pytest.mark.slow
def test_steps_gathers_waits_and_resumptions_are_measured(server):
    """A run of the smallest size has all figures; a flow that did not end would be an error."""
    place = Place(server.dsn(), is_own=False, postmaster_pid=server.pid)
    report = steps.run(place, Options(scale=0.01, rounds=1, compare=()), lambda _: None)
    assert list(report.figures) == ["steps", "gather", "parked", "resumed", "held"]
    for row in report.figures["steps"].values():
        assert row["per_s"] > 0
        assert row["worker_cpu_us"] is not None
    assert [bar.what for bar in report.bars if bar.value is None] == [
        f"flows of 5 steps, to {name}" for name in FLOW_PEERS
    ]
    assert len(report.tables) == 5


@pytest.mark.nightly
@pytest.mark.slow
def test_flows_that_are_parked_by_calls_are_like_those_of_a_worker(server):
    """Each has its checkpoint and its wait, and a signal lets a worker end it."""
    place = Place(server.dsn(), is_own=False)
    with runner("flows", place, migrated=True) as process, connect(process.dsn) as conn:
        steps.park(process.dsn, 30, lambda _: None)
        assert one(conn, "select count(*) from forebay.waiter") == 30
        assert one(conn, "select count(*) from forebay.step where kind = 'p'") == 30
        assert process.call("drain", handler="parked")["ended"] == 0
        for number in range(0, 30, 3):
            conn.execute("select forebay.signal('approved', %s)", [str(number)])
        assert process.call("drain", handler="parked")["ended"] == 10
        assert one(conn, "select count(*) from forebay.waiter") == 20


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", FLOW_PEERS)
def test_a_peer_ends_each_flow_once(server, name):
    """It runs what was given, and nothing when it looks again with other flows."""
    pytest.importorskip(FLOW_PEERS[name][0])
    (peer,) = installed((name,), FLOW_PEERS)
    with runner(name, Place(server.dsn(), is_own=False), create=peer.create) as process:
        for count in (12, 3):
            assert process.call("fill", count=count) >= 0
            assert process.call("drain", handler="")["ended"] == count

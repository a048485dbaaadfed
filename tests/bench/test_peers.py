"""The peers: each does what it is timed for, and one that is not installed is left out."""

import importlib.util

import pytest

from forebay.errors import ConfigError
from forebay_bench import Place
from forebay_bench._counters import Counters
from forebay_bench._engine import Runner, runner
from forebay_bench._processes import wait_until
from forebay_bench.peers import PEERS, installed


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_ends_each_job_once(place, name):
    """
    It enqueues many and some, its worker ends all of them, once, and finds none when it looks again.
    """
    pytest.importorskip(name)
    (peer,) = installed((name,))
    with runner(name, place, create=peer.create) as process:
        assert process.call("fill", count=40) > 0
        assert process.call("drain", handler="")["ended"] == 40
        assert process.call("drain", handler="")["ended"] == 0
        assert process.call("enqueue", seconds=0.05) > 0
        assert process.call("drain", handler="")["ended"] >= 2


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_peers_worker_serves_until_it_is_told_to_stop(place, name):
    """
    What a producer enqueues meanwhile is handled, and then it ends.
    """
    pytest.importorskip(name)
    (peer,) = installed((name,))
    with runner(name, place, create=peer.create) as worker, Counters() as counters:
        producer = Runner(name, worker.dsn)
        try:
            worker.send("serve", path=counters.path)
            enqueued = producer.call(
                "produce", path=counters.path, seconds=0.2, batch=10, backlog=30, per_second=None
            )
            wait_until(lambda: counters.handled >= enqueued, 10, "all are handled")
            counters.stop = True
            worker.read_message()
            assert counters.handled == enqueued > 0
        finally:
            producer.close()


def test_a_peer_that_is_not_installed_is_left_out_unless_it_is_named(monkeypatch):
    """
    Without it a scenario runs; asked for by name, the answer says how to get it.
    """
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert installed(None) == []
    assert installed(("classic",)) == []
    with pytest.raises(ConfigError, match="pgqueuer") as caught:
        installed(("pgqueuer",))
    assert "bench" in caught.value.hint

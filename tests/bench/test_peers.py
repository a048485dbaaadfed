"""The peers: each does what it is timed for, and one that is not installed is left out."""

import importlib.util
import json
import shutil

import pytest

from forebay.errors import ConfigError
from forebay_bench import Place, _ours
from forebay_bench._counters import Counters
from forebay_bench._engine import Runner, runner
from forebay_bench._journal import Journal
from forebay_bench._processes import wait_until
from forebay_bench.peers import NODE_PEERS, PEERS, available, installed, javascript
from tests.support.engine import connect, one

ALL = (*PEERS, *NODE_PEERS)


def peer_of(name: str):
    """Return a peer, or skip the test where it cannot be used."""
    try:
        (peer,) = installed((name,))
    except ConfigError as error:
        pytest.skip(error.message)
    return peer


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_peer_ends_each_job_once(place, name):
    """
    It enqueues many and some, its worker ends all of them, once, and finds none when it looks
    again.
    """
    peer = peer_of(name)
    with runner(name, place, create=peer.create) as process:
        assert process.call("fill", count=40) > 0
        assert process.call("drain", handler="")["ended"] == 40
        assert process.call("drain", handler="")["ended"] == 0
        assert process.call("enqueue", seconds=0.05) > 0
        assert process.call("drain", handler="")["ended"] >= 2


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_peers_worker_serves_until_it_is_told_to_stop(place, name):
    """
    What a producer enqueues meanwhile is handled, and then it ends.
    """
    peer = peer_of(name)
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


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_peers_handler_updates_its_row(place, name):
    """
    The handler with an effect: each job updates the row of its number once.
    """
    peer = peer_of(name)
    with runner(name, place, create=peer.create) as process:
        _ours.create_effects(process.dsn)
        process.call("fill", count=30)
        assert process.call("drain", handler="update")["ended"] == 30
        with connect(process.dsn) as conn:
            assert one(conn, "select count(*) from effect where n = 1 and id < 30") == 30
            assert one(conn, "select sum(n) from effect") == 30


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["forebay", *ALL])
def test_jobs_that_come_one_by_one_are_recorded_with_their_numbers(place, name, tmp_path):
    """
    What the producer says it committed is in the journal once, each job after it was sent.
    """
    create = (lambda _: None) if name == "forebay" else peer_of(name).create
    journal = Journal(tmp_path / "journal")
    with (
        runner(name, place, migrated=name == "forebay", create=create) as worker,
        Counters() as counters,
    ):
        producer = Runner(name, worker.dsn)
        try:
            worker.send("serve", path=counters.path, journal=str(journal.path))
            committed = producer.call("trickle", first=5, moments=[0.0, 0.01, 0.02])
            wait_until(lambda: journal.count == 3, 10, "all are recorded")
            counters.stop = True
            worker.read_message()
        finally:
            producer.close()
    assert committed == sorted(committed)
    assert sorted(number for number, _ in journal.read()) == [5, 6, 7]
    # One clock for all processes: the handlers ran within seconds of the commits.
    assert all(abs(at - committed[0]) < 30 for _, at in journal.read())


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["forebay", "pgqueuer", "procrastinate", "graphile-worker"])
def test_a_worker_of_many_queues_ends_the_jobs_of_each(place, name):
    """
    After they were spread, jobs go to several queues, and one worker ends them all.
    """
    create = (lambda _: None) if name == "forebay" else peer_of(name).create
    with runner(name, place, migrated=name == "forebay", create=create) as process:
        process.call("spread", queues=7)
        process.call("fill", count=20)
        assert process.call("drain", handler="")["ended"] == 20


def test_a_peer_of_node_is_left_out_by_name_where_node_is_missing(monkeypatch):
    """
    The others take part, and the report has a line with the reason; named alone, it is refused.
    """
    javascript.installed_folder.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    names, missing = available()
    assert not set(names) & NODE_PEERS.keys()
    found = [line for line in missing if "node is not installed" in line]
    assert [line.split(",")[0] for line in found] == [
        "left out: graphile-worker",
        "left out: pg-boss",
    ]
    with pytest.raises(ConfigError, match="pg-boss") as caught:
        installed(("pg-boss",))
    assert "npm" in caught.value.hint


def test_the_versions_of_the_node_peers_are_pinned():
    """
    Exact versions in the list, and a lock with a checksum for each package.
    """
    wanted = json.loads((javascript._SOURCE / "package.json").read_text())["dependencies"]
    lock = json.loads((javascript._SOURCE / "package-lock.json").read_text())["packages"]
    assert {name: lock[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert all("integrity" in package for path, package in lock.items() if path)


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

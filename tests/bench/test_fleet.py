"""The fleet scenario: its figures, and processes that hand each job out once."""

import time
from functools import partial

import pytest

from forebay.errors import ForebayError
from forebay_bench import Options, Place
from forebay_bench._processes import Script, scripts
from forebay_bench.scenarios import fleet
from tests.support.engine import connect, depth, one

RATES = ("ours", "sharded", "classic", "ours_held", "sharded_held", "classic_held")


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_each_number_of_processes_is_measured(place):
    """
    The promised names for each number of processes.
    """
    report = fleet.run(place, Options(scale=0.1, rounds=1), lambda _: None)
    entries = report.figures["fleet"]
    assert [entry["processes"] for entry in entries] == [2]
    for entry in entries:
        assert all(entry[f"{name}_per_s"] > 0 for name in RATES)
        assert 0 < entry["slots_used_share"] < 3  # so short a look counts whole rounds of handlers
    assert [bar.holds for bar in report.bars] == [None] * 5  # none is about so few processes


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "queue",
    [partial(fleet._ours, name="ours"), partial(fleet._ours, name="sharded"), fleet._classic],
)
def test_processes_end_each_job_once(place, queue):
    """
    What two processes say they ended, one job a claim and then in large claims, is what is gone
    from the queue.
    """
    with queue(place) as engine:
        arguments = [[str(n), f"{engine.name}={engine.dsn}"] for n in range(2)]
        with (
            scripts("forebay_bench._claimers", *arguments) as worker_processes,
            connect(engine.dsn) as conn,
        ):
            engine.fill(conn, 500)
            lanes = engine.lanes(conn)
            now = time.monotonic()
            told = {"name": engine.name, "lanes": lanes, "from": now, "until": now + 0.2}
            for script in worker_processes:
                script.send(told)
            ended = [script.read_message() for script in worker_processes]
            assert min(ended) > 0
            assert left(engine.name, conn) == 500 - sum(ended)
            worker_processes[0].send({"name": engine.name, "lanes": lanes, "count": 1000})
            assert worker_processes[0].read_message() == 500 - sum(ended)
            assert left(engine.name, conn) == 0


def left(name: str, conn) -> int:
    """Return how many jobs are not at their end."""
    if name == "classic":
        return one(conn, "select count(*) from classic_job")
    return sum(depth(conn, "bench").get("default", (0,)))


def test_a_process_that_dies_is_told_with_its_reason(place):
    """
    Whoever waits for its answer gets an error that shows what the process printed last.
    """
    script = Script("forebay_bench._claimers", "0", "ours=host=/nowhere")
    try:
        with pytest.raises(ForebayError) as caught:
            script.read_message()
        assert "/nowhere" in caught.value.detail
    finally:
        script.close()

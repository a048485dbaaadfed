"""The fleet scenario: its figures, and processes that hand each job out once."""

import time
from functools import partial

import pytest

from forebay.errors import ForebayError
from forebay_bench import Options, Place
from forebay_bench._processes import Script, scripts
from forebay_bench.scenarios import fleet
from tests.support.engine import connect, depth, one

RATES = ("ours", "unordered", "classic", "ours_held", "unordered_held", "classic_held")


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
    [partial(fleet._ours, name="ours"), partial(fleet._ours, name="unordered"), fleet._classic],
)
def test_processes_end_each_job_once(place, queue):
    """
    What two processes say they ended, one job a claim and then in large claims, is what is gone from the queue.
    """
    with queue(place) as contestant:
        arguments = [[str(n), f"{contestant.name}={contestant.dsn}"] for n in range(2)]
        with (
            scripts("forebay_bench._claimers", *arguments) as crew,
            connect(contestant.dsn) as conn,
        ):
            contestant.fill(conn, 500)
            lanes = contestant.lanes(conn)
            now = time.monotonic()
            told = {"name": contestant.name, "lanes": lanes, "from": now, "until": now + 0.2}
            for script in crew:
                script.tell(told)
            ended = [script.hear() for script in crew]
            assert min(ended) > 0
            assert left(contestant.name, conn) == 500 - sum(ended)
            crew[0].tell({"name": contestant.name, "lanes": lanes, "count": 1000})
            assert crew[0].hear() == 500 - sum(ended)
            assert left(contestant.name, conn) == 0


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
            script.hear()
        assert "/nowhere" in caught.value.detail
    finally:
        script.close()

"""The scenario of many jobs at once: its figures, and that all of them are there."""

import pytest

from forebay_bench import Options, Place, _ours
from forebay_bench._engine import runner
from forebay_bench.engines import plain
from forebay_bench.scenarios import bulk
from tests.support.engine import connect, one

NAMES = [
    "ours_per_s",
    "copy_per_s",
    "insert_select_per_s",
    "plain_insert_select_per_s",
    "peers",
    "cpu_us",
]


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_each_contestant_is_measured(place):
    """
    The promised names, each above zero.
    """
    report = bulk.run(place, Options(scale=0.01, rounds=1, compare=()), lambda _: None)
    assert list(report.figures) == NAMES
    assert report.figures.pop("peers") == {}
    assert report.figures.pop("cpu_us").keys() >= {"ours", "copy"}
    assert min(report.figures.values()) > 0
    assert [bar.value is None for bar in report.bars] == [False, True, False]


@pytest.mark.nightly
@pytest.mark.slow
def test_both_ways_enqueue_every_job(place):
    """
    As many jobs wait as were to be enqueued, from the iterator and by SQL.
    """
    with runner("forebay", place, migrated=True) as ours, connect(ours.dsn) as conn:
        assert ours.call("fill", count=7000) > 0
        _ours.fill(conn, "async", 300)
        assert one(conn, "select count(*) from forebay.log where kind = 'async'") == 7300


@pytest.mark.parametrize("way", [plain.copy, plain.insert_select])
def test_both_ways_into_the_plain_table_write_the_same_rows(conn, way):
    """
    COPY and INSERT ... SELECT write every row, with the kind and the argument of a job.
    """
    plain.create(conn)
    way(conn, 50)
    assert one(conn, "select count(distinct args -> 'number') from plain_job") == 50
    assert one(conn, "select count(*) from plain_job where kind = 'noop' and lane = 1") == 50

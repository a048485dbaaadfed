"""The scenario of a full queue that is emptied: its figures, and that nothing is left or done
twice.
"""

import pytest

from forebay.errors import ForebayError
from forebay_bench import Options, Place, _ours
from forebay_bench._drains import check
from forebay_bench._engine import runner
from forebay_bench.scenarios import drain
from tests.support.engine import connect, depth

NAMES = [
    *(
        f"{name}_per_s"
        for name in ("async", *_ours.KEYS, "thread", "batch", "batch_raw", "tx", "classic")
    ),
    "wal_bytes_per_job",
    "server_cpu_us_per_job",
    "client_cpu_us_per_job",
    "peers",
    "cpu_us",
]


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False, postmaster_pid=server.pid)


@pytest.mark.nightly
@pytest.mark.slow
def test_each_kind_of_handler_is_measured(place):
    """
    The promised names, with what a job costs in log and time.
    """
    options = Options(scale=0.01, rounds=1, compare=("classic",))
    report = drain.run(place, options, lambda _: None)
    assert list(report.figures) == NAMES
    assert report.figures.pop("peers") == {}
    assert report.figures.pop("cpu_us").keys() >= {"async", "classic"}
    assert min(report.figures.values()) > 0
    assert [bar.value is None for bar in report.bars[:2]] == [True, True]
    assert sum(bar.value is None for bar in report.bars) == 2


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_ends_each_job_once_by_every_kind_of_handler(place):
    """
    It says that it ended as many as waited, and none waits any more.
    """
    with runner("forebay", place, migrated=True) as ours, connect(ours.dsn) as conn:
        for handler in ("async", *_ours.KEYS, "thread", "batch", "batch_raw", "tx"):
            _ours.fill(conn, handler, 30)
            assert ours.call("drain", handler=handler)["ended"] == 30
            assert depth(conn, handler) == {"default": (0, 0, 0)}


def test_a_drain_that_misses_jobs_is_an_error():
    """
    A figure of a worker that left something behind would be too good.
    """
    with pytest.raises(ForebayError, match="29 jobs ended, of 30"):
        check({"ended": 29}, 30)

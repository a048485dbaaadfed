"""The scenario of a producer and a worker at once: its figures, its backlog, its memory."""

import threading

import pytest

from forebay_bench import Options, Place
from forebay_bench._counters import Counters
from forebay_bench._engine import runner
from forebay_bench._processes import wait_until
from forebay_bench.scenarios import mixed

NAMES = ["ours_per_s", "rss_mb_first", "rss_mb_last", "rss_mb_max", "peers", "cpu_us"]


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_both_sides_are_measured(place):
    """
    The promised names; all jobs were handled, or the run would have failed.
    """
    report = mixed.run(place, Options(scale=0.05, rounds=1, compare=()), lambda _: None)
    assert list(report.figures) == NAMES
    assert report.figures.pop("peers") == {}
    assert report.figures.pop("cpu_us").keys() >= {"forebay"}
    assert min(report.figures.values()) > 0
    assert [bar.what for bar in report.bars] == [
        "against pgqueuer",
        "memory of Forebay's worker, in MB",
    ]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_producer_stops_at_the_backlog_and_at_its_rate(place):
    """
    Nobody works here, so what waits is what it may enqueue: the backlog, or less when its rate says
    so.
    """
    with runner("forebay", place, migrated=True) as producer:
        for per_second, expected in ((None, [200]), (500, range(50, 200))):
            with Counters() as counters:
                enqueued = producer.call(
                    "produce",
                    path=counters.path,
                    seconds=0.2,
                    batch=50,
                    backlog=200,
                    per_second=per_second,
                )
                assert counters.enqueued == enqueued
                assert enqueued in expected


def test_first_last_and_most_are_of_the_samples():
    """
    The ends are medians of a tenth each, so that one odd sample says nothing; the most is the most.
    """
    assert mixed._first_last_most([]) == (None, None, None)
    assert mixed._first_last_most([float(n) for n in range(100)]) == (4.5, 94.5, 99.0)


def test_a_counters_is_seen_by_another_holder():
    """
    What one writes the other reads, and the file goes with who made it.
    """
    with Counters() as counters:
        with Counters(counters.path) as other:
            threading.Thread(target=lambda: setattr(other, "handled", 7)).start()
            wait_until(lambda: counters.handled == 7, 5, "the count arrives")
            counters.stop = True
            assert other.stop
            other.enqueued += 3
        assert counters.enqueued == 3
    with pytest.raises(FileNotFoundError):
        Counters(counters.path)

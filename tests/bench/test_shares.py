"""The scenario of a large limit key beside small ones: its figures, and that the large key's jobs last."""

import pytest

from forebay.errors import ForebayError
from forebay_bench import Options, Place
from forebay_bench.scenarios import shares


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False)


@pytest.mark.slow
def test_both_queues_are_measured(place):
    """
    Each with the end of its keys, and how even their shares were.
    """
    report = shares.run(place, Options(scale=0.02, rounds=1), lambda _: None)
    for name in ("alone", "beside"):
        found = report.figures[name]
        assert 0 < found["p50_s"] <= found["p99_s"]
        assert 0 < found["jain"] <= 1
    assert report.figures["large_jobs_run"] < report.figures["large_jobs"] == 4_000
    assert [bar.value is None for bar in report.bars] == [False, False]


@pytest.mark.slow
def test_a_large_key_that_ends_is_an_error(place, monkeypatch):
    """
    The small keys would then be alone.
    """
    monkeypatch.setattr(shares, "_LARGE_JOBS", 10)
    with pytest.raises(ForebayError, match="ran out"):
        shares.run(place, Options(scale=0.02, rounds=2), lambda _: None)


@pytest.mark.parametrize(
    ("served", "index"), [({1: 2, 2: 2}, 1.0), ({1: 4}, 0.5), ({1: 3, 2: 1}, 0.8), ({}, 0.0)]
)
def test_jains_index_is_one_for_even_shares(served, index):
    """
    One of two keys has a half of it; without any job there is none.
    """
    assert shares._jain(served, 2) == index

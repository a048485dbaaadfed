"""The scenario of backfills: its figures, and what it proves on the way."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import backfill


@pytest.fixture
def place(server) -> Place:
    return Place(server.dsn(), is_own=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_rates_waits_and_the_dry_run_are_measured(place):
    """
    The promised names, above zero; the dry run counted what was enqueued, and its token was refused after a change.
    """
    report = backfill.run(place, Options(scale=0.05, rounds=1), lambda _: None)
    figures = dict(report.figures)
    assert figures.pop("refused_after_a_change") is True
    assert figures.pop("dry_run_jobs") == figures.pop("enqueued_jobs") == 5000
    assert set(figures) == {
        "ours_per_s", "token_per_s", "chunks_per_s", "plain_per_s", "no_index_per_s",
        "start_p99_ms_beside_ours", "start_p99_ms_beside_plain", "dry_run_seconds",
    }  # fmt: skip
    assert min(value for name, value in figures.items() if "p99" not in name) > 0
    assert [bar.holds for bar in report.bars[2:]] == [True, True]

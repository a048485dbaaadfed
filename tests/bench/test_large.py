"""The scenario of large jobs: its figures, and what its documents are."""

import json
import random

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import large


@pytest.mark.nightly
@pytest.mark.slow
def test_memory_and_waits_are_measured(server):
    """
    The promised names for each form; all jobs ended, or the run would have failed.
    """
    place = Place(server.dsn(), is_own=False)
    report = large.run(place, Options(scale=0.1), lambda _: None)
    forms = report.figures["forms"]
    assert [each["form"] for each in forms] == ["text", "nested"]
    for each in forms:
        assert each["large_jobs"] == 10
        assert each["beside"]["jobs"] > 0
        assert each["alone"]["p99_ms"] > 0
        assert each["peak_mb"] is None or each["peak_mb"] > 20
    assert len(report.bars) == 6


@pytest.mark.parametrize("form", ["text", "nested"])
def test_a_document_is_about_a_megabyte(form):
    """
    As JSON, and its decoded size is counted with all that it contains.
    """
    document = large._document(form, random.Random(0))
    assert 700_000 < len(document) < 1_100_000
    decoded = large._decoded_bytes(json.loads(document))
    assert decoded > len(document) * (5 if form == "nested" else 0.9)

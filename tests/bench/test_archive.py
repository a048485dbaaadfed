"""The scenario of old segments: its figures, and that segments are as many and as large as it
says.
"""

import pytest

from forebay_bench import Options, Place
from forebay_bench.engines.forebay_log import Log, cut
from forebay_bench.scenarios import archive
from tests.support.engine import depth, one

NAMES = {
    "size",
    "rows_per_segment",
    "claim_p50_ms",
    "claim_p99_ms",
    "enqueue_p50_ms",
    "claim_pages",
}


@pytest.mark.nightly
@pytest.mark.slow
def test_each_number_of_segments_is_measured(server):
    """
    The promised names for each number, with equally large segments.
    """
    place = Place(server.dsn(), is_own=False)
    report = archive.run(place, Options(scale=0.1, rounds=2), lambda _: None)
    found = report.figures["archive"]
    assert [each["size"] for each in found] == [1, 3, 30]
    assert all(each.keys() >= NAMES for each in found)
    assert {each["rows_per_segment"] for each in found} == {100}


@pytest.mark.nightly
@pytest.mark.slow
def test_old_segments_are_full_and_worked_off(database, conn):
    """
    Each of them holds its rows, is sealed, and has nothing left to claim.
    """
    cut(database, segment_rows=100, reserve_rows=3200)
    log = Log(database)
    archive._archive(log, 40, 100)
    assert log.sealed_segments() == 40
    assert one(conn, "select count(*) from forebay.log") == 4001
    assert one(conn, "select count(*) from forebay.log_39") == 100
    assert depth(conn)["default"] == (0, 0, 0)
    log.close()

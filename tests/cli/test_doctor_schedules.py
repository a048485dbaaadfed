"""What the doctor says about schedules without a scheduler, and about exports that segments wait
for.
"""

import anyio
import pytest

from tests.support.engine import Reader, enqueue_many, one, shift_clock, small_segments
from tests.support.fix_worker import running


@pytest.fixture
def finding(command, database):
    """Run the doctor; return the level and text of what it found in one check."""

    def call(check):
        report = command("doctor", "--dsn", database, "--json").json["findings"]
        return [(item["level"], item["what"]) for item in report if item["check"] == check]

    return call


@pytest.mark.slow
def test_schedules_that_no_worker_decides(finding, conn, app):
    """No worker, or only workers that leave schedules to others."""
    assert finding("schedules") == [("ok", "no schedule")]
    for name in ("daily", "weekly"):
        conn.execute("select forebay.create_schedule(%s, 'report', cron => '0 3 * * *')", [name])
    undecided = [("warning", "no worker decides these schedules: daily, weekly")]
    assert finding("schedules") == undecided

    @app.job
    def report() -> None:
        pass

    async def while_running(schedules):
        async with running(app, schedules=schedules):
            return await anyio.to_thread.run_sync(finding, "schedules")

    assert anyio.run(while_running, "off") == undecided
    assert anyio.run(while_running, "on") == [("ok", "2 schedules, decided by 1 worker")]
    conn.execute("select forebay.pause_schedule('daily')")
    conn.execute("select forebay.pause_schedule('weekly')")
    assert finding("schedules") == [("ok", "no schedule")]


@pytest.mark.slow
def test_exports_that_lag_and_segments_that_they_missed(finding, conn, database):
    """The limit is said before it is over, and what was lost afterwards."""
    assert finding("exports") == [("ok", "no segment waits for an export")]
    small_segments(conn, rows=100, reserve=1000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(conn, "select forebay.configure('retention_days', 0)")
    one(conn, "select forebay.create_export('nightly', 3)::text")
    with Reader(database) as reader:
        enqueue_many(conn, [{"kind": "work"}] * 100)
        one(conn, "select nextval('forebay.log_seq')")
        one(conn, "select forebay.seal_v1()")
        for batch in reader.claim_all():
            reader.finish(batch)
    assert finding("exports") == [("ok", "export nightly: 1 segment to write")]
    assert one(conn, "select emptied from forebay.retain_v1()") is None
    ((level, what),) = finding("exports")
    assert level == "warning"
    assert "1 segment past retention for export nightly" in what
    assert "export nightly has not written it" in finding("retention")[0][1]
    shift_clock(conn, 4 * 3600)
    assert one(conn, "select emptied from forebay.retain_v1()") is not None
    ((level, what),) = finding("exports")
    assert level == "warning"
    assert "1 segment emptied before export nightly had written" in what

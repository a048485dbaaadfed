"""forebay schedules."""

import pytest

from tests.support.engine import one


@pytest.fixture
def nightly(forebay):
    forebay("schedules", "create", "nightly", "report", "0 3 * * *", "--tz", "Europe/Rome")


@pytest.mark.slow
def test_the_life_of_a_schedule(forebay, conn):
    assert forebay("schedules", "list").out.startswith("No schedules. `forebay apply")
    options = ("--every", "2h", "--args", '{"a": 1}', "--options", '{"tag": "t"}', "--jitter", "5m")
    assert (
        forebay("schedules", "create", "often", "report", *options).out
        == "schedule often: created\n"
    )
    again = ("schedules", "create", "often", "report", *options, "--overlap", "allow", "--json")
    assert forebay(*again).json == {"schedule": "often", "result": "changed"}
    assert forebay("schedules", "list").out.split()[-1] == "active"
    shown = forebay("schedules", "show", "often").out
    assert '{"tag": "t"}' in shown
    assert "every 2 h" in shown
    assert (
        forebay("schedules", "pause", "often", "--note", "a move").out == "schedule often: paused\n"
    )
    assert "paused" in forebay("schedules", "list").out
    assert forebay("schedules", "resume", "often").out == "schedule often: resumed\n"
    assert forebay("schedules", "resume", "often").out == "schedule often: was not paused\n"
    job_id = forebay("schedules", "run", "often", "--json").json["job_id"]
    assert one(conn, "select tag from forebay.job(%s)", job_id) == "t"
    assert forebay("schedules", "run", "often").out.startswith("enqueued job ")
    assert "manual" in forebay("schedules", "history", "often").out
    assert (
        forebay("schedules", "history", "often", "--before", "2020-01-01T00:00:00Z").out
        == "No decisions.\n"
    )
    assert forebay("schedules", "drop", "often").out == "schedule often: dropped\n"
    assert forebay("schedules", "drop", "often").out == "schedule often: does not exist\n"


def test_a_preview_shows_instants_in_the_interval(forebay, nightly, monkeypatch):
    place = ("--from", "2030-03-30T00:00:00Z", "--to", "2030-04-01T00:00:00Z")
    found = forebay("schedules", "preview", "nightly", *place, "--json").json
    assert [each["scheduled_for"][:16] for each in found] == [
        "2030-03-30T02:00",
        "2030-03-31T01:00",
    ]
    assert forebay("schedules", "preview", "nightly", *place).out.count("2030-03-3") >= 2
    assert forebay("schedules", "preview", "nightly").out.count(":00") >= 20
    monkeypatch.setenv("COLUMNS", "80")
    for line in forebay("schedules", "preview", "nightly").out.splitlines()[1:]:
        assert len(line) <= 80
        assert line.count("+") + line.count("-0") >= 2, line  # Both times are whole.


def test_a_backfill_begins_with_a_dry_run(forebay, nightly, conn):
    place = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-04T00:00:00Z")
    plan = forebay("schedules", "backfill", "nightly", *place, "--dry-run").out
    assert plan.startswith("3 jobs; ")
    done = forebay("schedules", "backfill", "nightly", *place, "--token", plan.split()[-1])
    assert done.out == "enqueued 3 jobs of schedule nightly\n"
    assert forebay("schedules", "backfill", "nightly", *place, "--dry-run").out.startswith("0 jobs")
    assert one(conn, "select count(*) from forebay.log where headers ? 'forebay-schedule'") == 3


def test_a_schedule_that_does_not_exist(forebay):
    answer = forebay("schedules", "show", "none")
    assert (answer.code, "schedule 'none' not found" in answer.err) == (1, True)

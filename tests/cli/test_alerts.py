"""forebay alerts, forebay thresholds and forebay metrics."""

import os

import pytest

from tests.support.engine import one


def test_alerts_and_their_exit_code(command, database, conn):
    assert command("alerts", "--dsn", database).code == 0
    conn.execute("select forebay.configure('reserve_rows', 1000000000)")
    answer = command("alerts", "--dsn", database)
    assert answer.code == 1
    assert "✗ reserve: " in answer.out
    assert "→ Start a worker" in answer.out
    answer = command("alerts", "--dsn", database, "--json")
    assert (answer.code, answer.json["fine"], answer.json["alerts"][0]["code"]) == (
        1,
        False,
        "reserve",
    )


def test_a_condition_that_has_not_lasted_is_shown_on_request(command, database, conn):
    conn.execute("select forebay.record_duty_v1('seal', 1, 'no space')")
    assert command("alerts", "--dsn", database).code == 0
    answer = command("alerts", "--pending", "--dsn", database)
    assert "… maintenance seal: seal fails: no space" in answer.out


def test_thresholds_are_set_listed_and_removed(command, database, conn):
    assert (
        "default -> 30"
        in command(
            "thresholds", "set", "oldest_ready", "30", "--queue", "mail", "--dsn", database
        ).out
    )
    listed = command("thresholds", "list", "--dsn", database, "--json").json
    assert listed["set"] == [{"name": "oldest_ready", "queue": "mail", "tag": "", "value": 30}]
    assert "mail" in command("thresholds", "list", "--dsn", database).out
    assert (
        "30 -> default"
        in command(
            "thresholds", "set", "oldest_ready", "default", "--queue", "mail", "--dsn", database
        ).out
    )
    assert one(conn, "select count(*) from forebay.alert_threshold") == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(("oldest", "1"), "is unknown"), (("oldest_ready", "soon"), "not a number")],
)
def test_a_threshold_that_is_not_right_is_refused(command, database, arguments, problem):
    answer = command("thresholds", "set", *arguments, "--dsn", database)
    assert answer.code != 0
    assert problem in answer.err


def test_metrics_are_printed(command, database):
    answer = command("metrics", "--dsn", database)
    assert answer.code == 0
    assert "forebay_up 1\n" in answer.out


@pytest.mark.direct  # logs in as another role
def test_metrics_of_a_database_that_cannot_be_read_are_no_success(command, conn, database):
    """A file collector gets its text, and cron the exit code."""
    away = "host=127.0.0.1 port=1 dbname=none connect_timeout=1"
    role = f"stranger_{os.getpid()}"
    conn.execute(f"create role {role} login")
    try:
        for dsn in (away, f"{database}&options=-c%20role%3D{role}"):
            answer = command("metrics", "--dsn", dsn)
            assert answer.code == 3
            assert "\nforebay_up 0\n" in answer.out
    finally:
        conn.execute(f"drop role {role}")
    answer = command("metrics", "--dsn", database)
    assert answer.code == 0
    assert "\nforebay_up 1\n" in answer.out

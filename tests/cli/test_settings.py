"""forebay settings."""

import pytest

from tests.support.engine import one


def test_settings_are_listed_shown_set_and_reset(command, database, conn):
    """The list says who has set what; a dry run writes nothing."""
    at = ("--dsn", database)
    assert "1,048,576" in command("settings", "list", *at).out
    planned = command("settings", "set", "retry_cap_seconds", "600", "--dry-run", *at)
    assert "retry_cap_seconds would be 600, was 3,600" in planned.out
    assert one(conn, "select count(*) from forebay.setting where set_at is not null") == 1
    done = command("settings", "set", "retry_cap_seconds", "600", "--json", *at).json
    assert done == {
        "setting": "retry_cap_seconds",
        "before": 3600,
        "value": 600,
        "dry_run": False,
    }
    listed = {row["name"]: row for row in command("settings", "list", "--json", *at).json}
    assert (listed["retry_cap_seconds"]["value"], listed["max_waiting"]["value"]) == (600, None)
    shown = command("settings", "show", "retry_cap_seconds", *at).out
    assert "a number within 0.001 to 3153600000 seconds" in shown
    assert " by " in shown
    assert "is 3,600, was 600" in command("settings", "reset", "retry_cap_seconds", *at).out
    policy = command("settings", "set", "endpoint_retry", "[1, 2]", *at)
    assert "endpoint_retry is [1, 2], was standard" in policy.out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("set", "max_attempts", "0"), "1 to 10000 attempts"),
        (("set", "bogus", "1"), "unknown setting"),
        (("show", "bogus"), "unknown"),
    ],
)
def test_what_cannot_be_set_is_refused(command, database, arguments, problem):
    """With the name and the range."""
    answer = command("settings", *arguments, "--dsn", database)
    assert answer.code != 0
    assert problem in answer.err


def test_the_list_fits_a_terminal_of_eighty_columns(command, database, conn, monkeypatch):
    """No line is longer, whoever has set something long ago, and a policy is not JSON in pieces."""
    monkeypatch.setenv("COLUMNS", "80")
    policy = '{"max_retries": 3, "backoff": "fixed", "base_delay": 60}'
    assert command("settings", "set", "endpoint_retry", policy, "--dsn", database).code == 0
    conn.execute(
        "update forebay.setting set set_at = now() - interval '41.3 days', actor = 'ann.lindqvist'"
    )
    out = command("settings", "list", "--dsn", database).out
    assert max(map(len, out.splitlines())) <= 80
    assert "4 tries over 3 min" in out

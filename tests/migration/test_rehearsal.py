"""forebay migrate --rehearse: what an upgrade would lock, and for how long."""

import json

import psycopg
import pytest

from forebay.cli import run
from forebay.errors import DatabaseUnavailable, SchemaError
from forebay.upgrade.migrate import LockPolicy, migrate
from forebay.upgrade.rehearse import rehearse
from tests.support.engine import connect, one
from tests.support.next_release import next_migrations

ADD_COLUMN = (
    "add_source",
    "-- locks: log, lane\nalter table forebay.log add column source text;\n",
)


@pytest.mark.slow
def test_locks_are_told_with_their_length_and_nothing_is_left(database, release):
    """
    Each migration with the locks that stop somebody, what they stop, and for how long; the longest
    of all. The database is as it was.
    """
    _, second = release(
        ADD_COLUMN,
        ("slow", "-- locks: log\nselect pg_sleep(0.2); create index on forebay.failure (worker);"),
    )
    done = rehearse(database)

    first, last = done.steps
    assert {lock.relation: lock.count for lock in first.locks} == {"log": 1, "log_#": 64, "lane": 1}
    assert {(lock.mode, lock.stops) for lock in first.locks} == {("ACCESS EXCLUSIVE", "all")}
    on_failure = next(lock for lock in last.locks if lock.relation == "failure")
    assert (on_failure.mode, on_failure.stops, on_failure.declared) == ("SHARE", "writers", False)
    step, lock = done.longest
    assert (step.migration, lock.relation in {"log", "log_#"}) == (second, True)
    assert 0.2 <= lock.seconds < 2
    assert first.locks[0].seconds < lock.seconds  # the real one commits before the second begins
    with connect(database) as conn:
        assert not one(
            conn,
            (
                "select count(*) from pg_attribute where attrelid = 'forebay.log'::regclass "
                "and attname = 'source'"
            ),
        )
    assert len(migrate(database)) == 2


def test_a_rehearsal_makes_nobody_wait_behind_a_stranger_and_names_him(database, release):
    """
    It asks for locks as the upgrade does, and gives up as it does.
    """
    release(ADD_COLUMN)
    with psycopg.connect(database, application_name="stranger") as stranger:
        stranger.execute("lock table forebay.lane in access share mode")
        with pytest.raises(DatabaseUnavailable) as caught:
            rehearse(database, lock_policy=LockPolicy(patience_seconds=0.3))
    assert "stranger" in str(caught.value.detail)


def test_a_rehearsal_does_not_hold_locks_for_long_either(database, release):
    """
    A migration that would hold its locks for too long fails in rehearsal.
    """
    release(("slow", "-- locks: log\nselect pg_sleep(30);\n"))
    with pytest.raises(SchemaError, match="for longer than 0"):
        rehearse(database, lock_policy=LockPolicy(hold_seconds_max=0.2))


@pytest.mark.slow
def test_migrations_of_the_next_release_say_what_they_lock(database, release):
    """
    Every lock that blocks all sessions is requested at the beginning of its migration, and none
    lasts.
    """
    steps = release(*next_migrations())
    done = rehearse(database)
    undeclared = [
        (step.migration.name, lock)
        for step in done.steps
        for lock in step.locks
        if lock.stops != "maintenance" and not lock.declared and lock.relation != "lease"
    ]
    assert not undeclared
    assert [step.migration for step in done.steps if step.seconds is None] == [
        step for step in steps if step.is_outside
    ]


@pytest.mark.slow
def test_the_command_prints_it_for_people_and_for_programs(database, release, capsys, monkeypatch):
    """
    ``--rehearse`` changes nothing, names the workers a post migration waits for, and ends with the
    longest lock.
    """
    monkeypatch.setenv("COLUMNS", "160")
    with connect(database) as conn:
        one(conn, "select forebay.open_lease_v1('shop-1:4711', 30, 5, 3)")
    steps = release(*next_migrations())
    assert run(["migrate", "--dsn", database, "--rehearse"]) == 0
    shown = capsys.readouterr().out
    assert f"{steps[0].version:04} add_source" in shown
    assert "not rehearsed" in shown
    assert "shop-1:4711, made for version 3" in shown
    assert "longest: ACCESS EXCLUSIVE on " in shown.splitlines()[-1]

    assert run(["migrate", "--dsn", database, "--rehearse", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [step["version"] for step in told["steps"]] == [step.version for step in steps]
    assert told["longest"]["mode"] == "ACCESS EXCLUSIVE"
    assert told["steps"][1]["rehearsed"] is False

    assert run(["migrate", "--dsn", database]) == 0
    shown = capsys.readouterr()
    assert f"held back {steps[-2].version:04} post_of_the_version_before" in shown.out
    assert f"migrated to version {steps[-3].version}" in shown.out
    assert run(["migrate", "--dsn", database, "--wait", "0.1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [step["version"] for step in told["held_back"]] == [s.version for s in steps[-2:]]
    assert told["version"] == steps[-3].version

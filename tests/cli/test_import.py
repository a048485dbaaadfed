"""forebay import: what it says before, what it writes, and what it refuses by name."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from unittest import mock

import psycopg
import pytest

from forebay.moving.celery_words import timing_of
from forebay.policy.cron import Timing
from tests.support.celery_project import KEPT, REFUSED, celery_app
from tests.support.engine import one
from tests.support.periodic_tasks import CLOCKED
from tests.support.periodic_tasks import REFUSED as REFUSED_TASKS
from tests.support.worker_process import ROOT

PLACE = "tests.support.celery_project:celery_app"
BEAT = ("import", "celery-beat", PLACE)


def told(move):
    """What an import says it does, without whether it has."""
    return {name: value for name, value in move.items() if name != "is_done"}


def state(conn):
    return [
        one(conn, f"select count(*) from forebay.{table}")
        for table in ("schedule", "event", "log", "deferred")
    ]


@pytest.mark.slow
def test_a_dry_run_of_beat_says_what_the_import_does(forebay, conn):
    """It writes nothing, its token does exactly that, and a repetition changes nothing."""
    before = state(conn)
    plan = forebay(*BEAT, "--dry-run", "--json").json
    assert state(conn) == before
    assert {step["source_name"] for step in plan["schedules"]} == set(KEPT)
    assert {step["action"] for step in plan["schedules"]} == {"create"}
    done = forebay(*BEAT, "--token", plan["token"], "--json").json
    assert (plan["is_done"], done["is_done"]) == (False, True)
    assert told(plan) == told(done)
    stored = {each["name"]: each for each in forebay("schedules", "list", "--json").json}
    assert stored.keys() == {step["name"] for step in plan["schedules"]}
    morning = stored["every-morning"]
    assert (morning["cron"], morning["tz"]) == ("30 7 * * 1-5", "Europe/Rome")
    assert morning["args"] == {"user_id": 1, "text": "good morning"}
    assert (morning["queue"], morning["priority"]) == ("mail", 103)
    assert morning["options"] == {"expires_in": 60, "headers": {"from": "beat"}}
    assert (stored["hourly"]["every"], stored["often"]["overlap"]) == (3600, "allow")
    after = state(conn)
    again = forebay(*BEAT, "--token", plan["token"], "--json").json
    assert {step["action"] for step in again["schedules"]} == {"same"}
    assert state(conn) == after


@pytest.mark.slow
def test_each_schedule_that_cannot_be_kept_is_named_with_the_reason(forebay, conn):
    """Nothing is written for it; the screen names it, too."""
    done = forebay(*BEAT, "--yes", "--json").json
    refused = {each["name"]: each["reason"] for each in done["refused"]}
    assert refused.keys() == REFUSED.keys()
    for name, (_, word) in REFUSED.items():
        assert word in refused[name], name
    assert one(conn, "select count(*) from forebay.schedule") == len(KEPT)
    shown = forebay(*BEAT, "--dry-run").out
    assert all(f"refused {name}: " in shown for name in REFUSED)


@pytest.mark.parametrize("name", [name for name in KEPT if name not in ("often", "hourly")])
def test_an_expression_has_the_instants_of_celery(name):
    """Celery's own computation of what remains from one instant leads to the next one."""
    when = KEPT[name]["schedule"]
    when.app = celery_app
    timing = timing_of(when, None)
    ours = Timing(timing["cron"], None, timing["tz"])
    at = datetime(2026, 5, 1, tzinfo=UTC)
    for instant in islice(ours.after(at), 40):
        when.nowfun = lambda at=at: at
        assert at + when.remaining_estimate(at) == instant
        at = instant
    when.nowfun = None


@pytest.mark.slow
def test_an_app_names_kinds_and_checks_arguments(forebay):
    """A kind that the app does not declare is refused by name; --map leads to another."""
    app = ("--app", "tests.support.celery_project:app")
    plan = forebay(*BEAT, *app, "--dry-run", "--json").json
    assert not plan["schedules"]
    assert any("declares no kind tasks.report" in each["reason"] for each in plan["refused"])
    mapped = (*app, "--map", "tasks.send=send")
    done = forebay(*BEAT, *mapped, "--yes", "--json").json
    assert {step["name"] for step in done["schedules"]} == {"every-morning", "often"}
    often = forebay("schedules", "show", "often", "--json").json
    assert (often["queue"], often["priority"], often["kind"]) == ("letters", 50, "send")


@pytest.mark.slow
def test_what_was_changed_or_made_by_hand_is_kept(forebay):
    """A schedule of the same name is not touched, and one that ended in Celery is told."""
    forebay("schedules", "create", "hourly", "mine", "--every", "2h")
    first = forebay(*BEAT, "--yes", "--json").json
    actions = {step["name"]: step["action"] for step in first["schedules"]}
    assert (actions["hourly"], actions["often"]) == ("conflict", "create")
    forebay("schedules", "create", "often", "tasks.send", "--every", "5m")
    beat = celery_app.conf.beat_schedule
    gone = beat.pop("sunday")
    try:
        second = forebay(*BEAT, "--yes", "--json").json
    finally:
        beat["sunday"] = gone
    actions = {step["name"]: step["action"] for step in second["schedules"]}
    assert (actions["often"], actions["sunday"], actions["steps"]) == ("kept", "vanished", "same")
    assert forebay("schedules", "show", "hourly", "--json").json["every"] == 7200
    shown = forebay(*BEAT, "--dry-run").out
    assert "made by hand" in shown


@pytest.mark.slow
def test_a_token_is_refused_if_the_source_or_the_schedules_changed(forebay, conn):
    """And then nothing is written."""
    plan = forebay(*BEAT, "--dry-run", "--json").json
    before = state(conn)
    often = celery_app.conf.beat_schedule["often"]
    often["schedule"] = 31.0
    try:
        refused = forebay(*BEAT, "--token", plan["token"])
    finally:
        often["schedule"] = 30.0
    assert (refused.code, "dry run" in refused.err, state(conn) == before) == (1, True, True)
    forebay("schedules", "create", "hourly", "mine", "--every", "2h")
    assert forebay(*BEAT, "--token", plan["token"]).code == 1
    assert one(conn, "select count(*) from forebay.schedule") == 1


def test_a_question_is_asked_and_what_is_no_celery_app_is_refused(forebay, conn):
    asked = forebay(*BEAT)
    assert (asked.code, "Write 7 schedules?" in asked.err) == (2, True)
    assert one(conn, "select count(*) from forebay.schedule") == 0
    for place, word in (
        ("tests.support.celery_project:app", "not a celery.Celery"),
        ("tests.support.celery_project:nothing", "does not have"),
        ("no_such_module:app", "does not exist"),
    ):
        refused = forebay("import", "celery-beat", place, "--dry-run")
        assert (refused.code, word in refused.err) == (2, True), refused.err
    assert forebay(*BEAT, "--map", "nothing").code == 2


@pytest.fixture
def periodic(database):
    """The tables of django-celery-beat in the database, with rows of every sort."""
    pytest.importorskip("django_celery_beat")
    made = subprocess.run(
        [sys.executable, "-m", "tests.support.periodic_tasks", database],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


TABLES = ("import", "django-celery-beat")


@pytest.mark.slow
def test_periodic_tasks_become_schedules_and_a_clocked_one_a_job(forebay, conn, periodic):
    """
    The dry run says what is done, what cannot be kept is named, and a repetition changes nothing.
    """
    before = state(conn)
    plan = forebay(*TABLES, "--dry-run", "--json").json
    assert state(conn) == before
    refused = {each["name"]: each["reason"] for each in plan["refused"]}
    assert refused.keys() == REFUSED_TASKS.keys()
    assert [name for name, word in REFUSED_TASKS.items() if word not in refused[name]] == []
    done = forebay(*TABLES, "--token", plan["token"], "--json").json
    assert told(plan) == told(done)
    assert done["waiting"] == [{"kind": "tasks.report", "queue": "default", "new": 1, "known": 0}]
    stored = {each["name"]: each for each in forebay("schedules", "list", "--json").json}
    assert stored.keys() == {"every-morning", "quarter"}
    morning = stored["every-morning"]
    assert (morning["cron"], morning["tz"]) == ("30 7 * * 1-5", "Europe/Rome")
    assert (morning["args"], morning["queue"]) == ({"day": "today"}, "reports")
    assert morning["options"] == {"expires_in": 60, "headers": {"from": "beat"}}
    assert morning["starts_at"].startswith("2030-01-01T00:00:00")
    assert stored["quarter"]["every"] == 900
    (job,) = forebay("jobs", "list", "--json").json
    assert (job["state"], job["args"]) == ("scheduled", {"day": "31"})
    assert datetime.fromisoformat(job["run_at"]) == CLOCKED
    assert datetime.fromisoformat(job["expires_at"]) == CLOCKED + timedelta(seconds=60)
    after = state(conn)
    again = forebay(*TABLES, "--yes", "--json").json
    assert again["waiting"] == [{"kind": "tasks.report", "queue": "default", "new": 0, "known": 1}]
    assert state(conn) == after
    # Whatever queue it would go to by now, and after it has ended.
    forebay("jobs", "cancel", "--all", "--yes")
    moved = forebay(*TABLES, "--to-queue", "other", "--dry-run", "--json").json
    assert [each["new"] for each in moved["waiting"]] == [0]
    broker = forebay(*TABLES, "--broker", "amqp", "--dry-run", "--json").json
    assert "prioritised" in {step["source_name"] for step in broker["schedules"]}


@pytest.mark.slow
def test_two_projects_of_django_do_not_own_each_others_schedules(forebay, conn, database, periodic):
    """
    The tables of one database name are those of two projects: neither changes nor ends what the
    other has, and a name that both have is refused and told.
    """
    conn.execute("create schema eu")
    for each in ("periodictask", "crontabschedule", "intervalschedule", "clockedschedule",
                 "solarschedule"):  # fmt: skip
        name = f"django_celery_beat_{each}"
        conn.execute(f"create table eu.{name} as table public.{name}")
    conn.execute("delete from eu.django_celery_beat_periodictask where name <> 'every morning'")

    def stored():
        found = forebay("schedules", "list", "--json").json
        return [(each["name"], each["cron"], each["declared_by"]) for each in found]

    forebay(*TABLES, "--yes")
    before = stored()
    source = psycopg.conninfo.make_conninfo(database, options="-csearch_path=eu")
    second = forebay(*TABLES, "--from", source, "--yes", "--json").json
    assert [(step["name"], step["action"]) for step in second["schedules"]] == [
        ("every-morning", "conflict")
    ]
    assert "declared by import django-celery-beat" in second["schedules"][0]["detail"]
    assert stored() == before
    assert one(conn, "select count(*) from forebay.schedule where vanished_at is not null") == 0


@pytest.mark.slow
def test_two_celery_apps_at_one_place_are_told_apart(forebay, conn, monkeypatch):
    """By the main name of the app, and where that is the same too, by --source."""
    forebay(*BEAT, "--yes")
    names = {each["name"] for each in forebay("schedules", "list", "--json").json}
    beat = celery_app.conf.beat_schedule
    only = {"evening": beat["hourly"], "often": beat["often"]}
    with mock.patch.dict(beat, only, clear=True):
        same = forebay(*BEAT, "--dry-run", "--json").json
        named = forebay(*BEAT, "--source", "eu", "--dry-run", "--json").json
        monkeypatch.setattr(celery_app, "main", "another")
        other = forebay(*BEAT, "--yes", "--json").json
    assert "vanished" in {step["action"] for step in same["schedules"]}
    for move in (named, other):
        actions = {step["name"]: step["action"] for step in move["schedules"]}
        assert actions == {"evening": "create", "often": "conflict"}
    after = {each["name"] for each in forebay("schedules", "list", "--json").json}
    assert after == {*names, "evening"}
    assert one(conn, "select count(*) from forebay.schedule where vanished_at is not null") == 0
    for wrong in ("", "a b", "x:y", "a" * 61):
        refused = forebay(*BEAT, "--source", wrong, "--dry-run")
        assert (refused.code, "--source" in refused.err) == (2, True)


def test_a_database_without_the_tables_is_refused(forebay):
    refused = forebay(*TABLES, "--dry-run")
    assert (refused.code, "--from" in refused.err) == (2, True)
    assert forebay(*TABLES, "--broker", "sqs", "--dry-run").code == 2

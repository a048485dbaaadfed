"""Acts on many jobs behave alike: the table act x property comes from the command line itself."""

from datetime import UTC, datetime, timedelta

import pytest

from forebay.cli import _acts, _patience
from forebay.cli._main import program
from tests.support.engine import Reader, enqueue_many, one

QUESTION = {"dry_run", "token", "yes"}

#: Commands that ask, and are no act on jobs that wait or have died, with the reason.
OTHERS = {
    "queues redact": "it erases what has ended; a filter by age is its bound",
    "adopt": "its question is about a copy of a database",
}

#: Acts on what another library has, with the file that shows the same of them.
ELSEWHERE = {
    "import celery-beat": "tests/cli/test_import.py",
    "import django-celery-beat": "tests/cli/test_import.py",
    "import celery": "tests/cli/test_import_jobs.py",
    "import rq": "tests/cli/test_import_jobs.py",
    "import procrastinate": "tests/cli/test_import_jobs.py",
    "import pgqueuer": "tests/cli/test_import_jobs.py",
}

#: How each act is called on the rows of the fixture ``rows``.
CALLS = {
    "jobs cancel": "--queue wait",
    "jobs retry": "--queue later",
    "jobs reschedule": "--queue later --at TOMORROW",
    "jobs reprioritise": "--queue wait --priority 7",
    "jobs replay": "--queue mail --state dead",
    "queues purge": "wait",
    "queues truncate": "wait",
    "queues drop": "wait",
    "dead redrive": "--queue mail",
    "dead purge": "--older-than 0 --queue mail",
    "workers stop": "--all",
    "backfill": "work --query select_1_as_n",
    "subjects backfill": "work --query select_'one'_as_subject,_1_as_n",
    "schedules backfill": "nightly --from 2026-01-01T00:00:00Z --to 2026-01-04T00:00:00Z",
}

#: By which times each act can be bounded; what names a queue or its rows has none.
TIMES = {
    "jobs": {"enqueued_after", "enqueued_before"},
    "jobs replay": {"enqueued_after", "enqueued_before", "died_after", "died_before"},
    "dead": {"died_after", "died_before"},
    "dead purge": {"older_than"},
    "schedules": {"start", "end"},
}
TO_GROUP = {"jobs replay", "dead redrive"}


def commands(group=program, path=()):
    """Yield the words of each command, and the names of its options."""
    for name in group.list_commands(None):
        found = group.get_command(None, name)
        if hasattr(found, "list_commands"):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), {param.name for param in found.params}


def acts():
    return {name: names for name, names in commands() if names & QUESTION - {"dry_run"}}


def test_each_act_has_the_dry_run_the_token_and_the_question():
    """A command with one of them has all, or stands among the others."""
    partly = {name for name, names in acts().items() if not names >= QUESTION}
    assert partly == set(OTHERS)
    ours = acts().keys() - OTHERS.keys() - ELSEWHERE.keys()
    assert ours == set(CALLS), "a new act has a call in this test"


@pytest.mark.parametrize("name", CALLS)
def test_each_act_has_its_filters(name):
    """By time of enqueueing, dead ones by time of death; what makes jobs anew names its group."""
    names = acts()[name]
    assert names >= TIMES.get(name, TIMES.get(name.split()[0], set()))
    assert ("to_group" in names) == (name in TO_GROUP)


@pytest.fixture
def rows(forebay, database, conn):
    """Jobs that wait, start later, and have died; a schedule."""
    enqueue_many(conn, [{"kind": "work", "queue": "mail"}] * 3)
    with Reader(database, "mail") as reader:
        batch = reader.claim(3)
        dead = [{"offset": at, "outcome": "dead", "reason": "permanent"} for at in (1, 2, 3)]
        reader.settle(batch.claim_no, ended=dead)
    enqueue_many(conn, [{"kind": "work", "queue": "wait"}] * 3)
    enqueue_many(conn, [{"kind": "work", "queue": "later", "delay": 3600}] * 3)
    made = forebay("schedules", "create", "nightly", "work", "0 2 * * *", "--tz", "UTC")
    assert made.code == 0, made.err


def call(name: str) -> list[str]:
    words = CALLS[name].replace("TOMORROW", f"{datetime.now(UTC).date() + timedelta(2)}").split()
    return [*name.split(), *(word.replace("_", " ") for word in words)]


@pytest.mark.parametrize("name", CALLS)
def test_each_act_counts_asks_and_shows_what_takes_long(forebay, conn, rows, name, monkeypatch):
    """
    A dry run changes nothing; without consent nothing happens; its token does what it counted.

    Counting and the act give signs of life, and say what finishes them if they are interrupted.
    """
    seen = []

    class Seen(_patience.Progress):
        def __init__(self, what, again=""):
            super().__init__(what, again)
            seen.append(self)

    monkeypatch.setattr(_patience, "Progress", Seen)
    before = state(conn)
    plan = forebay(*call(name), "--dry-run", "--json").json
    found = len(plan["workers"]) if "workers" in plan else plan.get("jobs", plan.get("cancelled"))
    assert found in (1, 3)
    shown = forebay(*call(name), "--dry-run")
    assert shown.code == 0
    assert "token" in shown.out
    refused = forebay(*call(name))
    assert (refused.code, "--yes" in refused.err) == (2, True)
    monkeypatch.setattr(_acts, "confirmed", lambda question: False)
    assert forebay(*call(name)).code == 1
    assert state(conn) == before
    assert {each.what for each in seen} == {"counting"}
    counted = len(seen)
    done = forebay(*call(name), "--token", plan["token"])
    assert done.code == 0, done.err
    assert state(conn) != before
    assert len(seen) > counted, "the act shows no progress"
    assert all(each.again for each in seen[counted:]), "what finishes the act is not said"


def state(conn) -> list[int]:
    tables = ("log", "deferred", "tombstone", "dead_letter where redriven_at is null", "event")
    return [one(conn, f"select count(*) from forebay.{table}") for table in tables]


def test_what_is_interrupted_says_what_finishes_it(capsys):
    with pytest.raises(KeyboardInterrupt), _patience.patience("cancel", "again") as progress:
        progress.note(1200)
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "cancel: 1,200 jobs\n→ again\n"

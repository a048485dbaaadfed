"""The token of a dry run with an age is good for the same command later."""

from datetime import UTC, datetime, timedelta

import pytest

from forebay.cli._main import program
from tests.cli.test_sister_acts import rows  # noqa: F401
from tests.support.engine import enqueue, enqueue_many, one, state

#: Every act with an age, on the rows of the fixture, and how many it takes.
WITH_AGES = [
    "jobs cancel --queue wait --enqueued-after 2h",
    "jobs cancel --enqueued-after 2h --enqueued-before 0",
    "jobs retry --queue later --enqueued-after 90min",
    "jobs reschedule --queue later --enqueued-after 2h --at TOMORROW",
    "jobs reschedule --queue later --in 2h",
    "jobs reschedule --queue later --enqueued-after 2h --in 2h",
    "jobs reprioritise --queue wait --enqueued-after 2h --priority 7",
    "jobs replay --queue mail --enqueued-after 2h",
    "jobs replay --queue mail --died-after 2h",
    "jobs replay --queue mail --died-after 2h --died-before 0",
    "jobs replay --queue wait --unfinished-at 0",
    "dead redrive --died-after 2h",
    "dead redrive --died-after 2h --died-before 0",
]


@pytest.mark.parametrize("act", WITH_AGES)
@pytest.mark.usefixtures("rows")
def test_the_token_of_a_dry_run_with_an_age_does_what_was_counted(forebay, act):
    """Although the same age is another time at each call; and again after an interruption."""
    words = act.replace("TOMORROW", f"{datetime.now(UTC).date() + timedelta(1)}").split()
    plan = forebay(*words, "--dry-run", "--json").json
    assert plan["jobs"] >= 3
    answer = forebay(*words, "--token", plan["token"], "--json")
    assert (answer.code, answer.err) == (0, "")
    repeated = forebay(*words, "--token", plan["token"], "--json")
    assert repeated.code == 0, repeated.err


def test_ages_count_from_the_dry_run(forebay, conn):
    """A job that was enqueued later is not taken, nor one that has come into the age since."""
    jobs = enqueue_many(conn, [{"kind": "send", "queue": "mail"}] * 2)
    age = ("--queue", "mail", "--enqueued-before", "0")
    token = forebay("jobs", "cancel", *age, "--dry-run", "--json").json["token"]
    later = enqueue(conn, queue="mail")
    assert forebay("jobs", "cancel", *age, "--token", token).out == "2 jobs cancelled\n"
    assert state(conn, later) == "ready"
    assert [state(conn, job) for job in jobs] == ["cancelled"] * 2


def test_a_delay_counts_from_the_dry_run(forebay, conn):
    """The token of a dry run covers the time, so the jobs start as long after the dry run."""
    job = enqueue(conn, queue="mail")
    words = ("jobs", "reschedule", "--queue", "mail", "--in", "2h")
    token = forebay(*words, "--dry-run", "--json").json["token"]
    assert forebay(*words, "--token", token).code == 0
    moment = datetime.strptime(token.partition("@")[2], "%Y%m%dT%H%M%S.%f%z")
    at = one(conn, "select run_at from forebay.job(%s)", job)
    assert at == moment + timedelta(hours=2)


def test_a_token_is_printed_on_one_line(forebay, conn, monkeypatch):
    """However narrow the terminal is, so that it can be copied."""
    enqueue(conn, queue="mail")
    monkeypatch.setenv("COLUMNS", "40")
    words = ("jobs", "cancel", "--queue", "mail", "--enqueued-after", "2h")
    lines = forebay(*words, "--dry-run").out.splitlines()
    (token,) = [line.split()[1] for line in lines if line.startswith("token ")]
    assert forebay(*words, "--token", token).out == "1 job cancelled\n"


def test_a_token_without_an_age_stays_as_the_database_made_it(forebay, conn):
    enqueue(conn, queue="mail")
    token = forebay("jobs", "cancel", "--queue", "mail", "--dry-run", "--json").json["token"]
    assert "@" not in token
    assert forebay("jobs", "cancel", "--queue", "mail", "--token", token).code == 0


@pytest.mark.parametrize("end", ["@", "@2h", "@20261399T000000.000Z", "@20261130T080000Z", "@@"])
def test_a_spoilt_end_of_a_token_is_refused_at_the_door(forebay, conn, end):
    job = enqueue(conn, queue="mail")
    words = ("jobs", "cancel", "--queue", "mail", "--enqueued-after", "2h")
    token = forebay(*words, "--dry-run", "--json").json["token"].partition("@")[0]
    answer = forebay(*words, "--token", token + end)
    assert (answer.code, "Copy the token of the dry run whole" in answer.err) == (2, True)
    assert state(conn, job) == "ready"


def test_a_token_and_an_age_that_do_not_belong_together_are_refused_with_the_reason(forebay, conn):
    """A token without a moment with an age; a token with a moment without one; another moment."""
    job = enqueue(conn, queue="mail")
    plain, age = ("jobs", "cancel", "--queue", "mail"), ("--enqueued-after", "2h")
    without = forebay(*plain, "--dry-run", "--json").json["token"]
    token = forebay(*plain, *age, "--dry-run", "--json").json["token"]
    answer = forebay(*plain, *age, "--token", without)
    assert (answer.code, "does not carry" in answer.err) == (2, True)
    answer = forebay(*plain, "--token", token)
    assert (answer.code, "this command has none" in answer.err) == (2, True)
    other = token[:-4] + ("000Z" if not token.endswith("000Z") else "001Z")
    answer = forebay(*plain, *age, "--token", other)
    assert (answer.code, "Do a new dry run" in answer.err) == (1, True)
    assert state(conn, job) == "ready"


def test_the_ages_of_one_call_count_from_one_moment(forebay, conn):
    """So what two ages bound has the length that they say."""
    enqueue(conn, queue="mail")
    both = ("--enqueued-after", "1s", "--enqueued-before", "1s")
    found = forebay("jobs", "cancel", *both, "--dry-run", "--json")
    assert found.json["jobs"] == 0


def test_each_option_with_an_age_of_an_act_with_a_token_is_tried_here():
    """An act with another such option has a call above."""
    tried = {
        (" ".join(words[:2]), word) for words in map(str.split, WITH_AGES) for word in words[2:]
    }
    for name, command in acts_with_tokens():
        for option in command.params:
            if "an age such as" in (getattr(option, "help", None) or ""):
                spelling = option.opts[0]
                # The conditions of a filter are those of all acts with one.
                assert (name, spelling) in tried or any(
                    word == spelling and spelling.startswith("--enqueued") for _, word in tried
                ), f"{name} {spelling}"


def acts_with_tokens(group=program, path=()):
    for name in group.list_commands(None):
        found = group.get_command(None, name)
        if hasattr(found, "list_commands"):
            yield from acts_with_tokens(found, (*path, name))
        elif any(option.name == "token" for option in found.params):
            yield " ".join((*path, name)), found


@pytest.mark.parametrize(
    ("digits", "date"),
    [
        ("20261201", "2026-12-01"),
        ("20261201080000", "2026-12-01T08:00:00"),
        ("99999999", "2026-12-01"),
        ("123456789", "2026-12-01"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        "jobs list --enqueued-after",
        "jobs cancel --yes --enqueued-after",
        "time-machine",
        "events list --since",
        "dead purge --yes --older-than",
        "queues redact mail --yes --older-than",
        "jobs reschedule --all --yes --in",
    ],
)
def test_digits_that_may_be_a_date_or_seconds_are_refused(forebay, conn, words, digits, date):
    """A date of ISO 8601 without hyphens was a number of seconds, and all jobs were taken."""
    job = enqueue(conn, queue="mail")
    answer = forebay(*words.split(), digits)
    assert answer.code == 2, answer.out
    assert f"{digits}s" in answer.err
    assert date in answer.err
    assert state(conn, job) == "ready"
    assert forebay(*words.split(), f"{digits}s").code in (0, 2)


def test_up_to_seven_digits_are_seconds(forebay, conn):
    """Where a time is wanted only, a date needs no hyphens."""
    enqueue(conn, queue="mail")
    assert len(forebay("jobs", "list", "--enqueued-after", "9999999", "--json").json) == 1
    words = ("jobs", "reschedule", "--all", "--at", "20261202", "--dry-run")
    assert forebay(*words).code == 0

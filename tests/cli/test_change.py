"""Commands for many jobs: dry run with a token, the act, and the answer of each named job."""

import pytest

from tests.support.engine import Reader, enqueue, enqueue_many, one, state


def test_wrong_jobs_are_cancelled_by_filter(forebay, conn, monkeypatch):
    """The dry run counts what the act with its token then cancels.

    The right jobs stay, and the event log has one row.
    """
    wrong = enqueue_many(conn, [{"kind": "send", "queue": "mail", "tag": "bad"} for _ in range(30)])
    right = enqueue_many(conn, [{"kind": "send", "queue": "mail"} for _ in range(20)])
    conn.execute("delete from forebay.event")
    monkeypatch.setenv("COLUMNS", "80")
    dry = forebay("jobs", "cancel", "--tag", "bad", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert "would cancel  30 jobs" in dry.out
    assert max(map(len, dry.out.splitlines()[:-1])) <= 80
    plan = forebay("jobs", "cancel", "--tag", "bad", "--dry-run", "--json").json
    assert (plan["jobs"], plan["states"]) == (30, {"ready": 30})
    refused = forebay("jobs", "cancel", "--tag", "bad", "--queue", "mail", "--token", plan["token"])
    assert refused.code == 1
    assert "Do a new dry run" in refused.err
    answer = forebay("jobs", "cancel", "--tag", "bad", "--token", plan["token"])
    assert (answer.code, answer.out) == (0, "30 jobs cancelled\n")
    assert {
        one(conn, "select bool_and(cancel_requested) from forebay.job(%s)", job) for job in wrong
    } == {True}
    assert {
        one(conn, "select bool_or(cancel_requested) from forebay.job(%s)", job) for job in right
    } == {False}
    assert forebay("jobs", "cancel", "--tag", "bad", "--yes").out == "No jobs.\n"
    (event,) = forebay("events", "list", "--json").json
    assert (event["act"], event["count"], event["new"]) == ("jobs.cancel", 30, {"tag": "bad"})


def test_a_filter_without_a_token_asks_first(forebay, conn, monkeypatch):
    enqueue(conn, queue="mail")
    refused = forebay("queues", "purge", "mail")
    assert refused.code == 2
    assert "--yes" in refused.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda _question, **_: False)
    assert forebay("queues", "purge", "mail").code == 1
    monkeypatch.setattr("click.confirm", lambda _question, **_: True)
    assert forebay("queues", "purge", "mail").out == "1 job cancelled\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("jobs", "cancel"), "or a filter is needed"),
        (("jobs", "cancel", "1", "--all"), "give one of them"),
        (("jobs", "retry", "--state", "done", "--yes"), "not a state of an unfinished job"),
        (("jobs", "reschedule", "1"), "--at or --in is needed"),
        (("jobs", "cancel", "--queue", "q", "--group", "g"), "--group needs the ids"),
    ],
)
def test_wrong_usage_changes_nothing(forebay, conn, arguments, text):
    answer = forebay(*arguments)
    assert answer.code in (1, 2)
    assert text in answer.err
    assert one(conn, "select count(*) from forebay.tombstone") == 0


def test_named_jobs_are_retried_rescheduled_and_reprioritised(forebay, database, conn):
    with Reader(database, "mail") as reader:
        done = enqueue(conn, queue="mail")
        reader.finish(reader.claim(1))
    later = enqueue(conn, queue="mail", delay="1 hour")
    answer = forebay("jobs", "retry", later, done, 999)
    assert answer.code == 1
    assert answer.out == f"job {later}: changed\n"
    assert f"job {done}: already ended\n" in answer.err
    assert "job 999: unknown" in answer.err
    assert state(conn, later) == "ready"
    assert forebay("jobs", "reschedule", later, "--in", "2h").code == 0
    assert state(conn, later) == "scheduled"
    found = forebay("jobs", "reprioritise", later, "--priority", "7", "--json").json
    assert found == {"answers": {"changed": 1}, "jobs": {str(later): "changed"}}
    assert one(conn, "select priority from forebay.job(%s)", later) == 7


def test_a_list_takes_the_same_conditions(forebay, conn):
    """Each condition restricts the list; ended jobs match too."""
    enqueue(conn, queue="mail")
    job = enqueue(conn, queue="mail", tag="t", correlation_id="c", limit_key="l")
    other = enqueue(conn, queue="mail", ordering_key="o", delay="1 hour")
    for condition, found in (
        (("--tag", "t"), [job]),
        (("--correlation-id", "c", "--tag", "t"), [job]),
        (("--limit-key", "l"), [job]),
        (("--ordering-key", "o"), [other]),
        (("--unique-key", "u"), []),
        (("--enqueued-before", "1h"), []),
        (("--enqueued-after", "1h", "--tag", "t", "--queue", "mail", "--state", "ready"), [job]),
    ):
        listed = forebay("jobs", "list", *condition, "--json").json
        assert [each["job_id"] for each in listed] == found, condition
    refused = forebay("jobs", "list", "--enqueued-after", "yesterday")
    assert refused.code == 2

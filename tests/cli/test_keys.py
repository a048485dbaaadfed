"""The commands for keys, and the same answer in `jobs show`."""

import re

import pytest

from forebay.client import Client
from tests.support.engine import Reader, enqueue, enqueue_many, one, shift_clock

LONG_KEY = "customer of a rather long name, in a region with a long name too"


@pytest.fixture(autouse=True)
def eighty_columns(forebay, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def reader(database):
    with Reader(database, "q") as reader:
        reader.conn.execute("update forebay.lease set worker = 'w3'")
        # An idle worker leads the group: it is served.
        one(reader.conn, "select forebay.lead_v1(1, array[%s]::bigint[], 100)", reader.group_id)
        yield reader


def take_all(reader, limit=100):
    """Claim until nothing is ready; return the batches."""
    batches = []
    while (batch := reader.claim_ready(limit)).jobs:
        batches.append(batch)
    return batches


def put(conn, count, **key):
    return enqueue_many(conn, [{"kind": "work", "queue": "q", **key}] * count)


def why(forebay, option, key):
    """Return what `keys show` says, which must fit 80 columns."""
    out = forebay("keys", "show", "q", option, key).out
    assert max(map(len, out.splitlines())) <= 80
    return " ".join(out.partition("why")[2].split())


def waits(forebay, database, job_id):
    """Return what explains a waiting job: `jobs show` says it, with what can be done."""
    shown = forebay("jobs", "show", job_id).out
    (explained,) = Client(database).explain(job_id)
    found = re.search(r"^waits\s+(.*?)^queue ", shown, re.DOTALL | re.MULTILINE)
    answer, _, hint = " ".join(found[1].split()).partition(" → ")
    assert answer == explained.answer
    assert hint in ("", explained.hint)
    return explained


@pytest.mark.slow
def test_a_key_behind_a_job(forebay, database, conn, reader):
    """With the job, its worker, and later the time of its next attempt.

    `jobs show` has the same answer.
    """
    assert forebay("keys", "list").out == "No job waits for its key.\n"
    jobs = put(conn, 3, ordering_key="doc 1")
    with Reader(database, "q") as other:
        batch = reader.claim_ready(1)
        assert take_all(other) == []
        assert why(forebay, "--ordering-key", "doc 1") == f"behind job {jobs[0]} of w3"
        found = waits(forebay, database, jobs[2])
        assert found.answer == f"ordering key doc 1: behind job {jobs[0]} of w3"
        assert (found.cause, found.hint) == ("ordering key", f"forebay doctor --job {jobs[0]}")
        (listed,) = forebay("keys", "list", "--queue", "q", "--json").json
        assert (listed["key"], listed["waiting"], listed["reason"]) == ("doc 1", 2, "running")
        assert listed == forebay("keys", "show", "q", "--ordering-key", "doc 1", "--json").json[0]
        again = {"offset": 1, "outcome": "retried", "after": 90_000}
        assert reader.settle(batch.claim_no, [], ended=[again]) == "settled"
        answer = why(forebay, "--ordering-key", "doc 1")
        due = one(conn, "select run_at from forebay.job(%s)", jobs[0]).astimezone()
        assert answer == f"behind job {jobs[0]}, which runs again at {due:%Y-%m-%d %H:%M:%S}"
        assert waits(forebay, database, jobs[1]).answer == f"ordering key doc 1: {answer}"
        shift_clock(conn, 100_000)
        one(conn, "select forebay.promote_v1(100)")
        answer = why(forebay, "--ordering-key", "doc 1")
        assert answer == f"behind job {jobs[0]}, which is ready to run again"


@pytest.mark.slow
def test_a_key_at_its_limits(forebay, database, conn, reader):
    """Three of the running jobs are named, and how many more there are."""
    forebay("queues", "limit", "q", "--key-concurrency", 5)
    jobs = put(conn, 8, limit_key="acme")
    take_all(reader, 5)
    named = ", ".join(map(str, jobs[:3]))
    answer = f"at its concurrency limit: jobs {named} of w3, 2 more"
    assert why(forebay, "--limit-key", "acme") == answer
    found = waits(forebay, database, jobs[7])
    assert (found.answer, found.cause) == (f"limit key acme: {answer}", "limit")
    assert found.hint == "forebay queues limit q --key-concurrency NUMBER raises the limit."
    forebay("queues", "limit", "q", "--remove", "all", "--key-rate", 0.01)
    # The first claim that sees new limits only gives each key a turn.
    assert take_all(reader) == []
    reader.finish(take_all(reader)[0])
    answer = why(forebay, "--limit-key", "acme")
    assert re.fullmatch(r"at its rate until (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", answer)
    assert waits(forebay, database, jobs[7]).hint.endswith("--key-rate NUMBER raises the limit.")
    one(conn, "select forebay.pause_queue('q')")
    assert why(forebay, "--limit-key", "acme") == "the consumer group is paused"
    assert [one.cause for one in Client(database).explain(jobs[7])] == ["paused"]


def test_the_limits_of_the_queue(forebay, database, conn, reader):
    """They are named as limits of the queue, with the option that raises them."""
    forebay("queues", "limit", "q", "--concurrency", 1)
    jobs = put(conn, 3, limit_key="acme")
    take_all(reader)
    answer = "the queue q is at its concurrency limit"
    assert why(forebay, "--limit-key", "acme") == answer
    found = waits(forebay, database, jobs[2])
    assert found.answer == f"limit key acme: {answer}"
    assert found.hint == "forebay queues limit q --concurrency NUMBER raises the limit."


def test_a_key_that_is_due_or_free(forebay, database, conn, reader):
    """A job that is due goes through the further questions; a key that was never used is free."""
    jobs = put(conn, 2, ordering_key="doc 1")
    with Reader(database, "q") as other:
        batch = reader.claim_ready(1)
        assert take_all(other) == []
        reader.finish(batch)
        assert why(forebay, "--ordering-key", "doc 1") == "due: a claim takes its next job"
        assert waits(forebay, database, jobs[1]).cause == "soon"
    assert why(forebay, "--ordering-key", "doc 2") == "free: nothing holds it back"


def test_the_list_fits_eighty_columns(forebay, database, conn, reader):
    """Long names wrap; the most waiting jobs come first; the limit is said."""
    forebay("queues", "limit", "q", "--key-concurrency", 1)
    conn.execute("update forebay.lease set worker = 'worker-7.europe.example.net:31337:a8f3c2'")
    put(conn, 2, limit_key="a")
    put(conn, 1500, limit_key=LONG_KEY)
    take_all(reader, 10)
    with Reader(database, "q", "a-group-with-a-name"):
        printed = forebay("keys", "list").out
        assert max(map(len, printed.splitlines())) <= 80
        assert "1,499" in printed
        assert "".join(LONG_KEY.split())[:10] in "".join(printed.split())
        cut = forebay("keys", "list", "--limit", 1).out
        assert "only the first 1: --limit shows more" in cut
        shown = forebay("keys", "show", "q", "--limit-key", LONG_KEY).out
        assert max(map(len, shown.splitlines())) <= 80
        assert "group a-group-with-a-name" in shown


def test_wrong_usage(forebay, conn):
    """One key is named; a queue that is not in use is probably misspelt."""
    assert forebay("keys", "show", "q").code == 2
    assert forebay("keys", "show", "q", "--limit-key", "a", "--ordering-key", "b").code == 2
    refused = forebay("keys", "show", "q", "--limit-key", "a")
    assert refused.code == 2
    assert "no job was enqueued there" in refused.err
    enqueue(conn, queue="q", limit_key="a")
    assert forebay("keys", "list", "--limit", 0).code != 0

"""Workers in other languages on the screens: by name and program, and not as dead while they
extend.
"""

import pytest

from tests.support.consumer import Consumer
from tests.support.engine import enqueue, shift_clock


@pytest.fixture
def consumer(database):
    """A worker that has one of two jobs; it said so half a minute after the first word."""
    with Consumer(database, ["mail"], name="mailer-1") as found:
        enqueue(found.conn, queue="mail")
        enqueue(found.conn, queue="mail")
        found.take(1)
        for seconds in (10, 20, 30, 40):
            shift_clock(found.conn, seconds)
            found.extend()
        yield found


def test_workers_list_shows_it(forebay, consumer):
    """Name, program, what it runs."""
    answer = forebay("workers", "list")
    assert answer.code == 0, answer
    assert "mailer-1" in answer.out
    assert "test (plain)" in answer.out
    (row,) = forebay("workers", "list", "--json").json
    assert (row["worker"], row["running"], row["queues"]) == ("mailer-1", 1, ["mail"])
    for answer in (forebay("workers", "ended"), forebay("workers", "ended", "--json")):
        assert "mailer-1" not in answer.out


def test_a_job_shows_who_has_it(forebay, consumer):
    """The one that runs, and the one that waits for a worker that serves the queue."""
    (shown,) = forebay("jobs", "show", 1, "--json").json
    assert shown["state"] == "running"
    assert "mailer-1" in forebay("jobs", "show", 1).out
    assert "no worker" not in forebay("jobs", "show", 2).out


def test_nothing_calls_it_dead(forebay, consumer):
    """Neither the problems of status, nor the doctor; nor is its queue without a worker."""
    for name in ("status", "alerts"):
        out = forebay(name).out
        assert "unserved" not in out, out
        assert "lost" not in out, out
    findings = forebay("doctor", "--json").json["findings"]
    about = [each["level"] for each in findings if each["check"] == "workers"]
    assert about == ["ok"]


def test_the_doctor_names_it_when_it_is_silent(forebay, consumer):
    """As any worker: its jobs come back."""
    consumer.conn.execute("update forebay.heartbeat set heartbeat_at = now() - interval '1 hour'")
    consumer.conn.execute("update forebay.batch set claimed_at = now() - interval '1 hour'")
    shift_clock(consumer.conn)
    out = forebay("doctor").out
    assert "mailer-1" in out

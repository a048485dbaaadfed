"""Subjects in SQL: one run at a time, nothing forgotten, no revival.

Pushes, upserts, kills and drops; flat cost.
"""

import json
import random
import re
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.support.engine import Reader, connect, one, shift_clock, sqlstate, trim
from tests.support.mutant import break_function, violation


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@pytest.fixture
def reader(conn, database):
    with Reader(database, "crawl") as reader:
        yield reader


class Clock:
    """The clock of the database, moved at will."""

    def __init__(self, conn) -> None:
        self.conn = conn
        self.shift = 0.0

    def ahead(self, **delta: float) -> None:
        self.shift += timedelta(**delta).total_seconds()
        shift_clock(self.conn, self.shift)


@pytest.fixture
def clock(conn):
    return Clock(conn)


def push(conn, *subjects, **options):
    """Push subjects of queue crawl; return (result, reason) of each."""
    return put(conn, "push_subjects(%s)", subjects, options)


def upsert(conn, *subjects, revive=False, **options):
    return put(conn, f"upsert_subjects(%s, {revive})", subjects, options)


def put(conn, call, subjects, options):
    rows = [
        {"kind": "crawl", "queue": "crawl", "subject": s, **options}
        if isinstance(s, str)
        else {"kind": "crawl", "queue": "crawl", **s}
        for s in subjects
    ]
    return [
        tuple(row[1:])
        for row in conn.execute(f"select * from forebay.{call}", [json.dumps(rows)]).fetchall()
    ]


def show(conn, subject, queue="crawl"):
    cursor = conn.cursor(row_factory=psycopg.rows.dict_row)
    return cursor.execute("select * from forebay.subject(%s, %s)", [queue, subject]).fetchone()


def what(conn, subject):
    found = show(conn, subject)
    return found and found["state"]


def again(**when):
    return {"then": "again", **when}


def claim_one(reader):
    """Claim one run; return its batch and its header, read."""
    for _ in range(3):  # A claim that only skips what was withdrawn hands out nothing.
        batch = reader.claim_ready(1)
        if batch.jobs:
            break
    else:
        return None, None
    return batch, json.loads(batch.jobs[0]["headers"]["forebay-subject"])


def end(reader, batch, then=None, *, outcome="done", flush_no=1, **more):
    """Settle the only run of a batch as a worker does; return the status."""
    item = {"offset": 1, "outcome": outcome, **more}
    if then is not None:
        item["subject"] = then
    status = reader.settle(batch.claim_no, [], flush_no=flush_no, ended=[item])
    reader.open_claims.discard(batch.claim_no)
    return status


def promote(conn):
    return one(conn, "select forebay.promote_v1()")


def counts(conn):
    return dict(conn.execute("select state, subjects from forebay.subject_counts('crawl')"))


def states(conn):
    """Return how many subjects of the queue show each state."""
    return dict(
        conn.execute(
            "select state, count(*) from forebay.subjects('crawl', most => 10000) group by 1"
        )
    )


def run(reader, then=None, **more):
    """Claim the next run and end it; return its header."""
    batch, header = claim_one(reader)
    assert batch is not None, "no run is ready"
    assert end(reader, batch, then, **more) == "settled"
    return header


# Pushes.


def test_a_pushed_subject_runs_comes_again_and_keeps_its_state(conn, reader, clock):
    assert push(conn, "a", args={"url": "x"}) == [("created", None)]
    batch, header = claim_one(reader)
    assert batch.jobs[0]["kind"] == "crawl"
    assert batch.jobs[0]["args"] == {"url": "x"}
    assert header["subject"] == "a"
    assert header["iterations"] == 0
    assert header["state"] is None
    assert what(conn, "a") == "running"
    assert end(reader, batch, again(after=60, data={"seen": 1}, args={"url": "y"})) == "settled"
    assert what(conn, "a") == "scheduled"
    assert claim_one(reader) == (None, None)
    clock.ahead(seconds=59)
    promote(conn)
    assert claim_one(reader) == (None, None)
    clock.ahead(seconds=2)
    promote(conn)
    batch, header = claim_one(reader)
    assert batch.jobs[0]["args"] == {"url": "y"}
    assert (header["iterations"], header["state"]) == (1, {"seen": 1})
    assert end(reader, batch, {"then": "complete", "data": {"seen": 2}}) == "settled"
    found = show(conn, "a")
    assert (found["state"], found["iterations"], found["data"]) == ("completed", 2, {"seen": 2})
    assert counts(conn) == {"completed": 1}


def test_a_push_of_a_name_that_exists_changes_nothing_whatever_its_state(conn, reader):
    """FetchQ answers 0 for it, silently; here each row says why."""
    push(conn, "a", args={"n": 1})
    assert push(conn, "a", "b", args={"n": 2}) == [("skipped", "exists"), ("created", None)]
    assert run(reader, {"then": "complete"})["subject"] == "a"
    assert push(conn, "a") == [("skipped", "exists")]
    conn.execute("select forebay.kill_subject('crawl', 'b')")
    assert push(conn, "b") == [("skipped", "exists")]
    assert show(conn, "a")["args"] == {"n": 1}


def test_a_subject_without_a_name_gets_a_random_one(conn):
    rows = conn.execute(
        """select subject, result
        from forebay.push_subjects('[{"kind": "crawl"}, {"kind": "crawl"}]')"""
    ).fetchall()
    assert [r[1] for r in rows] == ["created", "created"]
    assert len({r[0] for r in rows}) == 2


def test_a_push_follows_its_transaction(conn, reader, database):
    with connect(database) as other:
        other.autocommit = False
        push(other, "a")
        assert claim_one(reader) == (None, None)
        other.rollback()
        assert show(conn, "a") is None
        push(other, "a")
        other.commit()
    assert run(reader)["subject"] == "a"


@pytest.mark.parametrize(
    "subject",
    [
        {"subject": ""},
        {"subject": "x" * 513},
        {"subject": "a\nb"},
        {"subject": "a", "version": -1},
        {"subject": "a", "delay": 4e9},
        {"subject": "a", "delay": 1, "run_at": "2030-01-01"},
        {"subject": "a", "delay": "soon"},
        {"subject": "a", "priority": 99999},
        {"subject": "a", "args": []},
        {"subject": "a", "tag": "x" * 201},
        {"subject": "a", "kind": None},
        {"subject": "a", "kind": "not a name"},
        {"subject": "a", "colour": "red"},
        {"subject": "a", "max_attempts": "many"},
    ],
)
def test_bad_subjects_are_refused_with_their_index_and_nothing_is_written(conn, subject):
    good = {"subject": "good"}
    with pytest.raises(psycopg.Error) as error:
        put(conn, "push_subjects(%s)", [good, {"queue": "crawl", "kind": "crawl", **subject}], {})
    assert error.value.sqlstate == "JQ001"
    assert show(conn, "good") is None


def test_the_same_subject_twice_in_a_call_is_refused(conn):
    with pytest.raises(psycopg.Error) as error:
        push(conn, "a", "a")
    assert error.value.sqlstate == "JQ001"


@pytest.mark.parametrize("text", ["it's", 'quo"te', "back\\slash", "%s", "ünï"])
def test_apostrophes_and_the_like_arrive_unchanged(conn, reader, text):
    """FetchQ pastes values into SQL text: an apostrophe in a payload makes its push return 0."""
    assert push(conn, text, args={"text": text}) == [("created", None)]
    batch, header = claim_one(reader)
    assert header["subject"] == text
    assert batch.jobs[0]["args"] == {"text": text}
    end(reader, batch, outcome="dead", reason="permanent", error={"type": "E", "message": text})
    rows = conn.execute("select error from forebay.trace(%s)", [text]).fetchall()
    assert (f"E: {text}",) in rows


# Upserts.


def test_an_upsert_says_for_each_row_what_became_of_it(conn, reader, clock):
    push(conn, "done", "running", "dead", "killed")
    for _ in range(4):
        batch, header = claim_one(reader)
        if header["subject"] == "running":
            running = batch
        elif header["subject"] == "dead":
            end(reader, batch, outcome="dead", reason="permanent")
        elif header["subject"] == "done":
            end(reader, batch, {"then": "complete"})
        else:
            end(reader, batch, {}, outcome="cancelled")
    push(conn, "same", "later", delay=100, args={"n": 1})
    names = ["new", "same", "later", "running", "done", "dead", "killed"]
    rows = [{"subject": n, "args": {"n": 2 if n == "later" else 1}} for n in names]
    assert upsert(conn, *rows) == [
        ("created", None),
        ("unchanged", None),
        ("updated", None),
        ("skipped", "running"),
        ("skipped", "completed"),
        ("skipped", "dead"),
        ("skipped", "killed"),
    ]
    assert show(conn, "later")["args"] == {"n": 2}
    assert what(conn, "running") == "running"
    end(reader, running, {"then": "complete"})
    assert upsert(conn, "done", "dead", "killed", "running", revive=True) == [("updated", None)] * 4
    assert counts(conn) == states(conn) == {"scheduled": 2, "ready": 5}


def the_counts_are_those_of_the_states(conn, reader, clock):
    with conn.transaction():
        push(conn, "later", "again", delay=10)
        push(conn, "now", "two")
        assert counts(conn) == states(conn) == {"scheduled": 2, "ready": 2}
    batch, _ = claim_one(reader)
    assert counts(conn) == states(conn) == {"scheduled": 2, "ready": 1, "running": 1}
    end(reader, batch, outcome="retried", after=3600)
    assert counts(conn) == states(conn) == {"scheduled": 2, "ready": 2}
    run(reader, again(after=100))
    assert counts(conn) == states(conn) == {"scheduled": 3, "ready": 1}
    clock.ahead(seconds=11)
    promote(conn)
    trim(conn, "subject_counts")
    assert counts(conn) == states(conn) == {"scheduled": 1, "ready": 3}
    batch, header = claim_one(reader)
    assert one(conn, "select forebay.kill_subject('crawl', %s)", header["subject"]) == "requested"
    end(reader, batch, again(after=1))
    clock.ahead(seconds=2)
    promote(conn)
    assert counts(conn) == states(conn)
    assert one(conn, "select sum(subjects) from forebay.subject_counts('other')") is None


def test_the_counts_are_those_of_the_states(conn, reader, clock):
    """
    In each state of a life: due later, its run waits, a worker has it, its run waits for a retry,
    and each end; also in the transaction that makes a subject, and after the counts were added up.
    """
    the_counts_are_those_of_the_states(conn, reader, clock)


@pytest.mark.parametrize(
    ("name", "guard", "without"),
    [
        ("_write_runs", ", forebay._count_subjects(q.queue, 's', 'i', q.runs)", ""),
        ("_end_subject", "nullif(v_state, 'g'), 'i', 1)", "nullif(v_state, 'g'), 'i', 0)"),
        ("_forget_carried", "nullif((p_look.ended).state, 'g'), 'i'", "'i', 'i'"),
    ],
)
def test_each_part_of_the_counts_is_needed(database, name, guard, without):
    break_function(database, name, (guard, without))
    with connect(database) as conn, Reader(database, "crawl") as reader, violation():
        the_counts_are_those_of_the_states(conn, reader, Clock(conn))


def test_an_upsert_replaces_a_run_that_waits(conn, reader):
    push(conn, "a", args={"n": 1})
    assert what(conn, "a") == "ready"
    assert upsert(conn, {"subject": "a", "args": {"n": 2}}) == [("updated", None)]
    promote(conn)
    batch, _ = claim_one(reader)
    assert batch.jobs[0]["args"] == {"n": 2}
    end(reader, batch, {"then": "complete"})
    assert claim_one(reader) == (None, None)
    assert counts(conn) == {"completed": 1}


def test_an_upsert_replaces_a_run_that_waits_for_its_retry(conn, reader, clock):
    push(conn, "a", args={"n": 1})
    batch, _ = claim_one(reader)
    end(reader, batch, outcome="retried", after=50, error={"type": "E", "message": "m"})
    assert (what(conn, "a"), show(conn, "a")["attempts"]) == ("ready", 1)
    upsert(conn, {"subject": "a", "args": {"n": 2}})
    promote(conn)
    batch, _ = claim_one(reader)
    assert (batch.jobs[0]["args"], batch.jobs[0]["attempt"]) == ({"n": 2}, 0)
    end(reader, batch, {"then": "complete"})
    clock.ahead(seconds=60)
    promote(conn)
    assert claim_one(reader) == (None, None)


@pytest.mark.parametrize(
    "delays", [[100, 10], [10, 100], [100, 10, 100], [10, 100, 10], [100, 50, 80, 20, 60]]
)
def test_an_upsert_moves_the_time_in_both_directions(conn, reader, clock, delays):
    """FetchQ leaves the status as it was: a planned row that is moved to the past waits for its
    maintenance.
    """
    for delay in delays:
        upsert(conn, "a", delay=delay)
    clock.ahead(seconds=delays[-1] - 1)
    promote(conn)
    assert claim_one(reader) == (None, None)
    clock.ahead(seconds=2)
    promote(conn)
    assert run(reader, {"then": "complete"})["subject"] == "a"
    clock.ahead(seconds=200)
    promote(conn)
    promote(conn)
    assert claim_one(reader) == (None, None)
    upsert(conn, "b", delay=100)
    upsert(conn, "b", delay=0)
    assert run(reader)["subject"] == "b"


def test_postponing_upserts_leave_no_wake_rows(conn, clock):
    """A subject that is postponed each second for an hour has one or two wake rows, not 3,600."""
    for n in range(60):
        upsert(conn, "a", delay=10, args={"n": n})
        clock.ahead(seconds=1)
        promote(conn)
    waiting = "select count(*) from forebay.deferred where job_id < 0 and run_at > forebay._now()"
    assert one(conn, waiting) <= 2
    assert what(conn, "a") == "scheduled"


def test_an_upsert_keeps_what_it_does_not_name(conn, reader):
    push(
        conn,
        {
            "subject": "a",
            "args": {"n": 1},
            "tag": "t",
            "limit_key": "host",
            "priority": 7,
            "delay": 60,
        },
    )
    rows = [{"subject": "a", "queue": "crawl", "tag": None, "correlation_id": "c"}]
    conn.execute("select * from forebay.upsert_subjects(%s)", [json.dumps(rows)])
    found = show(conn, "a")
    assert (found["args"], found["priority"], found["kind"]) == ({"n": 1}, 7, "crawl")
    assert found["options"] == {"limit_key": "host", "correlation_id": "c"}


# One run at a time.


def slow_claim(conn, reader):
    """Have a claim start the run of subject a that an upsert replaces at the same moment.

    Return its batch.
    """
    conn.execute("begin")
    upsert(conn, {"subject": "a", "args": {"n": 2}})
    batch, _ = claim_one(reader)  # Does not see the tombstone yet.
    conn.execute("commit")
    return batch


def test_a_run_that_started_beside_an_upsert_ends_before_the_next_begins(conn, reader, clock):
    push(conn, "a", args={"n": 1})
    batch = slow_claim(conn, reader)
    assert batch.jobs[0]["args"] == {"n": 1}
    for _ in range(5):
        clock.ahead(seconds=20)
        promote(conn)
        assert claim_one(reader) == (None, None), "two runs at a time"
    end(reader, batch, again(after=1000, data={"ran": 1}))
    clock.ahead(seconds=20)
    promote(conn)
    batch, header = claim_one(reader)
    assert batch.jobs[0]["args"] == {"n": 2}
    assert (header["state"], header["iterations"]) == ({"ran": 1}, 1)
    end(reader, batch, {"then": "complete"})
    assert counts(conn) == {"completed": 1}


def claim_beside_an_upsert(conn, reader, database):
    """A claim has taken the run of subject a and is not committed, while an upsert replaces it
    and the calendar looks.
    """
    clock = Clock(conn)
    push(conn, "a", args={"n": 1})
    with Reader(database, "crawl") as second:
        reader.conn.execute("begin")
        batch, _ = claim_one(reader)
        assert upsert(conn, {"subject": "a", "args": {"n": 2}}) == [("updated", None)]
        for _ in range(3):
            clock.ahead(seconds=20)
            promote(conn)
        reader.conn.execute("commit")
        clock.ahead(seconds=20)
        promote(conn)
        assert claim_one(second) == (None, None), "two runs at a time"
        assert end(reader, batch, again(after=1, data={"ran": 1})) == "settled"
        clock.ahead(seconds=20)
        promote(conn)
        _, header = claim_one(second)
        assert header["state"] == {"ran": 1}


def test_a_claim_that_is_not_committed_holds_the_next_run_back(conn, reader, database):
    claim_beside_an_upsert(conn, reader, database)


@pytest.mark.parametrize(
    ("name", "guard", "without"),
    [
        (
            "_is_fenced",
            "            if not forebay._try_lock_lane(v_group, v_lane) then",
            "            if false then",
        ),
        ("_run_state", "        return 'withdrawn';", "        return 'ended';"),
    ],
)
def test_without_the_fence_two_runs_would_meet(database, name, guard, without):
    break_function(database, name, (guard, without))
    with connect(database) as conn, Reader(database, "crawl") as reader, violation():
        claim_beside_an_upsert(conn, reader, database)


# No revival.


def test_a_late_run_revives_no_killed_subject(conn, reader, clock):
    push(conn, "a")
    batch, _ = claim_one(reader)
    assert one(conn, "select forebay.kill_subject('crawl', 'a', 'enough')") == "requested"
    assert end(reader, batch, again(after=1)) == "settled"
    clock.ahead(seconds=10)
    promote(conn)
    assert claim_one(reader) == (None, None)
    found = show(conn, "a")
    assert (found["state"], found["reason"]) == ("killed", "enough")
    assert counts(conn) == {"killed": 1}
    assert one(conn, "select forebay.revive_subject('crawl', 'a')") == "revived"
    promote(conn)
    assert run(reader, {"then": "complete"})["subject"] == "a"
    assert counts(conn) == {"completed": 1}


def test_a_late_run_revives_no_dropped_subject(conn, reader, clock):
    push(conn, "a")
    batch, _ = claim_one(reader)
    assert one(conn, "select forebay.drop_subject('crawl', 'a')") == "requested"
    assert show(conn, "a") is None
    assert counts(conn) == {}
    assert push(conn, {"subject": "a", "args": {"life": 2}}) == [("created", None)]
    clock.ahead(seconds=5)
    promote(conn)
    assert claim_one(reader) == (None, None), "the first life still runs"
    end(reader, batch, again(after=1, data={"life": 1}))
    clock.ahead(seconds=20)
    promote(conn)
    batch, _ = claim_one(reader)
    assert batch.jobs[0]["args"] == {"life": 2}
    end(reader, batch, {"then": "drop"})
    promote(conn)
    assert show(conn, "a") is None
    assert one(conn, "select count(*) from forebay.subject") == 0
    assert counts(conn) == {}


def test_a_forged_header_changes_no_subject(conn, reader, clock):
    push(conn, "a", delay=100)
    push(conn, "b")
    _, header = claim_one(reader)
    for value in [json.dumps(header), '{"id": 1, "no": 1, "x": 0}', "nonsense", "{}"]:
        conn.execute(
            "select forebay.enqueue('crawl', queue => 'crawl', headers => %s)",
            [json.dumps({"forebay-subject": value})],
        )
        batch = reader.claim_ready(1)
        assert end(reader, batch, again(after=0)) == "settled"
    assert (what(conn, "a"), what(conn, "b")) == ("scheduled", "running")
    rows = "select count(*) from forebay.subject_state where part = 1"
    assert one(conn, rows) == 0


def test_without_the_look_at_the_job_a_forged_header_would(database):
    break_function(
        database,
        "_end_subject",
        ("      and s.job_id = coalesce(p_row.job_id, p_row.seq);", "      and true;"),
    )
    with connect(database) as conn, Reader(database, "crawl") as reader, violation():
        push(conn, "b")
        _, header = claim_one(reader)
        conn.execute(
            "select forebay.enqueue('crawl', queue => 'crawl', headers => %s)",
            [json.dumps({"forebay-subject": json.dumps(header)})],
        )
        end(reader, reader.claim_ready(1), {"then": "complete"})
        assert what(conn, "b") == "running", "forged"


# Nothing forgotten.


def test_a_subject_that_a_transaction_holds_is_issued_after_it(conn, reader, clock, database):
    push(conn, "a", "b", delay=10)
    with connect(database) as other:
        other.autocommit = False
        upsert(other, {"subject": "a", "args": {"n": 2}})
        clock.ahead(seconds=11)
        promote(conn)
        assert run(reader, {"then": "complete"})["subject"] == "b", "only the held one waits"
        assert claim_one(reader) == (None, None)
        other.commit()
    clock.ahead(seconds=2)
    promote(conn)
    batch, _ = claim_one(reader)
    assert batch.jobs[0]["args"] == {"n": 2}


def test_without_another_wake_row_a_held_subject_would_be_forgotten(database):
    break_function(database, "_wake_due_subjects", ("if v_busy <> '{}' then", "if false then"))
    with connect(database) as conn, Reader(database, "crawl") as reader, violation():
        clock = Clock(conn)
        push(conn, "a", delay=10)
        with connect(database) as other:
            other.autocommit = False
            upsert(other, {"subject": "a", "args": {"n": 2}})
            clock.ahead(seconds=11)
            promote(conn)
            other.commit()
        clock.ahead(seconds=20)
        promote(conn)
        batch, _ = claim_one(reader)
        assert batch is not None, "forgotten"


def test_a_push_that_commits_after_its_time_is_issued(conn, reader, clock, database):
    with connect(database) as other:
        other.autocommit = False
        push(other, "late", delay=5)
        push(conn, "other", delay=6)
        clock.ahead(seconds=10)
        promote(conn)
        assert run(reader)["subject"] == "other"
        other.commit()
    promote(conn)
    assert run(reader)["subject"] == "late"


def test_a_worker_that_dies_loses_no_subject(conn, reader, clock):
    push(conn, "a")
    _, first = claim_one(reader)
    reader.revoked_by(conn)
    reader.open_lease()
    batch, header = claim_one(reader)
    assert header == first
    assert end(reader, batch, again(after=1)) == "settled"
    clock.ahead(seconds=2)
    promote(conn)
    assert run(reader)["iterations"] == 1


def test_a_dead_run_leaves_the_subject_dead_and_a_redrive_brings_it_back(conn, reader, clock):
    push(conn, "a")
    batch, _ = claim_one(reader)
    end(reader, batch, outcome="dead", reason="exhausted", error={"type": "E", "message": "m"})
    assert (what(conn, "a"), counts(conn)) == ("dead", {"dead": 1})
    dead_id = one(conn, "select dead_id from forebay.dead_letter")
    conn.execute("select forebay.redrive(%s)", [dead_id])
    assert what(conn, "a") == "ready"
    batch, _ = claim_one(reader)
    assert what(conn, "a") == "running"
    assert end(reader, batch, again(after=1)) == "settled"
    assert (what(conn, "a"), counts(conn)) == ("scheduled", {"scheduled": 1})
    clock.ahead(seconds=2)
    promote(conn)
    assert run(reader)["subject"] == "a"


def test_a_dead_letter_of_a_revived_subject_is_not_redriven(conn, reader):
    push(conn, "a")
    batch, _ = claim_one(reader)
    end(reader, batch, outcome="dead", reason="permanent")
    conn.execute("select forebay.revive_subject('crawl', 'a')")
    dead_id = one(conn, "select dead_id from forebay.dead_letter")
    assert sqlstate(conn, "select forebay.redrive(%s)", dead_id) == "JQ016"


def test_a_cancelled_run_leaves_the_subject_killed_until_it_is_revived(conn, reader):
    push(conn, "a")
    job_id = show(conn, "a")["job_id"]
    conn.execute("select forebay.cancel(%s)", [job_id])
    assert claim_one(reader) == (None, None)
    assert what(conn, "a") == "killed"
    assert upsert(conn, "a") == [("skipped", "killed")]
    assert one(conn, "select forebay.revive_subject('crawl', 'a')") == "revived"
    promote(conn)
    assert run(reader)["subject"] == "a"


def test_a_subject_expires_only_if_told(conn, reader, clock):
    push(conn, "forever", delay=10)
    push(
        conn, "short", delay=10, expires_at=(datetime.now(UTC) + timedelta(seconds=15)).isoformat()
    )
    clock.ahead(days=900)
    promote(conn)
    assert run(reader)["subject"] == "forever"
    assert claim_one(reader) == (None, None)
    found = show(conn, "short")
    assert (found["state"], found["reason"]) == ("killed", "expired")
    # The run ended as an ordinary job: it said nothing of its subject.
    assert counts(conn) == {"ready": 1, "killed": 1}


def test_every_keeps_the_grid_and_passes_over_what_was_missed(conn, reader, clock):
    push(conn, "a", delay=10)
    due = show(conn, "a")["due_at"]
    clock.ahead(seconds=75)
    promote(conn)
    run(reader, again(every=30))
    assert show(conn, "a")["due_at"] == due + timedelta(seconds=90)


@pytest.mark.parametrize(
    ("when", "seconds"),
    [({"after": 3}, 3), ({"interval": "1 day 2 hours"}, 93600), ({"interval": "1 week"}, 604800)],
)
def test_a_run_may_say_when_it_is_due_again(conn, reader, when, seconds):
    push(conn, "a")
    run(reader, again(**when))
    left = show(conn, "a")["due_at"] - one(conn, "select forebay._now()")
    assert abs(left.total_seconds() - seconds) < 30


def test_versions_have_kinds_of_their_own(conn, reader):
    push(conn, {"subject": "a"}, {"subject": "b", "version": 2})
    kinds = {job["kind"] for job in reader.claim_ready(10).jobs}
    assert kinds == {"crawl", "crawl.v2"}


def test_subjects_pass_their_options_to_their_runs(conn, reader):
    push(
        conn,
        {"subject": "a", "tag": "t", "correlation_id": "c", "max_attempts": 3, "limit_key": "host",
         "ordering_key": "o", "headers": {"h": "1"}, "priority": 50},
    )  # fmt: skip
    job = reader.claim_ready(1).jobs[0]
    assert (job["tag"], job["correlation_id"], job["max_attempts"]) == ("t", "c", 3)
    assert (job["ordering_key"], job["headers"]["h"]) == ("o", "1")


def test_an_upgrade_rewrites_subjects_under_their_locks(conn, reader, clock, database):
    push(conn, "a", "b", "c", delay=50, args={"n": 1})
    push(conn, "run", args={"n": 1})
    claim_one(reader)
    with connect(database) as other:
        other.autocommit = False
        upsert(other, {"subject": "c", "args": {"n": 5}})
        rows = conn.execute(
            "select subject_id, subject, args, is_running, passed from "
            "forebay.lock_subjects_for_upgrade('crawl', 'crawl', 0)"
        ).fetchall()
        assert {r[1]: r[3] for r in rows} == {"a": False, "b": False, "c": True, "run": True}
        for subject_id, _, args, is_running, _ in rows:
            if not is_running:
                conn.execute(
                    "select forebay.upgrade_subject(%s, 0, 1, %s, null)",
                    [subject_id, json.dumps({**args, "v": 1})],
                )
        other.rollback()
    found = show(conn, "a")
    assert (found["version"], found["args"], found["state"]) == (1, {"n": 1, "v": 1}, "scheduled")
    clock.ahead(seconds=60)
    promote(conn)
    kinds = sorted(job["kind"] for job in reader.claim_ready(10).jobs)
    assert kinds == ["crawl", "crawl.v1", "crawl.v1"]


# Lists, trimming, operators.


def test_lists_history_and_trace(conn, reader, clock):
    push(conn, "a", "b", "c", delay=5)
    clock.ahead(seconds=6)
    promote(conn)
    for _ in range(3):
        run(reader, again(after=100))
    names = [r[0] for r in conn.execute("select subject from forebay.subjects('crawl', most => 2)")]
    assert names == ["a", "b"]
    names = [
        r[0]
        for r in conn.execute("select subject from forebay.subjects('crawl', 'scheduled', 'b')")
    ]
    assert names == ["c"]
    history = [r[0] for r in conn.execute("select what from forebay.subject_history('crawl', 'a')")]
    assert history == ["again", "issued", "scheduled"]
    assert sqlstate(conn, "select * from forebay.subject_history('crawl', 'nope')") == "JQ065"
    assert sqlstate(conn, "select forebay.drop_subject('crawl', 'nope')") == "JQ065"
    push(conn, {"subject": "a", "queue": "other"})
    queues = {r[0] for r in conn.execute("select queue from forebay.trace('a')")}
    assert queues == {"crawl", "other"}


def test_trimming_keeps_the_newest_row_and_goes_through_each_row_once(conn, reader, clock):
    push(conn, "still", delay=10**7)
    push(conn, "a", delay=1)
    for _ in range(10):
        clock.ahead(seconds=2)
        promote(conn)
        run(reader, again(after=1))
    push(conn, "gone")
    conn.execute("select forebay.drop_subject('crawl', 'gone')")
    promote(conn)
    assert claim_one(reader) == (None, None)
    trim(conn, "subject_states")
    assert one(conn, "select count(*) from forebay.subject_state") > 20, "a day is kept"
    clock.ahead(days=2)
    trim(conn, "subject_states", 7)
    assert [
        r[0]
        for r in conn.execute("select state::text from forebay.subject_state order by subject_id")
    ] == ["s", "s"]
    assert trim(conn, "subject_states") == 0
    trim(conn, "subject_counts")
    assert one(conn, "select count(*) from forebay.subject_count") == 1
    assert counts(conn) == {"scheduled": 2}
    promote(conn)
    assert run(reader)["subject"] == "a"


def test_subjects_of_a_queue_are_dropped_in_steps(conn):
    push(conn, *[f"s{n:03}" for n in range(25)], delay=100)
    after, total = "", 0
    while after is not None:
        dropped, after = conn.execute(
            "select dropped, next from forebay.drop_subjects('crawl', %s, 10)", [after]
        ).fetchone()
        total += dropped
    assert total == 25
    assert one(conn, "select count(*) from forebay.subject") == 0
    assert counts(conn) == {}


def test_where_finds_the_runs_of_a_subject(conn, reader, clock):
    push(conn, "example.org")
    first = show(conn, "example.org")["job_id"]
    run(reader, again(after=1))
    clock.ahead(seconds=2)
    promote(conn)
    second = show(conn, "example.org")["job_id"]
    found = conn.execute("select job_id, found_as from forebay.where_is('example.org')").fetchall()
    assert found == [(second, "subject"), (first, "subject")]


def test_a_trace_follows_a_correlation_id_over_queues(conn, reader):
    push(conn, {"subject": "a", "correlation_id": "request 7"})
    conn.execute("select forebay.enqueue('mail', queue => 'mail', correlation_id => 'request 7')")
    batch, _ = claim_one(reader)
    end(reader, batch, outcome="dead", reason="permanent", error={"type": "E", "message": "m"})
    rows = conn.execute("select queue, what, error from forebay.trace('request 7')").fetchall()
    assert {
        ("crawl", "enqueued", None),
        ("mail", "enqueued", None),
        ("crawl", "dead", "E: m"),
    } == set(rows)


def test_a_subject_takes_the_options_of_its_runs_as_enqueue_does(conn):
    """
    By name, beside ``options`` with the same as JSON; the parameter wins.
    """
    conn.execute(
        "select forebay.push_subject('crawl', 's', limit_key => 'h1', tag => 't',"
        ' options => \'{"limit_key": "h0", "correlation_id": "c"}\')'
    )
    conn.execute("select forebay.upsert_subject('crawl', 's', ordering_key => 'o')")
    options = one(conn, "select options from forebay.subject_state order by no desc limit 1")
    assert options == {"limit_key": "h1", "tag": "t", "correlation_id": "c", "ordering_key": "o"}


#: Parts of a subject, each taken or left out; several are refused.
_PARTS = {
    "kind": ["crawl", "crawl", "mail", "keyed", "bad kind", "k" * 121],
    "args": [{"site": "a"}, {"site": "ü", "n": [1]}, {"long": "x" * 600}, [], None],
    "delay": [0, 300, 3600, -1, 4e9],
    "run_at": ["2000-01-01T00:00:00Z", "2090-01-01T00:00:00Z", "infinity", "2500-01-01T00:00:00Z"],
    "priority": [5, 100, 70000],
    "version": [0, 2, 10_000],
    "expires_at": ["2085-01-01T00:00:00Z", "2001-01-01T00:00:00Z"],
    "tag": ["t", ""],
    "headers": [{"a": "b"}, {"a": 1}],
    "max_attempts": [3, 0],
    "limit_key": ["l"],
    "ordering_key": ["o"],
    "nonsense": [1],
}


def drawn(draw, *, is_valid):
    """Return some subjects with different names; one in a hundred parts is a bad one."""
    names = draw.sample([f"s{n}" for n in range(14)], draw.randint(1, 9))
    valid = {
        "kind": 4, "args": 3, "delay": 3, "run_at": 2, "priority": 2, "version": 2, "expires_at": 1,
        "tag": 1, "headers": 1, "max_attempts": 1, "nonsense": 0,
    }  # fmt: skip
    found = []
    for name in names:
        one_of = {"subject": name, "kind": "crawl"}
        for part, values in _PARTS.items():
            if part in ("kind", "args") or draw.random() < 0.2:
                few = values[: valid.get(part, 1)] if is_valid else values
                one_of[part] = draw.choice(few or [None])
        if "delay" in one_of and is_valid:
            one_of.pop("run_at", None)
        if draw.random() < 0.1:
            one_of.pop("kind")
        found.append({name: value for name, value in one_of.items() if value is not None})
    return found


def written(conn, queue):
    """Return all rows that subjects of a queue have made, without their numbers; of times, whether
    they are past, soon or late when the row is written.
    """
    queries = (
        (
            "select s.subject, t.no, t.part, t.state,"
            " t.due_at > t.at, t.due_at > t.at + interval '1800 s', t.wake_at is not null, t.kind,"
            " t.version, t.priority, t.args, t.data,"
            " t.options, t.iterations, t.run_no, t.lane is not null, t.job_id is not null, t.reason"
            " from forebay.subject s join forebay.subject_state t using (subject_id)"
            " where s.queue = %(queue)s order by 1, 2, 3"
        ),
        (
            "select l.priority, l.sort, j.kind, j.args, j.tag, j.max_attempts, j.limit_key,"
            " j.ordering_key, case when j.expires_at < '2090-01-01' then j.expires_at end,"
            " j.headers - 'forebay-subject',"
            " ((j.headers ->> 'forebay-subject')::jsonb - '{id,due_at,last_at}'::text[])"
            " from forebay.log j join (select distinct lane, queue, priority, sort, audience"
            " from forebay.lane) l using (lane)"
            " where l.queue = %(queue)s and j.kind <> '' order by j.seq"
        ),
        (
            "select s.subject, d.run_at > d.enqueued_at,"
            " d.run_at > d.enqueued_at + interval '1800 s' from forebay.deferred d"
            " join forebay.subject s on s.subject_id = -d.job_id"
            " where s.queue = %(queue)s order by 1, 2"
        ),
        ("select state, subjects from forebay.subject_counts(%(queue)s) order by 1"),
        (
            "select count(*), reason from forebay.tombstone t where t.job_id in"
            " (select s.job_id from forebay.subject_state s join forebay.subject n"
            "  using (subject_id) where n.queue = %(queue)s) group by 2 order by 2"
        ),
    )
    return [conn.execute(query, {"queue": queue}).fetchall() for query in queries]


def refused(conn, query, *subjects):
    """Return the message with which a call is refused, or None. Nothing of it stays."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(query, [json.dumps(subjects)])
    except psycopg.Error as error:
        if error.sqlstate not in ("JQ001", "JQ002", "JQ003"):
            raise
        return re.sub("start 20.*", "start", str(error).splitlines()[0])  # without the time
    return None


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 12))]
)
def test_a_bulk_call_does_what_single_calls_do(conn, database, seed):
    """Rows, runs, wake rows, counts and answers are the same; and a subject that a single call
    refuses is refused in bulk by the same words, with its index, and nothing is written.

    Over subjects in every state: new, scheduled, with a run that waits or runs, killed, dropped.
    """
    draw = random.Random(seed)
    if seed % 2:
        keys = {"keyed": {"limit_by": ["site"]}}
        record = "select * from forebay.record_kinds_v1('w', '{keyed}', '{default}', '{}', %s)"
        conn.execute(record, [json.dumps(keys)])
    with Reader(database, "bulk") as bulk, Reader(database, "single") as single:
        for _ in range(12):
            how = draw.choice(["push_subjects(%s)", *["upsert_subjects(%s)"] * 2])
            how = how.replace(")", ", true)") if "upsert" in how and draw.random() < 0.3 else how
            query = f"select result, reason from forebay.{how}"
            items = drawn(draw, is_valid=draw.random() < 0.8)
            many = [{**item, "queue": "bulk"} for item in items]
            alone = [{**item, "queue": "single"} for item in items]
            problem = refused(conn, query, *many)
            problems = [refused(conn, query, item) for item in alone]
            if problem is None:
                assert set(problems) <= {None}
                found = conn.execute(query, [json.dumps(many)]).fetchall()
                with conn.transaction():
                    each = [conn.execute(query, [json.dumps([item])]).fetchone() for item in alone]
                assert found == each
            else:
                said = [
                    text and text.replace(" 0: ", f" {n}: ", 1) for n, text in enumerate(problems)
                ]
                assert problem in said
            act, name = draw.choice(["claim", "kill", "drop", "none"]), f"s{draw.randrange(14)}"
            for reader, queue in ((bulk, "bulk"), (single, "single")):
                if act == "claim":
                    reader.claim_all()
                elif act != "none":
                    sqlstate(conn, f"select forebay.{act}_subject(%s, %s)", queue, name)
            assert written(conn, "bulk") == written(conn, "single"), (how, items)


def test_without_the_look_at_options_a_bulk_call_would_take_what_a_single_one_refuses(
    database, conn
):
    """The control: the expression that valid subjects pass has to see each part."""
    break_function(database, "_odd_subjects", ("r.options = '{}'", "true"))
    query = "select result, reason from forebay.push_subjects(%s)"
    with pytest.raises(AssertionError):
        assert refused(conn, query, {"subject": "a", "kind": "crawl", "tag": ""})

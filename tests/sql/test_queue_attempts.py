"""The maximum attempts of a queue: a settlement decides by it, whatever the worker took for the
maximum.
"""

import json

import pytest

from tests.support.engine import Reader, connect, enqueue, one, sqlstate, state
from tests.support.mutant import break_function, violation
from tests.support.plans import pages

ERROR = {"type": "ValueError", "message": "no", "traceback": "", "max_attempts": 20}


def most(conn, attempts: int | None, queue: str = "default") -> int | None:
    """Set the maximum of a queue; return the one before."""
    return one(conn, "select forebay.set_max_attempts(%s, %s)", queue, attempts)


def fail(reader: Reader, outcome: str = "retried", **more) -> int:
    """Claim one job and settle it as failed; return its id."""
    batch = reader.claim_ready(1)
    ended = [{"offset": 1, "outcome": outcome, "error": ERROR, **more}]
    assert reader.settle(batch.claim_no, ended=ended) == "settled"
    return batch.job_ids[0]


def lowered(database: str) -> None:
    """With two attempts the second failure is the last, although the worker would retry."""
    with connect(database) as conn, Reader(database) as reader:
        job_id = enqueue(conn)
        assert fail(reader) == job_id
        assert most(conn, 2) is None
        assert fail(reader) == job_id
        assert state(conn, job_id) == "dead"
        letter = "select reason, attempt, errors -> -1 ->> 'max_attempts' from forebay.dead_letter"
        assert conn.execute(letter).fetchall() == [("exhausted", 2, "2")]


def raised(database: str) -> None:
    """With five attempts a job is retried that the worker would give up."""
    with connect(database) as conn, Reader(database) as reader:
        job_id = enqueue(conn)
        assert most(conn, 5) is None
        assert fail(reader, "dead", reason="exhausted") == job_id
        assert state(conn, job_id) == "retrying"
        assert one(conn, "select run_at > now() from forebay.job(%s)", job_id)
        assert one(conn, "select max_attempts from forebay.job(%s)", job_id) == 5
        assert one(conn, "select count(*) from forebay.dead_letter") == 0


@pytest.mark.parametrize("promise", [lowered, raised])
def test_a_settlement_goes_by_the_queue(database, promise):
    """From the commit on, for jobs that ran before it too."""
    promise(database)


@pytest.mark.parametrize("promise", [lowered, raised])
def test_without_the_look_at_the_queue_the_worker_decides(database, promise):
    """The settlement is the place that holds for every worker at once."""
    name = (
        "forebay._with_queue_attempts(v_batch.lane, v_batch.lanes, v_batch.xids, v_batch.seqs, "
        "v_ended)"
    )
    break_function(database, "settle_v1", (name, "v_ended"))
    with violation():
        promise(database)


def own_maximum(database: str) -> None:
    """The job's own maximum comes first, in both directions."""
    with connect(database) as conn, Reader(database) as reader:
        job_id = enqueue(conn, max_attempts=3)
        most(conn, 1)
        assert fail(reader) == job_id
        assert state(conn, job_id) == "ready"
        most(conn, 9)
        assert fail(reader, "dead", reason="exhausted") == job_id
        assert state(conn, job_id) == "dead"


def test_the_jobs_own_maximum_comes_first(database):
    """Then that of the queue, then that of the kind."""
    own_maximum(database)


def test_without_a_look_at_the_job_the_queue_would_decide(database):
    """The row of the job tells whether it has its own maximum."""
    guard = "v_row.seq is not null and v_row.max_attempts is null"
    break_function(database, "_with_queue_attempts", (guard, "v_row.seq is not null"))
    with violation():
        own_maximum(database)


@pytest.mark.parametrize(
    ("outcome", "more", "expected"),
    [
        ("dead", {"reason": "permanent"}, "dead"),
        ("snoozed", {"after": 60}, "scheduled"),
        ("released", {}, "ready"),
        ("cancelled", {}, "cancelled"),
    ],
)
@pytest.mark.parametrize("attempts", [1, 50])
def test_other_ends_are_not_concerned(database, conn, outcome, more, expected, attempts):
    """A permanent error stays permanent, and what uses no attempt is none."""
    with Reader(database) as reader:
        job_id = enqueue(conn)
        most(conn, attempts)
        assert fail(reader, outcome, **more) == job_id
        assert state(conn, job_id) == expected


@pytest.mark.parametrize(("attempts", "expected"), [(1, "dead"), (2, "retrying")])
def test_a_suspect_dies_by_the_maximum_of_its_queue(database, conn, attempts, expected):
    """A worker that dies with a job alone has used an attempt.

    The revocation counts by the queue.
    """
    most(conn, attempts)
    with Reader(database) as reader, Reader(database) as second:
        job_id = enqueue(conn)
        reader.claim()
        assert reader.revoked_by(conn) == 1
        batch = second.claim_ready(1)
        conn.execute("select forebay.start_suspect_v1(%s, %s)", [second.lease_id, batch.claim_no])
        assert second.revoked_by(conn) == 1
        assert state(conn, job_id) == expected


def test_the_next_job_of_a_key_runs_after_the_last_attempt(database, conn):
    """The key is released, or held, as by any dead letter."""
    most(conn, 1)
    with Reader(database) as reader:
        first, second = (enqueue(conn, ordering_key="k") for _ in range(2))
        assert fail(reader) == first
        assert state(conn, first) == "dead"
        assert reader.claim_ready(1).job_ids == [second]


def test_the_number_is_set_shown_and_removed(conn):
    """Each change is an event; a heartbeat tells the workers."""
    beat = "select queue_attempts from forebay.heartbeat_v1('{}')"
    assert one(conn, beat) is None
    assert [most(conn, 3), most(conn, 7), most(conn, 7)] == [None, 3, 7]
    assert one(conn, beat) == {"default": 7}
    assert [most(conn, None), most(conn, None)] == [7, None]
    assert one(conn, beat) is None
    query = "select old, new from forebay.event where act = 'queues.max_attempts' order by event_id"
    assert conn.execute(query).fetchall() == [(None, 3), (3, 7), (7, None)]


@pytest.mark.parametrize(
    ("queue", "attempts"),
    [("default", 0), ("default", 10_001), ("no name", 3), (None, 3), ("forebay.deliver", 3)],
)
def test_bad_names_and_numbers_are_refused(conn, queue, attempts):
    """Deliveries to endpoints have the maximum of their endpoint."""
    assert sqlstate(conn, "select forebay.set_max_attempts(%s, %s)", queue, attempts) == "JQ001"


def test_the_look_at_the_queue_costs_a_settlement_few_pages(database, conn):
    """One row by its key, and only where a queue ever had a maximum."""
    with Reader(database) as reader:
        counts = []
        for attempts in (None, None, 5):
            most(conn, attempts)
            for _ in range(3):
                enqueue(conn)
                batch = reader.claim_ready(1)
                ended = [{"offset": 1, "outcome": "cancelled"}]
                flush = {"claim_no": batch.claim_no, "flush_no": 1, "done": [], "ended": ended}
                counts.append(
                    pages(
                        reader.conn,
                        "select forebay.settle_v1(%s, %s::jsonb)",
                        [reader.lease_id, json.dumps([flush])],
                    )
                )
        assert min(counts[6:]) - min(counts[:6]) <= 8

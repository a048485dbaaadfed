"""The states that users see, and the numbers of attempts, through the life of a job."""

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    shift_clock,
    state,
    trim,
)
from tests.support.mutant import break_function

ERROR = {"type": "T", "message": "no", "traceback": "", "max_attempts": 20}


def seen(conn: psycopg.Connection, job_id: int) -> tuple[str, int, int | None]:
    """Return state, attempt and attempts in all of a job, after checking that the list says the
    same.
    """
    (row,) = conn.execute(
        "select state, attempt, max_attempts from forebay.job(%s)", [job_id]
    ).fetchall()
    listed = conn.execute(
        "select state, attempt, max_attempts from forebay.jobs() where job_id = %s", [job_id]
    ).fetchall()
    assert listed == [row]
    filtered = one(
        conn,
        "select count(*) from forebay.jobs(only_state => %s) where job_id = %s",
        row[0],
        job_id,
    )
    assert filtered == 1
    return row


def counts(conn: psycopg.Connection) -> dict[str, int]:
    """Return what depth() counts, without what is 0."""
    (row,) = conn.execute(
        "select sum(scheduled)::int, sum(ready)::int, sum(claimed)::int, "
        "sum(running)::int, sum(retrying)::int"
        " from forebay.depth()"
    ).fetchall()
    names = ("scheduled", "ready", "claimed", "running", "retrying")
    return {name: count for name, count in zip(names, row, strict=True) if count}


def beat(reader: Reader, *job_ids: int) -> None:
    """Send a heartbeat that reports these jobs as running."""
    reader.conn.execute(
        "select forebay.heartbeat_v1(array[%s::bigint], %s::bigint[])",
        [reader.lease_id, list(job_ids)],
    )


def end(reader: Reader, outcome: str, after: float | None = None, **more: object) -> None:
    """Settle the only job of the newest claim."""
    ended = {"offset": 1, "outcome": outcome, "after": after, **more}
    assert reader.settle(reader.claim_no, ended=[ended]) == "settled"


def come_due(conn: psycopg.Connection, hours: int) -> None:
    """Let what waits for less than this many hours be ready."""
    shift_clock(conn, hours * 3600)
    one(conn, "select forebay.promote_v1(100)")


def test_a_job_is_claimed_until_a_heartbeat_reports_that_its_handler_runs(database):
    """Claimed is not running: what a worker has in stock is told apart from what it works on."""
    with connect(database) as conn, Reader(database) as reader:
        ids = [enqueue(conn) for _ in range(4)]
        batch = reader.claim(3)
        assert [seen(conn, i)[0] for i in ids] == ["claimed"] * 3 + ["ready"]
        assert counts(conn) == {"claimed": 3, "ready": 1}
        beat(reader, ids[1])
        assert [seen(conn, i)[0] for i in ids] == ["claimed", "running", "claimed", "ready"]
        assert counts(conn) == {"claimed": 2, "running": 1, "ready": 1}
        assert reader.settle(batch.claim_no, [2]) == "settled"
        assert seen(conn, ids[1]) == ("done", 1, None)
        assert counts(conn) == {"claimed": 2, "ready": 1}
        beat(reader, ids[0], ids[2])
        assert counts(conn) == {"running": 2, "ready": 1}
        beat(reader)
        assert counts(conn) == {"claimed": 2, "ready": 1}


def test_a_heartbeat_from_before_the_claim_says_nothing_about_it(database):
    """A job that ran, failed, and was claimed again by the same worker is not running yet."""
    with connect(database) as conn, Reader(database) as reader:
        job = enqueue(conn)
        reader.claim()
        beat(reader, job)
        assert seen(conn, job)[0] == "running"
        end(reader, "retried", error=ERROR)
        assert seen(conn, job) == ("ready", 2, 20)
        reader.claim_ready()
        assert seen(conn, job) == ("claimed", 2, 20)
        assert counts(conn) == {"claimed": 1}
        beat(reader, job)
        assert seen(conn, job) == ("running", 2, 20)
        assert counts(conn) == {"running": 1}


def test_keyed_and_delayed_jobs_are_counted_as_running_too(database):
    """The number of a job's row is not its id, once it was delayed or retried, and its lane may
    be another one.
    """
    with connect(database) as conn, Reader(database) as reader:
        keyed = enqueue(conn, ordering_key="k")
        delayed = enqueue(conn, delay="1 hour")
        assert seen(conn, delayed) == ("scheduled", 1, None)
        come_due(conn, 2)
        reader.claim_all()
        assert counts(conn) == {"claimed": 2}
        beat(reader, keyed, delayed)
        assert [seen(conn, i)[0] for i in (keyed, delayed)] == ["running"] * 2
        assert counts(conn) == {"running": 2}


def test_retrying_is_told_from_scheduled_by_what_the_last_attempt_did(database):
    """A failure does not hide behind scheduled, and a snooze after it is no failure."""
    with connect(database) as conn, Reader(database) as reader:
        job = enqueue(conn, delay="1 hour")
        assert (seen(conn, job), counts(conn)) == (("scheduled", 1, None), {"scheduled": 1})
        hours = 2
        for outcome, expected in (
            ("snoozed", ("scheduled", 1, None)),
            ("retried", ("retrying", 2, 20)),
            ("snoozed", ("scheduled", 2, 20)),
            ("unknown", ("scheduled", 2, 20)),
            ("retried", ("retrying", 3, 20)),
            ("lost", ("retrying", 4, 20)),
        ):
            come_due(conn, hours)
            assert reader.claim_ready().job_ids == [job]
            error = {"error": ERROR} if outcome in ("retried", "lost") else {}
            end(reader, outcome, 3600, **error)
            assert seen(conn, job) == expected
            assert counts(conn) == {expected[0]: 1}
            state = conn.execute("select state, attempt from forebay.unfinished('work')").fetchone()
            assert state == expected[:2]
            hours += 2


def test_a_suspect_that_killed_its_worker_is_retrying(database):
    """Its death has used an attempt, also if it had been snoozed before."""
    with connect(database) as conn, Reader(database) as reader:
        job = enqueue(conn)
        reader.claim()
        end(reader, "snoozed")
        reader.claim_ready()
        assert reader.revoked_by(conn) == 1
        reader.open_lease()
        assert seen(conn, job) == ("ready", 1, None)
        alone = reader.claim_ready()
        conn.execute("select forebay.start_suspect_v1(%s, %s)", [reader.lease_id, alone.claim_no])
        assert reader.revoked_by(conn) == 1
        assert seen(conn, job) == ("retrying", 2, 20)


def test_the_attempt_is_the_one_that_runs_or_runs_next_and_at_the_end_the_last_that_ran(database):
    """It is 1 from the enqueue to the end of the first run.

    Its failures and its dead letter count alike.
    """
    with connect(database) as conn, Reader(database) as reader:
        job = enqueue(conn)
        assert seen(conn, job) == ("ready", 1, None)
        reader.claim()
        assert seen(conn, job) == ("claimed", 1, None)
        end(reader, "released")
        assert seen(conn, job) == ("ready", 1, None)
        reader.claim_ready()
        end(reader, "retried", 3600, error=ERROR)
        assert seen(conn, job) == ("retrying", 2, 20)
        come_due(conn, 2)
        assert seen(conn, job) == ("ready", 2, 20)
        reader.claim_ready()
        end(reader, "dead", reason="permanent", error=ERROR)
        assert seen(conn, job) == ("dead", 2, 20)
        letter = conn.execute(
            "select attempt, jsonb_path_query_array(errors, '$[*].attempt'),"
            " jsonb_path_query_array(errors, '$[*].max_attempts') from forebay.dead_letter"
        ).fetchone()
        assert letter == (2, [1, 2], [20, 20])
        history = one(conn, "select errors from forebay.job_history(%s)", job)
        assert [(e["attempt"], e["max_attempts"]) for e in history] == [(1, 20), (2, 20)]


def test_a_cancellation_is_answered_by_the_state_of_the_job(database):
    """Per state and group; a job that has ended, or is not there, gets no request."""
    cancel = "select forebay.cancel(%s, %s)"
    requests = "select count(*) from forebay.tombstone where job_id = %s and reason = 'c'"
    with connect(database) as conn, Reader(database) as reader:
        ends = {}
        for outcome in ("dead", "released"):
            ends[outcome] = enqueue(conn)
            reader.claim_ready()
            assert one(conn, cancel, ends[outcome], "default") == "requested"
            more = {"reason": "permanent", "error": ERROR} if outcome == "dead" else {}
            end(reader, outcome, **more)
        assert state(conn, ends["dead"]) == "dead"
        assert one(conn, cancel, ends["dead"], None) == "already ended"
        assert state(conn, ends["released"]) == "cancelled"
        assert one(conn, cancel, ends["released"], None) == "cancelled"
        later = enqueue(conn, delay="1 day")
        assert [one(conn, cancel, later, group) for group in (None, "default")] == ["cancelled"] * 2
        assert one(conn, requests, later) == 1
        done = enqueue(conn)
        reader.settle(reader.claim_ready().claim_no)
        assert one(conn, cancel, done, None) == "already ended"
        assert one(conn, requests, done) == 0
        with connect(database) as other, other.transaction():
            unseen = enqueue(other)
            assert one(conn, cancel, unseen, None) == "unknown"
            assert one(other, cancel, unseen, None) == "cancelled"
        assert one(conn, "select forebay.open_group('default', 'late', 'now')") > 0
        assert one(conn, cancel, done, "late") == "unknown"
        with pytest.raises(psycopg.Error, match="has no group"):
            one(conn, cancel, done, "other")
        both = enqueue(conn)
        reader.settle(reader.claim_ready().claim_no)
        assert one(conn, cancel, both, "default") == "already ended"
        assert one(conn, cancel, both, None) == "cancelled"


def test_a_job_that_ended_before_it_ran_has_no_attempt(database):
    """Cancelled or expired while it waited: 0; cancelled by its handler: the attempt that did
    it.
    """
    with connect(database) as conn, Reader(database) as reader:
        waiting, later, expiring = (
            enqueue(conn),
            enqueue(conn, delay="1 day"),
            enqueue(conn, expires_at="2030-01-01"),
        )
        for job in (waiting, later):
            one(conn, "select forebay.cancel(%s)", job)
        assert seen(conn, later) == ("cancelled", 0, None)
        shift_clock(conn, 20 * 365 * 86400)
        assert reader.claim_all() == []
        assert seen(conn, waiting) == ("cancelled", 0, None)
        assert seen(conn, expiring) == ("expired", 0, None)
        assert one(conn, "select attempt from forebay.dead_letter") == 0
        shift_clock(conn)
        quitting = enqueue(conn, max_attempts=3)
        reader.claim_ready()
        end(reader, "cancelled", error=ERROR)
        assert seen(conn, quitting) == ("cancelled", 1, 3)
        assert (
            one(conn, "select errors -> 0 ->> 'attempt' from forebay.job_history(%s)", quitting)
            == "1"
        )


def test_a_heartbeat_without_running_jobs_is_as_small_as_before(database):
    """An idle worker writes the same row, a busy one a bounded one.

    Trimming keeps the newest of each lease only.
    """
    with connect(database) as conn, Reader(database) as reader:
        beat(reader)
        beat(reader, *range(1, 101))
        beat(reader, *range(1, 10_001))
        sizes = conn.execute(
            "select coalesce(cardinality(h.running_jobs), 0), pg_column_size(h.*) from "
            "forebay.heartbeat h order by 1"
        ).fetchall()
        plain = one(
            conn,
            (
                "select pg_column_size(h.*) from (select lease_id, heartbeat_at, backend_pid "
                "from forebay.heartbeat limit 1) h"
            ),
        )
        assert sizes[0] == sizes[1] == (0, plain)
        bounded = [(count, size < 9000) for count, size in sizes[2:]]
        assert bounded == [(100, True), (1000, True)]
        conn.execute("update forebay.heartbeat set heartbeat_at = heartbeat_at - interval '1 hour'")
        trim(conn)
        assert one(conn, "select array_agg(cardinality(running_jobs)) from forebay.heartbeat") == [
            1000
        ]


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_the_claim_of_an_old_job_is_found_without_the_claims_after_it(database, conn, guarded):
    """With statistics of a long lane a plan may sort all claims that could have the job: it
    reads the arrays of each.
    """
    if not guarded:
        break_function(
            database,
            "_batch_of",
            ("SET enable_bitmapscan TO 'off'", "SET enable_indexscan TO 'off'"),
        )
    jobs = enqueue_many(conn, [{"kind": "a"} for _ in range(4000)])
    with Reader(database) as reader:
        for _ in range(400):
            reader.finish(reader.claim(10))
    conn.execute("analyze forebay.batch")
    with conn.transaction():
        assert state(conn, jobs[55]) == "done"
        read = one(conn, "select pg_stat_get_xact_tuples_fetched('forebay.batch'::regclass)")
    assert (read < 50) == guarded

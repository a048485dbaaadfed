"""What members of one role can do to each other, as ``docs/security.md`` says: roles separate
duties, not applications.
"""

import json

import psycopg
import pytest

from tests.sql.test_roles import acting_as
from tests.support.engine import Reader, connect, enqueue, one, sqlstate, state


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def test_a_producer_cancels_and_replaces_a_job_of_another(database, conn):
    """
    A job has no owner: its id, or its unique key, is enough.
    """
    job = enqueue(conn, queue="q")
    with Reader(database, "q") as reader, acting_as(database, "forebay_producer") as producer:
        assert one(producer, "select forebay.cancel(%s)", job) == "cancelled"
        assert reader.claim().job_ids == []
        assert state(conn, job) == "cancelled"
        unique = (
            """select job_id from forebay.enqueue_unique('work', %s, '{"replace": "k"}', 'q')"""
        )
        one(conn, unique, '{"from": "owner"}')
        one(producer, unique, '{"from": "another"}')
        (claimed,) = reader.claim().jobs
        assert claimed["args"] == {"from": "another"}


def test_the_number_of_a_lease_is_all_that_a_worker_needs_to_settle_under_it(database, conn):
    """
    Another login of the role settles a job with the number, and cannot read the number anywhere.
    """
    job = enqueue(conn, queue="q")
    with Reader(database, "q") as reader, acting_as(database, "forebay_worker") as other:
        batch = reader.claim()
        for table in ("lease", "batch", "heartbeat", "settlement"):
            assert sqlstate(other, f"select from forebay.{table}") == "42501"
        flush = json.dumps([{"claim_no": batch.claim_no, "flush_no": 1}])
        for guess in (1, reader.lease_id ^ 1):
            guessed = "select forebay.settle_v1(%s, %s)"
            assert sqlstate(other, guessed, guess, flush) == "JQ010"
        settled = "select status from forebay.settle_v1(%s, %s)"
        assert one(other, settled, reader.lease_id, flush) == "settled"
        assert state(conn, job) == "done"


def test_a_worker_that_stays_in_its_transaction_keeps_a_lock(database, conn):
    """
    The right to call a function is the right to hold its locks until the end of the transaction;
    without the role there is none.
    """
    enqueue(conn, queue="q")
    with Reader(database, "q"), acting_as(database, "forebay_worker") as worker:
        worker.execute("begin")
        worker.execute("select forebay.retain_v1()")
        held = conn.execute(
            "select distinct c.relname::text from pg_locks l join pg_class c on c.oid = l.relation"
            " where l.pid = %s and c.relname like 'lock%%' and l.mode = 'ShareUpdateExclusiveLock'",
            [worker.info.backend_pid],
        ).fetchall()
        assert held == [("lock_retention",)]
        worker.execute("rollback")
    with acting_as(database) as nobody:
        assert sqlstate(nobody, "select forebay.retain_v1()") == "42501"


def test_results_and_progress_are_open_to_every_worker(database, conn):
    """
    A worker reads any job's result and writes progress for any job, whatever queue it serves.
    """
    job = enqueue(conn, queue="q")
    with acting_as(database, "forebay_worker") as other:
        lease = one(other, "select forebay.open_lease_v1('other')")
        items = json.dumps([{"job_id": job, "group_id": 1, "done": 0.5, "note": "not mine"}])
        assert one(other, "select forebay.record_progress_v1(%s, %s)", lease, items) == 1
        assert one(other, "select state from forebay.job(%s)", job) == "ready"


def test_a_producer_reads_nothing_of_a_job(database, conn):
    """
    Neither state, arguments, results nor dead letters, not even of its jobs.
    """
    with acting_as(database, "forebay_producer") as producer:
        job = enqueue(producer)
        for call in ("job(%s)", "result(%s)", "job_history(%s)"):
            assert sqlstate(producer, f"select * from forebay.{call}", job) == "42501"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            producer.execute("select * from forebay.dead_letter")

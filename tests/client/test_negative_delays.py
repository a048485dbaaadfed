"""A delay before now is now: in SQL and in Python, for jobs, in bulk, and for subjects."""

import json
from datetime import timedelta

import pytest

import forebay
from tests.support.engine import one, state

#: Each call, with the SQL of the id of its job.
CALLS = [
    "select forebay.enqueue('work', delay => %s)",
    "select job_id from forebay.enqueue_unique('work', '{}', '{\"once\": \"k\"}', delay => %s)",
    (
        "select (forebay.enqueue_many(jsonb_build_array(jsonb_build_object('kind', 'work',"
        " 'delay', extract(epoch from %s::interval)))))[1]"
    ),
]


@pytest.mark.parametrize("delay", ["-1 second", "-200000 years", "-0.001 second"])
@pytest.mark.parametrize("call", CALLS)
def test_a_job_with_a_negative_delay_is_ready(conn, call, delay):
    assert state(conn, one(conn, call, delay)) == "ready"


def test_many_jobs_and_a_backfill_with_a_negative_delay_are_ready(conn):
    many = "select forebay.enqueue_many('work', array['{}', '{}']::jsonb[], delay => '-5 minutes')"
    assert one(conn, many) == 2
    assert one(conn, "select forebay.backfill('work', 'select 1 as n', '{\"delay\": -5}')") == 1
    assert one(conn, "select sum(ready) from forebay.depth()") == 3
    assert one(conn, "select count(*) from forebay.deferred") == 0


def test_a_subject_with_a_negative_delay_is_due_now(conn):
    """Also in bulk, and with an upsert of one that was due later."""
    one(conn, "select forebay.push_subject('crawl', 'a', delay => '-1 hour')")
    bulk = [{"kind": "crawl", "subject": "b", "delay": -9}]
    conn.execute("select forebay.push_subjects(%s::jsonb)", [json.dumps(bulk)])
    one(conn, "select forebay.push_subject('crawl', 'c', delay => '1 hour')")
    late = "select subject from forebay.subjects('default') where due_at > clock_timestamp()"
    assert conn.execute(late).fetchall() == [("c",)]
    one(conn, "select forebay.upsert_subject('crawl', 'c', delay => '-1 hour')")
    assert conn.execute(late).fetchall() == []


@pytest.mark.parametrize("delay", [-1, -1e300, timedelta(days=-1)])
def test_the_python_client_takes_a_negative_delay(database, conn, delay):
    client = forebay.Client(database)
    assert state(conn, client.enqueue_now("work", {}, delay=delay)) == "ready"

"""The facts of an error that a SQL function raises: a JSON object in DETAIL, attributes in
Python.
"""

import json

import psycopg
import pytest

from forebay.db.errors import translate_ours
from forebay.errors import (
    AlreadyRedriven,
    BackfillChanged,
    BackfillNotFound,
    ForeignCluster,
    GroupInUse,
    GroupNotFound,
    InvalidJob,
    JobNotFound,
    KeyBusy,
    LeaseLost,
    PayloadDiffers,
    PayloadTooDeep,
    PayloadTooLarge,
    QueueFull,
    TransactionStateError,
    error_from_sqlstate,
)
from tests.support.engine import connect

SAME = {"idempotent": "k"}


def many(*jobs):
    return "enqueue_many(%s::jsonb)", json.dumps([{"kind": "send", **job} for job in jobs])


#: What is called, with its parameters; the error; its attributes.
CASES = {
    "an unknown option": (many({}, {"nope": 1}), InvalidJob, {"index": 1, "field": None}),
    "a bad job of many": (many({}, {}, {"priority": 99_999}), InvalidJob, {"index": 2}),
    "a bad job of many alike": (
        ["enqueue_many('send', array['{}', '[]']::jsonb[])"],
        InvalidJob,
        {"index": 1},
    ),
    "too large": (
        ["enqueue('send', %s::jsonb)", json.dumps({"a": "x" * 9000})],
        PayloadTooLarge,
        {"bytes": 9009, "limit": 8192, "index": None},
    ),
    "too large, of many": (
        many({}, {"args": {"a": "x" * 9000}}),
        PayloadTooLarge,
        {"bytes": 9009, "limit": 8192, "index": 1},
    ),
    "too deep": (
        ["enqueue('send', %s::jsonb)", '{"a":' * 65 + "1" + "}" * 65],
        PayloadTooDeep,
        {"depth": 65, "limit": 64, "index": None},
    ),
    "a number too long": (
        ["enqueue_many('send', array['{}', '{\"a\": 1e5000}']::jsonb[])"],
        InvalidJob,
        {"field": "args", "index": 1},
    ),
    "another request": (
        ["enqueue('send', '{\"a\": 1}', unique_as => %s::jsonb)", json.dumps(SAME)],
        PayloadDiffers,
        {"job_id": 2, "index": None},
    ),
    "another request, of many": (
        many({}, {"args": {"a": 1}, "unique_as": SAME}),
        PayloadDiffers,
        {"job_id": 2, "index": 1},
    ),
    "a full queue": (
        ["enqueue('send', queue => 'small')"],
        QueueFull,
        {"queue": "small", "waiting": 1, "max_waiting": 1, "index": None},
    ),
    "a lease that is not open": (["settle_v1(4711, '[]')"], LeaseLost, {"lease": 4711}),
    "no result of such a job": (["result(4711)"], JobNotFound, {"job_id": 4711}),
    "no result for such a group": (
        ["result(2, 'audit')"],
        GroupNotFound,
        {"queue": None, "group": "audit"},
    ),
    "no such group": (
        ["pause_queue('nowhere', 'g')"],
        GroupNotFound,
        {"queue": "nowhere", "group": "g"},
    ),
    "a group that is being closed": (
        ["open_group('q', 'old')"],
        GroupInUse,
        {"queue": "q", "group": "old"},
    ),
    "a group that workers serve": (
        ["close_group('q', 'busy')"],
        GroupInUse,
        {"queue": "q", "group": "busy"},
    ),
    "redriven before": (
        ["redrive((select max(d.dead_id) from forebay.dead_letter d))"],
        AlreadyRedriven,
        {"job_id": 7, "new_job_id": 9},
    ),
    "other jobs": (
        ["backfill_token_v1('send', '{}', 1, 1, 'old')"],
        BackfillChanged,
        {"token": "old"},
    ),
    "no such backfill": (["backfill_take_v1(4711)"], BackfillNotFound, {"backfill_id": 4711}),
    "no such chunk": (
        ["backfill_done_v1(4711, 1, 1)"],
        BackfillNotFound,
        {"backfill_id": 4711},
    ),
}


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def refused(conn, call, *values):
    """The server's DETAIL when a call is refused, and our error."""
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(f"select * from forebay.{call}", values)
    return json.loads(caught.value.diag.message_detail), translate_ours(caught.value)


def assert_has(refusal, expected, facts):
    detail, error = refusal
    assert type(error) is expected
    assert {name: getattr(error, name) for name in facts} == facts
    assert detail.keys() <= set(expected.fields)
    assert error.detail is None


@pytest.mark.parametrize(("call", "expected", "facts"), CASES.values(), ids=CASES)
def test_the_facts_of_an_error_are_its_attributes(conn, call, expected, facts):
    """
    Python reads the attributes from DETAIL, and shows people none of its JSON.
    """
    conn.execute("select forebay.configure('args_bytes_max', 8192)")
    conn.execute("select forebay.limit_queue('small', 1)")
    conn.execute("select forebay.enqueue('send', queue => 'small')")
    conn.execute("select forebay.enqueue('send', unique_as => %s::jsonb)", [json.dumps(SAME)])
    conn.execute(
        "insert into forebay.dead_letter (group_id, job_id, seq, reason, died_at, queue, priority,"
        " enqueued_at, attempt, kind, args, errors, redriven_at, redriven_as)"
        " values (1, 7, 7, 'permanent', now(), 'q', 0, now(), 1, 'send', '{}', '[]', now(), 9)"
    )
    conn.execute("select forebay.open_group('q', 'old')")
    conn.execute("select forebay.close_group('q', 'old')")
    conn.execute("select forebay.lead_v1(1, array[forebay.open_group('q', 'busy')], 60)")
    assert_has(refused(conn, *call), expected, facts)


def test_a_busy_key_is_named(database, conn):
    """
    The whole key, in a bulk call with the position of the job.
    """
    key = "k" * 150
    with psycopg.connect(database) as other:
        other.execute(
            "select forebay.enqueue('send', unique_as => %s::jsonb)", [f'{{"once": "{key}"}}']
        )
        busy = {"once": key, "on_busy": "raise"}
        single = refused(conn, "enqueue('send', unique_as => %s::jsonb)", json.dumps(busy))
        assert_has(single, KeyBusy, {"key": key, "index": None})
        of_many = refused(conn, *many({}, {"unique_as": busy}))
        assert_has(of_many, KeyBusy, {"key": key, "index": 1})


def test_a_call_in_a_transaction_is_named(conn):
    """
    The function that has to stand alone.
    """
    with conn.transaction():
        conn.execute("select forebay.enqueue('send')")
        refusal = refused(conn, "seal_v1()")
    assert_has(refusal, TransactionStateError, {"function": "forebay.seal_v1()", "problem": None})


def test_a_foreign_cluster_names_both(conn):
    """
    Where the schema was used before, and where it is.
    """
    identity = conn.execute("select * from forebay._identity()").fetchone()
    actual = "/".join(map(str, identity))
    conn.execute("update forebay.cluster set system_identifier = 1")
    recorded = f"1/{identity[1]}"
    refusal = refused(conn, "seal_v1()")
    assert_has(refusal, ForeignCluster, {"recorded": recorded, "actual": actual})


def test_facts_that_this_version_does_not_know_are_shown_as_text():
    """
    A newer schema may send more: people read it, and not as JSON.
    """
    error = error_from_sqlstate(
        "JQ010", "lease 7 is closed", detail='{"lease": 7, "since": "10:00"}'
    )
    assert (error.lease, error.detail) == (7, "since: 10:00")


@pytest.mark.parametrize("detail", [None, "a text", "{no JSON", "[1]", "{" * 100_000, "7"])
def test_a_detail_that_is_no_object_stays_as_it_is(detail):
    """
    Texts for people, such as a list of workers, are sent in DETAIL too.
    """
    error = error_from_sqlstate("JQ010", "lease 7 is closed", detail=detail)
    assert (error.lease, error.detail) == (None, detail)

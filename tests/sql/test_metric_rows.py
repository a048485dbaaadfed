"""The measurements as rows: each number of the object, with its labels."""

import json

import pytest

from tests.support.engine import Reader, enqueue, enqueue_many, one, sqlstate

ERROR = {"type": "ValueError", "message": "no", "traceback": ""}


@pytest.fixture
def busy(conn, database):
    """Make a database with queues, dead letters, a worker, an endpoint, a schedule, thresholds."""
    with Reader(database) as reader:
        enqueue_many(conn, [{"kind": "work", "tag": "t"}] * 3)
        batch = reader.claim(2)
        ended = [{"offset": 1, "outcome": "dead", "error": ERROR}]
        assert reader.settle(batch.claim_no, [2], ended=ended) == "settled"
        config = json.dumps({"url": "https://partner.example/"})
        conn.execute("select forebay.create_endpoint('partner', 'http', %s)", [config])
        conn.execute("select forebay.set_threshold('oldest_ready', 30, 'default')")
        one(conn, "select count(*) from forebay.fold_v1()")
        yield conn


def rows(conn) -> dict:
    found = conn.execute("select name, labels, value, type from forebay.metric_rows()").fetchall()
    return {(name, *sorted(labels.items())): (value, type_) for name, labels, value, type_ in found}


def test_numbers_have_their_labels_and_types(busy):
    """Of one queue, one kind, the database, an endpoint."""
    found = rows(busy)
    queue = (("group", "default"), ("queue", "default"))
    assert found["queues.ready", *queue] == (1, "gauge")
    assert found["queues.claims", *queue] == (2, "counter")
    assert found["queues.is_served", *queue][0] in (0, 1)
    assert found["counters.done", ("group", "default"), ("kind", "work"), ("queue", "default")] == (
        1,
        "counter",
    )
    assert found["database.numbers_drawn",] == (3, "counter")
    assert found["endpoints.breaker", ("endpoint", "partner")] == (0, "gauge")
    dead = (("kind", "work"), ("queue", "default"), ("reason", "permanent"), ("tag", "t"))
    assert found["dead.dead", *dead] == (1, "gauge")
    assert found[
        "thresholds.value", ("name", "oldest_ready"), ("queue", "default"), ("tag", "")
    ] == (
        30,
        "gauge",
    )
    assert found["within",] == (900, "gauge")


def test_each_number_of_the_measurements_is_a_row_once(busy):
    """The list comes from the object: a new member is a row without further code."""
    found = busy.execute("select name, labels::text from forebay.metric_rows()").fetchall()
    assert len(found) == len(set(found))
    measured = one(busy, "select forebay.measurements()")
    measured["counters"] = measured["counters"]["cells"]
    expected = set()
    parts = measured | {
        name: value for name, value in measured["database"].items() if isinstance(value, list)
    }
    for part, value in parts.items():
        if isinstance(value, int | float):
            expected.add(part)
        for item in value if isinstance(value, list) else [value]:
            members = item.items() if isinstance(item, dict) else ()
            expected |= {f"{part}.{name}" for name, it in members if isinstance(it, int | float)}
    assert {name for name, _ in found} == expected | {"endpoints.breaker"}


def test_counters_are_left_out_and_bad_numbers_refused(busy):
    """As of the measurements."""
    without = "select count(*) from forebay.metric_rows(60, false) where name like 'counters.%'"
    assert one(busy, without) == 0
    for within in ("5", "null", "'NaN'"):
        assert sqlstate(busy, f"select * from forebay.metric_rows({within})") == "JQ001"


def test_a_reader_may_read_them(busy):
    """And a producer may not."""
    enqueue(busy)
    with busy.transaction(force_rollback=True):
        busy.execute("set local role forebay_reader")
        assert one(busy, "select count(*) from forebay.metric_rows()") > 20
    with busy.transaction(force_rollback=True):
        busy.execute("set local role forebay_producer")
        assert sqlstate(busy, "select * from forebay.metric_rows()") == "42501"

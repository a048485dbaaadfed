"""Exported, then emptied: retention waits for exports, up to their limit, and an export finds
each ended job of a segment.
"""

import json

import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue_many,
    one,
    open_group,
    shift_clock,
    small_segments,
    sqlstate,
)
from tests.support.mutant import break_function, violation

ROWS = 100
HOUR = 3600


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        small_segments(conn, rows=ROWS, reserve=1000)
        conn.execute("update forebay.segment set removed_at = now() where hi - lo > %s", [ROWS])
        one(conn, "select forebay.configure('retention_days', 0)")
        yield conn


def fill(conn, reader, segments=1):
    """Let jobs pass through so many segments; return them."""
    jobs = []
    for _ in range(segments):
        jobs += enqueue_many(conn, [{"kind": "work"}] * ROWS)
        one(conn, "select nextval('forebay.log_seq')")  # The next segment has begun.
        one(conn, "select forebay.extend_v1()")
        one(conn, "select forebay.seal_v1()")
        for batch in reader.claim_all():
            reader.finish(batch)
        reader.claim()
    return jobs


def empty(conn):
    """Empty what may be emptied; return the segments."""
    found = []
    after = None
    while True:
        emptied, after = conn.execute("select * from forebay.retain_v1(%s)", [after]).fetchone()
        found += [] if emptied is None else [emptied]
        if after is None:
            return found


def following(conn, name):
    """Return the next segment that an export has to write, with the numbers of its rows.

    Or None.
    """
    return conn.execute(
        "select segment_id, lo, hi - 1 from forebay.next_to_export(%s)", [name]
    ).fetchone()


def write(conn, name):
    """Export all that is ready as one would: read in pages, mark.

    Return the ended jobs by segment.
    """
    files = {}
    while (segment := following(conn, name)) is not None:
        segment_id, first, last = segment
        files[segment_id] = rows = []
        for low in range(first, last + 1, 30):
            rows += conn.execute(
                "select j.job_id, j.group_name, j.state from forebay.jobs_to_export(%s, "
                "%s, %s) e (job_id)"
                " cross join lateral forebay.job(e.job_id) j where j.state in ('done', "
                "'dead', 'cancelled', 'expired')",
                [segment_id, low, min(low + 29, last)],
            ).fetchall()
        assert one(
            conn, "select forebay.mark_exported(%s, %s, %s, 'f')", name, segment_id, len(rows)
        )
    return files


def exports(conn):
    return conn.execute(
        "select name, exported, waiting, due, missed from forebay.exports()"
    ).fetchall()


@pytest.mark.slow
def test_a_segment_is_emptied_when_each_export_has_written_it(database, conn):
    """Two exports; a segment goes when the second has marked it."""

    def keeps():
        with Reader(database) as reader:
            fill(conn, reader, 2)
        assert empty(conn) == []
        write(conn, "a")
        assert empty(conn) == []
        write(conn, "b")
        assert len(empty(conn)) == 2

    one(conn, "select forebay.create_export('a')::text")
    one(conn, "select forebay.create_export('b')::text")
    keeps()
    assert exports(conn) == [("a", 2, 0, 0, 0), ("b", 2, 0, 0, 0)]
    break_function(database, "_waits_for_export", ("v_names = '{}'", "true"))
    with violation():
        keeps()


def test_the_wait_has_a_limit_and_a_missed_segment_is_recorded(database, conn):
    """The time begins when retention would have emptied the segment.

    Then it goes, with one event of each export that has missed it.
    """
    one(conn, "select forebay.create_export('a', 2)::text")
    one(conn, "select forebay.create_export('b', 5)::text")
    with Reader(database) as reader:
        fill(conn, reader, 1)
        shift_clock(conn, 10 * HOUR)
        assert empty(conn) == []
        shift_clock(conn, 14 * HOUR)
        assert empty(conn) == []
        held_by = one(
            conn,
            (
                "select forebay.segment_held_by(segment_id) from forebay.segment where due_at "
                "is not null"
            ),
        )
        assert held_by == "export a has not written it"
        write(conn, "a")
        assert empty(conn) == []
        shift_clock(conn, 16 * HOUR)
        assert len(empty(conn)) == 1
    assert exports(conn) == [("a", 1, 0, 0, 0), ("b", 0, 0, 0, 1)]
    events = conn.execute("select detail from forebay.event where act = 'exports.missed'")
    assert events.fetchall() == [("b",)]


def test_a_segment_beyond_the_size_waits_alone(database, conn):
    """A segment that waits counts as emptied: those that would stay anyway do not begin to wait."""
    one(conn, "select forebay.create_export('a')::text")
    with Reader(database) as reader:
        fill(conn, reader, 4)
    one(conn, "select forebay.configure('retention_days', 30)")
    total = one(
        conn,
        "select sum(pg_total_relation_size(format('forebay.log_%s', "
        "segment_id)::regclass)) from forebay.segment"
        " where removed_at is null and lo <= pg_sequence_last_value('forebay.log_seq')",
    )
    one(conn, "select forebay.configure('retention_bytes', %s)", int(total) - 1)

    def waits_alone():
        assert empty(conn) == []
        assert empty(conn) == []
        assert exports(conn) == [("a", 0, 4, 1, 0)]

    waits_alone()
    conn.execute("update forebay.segment set due_at = null")
    break_function(
        database,
        "retain_v1",
        ("v_total := v_total - pg_total", "v_total := v_total - 0 * pg_total"),
    )
    with violation():
        waits_alone()


def test_each_ended_job_is_once_in_each_segment_that_it_has_a_row_in(database, conn):
    """
    Retries within a segment and across segments, and two groups: what is written is final, and
    nothing is missing.
    """
    open_group(conn, "default", "other")
    one(conn, "select forebay.create_export('a')::text")
    with Reader(database) as first, Reader(database, group="other") as other:
        jobs = enqueue_many(conn, [{"kind": "work"}] * 40)
        for _ in range(2):
            batch = first.claim_ready(40)
            first.settle(
                batch.claim_no, ended=[{"offset": n, "outcome": "released"} for n in range(1, 6)],
                done=list(range(6, len(batch.jobs) + 1)),
            )  # fmt: skip
            first.open_claims.discard(batch.claim_no)
        assert following(conn, "a") is None
        jobs += fill(conn, first)
        assert following(conn, "a") is None, "the other group has not passed it"
        for batch in other.claim_all():
            other.finish(batch)
        other.claim()
        one(conn, "select forebay.seal_v1()")
        files = write(conn, "a")
    assert len(files) >= 1
    for rows in files.values():
        assert len(rows) == len(set(rows))
    seen = {row for rows in files.values() for row in rows}
    assert len({(job, group) for job, group, _ in seen}) == len(seen)
    last = max(one(conn, "select hi from forebay.segment where segment_id = %s", n) for n in files)
    assert {(job, "default") for job in jobs if job < last} <= {(j, g) for j, g, _ in seen}
    assert {state for *_, state in seen} == {"done"}


def test_a_segment_that_was_emptied_meanwhile_is_not_marked(database, conn):
    """What was read of it may be incomplete."""

    def refuses():
        segment, *_ = following(conn, "a")
        conn.execute(
            "update forebay.segment set removed_at = now() where segment_id = %s", [segment]
        )
        assert not one(conn, "select forebay.mark_exported('a', %s, 1, 'f')", segment)
        assert one(conn, "select count(*) from forebay.exported_segment") == 0

    one(conn, "select forebay.create_export('a')::text")
    with Reader(database) as reader:
        fill(conn, reader, 2)
    refuses()
    break_function(database, "mark_exported", ("and s.removed_at is null", ""))
    with violation():
        refuses()


@pytest.mark.slow
def test_a_segment_in_use_is_not_ready(database, conn):
    """A running job holds it; the segments behind it are found all the same."""
    one(conn, "select forebay.create_export('a')::text")
    with Reader(database) as reader:
        enqueue_many(conn, [{"kind": "slow"}])
        held = reader.claim(1)
        fill(conn, reader, 3)
        found = write(conn, "a")
        assert len(found) >= 2
        reader.finish(held)
        reader.claim()
        assert held.job_ids[0] in {job for rows in write(conn, "a").values() for job, *_ in rows}


@pytest.mark.parametrize(
    "call",
    [
        "create_export('')",
        ("create_export('a b')"),
        "create_export(null)",
        ("create_export('a', 0)"),
        "create_export('a', null)",
        "create_export('b')",
        "next_to_export('a')",
        ("mark_exported('a', 1, 1, 'f')"),
        "mark_exported('b', 1, -1, 'f')",
        "mark_exported('b', 1, 1, '')",
        "jobs_to_export(1, 1, 10001)",
        "jobs_to_export(1, 2, 1)",
        "jobs_to_export(1, null, 1)",
    ],
)
def test_bad_values_are_refused(conn, call):
    one(conn, "select forebay.create_export('b')::text")
    before = conn.execute("select * from forebay.export").fetchall()
    assert sqlstate(conn, f"select forebay.{call}") == "JQ001"
    assert conn.execute("select * from forebay.export").fetchall() == before


def test_an_export_is_recorded_and_dropped(conn):
    one(conn, "select forebay.create_export('a')::text")
    assert one(conn, "select forebay.drop_export('a')")
    assert not one(conn, "select forebay.drop_export('a')")
    acts = conn.execute("select act, detail from forebay.event order by event_id").fetchall()
    assert acts[-2:] == [("exports.create", "a"), ("exports.drop", "a")], json.dumps(acts)

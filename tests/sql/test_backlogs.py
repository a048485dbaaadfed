"""Maintenance in steps: a backlog of any size takes small calls, and none is stopped by a bad
row or an idle database.
"""

import json

import psycopg
import pytest

from forebay.db.session import Session
from forebay.worker import Maintenance
from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    sqlstate,
    state,
    trim,
)

pytestmark = pytest.mark.anyio

DAY = 86_400

#: For each part of trimming: rows that are no longer needed, and how to count them.
BACKLOGS = {
    "tombstones": (
        ("insert into forebay.tombstone (job_id, reason, recorded_at)"
        " select -i, 'c', now() - interval '100 days' from generate_series(1, %s) i"),
        "select count(*) from forebay.tombstone",
    ),
    "unique_keys": (
        ("insert into forebay.unique_key (queue, mode, key, gen, job_id, lane, is_deferred, "
                "taken_at, expires_at, origin)"
        " select 'q', 'i', 'k' || i, 1, -i, forebay._lane_id('q', 100, 0), false, now() - "
                "interval '100 days',"
        " now() - interval '70 days', 1 from generate_series(1, %s) i"),
        "select count(*) from forebay.unique_key",
    ),
    "dead_letters": (
        ("insert into forebay.dead_letter (group_id, job_id, seq, reason, died_at, queue, "
                "priority, enqueued_at, attempt, kind, args,"
        " errors) select 1, i, i, 'permanent', now() - interval '100 days', 'q', 100, "
                "now() - interval '100 days', 1, 'work', '{}', '[]'"
        " from generate_series(1, %s) i"),
        "select count(*) from forebay.dead_letter",
    ),
    "batches": (
        ("insert into forebay.batch (group_id, lane, no, snap_from, pos_segment, pos_xid, "
                "pos_seq, high_seq, handed_total,"
        " skipped_total, claimed_at) select 1, i %% 10, 1 + i / 10, '1:1:', 0, '0', 0, 0, "
                "0, 0, now() from generate_series(10, %s + 19) i"),
        "select count(*) - 10 from forebay.batch",
    ),
    "key_runs": (
        ("insert into forebay.key_run (group_id, ordering_key, no, low_seq)"
        " select 1, 'k' || i, 1, 0 from generate_series(1, %s) i"),
        "select count(*) from forebay.key_run",
    ),
    "failures": (
        ("insert into forebay.failure (job_id, group_id, enqueued_at, attempt, failed_at, outcome)"
        " select i, 1, now(), 1, now() - interval '100 days', 'failed' from "
                "generate_series(1, %s) i"),
        "select count(*) from forebay.failure",
    ),
    "leases": (
        ("insert into forebay.lease (lease_id, worker, lease_seconds, suspect_seconds, "
                "opened_at, closed_at, closed_as)"
        " select -i, 'w', 30, 5, now(), now() - interval '100 days', 'closed' from "
                "generate_series(1, %s) i"),
        "select count(*) from forebay.lease",
    ),
    "heartbeats": (
        ("insert into forebay.heartbeat (lease_id, heartbeat_at, backend_pid)"
        " select -1 - i %% 100, now() - interval '1 day' + i * interval '1 ms', 1 from "
                "generate_series(1, %s) i"),
        "select count(*) from forebay.heartbeat",
    ),
    "late_deferred": (
        ("insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args)"
        " select now() - interval '1 day', 1, now(), i, 'work', '{}' from "
                "generate_series(1, %s) i"),
        "select count(*) from forebay.deferred",
    ),
    "mirror_counts": (
        ("insert into forebay.mirror_count (mirror, at, outcome, count)"
        " select 'm', now() - interval '100 days', 'direct.x', 1 from generate_series(1, %s) i"),
        "select count(*) - 1 from forebay.mirror_count",
    ),
    "mirror_breakers": (
        ("insert into forebay.mirror_breaker (mirror, at, who, place)"
        " select 'm', now() - interval '100 days', 'w', 'direct' from generate_series(1, %s) i"),
        "select count(*) from forebay.mirror_breaker",
    ),
}  # fmt: skip


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def pages(conn, part, after, most) -> int:
    """Make one step; return how many pages it touched."""
    call = "select rows, next from forebay.trim_v1(%s, %s, %s)"
    ((plan,),) = conn.execute(
        f"explain (analyze, buffers, format json) {call}", [part, after, most]
    ).fetchall()
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows", [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.nightly])]
)
@pytest.mark.parametrize("part", BACKLOGS)
def test_a_backlog_is_worked_off_in_small_steps(database, conn, part, rows):
    """
    Of each kind a call deletes about as many rows as it is told, touches no more pages for a bigger
    backlog, and as many calls as that takes are a pass.
    """
    fill, left = BACKLOGS[part]
    with Reader(database, "q"):
        pass
    one(conn, "select forebay.keep_dead(days => 1)")
    one(conn, "select setval('forebay.key_seq', 1)")
    conn.execute("delete from forebay.lease")
    conn.execute("delete from forebay.heartbeat")
    if part == "late_deferred":
        conn.execute(
            "insert into forebay.promotion values (1, pg_current_snapshot(), now(), 0, 0, now())"
        )
    conn.execute(fill, [rows])
    if part == "late_deferred":
        conn.execute("update forebay.promotion set snap = pg_current_snapshot()")
    conn.execute("analyze")
    assert one(conn, left) >= rows - 1
    most = rows // 20
    with conn.transaction(force_rollback=True):
        small = pages(conn, part, None, most // 10)
    with conn.transaction(force_rollback=True):
        big = pages(conn, part, None, most)
    assert big <= small * 12 + 2000, (small, big)
    calls, after = 0, None
    while calls < 100:
        before = one(conn, left)
        _, after = conn.execute(
            "select rows, next from forebay.trim_v1(%s, %s, %s)", [part, after, most]
        ).fetchone()
        assert before - one(conn, left) <= 1.1 * most + 10
        calls += 1
        if after is None:
            break
    assert one(conn, left) == 0
    # Two rows of work for one in some parts: a probe and a deletion; counts are added up at three
    # levels.
    assert calls <= 65, calls


def test_a_producer_cannot_stop_maintenance_with_large_numbers(conn):
    """A count beyond any real one is refused, and one that is there nevertheless stops no sum
    and no other part.
    """
    counters = {"mirror": "m", "counts": [["direct.x", None, None, 2**63 - 1]]}
    conn.execute("grant forebay_producer to current_user")
    with conn.transaction(force_rollback=True):
        conn.execute("set local role forebay_producer")
        for _ in range(2):
            with pytest.raises(psycopg.Error) as caught, conn.transaction():
                conn.execute("select forebay.record_direct(%s, 'p')", [json.dumps(counters)])
            assert caught.value.sqlstate == "JQ001"
    conn.execute(
        "insert into forebay.mirror_count (mirror, at, outcome, count)"
        " select 'm', now() - (400 + i) * interval '1 day', 'direct.x', "
        "9223372036854775807 from generate_series(20, 29) i"
    )
    conn.execute(BACKLOGS["failures"][0], [10])
    trim(conn)
    assert one(conn, "select sum(count) from forebay.mirror_count") == 2**63 - 1
    assert one(conn, BACKLOGS["failures"][1]) == 0


@pytest.mark.parametrize("seconds", ["1e300", 31_536_001, -1])
def test_a_breaker_opens_for_no_longer_than_a_year(conn, seconds):
    counters = {
        "mirror": "m",
        "counts": [],
        "breaker": {"place": "direct", "open_seconds": seconds, "why": "x"},
    }
    call = "select forebay.record_direct(%s, 'p')"
    assert sqlstate(conn, call, json.dumps(counters)) == "JQ001"


def duty_of(maintenance, name):
    (found,) = [duty for duty in maintenance._schedule.duties if duty.name == name]
    return found


async def test_an_expiry_that_is_committed_late_is_swept(database, conn):
    """A job whose transaction committed minutes after its expiry expires although no worker
    claims it.
    """
    enqueue(conn, queue="forlorn", kind="stays")
    session = Session(database, name="test")
    try:
        maintenance = Maintenance(session)
        duty = duty_of(maintenance, "sweep")
        with psycopg.connect(database) as late:
            job = enqueue(late, queue="forlorn", expires_at="2126-01-01")
            late.execute(
                (
                    "update forebay.log set expires_at = clock_timestamp() - interval '10 "
                    "minutes' where seq = %s"
                ),
                [job],
            )
            for _ in range(3):
                await maintenance._schedule.run_step(duty)
            late.commit()
        await maintenance._schedule.run_step(duty)
        maintenance._swept_all_at -= 3601
        await maintenance._schedule.run_step(duty)
        assert state(conn, job) == "expired"
    finally:
        await session.close()


@pytest.mark.slow
def test_idle_lanes_write_little_while_another_queue_is_busy(database, conn):
    """
    Ten minutes with a writer that always has a transaction open, forty idle lanes, and a poll every
    four seconds: the cursors of the idle lanes, and the maintenance, write at most the sixth part
    of 2,000 rows and transactions an hour.
    """
    conn.execute(
        "create or replace function forebay._now() returns timestamptz language sql volatile as"
        " $$ select clock_timestamp() + coalesce(current_setting('test.ahead', true), "
        "'0')::float8 * interval '1 second' $$"
    )
    enqueue_many(conn, [{"kind": "work", "queue": f"q{i}"} for i in range(40)])
    readers = [Reader(database, f"q{i}", conn=conn) for i in range(40)]
    groups = [reader.group_id for reader in readers]
    for reader in readers:
        for batch in reader.claim_all():
            reader.finish(batch)
    # The first calls make the first cursors.
    counted = (
        "select (select count(*) from forebay.batch) + (select count(*) from forebay.promotion)"
    )
    begun = one(conn, "select pg_current_xact_id()::text::bigint")
    rows = one(conn, counted)
    writers = [psycopg.connect(database) for _ in range(2)]
    written = 0
    for second in range(0, 600, 4):
        conn.execute(f"set test.ahead = {second}")
        writer = writers[second // 4 % 2]
        enqueue(writer, queue="busy")
        writers[second // 4 % 2 - 1].commit()
        # One that begins later and ends first: so the snapshots list the writer as open.
        one(conn, "select pg_current_xact_id()")
        written += 2
        ready = conn.execute(
            "select group_id, lane from forebay.ready_v1(%s::bigint[])", [groups]
        ).fetchall()
        for group, lane in ready:
            readers[groups.index(group)].claim(lane=lane)
        one(conn, "select forebay.promote_v1()")
        one(conn, "select forebay.seal_v1()")
        if second % 12 == 0:
            conn.execute("select forebay.sweep_v1(now() - interval '1 minute')")
            conn.execute("select forebay.summarize_v1()")
            conn.execute("select forebay.retain_v1()")
        if second % 2 == 0:
            one(conn, "select forebay.renew_counters_v1()")
    for writer in writers:
        writer.close()
    ours = one(conn, "select pg_current_xact_id()::text::bigint") - begun - written - 1
    assert one(conn, counted) - rows <= 2000 / 6
    assert ours <= 2000 / 6

"""Lanes that are over are forgotten, and no committed job is missed on the way.

Each guard of the protocol has a mutant without it, in which no worker finds a committed job.
"""

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    forget_polls,
    one,
    open_group,
    small_segments,
    trim,
)
from tests.support.mutant import break_function, violation

FORGET = "select forebay.forget_v1()"


@pytest.fixture
def reader(database, conn):
    conn.execute("select forebay.configure('lane_idle_hours', 0)")
    with Reader(database) as reader:
        yield reader


def forget(conn: psycopg.Connection, most: int = 1000) -> None:
    """Forget what can be forgotten now."""
    for _ in range(10_000):
        if one(conn, "select forebay.forget_v1(%s)", most) == 0:
            return
    pytest.fail("forgetting does not end")


def counts(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("select state, count(*) from forebay.lane group by state").fetchall())


def finish_all(reader: Reader) -> list[int]:
    """Claim and finish all jobs; return their ids."""
    found = []
    for _ in range(100):
        lanes = reader.ready()
        batches = [reader.claim(1000, lane["lane"]) for lane in lanes]
        for batch in batches:
            if batch.jobs:
                reader.finish(batch)
                found += batch.job_ids
        if not any(batch.jobs for batch in batches):
            return found
    pytest.fail("jobs do not end")


def use_once(conn: psycopg.Connection, reader: Reader) -> None:
    enqueue(conn)
    assert len(finish_all(reader)) == 1


def poll_pages(conn: psycopg.Connection, group_id: int) -> int:
    """Return the pages that a poll reads which looks at all lanes."""
    query = (
        "explain (analyze, buffers, format json) select * from forebay.ready_v1(array[%s::bigint])"
    )
    for _ in range(3):
        forget_polls(conn)
        plan = one(conn, query, group_id)
    return plan[0]["Plan"]["Shared Hit Blocks"]


@pytest.mark.slow
def test_a_database_with_many_past_lanes_polls_like_a_new_one(database, conn, reader):
    """Thousands of priorities that were used once cost a poll nothing any more."""
    use_once(conn, reader)
    new = poll_pages(conn, reader.group_id)
    conn.execute(
        "select forebay.enqueue('work', '{}', 'default', n) from generate_series(1001, 1400) n"
    )
    assert len(finish_all(reader)) == 400
    assert poll_pages(conn, reader.group_id) > 4 * new
    forget(conn)
    assert counts(conn) == {"dormant": 401}
    assert poll_pages(conn, reader.group_id) <= new
    job = enqueue(conn, priority=1200)
    assert finish_all(reader) == [job]


def test_a_step_is_bounded_and_busy_lanes_stay(database, conn, reader):
    """One call retires at most that many lanes, and never one with a waiting job."""
    conn.execute("select forebay.enqueue('work', '{}', 'default', n) from generate_series(1, 20) n")
    finish_all(reader)
    waiting = enqueue(conn, priority=7)
    while one(conn, "select forebay.forget_v1(5)"):
        assert counts(conn).get("retired", 0) <= 5
    assert counts(conn) == {"used": 1, "dormant": 19}
    assert finish_all(reader) == [waiting]


def open_producer(conn: psycopg.Connection, reader: Reader, producer: psycopg.Connection) -> None:
    """A transaction that relied on the lane stays open while the lane is retired."""
    use_once(conn, reader)
    job = enqueue(producer)
    forget(conn)
    assert counts(conn) == {"retired": 1}
    assert finish_all(reader) == []
    producer.commit()
    forget(conn)
    assert finish_all(reader) == [job]


@pytest.mark.parametrize("known", [False, True])
def test_a_transaction_that_relied_on_a_lane_keeps_it(database, conn, reader, known):
    """The lane is polled until the transaction has ended, whether it read the row or the flag
    sequence.
    """
    if known:
        conn.execute("select forebay.enqueue('work') from generate_series(1, 1000)")
        finish_all(reader)
    with psycopg.connect(database) as producer:
        open_producer(conn, reader, producer)


def test_a_transaction_that_relied_on_a_lane_keeps_it_breaks_without_the_barrier(
    database, conn, reader
):
    """Deciding before that transaction has ended loses its job."""
    break_function(
        database,
        "forget_v1",
        ("pg_snapshot_xmin(pg_current_snapshot()) > v_barrier::text::xid8", "true"),
    )
    with psycopg.connect(database) as producer, violation():
        open_producer(conn, reader, producer)


def test_a_prepared_transaction_keeps_its_lane(database, conn, reader):
    """It has ended only when it is committed or rolled back."""
    use_once(conn, reader)
    with psycopg.connect(database) as producer:
        job = enqueue(producer)
        producer.execute("prepare transaction 'lane'")
        producer.commit()
    forget(conn)
    assert counts(conn) == {"retired": 1}
    conn.execute("commit prepared 'lane'")
    forget(conn)
    assert finish_all(reader) == [job]


def old_snapshot(database: str, conn: psycopg.Connection, reader: Reader, level: str) -> None:
    use_once(conn, reader)
    with psycopg.connect(database) as producer:
        producer.execute(f"set transaction isolation level {level}")
        producer.execute("select count(*) from forebay.lane")
        forget(conn)
        assert counts(conn) == {"dormant": 1}
        job = enqueue(producer)
        producer.commit()
    assert finish_all(reader) == [job]


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_an_old_snapshot_that_still_sees_the_lane_in_use_records_it(database, conn, reader, level):
    """A transaction without an id delays no step; it does not rely on what it sees."""
    old_snapshot(database, conn, reader, level)


def test_an_old_snapshot_that_still_sees_the_lane_in_use_breaks_without_the_horizon(
    database, conn, reader
):
    """Relying on the row as the old snapshot shows it loses the job."""
    break_function(
        database,
        "_is_recorded",
        (
            "pg_visible_in_snapshot(horizon::text::xid8, pg_current_snapshot()) as is_seen",
            "true as is_seen",
        ),
    )
    with violation():
        old_snapshot(database, conn, reader, "repeatable read")


def test_an_old_snapshot_makes_no_lane_known(database, conn, reader):
    """Else others would rely on a lane that is not polled."""
    use_once(conn, reader)
    with psycopg.connect(database) as producer:
        producer.execute("set transaction isolation level repeatable read")
        producer.execute("select count(*) from forebay.lane")
        forget(conn)
        producer.execute("select forebay.enqueue('work') from generate_series(1, 1000)")
        producer.rollback()
    job = enqueue(conn)
    assert finish_all(reader) == [job]


def known_lane(conn: psycopg.Connection, reader: Reader) -> None:
    conn.execute("select forebay.enqueue('work')")
    conn.execute("select forebay.enqueue('work') from generate_series(1, 1000)")
    finish_all(reader)
    assert one(conn, "select forebay._is_known(forebay._lane_id('default', 100, 0))")
    forget(conn)
    assert counts(conn) == {"dormant": 1}
    job = enqueue(conn)
    assert finish_all(reader) == [job]


def test_a_known_lane_that_was_forgotten_is_recorded_again(conn, reader):
    """A retirement makes the values of all flag sequences invalid."""
    known_lane(conn, reader)


def test_a_known_lane_that_was_forgotten_breaks_without_the_horizon_in_its_stamp(
    database, conn, reader
):
    """A flag sequence that outlives the lane loses the job."""
    break_function(database, "_lane_stamp", ("# p_horizon", ""))
    with violation():
        known_lane(conn, reader)


def test_a_savepoint_takes_its_row_with_it(database, conn, reader):
    """The next enqueue of the transaction writes another one."""
    use_once(conn, reader)
    forget(conn)
    with connect(database) as producer, producer.transaction():
        with producer.transaction(force_rollback=True):
            enqueue(producer)
        job = enqueue(producer)
    assert finish_all(reader) == [job]


def late_group(database: str, conn: psycopg.Connection, reader: Reader) -> None:
    use_once(conn, reader)
    for _ in ("retire", "draw the barrier"):
        assert one(conn, FORGET) == 1
    with psycopg.connect(database) as other:
        open_group(other, "default", "late", "beginning")
        assert one(conn, FORGET) == 1
        assert counts(conn) == {"dormant": 1}
        other.commit()
    forget(conn)
    with Reader(database, group="late") as late:
        assert len(finish_all(late)) == 1
    forget(conn)
    assert counts(conn) == {"dormant": 1}


def test_a_group_that_begins_later_gets_the_jobs_of_dormant_lanes(database, conn, reader):
    """Even if it was opened by a transaction that was open while the lane became dormant."""
    late_group(database, conn, reader)


def test_a_group_that_begins_later_breaks_if_lanes_are_not_woken(database, conn, reader):
    """Without the look at new groups it misses those jobs."""
    break_function(
        database, "forget_v1", ("v_count := forebay._wake_lanes(p_most)", "v_count := 0")
    )
    with violation():
        late_group(database, conn, reader)


def delayed(conn: psycopg.Connection, reader: Reader) -> None:
    job = enqueue(conn, delay="1 hour", priority=5)
    forget(conn)
    assert counts(conn) == {"dormant": 1}
    conn.execute("update forebay.deferred set run_at = now() - interval '1 second'")
    assert one(conn, "select forebay.promote_v1()") == 1
    assert finish_all(reader) == [job]


def test_a_delayed_job_wakes_its_lane(conn, reader):
    """The lane may be forgotten while the job waits; promotion puts it in use."""
    delayed(conn, reader)


def test_a_delayed_job_breaks_if_promotion_does_not_wake_its_lane(database, conn, reader):
    """Otherwise no worker finds its row in the log."""
    break_function(database, "_promote", ("perform forebay._use_lanes(v_lanes)", "null"))
    with violation():
        delayed(conn, reader)


def pass_segments(database: str, conn: psycopg.Connection, reader: Reader, rows: int = 100) -> None:
    """Fill and seal two segments, then empty what may be emptied."""
    for _ in range(3):
        conn.execute(
            "select forebay.enqueue('work', '{}', 'filler') from generate_series(1, %s)", [rows]
        )
        with Reader(database, "filler") as filler:
            finish_all(filler)
            conn.execute("select forebay.seal_v1()")
            conn.execute("select forebay.extend_v1()")
            finish_all(filler)
            finish_all(reader)
    while one(conn, "select emptied from forebay.retain_v1()") is not None:
        pass


@pytest.mark.slow
def test_rows_and_cursors_go_with_the_segments(database, conn):
    """A year of keys and priorities leaves nothing.

    What is counted, and a lane used again, are right.
    """
    small_segments(conn, 100)
    conn.execute("select forebay.configure('retention_days', 0)")
    conn.execute("select forebay.configure('lane_idle_hours', 0)")
    conn.execute("select forebay.limit_queue('default', max_waiting => 50)")
    with Reader(database) as reader:
        conn.execute(
            "select forebay.enqueue('work', '{}', 'default', n) from generate_series(1, 20) n"
        )
        conn.execute(
            "select forebay.enqueue('work', '{}', limit_key => 'k' || n) from "
            "generate_series(1, 20) n"
        )
        conn.execute("select forebay.enqueue('work', '{}', ordering_key => 'o')")
        one(conn, "select forebay.renew_counters_v1(0)")
        assert len(finish_all(reader)) == 41
        # The batches before are not open any more.
        enqueue(conn, limit_key="k1")
        one(conn, "select forebay.renew_counters_v1(0)")
        assert len(finish_all(reader)) == 1
        late = enqueue(conn, delay="1 hour", priority=77)
        for _ in range(7):
            pass_segments(database, conn, reader)
            trim(conn)
            forget(conn)
        left = conn.execute(
            "select priority, state from forebay.lane where queue = 'default' and sort in "
            "('plain', 'keyed')"
        ).fetchall()
        assert left == [(77, "dormant")], "the lane of a delayed job"
        # That of the newest batch.
        assert one(conn, "select count(*) from forebay.lane where sort = 'limited'") <= 1
        assert depth(conn, "default")["default"][0] == 0
        # 49 fit, as in a queue with nothing but the delayed job.
        jobs = [enqueue(conn, priority=n % 20 + 1) for n in range(49)]
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            enqueue(conn)
        assert sorted(finish_all(reader)) == sorted(jobs)
        conn.execute("update forebay.deferred set run_at = now() - interval '1 second'")
        assert one(conn, "select forebay.promote_v1()") == 1
        assert finish_all(reader) == [late]

"""Segments that were emptied: no call reads them, and in the end their tables are dropped
without holding up anyone.
"""

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    small_segments,
    sqlstate,
    state,
    trim,
)
from tests.support.mutant import break_function, violation

ROWS = 100


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        small_segments(conn, rows=ROWS, reserve=1000)
        conn.execute("update forebay.segment set removed_at = now() where hi - lo > %s", [ROWS])
        one(conn, "select forebay.configure('retention_days', 0)")
        yield conn


def fill(conn, readers, segments):
    """Let jobs pass through so many segments, then empty all that may be emptied."""
    for _ in range(segments):
        one(conn, "select forebay.extend_v1()")
        enqueue_many(conn, [{"kind": "work"}] * ROWS)
        finish_all(conn, readers)
    empty(conn)


def finish_all(conn, readers):
    one(conn, "select forebay.seal_v1()")
    for reader in readers:
        for batch in reader.claim_all():
            reader.finish(batch)
        reader.claim()


def empty(conn):
    while one(conn, "select emptied from forebay.retain_v1()") is not None:
        pass


def drop(conn, age="0"):
    """Drop what may be dropped; return how many segments went."""
    dropped = 0
    while more := one(conn, "select forebay.drop_segments_v1(p_age => %s::interval)", age):
        dropped += more
    return dropped


def count(conn, what):
    return one(conn, f"select count(*) from {what}")


def leaves(conn):
    """Return the numbers of the segments that have a table."""
    rows = conn.execute(
        "select substr(relname, 5)::bigint from pg_class"
        " where relnamespace = 'forebay'::regnamespace and relname ~ '^log_[0-9]+$'"
    )
    return {number for (number,) in rows}


LOCKED = """\
select count(*) from pg_locks l join pg_class c on c.oid = l.relation
join forebay.segment s on c.relname = 'log_' || s.segment_id
where l.pid = pg_backend_pid() and s.removed_at is not null"""


@pytest.mark.parametrize(
    "call",
    [
        "select * from forebay.depth()",
        "select forebay.limit_queue('default', max_waiting => 1000)",
        "select * from forebay.unfinished('work')",
        "select * from forebay.jobs()",
    ],
)
def test_no_count_touches_a_segment_that_was_emptied(database, conn, call):
    """
    Each table that a call reads, and each of its indexes, takes a place in the lock table of the
    server. A count that named every segment of a long life would fill it, and enqueues would fail.
    """
    touches_no_emptied_segment(database, conn, call)


def touches_no_emptied_segment(database, conn, call):
    with Reader(database) as reader:
        fill(conn, [reader], 6)
        assert count(conn, "forebay.segment where removed_at is not null and hi - lo = 100") >= 4
        waiting = enqueue(conn)
        with conn.transaction():
            conn.execute(call).fetchall()
            assert one(conn, LOCKED) == 0
        assert depth(conn)["default"] == (1, 0, 0)
        assert reader.claim().job_ids == [waiting]


def test_a_count_that_names_all_segments_is_seen(database, conn):
    break_function(
        database,
        "_unread_sql",
        ("s.removed_at is null and", ""),
        ("(f.xid is null or f.xid > oldest.xid)", "true"),
    )
    with violation():
        touches_no_emptied_segment(database, conn, "select * from forebay.depth()")


def test_the_first_claim_of_a_lane_touches_no_segment_that_was_emptied(database, conn):
    """The first retry of a group opens a private lane, whose cursor begins before all segments."""
    with Reader(database) as reader:
        fill(conn, [reader], 6)
        job = enqueue(conn)
        batch = reader.claim()
        assert reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "released"}])
        assert drop(conn) >= 4
        assert [b.job_ids for b in reader.claim_all()] == [[job]]


@pytest.mark.slow
def test_a_long_life_leaves_few_tables(database, conn):
    """
    Emptied segments are dropped with their functions and registry rows. Nothing waiting, open or
    enqueued later is lost, for either group, and a job whose segment is gone is unknown.
    """
    with Reader(database) as one_reader, Reader(database, group="other") as other:
        first = enqueue(conn)
        fill(conn, [one_reader, other], 12)
        held = enqueue(conn)
        batch = one_reader.claim()
        assert batch.job_ids == [held]
        fill(conn, [other], 4)
        before = leaves(conn)
        assert drop(conn, "1 hour") == 0
        assert drop(conn) >= 12
        kept = leaves(conn)
        assert kept < before
        removed = {
            n
            for (n,) in conn.execute(
                "select segment_id from forebay.segment where removed_at is not null"
            )
        }
        assert len(removed) <= 2  # The newest sealed segments stay.
        assert {n for (n,) in conn.execute("select segment_id from forebay.segment")} == kept
        functions = (
            "select distinct substring(proname from '_([0-9]+)$')::bigint from pg_proc where "
            "pronamespace = 'forebay'::regnamespace and proname ~ '^_[a-z_]+_[0-9]+$'"
        )
        assert {n for (n,) in conn.execute(functions)} == kept

        assert state(conn, first) is None
        assert state(conn, held) == "claimed"
        one_reader.finish(batch)
        waiting = [job for b in one_reader.claim_all() for job in b.job_ids]
        assert len(waiting) == 4 * ROWS
        later = enqueue(conn)
        for reader in (one_reader, other):
            assert [job for b in reader.claim_all() for job in b.job_ids][-1] == later
        trim(conn)


def drop_beside_an_open_transaction(database):
    with connect(database) as conn, psycopg.connect(database) as open_transaction:
        with Reader(database) as reader:
            fill(conn, [reader], 4)
        pending = enqueue(open_transaction)
        with connect(database) as maintenance, connect(database) as producer:
            producer.execute("set lock_timeout = '50ms'")
            assert one(maintenance, "select forebay.drop_segments_v1(p_age => '0')") == 0
            enqueue(producer)
        open_transaction.commit()
        assert state(conn, pending) == "ready"
        assert drop(conn) > 0


def test_dropping_never_waits_in_front_of_an_enqueue(database, conn):
    """
    While a transaction that enqueued is open the log cannot be locked. The attempt ends at once: if
    it waited, each enqueue would wait behind it.
    """
    drop_beside_an_open_transaction(database)


def test_dropping_would_wait_without_nowait(database, conn):
    break_function(
        database,
        "drop_segments_v1",
        (
            "lock table only forebay.log in access exclusive mode nowait",
            "lock table only forebay.log in access exclusive mode",
        ),
        (
            "exception when lock_not_available then\n        return 0;",
            "exception when division_by_zero then return 0;",
        ),
    )
    with violation(psycopg.Error):
        drop_beside_an_open_transaction(database)


def test_a_transaction_with_an_old_view_of_the_registry_meets_no_missing_table(database, conn):
    """Under REPEATABLE READ it still lists segments that were dropped since."""
    with Reader(database) as reader, psycopg.connect(database) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        first = enqueue(conn)
        one(old, "select 1")
        one(old, "select count(*) from forebay.segment")
        fill(conn, [reader], 6)
        assert drop(conn) > 0
        for call in (
            "select * from forebay.depth()",
            "select * from forebay.jobs()",
            f"select * from forebay.job({first})",
        ):
            old.execute(call).fetchall()
        assert enqueue(old) > first


def test_bad_numbers_are_refused_and_the_call_is_alone(conn):
    for most, age in ((0, "0"), (None, "0"), (1, "-1 s"), (1, None), (1001, "0")):
        assert (
            sqlstate(conn, "select forebay.drop_segments_v1(%s, %s::interval)", most, age)
            == "JQ001"
        )

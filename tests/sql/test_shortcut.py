"""The claim in one statement: it takes what lies in one segment, and leaves everything else.

Each condition under which it must leave a claim to ``forebay._take`` has a promise here, and a
mutant in which the condition is missing.
"""

from collections.abc import Callable

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    lane_of,
    one,
    small_segments,
    state,
)
from tests.support.mutant import break_function, break_shortcut, violation
from tests.support.waiting import wait_for


def with_cursor(dsn: str) -> Reader:
    """Return a reader whose lane has a cursor, as all but the first claim find it."""
    reader = Reader(dsn)
    enqueue(reader.conn)
    reader.finish(reader.claim())
    return reader


def only_the_shortcut(dsn: str) -> None:
    """Make every claim fail that the shortcut leaves."""
    break_function(dsn, "_take", ("\nbegin\n", "\nbegin\n    raise exception 'left';\n"))


def test_what_lies_in_the_newest_segment_is_taken_in_one_statement(database, conn):
    """Jobs of several transactions, in order, in claims that use the window up and that do not."""
    with with_cursor(database) as reader:
        only_the_shortcut(database)
        ids = [enqueue(conn) for _ in range(7)] + enqueue_many(conn, [{"kind": "work"}] * 5)
        taken = []
        for limit in (3, 1, 4):
            taken += reader.claim(limit).job_ids
        ids += [enqueue(conn) for _ in range(3)]
        taken += reader.claim(10).job_ids
        assert taken == ids


def test_a_backlog_of_an_older_segment_is_taken_in_one_statement(database, conn):
    """While the window in hand has enough, it does not matter how many segments came after."""
    with with_cursor(database) as reader:
        small_segments(conn, rows=200, reserve=2000)
        ids = enqueue_many(conn, [{"kind": "work"}] * 700)
        taken = reader.claim(10).job_ids
        one(conn, "select forebay.seal_v1()")
        only_the_shortcut(database)
        for _ in range(18):
            taken += reader.claim(10).job_ids
        assert taken == ids[: len(taken)]
        assert len(taken) == 190


def test_an_idle_writer_does_not_lengthen_the_way(database, conn):
    """A transaction that has enqueued and stays open leaves the others' claims to one statement."""
    with with_cursor(database) as reader, psycopg.connect(database) as idle:
        enqueue(idle)
        first = enqueue(conn)
        assert reader.claim().job_ids == [first]
        only_the_shortcut(database)
        ids = [enqueue(conn) for _ in range(5)]
        assert reader.claim(2).job_ids + reader.claim(10).job_ids == ids


def test_a_transaction_without_jobs_of_the_lane_does_not_lengthen_the_way(database, conn):
    """A settlement or a job of another queue that was under way at the last claim leaves the
    next one to one statement.
    """
    with with_cursor(database) as reader, psycopg.connect(database) as other:
        enqueue(other, queue="another")
        first = enqueue(conn)
        assert reader.claim().job_ids == [first]
        other.commit()
        only_the_shortcut(database)
        second = enqueue(conn)
        assert reader.claim().job_ids == [second]


# -- what it leaves ------------------------------------------------------------------------------


def a_late_committer_of_the_next_window_is_served(dsn: str) -> None:
    with connect(dsn) as conn, with_cursor(dsn) as reader, psycopg.connect(dsn) as slow:
        late = enqueue(slow)
        first = enqueue(conn)
        assert reader.claim().job_ids == [first]
        slow.commit()
        second = enqueue(conn)
        assert sorted(reader.claim().job_ids) == sorted([late, second])


def a_late_committer_of_an_earlier_segment_is_served(dsn: str) -> None:
    """Its rows lie in the segment before, which was sealed while it was open."""
    with connect(dsn) as conn, with_cursor(dsn) as reader, psycopg.connect(dsn) as slow:
        small_segments(conn, rows=100, reserve=1000)
        late = enqueue(slow)
        first = [enqueue(conn) for _ in range(110)]
        one(conn, "select forebay.seal_v1()")
        assert reader.claim(1000).job_ids == first
        slow.commit()
        second = enqueue(conn)
        assert sorted(reader.claim().job_ids) == [late, second]


def a_late_committer_of_the_window_in_hand_is_served(dsn: str) -> None:
    with (
        connect(dsn) as conn,
        with_cursor(dsn) as reader,
        psycopg.connect(dsn) as slow,
        psycopg.connect(dsn) as slower,
    ):
        late = [enqueue(slow), enqueue(slower)]
        first = enqueue(conn)
        assert reader.claim().job_ids == [first]
        slow.commit()
        slower.commit()
        more = [enqueue(conn) for _ in range(6)]
        # Late ones come first; after one of them the window is in hand, with the other still to
        # come.
        taken = reader.claim(1).job_ids
        taken += reader.claim(3).job_ids + reader.claim(10).job_ids
        assert sorted(taken) == sorted([*late, *more])


def a_writer_of_an_older_segment_is_served(dsn: str) -> None:
    with connect(dsn) as conn, with_cursor(dsn) as reader:
        small_segments(conn, rows=100, reserve=1000)
        first = [enqueue(conn) for _ in range(95)]
        assert reader.claim(1000).job_ids == first
        ids = [enqueue(conn) for _ in range(20)]  # on both sides of a border, neither side sealed
        assert reader.claim(1000).job_ids == ids


def a_border_that_is_crossed_during_the_claim_is_seen(dsn: str) -> None:
    """The segment was the newest when the claim chose it, and no more when it read it."""
    with connect(dsn) as conn, with_cursor(dsn) as reader:
        small_segments(conn, rows=100, reserve=1000)
        enqueue(conn)
        reader.finish(reader.claim())
        assert one(conn, "select forebay.seal_v1()") > 0
        segment = one(
            conn,
            "select segment_id from forebay.segment"
            " where lo <= (select last_value from forebay.log_seq) order by lo desc limit 1",
        )
        ids = [enqueue(conn) for _ in range(120)]
        lane = lane_of("default", conn)
        shortcut = f"select forebay._take_{segment}(%s, 1000, 1, %s, %s, 1000)"
        assert one(conn, shortcut, reader.lease_id, reader.group_id, lane) is None
        assert reader.claim(1000).job_ids == ids


def a_window_that_is_not_full_goes_on_in_the_next_segment(dsn: str) -> None:
    """The window in hand ends in the middle of a claim, and its segment is not the newest."""
    with connect(dsn) as conn, with_cursor(dsn) as reader:
        small_segments(conn, rows=100, reserve=1000)
        ids = enqueue_many(conn, [{"kind": "work"}] * 150)
        taken = reader.claim(50).job_ids + reader.claim(40).job_ids
        taken += reader.claim(40).job_ids + reader.claim(40).job_ids
        assert taken == ids


def a_paused_group_gets_nothing(dsn: str) -> None:
    with connect(dsn) as conn, with_cursor(dsn) as reader:
        enqueue(conn)
        conn.execute("select forebay.pause_queue('default')")
        assert reader.claim().job_ids == []


def suspects_come_one_by_one(dsn: str) -> None:
    with connect(dsn) as conn, with_cursor(dsn) as reader:
        ids = [enqueue(conn) for _ in range(4)]
        assert reader.claim().job_ids == ids
        assert reader.revoked_by(conn) == 4
        with Reader(dsn) as other:
            sizes = [len(batch.jobs) for batch in other.claim_all()]
        assert sizes == [1, 1, 1, 1]


def a_cancelled_job_is_not_handed_out(dsn: str) -> None:
    with connect(dsn) as conn, with_cursor(dsn) as reader:
        first, second, third = (enqueue(conn) for _ in range(3))
        assert one(conn, "select forebay.cancel(%s)", second) == "cancelled"
        assert reader.claim().job_ids == [first, third]
        assert state(conn, second) == "cancelled"


def an_expired_job_is_not_handed_out(dsn: str) -> None:
    with connect(dsn) as conn, with_cursor(dsn) as reader:
        (job,) = conn.execute(
            "select forebay.enqueue('work', expires_at => clock_timestamp() + '0.2 s')"
        ).fetchone()
        other = enqueue(conn)
        wait_for(
            lambda: one(
                conn, "select clock_timestamp() > expires_at from forebay.log where seq = %s", job
            )
        )
        assert reader.claim().job_ids == [other]
        assert state(conn, job) == "expired"


def a_closed_lease_takes_nothing(dsn: str) -> None:
    with connect(dsn) as conn, with_cursor(dsn) as reader:
        job = enqueue(conn)
        conn.execute("select forebay.close_lease_v1(%s)", [reader.lease_id])
        with pytest.raises(psycopg.Error) as refused:
            reader.claim()
        assert refused.value.sqlstate == "JQ010"
        assert state(conn, job) == "ready"


LATE_NEXT = (
    "l.lane = p_lane and l.xid = late.xid limit 1",
    "false and l.lane = p_lane and l.xid = late.xid limit 1",
)
LATE_EARLIER = ("f.xid > late.xid", "false")
LATE_IN_HAND = (
    (
        "or not exists (select from pg_snapshot_xip(b.snap_from) late (xid)\n"
        "                                   where"
        " pg_visible_in_snapshot(late.xid, b.snap_to))"
    ),
    "or true",
)
NEWEST = ("pg_sequence_last_value('forebay.log_seq') <", "true or 0 <")
EARLIER_SEALED = (
    ("exists (select from forebay.seal f where"),
    "true or exists (select from forebay.seal f where",
)
FULL = ("(c.whole or t.size = p_limit)", "true")

PROMISES: list[tuple[Callable[[str], None], tuple[str, str]]] = [
    (a_late_committer_of_the_next_window_is_served, LATE_NEXT),
    (a_late_committer_of_an_earlier_segment_is_served, LATE_EARLIER),
    (a_late_committer_of_the_window_in_hand_is_served, LATE_IN_HAND),
    (a_writer_of_an_older_segment_is_served, EARLIER_SEALED),
    (a_border_that_is_crossed_during_the_claim_is_seen, NEWEST),
    (a_window_that_is_not_full_goes_on_in_the_next_segment, FULL),
    (
        a_paused_group_gets_nothing,
        ("and (g.paused_at is null or g.resume_at <= forebay._now())", ""),
    ),
    (suspects_come_one_by_one, ("l.audience < 0", "false")),
    (
        a_cancelled_job_is_not_handed_out,
        ("pg_sequence_last_value('forebay.tombstone_seq') is null", "true"),
    ),
    (an_expired_job_is_not_handed_out, ("and t.expires > c.at", "")),
    (a_closed_lease_takes_nothing, ("and i.closed_at is null", "")),
]


@pytest.mark.parametrize("promise", [promise for promise, _ in PROMISES], ids=lambda p: p.__name__)
def test_the_shortcut_leaves_what_is_not_plain(database, promise):
    """Late committers, borders of segments, pauses, suspects, tombstones, closed leases."""
    promise(database)


@pytest.mark.slow
@pytest.mark.parametrize(("promise", "guard"), PROMISES, ids=lambda p: getattr(p, "__name__", ""))
def test_the_shortcut_needs_each_of_its_conditions(database, promise, guard):
    """Without the condition the promise is seen broken."""
    # Those that need small segments make them: then it is their maker that has to be broken.
    if guard in {NEWEST, EARLIER_SEALED, LATE_EARLIER, FULL}:
        break_function(database, "_make_segment_functions", guard)
    else:
        break_shortcut(database, guard)
    with violation(psycopg.Error):
        promise(database)

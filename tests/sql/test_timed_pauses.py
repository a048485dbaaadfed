"""Pauses of a queue that end by themselves: claims look at the time, so that no worker and no
duty is needed for it.

Each guard has a mutant without it, with which jobs stay paused, or a session sleeps on.
"""

from datetime import timedelta

import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    lane_of,
    one,
    shift_clock,
    sqlstate,
)
from tests.support.mutant import break_function, break_shortcut, violation

PAUSE = "select forebay.pause_queue('default', until => forebay._now() + %s)"
COLUMN = (
    "forebay._paused_since(g.paused_at, g.resume_at) as paused_at",
    "g.paused_at",
)
CONDITION = ("(g.paused_at is null or g.resume_at <= forebay._now())", "g.paused_at is null")


def pause(conn, seconds: float) -> int:
    """Pause the queue ``default`` for a time."""
    return one(conn, PAUSE, timedelta(seconds=seconds))


def ends_by_itself(database: str, **options: str) -> None:
    """Jobs with some options are not claimed while the pause lasts, and are claimed as soon as
    it is over.
    """
    with connect(database) as conn, Reader(database) as reader:
        job_ids = [enqueue(conn, **options) for _ in range(2)]
        lanes = [row["lane"] for row in reader.ready()]
        assert lanes, "the job is ready"
        assert pause(conn, 60) == 1
        assert reader.ready() == []
        assert reader.claim(1, lanes[0]).jobs == []
        shift_clock(conn, 61)
        try:
            assert [row["lane"] for row in reader.ready()] == lanes
            assert reader.claim(1, lanes[0]).job_ids == job_ids[:1]
            assert one(conn, "select paused_at is null and resume_at is null from forebay.groups()")
        finally:
            shift_clock(conn)


@pytest.mark.parametrize(
    "options", [{}, {"ordering_key": "k"}, {"limit_key": "k"}], ids=["plain", "ordering", "limit"]
)
def test_a_pause_ends_by_itself(database, options):
    """Nothing is claimed while it lasts.

    Afterwards the next poll finds the jobs, in the same session, without a call.
    """
    ends_by_itself(database, **options)


@pytest.mark.parametrize(
    ("function", "guard", "options"),
    [
        ("ready_v1", CONDITION, {}),
        ("_take", COLUMN, {"priority": -7}),
        ("_take_keyed", COLUMN, {"ordering_key": "k"}),
        ("_claim_limited", COLUMN, {"limit_key": "k"}),
        ("_read_limited", COLUMN, {"limit_key": "k"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_without_the_time_a_pause_does_not_end(database, function, guard, options):
    """Each place that looks at the pause has to look at its end."""
    break_function(database, function, guard)
    with violation():
        ends_by_itself(database, **options)


def test_the_quick_claim_looks_at_the_time_too(database):
    """Otherwise each claim after a pause would take the slow way."""
    with connect(database) as conn, Reader(database) as reader:
        enqueue(conn)
        reader.finish(reader.claim())
        enqueue(conn)
        assert pause(conn, 60) == 1
        shift_clock(conn, 61)
        try:
            break_function(database, "_take", ("begin\n", "begin\n    raise exception 'slow';\n"))
            assert len(reader.claim().jobs) == 1
            enqueue(conn)
            break_shortcut(database, CONDITION)
            with violation(Exception):
                assert len(reader.claim().jobs) == 1
        finally:
            shift_clock(conn)


def wakes_in_time(database: str) -> None:
    """An idle session remembers its poll for five seconds, and no longer than to the end of the
    pause.
    """
    with connect(database) as conn, Reader(database) as reader:
        enqueue(conn)
        assert pause(conn, 3) == 1
        for _ in range(2):
            assert reader.ready() == []
        shift_clock(conn, 3.5)
        try:
            assert reader.ready() != []
        finally:
            shift_clock(conn)


def test_an_idle_session_finds_the_end_of_a_pause(database):
    """Its memory of an idle poll ends with the pause."""
    wakes_in_time(database)


def test_without_the_end_in_its_memory_a_session_sleeps_on(database):
    """A poll that is remembered for the full five seconds misses the end of a pause of three."""
    break_function(
        database,
        "ready_v1",
        ("pg_sequence_last_value('forebay.timed_pause_seq') is not null", "false"),
    )
    with violation():
        wakes_in_time(database)


def shorter(database: str) -> None:
    """A pause is replaced by one that ends before the memory of the earlier one."""
    with connect(database) as conn, Reader(database) as reader:
        enqueue(conn)
        assert pause(conn, 3600) == 1
        assert reader.ready() == []
        assert pause(conn, 2) == 1
        shift_clock(conn, 2.5)
        try:
            assert reader.ready() != []
        finally:
            shift_clock(conn)


def test_a_pause_is_replaced(database):
    """A shorter pause ends at its time, also for a session that remembers the longer one."""
    shorter(database)


def test_without_forgetting_the_polls_a_shorter_pause_is_missed(database):
    """The session relies on what it remembers."""
    break_function(database, "pause_queue", ("perform forebay._forget_polls();", "perform 1;"))
    with violation():
        shorter(database)


def test_one_pause_of_each_group(conn):
    """A call replaces the pause that lasts, keeps its begin, counts what changed, and resuming
    ends either sort.
    """
    state = (
        "select paused_at, resume_at from forebay.queue_group where queue = 'q' order by group_id"
    )
    conn.execute("select forebay.open_group('q', 'a'), forebay.open_group('q', 'b')")
    until = "select forebay.pause_queue('q', until => now() + interval '1 hour')"
    with conn.transaction():
        assert one(conn, until) == 2
        assert one(conn, until) == 0, "the same time: nothing changes"
    begun = [row[0] for row in conn.execute(state).fetchall()]
    assert one(conn, "select forebay.pause_queue('q', 'a')") == 1
    rows = conn.execute(state).fetchall()
    assert sorted(row[1] is None for row in rows) == [False, True]
    assert [row[0] for row in rows] == begun
    assert one(conn, "select count(resume_at) from forebay.groups('q')") == 1
    assert one(conn, "select forebay.resume_queue('q')") == 2
    assert conn.execute(state).fetchall() == [(None, None)] * 2
    assert one(
        conn,
        (
            "select new ? 'until' from forebay.event where act = 'queues.pause' order by "
            "event_id limit 1"
        ),
    )


@pytest.mark.parametrize("until", ["2001-01-01", "2999-01-01", "-infinity", "infinity"])
def test_a_time_that_is_none_is_refused(conn, until):
    """It is not in the past and not beyond ten years.

    Nothing changes, not even an implied group.
    """
    assert (
        sqlstate(conn, "select forebay.pause_queue('q', until => %s::timestamptz)", until)
        == "JQ001"
    )
    assert one(conn, "select count(*) from forebay.queue_group") == 0


def test_a_pause_that_has_ended_is_no_pause(database, conn):
    """It is not counted as resumed, and a group that is closed meanwhile does not come back when
    its time is over.
    """
    lane = lane_of("default", conn)
    with Reader(database) as reader:
        enqueue(conn)
        assert pause(conn, 60) == 1
        shift_clock(conn, 61)
        try:
            assert one(conn, "select forebay.resume_queue('default')") == 0
            assert pause(conn, 60) == 1
            conn.execute("select forebay.close_group('default', force => true)")
            shift_clock(conn, 200)
            assert reader.ready() == []
            assert reader.claim(1, lane).jobs == []
        finally:
            shift_clock(conn)

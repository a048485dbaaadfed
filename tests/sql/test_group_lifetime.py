"""Consumer groups from their opening to their end: implied groups, closing, and what closing
leaves to others.
"""

import threading
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    open_group,
    shift_clock,
    small_segments,
    sqlstate,
    state,
    states,
    trim,
)
from tests.support.mutant import break_function, violation
from tests.support.plans import pages
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def groups(conn, queue="default"):
    rows = conn.execute("select group_name from forebay.groups(%s)", [queue]).fetchall()
    return [name for (name,) in rows]


def close(conn, queue="default", name="default", **options):
    """Begin to close a group; return (cancelled, running, segments, bytes)."""
    return conn.execute(
        "select * from forebay.close_group(%s, %s, %s, %s)",
        [queue, name, options.get("force", False), options.get("dry_run", False)],
    ).fetchone()


def finish_closing(conn):
    while one(conn, "select forebay.close_groups()"):
        pass


def claim_all(reader):
    return [job for batch in reader.claim_all() for job in batch.job_ids]


def named_group_gets_what_waited(database, conn, before):
    waiting = [enqueue(conn) for _ in range(3)]
    one(conn, before)
    later = enqueue(conn)
    assert groups(conn) == ["default"]
    with Reader(database, group="indexer") as reader:
        one(conn, "select forebay.resume_queue('default')")
        assert claim_all(reader) == [*waiting, later]
    assert groups(conn) == ["indexer"]


@pytest.mark.parametrize(
    "before",
    ["select expired from forebay.sweep_v1()", "select forebay.pause_queue('default')"],
    ids=["sweep", "pause"],
)
def test_the_first_named_group_gets_what_waited_before_any_worker(database, conn, before):
    """
    The sweep and a pause open a group for a queue without any. It is implied: the first group that
    a worker opens takes it over, so that no job is missed, and none expires in a group that no
    worker ever serves.
    """
    named_group_gets_what_waited(database, conn, before)


def test_a_named_group_beside_an_implied_one_would_miss_jobs(database, conn):
    break_function(
        database, "open_group", ("where g.queue = open_group.queue and g.is_implied", "where false")
    )
    with violation():
        named_group_gets_what_waited(database, conn, "select expired from forebay.sweep_v1()")


def test_a_group_that_takes_over_keeps_expiries_and_the_pause(database, conn):
    """What expired before the first worker came has its dead letter in that worker's group, and
    does not run.
    """
    expired = [
        enqueue(conn, expires_at=datetime.now(UTC) + timedelta(seconds=30)) for _ in range(2)
    ]
    waiting = enqueue(conn)
    shift_clock(conn, 60)
    assert one(conn, "select expired from forebay.sweep_v1()") > 0
    one(conn, "select forebay.pause_queue('default')")
    with Reader(database, group="indexer") as reader:
        assert claim_all(reader) == []
        assert one(conn, "select forebay.resume_queue('default', 'indexer')") == 1
        assert claim_all(reader) == [waiting]
        assert [states(conn, job) for job in expired] == [{"indexer": "expired"}] * 2
    with Reader(database, group="second") as second:
        assert claim_all(second) == []  # A later group starts now.


def test_a_worker_of_the_default_group_makes_the_implied_group_real(database, conn):
    job = enqueue(conn)
    one(conn, "select expired from forebay.sweep_v1()")
    with Reader(database) as reader, Reader(database, group="later") as later:
        assert claim_all(reader) == [job]
        assert claim_all(later) == []
    assert groups(conn) == ["default", "later"]
    assert not one(conn, "select bool_or(is_implied) from forebay.groups()")


def test_an_explicit_start_now_holds_for_the_first_group_too(database, conn):
    enqueue(conn)
    one(conn, "select expired from forebay.sweep_v1()")
    open_group(conn, "default", "indexer", "now")
    later = enqueue(conn)
    with Reader(database, group="indexer") as reader:
        assert claim_all(reader) == [later]
    assert groups(conn) == ["indexer"]


def test_two_sessions_that_open_the_first_group_at_once_leave_no_implied_group(database, conn):
    """One of them waits for the other; the queue never has an implied group beside a real one."""
    enqueue(conn)
    with psycopg.connect(database) as worker, connect(database) as sweeper:
        open_group(worker, "default", "indexer")
        thread = threading.Thread(
            target=lambda: one(sweeper, "select expired from forebay.sweep_v1()")
        )
        thread.start()
        wait_for(
            lambda: one(
                conn,
                (
                    "select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock' "
                    "and datname = current_database()"
                ),
            )
        )
        worker.commit()
        thread.join()
    assert groups(conn) == ["indexer"]


def close_one_of_two(database, conn):
    with Reader(database) as stays, Reader(database, group="goes") as goes:
        done = enqueue(conn)
        running = enqueue(conn)
        for reader in (stays, goes):
            reader.finish(reader.claim(1))
        kept, batch = stays.claim(1), goes.claim(1)
        assert batch.job_ids == [running]
        retried = enqueue(conn)
        stays.claim(1)
        retry = goes.claim(1)
        ended = [{"offset": 1, "outcome": "retried", "delay": 3600, "attempt": 1}]
        assert goes.settle(retry.claim_no, ended=ended) == "settled"
        goes.open_claims.discard(retry.claim_no)
        waiting = [enqueue(conn) for _ in range(5)]
        assert sqlstate(conn, "select forebay.close_group('default', 'goes')") == "JQ017"
        assert close(conn, name="goes", dry_run=True)[:2] == (6, 1)
        assert sorted(groups(conn)) == ["default", "goes"]
        assert close(conn, name="goes", force=True)[:2] == (6, 1)
        finish_closing(conn)
        assert "goes" in groups(conn)  # Its running job ends first.
        assert goes.claim().jobs == []
        assert goes.ready() == []
        assert sqlstate(conn, "select forebay.open_group('default', 'goes')") == "JQ017"
        assert one(conn, "select forebay.resume_queue('default')") == 0
        goes.finish(batch)
        finish_closing(conn)
        assert groups(conn) == ["default"]
        assert states(conn, done) == {"default": "done"}
        assert states(conn, retried) == {"default": "claimed"}
        group_id = goes.group_id
        for table in ("batch", "parked", "key_run", "limiter", "counter_waiting", "queue_group"):
            assert (
                one(conn, f"select count(*) from forebay.{table} where group_id = %s", group_id)
                == 0
            ), table
        assert (
            one(conn, "select count(*) from forebay.lane where abs(audience) = %s", group_id) == 0
        )
        assert one(conn, "select count(*) from forebay.deferred") == 0
        assert one(conn, "select lanes is null from forebay.closed_group")
        assert claim_all(stays) == waiting
        assert kept.job_ids == [running]
        assert depth(conn) == {"default": (0, 7, 0)}


def test_closing_a_group_leaves_nothing_of_it_and_everything_of_others(database, conn):
    """Its running job ends first; its waiting jobs and retries are given up.

    The other group gets each of its jobs.
    """
    close_one_of_two(database, conn)


def test_closing_would_end_a_group_under_its_running_job(database, conn):
    break_function(
        database,
        "close_groups",
        (
            (
                "continue when exists (select from forebay._open_jobs() o where o.group_id = "
                "v_group.group_id);"
            ),
            "",
        ),
    )
    with violation(psycopg.Error):
        close_one_of_two(database, conn)


def test_jobs_enqueued_while_the_only_group_closes_wait_for_the_next_one(database, conn):
    """Those that waited before are given up: they never run, in no group."""
    with Reader(database) as reader:
        first = enqueue(conn)
        running = reader.claim()
        given_up = enqueue(conn)
        assert close(conn, force=True)[:2] == (1, 1)
        during = enqueue(conn)
        finish_closing(conn)
        reader.finish(running)
        finish_closing(conn)
    after = enqueue(conn)
    assert one(conn, "select is_implied from forebay.groups('default')")
    assert depth(conn) == {"default": (2, 0, 0)}
    with Reader(database, group="new") as reader:
        assert claim_all(reader) == [during, after]
    assert states(conn, first) == states(conn, given_up) == {}


def a_claim_crosses_the_closing(database, conn):
    """A claim that looked before the closing commits after it, with a job that was enqueued
    after the closing began.
    """
    with (
        Reader(database) as reader,
        psycopg.connect(database) as closer,
        connect(database) as other,
    ):
        old = enqueue(conn)
        assert reader.claim().job_ids == [old]
        reader.open_claims.clear()
        reader.settle(1)
        closer.execute("select * from forebay.close_group('default', force => true)")
        new = enqueue(conn)
        # The claim sees the new job, and not the closing.
        batch = reader.claim()
        assert batch.job_ids == [new]
        closer.commit()
        reader.finish(batch)
        finish_closing(other)
    last = enqueue(conn)
    with Reader(database, group="next") as reader:
        assert claim_all(reader) == [last]


def test_no_job_runs_again_because_its_claim_crossed_the_closing(database, conn):
    """The implied group begins after what the closing group claimed."""
    a_claim_crosses_the_closing(database, conn)


def test_a_job_would_run_again_if_the_implied_group_began_at_the_closing(database, conn):
    break_function(database, "_delete_group", ("v_heir_id is not null", "false"))
    with violation():
        a_claim_crosses_the_closing(database, conn)


def closing_waits_for_a_claim(database, conn):
    """A claim holds its lane's lock while it works; closing ends only after it."""
    with Reader(database) as reader, psycopg.connect(database) as claim:
        jobs = [enqueue(conn) for _ in range(2)]
        key = "select forebay._lock_lane(%s, forebay._lane_id('default', 100, 0))"
        claim.execute(key, [reader.group_id])
        close(conn, force=True)
        with connect(database) as closer:
            closer.execute("set lock_timeout = '100ms'")
            assert sqlstate(closer, "select forebay.close_groups()") == "55P03"
        assert groups(conn) == ["default"]
        claim.rollback()
        finish_closing(conn)
        assert one(conn, "select is_implied from forebay.groups('default')")
        assert state(conn, jobs[0]) is None


def test_closing_waits_for_a_claim_that_began_before_it(database, conn):
    break_function(database, "close_groups", ("'2s'", "'100ms'"))
    closing_waits_for_a_claim(database, conn)


def test_closing_waits_for_trimming_that_deletes_the_same_rows(database, conn):
    """Two sessions that delete the same rows in different orders would end in a deadlock."""
    break_function(database, "close_groups", ("'2s'", "'100ms'"))
    with Reader(database, group="goes") as reader:
        enqueue(conn)
        reader.finish(reader.claim())
    close(conn, name="goes", force=True)
    while "goes" in groups(conn):
        one(conn, "select forebay.close_groups()")
    with psycopg.connect(database) as trimming:
        trimming.execute("select * from forebay.trim_v1('batches')")
        assert sqlstate(conn, "select forebay.close_groups()") == "55P03"
    finish_closing(conn)
    assert one(conn, "select count(*) from forebay.batch where lease_id is not null") == 0


def test_closing_releases_the_segments_that_only_the_group_kept(database, conn):
    """And the list shows them before."""
    small_segments(conn, rows=100, reserve=1000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(conn, "select forebay.configure('retention_days', 0)")
    with Reader(database) as reader:
        open_group(conn, "default", "forgotten", "beginning")
        for _ in range(4):
            enqueue_many(conn, [{"kind": "work"}] * 100)
            one(conn, "select forebay.seal_v1()")
            for batch in reader.claim_all():
                reader.finish(batch)
        reader.claim()
        assert one(conn, "select emptied from forebay.retain_v1()") is None
        listed = dict(
            conn.execute(
                "select group_name, (unread, held_segments)::text from forebay.groups()"
            ).fetchall()
        )
        assert listed["default"] == "(0,0)"
        held = int(listed["forgotten"].strip("()").split(",")[1])
        assert held >= 3
        cancelled, running, segments, size = close(conn, name="forgotten")
        assert (cancelled, running, segments) == (400, 0, held)
        assert size > 0
        finish_closing(conn)
        assert one(conn, "select emptied from forebay.retain_v1()") is not None
        assert groups(conn) == ["default"]


@pytest.mark.slow
def test_each_way_to_keep_a_segment_is_listed_as_retention_sees_it(database, conn):
    """A cursor behind it, a running job, a job that waits for its key: the list counts the
    segment for the group that has it.
    """
    small_segments(conn, rows=100, reserve=1000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(conn, "select forebay.configure('retention_days', 0)")

    def held(queue):
        return one(conn, "select held_segments from forebay.groups(%s)", queue)

    with (
        Reader(database, "runs") as runs,
        Reader(database, "keyed") as first,
        Reader(database, "keyed") as second,
        Reader(database, "unread") as unread,
        Reader(database, "later") as later,
    ):
        enqueue(conn, queue="keyed", ordering_key="k")
        holding = first.claim_ready()
        job = enqueue(conn, queue="keyed", ordering_key="k")
        assert second.claim_ready().jobs == []  # The cursor passes it; it is parked.
        enqueue(conn, queue="runs")
        running = runs.claim_ready()
        enqueue(conn, queue="unread")
        enqueue_many(conn, [{"kind": "work", "queue": "later"}] * 100)
        one(conn, "select forebay.seal_v1()")
        for batch in later.claim_all():
            later.finish(batch)
        enqueue(conn, queue="runs")
        runs.finish(runs.claim_ready())
        enqueue(conn, queue="keyed", ordering_key="other")
        second.finish(second.claim_ready())
        first.finish(holding)
        reasons = conn.execute(
            "select h.group_id, h.reason from forebay.segment s,"
            " forebay._segment_holders(array[s.segment_id], false) h where s.lo <= %s and "
            "s.hi > %s",
            [job, job],
        ).fetchall()
        assert set(reasons) == {
            (unread.group_id, "queue unread, priority 100: group default has not passed it"),
            (runs.group_id, "worker default@test still has jobs of it"),
            (first.group_id, "jobs of it wait for their key"),
        }
        assert (held("unread"), held("runs"), held("keyed")) == (0, 0, 0)  # Several keep it.
        unread.finish(unread.claim_ready())
        assert (held("runs"), held("keyed")) == (0, 0)
        runs.finish(running)
        assert held("keyed") == 1
        assert one(conn, "select emptied from forebay.retain_v1()") is None
        for batch in second.claim_all():
            second.finish(batch)
        assert held("keyed") == 0
        assert one(conn, "select emptied from forebay.retain_v1()") is not None


@pytest.mark.slow
def test_retention_reads_the_lanes_of_the_segment_not_all_lanes(database, conn):
    """Two thousand lanes with a cursor each, of which a segment has rows of one."""
    small_segments(conn, rows=3000, reserve=20_000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > 3000")
    with Reader(database) as reader:
        enqueue_many(conn, [{"kind": "work", "queue": "many", "priority": n} for n in range(2000)])
        open_group(conn, "many", start="now")
        enqueue_many(conn, [{"kind": "work"}] * 7000)
        one(conn, "select forebay.seal_v1()")
        while (batch := reader.claim_ready(1000)).jobs:
            reader.finish(batch)
        query = "select forebay.segment_held_by((select max(segment_id) from forebay.seal))"
        pages(conn, query, [])
        assert one(conn, query) is None
        read = pages(conn, query, [])
        assert read < 150, read


def test_dead_letters_of_a_closed_group_are_read_and_not_redriven(database, conn):
    with Reader(database, group="goes") as goes, Reader(database):
        enqueue(conn)
        batch = goes.claim()
        ended = [{"offset": 1, "outcome": "dead", "attempt": 1, "reason": "permanent"}]
        assert goes.settle(batch.claim_no, ended=ended) == "settled"
    dead_id = one(conn, "select dead_id from forebay.dead_letter")
    close(conn, name="goes", force=True)
    assert sqlstate(conn, f"select forebay.redrive({dead_id})") == "JQ014"
    finish_closing(conn)
    assert one(conn, "select forebay._group_name(group_id) from forebay.dead_letter") == "goes"
    assert sqlstate(conn, f"select forebay.redrive({dead_id})") == "JQ014"
    assert one(conn, "select forebay.redrive_matching()") == 0
    again = open_group(conn, "default", "goes")
    assert one(conn, "select count(*) from forebay.dead_letter where group_id = %s", again) == 0


def test_rows_of_a_closed_group_are_deleted_in_bounded_steps(database, conn):
    with Reader(database, group="goes") as goes:
        for _ in range(40):
            enqueue(conn)
            goes.finish(goes.claim())
    close(conn, name="goes", force=True)
    steps = 0
    while one(conn, "select forebay.close_groups(10)"):
        steps += 1
        assert steps < 100
    assert steps >= 6
    assert one(conn, "select count(*) from forebay.batch") == 0
    assert one(conn, "select count(*) from forebay.settlement") == 0


def test_a_count_that_commits_after_the_end_of_its_group_is_deleted(database, conn):
    """An enqueue counted for the group, and was open while the group was closed.

    So were jobs of forgotten lanes counted.
    """
    open_group(conn, "default", "goes")
    one(
        conn,
        "select forebay.limit_queue('default', max_waiting => 1000, max_waiting_group => 'goes')",
    )
    enqueue_many(conn, [{"kind": "work"}] * 950)
    enqueue_many(conn, [{"kind": "work", "queue": "other"}] * 100)  # Their numbers make it count.
    with psycopg.connect(database) as late, Reader(database):
        group_id = open_group(late, "default", "goes")
        conn.execute("insert into forebay.forgotten values ('default', %s, 100, 5)", [group_id])
        enqueue_many(late, [{"kind": "work"}] * 45)
        close(conn, name="goes", force=True)
        finish_closing(conn)
        late.commit()
    counts = "select array(select group_id from forebay.counter_waiting where group_id = %s)"
    assert one(conn, counts, group_id) == [group_id]
    trim(conn, "waiting", most=1)
    assert one(conn, counts, group_id) == []
    assert one(conn, "select count(*) from forebay.forgotten") == 0
    one(conn, "select forebay.renew_counters_v1(0)")
    trim(conn, "waiting", most=1)
    counted = "select count(*) from forebay.counter_waiting where queue = 'default'"
    assert one(conn, counted) == 1  # That of the other group.


def test_what_cannot_be_closed_is_refused(conn):
    open_group(conn, "q", "g")
    for query in (
        "select forebay.close_group('q', 'other')",
        "select forebay.close_group('nowhere')",
    ):
        assert sqlstate(conn, query) == "JQ014"
    assert sqlstate(conn, "select forebay.close_group('q', null)") == "JQ001"
    for most in (0, -1, None):
        assert sqlstate(conn, "select forebay.close_groups(%s)", most) == "JQ001"
    assert close(conn, "q", "g")[:2] == close(conn, "q", "g")[:2] == (0, 0)

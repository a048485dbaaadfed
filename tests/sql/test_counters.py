"""Counters agree: depth() is the sum over job(), whatever happened to the jobs, and it visits
none of those that just wait.
"""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    open_group,
    shift_clock,
    small_segments,
    sqlstate,
    state,
    trim,
)
from tests.support.job_life import STATES, Life, by_job, by_state
from tests.support.mutant import break_function, violation
from tests.support.plans import pages

#: A page holds at least fifty rows of an index: what 5 ms visit is at most so many pages, in
#: memory.
_PAGES_OF_5_MS = 600


_PLACE = ("queue", "priority", "group_name")


def by_depth(conn) -> Counter:
    """Return the numbers that depth() shows, by queue, priority, group and state."""
    return by_state(conn, f"select {', '.join((*_PLACE, *STATES))} from forebay.depth()")


def agree(conn, jobs) -> None:
    """Compare depth() with the states of all jobs, also when it begins from the last count and
    when it counts everything.
    """
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        before, found = by_job(conn, jobs, _PLACE), by_depth(conn)
        assert found in (before, by_job(conn, jobs, _PLACE))
    with conn.transaction(force_rollback=True):
        conn.execute("delete from forebay.counter_waiting")
        before, found = by_job(conn, jobs, _PLACE), by_depth(conn)
        # A job may become due or expire meanwhile.
        assert found in (before, by_job(conn, jobs, _PLACE))


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_depth_is_the_sum_over_the_states_of_all_jobs(database, conn, seed, keyed):
    """
    After every random act, for two groups, priorities, limit keys, shards and ordering keys:
    depth() from the last count, and a full recount, agree with job().
    """
    small_segments(conn)
    life = Life(database, conn, seed, keyed=keyed)
    if seed == 1:
        one(conn, "select forebay.shard_queue('default', 3)")
    life.go(120, agree)


def renewed(conn) -> int:
    """Append a count for each group."""
    return one(conn, "select forebay.renew_counters_v1(0)")


def is_full(conn, **options) -> bool:
    given = "".join(f", {name} => %s" for name in options)
    found = sqlstate(conn, f"select forebay.enqueue('work'{given})", *options.values())
    assert found in (None, "53400"), found
    return found is not None


@pytest.mark.slow
@pytest.mark.parametrize("renew", [False, True])
def test_a_count_follows_the_jobs_of_ordering_keys(database, conn, renew):
    """
    From one count over a late commit below the cursor, parked, cancelled and requeued jobs, and a
    transaction that appends a count while it has jobs, to the last one: with and without a new
    count after each step.
    """
    with (
        Reader(database) as reader,
        Reader(database) as second,
        psycopg.connect(database) as late,
    ):
        jobs = [enqueue(conn, ordering_key="a") for _ in range(6)]
        renewed(conn)

        def step():
            agree(conn, jobs)
            if renew:
                renewed(conn)
                agree(conn, jobs)

        below = enqueue(late, ordering_key="b")
        one(late, "select forebay._waiting('default', %s, -1, 0)", reader.group_id)
        jobs += [enqueue(conn, ordering_key=key) for key in "abc"]
        step()
        first = reader.claim_ready(3)
        step()
        late.commit()
        jobs.append(below)
        step()
        second.claim_ready(2)
        second.claim_ready(2)
        step()
        parked = conn.execute("select seq from forebay.parked order by parked_no").fetchall()
        assert parked
        assert one(conn, "select forebay.cancel(%s)", parked[-1][0]) == "cancelled"
        step()
        reader.settle(first.claim_no, [2], ended=[{"offset": 1, "outcome": "retried", "after": 30}])
        step()
        for each in (reader, second):
            each.revoked_by(conn)
            each.open_lease()
            step()
        reader.claim_all()
        step()


def ready_and_cancelled(conn) -> list[tuple[str, int, int]]:
    """Return what depth() shows of each group; stats() shows the same ready jobs."""
    found = conn.execute(
        "select group_name, sum(ready)::int, sum(cancelled)::int from forebay.depth() "
        "group by 1 order by 1"
    ).fetchall()
    counted = "select group_name, sum(ready)::int from forebay.stats() group by 1 order by 1"
    assert conn.execute(counted).fetchall() == [(group, ready) for group, ready, _ in found]
    return found


@pytest.mark.parametrize("how", ["by id", "by filter", "in steps", "purge", "truncate"])
@pytest.mark.parametrize("keys", [{}, {"ordering_key": "k"}, {"limit_key": "k"}])
def test_cancelled_jobs_do_not_count_as_ready(database, conn, how, keys):
    """They count as cancelled until a claim has passed them, for each group apart, and then no
    more.
    """
    one(conn, "select forebay.limit_queue('default', key_concurrency => 1)")
    with Reader(database) as reader, Reader(database, group="second") as second:
        jobs = [enqueue(conn, kind="go", tag="t", **keys) for _ in range(4)]
        stay = [enqueue(conn, kind="stay", **keys) for _ in range(2)]
        if how == "by id":
            for job in jobs:
                assert one(conn, "select forebay.cancel(%s)", job) == "cancelled"
        elif how in ("purge", "truncate"):
            conn.execute('select forebay.change_jobs(%s, \'{"queue": "default"}\')', [how])
            jobs, stay = jobs + stay, [enqueue(conn, kind="stay", **keys)]
        else:
            most = 1 if how == "in steps" else None
            act = "select count(*) from forebay.change_jobs('cancel', %s, most => %s)"
            while one(conn, act, '{"kind": "go"}', most):
                pass
        left, gone = len(stay), len(jobs)
        both = [("default", left, gone), ("second", left, gone)]
        assert ready_and_cancelled(conn) == both
        assert {state(conn, job) for job in jobs} == {"cancelled"}
        agree(conn, jobs + stay)
        renewed(conn)
        one(conn, "select forebay.fold_v1()")
        assert ready_and_cancelled(conn) == both
        for _ in range(gone):  # A claim passes one job of a limit key.
            assert set(reader.claim_ready(10).job_ids) <= set(stay)
        assert [row[2] for row in ready_and_cancelled(conn)] == [0, gone]
        agree(conn, jobs + stay)
        trim(conn, "waiting")
        assert one(conn, "select count(*) from forebay.counter_cancelled") > 0
        for _ in range(gone):
            second.claim_ready(10)
        assert [row[2] for row in ready_and_cancelled(conn)] == [0, 0]
        agree(conn, jobs + stay)
        for each in (reader, second):  # A cursor in the middle of a window compares row by row.
            each.claim_all()
        trim(conn, "waiting")
        assert one(conn, "select count(*) from forebay.counter_cancelled") == 0
    agree(conn, jobs + stay)


def cancelled_twice(database, conn) -> tuple[int, int]:
    """Cancel jobs in two transactions that do not see each other, one after the other and all at
    once, and one of them while a claim takes it; return the ready and the cancelled ones.
    """
    with Reader(database) as reader, connect(database) as first, connect(database) as second:
        taken = enqueue(conn)
        jobs = [enqueue(conn) for _ in range(6)]
        one(conn, "select forebay.fold_v1()")
        with first.transaction(), second.transaction():
            for job in jobs[:4]:
                assert one(first, "select forebay.cancel(%s)", job) == "cancelled"
            assert one(first, "select forebay.cancel(%s)", taken) == "cancelled"
            given = json.dumps({"ids": [*jobs[2:5], taken]})
            one(second, "select count(*) from forebay.change_jobs('cancel', %s)", given)
            assert reader.claim(1).job_ids == [taken]
        agree(conn, [taken, *jobs])
        ((_, ready, cancelled),) = ready_and_cancelled(conn)
        return ready, cancelled


def test_a_job_counts_as_cancelled_once(database, conn):
    """Also if two sessions cancel it at the same moment; and not at all if a claim has taken it."""
    assert cancelled_twice(database, conn) == (1, 5)


def test_a_job_counts_as_cancelled_twice_if_rows_that_overlap_are_not_compared(database, conn):
    """The control."""
    break_function(
        database,
        "_cancelled_ahead",
        ("coalesce(max(f.high)", "false and coalesce(max(f.high)"),
        ("or coalesce(min(f.low)", "or false and coalesce(min(f.low)"),
    )
    with pytest.raises(AssertionError):
        cancelled_twice(database, conn)


def test_a_job_that_was_cancelled_before_it_was_ready_does_not_count_as_ready(database, conn):
    """Scheduled and due since, or claimed by a worker that was lost."""
    with Reader(database) as reader:
        held = enqueue(conn)
        assert reader.claim(1).job_ids == [held]
        later = [enqueue(conn, delay="1 s") for _ in range(3)]
        assert one(conn, "select forebay.cancel(%s)", held) == "requested"
        for job in later[:2]:
            assert one(conn, "select forebay.cancel(%s)", job) == "cancelled"
        reader.revoked_by(conn)
        agree(conn, [held, *later])
        assert ready_and_cancelled(conn) == [("default", 0, 1)]
        shift_clock(conn, 5)
        one(conn, "select forebay.promote_v1()")
        agree(conn, [held, *later])
        assert ready_and_cancelled(conn) == [("default", 1, 3)]


def test_a_job_that_waits_for_a_second_group_is_cancelled_for_it_too(database, conn):
    """A filter by state finds the row of one group only."""
    with Reader(database) as reader, Reader(database, group="second") as second:
        jobs = [enqueue(conn) for _ in range(2)]
        for each, outcome in ((reader, "retried"), (second, "released")):
            batch = each.claim(1)
            after = 60 if outcome == "retried" else None
            each.settle(
                batch.claim_no, [], ended=[{"offset": 1, "outcome": outcome, "after": after}]
            )
        given = json.dumps({"state": "ready"})
        one(conn, "select count(*) from forebay.change_jobs('cancel', %s)", given)
        agree(conn, jobs)
        assert ready_and_cancelled(conn) == [("default", 0, 1), ("second", 0, 2)]


def test_a_moved_job_that_a_claim_parks_afterwards_counts_once(database, conn):
    """Where the first count is made after that, too."""
    one(conn, "select forebay.limit_queue('default', key_concurrency => 1)")
    with Reader(database) as reader:
        jobs = [enqueue(conn, limit_key="k") for _ in range(4)]
        given = ["reprioritise", json.dumps({"ids": [jobs[2]]}), '{"priority": 5}']
        query = "select answer from forebay.change_jobs(%s, %s, %s, most => 9)"
        assert one(conn, query, *given) == "changed"
        (lane,) = [each["lane"] for each in reader.ready() if each["priority"] == 100]
        assert reader.claim(10, lane).job_ids == jobs[:1]
        agree(conn, jobs)


@pytest.mark.slow
def test_depth_visits_no_cancelled_job(conn):
    """It reads as few pages with 30,000 of them as with 3,000, also from the middle of a window."""
    open_group(conn, "default")
    fill = "select forebay.enqueue_many('work', array_fill('{}'::jsonb, array[%s]))"
    read = {}
    for most in (3_000, 27_000):
        one(conn, fill, most)
        conn.execute("select forebay.change_jobs('purge', '{\"queue\": \"default\"}')")
        renewed(conn)
        conn.execute("select * from forebay.depth()")  # The plans.
        read[most] = pages(conn, "select * from forebay.depth()", [])
    assert ready_and_cancelled(conn) == [("default", 0, 30_000)]
    assert read[27_000] < read[3_000] + 100, read


def test_a_queue_that_is_dropped_leaves_no_cancelled_jobs(conn):
    """Nor does a group that is closed."""
    open_group(conn, "default")
    enqueue(conn)
    enqueue(conn, delay="1 hour")
    one(conn, "select cancelled from forebay.drop_queue('default')")
    for _ in range(9):
        one(conn, "select forebay.close_groups()")
    trim(conn, "waiting")
    assert sum(row[2] for row in ready_and_cancelled(conn)) in (0, 1)


def test_a_cancelled_job_that_was_committed_past_due_is_subtracted(database, conn):
    """The position of promotions has passed its time, and its row is not promoted."""
    open_group(conn, "default")
    jobs = [enqueue(conn, delay="1 s")]
    with psycopg.connect(database) as late:
        jobs.append(enqueue(late, delay="1 s"))
        shift_clock(conn, 5)
        one(conn, "select forebay.promote_v1()")
        late.commit()
    assert state(conn, jobs[1]) == "scheduled"
    agree(conn, jobs)
    assert one(conn, "select forebay.cancel(%s)", jobs[1]) == "cancelled"
    agree(conn, jobs)
    renewed(conn)
    agree(conn, jobs)
    one(conn, "select forebay.promote_v1()")
    agree(conn, jobs)
    assert one(conn, "select count(*) from forebay.withdrawn") == 1
    trim(conn, "waiting")
    assert one(conn, "select count(*) from forebay.withdrawn") == 0


def test_a_job_that_came_and_was_promoted_between_two_counts_is_subtracted_once(conn):
    """The last count does not have its deferred row."""
    open_group(conn, "default")
    jobs = [enqueue(conn)]
    assert renewed(conn) == 1
    jobs.append(enqueue(conn, delay="1 s"))
    shift_clock(conn, 5)
    one(conn, "select forebay.promote_v1()")
    agree(conn, jobs)
    jobs.append(enqueue(conn, delay="1 s"))
    renewed(conn)
    shift_clock(conn, 10)
    one(conn, "select forebay.promote_v1()")
    agree(conn, jobs)
    trim(conn, "deferred")
    agree(conn, jobs)


def test_an_old_transaction_appends_no_count(database, conn):
    """What its count would need was deleted, because a newer count has it."""
    group_id = open_group(conn, "default")
    jobs = [enqueue(conn, delay="1 s")]
    with psycopg.connect(database) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        one(old, "select 1")
        shift_clock(conn, 5)
        one(conn, "select forebay.promote_v1()")
        renewed(conn)
        trim(conn, "deferred")
        trim(conn, "waiting")
        assert one(conn, "select count(*) from forebay.counter_change") == 0
        one(old, "select forebay._waiting('default', %s, -1, 0)", group_id)
        old.commit()
    assert one(conn, "select count(*) from forebay.counter_waiting") == 1
    with conn.transaction():
        assert by_depth(conn) == by_job(conn, jobs, _PLACE)


@pytest.mark.parametrize("guarded", [True, False])
def test_changes_stay_while_a_group_without_a_count_is_beside_one_with(database, conn, guarded):
    """A fold of the counters is newer than the count, and says nothing about what the count needs.

    The control deletes up to the fold.
    """
    if not guarded:
        break_function(database, "_trim_changes", ("continue when v_up_to is null;", ""))
    open_group(conn, "default")
    jobs = [enqueue(conn, delay="1 s") for _ in range(4)]
    renewed(conn)
    open_group(conn, "default", "second", "beginning")
    shift_clock(conn, 5)
    one(conn, "select forebay.promote_v1()")
    agree(conn, jobs)
    one(conn, "select forebay.fold_v1()")
    jobs.append(enqueue(conn, queue="other"))
    one(conn, "select forebay.fold_v1(100, true)")
    trim(conn, "waiting")
    with violation() if not guarded else nullcontext():
        agree(conn, jobs)


def done_and_emptied(dsn, conn, keys) -> None:
    """Let a count be older than jobs that are done, and empty their segments."""
    small_segments(conn, rows=100, reserve=1000)
    one(conn, "select forebay.configure('retention_days', 0)")
    reader = Reader(dsn)
    with closing(reader.conn):
        enqueue(conn, **keys)
        renewed(conn)
        for _ in range(250):
            enqueue(conn, **keys)
        for batch in reader.claim_all():
            reader.finish(batch)
        for _ in range(3):
            enqueue(conn)
        assert one(conn, "select forebay.seal_v1()") >= 2
        assert len(reader.claim_ready(1).jobs) == 1
        assert len(reader.claim_ready().jobs) == 2
        while one(conn, "select emptied from forebay.retain_v1()") is not None:
            pass
        for _ in range(2):
            enqueue(conn)


@pytest.mark.parametrize("keys", [{}, {"ordering_key": "k"}, {"limit_key": "k"}])
def test_a_segment_is_emptied_when_the_counts_have_its_jobs(database, conn, keys):
    """A count from before the jobs were enqueued would visit them in vain.

    And the jobs would be subtracted, being taken.
    """
    done_and_emptied(database, conn, keys)
    (waiting,) = conn.execute("select sum(ready) from forebay.depth()").fetchone()
    assert waiting == 2


def test_depth_is_wrong_without_the_renewal_before_a_segment_is_emptied(database, conn):
    """The control."""
    break_function(database, "retain_v1", ("v_queues <> '{}'", "false"))
    done_and_emptied(database, conn, {})
    (waiting,) = conn.execute("select sum(ready) from forebay.depth()").fetchone()
    assert waiting < 0


@pytest.mark.parametrize("act", ["reprioritise", "reschedule", "retry"])
def test_a_job_that_was_cancelled_for_one_group_and_is_moved_is_subtracted_once(conn, act):
    """Its new row is another one, at another time or priority, or in the log."""
    for group in ("default", "second"):
        open_group(conn, "default", group, "beginning")
    jobs = [enqueue(conn, delay="1 hour"), enqueue(conn, priority=5)]
    assert one(conn, "select forebay.cancel(%s, 'second')", jobs[0]) == "cancelled"
    renewed(conn)
    now = one(conn, "select forebay._now() + interval '2 hours'")
    options = {"reprioritise": {"priority": 5}, "reschedule": {"run_at": str(now)}, "retry": {}}
    query = "select answer from forebay.change_jobs(%s, %s, %s, most => 9)"
    given = [act, json.dumps({"ids": [jobs[0]]}), json.dumps(options[act])]
    assert one(conn, query, *given) == "changed"
    agree(conn, jobs)
    renewed(conn)
    shift_clock(conn, 5400)
    one(conn, "select forebay.promote_v1()")
    agree(conn, jobs)


def cancelled_suspect(database: str, conn, key: dict[str, str]) -> None:
    """A suspect of a paused key is cancelled; the claim that meets it puts it off once more."""
    with Reader(database, "default") as first, Reader(database, "default") as second:
        jobs = [enqueue(conn, **key) for _ in range(2)]
        assert first.claim_ready(1).job_ids == jobs[:1]
        assert first.revoked_by(conn) == 1
        pause = "select forebay.pause_key('default', {} => %s)".format(*key)
        assert one(conn, pause, *key.values())
        shift_clock(conn, 6)
        one(conn, "select forebay.promote_v1()")
        assert one(conn, "select forebay.cancel(%s)", jobs[0]) == "cancelled"
        assert second.claim_all() == []
        agree(conn, jobs)
        renewed(conn)
        shift_clock(conn, 20)
        one(conn, "select forebay.promote_v1()")
        agree(conn, jobs)


@pytest.mark.parametrize("key", [{"ordering_key": "k"}, {"limit_key": "k"}])
def test_a_cancelled_suspect_that_is_put_off_does_not_wait(database, conn, key):
    """Neither as a scheduled or retrying job, nor as a ready one."""
    cancelled_suspect(database, conn, key)


def test_a_cancelled_suspect_that_is_put_off_waits_if_it_is_not_withdrawn_again(database, conn):
    """The cancellation has found no row that waits for its time."""
    break_function(database, "_continue_job", ("perform forebay._withdraw_again", "-- "))
    with violation():
        cancelled_suspect(database, conn, {"ordering_key": "k"})


def test_a_clock_that_is_set_back_does_not_bring_back_withdrawn_jobs(conn):
    """Rows that were promoted are deleted then, and so is what tells of them."""
    open_group(conn, "default")
    shift_clock(conn, 1000)
    jobs = [enqueue(conn, delay="1 s") for _ in range(3)]
    assert one(conn, "select forebay.cancel(%s)", jobs[0]) == "cancelled"
    renewed(conn)
    shift_clock(conn, 1005)
    one(conn, "select forebay.promote_v1()")
    agree(conn, jobs)
    shift_clock(conn, 0)
    jobs.append(enqueue(conn, delay="1 hour"))
    one(conn, "select forebay.promote_v1()")
    agree(conn, jobs)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["plain", "scheduled", "keyed", "retrying"])
def test_depth_visits_no_job_that_waits(database, conn, shape):
    """It reads as few pages with 30,000 waiting jobs as with 3,000, also while a snapshot is
    held.
    """
    options = {
        "plain": "",
        "scheduled": ", delay => '1 hour'",
        "keyed": ", ordering_key => 'k'",
        "retrying": "",
    }[shape]
    fill = f"select forebay.enqueue_many('work', array_fill('{{}}'::jsonb, array[%s]){options})"
    read = {}
    with Reader(database) as reader, psycopg.connect(database) as held:
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        one(held, "select 1")
        for most in (3_000, 27_000):
            one(conn, fill, most)
            if shape == "retrying":
                for batch in reader.claim_all():
                    ended = [
                        {"offset": job["batch_offset"], "outcome": "retried", "after": 3600}
                        for job in batch.jobs
                    ]
                    reader.settle(batch.claim_no, [], ended=ended)
            assert renewed(conn) == 1
            reader.claim_ready(20)
            enqueue(conn)
            conn.execute("select * from forebay.depth()")  # The plans.
            read[most] = pages(conn, "select * from forebay.depth()", [])
            assert (
                one(conn, "select sum(ready + scheduled + retrying + claimed) from forebay.depth()")
                >= most
            )
            assert pages(conn, "select forebay.renew_counters_v1()", []) < 2 * _PAGES_OF_5_MS
    assert max(read.values()) < _PAGES_OF_5_MS, read


def test_depth_visits_no_key_without_waiting_jobs(database, conn):
    """Keys of which jobs ended or are claimed cost nothing: it reads as few pages with 6,000 of
    them as with 1,000.
    """
    fill = (
        "select forebay.enqueue_many(jsonb_agg(jsonb_build_object("
        " 'kind', 'work', 'ordering_key', format('key %%s', i)) order by i)) from "
        "generate_series(%s::integer, %s::integer) i"
    )
    read = {}
    with Reader(database) as reader:
        for first, last in ((1, 1_000), (1_001, 6_000)):
            conn.execute(fill, [first, last])
            for batch in reader.claim_all()[:-1]:
                assert reader.settle(batch.claim_no) == "settled"
            renewed(conn)
            conn.execute("select * from forebay.depth()")  # The plans.
            read[last] = pages(conn, "select * from forebay.depth()", [])
    assert read[6_000] < 1.5 * read[1_000], read
    assert read[6_000] < _PAGES_OF_5_MS


def test_max_waiting_counts_jobs_in_every_state_of_waiting(database, conn):
    """Ready, scheduled, retrying, parked and released jobs count.

    Running, cancelled and replaced ones do not. Nothing accepted is refused later.
    """
    one(conn, "select forebay.limit_queue('default', max_waiting => 4)")
    with Reader(database) as reader:
        enqueue(conn)
        later = enqueue(conn, delay="1 hour")
        failing = enqueue(conn)
        enqueue(conn, unique_as='{"replace": "k"}', delay="1 hour")
        assert is_full(conn)
        assert is_full(conn, delay="1 hour")
        assert not is_full(conn, unique_as='{"replace": "k"}', delay="1 hour")  # It replaces one.
        batch = reader.claim(2)
        assert failing in batch.job_ids
        assert not is_full(conn, delay="1 hour")
        assert not is_full(conn)
        ended = [
            {"offset": 1, "outcome": "retried", "after": 60},
            {"offset": 2, "outcome": "snoozed", "after": 60},
        ]
        assert reader.settle(batch.claim_no, [], ended=ended) == "settled"  # Six wait.
        assert is_full(conn)
        for job in (later, *batch.job_ids):
            assert one(conn, "select forebay.cancel(%s)", job) == "cancelled"
        assert not is_full(conn, ordering_key="a")
        assert is_full(conn)
        reader.revoked_by(conn)
        assert is_full(conn)
        shift_clock(conn, 7200)
        assert one(conn, "select forebay.promote_v1()") > 0  # Those that were cancelled too.
        assert is_full(conn)


def test_parked_jobs_count_against_max_waiting(database, conn):
    """The cursor has passed them while their key was taken."""
    one(conn, "select forebay.limit_queue('default', max_waiting => 5)")
    with Reader(database) as first, Reader(database) as second:
        for _ in range(5):
            enqueue(conn, ordering_key="k")
        assert is_full(conn)
        assert len(first.claim_ready(2).jobs) == 2
        assert second.claim_ready(10).jobs == []
        assert one(conn, "select count(*) from forebay.parked") > 0
        assert [is_full(conn) for _ in range(3)] == [False, False, True]
        with conn.transaction(force_rollback=True):
            conn.execute("delete from forebay.counter_waiting")
            assert is_full(conn)


def test_a_group_without_workers_stops_nobody(database, conn):
    """The group that max_waiting names counts, by default the group default."""
    with Reader(database) as reader, Reader(database, group="second"):
        one(conn, "select forebay.limit_queue('default', max_waiting => 5)")
        for _ in range(4):
            enqueue_many(conn, [{"kind": "work"}] * 5)
            assert is_full(conn)
            reader.claim_ready(5)
        assert not is_full(conn)
        one(conn, "select forebay.limit_queue('default', max_waiting_group => 'second')")
        assert is_full(conn)
        one(conn, "select forebay.limit_queue('default', max_waiting_group => 'unknown')")
        assert not is_full(conn)
        one(conn, "select forebay.limit_queue('default', remove => '{max_waiting_group}')")
        assert (
            one(conn, "select to_jsonb(l) ->> 'max_waiting_group' from forebay.queue_limits l")
            is None
        )
        assert not is_full(conn)
        query = "select forebay.limit_queue('other', max_waiting_group => 'second')"
        assert sqlstate(conn, query) == "JQ001"
        query = (
            "select forebay.limit_queue('other', max_waiting => 3, max_waiting_group => 'no name')"
        )
        assert sqlstate(conn, query) == "JQ001"


def test_an_enqueue_visits_few_rows_of_a_long_queue_without_a_worker(conn):
    """30,000 scheduled jobs and a limit near them: what it visits does not grow, and a first
    count by an enqueue ends early.
    """
    open_group(conn, "default")
    one(conn, "select forebay.limit_queue('default', max_waiting => 30100)")
    for _ in range(6):
        one(
            conn,
            (
                "select forebay.enqueue_many('work', array_fill('{}'::jsonb, array[5000]), "
                "delay => '1 hour')"
            ),
        )
    for _ in range(150):
        is_full(conn, delay="1 hour")
    assert is_full(conn)
    query = (
        "do $$ begin perform forebay.enqueue('work'); exception when sqlstate '53400' then "
        "null; end $$"
    )
    conn.execute(query)
    last = (
        "select 30100 - (scheduled[1] + totals[1]) from forebay.counter_waiting order by "
        "oldest desc, no desc limit 1"
    )
    assert one(conn, last) < 11_000
    conn.execute("delete from forebay.counter_waiting")
    query = (
        "select forebay._waiting('default', group_id, 40000, 100, 10000) from forebay.queue_group"
    )
    assert 10_000 <= one(conn, query) < 11_000
    assert one(conn, "select count(*) from forebay.counter_waiting") == 0


def test_a_job_that_expires_while_a_move_waits_is_not_moved(database, conn):
    """The sweep decided first: the job has its dead letter, does not run again, and is
    subtracted once.
    """
    open_group(conn, "default")
    jobs = [enqueue(conn, expires_at=one(conn, "select forebay._now() + interval '9 s'"))]
    renewed(conn)
    shift_clock(conn, 10)
    waits = (
        "select count(*) from pg_locks where relation = 'forebay.lock_sweep'::regclass and not "
        "granted"
    )
    with (
        connect(database) as mover,
        psycopg.connect(database) as sweeper,
        ThreadPoolExecutor() as pool,
    ):
        sweeper.execute("lock table forebay.lock_sweep in share update exclusive mode")
        query = (
            "select forebay.change_jobs('reprioritise', '{\"all\": true}', '{\"priority\": "
            "5}', most => 9)"
        )
        moved = pool.submit(mover.execute, query)
        gives_up_at = time.monotonic() + 30
        while not one(conn, waits):
            assert time.monotonic() < gives_up_at
        group = sweeper.execute("select group_id, start_after from forebay.queue_group").fetchone()
        sweeper.execute(
            "select forebay._expire_one(l, %s, 'default', 100, 0, %s) from forebay.log l", group
        )
        sweeper.commit()
        moved.result()
    assert state(conn, jobs[0]) == "expired"
    assert by_depth(conn) == {}
    agree(conn, jobs)

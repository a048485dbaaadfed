"""Limits of queues: exact for one producer, bounded for many, cheap at the limit, without a
worker.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    open_group,
    small_segments,
    sqlstate,
)
from tests.support.mutant import alter_function, break_function, violation
from tests.support.plans import pages
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def limit(conn, most, queue="default"):
    """Set how many jobs may wait, None for any number; return the number before."""
    if most is None:
        before = one(conn, "select forebay.limit_queue(%s, remove => '{max_waiting}')", queue)
    else:
        before = one(conn, "select forebay.limit_queue(%s, max_waiting => %s)", queue, most)
    return before and before["max_waiting"]


def is_full(conn, **options) -> bool:
    named = "".join(f", {name} => %s" for name in options)
    state = sqlstate(conn, f"select forebay.enqueue('work'{named})", *options.values())
    assert state in (None, "53400"), state
    return state is not None


def test_a_limit_holds_to_the_job_whether_a_worker_runs_or_not(database, conn):
    """
    Enqueues beyond the limit are refused, one by one, in bulk and with keys; what a worker takes
    makes room again.
    """
    assert limit(conn, 10) is None
    ids = [enqueue(conn) for _ in range(6)]
    jobs = [{"kind": "work"}] * 5
    assert sqlstate(conn, "select forebay.enqueue_many(%s::jsonb)", json.dumps(jobs)) == "53400"
    query = "select forebay.enqueue_many('work', array_fill('{}'::jsonb, array[%s]))"
    assert sqlstate(conn, query, 5) == "53400"
    assert len(enqueue_many(conn, jobs[:3])) == 3
    assert not is_full(conn, unique_as='{"once": "k"}')
    assert not is_full(conn, unique_as='{"once": "k"}')  # Nothing new.
    assert is_full(conn, unique_as='{"once": "other"}')
    assert is_full(conn)
    assert not is_full(conn, queue="other")
    with Reader(database) as reader:
        reader.settle(reader.claim(4).claim_no)
        assert len(enqueue_many(conn, jobs[:4])) == 4
        assert is_full(conn)
    assert limit(conn, None) == 10
    assert not is_full(conn)
    assert ids


def test_the_message_says_how_many_wait_and_how_many_may(conn):
    """
    Whoever is refused learns both numbers.
    """
    open_group(conn, "mail")
    limit(conn, 2, "mail")
    assert (
        sqlstate(
            conn,
            "select forebay.enqueue_many('w', array_fill('{}'::jsonb, array[3]), queue => 'mail')",
        )
        == "53400"
    )  # The very first call.
    enqueue(conn, queue="mail")
    with pytest.raises(psycopg.Error, match="queue mail is full: 1 jobs wait, 2 more") as caught:
        enqueue_many(conn, [{"kind": "work", "queue": "mail"}] * 2)
    assert caught.value.diag.sqlstate == "53400"
    assert sqlstate(conn, "select forebay.limit_queue('mail', max_waiting => 0)") == "JQ001"
    assert sqlstate(conn, "select forebay.limit_queue('ma il', max_waiting => 5)") == "JQ001"


def test_the_own_transaction_counts_and_a_rollback_does_not(database, conn):
    """
    A transaction is refused what would exceed the limit with its own jobs; numbers that nobody used
    take no room.
    """
    limit(conn, 5)
    with psycopg.connect(database) as own:
        for _ in range(5):
            enqueue(own)
        assert is_full(own)
        own.rollback()
        for _ in range(20):
            enqueue(own)
            own.rollback()
    for _ in range(30):
        enqueue(conn, queue="other")
    for _ in range(5):
        enqueue(conn)
    assert is_full(conn)


@pytest.mark.slow
def test_the_count_is_that_of_a_full_recount_over_many_segments(database, conn):
    """
    What is counted step by step agrees with a count of everything, across borders of segments,
    rollbacks, late commits and claims.
    """
    small_segments(conn)
    limit(conn, 1_000_000)
    one(conn, "select forebay.shard_queue('default', 3)")
    late = psycopg.connect(database)
    with Reader(database) as reader:
        for n in range(30):
            enqueue_many(conn, [{"kind": "work"}] * 37)
            enqueue(late)
            if n % 7 == 3:
                late.commit()
            if n % 3 == 0:
                reader.claim_ready(25)
            if n % 4 == 0:
                one(conn, "select forebay.seal_v1()")
            counted = one(
                conn, "select forebay._waiting('default', %s, -1, %s)", reader.group_id, n % 2
            )
            assert counted == one(conn, "select sum(ready)::bigint from forebay.depth('default')")
    late.close()


@pytest.mark.slow
def test_with_many_producers_it_is_exceeded_by_no_more_than_their_open_transactions_hold(
    database, conn
):
    """
    Eight producers, three jobs a transaction, one slow worker: never more than the limit and what
    the others' open transactions hold, now and at the last count.
    """
    most, producers, jobs = 200, 8, 3
    limit(conn, most)
    stop = threading.Event()
    refused = []

    def produce() -> None:
        with psycopg.connect(database) as own:
            while not stop.is_set():
                for _ in range(jobs):
                    if is_full(own):
                        refused.append(1)
                        own.rollback()
                        break
                    time.sleep(0.001)
                else:
                    own.commit()

    threads = [threading.Thread(target=produce, daemon=True) for _ in range(producers)]
    for thread in threads:
        thread.start()
    deepest = 0
    looks, gives_up_at = 0, time.monotonic() + 30
    with Reader(database) as reader:
        # A hundred looks from the first refusal on.
        while looks < 100 and time.monotonic() < gives_up_at:
            looks += bool(refused)
            depth = one(conn, "select coalesce(sum(ready), 0) from forebay.depth('default')")
            deepest = max(deepest, depth)
            assert depth <= most + 2 * (producers - 1) * jobs
            if depth > most * 0.9:
                reader.settle(reader.claim(5).claim_no)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert refused
    assert deepest >= most * 0.9


@pytest.mark.slow
def test_jobs_parked_for_their_ordering_key_count_until_they_are_taken(database, conn):
    """
    The cursor has passed them and nobody has them: they wait, whichever claim of which lane takes
    them. A count that is begun in the middle agrees, and after retries and jobs released nothing is
    left over.
    """
    limit(conn, 1_000_000)

    def counted(group_id: int) -> tuple[int, int]:
        query = "select forebay._waiting('default', %s, -1, null)"
        by_step = one(conn, query, group_id)
        with conn.transaction(force_rollback=True):
            conn.execute("delete from forebay.counter_waiting")
            return by_step, one(conn, query, group_id)

    with Reader(database) as first, Reader(database) as second:
        for number in range(40):
            jobs = [
                {"kind": "work", "ordering_key": f"k{n % 3}"} if n % 4 else {"kind": "work"}
                for n in range(number, number + 9)
            ]
            enqueue_many(conn, jobs)
            reader = (first, second)[number % 2]
            batches = [reader.claim(6, lane["lane"]) for lane in reader.ready()]
            ready = one(conn, "select sum(ready)::bigint from forebay.depth('default')")
            assert counted(reader.group_id) == (ready, ready)
            for batch in batches:
                if batch.jobs and number % 3 == 0:
                    reader.finish(batch)
        assert one(conn, "select count(*) from forebay.parked") > 0
        for reader in (first, second):
            reader.revoked_by(conn, suspects=reader is first)
            reader.open_lease()
        while (batch := first.claim_ready(7)).jobs:
            first.finish(batch)
        assert counted(first.group_id) == (0, 0)


def test_a_count_that_an_open_transaction_keeps_misses_none_of_its_jobs(database, conn):
    """
    While it is open another transaction ends that began later, so its snapshot shows it as visible.
    It has jobs from before and from after the count.
    """
    group_id = open_group(conn, "default")
    limit(conn, 300)
    enqueue_many(conn, [{"kind": "work"}] * 150)
    with psycopg.connect(database) as own:
        for _ in range(5):
            enqueue(own)
        enqueue_many(conn, [{"kind": "work", "queue": "other"}] * 200)
        for _ in range(5):
            enqueue(own)
        own.commit()
    assert (
        one(conn, "select totals[1] from forebay.counter_waiting order by no desc limit 1") == 150
    )
    assert one(conn, "select forebay._waiting('default', %s, -1, null)", group_id) == 160


@pytest.mark.slow
def test_no_enqueue_visits_all_jobs_of_a_queue_that_was_not_counted(database, conn):
    """A group that begins at the beginning of a long queue: an enqueue visits a part,
    maintenance counts, and then the limit holds.
    """
    open_group(conn, "default", "first")
    limit(conn, 40_000)
    enqueue_many(conn, [{"kind": "work"}] * 39_900)
    with Reader(database, group="first") as reader:
        while (batch := reader.claim_ready(1000)).jobs:
            reader.finish(batch)
    enqueue_many(conn, [{"kind": "work"}] * 10_000)
    one(conn, "select forebay.limit_queue('default', max_waiting_group => 'late')")
    open_group(conn, "default", "late", "beginning")
    enqueue(conn)
    assert pages(conn, "select forebay.enqueue('work')", []) < 1500
    one(conn, "select forebay.renew_counters_v1()")
    assert is_full(conn)
    limit(conn, 9_000)
    assert is_full(conn)


def test_a_full_queue_refuses_without_counting_all_of_it_again(database, conn):
    """No worker ever ran, and the counts of refused enqueues are rolled back."""
    limit(conn, 30_000)
    for _ in range(30):
        enqueue_many(conn, [{"kind": "work"}] * 1000)
    assert is_full(conn)
    query = """do $$ begin perform forebay.enqueue('work');
    exception when sqlstate '53400' then null; end $$"""
    before = one(conn, "select count(*) from forebay.counter_waiting")
    assert before >= 2
    last = (
        "select (select count(*) from forebay.log) - totals[1] from forebay.counter_waiting "
        "order by no desc limit 1"
    )
    assert one(conn, last) <= 11_000
    conn.execute(query)
    open_group(conn, "default")
    assert is_full(conn)  # The first group has the count from before.
    assert one(conn, last) <= 11_000


@pytest.mark.parametrize("guarded", [True, False])
def test_a_first_group_that_is_opened_meanwhile_lets_no_job_in(database, conn, guarded):
    """
    Between the look for the group and the count of what waits for it.
    """
    limit(conn, 1, "mail")
    enqueue(conn, queue="mail")
    count = "v_waiting := forebay._waiting("
    pause = [(count, f"perform pg_advisory_xact_lock(42); {count}")]
    alter_function(database, "_require_below_max_waiting", *pause)
    if not guarded:
        guard = ("while v_waiting is null loop", "for i in 1 .. 1 loop")
        break_function(database, "_require_below_max_waiting", guard)
    with connect(database) as holder, connect(database) as other, ThreadPoolExecutor(1) as threads:
        holder.execute("begin")
        holder.execute("select pg_advisory_xact_lock(42)")
        full = threads.submit(is_full, other, queue="mail")
        waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        wait_for(lambda: one(conn, waits))
        open_group(conn, "mail")
        holder.execute("commit")
        if guarded:
            assert full.result(20)
        else:
            with violation():
                assert full.result(20)

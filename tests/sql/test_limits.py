"""Limits: how much of a queue and of each limit key runs at once and starts per second, and even
shares for the keys.
"""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    shift_clock,
    small_segments,
    sqlstate,
)
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


LIMITS = (
    "max_waiting",
    "rate",
    "burst",
    "concurrency",
    "key_rate",
    "key_burst",
    "key_concurrency",
)


def limit(conn: psycopg.Connection, queue: str = "q", **given: object) -> dict | None:
    """Set limits of a queue; return those before."""
    named = "".join(f", {name} => %s" for name in given)
    before = one(conn, f"select forebay.limit_queue(%s{named})", queue, *given.values())
    assert before is None or set(before) == {*LIMITS, "max_waiting_group"}
    return before


def limits_of(conn: psycopg.Connection, queue: str = "q") -> dict | None:
    """Return the limits of a queue that are set; None for a queue that is not listed."""
    found = conn.execute(f"select {', '.join(LIMITS)} from forebay.limits(%s)", [queue]).fetchone()
    return found and {name: value for name, value in zip(LIMITS, found, strict=True) if value}


def pass_first_second(database: str, conn: psycopg.Connection) -> None:
    """Until a second after limits were first seen, what is in flight is counted from the leases.

    Let that be over.
    """
    enqueue(conn, queue="q", limit_key="first")
    with Reader(database, "q") as reader:
        reader.finish(reader.claim_ready(1))
    shift_clock(conn, 5)


def jobs_of(conn: psycopg.Connection, key: str | None, count: int, **options: object) -> list[int]:
    """Enqueue so many jobs of a key, in bulk; return their ids."""
    job = {"kind": "work", "queue": "q", "limit_key": key, "args": {"key": key}} | options
    return enqueue_many(conn, [job] * count)


def claim_open(reader: Reader, limit: int = 100) -> list:
    """Claim until the limiter lets nothing more through; return the batches."""
    batches = []
    while (batch := reader.claim_ready(limit)).jobs:
        batches.append(batch)
    return batches


def waiting_for_a_lock(conn: psycopg.Connection) -> int:
    return one(
        conn,
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'",
    )


def keys_of(batches: list) -> Counter:
    return Counter(job["args"].get("key") for batch in batches for job in batch.jobs)


# --- how many at once ---


def test_no_more_jobs_of_a_queue_are_handed_out_than_may_run_at_once(database, conn):
    """Whatever the claims ask for, and whoever asks; a settled job makes room for another."""
    assert limit(conn, concurrency=5) is None
    pass_first_second(database, conn)
    with Reader(database, "q") as reader:
        # The first key's lane is listed, and reported when there is room, until a claim finds it
        # empty.
        assert reader.claim_ready(1).jobs == []
    jobs_of(conn, None, 20)
    with Reader(database, "q") as one_, Reader(database, "q") as other:
        first = one_.claim_ready(3)
        rest = claim_open(other)
        assert len(first.jobs) == 3
        assert sum(len(batch.jobs) for batch in rest) == 2
        assert one_.ready() == other.ready() == []
        one_.settle(first.claim_no, [2])
        assert other.ready()
        assert [len(batch.jobs) for batch in claim_open(other)] == [1]
        assert depth(conn, "q") == {"default": (14, 5, 0)}


def test_no_more_jobs_of_a_key_are_handed_out_than_may_run_at_once(database, conn):
    """Each key has its own limit, whatever the priority of its jobs, and a retry is of the same
    key.
    """
    limit(conn, key_concurrency=2)
    pass_first_second(database, conn)
    for key in ("a", "b", "c"):
        jobs_of(conn, key, 3)
        jobs_of(conn, key, 3, priority=5)
    with Reader(database, "q") as reader:
        batches = claim_open(reader)
        assert keys_of(batches) == {"a": 2, "b": 2, "c": 2}
        batch = batches[0]
        reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "retried"}])
        again = claim_open(reader)
        assert keys_of(again) == {batch.jobs[0]["args"]["key"]: 1}


def test_both_limits_hold_together(database, conn):
    """Of the queue and of the key; the smaller one decides."""
    limit(conn, concurrency=5, key_concurrency=2)
    pass_first_second(database, conn)
    for key in "abcd":
        jobs_of(conn, key, 10)
    with Reader(database, "q") as reader:
        counts = keys_of(claim_open(reader))
        assert sum(counts.values()) == 5
        assert max(counts.values()) == 2


def test_jobs_of_a_lost_lease_cease_to_count(database, conn):
    """They come back as suspects of the same key, and these count when they are claimed."""
    limit(conn, key_concurrency=2)
    pass_first_second(database, conn)
    jobs_of(conn, "a", 10)
    with Reader(database, "q") as lost, Reader(database, "q") as other:
        claim_open(lost)
        assert claim_open(other) == []
        lost.revoked_by(conn)
        assert any(lane["is_suspect"] for lane in other.ready())
        counts = keys_of(claim_open(other))
        assert counts == {"a": 2}


def test_groups_have_their_own_limits(database, conn):
    """What one reader of the queue has in flight does not hold up another."""
    limit(conn, concurrency=2)
    with Reader(database, "q", "one") as first, Reader(database, "q", "two") as second:
        jobs_of(conn, None, 4)
        jobs_of(conn, "a", 4)
        assert sum(len(batch.jobs) for batch in claim_open(first)) == 2
        assert sum(len(batch.jobs) for batch in claim_open(second)) == 2


def test_what_runs_already_counts_when_limits_are_set(database, conn):
    """Also what was claimed without passing a limiter."""
    jobs_of(conn, None, 10)
    with Reader(database, "q") as reader:
        assert len(reader.claim_ready(4).jobs) == 4
        limit(conn, concurrency=5)
        assert [len(batch.jobs) for batch in claim_open(reader)] == [1]
        assert limit(conn, concurrency=7)["concurrency"] == 5
        assert [len(batch.jobs) for batch in claim_open(reader)] == [2]
        limit(conn, concurrency=1)
        assert claim_open(reader) == []
        assert limit(conn, remove=["all"])["concurrency"] == 1
        assert len(reader.claim_ready(100).jobs) == 3
        assert one(conn, "select count(*) from forebay.queue_limits") == 0


def test_without_the_lock_of_the_limiter_two_claims_take_the_same_slots(database, conn):
    """The mutant: both count before either has written."""

    def both_claim() -> int:
        with Reader(database, "q") as one_, Reader(database, "q") as other:
            with ThreadPoolExecutor(2) as pool:
                with psycopg.connect(database) as holder:
                    # Whoever passed the limiter waits for the lane.
                    holder.execute(
                        "select forebay._lock_lane(%s, forebay._lane_id('q', 100, 0))",
                        [one_.group_id],
                    )
                    claims = [pool.submit(reader.claim, 3) for reader in (one_, other)]
                    wait_for(lambda: waiting_for_a_lock(conn) == 2, describe="both claims wait")
                return sum(len(claim.result().jobs) for claim in claims)

    limit(conn, concurrency=3)
    jobs_of(conn, None, 20)
    pass_first_second(database, conn)
    assert both_claim() == 3
    with connect(database) as other:
        other.execute("update forebay.lease set closed_at = now(), closed_as = 'closed'")
    break_function(
        database,
        "_claim_limited",
        ("forebay._lock_limiter(p_group_id, false)", "null"),
    )
    with violation(psycopg.Error):
        assert both_claim() == 3


# --- how many per second ---


def test_a_queue_starts_no_more_per_second_than_its_rate_allows(database, conn):
    """A rested bucket holds its burst.

    Then a token comes every 1/rate seconds, and no more than the burst are saved up.
    """
    limit(conn, rate=0.2, burst=2)
    jobs_of(conn, None, 50)
    with Reader(database, "q") as reader:
        shift_clock(conn, 0)
        assert sum(len(batch.jobs) for batch in claim_open(reader)) == 2
        assert reader.ready() == []
        shift_clock(conn, 4.5)
        assert reader.claim(10).jobs == []
        shift_clock(conn, 5.5)
        assert sum(len(batch.jobs) for batch in claim_open(reader)) == 1
        shift_clock(conn, 1000)
        assert sum(len(batch.jobs) for batch in claim_open(reader)) == 2
        waits = one(conn, "select next_start_at - forebay._now() from forebay.limits('q')")
        assert 4 < waits.total_seconds() <= 5


@pytest.mark.slow
def test_each_key_has_a_bucket_of_its_own(database, conn):
    """Also below one per second; a key that waits for a token does not hold up the others."""
    limit(conn, key_rate=0.5)
    for key in ("a", "b"):
        jobs_of(conn, key, 10)
    with Reader(database, "q") as reader:
        counts = Counter()
        for second in range(0, 61, 1):
            shift_clock(conn, second + 0.5)
            one(conn, "select forebay.promote_v1()")  # A key without a token comes again in time.
            batches = claim_open(reader)
            counts += keys_of(batches)
            for batch in batches:
                reader.finish(batch)
            if second == 10:
                jobs_of(conn, "c", 2)
        assert counts == {"a": 10, "b": 10, "c": 2}
        jobs_of(conn, "a", 10)
        jobs_of(conn, "b", 10)
        assert keys_of(claim_open(reader)) == {"a": 1, "b": 1}


def test_a_changed_rate_holds_at_once(database, conn):
    """What a bucket owed at an hourly rate does not keep it shut under a faster one, nor is a
    new burst given away.
    """
    limit(conn, rate=1 / 3600)
    jobs_of(conn, None, 50)
    with Reader(database, "q") as reader:
        assert sum(len(batch.jobs) for batch in claim_open(reader)) == 1
        limit(conn, rate=0.1, burst=10)  # On a busy machine no tenth of a second is sure.
        assert claim_open(reader) == []
        shift_clock(conn, 35)
        assert sum(len(batch.jobs) for batch in claim_open(reader)) in {3, 4}
        shift_clock(conn, 1000)
        assert sum(len(batch.jobs) for batch in claim_open(reader)) == 10
        shift_clock(conn, -1000)  # A clock that is set back does not shut the queue either.
        assert claim_open(reader) == []
        shift_clock(conn, -800)
        assert sum(len(batch.jobs) for batch in claim_open(reader)) == 10


# --- even shares ---


def jain(counts: list[int]) -> float:
    """Jain's index of fairness: 1 when all have the same, 1/n when one has all."""
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))


@pytest.mark.slow
def test_keys_of_very_different_backlogs_get_even_shares(database, conn):
    """Fifty keys, one with a hundred times as much: after any number of claims each has had
    about the same.

    A claim takes jobs of as many keys as it may take jobs; so a large claim has some of every key.
    """
    jobs_of(conn, "greedy", 5000)
    for number in range(49):
        jobs_of(conn, f"key {number}", 40)
    with Reader(database, "q") as reader:
        counts = Counter()
        for _ in range(150):
            batch = reader.claim_ready(10)
            counts += keys_of([batch])
            reader.finish(batch)
        assert len(counts) == 50
        assert jain(list(counts.values())) > 0.99
        assert max(counts.values()) - min(counts.values()) <= 1
        rest = keys_of([reader.claim_ready(1000)])
        assert all(counts[key] + rest[key] == 40 for key in counts if key != "greedy")
        assert rest.total() == 1000


def test_each_free_slot_goes_to_the_key_whose_turn_it_is(database, conn):
    """Keys start equally often.

    So a key whose jobs take longer has more of them in flight, up to its own limit.
    """
    limit(conn, concurrency=10, key_concurrency=7)
    pass_first_second(database, conn)
    jobs_of(conn, "slow", 200)
    jobs_of(conn, "quick", 200)
    with Reader(database, "q") as reader:
        running: list[tuple[int, dict]] = []

        def claim() -> Counter:
            for batch in claim_open(reader):
                running.extend((batch.claim_no, job) for job in batch.jobs)
            return Counter(job["args"]["key"] for _, job in running)

        assert claim() == {"slow": 5, "quick": 5}
        for number in range(20):
            done = next(item for item in running if item[1]["args"]["key"] == "quick")
            running.remove(done)
            claim_no, job = done
            reader.settle(claim_no, [job["batch_offset"]], flush_no=number + 1)
            assert claim()["slow"] <= 7
        assert claim() == {"slow": 7, "quick": 3}


@pytest.mark.slow
def test_who_comes_again_at_once_does_not_come_first(database, conn):
    """A key whose next job always arrives when the last one is done gets its share and no more."""
    for number in range(4):
        jobs_of(conn, f"key {number}", 100)
    with Reader(database, "q") as reader:
        counts = Counter()
        for _ in range(100):
            if counts["pushing"] == one(
                conn, "select count(*) from forebay.log where args->>'key' = 'pushing'"
            ):
                enqueue(conn, queue="q", limit_key="pushing", args={"key": "pushing"})
            batch = reader.claim_ready(1)
            counts += keys_of([batch])
            reader.finish(batch)
        assert set(counts.values()) == {20}


@pytest.mark.slow
def test_a_key_that_comes_late_is_served_at_once(database, conn):
    """However much another has waiting."""
    jobs_of(conn, "greedy", 20000)
    with Reader(database, "q") as reader:
        reader.finish(reader.claim_ready(100))
        jobs_of(conn, "small", 10)
        first = [reader.claim_ready(10) for _ in range(2)]
        assert keys_of(first)["small"] >= 5


# --- nothing is lost, whatever the lane ---


def test_a_job_that_waits_for_its_key_is_moved(database, conn):
    """To another priority or time, like any ready job; it is not handed out twice."""
    limit(conn, key_concurrency=1)
    pass_first_second(database, conn)
    first, second, third = jobs_of(conn, "a", 3)
    with Reader(database, "q") as reader:
        batch = reader.claim_ready(1)
        assert batch.job_ids == [first]
        assert reader.claim_ready(5).jobs == []
        act = "select forebay.change_jobs(%s, %s::jsonb, %s::jsonb, most => 10)"
        conn.execute(act, ["reprioritise", f'{{"ids": [{second}]}}', '{"priority": 5}'])
        conn.execute(
            "select forebay.change_jobs('reschedule', %s::jsonb,"
            " jsonb_build_object('run_at', forebay._now() + interval '1 hour'), most => 10)",
            [f'{{"ids": [{third}]}}'],
        )
        states = "select state, priority from forebay.job(%s)"
        assert conn.execute(states, [second]).fetchone() == ("ready", 5)
        assert conn.execute(states, [third]).fetchone() == ("scheduled", 100)
        reader.finish(batch)
        # Some claims find only rows that were moved.
        again = [batch for _ in range(5) for batch in claim_open(reader)]
        assert [batch.job_ids for batch in again] == [[second]]
        reader.finish(again[0])
        assert [batch for _ in range(5) for batch in claim_open(reader)] == []
        assert depth(conn, "q")["default"][0] == 0


def test_jobs_with_limit_keys_go_every_way_that_jobs_go(database, conn):
    """Enqueued singly, in bulk, for later, under a unique key; retried, snoozed, released, dead and
    redriven: always as jobs of their key, each handed out once.
    """
    single = enqueue(conn, queue="q", limit_key="a", args={"key": "a"})
    (bulk,) = jobs_of(conn, "a", 1)
    (later,) = jobs_of(conn, "a", 1, delay=0.001)
    one(
        conn,
        (
            "select forebay.enqueue_many('work', array['{\"key\": \"a\"}'::jsonb], 'q', "
            "limit_key => 'a')"
        ),
    )
    (unique,) = jobs_of(conn, "a", 1, unique_as={"once": "k"})
    assert jobs_of(conn, "a", 1, unique_as={"once": "k"}) == [unique]
    wait_for(
        lambda: one(conn, "select forebay.promote_v1()") == 1, describe="the delayed job is due"
    )
    limit(conn, key_concurrency=5)
    with Reader(database, "q") as reader:
        batches = claim_open(reader)
        assert keys_of(batches) == {"a": 5}
        ids = [job["job_id"] for batch in batches for job in batch.jobs]
        assert {single, bulk, later, unique} < set(ids)
        (batch,) = batches
        endings = ["retried", "snoozed", "released", "dead"]
        reader.settle(
            batch.claim_no,
            [5],
            ended=[{"offset": i, "outcome": name} for i, name in enumerate(endings, 1)],
        )
        again = claim_open(reader)
        assert keys_of(again) == {"a": 3}
        assert one(conn, "select limit_key from forebay.dead_letter") == "a"
        one(conn, "select forebay.redrive(dead_id) from forebay.dead_letter")
        assert keys_of(claim_open(reader)) == {"a": 1}
        found = conn.execute("select distinct limit_key from forebay.log").fetchall()
        assert found == [("a",)]


@pytest.mark.slow
def test_jobs_are_found_whatever_transaction_brings_them(database, conn):
    """Late committers, many transactions between two looks, several segments: all are handed
    out.
    """
    small_segments(conn)
    with Reader(database, "q") as reader, psycopg.connect(database) as slow:
        wanted = set(jobs_of(conn, "a", 10))
        late = enqueue(slow, queue="q", limit_key="late", args={"key": "late"})
        wanted |= {
            enqueue(conn, queue="q", limit_key=f"key {number % 30}", args={})
            for number in range(150)
        }
        got = {job for batch in reader.claim_all() for job in batch.job_ids}
        assert got == wanted
        one(conn, "select forebay.seal_v1()")
        slow.commit()
        assert [batch.job_ids for batch in reader.claim_all()] == [[late]]
        one(conn, "select forebay.extend_v1()")
        again = set()
        for _ in range(42):  # More pairs of a transaction and a lane than are looked at one by one.
            jobs = [{"kind": "work", "queue": "q", "limit_key": f"key {n}"} for n in range(50)]
            again |= set(enqueue_many(conn, jobs))
        one(conn, "select forebay.seal_v1()")
        got = set()
        while reader.ready():
            got |= set(reader.claim_ready(1000).job_ids)
        assert got == again
        assert depth(conn, "q")["default"][0] == 0


def test_a_paused_queue_stays_paused(database, conn):
    """A limiter lets nothing through, and nothing is forgotten."""
    jobs_of(conn, "a", 3)
    with Reader(database, "q") as reader:
        one(conn, "select forebay.pause_queue('q')")
        assert reader.ready() == []
        assert (
            reader.claim(10, one(conn, "select forebay._limited_lane_id('q', 100, 0)")).jobs == []
        )
        one(conn, "select forebay.resume_queue('q')")
        assert keys_of(claim_open(reader)) == {"a": 3}


def test_a_pause_that_comes_between_limiter_and_lane_forgets_no_lane(database, conn):
    """The claim passes the limiter and waits for the lane while the queue is paused: the jobs
    are found after that.
    """
    jobs_of(conn, "a", 3)
    with Reader(database, "q") as reader:
        lane = one(conn, "select forebay._limited_lane_id('q', 100, 0)")
        with ThreadPoolExecutor(1) as pool:
            with psycopg.connect(database) as holder:
                holder.execute("select forebay._lock_lane(%s, %s)", [reader.group_id, lane])
                claim = pool.submit(reader.claim, 10, lane)
                wait_for(lambda: waiting_for_a_lock(conn) == 1, describe="the claim waits")
                one(conn, "select forebay.pause_queue('q')")
            assert claim.result().jobs == []
        one(conn, "select forebay.resume_queue('q')")
        assert keys_of(claim_open(reader)) == {"a": 3}


def test_ordering_keys_and_unordered_queues_obey_limits(database, conn):
    """A queue's limits hold for all of its jobs."""
    limit(conn, concurrency=4)
    one(conn, "select forebay.shard_queue('q', 3)")
    jobs_of(conn, None, 20)
    for number in range(20):
        enqueue(conn, queue="q", ordering_key=f"order {number}")
    with Reader(database, "q") as reader:
        done = 0
        while batches := claim_open(reader):
            assert sum(len(batch.jobs) for batch in batches) <= 4
            for batch in batches:
                done += len(batch.jobs)
                reader.finish(batch)
        assert done == 40


# --- what is refused ---


@pytest.mark.parametrize(
    "limits",
    [
        {"concurrency": 0},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"rate": 1e9},
        {"key_concurrency": -1},
        {"key_rate": -0.5},
        {"burst": 5},
        {"key_burst": 5, "rate": 1.0},
        {"rate": 1.0, "burst": 0},
        {"max_waiting": 0},
        {"max_waiting": 10, "rate": -1.0},
        {"max_waiting": 10, "remove": ["speed"]},
        {"max_waiting": 10, "remove": ["rate", None]},
        {"remove": ["rate"], "burst": 5},
        {"queue": "a b"},
    ],
)
def test_limits_of_nonsense_are_refused(conn, limits):
    """With a message that has the value, and nothing is set."""
    limits = {"queue": "q"} | limits
    given = ", ".join(f"{name} => %({name})s" for name in limits)
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(f"select forebay.limit_queue({given})", limits)
    assert caught.value.sqlstate == "JQ001"
    assert one(conn, "select count(*) from forebay.queue_limits") == 0


# --- setting them ---


def test_setting_one_limit_leaves_the_others(conn):
    """Also a limit on what waits and those on what starts; the limits before are returned."""
    assert limit(conn, max_waiting=100) is None
    assert limits_of(conn) == {"max_waiting": 100}
    assert limit(conn, rate=2, burst=5)["max_waiting"] == 100
    assert limit(conn, key_concurrency=3, rate=4)["rate"] == 2
    assert limits_of(conn) == {"max_waiting": 100, "rate": 4, "burst": 5, "key_concurrency": 3}
    before = limit(conn, max_waiting=200)
    assert before == dict.fromkeys([*LIMITS, "max_waiting_group"]) | {
        "max_waiting": 100, "rate": 4, "burst": 5, "key_concurrency": 3,
    }  # fmt: skip
    assert limits_of(conn) == {"max_waiting": 200, "rate": 4, "burst": 5, "key_concurrency": 3}
    assert limit(conn)["max_waiting"] == 200
    assert limits_of(conn) == {"max_waiting": 200, "rate": 4, "burst": 5, "key_concurrency": 3}
    assert limits_of(conn, "other") is None


def test_limits_are_removed_by_name_before_others_are_set(conn):
    """One, with a rate its burst, or all; with the last one the queue is not listed any more."""
    limit(conn, max_waiting=100, rate=2, burst=5, key_rate=1, key_burst=7, concurrency=3)
    limit(conn, remove=["rate", "concurrency"])
    assert limits_of(conn) == {"max_waiting": 100, "key_rate": 1, "key_burst": 7}
    limit(conn, remove=["key_burst"])
    assert limits_of(conn) == {"max_waiting": 100, "key_rate": 1}
    limit(conn, remove=["all"], concurrency=8)
    assert limits_of(conn) == {"concurrency": 8}
    limit(conn, remove=["max_waiting", "rate"])
    assert limits_of(conn) == {"concurrency": 8}
    assert limit(conn, remove=["concurrency"])["concurrency"] == 8
    assert limits_of(conn) is None
    assert one(conn, "select count(*) from forebay.queue_limits") == 0
    assert limit(conn, remove=["all"]) is None


def test_a_refused_call_changes_none_of_the_limits_before(conn):
    """A burst needs a rate, in the limits that would result; what was set stays whole."""
    limit(conn, max_waiting=100, rate=2)
    refused = "select forebay.limit_queue('q', max_waiting => 5, burst => 3, remove => '{rate}')"
    assert sqlstate(conn, refused) == "JQ001"
    assert limits_of(conn) == {"max_waiting": 100, "rate": 2}


def test_two_who_change_different_limits_at_the_same_time_both_count(database, conn):
    """The second waits for the first one's commit, and starts from what that set."""
    with psycopg.connect(database) as first, ThreadPoolExecutor() as threads:
        limit(first, max_waiting=100)
        second = threads.submit(limit, conn, rate=2)
        wait_for(lambda: waiting_for_a_lock(first) == 1)
        first.commit()
        assert second.result()["max_waiting"] == 100
    assert limits_of(conn) == {"max_waiting": 100, "rate": 2}


def test_a_limit_on_what_waits_leaves_claims_as_they_are(database, conn):
    """Claims of such a queue do not pass the limiter, and setting it does not count anew what is
    in flight.
    """
    limit(conn, max_waiting=100)
    enqueue(conn, queue="q")
    with Reader(database, "q") as reader:
        assert len(reader.claim_ready(5).jobs) == 1
        assert one(conn, "select count(*) from forebay.limiter") == 0
        limit(conn, concurrency=5)
        set_at = one(conn, "select starts_set_at from forebay.queue_limits")
        limit(conn, max_waiting=50)
        assert one(conn, "select starts_set_at from forebay.queue_limits") == set_at
        limit(conn, remove=["concurrency"])
        assert one(conn, "select starts_set_at from forebay.queue_limits") is None


@pytest.mark.parametrize("key", ["", "k" * 201, "a\nb"])
def test_a_limit_key_of_nonsense_is_refused(conn, key):
    """In every call, with nothing written."""
    for query in (
        "select forebay.enqueue('work', limit_key => %s)",
        "select forebay.enqueue_unique('work', '{}', '{\"once\": \"a\"}', limit_key => %s)",
        "select forebay.enqueue_many('work', array['{}'::jsonb], limit_key => %s)",
        (
            "select forebay.enqueue_many(jsonb_build_array(jsonb_build_object('kind', 'work', "
            "'limit_key', %s::text)))"
        ),
    ):
        assert sqlstate(conn, query, key) == "JQ001"
    assert one(conn, "select count(*) from forebay.log") == 0
    assert one(conn, "select count(*) from forebay.lane") == 0


# --- all together ---


@pytest.mark.slow
def test_whatever_happens_the_limits_hold_and_nothing_is_lost(database, conn, seed):
    """Three readers that claim, settle, fail, release and lose their leases at random, while
    jobs of all sorts come.
    """
    rng = random.Random(seed)
    keys = ["a", "b", "c", "d", None]
    limit(conn, concurrency=7, key_concurrency=3)
    key_of: dict[int, str | None] = {}
    ended: Counter[int] = Counter()
    readers = [Reader(database, "q") for _ in range(3)]
    held: list[tuple[Reader, object, set[int]]] = []

    def in_flight() -> Counter:
        return Counter(
            key_of[batch.jobs[offset - 1]["job_id"]]
            for _, batch, offsets in held
            for offset in offsets
        )

    def settle() -> None:
        place = rng.randrange(len(held))
        reader, batch, offsets = held[place]
        offset = rng.choice(sorted(offsets))
        outcome = rng.choice(["done", "done", "done", "retried", "released", "snoozed"])
        ending = {"offset": offset, "outcome": outcome}
        done = [offset] if outcome == "done" else []
        status = reader.settle(
            batch.claim_no,
            done,
            flush_no=offset,
            ended=[] if done else [ending],
        )
        assert status == "settled"
        ended.update(batch.jobs[offset - 1]["job_id"] for _ in done)
        offsets.discard(offset)
        if not offsets:
            held.pop(place)
            reader.open_claims.discard(batch.claim_no)

    def claim() -> None:
        reader = rng.choice(readers)
        one(conn, "select forebay.promote_v1()")
        for lane in reader.ready():
            batch = reader.claim(rng.randint(1, 4), lane["lane"])
            if batch.jobs:
                held.append((reader, batch, {job["batch_offset"] for job in batch.jobs}))
                break
        counts = in_flight()
        assert counts.total() <= 7
        assert max([counts[key] for key in keys if key] or [0]) <= 3

    def lose() -> None:
        reader = rng.choice(readers)
        reader.revoked_by(conn, suspects=rng.random() < 0.5)
        held[:] = [item for item in held if item[0] is not reader]
        reader.open_lease()

    def come() -> None:
        key = rng.choice(keys)
        for job_id in jobs_of(conn, key, rng.randint(1, 5), priority=rng.choice([5, 100])):
            key_of[job_id] = key

    for _ in range(300):
        step = rng.choice(
            [come, claim, claim, settle, settle, lose if rng.random() < 0.2 else claim]
        )
        if step is not settle or held:
            step()
    while set(ended) < set(key_of):
        while not held:
            claim()
        settle()
        claim()
    assert set(ended.values()) == {1}
    for reader in readers:
        reader.conn.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promise", "function", "guards"),
    [
        (
            test_jobs_of_a_lost_lease_cease_to_count,
            "_limit_states",
            [("e.place = f.place", "false")],
        ),
        (
            test_what_runs_already_counts_when_limits_are_set,
            "_read_limiter_fully",
            [("v.seed_until := v.at + interval '1 second';", "null;")],
        ),
        (
            test_a_queue_starts_no_more_per_second_than_its_rate_allows,
            "_permits",
            [("- greatest(0, coalesce(date_part('epoch', p_tat - p_at), 0)) * p_rate", "")],
        ),
        (
            test_keys_of_very_different_backlogs_get_even_shares,
            "_plan_limited",
            [("greatest(1, p_limit / greatest(1, count(*) filter (where u.jobs > 0)))", "v_limit")],
        ),
        (
            test_who_comes_again_at_once_does_not_come_first,
            "_read_limited",
            [("order by u.after, u.ordinality", "order by u.ordinality")],
        ),
        (
            test_jobs_are_found_whatever_transaction_brings_them,
            "_xid_ranges",
            [("if pg_snapshot_xmin(p_from) <> pg_snapshot_xmax(p_from) then", "if false then")],
        ),
        (
            test_no_more_jobs_of_a_key_are_handed_out_than_may_run_at_once,
            "_limit_states",
            [("l.concurrency - coalesce(o.jobs, 0)", "l.concurrency")],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_without_its_guard_a_promise_breaks(database, conn, promise, function, guards):
    """The mutants: each test above fails when the line is missing that it is about."""
    break_function(database, function, *guards)
    with violation(psycopg.Error):
        promise(database, conn)

"""Calls that take the same things in opposite orders: who waits for whom, and what a deadlock
costs.
"""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import forebay
from tests.sql.test_unique import ask
from tests.support.engine import (
    STEPS,
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    sqlstate,
    state,
)
from tests.support.fix_worker import run_until_idle
from tests.support.mutant import break_function
from tests.support.waiting import wait_for

SECONDS = 1.5
KEYS = 12


def together(duties, seed, seconds: float = SECONDS) -> None:
    """Run functions in threads, each with a random source of its own and a function that says
    how long; fail as they do.
    """
    errors: list[BaseException] = []
    until = time.monotonic() + seconds

    def continues() -> bool:
        return time.monotonic() < until and not errors

    def guarded(duty, rng: random.Random) -> None:
        try:
            duty(rng, continues)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=(duty, random.Random(f"{seed}/{n}")), daemon=True)
        for n, duty in enumerate(duties)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


def bulk_calls_of_the_same_keys(dsn: str, seed, seconds: float = SECONDS) -> int:
    """Let eight producers enqueue most of a dozen keys at once, in random order.

    Return how many calls there were.
    """
    calls = Counter()

    def produce(rng: random.Random, continues) -> None:
        with psycopg.connect(dsn) as conn:
            while continues():
                keys = rng.sample(range(KEYS), 9)
                mode = rng.choice(["once", "coalesce", "replace"])
                enqueue_many(
                    conn, [{"kind": "work", "unique_as": {mode: f"k{key}"}} for key in keys]
                )
                time.sleep(0.002 * rng.random())
                if rng.random() < 0.3:
                    conn.rollback()
                else:
                    conn.commit()
                    calls["committed"] += 1

    def work(rng: random.Random, continues) -> None:
        with Reader(dsn) as reader:
            while continues():
                batch = reader.claim_ready(20)
                if batch.jobs:
                    reader.finish(batch)
                time.sleep(0.002)

    together([*[produce] * 8, work], seed, seconds)
    return calls["committed"]


@pytest.mark.slow
def test_bulk_calls_of_the_same_keys_in_any_order_never_deadlock(database, seed, is_long):
    """
    A bulk call takes its keys in an order of theirs, not the caller's: none of many is ended as a
    deadlock's victim.
    """
    committed = bulk_calls_of_the_same_keys(database, seed, 60 if is_long else SECONDS)
    print(f"{committed} calls")
    assert committed > 20


def pushes_of_the_same_subjects(dsn: str, seed: int, seconds: float) -> int:
    """Push, upsert and drop the same subjects in bulk calls of many sessions; return the number
    of commits.
    """
    calls: Counter[str] = Counter()

    def produce(rng: random.Random, continues) -> None:
        with psycopg.connect(dsn) as conn:
            while continues():
                call = rng.choice(
                    ["push_subjects(%s)", "push_subjects(%s)", "upsert_subjects(%s, true)"]
                )
                # Others are new at each call, and sessions wait for who creates them.
                first = calls["committed"]
                items = [
                    {
                        "kind": "work",
                        "queue": "work",
                        "subject": f"s{name}",
                        "delay": rng.choice([0, 9]),
                    }
                    for name in rng.sample(range(first, first + KEYS), 9)
                ]
                conn.execute(f"select * from forebay.{call}", [json.dumps(items)])
                time.sleep(0.002 * rng.random())
                if rng.random() < 0.3:
                    conn.rollback()
                    continue
                conn.commit()
                calls["committed"] += 1
                drop = "select forebay.drop_subject('work', %s)"
                assert sqlstate(conn, drop, items[0]["subject"]) in (None, "JQ065")
                conn.rollback()

    together([produce] * 6, seed, seconds)
    return calls["committed"]


@pytest.mark.slow
def test_bulk_pushes_of_the_same_subjects_in_any_order_never_deadlock(database, seed, is_long):
    """
    Rows of subjects are inserted and locked in the order of their names, not the caller's.
    """
    committed = pushes_of_the_same_subjects(database, seed, 60 if is_long else SECONDS)
    print(f"{committed} calls")
    assert committed > 20


@pytest.mark.slow
def test_bulk_pushes_deadlock_when_they_take_subjects_as_they_come(database, seed):
    """
    Taken in the caller's order, they do.
    """
    break_function(
        database,
        "_put_subjects",
        (
            'from unnest(p_new) u order by u.queue collate "C", u.subject collate "C"',
            "from unnest(p_new) u order by u.nr",
        ),
    )
    with pytest.raises(psycopg.errors.DeadlockDetected):
        pushes_of_the_same_subjects(database, seed, 60)


@pytest.mark.slow
def test_bulk_calls_deadlock_when_they_take_keys_as_they_come(database, seed):
    """
    Taken in the caller's order, they do.
    """
    break_function(
        database,
        "_key_inputs",
        (
            'order by u.queue collate "C", u.mode collate "C", u.word collate "C", u.nr);',
            "order by u.nr);",
        ),
    )
    with pytest.raises(psycopg.errors.DeadlockDetected):
        bulk_calls_of_the_same_keys(database, seed, 20)


def test_of_two_transactions_that_took_keys_crosswise_one_is_told_and_repeats(database, conn):
    """
    Each waits for the key that the other one has just taken. PostgreSQL ends one, which gets the
    driver's own error; the other goes on. Repeated, the one finds what the other made: one live job
    for each key.
    """
    made: list[dict[str, int]] = []
    raised: list[psycopg.Error] = []
    has_one = threading.Barrier(2)

    def produce(keys: str) -> None:
        with psycopg.connect(database) as producer:
            for attempt in range(2):
                try:
                    first = ask(producer, {"once": keys[0]}).job_id
                    if attempt == 0:
                        has_one.wait(10)
                    second = ask(producer, {"once": keys[1]}).job_id
                    producer.commit()
                except psycopg.errors.DeadlockDetected as error:
                    raised.append(error)
                    producer.rollback()
                    wait_for(lambda: made)  # At once they might only do it again.
                else:
                    made.append(dict(zip(keys, (first, second), strict=True)))
                    return

    threads = [threading.Thread(target=produce, args=(keys,)) for keys in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(raised) == 1
    assert made[0] == made[1]
    assert one(conn, "select count(*) from forebay.log") == 2


@pytest.mark.parametrize("first", [0, 1])
def test_a_limited_claim_and_the_sweep_take_lanes_in_opposite_orders(database, conn, first):
    """
    The claim reads the public lane and the private one, and another session, as a sweep does, has
    one of them and comes for the other. One of the two orders is opposite, whichever lane the claim
    takes first.
    """
    jobs = enqueue_many(conn, [{"kind": "work", "queue": "q", "limit_key": "a"}] * 2)
    expire = (
        "select sum(forebay._expire_one(row(l.*)::forebay.log, %s, 'q', 100, 0, '1:1:'))"
        " from forebay.log l where l.lane = %s"
    )
    with (
        Reader(database, "q") as reader,
        psycopg.connect(database) as sweep,
        ThreadPoolExecutor(1) as threads,
    ):
        reader.conn.execute("set deadlock_timeout = '100ms'")
        batch = reader.claim_ready(1)
        reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "retried"}])
        lanes = [
            one(conn, "select forebay._limited_lane_id('q', 100, %s)", n)
            for n in (0, reader.group_id)
        ]
        for job in jobs:
            conn.execute("select forebay.cancel(%s)", [job])
        sweep.execute(expire, [reader.group_id, lanes[first]])
        claim = threads.submit(reader.claim, 10, lanes[0])
        wait_for(lambda: claim.done() or is_blocked(conn, reader))
        sweep.execute(expire, [reader.group_id, lanes[1 - first]])
        sweep.commit()
        assert claim.result(20).jobs == []


@pytest.mark.parametrize("locked", [0, 1])
def test_a_lane_that_a_limited_claim_passed_over_is_claimed_later(database, conn, locked):
    """
    Another session has the lock of the one lane with a job. Whichever lane is claimed, the job is
    found afterwards, and its lane is reported as ready.
    """
    job = enqueue(conn, queue="q", limit_key="a")
    with (
        Reader(database, "q") as reader,
        psycopg.connect(database) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        lanes = [
            one(conn, "select forebay._limited_lane_id('q', 100, %s)", n)
            for n in (0, reader.group_id)
        ]
        if locked:
            batch = reader.claim_ready(1)
            reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "retried"}])
        other.execute("select forebay._lock_lane(%s, %s)", [reader.group_id, lanes[locked]])
        claim = threads.submit(reader.claim, 10, lanes[0])
        wait_for(lambda: claim.done() or is_blocked(conn, reader))
        other.rollback()
        found = claim.result(20).job_ids or reader.claim_ready(10).job_ids
        assert found == [job]


def is_blocked(conn: psycopg.Connection, reader: Reader) -> bool:
    query = "select cardinality(pg_blocking_pids(%s)) > 0"
    return one(conn, query, reader.conn.info.backend_pid)


ENDS = ("done", "dead", "cancelled")


@pytest.mark.slow
def test_ends_that_race_for_the_same_jobs_wait_for_nobody_and_agree(database, conn, seed, is_long):
    """
    Settlements in parts and in random order, cancellations of many jobs in one transaction, leases
    taken away, expiry, redrive and maintenance, all at the same few jobs: no deadlock, and each job
    ends once.
    """
    jobs: list[int] = []
    lock = threading.Lock()

    def produce(rng: random.Random, continues) -> None:
        with connect(database) as producer:
            while continues():
                made = enqueue_many(
                    producer,
                    [{"kind": "work"} | ({"delay": 0.02} if n % 5 == 0 else {}) for n in range(10)],
                )
                with lock:
                    jobs.extend(made)
                time.sleep(0.02)

    def work(rng: random.Random, continues) -> None:
        with Reader(database) as reader:
            while continues():
                try:
                    work_once(rng, reader)
                except psycopg.Error as error:
                    if error.sqlstate != "JQ010":
                        raise
                    reader.open_lease()  # It was taken away.

    def work_once(rng: random.Random, reader: Reader) -> None:
        batch = reader.claim_ready(10)
        offsets = list(range(1, len(batch.jobs) + 1))
        rng.shuffle(offsets)
        half = len(offsets) // 2
        for flush_no, part in enumerate((offsets[:half], offsets[half:]), 1):
            outcomes = rng.choices(("done", "dead", "retried"), (7, 2, 1), k=len(part))
            ended = [
                {"offset": offset, "outcome": outcome, "after": 0.01}
                for offset, outcome in zip(part, outcomes, strict=True)
            ]
            if ended:
                assert reader.settle(batch.claim_no, flush_no=flush_no, ended=ended) == "settled"
        reader.open_claims.discard(batch.claim_no)

    def cancel(rng: random.Random, continues) -> None:
        with psycopg.connect(database) as canceller:
            while continues():
                with lock:
                    chosen = rng.sample(jobs[-60:], min(8, len(jobs[-60:])))
                for job in chosen:
                    one(canceller, "select forebay.cancel(%s)", job)
                if rng.random() < 0.8:
                    canceller.commit()
                else:
                    canceller.rollback()
                time.sleep(0.01)

    def revoke(rng: random.Random, continues) -> None:
        with connect(database) as taker:
            while continues():
                row = taker.execute(
                    "select lease_id from forebay.lease where closed_at is null"
                    " order by random() limit 1"
                ).fetchone()
                if row:
                    taker.execute("select forebay._revoke(%s, 'revoked', false)", row)
                time.sleep(0.05)

    def keep_up(rng: random.Random, continues) -> None:
        with connect(database) as keeper:
            while continues():
                for duty in rng.sample(("promote", "sweep", "seal", "trim", "summarize"), 5):
                    keeper.execute(STEPS[duty])
                keeper.execute("select forebay.redrive_matching(most => 5)")

    together(
        [produce, produce, *[work] * 3, cancel, cancel, revoke, keep_up],
        seed,
        60 if is_long else SECONDS,
    )
    with Reader(database) as reader:
        for row in conn.execute(
            "select lease_id from forebay.lease where closed_at is null"
        ).fetchall():
            if row[0] != reader.lease_id:
                conn.execute("select forebay._revoke(%s, 'revoked', false)", row)

        def come_to_rest() -> bool:
            one(conn, "select forebay.promote_v1()")
            while (batch := reader.claim_ready(1000)).jobs:
                reader.finish(batch)
            return all(numbers == (0, 0, 0) for numbers in depth(conn).values())

        wait_for(come_to_rest, 20)
    ends = Counter(state(conn, job) for job in jobs)
    print(f"{len(jobs)} jobs: {dict(ends)}")
    assert set(ends) <= set(ENDS)
    assert len(ends) == len(ENDS)
    _each_ended_once(conn)


def _each_ended_once(conn: psycopg.Connection) -> None:
    """No row of the log was settled for good twice."""
    twice = conn.execute(
        """
        select u.seq from forebay.batch b
        cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
        join forebay.settlement s on s.lease_id = b.lease_id and s.claim_no = b.claim_no
                                 and (s.offsets is null or u.nr = any (s.offsets))
        group by u.seq having count(*) > 1
        """
    ).fetchall()
    assert twice == []


@pytest.mark.anyio
@pytest.mark.usual(
    "without a lock_timeout that ends both transactions before the deadlock is found"
)
async def test_a_handler_that_is_a_deadlocks_victim_runs_again(app, conn):
    """
    Two transactions of handlers update the same two rows crosswise: one is rolled back and tried
    again, and what both wrote is there once.
    """
    conn.execute("create table account (name text primary key, total int not null)")
    conn.execute("insert into account values ('a', 0), ('b', 0)")
    has_one = asyncio.Barrier(2)
    attempts = []

    @app.job(transaction=True, retry=forebay.RetryPolicy(strategy="fixed", base_seconds=0.01))
    async def move(ctx: forebay.Context, names: str) -> None:
        attempts.append(ctx.attempt)
        add = "update account set total = total + 1 where name = %s"
        await ctx.conn.execute(add, [names[0]])
        if ctx.attempt == 1:
            await asyncio.wait_for(has_one.wait(), 10)
        await ctx.conn.execute(add, [names[1]])

    jobs = [move.enqueue(conn, names) for names in ("ab", "ba")]
    await run_until_idle(app, concurrency=2)
    if any(state(conn, job) != "done" for job in jobs):  # The retry was not due yet.
        async with asyncio.timeout(10):
            while any(state(conn, job) != "done" for job in jobs):
                await run_until_idle(app, concurrency=2)
    assert sorted(attempts) == [1, 1, 2]
    assert conn.execute("select name, total from account order by 1").fetchall() == [
        ("a", 2),
        ("b", 2),
    ]
    codes = conn.execute("select error_type from forebay.failure").fetchall()
    assert codes == [("psycopg.errors.DeadlockDetected",)]

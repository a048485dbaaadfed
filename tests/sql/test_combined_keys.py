"""An ordering key or a limit key and a unique key on one job."""

import random

import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    state,
)
from tests.support.waiting import wait_for

KEYS = ["ordering_key", "limit_key"]


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def put(conn, sort: str, unique: str, word: str = "k", **more: object) -> int:
    """Enqueue one job of key a with a unique key; return the id that it got."""
    given = {"queue": "q", sort: "a", "unique_as": f'{{"{unique}": "{word}"}}'} | more
    return enqueue(conn, **given)


def first_runs(conn, database: str, sort: str) -> tuple[Reader, object]:
    """Let a job of key a run, so that the next ones of the key are parked."""
    if sort == "limit_key":
        one(conn, "select forebay.limit_queue('q', key_concurrency => 1)::text")
    enqueue(conn, queue="q", **{sort: "a"})
    reader = Reader(database, "q")
    batch = reader.claim_ready(1)
    assert len(batch.jobs) == 1
    return reader, batch


def rest(reader: Reader, other: Reader | None = None) -> list[int]:
    """Claim and finish until nothing is ready; return the jobs."""
    reader = other or reader
    found: list[int] = []

    def is_over() -> bool:
        one(reader.conn, "select forebay.promote_v1()")
        batch = reader.claim_ready(10)
        found.extend(batch.job_ids)
        if batch.jobs:
            reader.finish(batch)
        return not batch.jobs and depth(reader.conn, "q")["default"][0] == 0

    wait_for(is_over, describe="all jobs are done")
    return found


@pytest.mark.parametrize("sort", KEYS)
def test_a_parked_job_holds_its_unique_key(database, conn, sort):
    """The same unique key gives the parked job, until it has ended; then a new one."""
    reader, batch = first_runs(conn, database, sort)
    other = Reader(database, "q")
    job = put(conn, sort, "once")
    assert other.claim_ready(5).jobs == []
    assert state(conn, job) == "ready"
    assert put(conn, sort, "once") == job
    made = enqueue_many(
        conn,
        [{"kind": "work", "queue": "q", sort: "a", "unique_as": {"once": word}} for word in "kl"],
    )
    assert made[0] == job
    assert made[1] != job
    reader.finish(batch)
    assert rest(reader, other) == [job, made[1]]
    assert put(conn, sort, "once") not in {job, *made}
    reader.conn.close()
    other.conn.close()


@pytest.mark.parametrize("sort", KEYS)
def test_a_parked_job_that_is_replaced_does_not_run(database, conn, sort):
    """Only the newest job of the unique key does, and the next job of the key runs after it."""
    reader, batch = first_runs(conn, database, sort)
    other = Reader(database, "q")
    old = put(conn, sort, "replace")
    assert other.claim_ready(5).jobs == []
    new = put(conn, sort, "replace")
    assert new != old
    last = enqueue(conn, queue="q", **{sort: "a"})
    reader.finish(batch)
    assert rest(reader, other) == [new, last]
    assert state(conn, old) == "cancelled"
    reader.conn.close()
    other.conn.close()


@pytest.mark.parametrize("sort", KEYS)
def test_a_call_that_joins_a_parked_job_is_followed_up(database, conn, sort):
    """The job starts while the call's transaction is open: a successor runs after it."""
    reader, batch = first_runs(conn, database, sort)
    other = Reader(database, "q")
    job = put(conn, sort, "coalesce")
    assert other.claim_ready(5).jobs == []
    with connect(database) as joins:
        joins.autocommit = False
        assert put(joins, sort, "coalesce") == job
        reader.finish(batch)
        assert rest(reader, other) == [job]
        joins.commit()
    successor = one(conn, "select max(job_id) from forebay.unique_key")
    assert successor != job
    assert state(conn, successor) == "scheduled"
    reader.conn.close()
    other.conn.close()


def test_a_requeued_job_holds_its_unique_key(database, conn):
    """It was claimed behind a job that must run again: it waits, then runs, then has ended."""
    first = enqueue(conn, queue="q", ordering_key="a")
    second = put(conn, "ordering_key", "once")
    with Reader(database, "q") as reader:
        batch = reader.claim_ready(5)
        assert batch.job_ids == [first, second]
        reader.settle(
            batch.claim_no,
            ended=[{"offset": 1, "outcome": "retried"}, {"offset": 2, "outcome": "released"}],
        )
        assert put(conn, "ordering_key", "once") == second
        again = reader.claim_ready(5)
        assert again.job_ids == [first, second]
        assert put(conn, "ordering_key", "once") == second
        reader.finish(again)
        assert put(conn, "ordering_key", "once") != second


@pytest.mark.parametrize("sort", KEYS)
def test_unique_jobs_with_keys_run_once_and_in_order(database, conn, seed, sort):
    """Two readers, failures, joins and other keys at random: of each unique key one job at a
    time, each job done once.
    """
    rng = random.Random(seed)
    if sort == "limit_key":
        one(conn, "select forebay.limit_queue('q', key_concurrency => 1)::text")
    readers = [Reader(database, "q") for _ in range(2)]
    made: list[int] = []
    done: list[int] = []
    held: list = []
    for _ in range(120):
        act = rng.random()
        if act < 0.4:
            made.append(put(conn, sort, "once", rng.choice("klm"), **{sort: rng.choice("ab")}))
        elif act < 0.7:
            reader = rng.choice(readers)
            batch = reader.claim_ready(rng.randint(1, 3))
            if batch.jobs:
                held.append((reader, batch))
        elif held:
            reader, batch = held.pop(rng.randrange(len(held)))
            if rng.random() < 0.3:
                reader.settle(
                    batch.claim_no,
                    ended=[
                        {"offset": n, "outcome": "released"} for n in range(1, len(batch.jobs) + 1)
                    ],
                )
                reader.open_claims.discard(batch.claim_no)
            else:
                reader.finish(batch)
                done += batch.job_ids
    for reader, batch in held:
        reader.finish(batch)
        done += batch.job_ids
    done += rest(readers[0])
    assert sorted(done) == sorted(set(made))
    for reader in readers:
        reader.conn.close()


def test_new_limits_of_a_queue_with_both_sorts_of_keys(database, conn):
    """A claim of ordering keys writes nothing before it has read its lane, also where it
    announces new limits.
    """
    reader = Reader(database, "q")
    for _ in range(2):
        one(conn, "select forebay.enqueue('work', queue => 'q', limit_key => 'k')")
    assert len(reader.claim_ready(1).jobs) == 1
    one(conn, "select forebay.limit_queue('q', key_concurrency => 1)::text")
    ordered = one(conn, "select forebay.enqueue('work', queue => 'q', ordering_key => 'k')")
    batches = [reader.claim(10, lane["lane"]) for lane in reader.ready()]
    assert ordered in [job["job_id"] for batch in batches for job in batch.jobs]
    assert sum(len(batch.jobs) for batch in batches) == 1
    reader.conn.close()

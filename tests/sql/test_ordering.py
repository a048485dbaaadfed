"""Ordering keys: of a key's jobs one at a time, by number, whatever happens to those before."""

import contextlib
import random
from collections import defaultdict

import psycopg
import pytest

from tests.support.broken_twin import break_function, violation
from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    one,
    shift_clock,
    small_segments,
    state,
)


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def put(conn, count: int, key: str = "k", **options) -> list[int]:
    """Enqueue jobs of one key of queue ``q``; return their ids."""
    return [enqueue(conn, queue="q", ordering_key=key, **options) for _ in range(count)]


def take(reader: Reader, limit: int = 100) -> list:
    """Claim from every ready lane until none gives anything; return the batches."""
    batches = []
    while (batch := reader.claim_ready(limit)).jobs:
        batches.append(batch)
    return batches


def ids(batches) -> list[int]:
    return [job_id for batch in batches for job_id in batch.job_ids]


def drained(reader: Reader, limit: int = 100) -> list[int]:
    """Claim and finish until nothing is ready; return the ids in the order they were handed out."""
    got = []
    while (batch := reader.claim_ready(limit)).jobs:
        got += batch.job_ids
        reader.finish(batch)
    return got


def ended(offset: int, outcome: str, **more) -> dict:
    return {"offset": offset, "outcome": outcome} | more


def wait_over(conn) -> None:
    """Let every deferred job become due, and promote it."""
    shift_clock(conn, 86400)
    while one(conn, "select forebay.promote_v1(1000)"):
        pass


def test_jobs_of_a_key_that_somebody_holds_wait_and_come_in_order(database, conn):
    """The second reader gets what follows only when the first has settled all it holds of the key."""
    jobs = put(conn, 6)
    with Reader(database, "q") as first, Reader(database, "q") as second:
        (batch,) = take(first, 3)[:1]
        assert batch.job_ids == jobs[:3]
        later = put(conn, 2)
        assert take(second) == []
        assert depth(conn, "q") == {"default": (5, 3, 0)}
        assert state(conn, jobs[4]) == "ready"
        assert first.settle(batch.claim_no, [1, 2], flush_no=1) == "settled"
        assert take(second) == []
        assert first.settle(batch.claim_no, [3], flush_no=2) == "settled"
        assert ids(take(second)) == jobs[3:] + later
        assert state(conn, jobs[4]) == "leased"
        assert state(conn, jobs[0]) == "done"


def test_keys_do_not_wait_for_each_other(database, conn):
    """While one key is held, another one's jobs are handed out, and jobs without a key."""
    put(conn, 3, "a")
    with Reader(database, "q") as first, Reader(database, "q") as second:
        assert len(ids(take(first))) == 3
        others = [*put(conn, 2, "b"), enqueue(conn, queue="q")]
        put(conn, 1, "a")
        assert sorted(ids(take(second))) == others


@pytest.mark.parametrize("outcome", ["retried", "snoozed", "unknown", "handed_back", "lost"])
@pytest.mark.parametrize("after", [0, 60])
def test_a_job_that_goes_on_holds_back_those_behind_it(database, conn, outcome, after):
    """Its key's later jobs, in the batch, parked and new, come after it, in order, however long it takes to come back."""
    jobs = put(conn, 8)
    with Reader(database, "q") as first, Reader(database, "q") as second:
        (batch,) = take(first, 5)[:1]
        assert take(second) == []
        rest = [ended(offset, "handed_back") for offset in (3, 4, 5)]
        assert (
            first.settle(batch.claim_no, [1], ended=[ended(2, outcome, after=after), *rest])
            == "settled"
        )
        jobs += put(conn, 1)
        if after:
            assert take(second) == []
            assert state(conn, jobs[2]) == "ready"
            wait_over(conn)
        (again,) = take(second)
        if outcome == "lost":
            assert again.job_ids == [jobs[1]]
        second.finish(again)
        assert again.job_ids + drained(second) == jobs[1:]


def test_jobs_kept_back_twice_stay_in_order(database, conn):
    """The second of those kept back fails in its turn, while only some of them were taken."""
    jobs = put(conn, 10)
    with Reader(database, "q") as reader:
        batch = reader.claim_ready(8)
        back = [ended(offset, "handed_back") for offset in range(2, 9)]
        assert reader.settle(batch.claim_no, [], ended=[ended(1, "retried"), *back]) == "settled"
        batch = reader.claim_ready(4)
        assert batch.job_ids == jobs[:4]
        back = [ended(offset, "handed_back") for offset in (3, 4)]
        assert reader.settle(batch.claim_no, [1], ended=[ended(2, "retried"), *back]) == "settled"
        assert drained(reader, 3) == jobs[1:]


def test_after_a_lost_lease_the_first_of_each_key_comes_back_alone(database, conn):
    """It may have killed its worker: it is a suspect. Those behind it wait for it, and are none."""
    jobs = put(conn, 4, "a")
    others = put(conn, 3, "b")
    with Reader(database, "q") as first, Reader(database, "q") as second:
        batch = first.claim_ready(100)
        assert sorted(batch.job_ids) == jobs + others
        place = batch.job_ids.index(jobs[0]) + 1
        assert first.settle(batch.claim_no, [place]) == "settled"
        assert first.revoked_by(conn) == 6
        suspects = take(second)
        assert sorted(ids(suspects)) == [jobs[1], others[0]]
        assert [len(batch.jobs) for batch in suspects] == [1, 1]
        for batch in suspects:
            second.finish(batch)
        rest = ids(take(second))
        assert [job for job in rest if job in jobs] == jobs[2:]
        assert [job for job in rest if job in others] == others[1:]


def test_after_a_dead_letter_the_key_goes_on_and_a_redriven_job_comes_last(database, conn):
    """A dead job is ended; redriven it is a new one."""
    jobs = put(conn, 3)
    with Reader(database, "q") as reader:
        batch = reader.claim_ready(1)
        assert take(reader) == []
        assert (
            reader.settle(batch.claim_no, [], ended=[ended(1, "dead", reason="permanent")])
            == "settled"
        )
        (batch,) = take(reader)
        assert batch.job_ids == jobs[1:]
        new = one(conn, "select forebay.redrive(dead_id) from forebay.dead_letter")
        assert take(reader) == []
        reader.finish(batch)
        (batch,) = take(reader)
        assert batch.job_ids == [new]
        assert batch.jobs[0]["ordering_key"] == "k"


def test_cancelled_and_expired_jobs_let_the_next_one_through(database, conn):
    """Parked, kept back or on their way as a retry: the key goes on without them."""
    jobs = put(conn, 7)
    with Reader(database, "q") as reader:
        batch = reader.claim_ready(3)
        assert take(reader) == []
        for job in (jobs[0], jobs[2], jobs[4]):
            one(conn, "select forebay.cancel(%s)", job)
        kept = [ended(offset, "handed_back") for offset in (2, 3)]
        assert (
            reader.settle(batch.claim_no, [], ended=[ended(1, "retried", after=5), *kept])
            == "settled"
        )
        (batch,) = take(reader)
        assert batch.job_ids == [jobs[1], jobs[3], jobs[5], jobs[6]]
        assert [state(conn, jobs[i]) for i in (0, 2, 4)] == ["cancelled"] * 3
        reader.finish(batch)
        jobs = put(conn, 1) + put(conn, 1, expires_at="2035-01-01+0") + put(conn, 1)
        batch = reader.claim_ready(1)
        assert take(reader) == []
        shift_clock(conn, 86400 * 365 * 20)
        reader.finish(batch)
        assert take(reader) == []
        assert [state(conn, job) for job in jobs] == ["done", "expired", "expired"]


def serialised(database: str) -> None:
    """The one that began first enqueues last; a claim of one job at a time sees both at once."""
    with (
        Reader(database, "q") as reader,
        connect(database) as conn,
        psycopg.connect(database) as early,
    ):
        put(conn, 1)
        reader.finish(reader.claim_ready(1))
        early.execute("select pg_current_xact_id()")
        (first,) = put(conn, 1)
        (second,) = put(early, 1)
        early.commit()
        assert drained(reader, 1) == [first, second]


def test_transactions_serialised_by_a_lock_run_in_that_order_whoever_began_first(database):
    """By number, where the numbers of transactions say the opposite."""
    serialised(database)


def test_the_order_of_transactions_would_not_do(database):
    """The same with the windows of keyed lanes read as those of the others."""
    for segment in range(64):
        break_function(
            database,
            f"_read_keyed_{segment}",
            (
                "order by l.seq\n                     limit",
                "order by l.xid, l.seq\n                     limit",
            ),
        )
    with violation():
        serialised(database)


def test_a_job_that_commits_late_comes_after_those_already_met(database, conn):
    """Nothing serialised the two: the later number was handed out, the lower one follows and is not lost."""
    with Reader(database, "q") as reader, psycopg.connect(database) as slow:
        (low,) = put(slow, 1)
        (high,) = put(conn, 1)
        batch = reader.claim_ready(10)
        assert batch.job_ids == [high]
        more = put(conn, 1)
        assert take(reader) == []
        slow.commit()
        assert take(reader) == []
        reader.finish(batch)
        assert sorted(ids(take(reader))) == sorted([*more, low])


def storm(database: str, seed: int, *, keys: int = 8, rounds: int = 400) -> None:
    """Four readers claim, settle, fail, hand back and lose their leases at random; check the order of each key."""
    rng = random.Random(seed)
    with connect(database) as conn, contextlib.ExitStack() as stack:
        small_segments(conn, 100)
        readers = [stack.enter_context(Reader(database, "q")) for _ in range(4)]
        held: dict[int, list] = {number: [] for number in range(4)}
        put_in: dict[str, list[int]] = defaultdict(list)
        done: dict[str, list[int]] = defaultdict(list)
        running: dict[str, int] = {}

        def begin(number, batch) -> None:
            for key in {job["ordering_key"] for job in batch.jobs}:
                assert key not in running, f"{key} is with two at once"
                running[key] = number
            held[number].append((batch, {job["ordering_key"] for job in batch.jobs}))

        def finish(number) -> None:
            batch, keys_of = held[number].pop(rng.randrange(len(held[number])))
            reader = readers[number]
            endings, good = [], []
            for key in sorted(keys_of):
                mine = [job for job in batch.jobs if job["ordering_key"] == key]
                stop = rng.choice([len(mine)] * 2 + list(range(len(mine))))
                for place, job in enumerate(mine):
                    if place < stop:
                        done[key].append(job["job_id"])
                        good.append(job["batch_offset"])
                    elif place == stop:
                        outcome = rng.choice(["retried", "snoozed", "handed_back", "lost"])
                        after = rng.choice([0, 0, 5])
                        endings.append(ended(job["batch_offset"], outcome, after=after))
                    else:
                        endings.append(ended(job["batch_offset"], "handed_back"))
                del running[key]
            reader.open_claims.discard(batch.claim_no)
            if rng.random() < 0.3 and good:
                assert reader.settle(batch.claim_no, good, flush_no=1) == "settled"
                good = []
            if good or endings:
                assert reader.settle(batch.claim_no, good, ended=endings, flush_no=2) == "settled"

        clock = 0
        for _ in range(rounds):
            number = rng.randrange(4)
            what = rng.random()
            if what < 0.3:
                key = f"k{rng.randrange(keys)}"
                put_in[key] += put(conn, rng.randrange(1, 6), key)
            elif what < 0.65:
                batch = readers[number].claim_ready(rng.choice([1, 3, 20]))
                if batch.jobs:
                    begin(number, batch)
            elif what < 0.93:
                if held[number]:
                    finish(number)
            elif what < 0.96:
                for _, keys_of in held[number]:
                    for key in keys_of:
                        del running[key]
                held[number] = []
                readers[number].revoked_by(conn, suspects=rng.random() < 0.5)
                readers[number].open_lease()
            else:
                clock += 10
                shift_clock(conn, clock)
                one(conn, "select forebay.promote_v1(1000)")
                one(conn, "select forebay.seal_v1()")
                one(conn, "select forebay.extend_v1()")
        for number in range(4):
            while held[number]:
                finish(number)
        idle = 0
        while idle < 3:
            clock += 10
            shift_clock(conn, clock)
            one(conn, "select forebay.promote_v1(1000)")
            batch = readers[0].claim_ready(50)
            idle = 0 if batch.jobs else idle + 1
            for job in batch.jobs:
                done[job["ordering_key"]].append(job["job_id"])
            if batch.jobs:
                readers[0].finish(batch)
        assert dict(done) == dict(put_in)
        assert depth(conn, "q") == {"default": (0, 0, 0)}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_whatever_happens_each_key_runs_in_order(database, seed):
    """Retries, snoozes, jobs handed back, suspects, lost leases, small segments: each job is done once, in its key's order."""
    storm(database, seed)


@pytest.mark.parametrize(
    ("function", "guard", "instead"),
    [
        ("_kept_back", "then 'k' else", "then n.code else"),
        ("_release_keys", "if v_tails <> '{}' then", "if false then"),
        ("_take_keyed", "where i.class = 4 or", "where"),
    ],
)
def test_each_guard_is_needed(database, function, guard, instead):
    """Without it a job is lost, or comes before its time."""
    break_function(database, function, (guard, instead))
    with violation(psycopg.Error):
        for seed in range(4):
            storm(database, seed, rounds=200)

"""Jobs with an ordering key and a limit key: in order, within the limits, and none is forgotten."""

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.support.engine import (
    Batch,
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    shift_clock,
    state,
    trim,
)
from tests.support.mutant import break_function, violation
from tests.support.restore import create_database, drop_database

FINAL = {"done", "dead", "cancelled", "expired"}


@dataclass
class World:
    """Some readers of a queue, and what they were handed; each claim is checked."""

    dsn: str
    conn: psycopg.Connection
    rng: random.Random
    limit: int | None = None
    clock: float = 0
    readers: list[Reader] = field(default_factory=list)
    held: dict = field(default_factory=dict)  # (reader number, claim) -> (batch, open offsets)
    jobs: dict = field(default_factory=dict)  # id -> (ordering key, limit key)
    ended: set = field(default_factory=set)
    flush: int = 0

    def put(self, ordering_key: str | None, limit_key: str | None) -> int:
        given = {"ordering_key": ordering_key, "limit_key": limit_key}
        given = {name: key for name, key in given.items() if key is not None}
        (job,) = enqueue_many(self.conn, [{"kind": "work", "queue": "q"} | given])
        self.jobs[job] = (ordering_key, limit_key)
        return job

    def set_limit(self, limit: int | None) -> None:
        """Change the concurrency of the keys; claims from before count for a second."""
        self.limit = limit
        given = "remove => '{key_concurrency}'" if limit is None else f"key_concurrency => {limit}"
        one(self.conn, f"select forebay.limit_queue('q', {given})::text")

    def advance(self, seconds: float) -> None:
        self.clock += seconds
        shift_clock(self.conn, self.clock)
        one(self.conn, "select forebay.promote_v1()")

    def open_jobs(self) -> list[tuple[int, int, int, int]]:
        """Jobs in flight: reader, claim, offset, id."""
        return [
            (nr, claim, offset, batch.job_ids[offset - 1])
            for (nr, claim), (batch, offsets) in self.held.items()
            for offset in sorted(offsets)
        ]

    def claim(self, nr: int, limit: int) -> int:
        """Claim once for a reader; check order and limits; return the number of jobs."""
        before = self.open_jobs()
        lanes = self.readers[nr].ready()
        if not lanes:
            return 0
        batch = self.readers[nr].claim(limit, self.rng.choice(lanes)["lane"])
        if not batch.jobs:
            return 0
        self.held[nr, batch.claim_no] = (batch, set(range(1, len(batch.jobs) + 1)))
        running = Counter(self.jobs[job][1] for *_, job in self.open_jobs())
        used = Counter(self.jobs[job][1] for *_, job in before)
        for key, count in running.items():
            if key is not None and self.limit is not None:
                assert count <= max(self.limit, used[key]), f"{count} jobs of {key} run"
        for job in batch.job_ids:
            assert job not in self.ended, f"job {job} has ended"
            key = self.jobs[job][0]
            if key is None:
                continue
            for other, (other_key, _) in self.jobs.items():
                if other_key != key or other in self.ended or other == job:
                    continue
                holders = {n for n, _, _, open_job in self.open_jobs() if open_job == other}
                assert holders <= {nr}, f"two leases have key {key}"
                assert other > job or holders or state(self.conn, other) in FINAL, (
                    f"job {job} of key {key} before {other}"
                )
        return len(batch.jobs)

    def first_of_key(self) -> list[tuple[int, int, int, int]]:
        """Jobs in flight that a worker may run: without an ordering key, or the first of their
        key.
        """
        found, keys = [], set()
        for item in sorted(self.open_jobs(), key=lambda i: (i[0], i[1], i[2])):
            key = self.jobs[item[3]][0]
            if key is None or key not in keys:
                found.append(item)
            keys.add(key)
        return found

    def settle(self, item: tuple[int, int, int, int], outcome: str) -> None:
        """End a job; where it runs again, the others of its ordering key in the lease are
        released.
        """
        nr, claim, offset, job = item
        ends = [(claim, offset, outcome)]
        key = self.jobs[job][0]
        if outcome in {"retried", "snoozed", "released"} and key is not None:
            ends += [
                (c, o, "released")
                for n, c, o, j in self.open_jobs()
                if n == nr and j != job and self.jobs[j][0] == key
            ]
        for claim_no in sorted({c for c, _, _ in ends}):
            self.flush += 1
            after = self.rng.choice([0, 0, 3])
            said = [
                {"offset": o, "outcome": what}
                | ({"after": after} if what in {"retried", "snoozed"} else {})
                | ({"reason": "permanent"} if what == "dead" else {})
                for c, o, what in ends
                if c == claim_no
            ]
            done = [e["offset"] for e in said if e["outcome"] == "done"]
            said = [e for e in said if e["outcome"] != "done"]
            answer = self.readers[nr].settle(claim_no, done, flush_no=self.flush, ended=said)
            assert answer == "settled"
            _batch, offsets = self.held[nr, claim_no]
            offsets -= {o for c, o, _ in ends if c == claim_no}
            if not offsets:
                del self.held[nr, claim_no]
                self.readers[nr].open_claims.discard(claim_no)
        if outcome in {"done", "dead"}:
            self.ended.add(job)

    def revoke(self, nr: int) -> None:
        """A reader loses its lease and takes a new one."""
        self.readers[nr].revoked_by(self.conn, suspects=self.rng.random() < 0.7)
        self.held = {place: value for place, value in self.held.items() if place[0] != nr}
        self.readers[nr].open_lease()

    def drain(self) -> None:
        """Claim and end until all jobs have ended."""
        for _ in range(400):
            got = sum(self.claim(nr, 5) for nr in range(len(self.readers)))
            items = self.first_of_key()
            for item in items:
                self.settle(item, "done")
            if not got and not items:
                left = [job for job in self.jobs if state(self.conn, job) not in FINAL]
                if not left:
                    return
                self.advance(11)
        left = {job: (self.jobs[job], state(self.conn, job)) for job in self.jobs}
        left = {job: told for job, told in left.items() if told[1] not in FINAL}
        raise AssertionError(f"jobs do not end: {left}")


def random_life(database: str, seed: int, steps: int = 150) -> None:
    """Random jobs and acts; in the end all jobs have ended, in order."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        conn = stack.enter_context(connect(database))
        world = World(database, conn, rng)
        world.readers = [stack.enter_context(Reader(database, "q")) for _ in range(3)]
        world.set_limit(rng.choice([1, 2, 3]))
        paused: set = set()
        for _ in range(steps):
            act = rng.random()
            if act < 0.35:
                for _ in range(rng.choice([1, 1, 4])):
                    sort = rng.random()
                    world.put(
                        rng.choice("xyz") if sort < 0.85 else None,
                        rng.choice("ab") if sort > 0.15 else None,
                    )
            elif act < 0.6:
                world.claim(rng.randrange(3), rng.choice([1, 3, 10]))
            elif act < 0.85:
                items = world.first_of_key()
                if items:
                    weights = [8, 1, 1, 1, 1]
                    outcomes = ["done", "retried", "snoozed", "released", "dead"]
                    world.settle(rng.choice(items), *rng.choices(outcomes, weights))
            elif act < 0.88:
                world.revoke(rng.randrange(3))
            elif act < 0.91 and world.jobs:
                one(conn, "select forebay.cancel(%s)", rng.choice(list(world.jobs)))
            elif act < 0.94:
                sort, key = rng.choice(
                    [("ordering_key", "x"), ("limit_key", "a"), ("ordering_key", "y")]
                )
                seconds = rng.choice(["null", "interval '4 seconds'"])
                one(
                    conn,
                    f"select forebay.pause_key('q', {sort} => %s, resume_after => {seconds})::text",
                    key,
                )
                paused.add((sort, key))
            elif act < 0.97 and paused:
                sort, key = paused.pop()
                one(conn, f"select forebay.resume_key('q', {sort} => %s)", key)
            elif act < 0.98:
                world.set_limit(rng.choice([None, 1, 2, 4]))
            else:
                world.advance(rng.choice([1, 5]))
        for sort, key in sorted(paused):
            one(conn, f"select forebay.resume_key('q', {sort} => %s)", key)
        waiting = sum(depth(conn, "q")["default"][::2]) if depth(conn, "q") else 0
        states = Counter(state(conn, job) for job in world.jobs)
        assert waiting == states["ready"] + states["scheduled"] + states["retrying"], states
        world.drain()
        trim(conn)


@pytest.mark.slow
@pytest.mark.parametrize("nr", range(6))
def test_random_lives(database, seed, nr):
    """Retries, lost leases, cancels, pauses and new limits at random: order and limits hold, and
    nothing is forgotten.
    """
    random_life(database, seed + nr)


@pytest.mark.slow
def test_random_lives_need_the_limit(database, seed):
    """Without the look at the permits more jobs of a limit key run than may."""
    break_function(
        database, "_choose_keyed", ("i.place > s.permits - case", "false and i.place > case")
    )
    with violation():
        for nr in range(10):
            random_life(database, seed + nr)


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def settled_limits(database: str, conn: psycopg.Connection, **limits: object) -> None:
    """Set limits, and let the second pass in which jobs in flight are counted from the leases."""
    named = ", ".join(f"{name} => {value}" for name, value in limits.items())
    one(conn, f"select forebay.limit_queue('q', {named})::text")
    enqueue(conn, queue="q", limit_key="first")
    with Reader(database, "q") as reader:
        reader.finish(reader.claim_ready(1))
    shift_clock(conn, 5)


def put(conn: psycopg.Connection, ordering_key: str, limit_key: str = "a", count: int = 1) -> list:
    job = {"kind": "work", "queue": "q", "ordering_key": ordering_key, "limit_key": limit_key}
    return enqueue_many(conn, [job] * count)


def take(reader: Reader, limit: int = 100) -> list:
    """Claim until nothing is ready, also where a claim only moves jobs; return the batches."""
    batches = []
    for _ in range(100):
        lanes = reader.ready()
        if not lanes:
            break
        for lane in lanes:
            batch = reader.claim(limit, lane["lane"])
            if batch.jobs:
                batches.append(batch)
    else:
        raise AssertionError("claims without an end")
    return batches


def ids(batches: list) -> list[int]:
    return [job for batch in batches for job in batch.job_ids]


def drained(reader: Reader) -> list[int]:
    """Claim and finish until nothing is ready; return the jobs in the order they came."""
    got: list[int] = []
    while batches := take(reader):
        got += ids(batches)
        for batch in batches:
            reader.finish(batch)
    return got


def why(conn: psycopg.Connection, **given: str) -> tuple:
    """Why a key does not run: the reason, and the limit key that it waits for."""
    ((name, key),) = given.items()
    return conn.execute(
        f"select reason, waits_for, waiting from forebay.key('q', {name} => %s)", [key]
    ).fetchone()


def test_the_slots_of_a_limit_key_go_to_ordering_keys_in_turn(database, conn):
    """One job of each ordering key is in flight, never more than the limit, and keys wait in
    line.
    """
    settled_limits(database, conn, key_concurrency=2)
    jobs = {key: put(conn, key, count=3) for key in "vwxyz"}
    with Reader(database, "q") as reader:
        got = []
        batches = take(reader)
        while batches:
            assert len(ids(batches)) <= 2
            got += ids(batches)
            for batch in batches:
                reader.finish(batch)
            batches = take(reader)
    assert sorted(got) == sorted(job for mine in jobs.values() for job in mine)
    for mine in jobs.values():
        assert [job for job in got if job in mine] == mine
    # Even turns: the third job of no key came before the first of another.
    assert max(got.index(mine[0]) for mine in jobs.values()) < min(
        got.index(mine[2]) for mine in jobs.values()
    )


def test_an_ordering_key_leaves_slots_to_others(database, conn):
    """Its jobs run one at a time: it takes no more than half of the slots, and one of a single
    slot.
    """
    settled_limits(database, conn, key_concurrency=5)
    put(conn, "x", count=20)
    with Reader(database, "q") as reader:
        assert len(ids(take(reader))) == 2
        others = [job for key in "vwy" for job in put(conn, key)]
        assert sorted(ids(take(reader))) == others
    settled_limits(database, conn, key_concurrency=100)
    put(conn, "u", "b", count=80)
    with Reader(database, "q") as reader:
        assert 40 <= len(ids(take(reader))) <= 50


def test_a_key_says_that_its_limit_key_holds_it_back(database, conn):
    """Concurrency, a pause and a rate of the limit key are reasons of the ordering key."""
    settled_limits(database, conn, key_concurrency=1)
    with Reader(database, "q") as reader:
        (first,) = put(conn, "x")
        assert ids(take(reader)) == [first]
        second = put(conn, "y", count=2)
        assert take(reader) == []
        assert why(conn, ordering_key="y") == ("concurrency", "a", 2)
        assert why(conn, limit_key="a") == ("concurrency", None, 1)
        blocking = one(conn, "select blocking_jobs from forebay.key('q', ordering_key => 'y')")
        assert blocking == [first]
        assert state(conn, second[0]) == "ready"
        one(conn, "select forebay.pause_key('q', limit_key => 'a')")
        assert why(conn, ordering_key="y") == ("paused", "a", 2)
        assert (
            one(conn, "select facts ->> 'paused_key' from forebay.explain_job(%s)", second[0])
            == "limit"
        )
        one(conn, "select forebay.pause_key('q', ordering_key => 'y')")
        assert why(conn, ordering_key="y") == ("paused", None, 2)
        assert (
            one(conn, "select facts ->> 'paused_key' from forebay.explain_job(%s)", second[0])
            == "ordering"
        )
        one(conn, "select forebay.resume_key('q', limit_key => 'a')")
        one(conn, "select forebay.resume_key('q', ordering_key => 'y')")
        one(
            conn,
            (
                "select forebay.limit_queue('q', remove => '{key_concurrency}', key_rate => "
                "0.1, key_burst => 1)::text"
            ),
        )
        shift_clock(conn, 100)
        assert drained(reader) == second[:1]
        assert why(conn, ordering_key="y") == ("rate", "a", 1)
        assert depth(conn, "q")["default"][0] == 1
        shift_clock(conn, 111)
        one(conn, "select forebay.promote_v1()")
        assert drained(reader) == second[1:]
        assert why(conn, ordering_key="y") == ("free", None, 0)


def paused_in_turn(database: str) -> None:
    """An ordering key is paused when its job gets the turn of the limit key.

    Others and later it must not be forgotten.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        settled_limits(database, conn, key_concurrency=1)
        (first,) = put(conn, "x")
        batches = take(reader)
        assert ids(batches) == [first]
        (second,), (third,) = put(conn, "y"), put(conn, "z")
        assert take(reader) == []
        one(conn, "select forebay.pause_key('q', ordering_key => 'y')")
        reader.finish(batches[0])
        batches = take(reader)
        assert ids(batches) == [third]
        one(conn, "select forebay.resume_key('q', ordering_key => 'y')")
        assert take(reader) == []
        reader.finish(batches[0])
        assert drained(reader) == [second]


def test_a_turn_that_a_paused_key_cannot_use_goes_to_the_next(database):
    """And the key waits anew for its turn when it is resumed."""
    paused_in_turn(database)


@pytest.mark.parametrize(
    ("function", "guard", "without"),
    [
        ("_record_keyed_limits", "or s.limit_key = any (p_granted)", ""),
        ("_choose_keyed", "or t.waits_at <= s.taken_up_to", ""),
    ],
)
def test_a_turn_that_is_not_used_must_go_on(database, function, guard, without):
    """The same without the guard: a job is forgotten."""
    break_function(database, function, (guard, without))
    with violation():
        paused_in_turn(database)


def test_a_job_that_waits_for_its_limit_key_can_be_cancelled(database, conn):
    """The next job of its ordering key takes its turn."""
    settled_limits(database, conn, key_concurrency=1)
    with Reader(database, "q") as reader:
        put(conn, "x")
        batches = take(reader)
        second = put(conn, "y", count=2)
        assert take(reader) == []
        assert one(conn, "select forebay.cancel(%s)", second[0])
        reader.finish(batches[0])
        assert drained(reader) == [second[1]]
        assert state(conn, second[0]) == "cancelled"
        assert drained(reader) == []


@pytest.mark.slow
def test_a_retry_and_a_suspect_wait_for_their_limit_key(database, conn):
    """Both keep their place before the other jobs of the ordering key."""
    settled_limits(database, conn, key_concurrency=1)
    with Reader(database, "q") as first, Reader(database, "q") as second:
        mine = put(conn, "x", count=2)
        (batch,) = take(first)
        assert batch.job_ids == mine[:1]
        other = put(conn, "y", count=3)
        assert take(second) == []
        first.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "retried"}])
        first.open_claims.clear()
        (batch,) = take(second)
        assert batch.job_ids == other[:1]
        assert take(first) == []
        second.revoked_by(conn)
        second.open_lease()
        (batch,) = take(first)
        assert batch.job_ids[0] in {mine[0], other[0]}
        assert take(second) == []
        first.finish(batch)
        got = batch.job_ids + drained(first)
        for seconds in range(6, 30, 2):
            shift_clock(conn, seconds)
            one(conn, "select forebay.promote_v1()")
            got += drained(first)
        assert sorted(got) == sorted(mine + other)
        assert [job for job in got if job in mine] == mine
        assert [job for job in got if job in other] == other


def test_without_the_limit_all_jobs_go_on(database, conn):
    """Limits that are removed or raised give all waiting keys a turn."""
    settled_limits(database, conn, key_concurrency=1)
    jobs = [job for key in "uvwxyz" for job in put(conn, key, count=2)]
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        held = take(reader)
        assert len(ids(held)) == 1
        one(conn, "select forebay.limit_queue('q', remove => '{key_concurrency}')::text")
        got = drained(other)
        for batch in held:
            reader.finish(batch)
        got += drained(other)
        assert sorted(got + ids(held)) == sorted(jobs)


def test_jobs_in_flight_before_the_limits_count(database, conn):
    """A claim of before, which did not pass the limiter, uses a slot."""
    put(conn, "x")
    with Reader(database, "q") as reader:
        assert len(ids(take(reader))) == 1
        one(conn, "select forebay.limit_queue('q', key_concurrency => 1)::text")
        (later,) = put(conn, "y")
        assert take(reader) == []
        reader.finish(reader_batch(reader))
        shift_clock(conn, 3)
        one(conn, "select forebay.promote_v1()")
        assert drained(reader) == [later]


def reader_batch(reader: Reader) -> Batch:
    """The only open batch of a reader."""
    (claim,) = reader.open_claims
    return Batch(claim, [])


@pytest.mark.parametrize("how", ["single", "bulk", "unique", "bulk unique", "scheduled"])
def test_every_way_to_enqueue_takes_both_keys(database, conn, how):
    """Order and limit hold for jobs of each way.

    A unique key joins a job that waits for its limit key.
    """
    settled_limits(database, conn, key_concurrency=1)

    def one_job(key: str) -> int:
        given = {"queue": "q", "ordering_key": key, "limit_key": "a"}
        if "unique" in how:
            given["unique_as"] = f'{{"once": "{key}"}}' if how == "unique" else {"once": key}
        if how == "scheduled":
            given["delay"] = "1 second"
        if "bulk" in how:
            return enqueue_many(conn, [{"kind": "work", **given}])[0]
        return enqueue(conn, **given)

    jobs = [one_job(key) for key in "xyz"]
    shift_clock(conn, 10)
    one(conn, "select forebay.promote_v1()")
    with Reader(database, "q") as reader:
        batches = take(reader)
        assert len(ids(batches)) == 1
        if "unique" in how:
            assert [one_job(key) for key in "xyz"] == jobs
        reader.finish(batches[0])
        got = ids(batches) + drained(reader)
    assert sorted(got) == jobs
    assert depth(conn, "q")["default"][0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_an_adopted_log_has_each_waiting_job_once(server, database, conn, resume):
    """In a copy of the database, with a job that runs, two that wait for a turn and others
    behind these.
    """
    settled_limits(database, conn, key_concurrency=1)
    for key in "xyz":
        put(conn, key, count=2)
    with Reader(database, "q") as reader:
        assert len(ids(take(reader))) == 1
        assert one(conn, "select count(*) from forebay.limit_parked") == 2
    name = f"{conn.info.dbname}_copy"
    source = conn.info.dbname
    conn.close()
    dsn = create_database(server, name, source)
    try:
        with connect(dsn) as copy:
            adoption = copy.execute("select * from forebay.adopt_v1(%s)", [resume]).fetchone()
        with connect(dsn) as copy, Reader(dsn, "q") as reader:
            assert adoption == ((6, 0) if resume else (0, 6))
            got = drained(reader)
            assert len(got) == len(set(got)) == (6 if resume else 0)
            new = put(copy, "x", count=2)
            assert drained(reader) == new
    finally:
        drop_database(server, name)


def test_a_pause_of_the_limit_key_is_the_first_use_of_limits(database, conn):
    """Without limits, and without a job of a limit key alone: the jobs of the key wait all the
    same, and run when it is resumed.
    """
    (job,) = put(conn, "x")
    with Reader(database, "q") as reader:
        one(conn, "select forebay.pause_key('q', limit_key => 'a')")
        assert take(reader) == []
        assert why(conn, ordering_key="x") == ("paused", "a", 1)
        one(conn, "select forebay.resume_key('q', limit_key => 'a')")
        assert drained(reader) == [job]


def test_settled_jobs_of_a_batch_use_no_slot_of_new_limits(database, conn):
    """A batch of before the limits has one settled and one unsettled job: one slot of two is
    free.
    """
    jobs = [job for key in "xyz" for job in put(conn, key)]
    with Reader(database, "q") as reader:
        (batch,) = take(reader)
        assert batch.job_ids == jobs
        assert reader.settle(batch.claim_no, [1, 3]) == "settled"
        one(conn, "select forebay.limit_queue('q', key_concurrency => 2)::text")
        later = [job for key in "xz" for job in put(conn, key)]
        assert ids(take(reader)) == later[:1]

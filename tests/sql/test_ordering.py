"""Ordering keys: of a key's jobs one at a time, by number, whatever happens to those before."""

import contextlib
import json
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    one,
    open_group,
    shift_clock,
    small_segments,
    state,
    trim,
)
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def put(conn, count: int, key: str = "k", *, queue: str = "q", **options) -> list[int]:
    """Enqueue jobs of one key; return their ids."""
    return [enqueue(conn, queue=queue, ordering_key=key, **options) for _ in range(count)]


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
    """The second reader gets what follows only when the first has settled all it holds of the
    key.
    """
    jobs = put(conn, 6)
    with Reader(database, "q") as first, Reader(database, "q") as second:
        batch = first.claim_ready(3)
        assert batch.job_ids == jobs[:3]
        later = put(conn, 2)
        assert take(second) == []
        assert depth(conn, "q") == {"default": (5, 3, 0)}
        assert state(conn, jobs[4]) == "ready"
        assert first.settle(batch.claim_no, [1, 2], flush_no=1) == "settled"
        assert take(second) == []
        assert first.settle(batch.claim_no, [3], flush_no=2) == "settled"
        assert ids(take(second)) == jobs[3:] + later
        assert state(conn, jobs[4]) == "claimed"
        assert state(conn, jobs[0]) == "done"


def test_keys_do_not_wait_for_each_other(database, conn):
    """While one key is held, another one's jobs are handed out, and jobs without a key."""
    put(conn, 3, "a")
    with Reader(database, "q") as first, Reader(database, "q") as second:
        assert len(ids(take(first))) == 3
        others = [*put(conn, 2, "b"), enqueue(conn, queue="q")]
        put(conn, 1, "a")
        assert sorted(ids(take(second))) == others


@pytest.mark.parametrize("outcome", ["retried", "snoozed", "unknown", "released", "lost"])
@pytest.mark.parametrize("after", [0, 60])
def test_a_job_that_continues_holds_back_those_behind_it(database, conn, outcome, after):
    """Its key's later jobs, in the batch, parked and new, come after it, in order, however long
    it takes to come back.
    """
    jobs = put(conn, 8)
    with Reader(database, "q") as first, Reader(database, "q") as second:
        batch = first.claim_ready(5)
        assert take(second) == []
        rest = [ended(offset, "released") for offset in (3, 4, 5)]
        assert (
            first.settle(batch.claim_no, [1], ended=[ended(2, outcome, after=after), *rest])
            == "settled"
        )
        jobs += put(conn, 1)
        if after:
            assert take(second) == []
            assert state(conn, jobs[2]) == "ready"
            wait_over(conn)
        again = second.claim_ready(100)
        if outcome == "lost":
            assert again.job_ids == [jobs[1]]
            assert take(second) == []
        second.finish(again)
        assert again.job_ids + drained(second) == jobs[1:]


def test_jobs_requeued_twice_stay_in_order(database, conn):
    """The second of those requeued fails in its turn, while only some of them were taken."""
    jobs = put(conn, 10)
    with Reader(database, "q") as reader:
        batch = reader.claim_ready(8)
        back = [ended(offset, "released") for offset in range(2, 9)]
        assert reader.settle(batch.claim_no, [], ended=[ended(1, "retried"), *back]) == "settled"
        batch = reader.claim_ready(4)
        assert batch.job_ids == jobs[:4]
        back = [ended(offset, "released") for offset in (3, 4)]
        assert reader.settle(batch.claim_no, [1], ended=[ended(2, "retried"), *back]) == "settled"
        assert drained(reader, 3) == jobs[1:]


def test_each_claim_of_a_requeued_job_is_told(database, conn):
    """Its row stays the same: all its claims are in the history, with who had it."""
    jobs = put(conn, 3)
    with Reader(database, "q") as first, Reader(database, "q") as second:
        first.claim_ready(3)
        assert first.revoked_by(conn) == 3
        assert drained(second) == jobs
        told = [
            conn.execute(
                "select attempt, worker, outcome from forebay.job_attempts(%s)", [job]
            ).fetchall()
            for job in jobs
        ]
        names = [
            one(conn, "select worker from forebay.lease where lease_id = %s", lease)
            for lease in (first.lease_id, second.lease_id)
        ]
    assert told == [
        [(1, names[0], "lost"), (1, names[1], "done")],
        [(1, names[0], "requeued"), (1, names[1], "done")],
        [(1, names[0], "requeued"), (1, names[1], "done")],
    ]


def test_a_failed_attempt_counts_though_the_job_before_it_is_settled_in_the_same_call(
    database, conn
):
    """What a holder tells of several batches is heard in that order: the failed job is the first
    that has not ended.
    """
    jobs = put(conn, 3)
    with Reader(database, "q") as reader:
        batches = [reader.claim_ready(1) for _ in jobs]
        flushes = [
            {"claim_no": batches[0].claim_no, "flush_no": 1},
            {"claim_no": batches[1].claim_no, "flush_no": 1, "done": [],
                "ended": [ended(1, "retried")]},
            {"claim_no": batches[2].claim_no, "flush_no": 1, "done": [],
                "ended": [ended(1, "released")]},
        ]  # fmt: skip
        query = "select status from forebay.settle_v1(%s, %s::jsonb)"
        told = reader.conn.execute(query, [reader.lease_id, json.dumps(flushes)]).fetchall()
        assert told == [("settled",)] * 3
        reader.open_claims.clear()
        again = reader.claim_ready(3)
        assert again.job_ids == jobs[1:]
        assert [job["attempt"] for job in again.jobs] == [1, 0]


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
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        batch = reader.claim_ready(1)
        assert take(other) == []
        assert (
            reader.settle(batch.claim_no, [], ended=[ended(1, "dead", reason="permanent")])
            == "settled"
        )
        (batch,) = take(other)
        assert batch.job_ids == jobs[1:]
        new = one(conn, "select forebay.redrive(dead_id) from forebay.dead_letter")
        assert take(reader) == []
        other.finish(batch)
        (batch,) = take(reader)
        assert batch.job_ids == [new]
        assert batch.jobs[0]["ordering_key"] == "k"


def test_cancelled_and_expired_jobs_let_the_next_one_through(database, conn):
    """Parked, requeued or on their way as a retry: the key goes on without them."""
    jobs = put(conn, 7)
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        batch = reader.claim_ready(3)
        assert take(other) == []
        for job in (jobs[0], jobs[2], jobs[4]):
            one(conn, "select forebay.cancel(%s)", job)
        kept = [ended(offset, "released") for offset in (2, 3)]
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
        assert take(other) == []
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


def test_the_order_of_transactions_would_not_do(database, conn):
    """The same with the windows of keyed lanes read as those of the others."""
    for (segment,) in conn.execute("select segment_id from forebay.segment").fetchall():
        break_function(
            database,
            f"_read_keyed_{segment}",
            (
                "order by l.seq\n             limit",
                "order by l.xid, l.seq\n             limit",
            ),
        )
    with violation():
        serialised(database)


def test_a_job_that_commits_late_comes_after_those_already_met(database, conn):
    """Nothing serialised the two: the later number was handed out, the lower one follows and is
    not lost.
    """
    with (
        Reader(database, "q") as reader,
        Reader(database, "q") as other,
        psycopg.connect(database) as slow,
    ):
        (low,) = put(slow, 1)
        (high,) = put(conn, 1)
        batch = reader.claim_ready(10)
        assert batch.job_ids == [high]
        more = put(conn, 1)
        assert take(other) == []
        slow.commit()
        assert take(other) == []
        reader.finish(batch)
        assert sorted(ids(take(other))) == sorted([*more, low])


class Holder:
    """A reader that works each key's jobs in order, as a worker does: those of later claims
    behind those of earlier ones.
    """

    def __init__(self, reader: Reader, rng: random.Random) -> None:
        self.reader = reader
        self.rng = rng
        self.queues: dict[str, list] = {}
        self.flush_nos: dict[int, int] = defaultdict(int)
        self.open: dict[int, int] = {}

    def claim(self, limit: int, came_back: set[str] = frozenset()) -> tuple[list, list]:
        """Claim; return what was put in the queues, and what must go back since its key has gone
        on meanwhile.
        """
        batch = self.reader.claim_ready(limit)
        self.open[batch.claim_no] = len(batch.jobs)
        new, back = [], []
        for job in batch.jobs:
            key = job["ordering_key"]
            if key in came_back:
                back.append((batch.claim_no, job))
            else:
                self.queues.setdefault(key, []).append((batch.claim_no, job))
                new.append(key)
        return new, back

    def work(self, done: dict[str, list[int]]) -> set[str]:
        """Work on some keys, and settle what became of their jobs.

        Return the keys that are not ours any more.
        """
        rng = self.rng
        good, endings, over = defaultdict(list), defaultdict(list), set()
        for key in rng.sample(sorted(self.queues), rng.randint(1, len(self.queues))):
            queue = self.queues[key]
            stop = rng.choice([len(queue)] * 2 + list(range(len(queue))))
            for claim_no, job in queue[:stop]:
                done[key].append(job["job_id"])
                good[claim_no].append(job["batch_offset"])
            if stop and stop < len(queue) and rng.random() < 0.4:
                self.queues[key] = queue[stop:]
                continue
            outcome = rng.choice(["retried", "snoozed", "released", "lost"])
            for claim_no, job in queue[stop:]:
                endings[claim_no].append(
                    ended(job["batch_offset"], outcome, after=rng.choice([0, 0, 5]))
                )
                outcome = "released"
            if stop < len(queue):
                over.add(key)
            del self.queues[key]
        if rng.random() < 0.3:
            # A claim that is made before the database knows what went on.
            _, back = self.claim(rng.choice([1, 3, 20]), came_back=over)
            for claim_no, job in back:
                endings[claim_no].append(ended(job["batch_offset"], "released"))
        flushes = []
        for claim_no in rng.sample(sorted({*good, *endings}), len({*good, *endings})):
            self.flush_nos[claim_no] += 1
            flush = {"claim_no": claim_no, "flush_no": self.flush_nos[claim_no]}
            flushes.append(flush | {"done": good[claim_no], "ended": endings[claim_no]})
            self.open[claim_no] -= len(good[claim_no]) + len(endings[claim_no])
        if rng.random() < 0.5:
            self.settle(flushes)
        else:
            for flush in flushes:
                self.settle([flush])
        for claim_no in [claim_no for claim_no, count in self.open.items() if not count]:
            self.reader.open_claims.discard(claim_no)
            del self.open[claim_no]
        return over

    def settle(self, flushes: list[dict]) -> None:
        query = "select status from forebay.settle_v1(%s, %s::jsonb)"
        rows = self.reader.conn.execute(query, [self.reader.lease_id, json.dumps(flushes)])
        assert {status for (status,) in rows} <= {"settled"}

    def lose(self, conn, *, suspects: bool) -> None:
        self.queues.clear()
        self.open.clear()
        self.flush_nos.clear()
        self.reader.revoked_by(conn, suspects=suspects)
        self.reader.open_lease()


def stress(database: str, seed: int, *, keys: int = 8, rounds: int = 400) -> None:
    """Four readers claim, settle, fail, release and lose their leases at random.

    Check the order of each key.
    """
    rng = random.Random(seed)
    with connect(database) as conn, contextlib.ExitStack() as stack:
        small_segments(conn, 100)
        holders = [Holder(stack.enter_context(Reader(database, "q")), rng) for _ in range(4)]
        put_in: dict[str, list[int]] = defaultdict(list)
        done: dict[str, list[int]] = defaultdict(list)

        def check() -> None:
            for key in put_in:
                having = sum(key in holder.queues for holder in holders)
                assert having < 2, f"{key} is with {having} at once"

        clock = 0
        for _ in range(rounds):
            holder = holders[rng.randrange(4)]
            what = rng.random()
            if what < 0.3:
                key = f"k{rng.randrange(keys)}"
                put_in[key] += put(conn, rng.randrange(1, 6), key)
            elif what < 0.65:
                holder.claim(rng.choice([1, 3, 20]))
            elif what < 0.93:
                if holder.queues:
                    holder.work(done)
            elif what < 0.96:
                holder.lose(conn, suspects=rng.random() < 0.5)
            else:
                clock += 10
                shift_clock(conn, clock)
                one(conn, "select forebay.promote_v1(1000)")
                one(conn, "select forebay.seal_v1()")
                one(conn, "select forebay.extend_v1()")
            check()
        for holder in holders:
            while holder.queues:
                holder.work(done)
                check()
        idle = 0
        while idle < 3:
            clock += 10
            shift_clock(conn, clock)
            one(conn, "select forebay.promote_v1(1000)")
            batch = holders[0].reader.claim_ready(50)
            idle = 0 if batch.jobs else idle + 1
            for job in batch.jobs:
                done[job["ordering_key"]].append(job["job_id"])
            if batch.jobs:
                holders[0].reader.finish(batch)
        assert dict(done) == dict(put_in)
        assert depth(conn, "q") == {"default": (0, 0, 0)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(
            pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.nightly])
            for seed in range(1, 4)
        ),
    ],
)
def test_whatever_happens_each_key_runs_in_order(database, seed):
    """Retries, snoozes, jobs released, suspects, lost leases, small segments: each job is done
    once, in its key's order.
    """
    stress(database, seed)


GUARDS = {
    "a job behind another of its batch is requeued": ("_requeued", "n.place > f.place or", ""),
    "so is one behind another of an earlier batch": ("_requeued", "or b.key is not null", ""),
    "a lost lease gives back the first of a key only": (
        "_revoke",
        "= any (v_held) then",
        "= any (v_held) and false then",
    ),
    "also when the first is of an earlier batch": (
        "_revoke",
        "|| forebay._keys_before(v_batch.group_id, p_lease_id, v_batch.claim_no, v_batch.keys)",
        "",
    ),
    "a settlement announces what waits": (
        "_release_keys",
        "if v_keys <> '{}' then",
        "if false then",
    ),
    "what is not taken is parked": ("_choose_keyed", "where i.class = 4 or", "where"),
    "a key has a single holder": (
        "_decide_keyed",
        "b.lease_id <> p_lease_id or b.is_suspect",
        "false",
    ),
    "also where something waits": (
        "_keyed_candidates",
        "s.is_busy and not s.continues or s.waits",
        "s.waits",
    ),
    "a job on its way comes before all that follow": (
        "_keyed_candidates",
        "not s.continues or s.waits",
        "not s.continues",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS)
def test_each_guard_is_needed(database, guard):
    """Without it a job is lost, comes before its time, or is with two at once."""
    function, *substitution = GUARDS[guard]
    break_function(database, function, tuple(substitution))
    with violation(psycopg.Error):
        for seed in range(6):
            stress(database, seed, rounds=200)


def suspect_alone(database: str, queue: str = "q") -> None:
    """A suspect of a key runs; what follows is asked for by its own holder, twice."""
    with (
        connect(database) as conn,
        Reader(database, queue) as first,
        Reader(database, queue) as second,
    ):
        jobs = put(conn, 2, queue=queue)
        first.claim_ready(1)
        assert first.revoked_by(conn) == 1
        suspect = second.claim_ready(10)
        assert suspect.job_ids == jobs[:1]
        assert take(second) == []
        second.finish(suspect)
        assert ids(take(second)) == jobs[1:]


def retry_holds(database: str, queue: str = "q") -> None:
    """The only job of a key that anybody has heard of waits for its time.

    Then another one is enqueued.
    """
    with connect(database) as conn, Reader(database, queue) as reader:
        jobs = put(conn, 1, queue=queue)
        batch = reader.claim_ready(1)
        assert reader.settle(batch.claim_no, [], ended=[ended(1, "retried", after=60)]) == "settled"
        jobs += put(conn, 1, queue=queue)
        assert take(reader) == []
        wait_over(conn)
        assert drained(reader) == jobs


@pytest.mark.parametrize("scenario", [suspect_alone, retry_holds])
def test_who_has_a_key_does_not_go_on_with_it_when_something_went_wrong(database, scenario):
    """Not behind a suspect, which may kill its process, and not before a job of it that comes
    back.
    """
    scenario(database)


@pytest.mark.parametrize(
    ("scenario", "function", "guard", "instead"),
    [
        (
            suspect_alone,
            "_keyed_candidates",
            "and s.holder = p_lease_id and not s.is_suspect",
            "and s.holder = p_lease_id",
        ),
        (
            suspect_alone,
            "_decide_keyed",
            "(b.lease_id <> p_lease_id or b.is_suspect)",
            "b.lease_id <> p_lease_id",
        ),
        (retry_holds, "_decide_keyed", "where b.continues or", "where"),
    ],
)
def test_without_its_guard_it_would(database, scenario, function, guard, instead):
    """One of the looks at what went wrong taken out, in the short way or in the long one."""
    break_function(database, function, (guard, instead))
    with violation():
        # The way depends on the order of the lanes, and their numbers are random.
        for number in range(20):
            scenario(database, f"q{number}")


def parked_while_settled(database: str) -> None:
    """A claim that parks a job is held up between its look at the key and its commit.

    The key's turn is settled then.
    """
    with (
        connect(database) as conn,
        Reader(database, "q") as first,
        Reader(database, "q") as second,
        psycopg.connect(database) as brake,
        ThreadPoolExecutor(2) as threads,
    ):
        conn.execute(
            "create function public.brake() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock(4711); return new; end $$"
        )
        conn.execute(
            "create trigger brake before insert on forebay.parked for each row execute "
            "function public.brake()"
        )
        put(conn, 1)
        batch = first.claim_ready(10)
        (job,) = put(conn, 1)
        brake.execute("select pg_advisory_xact_lock(4711)")

        def is_blocked(reader: Reader) -> bool:
            query = "select cardinality(pg_blocking_pids(%s)) > 0"
            return one(conn, query, reader.conn.info.backend_pid)

        claim = threads.submit(second.claim_ready, 10)
        wait_for(lambda: is_blocked(second), 10)
        settlement = threads.submit(first.finish, batch)
        wait_for(lambda: settlement.done() or is_blocked(first), 10)
        brake.commit()
        assert claim.result(10).jobs == []
        settlement.result(10)
        assert ids(take(second)) == [job]


def test_a_job_that_is_parked_while_its_key_becomes_free_is_not_forgotten(database):
    """The settlement waits for the claim, and sees what it parked."""
    parked_while_settled(database)


def test_without_their_common_lock_the_job_would_be_forgotten(database):
    """The same with a settlement that looks without waiting."""
    break_function(
        database,
        "_release_keys",
        ("perform forebay._lock_keys(p_group_id, true);", ""),
    )
    with violation():
        parked_while_settled(database)


def segment_begun_during_a_claim(database: str) -> None:
    """A claim is held up before its snapshot.

    The log reaches the next segment, and a job is committed there.
    """
    with (
        connect(database) as conn,
        Reader(database, "q") as reader,
        psycopg.connect(database) as brake,
        ThreadPoolExecutor(1) as threads,
    ):
        small_segments(conn, rows=100, reserve=1000)
        (met,) = put(conn, 1)
        segment_end = "select min(hi) from forebay.segment where hi > %s"
        one(conn, "select setval('forebay.log_seq', %s)", one(conn, segment_end, met) - 1)
        brake.execute("select pg_advisory_xact_lock(4711)")
        claim = threads.submit(reader.claim_ready, 10)
        blocked = "select cardinality(pg_blocking_pids(%s)) > 0"
        wait_for(lambda: one(conn, blocked, reader.conn.info.backend_pid), 10)
        (new,) = put(conn, 1)
        brake.commit()
        batch = claim.result(10)
        reader.finish(batch)
        assert batch.job_ids + drained(reader) == [met, new]


def held_before_its_snapshot(database: str) -> None:
    """Let claims of keyed lanes wait for a lock after they have read the log's last number."""
    read = "v_low := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);"
    break_function(database, "_take_keyed", (read, f"{read} perform pg_advisory_xact_lock(4711);"))


def test_a_job_of_a_segment_begun_during_a_claim_is_handed_out(database):
    """The claim's snapshot shows the job, so the claim reads its segment too."""
    held_before_its_snapshot(database)
    segment_begun_during_a_claim(database)


def test_a_job_is_lost_when_a_claim_chooses_its_segments_before_its_snapshot(database):
    """The same where the claim reads the segments that were begun before its snapshot."""
    held_before_its_snapshot(database)
    break_function(
        database,
        "_take_keyed",
        ("s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)", "s.lo <= v_low"),
    )
    with violation():
        segment_begun_during_a_claim(database)


def writer_from_before_its_group(database: str) -> None:
    """A transaction enqueues, its segment is sealed, a group opens at the present, and the
    transaction commits.
    """
    with connect(database) as conn, psycopg.connect(database) as slow:
        small_segments(conn, rows=100, reserve=1000)
        (late,) = put(slow, 1)
        put(conn, 150, "other")
        assert one(conn, "select forebay.seal_v1()") > 0
        open_group(conn, "q", "new", "now")
        slow.commit()
        with Reader(database, "q", "new") as reader:
            assert drained(reader) == [late]


def test_a_group_gets_the_jobs_of_a_writer_that_began_before_it(database):
    """The first window of a group reads the sealed segments of transactions that its beginning
    does not show.
    """
    writer_from_before_its_group(database)


def test_it_would_not_without_the_late_part_of_its_first_window(database):
    """The same where only later windows have a late part."""
    guard = "where pg_visible_in_snapshot(x.xid, p_to)"
    break_function(database, "_window_keyed", (guard, f"{guard} and p_low > 0"))
    with violation():
        writer_from_before_its_group(database)


def test_who_holds_a_key_gets_more_of_it(database, conn):
    """While nothing went wrong the next claim of the same lease goes on with the key, up to so
    many jobs; nothing is parked.
    """
    jobs = put(conn, 200)
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        batches = [reader.claim_ready(20) for _ in range(3)]
        assert ids(batches) == jobs[:60]
        assert one(conn, "select count(*) from forebay.parked") == 0
        # More than enough is open: what comes now waits in the log.
        assert reader.claim_ready(10).jobs == []
        assert state(conn, jobs[60]) == "ready"
        assert state(conn, jobs[59]) == "claimed"
        for batch in batches:
            reader.finish(batch)
        assert drained(other, 30) == jobs[60:]


def test_what_follows_in_a_later_claim_is_requeued_too(database, conn):
    """A job of the first of three claims goes on: those of the others wait for it, whichever is
    settled first.
    """
    jobs = put(conn, 9)
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        first, second, third = (reader.claim_ready(3) for _ in range(3))
        back = [ended(offset, "released") for offset in (1, 2, 3)]
        assert reader.settle(third.claim_no, [], ended=back) == "settled"
        going = [ended(2, "retried"), ended(3, "released")]
        assert reader.settle(first.claim_no, [1], ended=going) == "settled"
        assert take(other) == []
        assert reader.settle(second.claim_no, [], ended=back) == "settled"
        wait_over(conn)  # It came back too early, and was postponed.
        assert drained(other) == jobs[1:]


def test_a_lost_lease_with_several_claims_of_a_key_has_one_suspect(database, conn):
    """Only the first that is not settled can have been started, of whichever claim.

    Also where an earlier one goes on.
    """
    jobs = put(conn, 9)
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        first, _, _ = (reader.claim_ready(3) for _ in range(3))
        assert reader.settle(first.claim_no, [1, 2]) == "settled"
        assert reader.revoked_by(conn) == 7
        batch = other.claim_ready(100)
        assert batch.job_ids == [jobs[2]]
        assert take(reader) == []
        other.finish(batch)
        assert drained(other) == jobs[3:]

        jobs = put(conn, 6)
        reader.open_lease()
        first, _ = (reader.claim_ready(3) for _ in range(2))
        going = [ended(3, "retried", after=60)]
        assert reader.settle(first.claim_no, [1, 2], ended=going) == "settled"
        reader.open_claims.discard(first.claim_no)
        put(conn, 1, "another")
        reader.claim_ready(1)  # Its floor is behind the batch that is settled.
        assert reader.revoked_by(conn) == 4
        other.finish(other.claim_ready(100))
        assert take(other) == []
        wait_over(conn)
        assert drained(other) == jobs[2:]


def test_no_recheck_row_is_written_where_nothing_waits(database, conn):
    """One reader alone settles whole batches and parts of them, one key and many, without a row
    more than its own.
    """
    with Reader(database, "q") as reader:
        for number in range(30):
            put(conn, 1, f"k{number % 7}")
        while (batch := reader.claim_ready(9)).jobs:
            assert reader.settle(batch.claim_no, [1, 3], flush_no=1) == "settled"
            rest = [offset for offset in range(1, len(batch.jobs) + 1) if offset not in {1, 3}]
            assert reader.settle(batch.claim_no, rest, flush_no=2) == "settled"
            reader.open_claims.discard(batch.claim_no)
        assert one(conn, "select count(*) from forebay.log") == 30


def emptied(conn, reader: Reader) -> int:
    """Seal, let cursors move on, empty what may go, and trim.

    Return how many segments were emptied.
    """
    one(conn, "select forebay.seal_v1()")
    drained(reader)
    count = 0
    while one(conn, "select emptied from forebay.retain_v1()") is not None:
        count += 1
    trim(conn)
    return count


@pytest.fixture
def short_history(conn):
    """Segments of a hundred rows, emptied as soon as nothing of them is needed."""
    small_segments(conn, rows=100, reserve=1000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(conn, "select forebay.configure('retention_days', 0)")


@pytest.mark.slow
@pytest.mark.usefixtures("short_history")
def test_a_segment_with_a_job_that_waits_for_its_key_is_kept(database, conn):
    """Parked, or requeued behind a retry: the segment stays until the job has ended, and then
    goes with its turns.
    """
    with Reader(database, "q") as first, Reader(database, "q") as second:
        parked = put(conn, 2, "parked")
        kept = put(conn, 2, "kept")
        batch = first.claim_ready(100)
        (behind,) = put(conn, 1, "parked")
        assert take(second) == []
        place = batch.job_ids.index(kept[0]) + 1
        back = [ended(place + 1, "released")]
        going = [ended(place, "retried", after=864000), *back]
        assert first.settle(batch.claim_no, [], ended=going) == "settled"
        for _ in range(15):
            put(conn, 20, "other")
            drained(second)
        emptied(conn, second)
        oldest = (
            "select forebay.segment_held_by(min(segment_id)) from forebay.segment where "
            "removed_at is null"
        )
        assert one(conn, oldest).startswith("worker ")  # The first of those parked is running.
        assert state(conn, behind) == "ready"
        assert state(conn, kept[1]) == "ready"
        done = [batch.job_ids.index(job) + 1 for job in parked]
        assert first.settle(batch.claim_no, done, flush_no=2) == "settled"
        first.open_claims.discard(batch.claim_no)
        one(conn, "select emptied from forebay.retain_v1()")
        assert one(conn, oldest) == "jobs of it wait for their key"
        assert drained(second) == [behind]
        shift_clock(conn, 1000000)
        one(conn, "select forebay.promote_v1()")
        assert drained(second) == kept
        for _ in range(3):
            put(conn, 100, "other")
            emptied(conn, second)
        assert one(conn, "select min(lo) from forebay.segment where removed_at is null") > behind
        assert one(conn, "select count(*) from forebay.parked") == 0
        query = "select count(*) from forebay.key_run where ordering_key <> 'other'"
        assert one(conn, query) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("short_history")
def test_a_retry_of_long_ago_still_holds_its_key(database, conn):
    """Its first row left the archive long before it comes back.

    What is enqueued meanwhile waits for it all the same.
    """
    with Reader(database, "q") as reader:
        (old,) = put(conn, 1)
        batch = reader.claim_ready(1)
        going = [ended(1, "retried", after=864000)]
        assert reader.settle(batch.claim_no, [], ended=going) == "settled"
        reader.open_claims.discard(batch.claim_no)
        for _ in range(15):
            put(conn, 20, "other")
            drained(reader)
        assert emptied(conn, reader) > 1
        (new,) = put(conn, 1)
        assert drained(reader) == []
        shift_clock(conn, 1000000)
        one(conn, "select forebay.promote_v1()")
        assert drained(reader) == [old, new]


def claimed_while_retention_looks(database: str) -> None:
    """A parked job is claimed between two looks of retention, at the batches and at the jobs
    that wait.
    """
    with (
        connect(database) as conn,
        connect(database) as maintenance,
        Reader(database, "q") as first,
        Reader(database, "q") as second,
        psycopg.connect(database) as brake,
        ThreadPoolExecutor(1) as threads,
    ):
        put(conn, 1)
        batch = first.claim_ready(10)
        (parked,) = put(conn, 1)
        assert take(second) == []
        fill = (
            "select setval('forebay.log_seq', (select min(hi) from forebay.segment where hi > %s))"
        )
        one(conn, fill, parked)
        put(conn, 1, "other")
        assert one(conn, "select forebay.seal_v1()") > 0
        assert len(ids(take(second))) == 1
        first.finish(batch)
        brake.execute("select pg_advisory_xact_lock(4711)")
        emptying = threads.submit(one, maintenance, "select emptied from forebay.retain_v1()")
        blocked = "select cardinality(pg_blocking_pids(%s)) > 0"
        wait_for(lambda: one(conn, blocked, maintenance.info.backend_pid), 10)
        (batch,) = take(second)
        assert batch.job_ids == [parked]
        brake.commit()
        emptying.result(10)
        again = [ended(1, "retried")]
        assert second.settle(batch.claim_no, [], ended=again) == "settled"
        second.open_claims.discard(batch.claim_no)
        assert drained(second) == [parked]


def held_between_its_looks(database: str) -> None:
    """Let retention wait for a lock between the batches and the jobs that wait, for as long as a
    busy machine needs.
    """
    limit = "SET lock_timeout TO '{}'"
    break_function(database, "retain_v1", (limit.format("100ms"), limit.format("30s")))
    look = "return query\n    select distinct s.segment_id"
    brake = "perform pg_advisory_xact_lock(4711);"
    break_function(database, "_segment_holders", (look, f"{brake} {look}"))


@pytest.mark.usefixtures("short_history")
def test_a_job_that_is_claimed_while_retention_looks_keeps_its_segment(database):
    """Retention sees the job where it was: all its looks share a snapshot."""
    held_between_its_looks(database)
    claimed_while_retention_looks(database)


@pytest.mark.usefixtures("short_history")
def test_without_a_common_snapshot_retention_would_empty_its_segment(database):
    """The same where each look has a snapshot: the job is in none of them."""
    held_between_its_looks(database)
    break_function(database, "_segment_holders", (" STABLE", " VOLATILE"))
    with violation(psycopg.Error):
        claimed_while_retention_looks(database)


def cancelled_retry_is_trimmed(database: str) -> None:
    """The first job of a key is retried and cancelled meanwhile.

    Its key runs leave the archive one after another.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        put(conn, 1)
        drained(reader)
        for _ in range(15):
            put(conn, 20, "other")
            drained(reader)
        (job,) = put(conn, 1)
        batch = reader.claim_ready(1)
        going = [ended(1, "retried", after=60)]
        assert reader.settle(batch.claim_no, [], ended=going) == "settled"
        reader.open_claims.discard(batch.claim_no)
        one(conn, "select forebay.cancel(%s)", job)
        wait_over(conn)
        assert drained(reader) == []
        assert emptied(conn, reader) > 1
        (new,) = put(conn, 1)
        assert drained(reader) == [new]


@pytest.mark.slow
@pytest.mark.usefixtures("short_history")
def test_a_key_whose_retry_was_cancelled_is_free_after_trimming(database):
    """Trimming takes the oldest key runs first, so that the newest one has the state of the key."""
    cancelled_retry_is_trimmed(database)


@pytest.mark.slow
@pytest.mark.usefixtures("short_history")
def test_a_key_would_wait_for_ever_if_a_younger_run_went_first(database):
    """A key run without jobs has no numbers; it must not go before those that are older."""
    guard = (
        "o.no < coalesce((select min(i.no) from old i where i.high_seq >= p_first), "
        "9223372036854775807)"
    )
    break_function(database, "_trim_key", (guard, "coalesce(o.high_seq, 0) < p_first"))
    with violation():
        cancelled_retry_is_trimmed(database)


@pytest.mark.usefixtures("short_history")
def test_a_cancellation_is_remembered_while_its_job_waits_for_its_key(database, conn):
    """Parked, or requeued behind a retry: trimming keeps the request, and the job does not run."""
    with Reader(database, "q") as first, Reader(database, "q") as second:
        (head, requeued) = put(conn, 2)
        batch = first.claim_ready(10)
        (parked,) = put(conn, 1)
        assert take(second) == []
        going = [ended(1, "retried", after=60), ended(2, "released")]
        assert first.settle(batch.claim_no, [], ended=going) == "settled"
        for job in (requeued, parked):
            one(conn, "select forebay.cancel(%s)", job)
        trim(conn)
        wait_over(conn)
        assert drained(second) == [head]
        assert [state(conn, job) for job in (requeued, parked)] == ["cancelled", "cancelled"]

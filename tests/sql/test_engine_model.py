"""Random sequences of what can happen to the log, compared with a small model of it.

The model knows for each group where each job is: ready, held by a worker, deferred, or ended. The
machine drives a real server through several connections and compares, after every step, what
``forebay.depth()`` says, and at the end and now and then what ``forebay.job()`` says of every job.
Short by default; more ``--stress-seconds`` than 5 make it longer in proportion.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

import hypothesis.strategies as st
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forebay.testing.copies import OWN_COPY
from tests.support.engine import (
    STEPS,
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    open_group,
    shift_clock,
    small_segments,
    states,
)
from tests.support.fix_db import fresh_database
from tests.support.mutant import break_function, violation

GROUPS = ("first", "second")
DAY = 86_400.0

READY, HELD, DEFERRED = "ready", "claimed", "deferred"
WAITING = (READY, HELD, DEFERRED)


@dataclass
class Job:
    """What the model knows of a job: its place in each group, and what decides its way on."""

    job_id: int
    expires_at: float
    run_at: dict[str, float] = field(default_factory=dict)
    place: dict[str, str] = field(default_factory=dict)
    attempt: dict[str, int] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    suspect: set[str] = field(default_factory=set)
    swept: set[str] = field(default_factory=set)


@dataclass
class Producer:
    """An open transaction of a producer: jobs by savepoint level."""

    conn: psycopg.Connection
    levels: list[list[Job]] = field(default_factory=lambda: [[]])


@dataclass
class Held:
    """A batch as a worker holds it: its jobs by offset, those that are unsettled."""

    reader: Reader
    claim_no: int
    open: dict[int, Job]
    lease_id: int
    alone: bool = False
    started: bool = False
    flush: int = 0


class EngineMachine(RuleBasedStateMachine):
    """Producers, workers and maintenance of one queue with two groups."""

    dsn: str
    queues = count(1)

    producers = Bundle("producers")
    batches = Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        self.queue = f"model_{next(self.queues)}"
        self.conn = connect(self.dsn)
        # What earlier runs of the machine left behind would only make this one slow.
        self.conn.execute(
            "truncate forebay.lane, forebay.queue_group, forebay.batch, forebay.settlement,"
            " forebay.lease, forebay.heartbeat, forebay.tombstone, forebay.deferred,"
            " forebay.promotion"
        )
        shift_clock(self.conn, 0)
        self.offset = 0.0
        self.started_at = self.clock()
        self.jobs: dict[int, Job] = {}
        self.open_producers: list[Producer] = []
        self.held: list[Held] = []
        for group in GROUPS:
            open_group(self.conn, self.queue, group, "beginning")
        self.readers = [Reader(self.dsn, self.queue, group) for group in (*GROUPS, GROUPS[0])]

    def teardown(self) -> None:
        try:
            self.every_job_is_where_the_model_says()
        finally:
            self.close()

    def close(self) -> None:
        for producer in self.open_producers:
            producer.conn.close()
        for reader in self.readers:
            reader.conn.close()
        self.conn.close()

    def clock(self) -> float:
        return float(one(self.conn, "select extract(epoch from forebay._now())"))

    # -- producers -------------------------------------------------------------------------------

    @rule(target=producers)
    def begin(self):
        if len(self.open_producers) == 3:
            return multiple()
        producer = Producer(psycopg.connect(self.dsn))
        self.open_producers.append(producer)
        return producer

    def put(self, conn, delay: float, expiry: float | None, bulk: bool) -> list[Job]:
        now = self.clock()
        expires_at = now + (expiry if expiry is not None else delay + 30 * DAY)
        if bulk:
            many = [{"kind": "work", "queue": self.queue} for _ in range(3)]
            many[1]["delay"] = 50.0
            ids = enqueue_many(conn, many)
            delays = [0.0, 50.0, 0.0]
            expiries = [now + d + 30 * DAY for d in delays]
        else:
            options = {"delay": timedelta(seconds=delay)} if delay else {}
            if expiry is not None:
                options["expires_at"] = one(
                    self.conn, "select forebay._now() + make_interval(secs => %s)", expiry
                )
            ids = [enqueue(conn, queue=self.queue, **options)]
            delays, expiries = [delay], [expires_at]
        jobs = []
        for job_id, wait, expires in zip(ids, delays, expiries, strict=True):
            job = Job(job_id, expires)
            for group in GROUPS:
                job.place[group] = DEFERRED if wait else READY
                job.run_at[group] = now + wait
                job.attempt[group] = 0
            jobs.append(job)
        return jobs

    @rule(
        producer=producers,
        delay=st.sampled_from([0.0, 0.0, 100.0, 1000.0]),
        expiry=st.sampled_from([None, None, 2000.0]),
        bulk=st.booleans(),
    )
    def enqueue_in_a_transaction(self, producer, delay, expiry, bulk):
        if producer in self.open_producers:
            producer.levels[-1] += self.put(producer.conn, delay, expiry, bulk)

    @rule(delay=st.sampled_from([0.0, 0.0, 100.0]), expiry=st.sampled_from([None, 2000.0]))
    def enqueue_and_commit(self, delay, expiry):
        for job in self.put(self.conn, delay, expiry, False):
            self.jobs[job.job_id] = job

    @rule(producer=producers)
    def savepoint(self, producer):
        if producer in self.open_producers and len(producer.levels) < 4:
            producer.conn.execute(f"savepoint level_{len(producer.levels)}")
            producer.levels.append([])

    @rule(producer=producers, keep=st.booleans())
    def end_savepoint(self, producer, keep):
        if producer in self.open_producers and len(producer.levels) > 1:
            jobs = producer.levels.pop()
            verb = "release savepoint" if keep else "rollback to savepoint"
            producer.conn.execute(f"{verb} level_{len(producer.levels)}")
            if keep:
                producer.levels[-1] += jobs

    @rule(producer=consumes(producers), how=st.sampled_from(["commit", "rollback", "two phases"]))
    def end_transaction(self, producer, how):
        if producer not in self.open_producers:
            return
        self.open_producers.remove(producer)
        if how == "two phases":
            name = f"{self.queue} {id(producer)}"
            producer.conn.execute(f"prepare transaction '{name}'")
            producer.conn.rollback()
            self.conn.execute(f"commit prepared '{name}'")
        elif how == "commit":
            producer.conn.commit()
        producer.conn.close()
        if how != "rollback":
            for level in producer.levels:
                self.jobs |= {job.job_id: job for job in level}

    # -- workers ---------------------------------------------------------------------------------

    @rule(target=batches, which=st.integers(0, 2), limit=st.sampled_from([1, 2, 5, 100]))
    def claim(self, which, limit):
        reader = self.readers[which]
        lanes = reader.ready()
        now = self.clock()
        for lane in lanes:
            batch = reader.claim(limit, lane["lane"])
            self.record_skipped(reader.group, now)
            if not batch.jobs:
                continue
            if lane["is_suspect"]:
                assert len(batch.jobs) == 1, "a suspect is handed out alone"
            held = Held(reader, batch.claim_no, {}, reader.lease_id, lane["is_suspect"])
            for row in batch.jobs:
                assert row["job_id"] in self.jobs, f"phantom {row['job_id']}"
                job = self.jobs[row["job_id"]]
                assert job.place[reader.group] == READY, f"{job} was handed out"
                assert reader.group not in job.cancelled, f"cancelled {job} was handed out"
                assert job.expires_at > now - 1, f"expired {job} was handed out"
                assert row["attempt"] == job.attempt[reader.group]
                assert lane["is_suspect"] == (reader.group in job.suspect)
                job.place[reader.group] = HELD
                held.open[row["batch_offset"]] = job
            self.held.append(held)
            return held
        return multiple()

    def record_skipped(self, group: str, now: float) -> None:
        """Note the ends that a claim or the sweep decided: it passed over cancelled and expired."""
        for job in self.jobs.values():
            expired = group in job.swept or job.expires_at <= now
            due = job.place[group] == READY and (expired or group in job.cancelled)
            if due and self.was_passed_over(job, group):
                told = states(self.conn, job.job_id)[group]
                allowed = {"expired"} if expired else set()
                if group in job.cancelled and group not in job.swept:
                    allowed.add("cancelled")
                assert told in allowed, (job, told)
                job.place[group] = told

    def was_passed_over(self, job: Job, group: str) -> bool:
        return one(
            self.conn,
            "select exists (select from forebay.batch b"
            " join forebay.queue_group g on g.group_id = b.group_id and g.name = %s"
            " cross join lateral unnest(b.skipped) k (seq) join forebay.log l on l.seq = k.seq"
            " where g.queue = %s and coalesce(l.job_id, l.seq) = %s)",
            group,
            self.queue,
            job.job_id,
        )

    @rule(
        held=batches,
        data=st.data(),
        outcome=st.sampled_from(
            ["done", "done", "retried", "later", "snoozed", "released", "unknown", "dead",
             "cancelled"]
        ),
    )  # fmt: skip
    def settle(self, held, data, outcome):
        if held not in self.held or not held.open:
            return
        offsets = data.draw(st.lists(st.sampled_from(sorted(held.open)), min_size=1, unique=True))
        held.flush += 1
        ended = []
        if outcome != "done":
            after = 300 if outcome == "later" else 0
            name = "retried" if outcome == "later" else outcome
            ended = [{"offset": o, "outcome": name, "after": after} for o in offsets]
        done = offsets if outcome == "done" else None
        args = {"flush_no": held.flush, "ended": ended}
        assert held.reader.settle(held.claim_no, done, **args) == "settled"
        assert held.reader.settle(held.claim_no, done, **args) == "repeated"
        group = held.reader.group
        for offset in offsets:
            self.end(held.open.pop(offset), group, outcome)
        if not held.open:
            held.reader.open_claims.discard(held.claim_no)
            self.held.remove(held)

    def end(self, job: Job, group: str, outcome: str) -> None:
        """Move a job on in the model as its settlement does."""
        was_suspect = group in job.suspect
        job.suspect.discard(group)
        if outcome in ("done", "dead", "cancelled"):
            job.place[group] = outcome
        elif group in job.cancelled:
            job.place[group] = "cancelled"
        else:
            job.place[group] = DEFERRED if outcome == "later" else READY
            job.run_at[group] = self.clock() + (300 if outcome == "later" else 0)
            job.attempt[group] += outcome in ("retried", "later")
            if outcome == "released" and was_suspect:
                job.suspect.add(group)

    @rule(held=batches)
    def start_suspect(self, held):
        if held in self.held and held.alone:
            held.reader.conn.execute(
                "select forebay.start_suspect_v1(%s, %s)", [held.lease_id, held.claim_no]
            )
            held.started = True

    @rule(which=st.integers(0, 2), how=st.sampled_from(["revoke", "close"]))
    def lose_lease(self, which, how):
        reader = self.readers[which]
        mine = [h for h in self.held if h.reader is reader]
        if how == "close":
            sent = one(self.conn, "select forebay.close_lease_v1(%s)", reader.lease_id)
        else:
            sent = reader.revoked_by(self.conn)
        assert sent == sum(len(h.open) for h in mine)
        for held in mine:
            for job in held.open.values():
                self.send_back(job, reader.group, held, revoked=how == "revoke")
            self.held.remove(held)
            with pytest.raises(psycopg.Error) as refused:
                reader.settle(held.claim_no, [*held.open], flush_no=99)
            assert refused.value.sqlstate == "JQ010"
        reader.open_lease()

    def send_back(self, job: Job, group: str, held: Held, *, revoked: bool) -> None:
        job.place[group] = READY
        if revoked and held.started:
            job.attempt[group] += 1
            if job.attempt[group] >= 20:
                job.place[group] = "dead"
                return
            job.place[group] = DEFERRED
            job.run_at[group] = self.clock() + 5 * 2 ** (job.attempt[group] - 1)
        if revoked or held.alone:
            job.suspect.add(group)

    # -- operators and maintenance
    # --------------------------------------------------------------------

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), group=st.sampled_from([None, *GROUPS]))
    def cancel(self, data, group):
        self.cancel_job(self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))], group)

    def cancel_job(self, job: Job, group: str | None) -> None:
        one(self.conn, "select forebay.cancel(%s, %s)", job.job_id, group)
        job.cancelled.update([group] if group else GROUPS)

    @rule(limit=st.sampled_from([1, 2, 5000]))
    def promote(self, limit):
        now = self.clock()
        due = [
            (job, group)
            for job in self.jobs.values()
            for group in GROUPS
            if job.place[group] == DEFERRED and job.run_at[group] <= now
        ]
        while one(self.conn, "select forebay.promote_v1(%s)", limit):
            pass
        for job, group in due:
            job.place[group] = READY

    @rule(seconds=st.sampled_from([1.0, 150.0, 2500.0]))
    def time_passes(self, seconds):
        self.offset += seconds
        shift_clock(self.conn, self.offset)

    @rule()
    def sweep(self):
        one(self.conn, "select expired from forebay.sweep_v1()")
        now = self.clock()
        for job in self.jobs.values():
            for group in GROUPS:
                if job.place[group] == READY and one(
                    self.conn,
                    "select exists (select from forebay.tombstone t"
                    " join forebay.queue_group g using (group_id)"
                    " where t.job_id = %s and t.reason = 'e' and g.queue = %s and g.name = %s)",
                    job.job_id,
                    self.queue,
                    group,
                ):
                    assert job.expires_at <= now
                    job.swept.add(group)
        for group in GROUPS:
            self.record_skipped(group, now)

    @rule(call=st.sampled_from(["seal", "extend", "retain", "trim"]))
    def maintenance(self, call):
        one(self.conn, STEPS[call])

    @rule(rows=st.integers(20, 120))
    def numbers_are_used_up(self, rows):
        """Another queue uses numbers, so that segments pass."""
        one(self.conn, "select setval('forebay.log_seq', nextval('forebay.log_seq') + %s)", rows)
        one(self.conn, "select forebay.extend_v1()")

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def depth_agrees(self):
        told = depth(self.conn, self.queue)
        for group in GROUPS:
            counted = [0, 0, 0]
            swept = 0
            for job in self.jobs.values():
                is_withdrawn = job.place[group] == DEFERRED and group in job.cancelled
                if job.place[group] in WAITING and not is_withdrawn:
                    counted[WAITING.index(job.place[group])] += 1
                    swept += job.place[group] == READY and (
                        group in job.swept or group in job.cancelled
                    )
            ready, held, deferred = told.get(group, (0, 0, 0))
            assert (held, deferred) == (counted[1], counted[2]), (group, told, counted)
            # A job that the sweep has expired, or that is cancelled, has ended, though no claim
            # has passed its row yet.
            assert ready == counted[0] - swept, (group, told, counted, swept)

    def every_job_is_where_the_model_says(self):
        for job in self.jobs.values():
            told = states(self.conn, job.job_id)
            for group in GROUPS:
                expected = job.place[group]
                if expected == DEFERRED and group in job.cancelled:
                    expected = "cancelled"
                elif expected == DEFERRED:
                    expected = "retrying" if job.attempt[group] else "scheduled"
                elif expected == READY and group in job.swept:
                    expected = "expired"
                elif expected == READY and group in job.cancelled:
                    expected = "cancelled"
                assert told.get(group) == expected, (job, told)

    @rule()
    def look_at_every_job(self):
        self.every_job_is_where_the_model_says()


@pytest.fixture
def model_database(server, template):
    """A database with small segments, so that the machine passes many of them."""
    with fresh_database(server, template) as dsn, connect(dsn) as conn:
        conn.execute(OWN_COPY)
        small_segments(conn, rows=100, reserve=1000)
        conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
        EngineMachine.dsn = dsn
        yield dsn


def model_settings(examples: int, *phases: Phase) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        print_blob=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "examples", [2, pytest.param(8, marks=[pytest.mark.slow, pytest.mark.nightly])]
)
def test_the_engine_agrees_with_a_small_model(model_database, stress_seconds, examples):
    """
    Whatever producers, workers, operators and maintenance do in whatever order, each job is for
    each group in exactly the place where a model of a page says it is.
    """
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    examples = int(examples * max(1.0, stress_seconds / 5))
    run_state_machine_as_test(EngineMachine, settings=model_settings(examples, *phases))


def test_the_model_notices_a_claim_that_overlooks_cancellations(model_database):
    """The mutant: with claims that look for no tombstone the two soon disagree."""
    break_function(
        model_database,
        "_take",
        ("v_tombstones := pg_sequence_last_value('forebay.tombstone_seq') is not null;",
         "v_tombstones := false;"),
    )  # fmt: skip
    machine = EngineMachine()
    machine.enqueue_and_commit(delay=0.0, expiry=None)
    (job,) = machine.jobs.values()
    machine.cancel_job(job, GROUPS[0])
    with violation():
        machine.claim(which=0, limit=5)
    machine.close()

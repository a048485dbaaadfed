"""What producers, workers and operators do to one queue of jobs with keys, told to the database
and to the model of it.

No act fails where it has nothing to do: so any random sequence of them makes sense.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import NamedTuple

import psycopg

from tests.support.engine import STEPS, Reader, depth, one, open_group, states
from tests.support.key_model import (
    DEFERRED,
    ENDS,
    GROUPS,
    WAITING,
    Batch,
    Job,
    KeyModel,
    Lease,
    Letter,
    Part,
)
from tests.support.key_watch import assert_nothing_is_forgotten

DAY = 86_400.0


class Given(NamedTuple):
    """What a job is enqueued with."""

    keys: tuple[str | None, str | None]
    kind: str = "work"
    priority: int = 100
    delay: float = 0
    expiry: float | None = None
    max_attempts: int = 20
    is_unique: bool = False


class Producer:
    """An open transaction of a producer. word: the unique key that only it uses meanwhile."""

    def __init__(self, dsn: str, word: str) -> None:
        self.conn = psycopg.connect(dsn)
        self.word = word
        self.jobs: list[Job] = []


class Handler:
    """An open transaction of a handler that has settled its job."""

    def __init__(self, dsn: str, lease: Lease, batch: Batch, offset: int) -> None:
        self.conn = psycopg.connect(dsn)
        self.lease, self.batch, self.offset = lease, batch, offset
        batch.open[offset].settling = True


class KeyWorkers:
    """Producers and workers of one queue: two groups, three workers, and keys of both sorts."""

    dsn: str
    #: Connections that all runs of the machine share.
    conns: list[psycopg.Connection]
    queues = count(1)

    def __init__(self) -> None:
        self.conn, *self.of_workers = self.conns
        self.queue = f"keys_{next(self.queues)}"
        # What earlier runs of the machine left behind would only make this one slow.
        self.conn.execute(
            "truncate forebay.lane, forebay.queue_group, forebay.batch, "
            "forebay.settlement, forebay.lease,"
            " forebay.heartbeat, forebay.tombstone, forebay.deferred, forebay.withdrawn, "
            "forebay.promotion,"
            " forebay.key_run, forebay.parked, forebay.limit_run, forebay.limit_parked, "
            "forebay.limiter,"
            " forebay.key_pause, forebay.key_limits, forebay.queue_limits, "
            "forebay.dead_letter, forebay.failure, forebay.event,"
            " forebay.unique_key, forebay.counter_waiting, forebay.counter_change, "
            "forebay.suspect_start"
        )
        self.low = self.new_segment()
        self.model = KeyModel()
        self.milliseconds = 0
        self.began = 0.0
        self.time_passes(0)
        self.began = float(one(self.conn, "select extract(epoch from forebay._now())"))
        self.time_passes(0)
        self.producers: list[Producer] = []
        self.handlers: list[Handler] = []
        # Their ids are random, and some loops go by the id.
        ids = sorted(open_group(self.conn, self.queue, f"new_{n}", "beginning") for n in GROUPS)
        for group, group_id in zip(GROUPS, ids, strict=True):
            query = "update forebay.queue_group set name = %s where group_id = %s"
            self.conn.execute(query, [group, group_id])
        #: The reader of each lease that is open; leases that may claim, by worker.
        self.readers: dict[Lease, Reader] = {}
        self.current: list[Lease] = []
        for worker, group in enumerate((GROUPS[0], GROUPS[0], GROUPS[1])):
            self.current.append(self.new_lease(worker, group))

    def new_segment(self) -> int:
        """Begin a segment, so that each run finds the same; return its first number."""
        number = one(
            self.conn,
            (
                "select hi from forebay.segment, forebay.log_seq where last_value >= lo and "
                "last_value < hi"
            ),
        )
        one(self.conn, "select setval('forebay.log_seq', %s)", number)
        for call in ("extend", "seal"):
            one(self.conn, STEPS[call])
        while one(self.conn, STEPS["retain"]) is not None:
            pass
        return number

    def new_lease(self, worker: int, group: str) -> Lease:
        lease = Lease(group)
        self.readers[lease] = Reader(self.dsn, self.queue, group, conn=self.of_workers[worker])
        self.model.leases.append(lease)
        return lease

    def close(self) -> None:
        for one_of in (*self.producers, *self.handlers):
            one_of.conn.close()

    def promote(self):
        while one(self.conn, "select forebay.promote_v1()"):
            pass
        self.model.promoted()

    def time_passes(self, seconds):
        self.milliseconds += int(seconds * 1000)
        one(self.conn, "select setval('public.milliseconds', %s)", self.milliseconds)
        self.model.now = self.began + self.milliseconds / 1000

    # -- producers -------------------------------------------------------------------------------

    def put(self, conn: psycopg.Connection, given: list[Given], word: str) -> list[Job]:
        """Enqueue jobs; return those that are new."""
        now = self.model.now
        many = []
        for options in given:
            named = {
                "kind": options.kind,
                "queue": self.queue,
                "priority": options.priority,
                "delay": options.delay or None,
                "max_attempts": options.max_attempts,
                "ordering_key": options.keys[0],
                "limit_key": options.keys[1],
                "unique_as": {"once": word} if options.is_unique else None,
                "expires_at": options.expiry
                and datetime.fromtimestamp(now + options.expiry, UTC).isoformat(),
            }
            many.append({name: value for name, value in named.items() if value is not None})
        drawn = self.model.step()
        ids = one(conn, "select forebay.enqueue_many(%s::jsonb)", json.dumps(many))
        jobs: dict[int, Job] = {}
        for job_id, options in zip(ids, given, strict=True):
            if job_id in self.model.jobs or job_id in jobs:
                assert options.is_unique, f"{job_id} was given to another job"
                continue
            expires = now + (options.expiry or options.delay + 30 * DAY)
            jobs[job_id] = job = Job(
                job_id, options.kind, options.priority, *options.keys, expires, options.max_attempts
            )
            for group in GROUPS:
                job.parts[group] = Part(
                    job,
                    group,
                    DEFERRED if options.delay else WAITING,
                    now + options.delay,
                    drawn=drawn,
                    number=job_id,
                    has_place=not options.delay,
                    awaits_place=options.delay > 0,
                )
        return list(jobs.values())

    def begin(self):
        if len(self.producers) == 3:
            return
        words = {"u", "v", "w"} - {producer.word for producer in self.producers}
        self.producers.append(Producer(self.dsn, min(words)))

    def enqueue_in_a_transaction(self, which, given):
        if not self.producers:
            self.begin()
        producer = self.producers[which % len(self.producers)]
        mine = {job.job_id for job in producer.jobs}
        new = self.put(producer.conn, given, producer.word)
        producer.jobs += [job for job in new if job.job_id not in mine]

    def enqueue_and_commit(self, given):
        self.model.committed(self.put(self.conn, given, "x"))

    def end_transaction(self, which, how):
        if self.producers:
            self.end_producer(self.producers.pop(which % len(self.producers)), how)

    def end_producer(self, producer: Producer, how: str) -> None:
        if how == "two phases":
            name = f"{self.queue} {producer.word}"
            producer.conn.execute(f"prepare transaction '{name}'")
            producer.conn.rollback()
            self.conn.execute(f"commit prepared '{name}'")
        elif how == "commit":
            producer.conn.commit()
        producer.conn.close()
        if how != "rollback":
            self.model.committed(producer.jobs)

    # -- workers ---------------------------------------------------------------------------------

    def lanes(self, lease: Lease, *, is_any: bool = False) -> list[dict]:
        """Return the lanes that are ready for a lease, or all of its group, in an order that
        repeats.
        """
        reader = self.readers[lease]
        rows = self.conn.execute(
            "select distinct lane, sort, priority, audience from forebay.lane"
            " where queue = %s and audience in (0, %s, %s)",
            [self.queue, reader.group_id, -reader.group_id],
        ).fetchall()
        ready = {row["lane"]: row["is_suspect"] for row in reader.ready()}
        found = [
            ((sort, priority, (audience > 0) - (audience < 0)), lane, audience < 0)
            for lane, sort, priority, audience in rows
            if is_any or lane in ready
        ]
        return [{"lane": lane, "is_suspect": is_suspect} for _, lane, is_suspect in sorted(found)]

    def claim_from(self, lease: Lease, lane: dict, most: int) -> Batch | None:
        taken = self.readers[lease].claim(most, lane["lane"])
        if not taken.jobs:
            return None
        return self.model.handed_out(lease, taken.claim_no, taken.jobs, alone=lane["is_suspect"])

    def claim(self, which, lane, limit, how):
        lease = self.current[which]
        lanes = self.lanes(lease, is_any=how == "any")
        if not lanes:
            self.promote()
            return
        batch = self.claim_from(lease, lanes[lane % len(lanes)], limit)
        if how == "lost" and batch is not None:
            # The worker never hears of it. It takes a new lease, and closes this one when its jobs
            # have ended.
            batch.known = False
            self.current[which] = self.new_lease(which, lease.group)

    def claim_everything(self, which):
        lease = self.current[which]
        for lane in self.lanes(lease):
            self.claim_from(lease, lane, 100)

    def pick(self, which: int, test: Callable[[Lease], object]) -> Lease | None:
        """Return one of the leases that pass a test, if there are any."""
        leases = [lease for lease in self.model.leases if test(lease)]
        return leases[which % len(leases)] if leases else None

    def settle(self, which, ends, repeats):
        """Some jobs end, each in a way of its own."""
        if not self.pick(which, Lease.runnable):
            self.claim_everything(which % 3)
        if lease := self.pick(which, Lease.runnable):
            events = []
            for job, outcome in ends:
                if runnable := lease.runnable():
                    events.append((*runnable[job % len(runnable)], outcome))
                    self.decide(lease, events[-1])
            self.flush(lease, events, repeats=repeats)

    def finish(self, which):
        """All that may run is done."""
        if lease := self.pick(which, Lease.runnable):
            self.finish_lease(lease)

    def finish_lease(self, lease: Lease) -> None:
        events = []
        while runnable := lease.runnable():
            events += [(*job, "done") for job in runnable]
            for event in events[-len(runnable) :]:
                self.decide(lease, event)
        self.flush(lease, events)

    def release_stopped(self, which, batches):
        """Jobs behind one that will run again are released, those of the first batches first."""
        if lease := self.pick(which, lambda lease: lease.stopped):
            self.release(lease, list(lease.stopped), batches)

    def release_unstarted(self, which, job, batches):
        """A job that has not begun is released, and all behind it in its line."""
        lease = self.pick(which, lambda lease: lease.batches)
        batches_of = lease.batches if lease else []
        parts = [p for b in batches_of if b.known for p in b.open.values() if not p.settling]
        if parts:
            part = parts[job % len(parts)]
            line = lease.lines[part.job.ordering] if part.job.ordering else [part]
            lease.stopped.update(line[line.index(part) + 1 :])
            self.release(lease, line[line.index(part) :], batches)

    def release(self, lease: Lease, parts: list[Part], batches: int) -> None:
        events = [
            (batch, offset, part, "released")
            for batch in sorted((b for b in lease.batches if b.known), key=lambda b: b.claim_no)
            for offset, part in sorted(batch.open.items())
            if part in parts and not part.settling
        ]
        firsts = sorted({event[0].claim_no for event in events})[:batches]
        events = [event for event in events if event[0].claim_no in firsts]
        for event in events:
            self.decide(lease, event)
        self.flush(lease, events)

    def decide(self, lease: Lease, event: tuple) -> None:
        batch, offset, part, outcome = event
        holds = outcome == "dead" and part.job.kind == "strict"
        self.model.ended(
            lease, batch, offset, outcome, after=30 if outcome == "later" else 0, holds=holds
        )

    def flush(self, lease: Lease, events: list[tuple], *, repeats: bool = False) -> None:
        """Tell the database how jobs of a lease ended, in the order in which they were claimed."""
        flushes = []
        for batch in sorted({event[0] for event in events}, key=lambda batch: batch.claim_no):
            mine = [event for event in events if event[0] is batch]
            done = [offset for _, offset, _, outcome in mine if outcome == "done"]
            ended = [
                {
                    "offset": offset,
                    "outcome": "retried" if outcome == "later" else outcome,
                    "after": 30 if outcome == "later" else 0,
                    "holds_key": part.job.kind == "strict",
                }
                for _, offset, part, outcome in mine
                if outcome != "done"
            ]
            batch.flush += 1
            one_flush = {"claim_no": batch.claim_no, "flush_no": batch.flush}
            if len(done) < batch.size:
                one_flush |= {"done": done, "ended": ended}
            flushes.append(one_flush)
            if not batch.open:
                self.readers[lease].open_claims.discard(batch.claim_no)
        for expected in ("settled", "repeated")[: 1 + repeats]:
            assert self.send(self.of(lease), lease, flushes) == [expected] * len(flushes)
        for _, _, part, outcome in events:
            if outcome == "dead":
                self.died(part)

    def of(self, lease: Lease) -> psycopg.Connection:
        return self.readers[lease].conn

    def send(self, conn: psycopg.Connection, lease: Lease, flushes: list[dict]) -> list[str]:
        rows = conn.execute(
            "select status from forebay.settle_v1(%s, %s::jsonb)",
            [self.readers[lease].lease_id, json.dumps(flushes)],
        )
        return [status for (status,) in rows.fetchall()]

    def died(self, part: Part) -> None:
        dead_id, holds = self.conn.execute(
            "select d.dead_id, d.holds_key from forebay.dead_letter d join "
            "forebay.queue_group g using (group_id)"
            " where d.job_id = %s and g.name = %s",
            [part.job.job_id, part.group],
        ).fetchone()
        assert holds == (part.job.kind == "strict" and part.job.ordering is not None)
        self.model.died(part, dead_id, holds=holds)

    def settle_in_a_transaction(self, which, job):
        """A handler settles its job in its own transaction, and is slow to commit."""
        lease = self.pick(which, Lease.runnable)
        if lease is None or len(self.handlers) == 2:
            return
        runnable = lease.runnable()
        batch, offset, _ = runnable[job % len(runnable)]
        handler = Handler(self.dsn, lease, batch, offset)
        flush = {"claim_no": batch.claim_no, "flush_no": -offset, "done": [offset]}
        assert self.send(handler.conn, lease, [flush]) == ["settled"]
        handler.conn.execute("set local idle_in_transaction_session_timeout = 0")
        self.handlers.append(handler)

    def end_handler(self, which, commits):
        if self.handlers:
            self.over(self.handlers.pop(which % len(self.handlers)), commits=commits)

    def over(self, handler: Handler, *, commits: bool) -> None:
        lease, batch = handler.lease, handler.batch
        if commits:
            handler.conn.commit()
            self.model.ended(lease, batch, handler.offset, "done")
            if not batch.open:
                self.readers[lease].open_claims.discard(batch.claim_no)
        else:
            batch.open[handler.offset].settling = False
        handler.conn.close()

    def start_suspect(self, which):
        found = [
            (lease, batch)
            for lease in self.model.leases
            for batch in lease.batches
            if batch.alone and batch.known and not batch.started
        ]
        if found:
            lease, batch = found[which % len(found)]
            batch.started = True
            query = "select forebay.start_suspect_v1(%s, %s)::text"
            one(self.of(lease), query, self.readers[lease].lease_id, batch.claim_no)

    def lose_lease(self, which, how):
        # A revocation would wait for the transaction of a handler.
        busy = {handler.lease for handler in self.handlers}
        if lease := self.pick(which, lambda lease: lease.batches and lease not in busy):
            self.lose(lease, how)

    def lose(self, lease: Lease, how: str) -> None:
        reader = self.readers.pop(lease)
        unsettled = sum(len(batch.open) for batch in lease.batches)
        if how == "close":
            sent = one(self.conn, "select forebay.close_lease_v1(%s)", reader.lease_id)
        else:
            sent = reader.revoked_by(self.conn)
        assert sent == unsettled
        dead = self.model.lease_lost(lease, revoked=how == "revoke")
        for part in dead:
            self.died(part)
        if lease in self.current:
            worker = self.current.index(lease)
            self.current[worker] = self.new_lease(worker, lease.group)


class KeyActs(KeyWorkers):
    """Also operators, maintenance and time; and what must hold after each act, and in the end."""

    # -- operators -------------------------------------------------------------------------------

    def cancel(self, which, of_group):
        parts = [part for part in self.model.parts() if not part.is_over(self.model.now)]
        if parts:
            part = parts[which % len(parts)]
            one(
                self.conn,
                "select forebay.cancel(%s, %s)",
                part.job.job_id,
                part.group if of_group else None,
            )
            for other in [part] if of_group else part.job.parts.values():
                other.cancelled = other.place not in ENDS

    def pause(self, key, begins_after, seconds):
        one(
            self.conn,
            f"select forebay.pause_key(%s, {key[0]}_key => %s, resume_after => "
            f"make_interval(secs => %s),"
            " pause_at => forebay._now() + make_interval(secs => %s))",
            *[self.queue, key[1], seconds, begins_after],
        )
        begins = self.model.now + begins_after
        self.model.pauses[key] = begins, begins + seconds if seconds else float("inf")

    def resume(self, which):
        if self.model.pauses:
            self.end_pause(sorted(self.model.pauses)[which % len(self.model.pauses)])

    def end_pause(self, key: tuple[str, str]) -> None:
        one(self.conn, f"select forebay.resume_key(%s, {key[0]}_key => %s)", self.queue, key[1])
        del self.model.pauses[key]

    def decide_about_a_dead_letter(self, which, skips):
        letters = [letter for letter in self.model.letters if letter.redriven is None]
        if letters:
            self.decide_about(letters[which % len(letters)], skips=skips)

    def decide_about(self, letter: Letter, *, skips: bool) -> None:
        if skips:
            assert one(self.conn, "select forebay.skip_dead(%s)", letter.dead_id) == letter.holds
            letter.holds = False
        else:
            self.model.redriven(
                letter, one(self.conn, "select forebay.redrive(%s)", letter.dead_id)
            )

    def limit(self, limits):
        given = {"concurrency": limits.concurrency, "key_concurrency": limits.key_concurrency}
        for name, pair in (("", limits.rate), ("key_", limits.key_rate)):
            given |= {f"{name}rate": pair and pair[0], f"{name}burst": pair and pair[1]}
        named = "".join(f", {name} => %s" for name, value in given.items() if value is not None)
        values = [value for value in given.values() if value is not None]
        query = f"select forebay.limit_queue(%s, remove => '{{all}}'{named})::text"
        one(self.conn, query, self.queue, *values)
        self.model.limited(limits)

    def limit_key(self, key, limits, waits):
        """Limits of one key; waits: its breaker is open instead, if there is a rate, and the first
        probe may start after these seconds.
        """
        rate, burst = limits.rate or (None, None)
        own = "forebay._set_key_limits(%s, %s, %s::float8, %s::int, %s::int)"
        probes = "forebay._set_key_probes(%s, %s, %s, to_timestamp(%s::float8))"
        if limits.rate is None or waits is None:
            query = f"select {probes}, {own}"
            given = [self.queue, key, None, None, self.queue, key, rate, burst, limits.concurrency]
        else:
            until = self.model.now + waits
            query = f"select {own}, {probes}"
            given = [self.queue, key, None, None, None, self.queue, key, 1 / rate, until]
            limits = replace(limits, concurrency=1, rate=(rate, 1), empty_until=until)
        self.conn.execute(query, given)
        self.model.key_limited(key, limits)

    # -- maintenance and time ---------------------------------------------------------------------

    def maintenance(self, call):
        one(self.conn, STEPS[call])

    def numbers_are_used_up(self, rows):
        """Another queue uses numbers, so that segments pass."""
        one(self.conn, "select setval('forebay.log_seq', nextval('forebay.log_seq') + %s)", rows)
        one(self.conn, "select forebay.extend_v1()")

    # -- what must hold --------------------------------------------------------------------------

    def look_at_the_counts(self):
        told = depth(self.conn, self.queue)
        for group in GROUPS:
            assert told.get(group, (0, 0, 0))[1] == len(self.model.held(group)), (group, told)

    def nothing_is_forgotten(self) -> None:
        assert_nothing_is_forgotten(self.conn, self.queue, self.low, self.model)

    def everything_ends(self) -> None:
        """Every transaction ends, every pause, every hold.

        Then each job ends, in a bounded number of rounds.
        """
        while self.producers:
            self.end_producer(self.producers.pop(), "commit")
        while self.handlers:
            self.over(self.handlers.pop(), commits=True)
        for key in sorted(self.model.pauses):
            self.end_pause(key)
        for turn in range(20 + 2 * len(self.model.jobs)):
            for letter in self.model.holding():
                self.decide_about(letter, skips=(letter.part.job.priority + turn) % 2 == 0)
            for lease in list(self.model.leases):
                self.end_work(lease)
            if not any(any(numbers) for numbers in depth(self.conn, self.queue).values()):
                break
            self.time_passes(31.0)
            self.promote()
        else:
            left = [part for part in self.model.parts() if not part.is_over(self.model.now)]
            raise AssertionError(f"these do not end: {left}, {depth(self.conn, self.queue)}")
        for part in self.model.parts():
            assert part.is_over(self.model.now), part
            told = states(self.conn, part.job.job_id).get(part.group)
            expected = [part.place] if part.place in ENDS else ["cancelled", "expired"]
            assert told in (None, *expected), (part, told)

    def end_work(self, lease: Lease) -> None:
        """A lease claims, if it may, and finishes all it has."""
        for _ in range(50):
            if lease.stopped:
                self.release(lease, list(lease.stopped), 1000)
            self.finish_lease(lease)
            if any(not batch.known for batch in lease.batches):
                self.lose(lease, "close")
                return
            assert not lease.batches, lease.batches
            if lease not in self.current:
                return
            lanes = self.lanes(lease)
            if not lanes:
                return
            for lane in lanes:
                self.claim_from(lease, lane, 100)
        raise AssertionError(f"lanes stay ready: {lanes}")

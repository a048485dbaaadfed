"""A stress run: writers that commit in random order, readers that settle in parts, leases taken
away or closed.

Everything runs through plain psycopg in threads; the record is kept by a ``Ledger``. All random
choices come from one seed. Thread timing does not, so a seed repeats the choices of a failure and
not always the failure.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg

from tests.support.engine import (
    STEPS,
    Reader,
    Row,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    open_group,
)
from tests.support.ledger import Ledger
from tests.support.settings import OF_APPLICATIONS

QUEUE = "stress"
_RETRYABLE = (psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure)

_SETTINGS = (
    *OF_APPLICATIONS,
    "plan_cache_mode = force_custom_plan",
    "bytea_output = escape",
    "synchronous_commit = off",
    "default_transaction_deferrable = on",
    "work_mem = '64kB'",
    "xmloption = document",
)
_LEVELS = (
    *[psycopg.IsolationLevel.READ_COMMITTED] * 3,
    psycopg.IsolationLevel.REPEATABLE_READ,
    psycopg.IsolationLevel.SERIALIZABLE,
)
# What administrators, dumps and dashboards run meanwhile.
_ADMINISTRATION = (
    "vacuum forebay.batch",
    "vacuum (freeze) forebay.lane",
    "vacuum full forebay.lane",
    "vacuum forebay.deferred",
    "analyze forebay.log",
    "analyze forebay.batch",
    "reindex table concurrently forebay.settlement",
    "cluster forebay.batch using batch_pkey",
    "select count(*) from forebay.depth()",
    "select count(*) from forebay.jobs(most => 20)",
)


@dataclass
class StressRun:
    """One run over a database.

    Args:
        writers, claimers: how many of each; claimers are dealt out to the groups in turn.
        revocations_per_second: how often a random live lease is taken away.
        deferred_share: the share of jobs enqueued with a short delay.
        outcomes: the weights of the ends that readers choose from.
        keyed_share: the share of enqueue calls with an ordering key.
        abandoned_share: the share of claims whose reader closes its lease with the jobs in it.
        has_other_sessions: whether writers have unusual settings and isolation levels, and other
            sessions hold snapshots and do administrative work.
    """

    dsn: str
    seed: int
    seconds: float = 5
    writers: int = 8
    claimers: int = 4
    groups: tuple[str, ...] = ("first", "second")
    revocations_per_second: float = 2
    deferred_share: float = 0.1
    keyed_share: float = 0
    abandoned_share: float = 0
    has_other_sessions: bool = False
    jobs_per_second: float = 1500
    outcomes: dict[str, float] = field(
        default_factory=lambda: {
            "done": 85, "dead": 3, "retried": 4, "snoozed": 3, "released": 4, "unknown": 1,
        }
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.groups)
        self.errors: list[BaseException] = []
        self.leases: dict[str, Reader] = {}
        self.maintenance_done: dict[str, int] = {}
        self.depth_checks = 0
        self._writing = threading.Event()
        self._running = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> Ledger:
        """Run, let everything come to rest, and return the ledger."""
        with connect(self.dsn) as conn:
            for group in self.groups:
                open_group(conn, QUEUE, group, "beginning")
        self._writing.set()
        self._running.set()
        duties: list[tuple[str, Callable[[random.Random], None]]] = [
            *((f"writer {n}", self._write) for n in range(self.writers)),
            *((f"claimer {n}", self._claimer(n)) for n in range(self.claimers)),
            ("maintenance", self._keep_up),
            ("revoker", self._revoke),
        ]
        if not self.keyed_share:  # The independent count knows nothing of parked jobs.
            duties.append(("counter", self._count))
        if self.has_other_sessions:
            duties += [("snapshots", self._hold_snapshots), ("administrator", self._administer)]
        duties += self._further_duties()
        threads = [
            threading.Thread(target=self._guarded, args=(duty, f"{self.seed}/{name}"), name=name)
            for name, duty in duties
        ]
        for thread in threads:
            thread.start()
        time.sleep(self.seconds)
        self._writing.clear()
        for thread in threads[: self.writers]:
            thread.join(60)
        self._come_to_rest()
        self._running.clear()
        for thread in threads:
            thread.join(30)
        assert not any(t.is_alive() for t in threads), [t.name for t in threads if t.is_alive()]
        if self.errors:
            raise self.errors[0]
        return self.ledger

    def _further_duties(self) -> list[tuple[str, Callable[[random.Random], None]]]:
        return []

    def _guarded(self, duty: Callable[[random.Random], None], seed: str) -> None:
        try:
            duty(random.Random(seed))
        except BaseException as error:
            self.errors.append(error)
            self._writing.clear()

    def _come_to_rest(self) -> None:
        """Wait until nothing is ready, held by a worker, or waiting for a time.

        Give up 30 s after the last end: the ledger tells.
        """
        ended, deadline = 0, time.monotonic() + 30
        with connect(self.dsn) as conn:
            while time.monotonic() < deadline and not self.errors:
                if not any(sum(numbers) for numbers in depth(conn, QUEUE).values()):
                    return
                before, ended = ended, sum(len(jobs) for jobs in self.ledger.ended.values())
                if ended > before:
                    deadline = time.monotonic() + 30
                time.sleep(0.05)

    # -- writers ---------------------------------------------------------------------------------

    def _write(self, rng: random.Random) -> None:
        pause_seconds = self.writers * 12 / self.jobs_per_second
        with psycopg.connect(self.dsn) as conn:
            while self._writing.is_set():
                if self.has_other_sessions:
                    for setting in rng.sample(_SETTINGS, 2):
                        conn.execute(f"set {setting}")
                    conn.commit()
                    conn.isolation_level = rng.choice(_LEVELS)
                try:
                    self._write_once(conn, rng)
                except psycopg.errors.SerializationFailure:
                    conn.rollback()
                time.sleep(rng.expovariate(1 / pause_seconds))

    def _write_once(self, conn: psycopg.Connection[Any], rng: random.Random) -> None:
        kept: list[int] = []
        dropped: list[int] = []
        began_at = time.monotonic()
        conn.execute("select pg_current_xact_id()" if rng.random() < 0.3 else "select 1")
        for _ in range(rng.randint(1, 4)):
            entries = self._put(conn, rng)
            kept += entries
            if rng.random() < 0.3:
                conn.execute("savepoint s")
                aside = self._put(conn, rng)
                if rng.random() < 0.5:
                    conn.execute("rollback to savepoint s")
                    dropped += aside
                else:
                    conn.execute("release savepoint s")
                    kept += aside
            if rng.random() < 0.1:
                time.sleep(rng.random() ** 3)  # Held open, now and then for up to a second.
        self.ledger.record_rolled_back(dropped)
        choice = rng.random()
        if choice < 0.15:
            conn.rollback()
            self.ledger.record_rolled_back(kept)
            return
        if choice < 0.25:
            name = f"stress {rng.getrandbits(64)}"
            conn.execute(f"prepare transaction '{name}'")
            conn.commit()
            time.sleep(rng.random() ** 3)
            conn.autocommit = True
            conn.execute(f"{'commit' if choice < 0.22 else 'rollback'} prepared '{name}'")
            conn.autocommit = False
            if choice >= 0.22:
                self.ledger.record_rolled_back(kept)
                return
        else:
            conn.commit()
        self.ledger.record_committed(kept, began_at)

    def _put(self, conn: psycopg.Connection[Any], rng: random.Random) -> list[int]:
        has_key = self.keyed_share and rng.random() < self.keyed_share
        key = {"ordering_key": f"key {rng.randrange(12)}"} if has_key else {}
        if rng.random() < 0.5:
            (entry,) = self.ledger.draw(1)
            delay = {"delay": timedelta(seconds=rng.random() * 0.6)} if self._defers(rng) else {}
            enqueue(conn, queue=QUEUE, args={"entry": entry}, **key, **delay)
            return [entry]
        entries = self.ledger.draw(rng.randint(1, 20))
        if rng.random() < 0.3:
            conn.execute(
                "select forebay.enqueue_many('work', array_agg(jsonb_build_object('entry', e)),"
                " queue => %s, ordering_key => %s) from unnest(%s::bigint[]) e",
                [QUEUE, key.get("ordering_key"), entries],
            )
            return entries
        jobs = [
            {"kind": "work", "queue": QUEUE, "args": {"entry": e}}
            | key
            | ({"delay": rng.random() * 0.6} if self._defers(rng) else {})
            for e in entries
        ]
        assert len(enqueue_many(conn, jobs)) == len(jobs)
        return entries

    def _defers(self, rng: random.Random) -> bool:
        return rng.random() < self.deferred_share

    # -- readers ---------------------------------------------------------------------------------

    def _claimer(self, number: int) -> Callable[[random.Random], None]:
        group = self.groups[number % len(self.groups)]

        def claim(rng: random.Random) -> None:
            with Reader(self.dsn, QUEUE, group) as reader:
                with self._lock:
                    self.leases[threading.current_thread().name] = reader
                while self._running.is_set() and not self.errors:
                    try:
                        if not self._claim_once(reader, rng):
                            time.sleep(0.005)
                    except psycopg.Error as error:
                        if error.sqlstate == "JQ012":  # The machine delayed the call for seconds.
                            continue
                        if error.sqlstate != "JQ010":
                            raise
                        reader.open_lease()

        return claim

    def _claim_once(self, reader: Reader, rng: random.Random) -> bool:
        lanes = reader.ready()
        if not lanes:
            return False
        claimed = self._claim(reader, rng, lanes)
        if claimed is None:
            return False
        if self.abandoned_share and rng.random() < self.abandoned_share:
            if self._close(reader) is not None:
                self.ledger.record_rerun(reader.group, list(claimed[1].values()))
            reader.open_lease()
            return True
        behind = (
            self._claim(reader, rng, lanes) if self.keyed_share and rng.random() < 0.3 else None
        )
        if behind is None:
            self._settle_all(reader, rng, *claimed, in_parts=rng.random() < 0.6)
        else:  # Of a key the jobs of the earlier claim end first.
            self._settle_all(reader, rng, *claimed, in_parts=False)
            self._settle_all(reader, rng, *behind, in_parts=True)
        return True

    def _close(self, reader: Reader) -> int | None:
        """Close a reader's lease.

        Return how many jobs went back, None when it was closed already.
        """
        while True:
            try:
                return one(reader.conn, "select forebay.close_lease_v1(%s)", reader.lease_id)
            except psycopg.errors.LockNotAvailable:  # A table is being rewritten.
                continue

    def _claim(self, reader: Reader, rng: random.Random, lanes: list[Row]):
        """Claim from one of the lanes; return the claim's number and its entries by offset."""
        batch = reader.claim(rng.choice([1, 3, 10, 50, 400]), rng.choice(lanes)["lane"])
        if not batch.jobs:
            return None
        entry = {n: job["args"]["entry"] for n, job in enumerate(batch.jobs, 1)}
        self.ledger.record_handed(reader.group, list(entry.values()))
        return batch.claim_no, entry

    def _settle_all(
        self,
        reader: Reader,
        rng: random.Random,
        claim_no: int,
        entry: dict[int, int],
        *,
        in_parts: bool,
    ) -> None:
        left = list(entry)
        flush_no = 0
        if not in_parts:
            self._settle(reader, claim_no, None, [], 1, entry)
            left = []
        rng.shuffle(left)
        while left:
            flush_no += 1
            part, left = left[: (cut := rng.randint(1, len(left)))], left[cut:]
            done, ended = [], []
            for offset in sorted(part):
                outcome = rng.choices([*self.outcomes], [*self.outcomes.values()])[0]
                if outcome == "done":
                    done.append(offset)
                else:
                    after = rng.choice([0, 0, 0.1])
                    ended.append({"offset": offset, "outcome": outcome, "after": after})
            self._settle(reader, claim_no, done, ended, flush_no, entry)
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.02)
        reader.open_claims.discard(claim_no)

    def _settle(self, reader, claim_no, done, ended, flush_no, entry) -> None:
        status = reader.settle(claim_no, done, flush_no=flush_no, ended=ended)
        assert status == "settled", status
        finished = list(entry) if done is None else [*done]
        finished += [e["offset"] for e in ended if e["outcome"] == "dead"]
        again = [e["offset"] for e in ended if e["outcome"] != "dead"]
        self.ledger.record_ended(reader.group, [entry[o] for o in finished])
        self.ledger.record_rerun(reader.group, [entry[o] for o in again])

    # -- everybody else --------------------------------------------------------------------------

    def _keep_up(self, rng: random.Random) -> None:
        calls = ["extend"] * 4 + ["promote"] * 3 + ["seal", "retain", "trim", "sweep"]
        with connect(self.dsn) as conn:
            while self._running.is_set() and not self.errors:
                call = rng.choice(calls)
                step = STEPS[call]
                if call == "promote":
                    step = step.replace("()", f"({rng.choice([1, 20, 5000])})")
                try:
                    count = one(conn, step)
                except _RETRYABLE:
                    count = 0
                except psycopg.DatabaseError as error:
                    if error.sqlstate != "JQ012":
                        raise
                    count = 0
                self.maintenance_done[call] = self.maintenance_done.get(call, 0) + int(bool(count))
                time.sleep(0.005)

    def _revoke(self, rng: random.Random) -> None:
        if not self.revocations_per_second:
            return
        with connect(self.dsn) as conn:
            while self._writing.is_set():
                time.sleep(rng.expovariate(self.revocations_per_second))
                with self._lock:
                    leases = [r.lease_id for r in self.leases.values()]
                if leases:  # Before the first reader has one there is none to take away.
                    self._take_away(conn, rng.choice(leases))

    def _take_away(self, conn: psycopg.Connection[Any], lease_id: int) -> None:
        with conn.transaction():
            sent = one(conn, "select forebay._revoke(%s, 'revoked', true)", lease_id)
            if not sent:
                return
            # What was sent back may run once more, and what was requeued behind it.
            again = conn.execute(
                "select g.name, array_agg((l.args ->> 'entry')::bigint) from forebay.settlement s"
                " join forebay.batch b using (lease_id, claim_no)"
                " join forebay.queue_group g using (group_id)"
                " cross join unnest(s.offsets) u (place)"
                " join forebay.log l on l.seq = b.seqs[u.place]"
                " where s.lease_id = %s and s.xmin = pg_current_xact_id()::xid group by 1",
                [lease_id],
            ).fetchall()
        for group, entries in again:
            self.ledger.record_rerun(group, entries)

    def _hold_snapshots(self, rng: random.Random) -> None:
        """Read a table in a snapshot that is then kept for a while, as a report or a dump does."""
        with psycopg.connect(self.dsn) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            while self._writing.is_set():
                # A snapshot with locks on all segments keeps them from being emptied.
                table = rng.choice(["log", "batch", "lane"])
                conn.execute(f"select count(*) from forebay.{table}")
                time.sleep(rng.random())
                conn.commit()
                time.sleep(rng.random() * 0.3)

    def _administer(self, rng: random.Random) -> None:
        with connect(self.dsn) as conn:
            while self._writing.is_set():
                with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                    conn.execute(rng.choice(_ADMINISTRATION))
                time.sleep(rng.random() * 0.3)

    def _count(self, rng: random.Random) -> None:
        """Compare forebay.depth() with a count of its own, in one snapshot, all the time."""
        with psycopg.connect(self.dsn) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            while self._running.is_set() and not self.errors:
                told = depth(conn, QUEUE)
                counted = count_independently(conn, QUEUE)
                conn.rollback()
                assert told == counted, f"depth {told}, counted {counted}"
                self.depth_checks += 1
                time.sleep(0.4)


def count_independently(conn: psycopg.Connection[Any], queue: str) -> dict[str, tuple[int, ...]]:
    """Count ready, held and deferred jobs of each group from rows alone, without any cursor.

    Ready are the rows that no batch has handed out or skipped, and whose job is not cancelled; held
    those handed out and not settled; deferred the rows that no row of the log carries on.
    """
    rows = conn.execute(
        """
        with lanes as (select distinct lane, audience from forebay.lane where queue = %(queue)s),
        readers as (
            select l.lane, g.group_id, g.name from lanes l
            join forebay.queue_group g on g.queue = %(queue)s
                                      and (l.audience = 0 or abs(l.audience) = g.group_id)),
        handed as (
            select b.group_id, b.lane, b.lease_id, b.claim_no, u.seq, u.nr
            from forebay.batch b, unnest(b.seqs) with ordinality u (seq, nr)),
        taken as (
            select group_id, lane, seq from handed
            union all select group_id, lane, unnest(skipped) from forebay.batch),
        settled as (
            select h.group_id, h.lane, h.seq from handed h
            where exists (select from forebay.settlement s
                          where s.lease_id = h.lease_id and s.claim_no = h.claim_no
                            and (s.offsets is null or h.nr = any (s.offsets))))
        select r.name,
               (sum((select count(*) from forebay.log x where x.lane = r.lane)
                    - (select count(*) from taken t
                       join forebay.log x on x.seq = t.seq
                       where t.group_id = r.group_id and t.lane = r.lane)
                    - (select count(*) from forebay.log x
                       where x.lane = r.lane
                         and exists (select from forebay.tombstone m
                                     where m.job_id = coalesce(x.job_id, x.seq) and m.reason = 'c'
                                       and (m.group_id is null or m.group_id = r.group_id))
                         and not exists (select from taken t
                                         where t.group_id = r.group_id and t.lane = r.lane
                                           and t.seq = x.seq))))::int,
               (sum((select count(*) from handed h where h.group_id = r.group_id
                   and h.lane = r.lane)
                    - (select count(*) from settled s
                       where s.group_id = r.group_id and s.lane = r.lane)))::int,
               (sum((select count(*) from forebay.deferred d where d.lane = r.lane
                     and not exists (
                         select from forebay.promotion p
                         where pg_visible_in_snapshot(d.xid, p.snap)
                           and (d.run_at, d.deferred_id) <= (p.run_at, p.deferred_id)))))::int
        from readers r group by r.name
        """,
        {"queue": queue},
    ).fetchall()
    return {name: tuple(numbers) for name, *numbers in rows}


def handed_in_order(conn: psycopg.Connection[Any], queue: str, group: str) -> list[int]:
    """Return the entries that a group was handed from the queue's public lane, in that order."""
    (group_id,) = conn.execute(
        "select group_id from forebay.queue_group where queue = %s and name = %s", [queue, group]
    ).fetchone()
    rows = conn.execute(
        "select (l.args ->> 'entry')::bigint from forebay.batch b"
        " cross join lateral unnest(b.seqs) with ordinality u (seq, nr)"
        " join forebay.log l on l.seq = u.seq"
        " where b.group_id = %s and b.lane = forebay._lane_id(%s, 100, 0) and l.job_id is null"
        " order by b.no, u.nr",
        [group_id, queue],
    ).fetchall()
    return [entry for (entry,) in rows]


def as_json(run: StressRun) -> str:
    """Return the figures of a run on one line."""
    ledger = run.ledger
    return json.dumps(
        {
            "committed": len(ledger.committed),
            "rolled_back": len(ledger.rolled_back),
            "handed": {g: sum(ledger.handed[g].values()) for g in ledger.groups},
            "depth_checks": run.depth_checks,
            "maintenance": run.maintenance_done,
            "seed": run.seed,
        }
    )

"""Unique keys under stress: many producers of few keys, random commits and rollbacks, workers
beside.

Producers hold their transactions open for random times; each call also writes a row, its effect, in
the same transaction. Workers note which effects of a key they see once they have claimed a job of
it. A sampler looks at all jobs in one snapshot, over and over, and holds the truth table against
them.
"""

import itertools
import json
import random
import threading
import time
from collections import defaultdict
from typing import Any

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue_many, one
from tests.support.mutant import violation

PRODUCERS = 16
KEYS = 20
#: Looks at all jobs without which a run has shown nothing, and how many seconds longer than planned
#: they may take.
SAMPLES_MIN = 3
DEADLINE = 30
PERIOD = 0.5
MODES: dict[str, dict[str, Any]] = {
    "once": {},
    "idempotent": {},
    "coalesce": {},
    "replace": {},
    "debounce": {"wait": 0.05, "max_wait": 0.2},
    "throttle": {"period": PERIOD},
}

#: One row for each job of some keys that is not known to have ended.
SAMPLE = """
    select j.job_id, i.key, j.state, j.cancel_requested, j.enqueued_at
    from (select coalesce(l.job_id, l.seq) as id, l.args ->> 'key' as key from forebay.log l
          union select d.job_id, d.args ->> 'key' from forebay.deferred d) i,
         lateral forebay.job(i.id) j
    where i.key = any (%s) and i.id <> all (%s::bigint[])"""


class UniqueStress:
    def __init__(self, dsn: str, mode: str, seed: int, seconds: float) -> None:
        self.dsn, self.mode, self.seed, self.seconds = dsn, mode, seed, seconds
        self.lock = threading.Lock()
        self.writing = threading.Event()
        self.running = threading.Event()
        self.errors: list[BaseException] = []
        self.committed: dict[str, set[int]] = defaultdict(set)
        self.seen: dict[str, set[int]] = defaultdict(set)
        self.made = self.found = self.samples = self.runs = 0
        self.most_live = 0

    def run(self) -> None:
        with connect(self.dsn) as conn:
            conn.execute("create table effect (key text, n bigint)")
            conn.execute("create index on effect (key)")
        self.writing.set()
        self.running.set()
        duties = [
            *[self.produce] * PRODUCERS,
            *[self.work] * 3,
            self.keep_up,
            self.sample,
        ]
        threads = [
            threading.Thread(target=self.guarded, args=(duty, f"{self.seed}/{n}"), daemon=True)
            for n, duty in enumerate(duties)
        ]
        for thread in threads:
            thread.start()
        ends_at = time.monotonic() + self.seconds
        # On a slow machine longer: a run without samples shows nothing.
        while not self.errors and (
            time.monotonic() < ends_at
            or (self.samples <= SAMPLES_MIN and time.monotonic() < ends_at + DEADLINE)
        ):
            time.sleep(0.05)
        self.writing.clear()
        for thread in threads[:PRODUCERS]:
            thread.join(60)
        self.come_to_rest()
        self.running.clear()
        for thread in threads:
            thread.join(60)
        if self.errors:
            raise self.errors[0]

    def guarded(self, duty, seed: str) -> None:
        try:
            duty(random.Random(seed))
        except BaseException as error:
            self.errors.append(error)
            self.writing.clear()

    def produce(self, rng: random.Random) -> None:
        with psycopg.connect(self.dsn) as conn:
            while self.writing.is_set():
                keys = rng.sample([f"k{n}" for n in range(KEYS)], rng.choice((1, 1, 1, 12)))
                n = rng.getrandbits(60)
                for key in keys:
                    conn.execute("insert into effect values (%s, %s)", [key, n])
                if len(keys) == 1:
                    kept, is_new = self.call(conn, rng, keys[0])
                else:
                    kept, is_new = self.call_for_many(conn, rng, keys)
                if rng.random() < 0.3:
                    time.sleep(0.03 * rng.random())
                if rng.random() < 0.2:
                    conn.rollback()
                    continue
                conn.commit()
                with self.lock:
                    if kept:
                        for key in keys:
                            self.committed[key].add(n)
                        self.made += is_new
                        self.found += not is_new
                time.sleep(0.01 * rng.random())

    def call(self, conn, rng: random.Random, key: str) -> tuple[bool, bool]:
        """Enqueue, perhaps in a savepoint that is given up.

        Return whether it stayed, and was new.
        """
        unique_as = {self.mode: key} | MODES[self.mode]
        query = "select is_new from forebay.enqueue_unique('work', %s::jsonb, %s::jsonb)"
        params = [json.dumps({"key": key}), json.dumps(unique_as)]
        if rng.random() < 0.2:
            conn.execute("savepoint s")
            one(conn, query, *params)
            conn.execute("rollback to savepoint s")
            if rng.random() < 0.5:
                return False, False
        if rng.random() < 0.2:
            params[1] = json.dumps(unique_as | {"on_busy": "raise"})
            conn.execute("savepoint s")
            try:
                return True, one(conn, query, *params)
            except psycopg.Error as error:
                if error.sqlstate != "JQ004":
                    raise
                conn.execute("rollback to savepoint s")
                return False, False
        return True, one(conn, query, *params)

    def call_for_many(self, conn, rng: random.Random, keys: list[str]) -> tuple[bool, bool]:
        """Enqueue a job for each key in one call; return whether it stayed, and any was new."""
        jobs = [
            {
                "kind": "work",
                "args": {"key": key},
                "unique_as": {self.mode: key} | MODES[self.mode],
            }
            for key in keys
        ]
        if rng.random() < 0.2:
            conn.execute("savepoint s")
            enqueue_many(conn, jobs)
            conn.execute("rollback to savepoint s")
        newest = one(conn, "select last_value from forebay.log_seq")
        return True, max(enqueue_many(conn, jobs)) > newest

    def work(self, rng: random.Random) -> None:
        with Reader(self.dsn) as reader, connect(self.dsn) as looker:
            while self.running.is_set():
                batch = reader.claim_ready(rng.choice((1, 3, 20)))
                if not batch.jobs:
                    time.sleep(0.002)
                    continue
                for job in batch.jobs:
                    key = job["args"]["key"]
                    rows = looker.execute("select n from effect where key = %s", [key]).fetchall()
                    with self.lock:
                        self.runs += 1
                        self.seen[key].update(n for (n,) in rows)
                time.sleep(0.05 * rng.random())
                outcomes = rng.choices(
                    ("done", "retried", "snoozed", "dead"), (80, 8, 8, 4), k=len(batch.jobs)
                )
                ends = [
                    {"offset": job["batch_offset"], "outcome": outcome, "after": 0.03}
                    for job, outcome in zip(batch.jobs, outcomes, strict=True)
                ]
                assert reader.settle(batch.claim_no, ended=ends) == "settled"
                reader.open_claims.discard(batch.claim_no)

    def keep_up(self, rng: random.Random) -> None:
        with connect(self.dsn) as conn:
            while self.running.is_set():
                one(conn, "select forebay.promote_v1()")
                time.sleep(0.01)

    def sample(self, rng: random.Random) -> None:
        ended: set[int] = set()
        enqueued: dict[str, dict[int, Any]] = defaultdict(dict)
        with psycopg.connect(self.dsn) as conn:
            while self.running.is_set():
                conn.execute("set transaction isolation level repeatable read, read only")
                keys = [f"k{n}" for n in rng.sample(range(KEYS), 4)]
                rows = conn.execute(SAMPLE, [keys, list(ended)]).fetchall()
                conn.rollback()
                live = defaultdict(list)
                for job_id, key, state, replaced, enqueued_at in rows:
                    enqueued[key][job_id] = enqueued_at
                    if state in ("done", "dead", "cancelled", "expired"):
                        ended.add(job_id)
                    elif state == "claimed" or not replaced:
                        live[key].append((state, job_id))
                for key, jobs in live.items():
                    self.hold_against(key, jobs, enqueued[key])
                    self.most_live = max(self.most_live, len(jobs))
                self.samples += 1

    def hold_against(self, key: str, jobs: list[tuple[str, int]], enqueued: dict[int, Any]) -> None:
        waiting = [job for job in jobs if job[0] != "claimed"]
        if self.mode in ("once", "idempotent"):
            assert len(jobs) <= 1, (key, jobs)
        elif self.mode == "throttle":
            times = sorted(enqueued.values())
            gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(times)]
            assert not gaps or min(gaps) >= PERIOD, (key, gaps)
        else:
            assert len(waiting) <= 1, (key, jobs)

    def come_to_rest(self) -> None:
        deadline = time.monotonic() + 60
        with connect(self.dsn) as conn:
            query = (
                "select coalesce(sum(scheduled + ready + claimed + running + retrying), 0) "
                "from forebay.depth()"
            )
            while one(conn, query) and not self.errors:
                assert time.monotonic() < deadline, "jobs are left"
                time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        mode
        if mode in ("idempotent", "debounce")
        else pytest.param(mode, marks=pytest.mark.nightly)
        for mode in MODES
    ],
)
def test_the_truth_table_holds_at_every_sampled_instant(
    database, mode, seed, stress_seconds, is_long
):
    """
    16 producers of 20 keys, one or many in a call, with random commits, rollbacks and savepoints,
    beside workers: never more jobs of a key wait or run than the table says, and where a call
    stands for work to be done after it, that work sees what the call's transaction wrote.
    """
    seconds = 60 if is_long else min(stress_seconds, 1.5)
    run = UniqueStress(database, mode, seed, seconds)
    run.run()
    assert run.samples > SAMPLES_MIN
    assert run.made > KEYS / 2
    assert run.runs >= KEYS
    if mode in ("coalesce", "replace", "debounce"):
        missed = {key: run.committed[key] - run.seen[key] for key in run.committed}
        assert {key: n for key, n in missed.items() if n} == {}
    print(mode, f"{run.made=} {run.found=} {run.runs=} {run.samples=} {run.most_live=}")


@pytest.mark.slow
def test_the_stress_run_sees_a_second_holder(database, seed):
    """
    Without the primary key of the generations two producers make one each, and the sampler says so.
    """
    with connect(database) as conn:
        conn.execute("alter table forebay.unique_key drop constraint unique_key_pkey")
    with violation():
        UniqueStress(database, "once", seed, 10).run()

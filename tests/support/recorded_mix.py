"""A mix of jobs whose claims, outcomes and rows are recorded, to compare two checkouts.

One client plays producers, workers and operators through the SQL protocol, by a seed and by a clock
of its own. So two runs give the same record, byte by byte, if the schemas behave the same.
``CHECKOUT`` may be this checkout or another one::

    PYTHONPATH=CHECKOUT CHECKOUT/.venv/bin/python tests/support/recorded_mix.py > record

Each line is one answer: which lanes were ready, which jobs a claim returned, what a settlement
said. The last lines are the rows of the tables, without transaction ids. Jobs are plain, with
ordering keys, limit keys, or both, delayed, and of a queue with limits on starts; they are settled
as done, retried, snoozed, released, lost, or dead, and cancelled, paused, moved and redriven
meanwhile.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from forebay.embedded import temporary_server
from forebay.upgrade.migrate import migrate
from tests.support.engine import Batch, Reader, connect, one, small_segments

START = datetime(2030, 1, 1, tzinfo=UTC)
GROUPS = [
    ("plain", "default"),
    ("plain", "audit"),
    ("keys", "default"),
    ("keys", "audit"),
    ("limits", "default"),
    ("both", "default"),
    ("gate", "default"),
]
TABLES = [
    *("batch", "settlement", "key_run", "limit_run", "parked", "limit_parked", "limiter", "log"),
    *("deferred", "tombstone", "dead_letter", "queue_group", "lease", "event"),
]
SETTINGS = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "jit": "off"}
ERROR = {"type": "Refused", "message": "no", "max_attempts": 4}


class Worker:
    """A lease of one group, and the offsets of its batches that are not settled yet."""

    def __init__(self, dsn: str, conn: psycopg.Connection[Any], queue: str, group: str) -> None:
        self.reader = Reader(dsn, queue, group, conn=conn)
        self.held: dict[int, tuple[Batch, list[int]]] = {}
        self.flushes = 0


class Mix:
    """The client; ``lines`` yields the record of its run.

    Args:
        dsn: an empty, migrated database without other sessions.
        seed: of the random choices.
        jobs: how many jobs are enqueued.
    """

    def __init__(self, dsn: str, seed: int, jobs: int) -> None:
        self.random = random.Random(seed)
        self.left = jobs
        self.at = START
        self.ids: list[int] = []
        self.outcomes: Counter[str] = Counter()
        with connect(dsn) as owner:
            owner.execute(
                "create or replace function forebay._now() returns timestamptz language "
                "sql volatile"
                " as $$ select current_setting('mix.now')::timestamptz $$"
            )
            owner.execute("select setval('forebay.lane_secret', 42)")
            owner.execute("create sequence mix_names")
            owner.execute(
                "create or replace function forebay._random_name() returns bigint language "
                "sql volatile"
                " as $$ select 1000003 * nextval('public.mix_names') $$"
            )
            self.set_clock(owner)
            small_segments(owner, 400, 8000)
        self.conn, self.late = connect(dsn), psycopg.connect(dsn)
        for session in (self.conn, self.late):
            self.set_clock(session)
            session.execute("select setseed(0.5)")
        conn = self.conn
        one(
            conn,
            (
                "select forebay.limit_queue('limits', key_concurrency => 3, key_rate => 20, "
                "key_burst => 10)"
            ),
        )
        one(conn, "select forebay.limit_queue('both', key_concurrency => 2)")
        one(
            conn,
            (
                "select forebay.limit_queue('gate', concurrency => 12, rate => 100, burst => "
                "30, key_concurrency => 4)"
            ),
        )
        self.workers = [Worker(dsn, conn, *names) for names in GROUPS for _ in range(2)]

    def set_clock(self, conn: psycopg.Connection[Any]) -> None:
        """Tell a session the time."""
        conn.execute("select set_config('mix.now', %s, false)", [self.at.isoformat()])

    def lines(self) -> Iterator[str]:
        """Run until nothing is left to do."""
        quiet, rounds = 0, 0
        while quiet < 12:
            rounds += 1
            assert rounds < 5000, "the mix does not end"
            is_over = self.left == 0
            step = self.random.choice([20, 90, 400, 2000]) if not is_over else 20_000
            self.at += timedelta(milliseconds=step)
            for conn in (self.conn, self.late):
                self.set_clock(conn)
            yield from self.produce()
            if not is_over:
                yield from self.operate()
            yield from self.maintain()
            before = self.outcomes.total()
            for worker in self.random.sample(self.workers, len(self.workers)):
                yield from self.claim(worker)
                yield from self.settle(worker, is_over=is_over)
            has_work = self.outcomes.total() > before or any(w.held for w in self.workers)
            quiet = quiet + 1 if is_over and not has_work else 0
        yield f"outcomes {json.dumps(self.outcomes, sort_keys=True)}"
        yield from self.rows()
        self.late.close()
        self.conn.close()

    def job(self) -> dict[str, Any]:
        """Draw one job."""
        draw, queue = self.random, self.random.choice(GROUPS)[0]
        job: dict[str, Any] = {"kind": draw.choice(["work", "send"]), "queue": queue}
        job["args"] = {"n": self.left, "text": "x" * draw.choice([0, 10, 200])}
        if queue in ("keys", "both"):
            job["ordering_key"] = f"k{int(draw.expovariate(0.15))}"
        if queue in ("limits", "both") or (queue == "gate" and draw.random() < 0.3):
            job["limit_key"] = f"l{int(draw.expovariate(0.3))}"
        if draw.random() < 0.1:
            job["priority"] = draw.choice([0, 200])
        if draw.random() < 0.1:
            job["delay"] = draw.randint(1, 9000) / 1000
        if draw.random() < 0.05:
            job["expires_at"] = (self.at + timedelta(seconds=draw.choice([12, 20, 60]))).isoformat()
        if draw.random() < 0.05:
            job |= {
                "tag": "t",
                "correlation_id": f"c{self.left}",
                "headers": {"h": "1"},
                "max_attempts": 3,
            }
        return job

    def produce(self) -> Iterator[str]:
        """Enqueue some jobs; a part of them by a transaction that commits in a later round."""
        if self.random.random() < 0.5:
            self.late.commit()
        for conn in (self.conn, self.late):
            count = min(
                self.left, self.random.choice([0, 3, 20, 60]) // (1 if conn is self.conn else 3)
            )
            jobs = []
            for _ in range(count):
                jobs.append(self.job())
                self.left -= 1
            if jobs:
                ids = one(conn, "select forebay.enqueue_many(%s::jsonb)", json.dumps(jobs))
                self.ids += ids
                yield f"enqueued {ids}"
        if self.left == 0:
            self.late.commit()

    def operate(self) -> Iterator[str]:
        """Do what operators do, now and then."""
        draw = self.random
        key, limit = f"k{int(draw.expovariate(0.15))}", f"l{int(draw.expovariate(0.3))}"
        job = draw.choice(self.ids) if self.ids else 0
        acts: list[tuple[str, list[Any]]] = [
            ("select forebay.cancel(%s)", [job]),
            ("select forebay.cancel(%s, 'default')", [job]),
            (
                "select forebay.pause_key(%s, ordering_key => %s, resume_after => '3 s')",
                ["keys", key],
            ),
            (
                "select forebay.pause_key(%s, ordering_key => %s, resume_after => '5 s')",
                ["both", key],
            ),
            ("select forebay.resume_key(%s, ordering_key => %s)", ["keys", key]),
            (
                "select forebay.pause_key(%s, limit_key => %s, resume_after => '4 s')",
                ["limits", limit],
            ),
            (
                "select forebay.pause_key(%s, limit_key => %s, resume_after => '2 s')",
                ["both", limit],
            ),
            ("select forebay.limit_key('limits', %s, concurrency => 2)", [limit]),
            ("select forebay.pause_queue(%s)", [draw.choice(GROUPS)[0]]),
            (
                (
                    "select forebay.resume_queue(q) from unnest(array['plain', 'keys', "
                    "'limits', 'both', 'gate']) q"
                ),
                [],
            ),
            ("select * from forebay.redrive_matching(%s, most => 3)", [draw.choice(GROUPS)[0]]),
        ]
        for statement, values in draw.sample(acts, 2) if draw.random() < 0.4 else []:
            yield f"{statement} {values} {self.answer(statement, values)}"
        if draw.random() < 0.05:
            chosen = json.dumps({"queue": draw.choice(["plain", "keys", "limits"]), "kind": "send"})
            act, options = draw.choice([("cancel", "{}"), ("reprioritise", '{"priority": 50}')])
            found = self.answer(
                "select * from forebay.plan_change(%s, %s, %s)", [act, chosen, options]
            )
            yield f"plan {act} {chosen} {found}"
            if isinstance(found, list) and found:
                token = found[0][0]
                statement = (
                    "select job_id, answer, jobs from forebay.change_jobs(%s, %s, %s, %s, 20)"
                )
                yield f"change {self.answer(statement, [act, chosen, options, token])}"

    def maintain(self) -> Iterator[str]:
        """Promote due jobs; at times seal, sweep and trim as well."""
        yield f"promoted {one(self.conn, 'select forebay.promote_v1()')}"
        if self.random.random() < 0.2:
            for duty in ("extend_v1()", "seal_v1()", "(forebay.sweep_v1()).expired"):
                call = duty if duty[0] == "(" else f"forebay.{duty}"
                yield f"{duty} {self.answer(f'select {call}', [])}"
        if self.random.random() < 0.05:
            parts = one(self.conn, "select forebay._trim_parts()")
            for part in parts:
                yield f"trim {part} {self.answer('select rows from forebay.trim_v1(%s)', [part])}"

    def claim(self, worker: Worker) -> Iterator[str]:
        """Claim from the ready lanes, in the order of the policy."""
        reader = worker.reader
        name = f"{reader.queue}/{reader.group}/{reader.lease_id}"
        ready = reader.ready()
        ready.sort(key=lambda r: (r["priority"], not r["is_private"], r["is_suspect"], r["lane"]))
        yield f"ready {name} {[list(r.values()) for r in ready]}"
        for lane in ready:
            try:
                batch = reader.claim(self.random.choice([1, 3, 10, 50]), lane["lane"])
            except psycopg.Error as error:
                yield f"claim {name} {error.sqlstate}"
                break
            yield (
                f"claim {name} {batch.claim_no} "
                f"{json.dumps(batch.jobs, default=str, sort_keys=True)}"
            )
            if batch.jobs:
                worker.held[batch.claim_no] = (batch, list(range(1, len(batch.jobs) + 1)))

    def settle(self, worker: Worker, *, is_over: bool) -> Iterator[str]:
        """Settle a part of what a worker has, or lose its lease."""
        draw, reader = self.random, worker.reader
        if not is_over and draw.random() < 0.01:
            statement = "select forebay._revoke(%s, 'revoked', %s)"
            yield f"revoked {self.answer(statement, [reader.lease_id, draw.random() < 0.5])}"
            worker.held.clear()
            reader.open_lease()
            return
        for number in list(worker.held):
            batch, offsets = worker.held[number]
            count = (
                len(offsets) if draw.random() < 0.5 or is_over else draw.randint(0, len(offsets))
            )
            now, later = offsets[:count], offsets[count:]
            ended = [self.end(offset) for offset in now if draw.random() < 0.15]
            named = {end["offset"] for end in ended}
            done = [offset for offset in now if offset not in named]
            if not now:
                continue
            worker.flushes += 1
            status = reader.settle(number, done, flush_no=worker.flushes, ended=ended)
            self.outcomes["done"] += len(done)
            self.outcomes.update(end["outcome"] for end in ended)
            yield f"settled {reader.lease_id} {number} {done} {json.dumps(ended)} {status}"
            worker.held[number] = (batch, later)
            if not later:
                del worker.held[number]
                reader.open_claims.discard(number)

    def end(self, offset: int) -> dict[str, Any]:
        """Draw an outcome that is not done."""
        draw = self.random
        outcome = draw.choice(["retried"] * 4 + ["snoozed", "released", "lost", "dead"])
        end: dict[str, Any] = {"offset": offset, "outcome": outcome}
        if outcome in ("retried", "lost", "dead"):
            end["error"] = ERROR
        if outcome == "dead":
            end |= {"reason": "permanent", "holds_key": draw.random() < 0.3}
        else:
            end["after"] = draw.choice([0, 0.5, 8])
        return end

    def answer(self, statement: str, values: list[Any]) -> Any:
        """Return the rows of a statement, or the code of its error."""
        try:
            return self.conn.execute(statement, values or None).fetchall()
        except psycopg.Error as error:
            return error.sqlstate

    def rows(self) -> Iterator[str]:
        """Yield the rows of the tables, without transaction ids and snapshots."""
        for table in TABLES:
            columns = self.conn.execute(
                "select attname from pg_attribute where attrelid = to_regclass(%s) and "
                "attnum > 0 and not attisdropped"
                " and format_type(atttypid, null) !~ '^(xid8|pg_snapshot)'"
                " and attname !~ '(random|secret|details|backend)' order by attname",
                [f"forebay.{table}"],
            ).fetchall()
            if columns:
                names = ", ".join(f'"{name}"' for (name,) in columns)
                query = (
                    f"select to_jsonb(t)::text from (select {names} from forebay.{table}) t "
                    f"order by 1"
                )
                for (row,) in self.conn.execute(query):
                    yield f"table {table} {row}"


def record(seed: int, jobs: int) -> Iterator[str]:
    """Yield the record of a run on a server of its own."""
    with temporary_server(extra_settings=SETTINGS) as server:
        migrate(server.dsn())
        yield from Mix(server.dsn(), seed, jobs).lines()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record a mix of jobs, to compare two checkouts.")
    parser.add_argument("--seed", type=int, default=45)
    parser.add_argument("--jobs", type=int, default=10_000)
    options = parser.parse_args()
    for line in record(options.seed, options.jobs):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()

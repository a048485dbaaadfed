"""Random acts on jobs, and the numbers of jobs by state that must agree after each of them."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg

from tests.support.engine import (
    Reader,
    enqueue,
    enqueue_many,
    one,
    shift_clock,
    sqlstate,
    trim,
)

#: The states of jobs that have not ended.
STATES = ("scheduled", "ready", "claimed", "running", "retrying")

Connection = psycopg.Connection[Any]


def by_state(conn: Connection, query: str) -> Counter:
    """Return the numbers of a query whose last columns are those of STATES, by its other columns
    and the state.
    """
    found = Counter()
    for row in conn.execute(query):
        place, numbers = row[: -len(STATES)], row[-len(STATES) :]
        found.update({(*place, name): n for name, n in zip(STATES, numbers, strict=True) if n})
    return found


def by_job(conn: Connection, jobs: Iterable[int], place: Sequence[str]) -> Counter:
    """Return the same by asking for the state of each job.

    ``place`` are the columns before the state.
    """
    columns = ", ".join(f"j.{name}" for name in (*place, "state"))
    query = (
        f"select {columns}, count(*) from unnest(%s::bigint[]) i cross join lateral "
        f"forebay.job(i) j"
        f" where j.state = any (%s) group by {columns}"
    )
    return Counter({tuple(key): n for *key, n in conn.execute(query, [list(jobs), list(STATES)])})


class Life:
    """Random acts on jobs of two queues, one of them with two groups."""

    def __init__(self, database, conn, seed: int, *, keyed: bool) -> None:
        self.conn = conn
        self.draw = random.Random(seed)
        self.keyed = keyed
        self.jobs: set[int] = set()
        self.pending: set[int] = set()
        self.clock = 0
        self.readers = [
            Reader(database),
            Reader(database, group="second"),
            Reader(database, queue="other"),
        ]
        self.held = [[] for _ in self.readers]
        self.other = psycopg.connect(database)

    def acts(self):
        names = [name for name in dir(self) if name.startswith("do_")]
        return [getattr(self, name) for name in names if self.keyed or "keyed" not in name]

    def options(self, **more):
        return {
            "queue": self.draw.choice(["default", "default", "other"]),
            "priority": self.draw.choice([100, 100, 5]),
            **more,
        }

    def place(self):
        if self.keyed and self.draw.random() < 0.6:
            return {"ordering_key": self.draw.choice("abc")}
        return {"limit_key": self.draw.choice("xy")} if self.draw.random() < 0.3 else {}

    def do_enqueue(self):
        for _ in range(self.draw.randint(1, 4)):
            self.jobs.add(enqueue(self.conn, **self.options(**self.place())))

    def do_enqueue_many(self):
        jobs = [
            {
                "kind": "work",
                **self.options(**self.place()),
                **self.draw.choice([{}, {"delay": 20}]),
            }
            for _ in range(12)
        ]
        self.jobs.update(enqueue_many(self.conn, jobs))

    def do_schedule(self):
        self.jobs.add(
            enqueue(
                self.conn, delay=f"{self.draw.randint(1, 40)} s", **self.options(**self.place())
            )
        )

    def do_expiring(self):
        with self.conn.transaction():
            now = one(self.conn, "select forebay._now() + interval '25 s'")
            self.jobs.add(enqueue(self.conn, expires_at=now, **self.options()))

    def do_unique(self):
        mode = self.draw.choice(["debounce", "replace", "once", "coalesce"])
        more = {"wait": 15} if mode == "debounce" else {}
        delay = {"delay": "15 s"} if mode != "debounce" and self.draw.random() < 0.7 else {}
        unique = json.dumps(
            {mode: self.draw.choice("kl"), **({"wait": 15, "max_wait": 60} if more else {})}
        )
        options = {"queue": "default", **delay}
        self.jobs.add(enqueue(self.conn, unique_as=unique, **options))

    def do_unique_many(self):
        unique = [{"unique_as": {"replace": key}, "delay": 15} for key in "klm"]
        self.jobs.update(
            enqueue_many(self.conn, [{"kind": "work", "queue": "other", **item} for item in unique])
        )

    def agree_inside(self, jobs: set[int]) -> None:
        """Compare in the open transaction, which sees its own jobs."""
        place = ("queue", "priority", "group_name")
        depth = by_state(self.other, f"select {', '.join((*place, *STATES))} from forebay.depth()")
        assert depth == by_job(self.other, jobs, place)

    def do_late_commit(self):
        """Use a transaction that stays open over other acts.

        It sees its own jobs, and may append a count.
        """
        act = self.draw.random()
        if act < 0.6:
            self.pending.add(enqueue(self.other, **self.options(**self.place())))
            self.pending.add(enqueue(self.other, delay="5 s", **self.options()))
            if self.draw.random() < 0.5:
                group_id = self.draw.choice(self.readers[:2]).group_id
                one(self.other, "select forebay._waiting('default', %s, -1, 0)", group_id)
            self.agree_inside(self.jobs | self.pending)
            return
        if act < 0.85:
            self.other.commit()
            self.jobs |= self.pending
        else:
            self.other.rollback()
        self.pending = set()

    def do_cancel(self):
        if self.jobs:
            job = self.draw.choice(sorted(self.jobs))
            group = self.draw.choice([None, None, "default"])
            sqlstate(self.conn, "select forebay.cancel(%s, %s)", job, group)

    def do_cancel_many(self):
        where = {
            "state": self.draw.choice(["scheduled", "retrying", "ready"]),
            "queue": self.draw.choice(["default", "other"]),
        }
        self.change("cancel", where, most=self.draw.randint(1, 3))

    def do_move(self):
        act = self.draw.choice(["reprioritise", "reschedule", "retry"])
        options = {
            "reprioritise": {"priority": self.draw.choice([5, 100])},
            "retry": {},
            "reschedule": {
                "run_at": str(one(self.conn, "select forebay._now() + interval '30 s'"))
            },
        }[act]
        where = {"queue": self.draw.choice(["default", "other"])}
        if act == "retry":
            where["state"] = "scheduled"
        self.change(act, where, options, most=self.draw.randint(1, 4))

    def change(self, act, where, options=None, most=3):
        self.conn.execute(
            "select forebay.change_jobs(%s, %s, %s, most => %s)",
            [act, json.dumps(where), json.dumps(options or {}), most],
        )

    def do_claim(self):
        number = self.draw.randrange(len(self.readers))
        reader = self.readers[number]
        for lane in reader.ready():
            batch = reader.claim(self.draw.randint(1, 6), lane["lane"])
            if batch.jobs:
                self.held[number].append(batch)
                self.jobs.update(batch.job_ids)

    def do_settle(self):
        for reader, held in zip(self.readers, self.held, strict=True):
            if not held:
                continue
            batch = held.pop(self.draw.randrange(len(held)))
            done, ended = [], []
            for job in batch.jobs:
                outcome = self.draw.choice(
                    [
                        "done",
                        "retried",
                        "snoozed",
                        "released",
                        "unknown",
                        "lost",
                        "cancelled",
                        "dead",
                    ]
                )
                if outcome == "done":
                    done.append(job["batch_offset"])
                else:
                    after = (
                        self.draw.choice([0, 10, 30])
                        if outcome in ("retried", "snoozed", "unknown", "lost")
                        else None
                    )
                    reason = {"reason": "permanent"} if outcome == "dead" else {}
                    ended.append(
                        {
                            "offset": job["batch_offset"],
                            "outcome": outcome,
                            "after": after,
                            **reason,
                        }
                    )
            reader.settle(batch.claim_no, done, ended=ended)
            reader.open_claims.discard(batch.claim_no)

    def do_heartbeat(self):
        for reader, held in zip(self.readers, self.held, strict=True):
            jobs = [job for batch in held for job in batch.job_ids][:3]
            self.conn.execute(
                "select * from forebay.heartbeat_v1(%s::bigint[], %s::bigint[])",
                [[reader.lease_id], jobs],
            )

    def do_revoke(self):
        if self.draw.random() < 0.3:
            number = self.draw.randrange(len(self.readers))
            self.readers[number].revoked_by(self.conn, suspects=self.draw.random() < 0.5)
            self.readers[number].open_lease()
            self.held[number] = []

    def do_redrive(self):
        dead = self.conn.execute(
            "select dead_id from forebay.dead_letter where redriven_at is null limit 1"
        ).fetchone()
        if dead:
            self.jobs.add(one(self.conn, "select forebay.redrive(%s)", dead[0]))

    def do_wait(self):
        self.clock += self.draw.choice([3, 9])
        shift_clock(self.conn, self.clock)

    def do_promote(self):
        one(self.conn, "select forebay.promote_v1(%s)", self.draw.choice([2, 5000]))

    def do_sweep(self):
        one(self.conn, "select expired from forebay.sweep_v1()")

    def do_renew(self):
        one(self.conn, "select forebay.renew_counters_v1(%s)", self.draw.choice([0, 1, 20]))

    def do_maintain(self):
        one(self.conn, "select forebay.seal_v1()")
        one(self.conn, "select forebay.extend_v1()")
        for part in ("deferred", "late_deferred", "waiting"):
            trim(self.conn, part)

    def close(self):
        self.other.close()
        for reader in self.readers:
            reader.conn.close()

    def go(self, acts: int, agree: Callable[[Connection, set[int]], None]) -> None:
        """Do so many random acts, and compare after each one."""
        possible = self.acts()
        done: list[str] = []
        try:
            for _ in range(acts):
                act = self.draw.choice(possible)
                done.append(act.__name__)
                act()
                agree(self.conn, self.jobs)
        except AssertionError as error:
            raise AssertionError(f"after {done[-8:]}") from error
        finally:
            self.close()

"""A queue on advisory locks, as Que took jobs before its version 1: a walk that locks row after
row.

One recursive statement goes through the ready jobs in order (priority, run time, id), tries a
session's advisory lock on each, finds the next by comparing sort keys, and stops at the first
success. A job that is done is deleted. Advisory locks know nothing of snapshots, so a locked job is
looked up once more: another may just have finished it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench.engines.queue import STEADY_PLANS, Taken, counted, dead_rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA: Final = """
create table if not exists que_job (
    id       bigint generated always as identity primary key,
    queue    text not null,
    priority smallint not null default 100,
    run_at   timestamptz not null default clock_timestamp(),
    kind     text not null,
    args     jsonb not null,
    failures integer not null default 0
);
create index if not exists que_ready on que_job (queue, priority, run_at, id);
"""

_ENQUEUE_MANY: Final = """
insert into que_job (queue, kind, args, run_at)
select 'bench', 'noop', jsonb_build_object('i', i), clock_timestamp() + %s * interval '1 second'
from generate_series(1, %s) i
"""

_WRITE_ONE: Final = "insert into que_job (queue, kind, args) values ('bench', 'noop', '{}')"

#: Takes up to ``limit`` jobs; each row of the walk is a job that it passed.
WALK: Final = """
with recursive walk as (
    select f.priority, f.run_at, f.id, l.got, l.got::integer as taken
    from (select priority, run_at, id from que_job
          where queue = 'bench' and run_at <= now()
          order by priority, run_at, id limit 1) f,
         lateral (select pg_try_advisory_lock(f.id) as got offset 0) l
    union all
    select n.priority, n.run_at, n.id, l.got, w.taken + l.got::integer
    from walk w,
         lateral (select priority, run_at, id from que_job
                  where queue = 'bench' and run_at <= now()
                    and (priority, run_at, id) > (w.priority, w.run_at, w.id)
                  order by priority, run_at, id limit 1) n,
         lateral (select pg_try_advisory_lock(n.id) as got offset 0) l
    where w.taken < %(limit)s
)
select id from walk where got
"""

#: Without an order: the planner would walk the other index once more for it.
_LOOK_AGAIN: Final = """
select priority, run_at, id, kind, args, failures from que_job where id = any(%s)
"""

_UNLOCK: Final = "select pg_advisory_unlock(id) from unnest(%s::bigint[]) id"
_DONE: Final = "delete from que_job where id = any(%s)"
_FAILED: Final = (
    "update que_job set failures = failures + 1, run_at = clock_timestamp() where id = any(%s)"
)


class Que:
    """One worker's session, in a separate database."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True, options=STEADY_PLANS)
        self.conn.execute(SCHEMA)

    def enqueue(self, count: int, delay_seconds: float = 0) -> int:
        """Enqueue this number of jobs in one statement."""
        self.conn.execute(_ENQUEUE_MANY, [delay_seconds, count], prepare=True)
        return count

    def write_one(self, conn: psycopg.Connection[Any]) -> None:
        """Enqueue one job in another session's transaction."""
        conn.execute(_WRITE_ONE)

    def claim(self, limit: int) -> list[Taken]:
        """Walk, and take the jobs that could be locked and still exist."""
        ids = [row[0] for row in self.conn.execute(WALK, {"limit": limit}, prepare=True).fetchall()]
        return self.take(ids)

    def take(self, ids: Sequence[int]) -> list[Taken]:
        """Look at the locked jobs again, and let go of those that are gone."""
        if not ids:
            return []
        rows = self.conn.execute(_LOOK_AGAIN, [list(ids)], prepare=True).fetchall()
        rows.sort(key=lambda row: row[:3])
        gone = set(ids) - {row[2] for row in rows}
        if gone:
            self.conn.execute(_UNLOCK, [list(gone)], prepare=True)
        return [Taken(row[2], row[2], row[5], row[1].timestamp()) for row in rows]

    def claim_counted(self, limit: int) -> tuple[list[Taken], int | None]:
        """Walk, and count the pages read for it."""
        return counted(self.conn, lambda: self.claim(limit))

    def end(self, done: Sequence[Taken], failed: Sequence[Taken]) -> None:
        """Delete what is done, put back what failed, and let go of both."""
        with self.conn.transaction():
            if done:
                self.conn.execute(_DONE, [[job.key for job in done]], prepare=True)
            if failed:
                self.conn.execute(_FAILED, [[job.key for job in failed]], prepare=True)
        # Unlock after the commit: otherwise another session would take the job again.
        self.conn.execute(_UNLOCK, [[job.key for job in (*done, *failed)]], prepare=True)

    def dead_rows(self) -> int:
        """Return how many dead rows the statistics count in its table."""
        return dead_rows_of(self.conn, "que_job")

    def close(self) -> None:
        """Close the connection, which releases every lock."""
        self.conn.close()

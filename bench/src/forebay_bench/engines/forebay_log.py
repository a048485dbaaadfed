"""Forebay's log, used with a worker's calls but without a worker: polls, claims and settlements
on a plain connection.

This measures the cost of the SQL, one call after the other, which a worker would hide behind its
handlers. A scenario runs maintenance beside it, with ``forebay_bench._maintenance``.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import sql

from forebay.ops import protocol
from forebay.ops.claimed import ClaimedJob
from forebay_bench.engines.queue import Taken, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.operation import Operation

T = TypeVar("T")

#: The lease lasts as long as the scenario, because no heartbeats are sent.
_LEASE_SECONDS: Final = 86_400.0

#: Jobs of a limit key that may run at once.
_KEY_CONCURRENCY: Final = 5

ENQUEUE: Final = "select forebay.enqueue(%s, %s, %s)"

_ENQUEUE_MANY: Final = """
select forebay.enqueue_many(
    'noop', array(select jsonb_build_object('i', i) from generate_series(1, %s) i), %s,
    delay => make_interval(secs => nullif(%s, 0)))
"""

#: A third of them with an ordering key, a third with a unique one, a third with a limit key.
_ENQUEUE_KEYED: Final = """
select forebay.enqueue_many(jsonb_agg(
    jsonb_build_object('kind', 'noop', 'queue', %s::text, 'args', jsonb_build_object('i', i))
    || case i %% 3 when 0 then jsonb_build_object('ordering_key',
        'document ' || i / 3 %% %s::bigint)
                  when 1 then jsonb_build_object('unique_as', jsonb_build_object('once',
                      'document ' || i / 3 %% %s::bigint))
                  else jsonb_build_object('limit_key', 'tenant ' || i / 3 %% %s::bigint) end
    order by i))
from generate_series(%s::bigint, %s::bigint) i
"""

_DEAD_ROWS: Final = """
select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables where schemaname = 'forebay'
"""

#: The leaves of the log, and the functions that each of them has.
_PIECES: Final = """
select 'table', format('forebay.log_%%s', segment_id) from forebay.segment
union all
select 'function', oid::regprocedure::text from pg_proc where pronamespace = 'forebay'::regnamespace
    and proname ~ %s
"""


class Log:
    """A connection with a lease, and a group of one queue.

    Args:
        dsn: a migrated database.
        queue: whose group is opened.
        keys: jobs have ordering keys, unique keys and limit keys in turns, of this number of keys
            each; None: none.
        queues: with more than one, plain jobs go to further queues in turns, and the group of each
            is read.
    """

    def __init__(
        self, dsn: str, queue: str = "bench", *, keys: int | None = None, queues: int = 1
    ) -> None:
        self.queue = queue
        self._keys = keys
        self._queues = [queue, *(f"{queue}_{number}" for number in range(2, queues + 1))]
        #: By lane, when it was claimed from last.
        self._served: dict[int, int] = {}
        self._written = self._newest = 0
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.group_ids = [self.run(protocol.open_group(name, "default")) for name in self._queues]
        self.lane = int(self._value("select forebay._lane_id(%s, 100, 0)", queue))
        self.lease_id = self.run(
            protocol.open_lease(
                "bench", lease_seconds=_LEASE_SECONDS, suspect_seconds=_LEASE_SECONDS
            )
        )
        self._claim_no = 0
        if keys is not None:
            limit = "select forebay.limit_queue(%s, key_concurrency => %s)"
            self.conn.execute(limit, [queue, _KEY_CONCURRENCY])

    def run(self, operation: Operation[T]) -> T:
        """Run one operation of the protocol, prepared."""
        rows = self.conn.execute(operation.sql, operation.params, prepare=True).fetchall()
        return operation.decode(rows)

    # --- what every engine can do ---------------------------------------------------------------

    def enqueue(self, count: int, delay_seconds: float = 0) -> int:
        """Enqueue this number of jobs in one statement.

        Jobs whose unique key is taken are not counted.
        """
        if self._keys is None:
            queue = self._queues[self._written % len(self._queues)]
            self._written += 1
            self.conn.execute(_ENQUEUE_MANY, [count, queue, delay_seconds], prepare=True)
            return count
        first = self._written
        self._written += count
        ids = self._value(_ENQUEUE_KEYED, self.queue, *[self._keys] * 3, first, self._written - 1)
        made = {job_id for job_id in ids if job_id > self._newest}
        self._newest = max(made, default=self._newest)
        return len(made)

    def write_one(self, conn: psycopg.Connection[Any]) -> None:
        """Enqueue one job in another session's transaction."""
        conn.execute(ENQUEUE, ["noop", "{}", self.queue])

    def claim(self, limit: int) -> list[Taken]:
        """Poll for ready lanes, as a worker does, and take jobs: retries first."""
        taken: list[Taken] = []
        for lane in self._in_order(self.ready()):
            taken += self._take(limit - len(taken), lane)
            if len(taken) >= limit:
                break
        return taken

    def claim_counted(self, limit: int) -> tuple[list[Taken], int | None]:
        """Poll and claim, and count the pages read.

        Each claim is a transaction, so each is counted separately.
        """
        taken: list[Taken] = []
        lanes, pages = counted(self.conn, self.ready)
        for lane in self._in_order(lanes):
            more, read = counted(self.conn, partial(self._take, limit - len(taken), lane))
            taken += more
            pages += read
            if len(taken) >= limit:
                break
        return taken, pages

    def end(self, done: Sequence[Taken], failed: Sequence[Taken]) -> None:
        """Settle what a claim took, in one call."""
        flushes: dict[int, protocol.Flush] = {}
        for job in done:
            claim_no, _, offset = job.key
            flush = flushes.setdefault(claim_no, protocol.Flush(claim_no, 1, done=[]))
            assert flush.done is not None
            flush.done.append(offset)
        for job in failed:
            claim_no, _, offset = job.key
            flush = flushes.setdefault(claim_no, protocol.Flush(claim_no, 1, done=[]))
            error = {"type": "ValueError", "message": "fails once"}
            flush.ended.append(protocol.Ended(offset, "retried", error=error))
        for job in done:
            claim_no, size, _ = job.key
            flush = flushes[claim_no]
            if flush.done is not None and len(flush.done) == size:
                flush.done = None  # the whole batch, which is the smallest row
        self._settle(list(flushes.values()))

    def dead_rows(self) -> int:
        """Return how many dead rows the statistics count in all tables of the schema."""
        return int(self._value(_DEAD_ROWS))

    def close(self) -> None:
        """Hang up."""
        self.conn.close()

    # --- one call at a time -----------------------------------------------------------------------

    def ready(self) -> list[protocol.ReadyLane]:
        """Poll for lanes with jobs."""
        return self.run(protocol.ready(self.group_ids))

    def claim_lane(
        self, limit: int, lane: int | None = None, group_id: int | None = None
    ) -> tuple[int, list[ClaimedJob]]:
        """Claim from one lane, by default the queue's public one.

        The claim's number, and the jobs.
        """
        self._claim_no += 1
        jobs = self.run(
            protocol.claim(
                lease_id=self.lease_id,
                claim_no=self._claim_no,
                floor=self._claim_no,
                group_id=self.group_ids[0] if group_id is None else group_id,
                lane=self.lane if lane is None else lane,
                limit=limit,
            )
        )
        return self._claim_no, jobs

    def claim_and_settle(
        self, limit: int, lane: int | None = None, group_id: int | None = None
    ) -> tuple[float, int]:
        """Claim from one lane and settle the batch.

        How long the claim took, and how many jobs it was.
        """
        started = time.perf_counter()
        claim_no, jobs = self.claim_lane(limit, lane, group_id)
        seconds = time.perf_counter() - started
        if jobs:
            self._settle([protocol.Flush(claim_no, 1)])
        return seconds, len(jobs)

    def pages_of_claim(self, limit: int) -> int:
        """Claim from the public lane and settle the batch.

        How many pages the server read for the claim.
        """
        (claim_no, jobs), pages = counted(self.conn, lambda: self.claim_lane(limit))
        if jobs:
            self._settle([protocol.Flush(claim_no, 1)])
        return pages

    def empty(self, limit: int = 10_000) -> int:
        """Claim and settle all jobs in the public lane; return how many there were."""
        total = 0
        while count := self.claim_and_settle(limit)[1]:
            total += count
        return total

    def enqueue_one(self) -> float:
        """Enqueue one job; how long that took."""
        started = time.perf_counter()
        self.conn.execute(ENQUEUE, ["noop", '{"user_id": 42}', self.queue], prepare=True)
        return time.perf_counter() - started

    def sealed_segments(self) -> int:
        """Return how many segments are full and closed."""
        return int(self._value("select count(*) from forebay.seal"))

    def _in_order(self, lanes: Sequence[protocol.ReadyLane]) -> list[protocol.ReadyLane]:
        """Return lanes in a worker's order: those of retries first, then the longest unserved."""
        return sorted(in_order(lanes), key=lambda each: self._served.get(each.lane, 0))

    def _take(self, limit: int, lane: protocol.ReadyLane) -> list[Taken]:
        claim_no, jobs = self.claim_lane(limit, lane.lane, lane.group_id)
        if not lane.is_private:
            self._served[lane.lane] = claim_no
        return [
            Taken(
                (claim_no, len(jobs), job.offset),
                job.job_id,
                job.attempts_used,
                job.enqueued_micros / 1e6,
            )
            for job in jobs
        ]

    def _settle(self, flushes: list[protocol.Flush]) -> None:
        statuses = self.run(protocol.settle(self.lease_id, flushes))
        assert all(status == "settled" for status in statuses), statuses

    def _value(self, statement: str, *parameters: object) -> Any:
        row = self.conn.execute(statement, parameters).fetchone()
        assert row is not None
        return row[0]


def in_order(lanes: Sequence[protocol.ReadyLane]) -> list[protocol.ReadyLane]:
    """Return lanes in a worker's order: those of retries first."""
    return sorted(lanes, key=lambda each: not each.is_private)


def cut(dsn: str, *, segment_rows: int, reserve_rows: int) -> None:
    """Cut a log that has not been used yet into smaller segments.

    Args:
        dsn: the database.
        segment_rows: numbers per segment.
        reserve_rows: numbers for which segments are made ahead.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select forebay.configure('segment_rows', %s)", [segment_rows])
        conn.execute("select forebay.configure('reserve_rows', %s)", [max(reserve_rows, 1000)])
        with conn.transaction():
            names = conn.execute(_PIECES, [r"^_[a-z_]+_\d+$"]).fetchall()
            for sort, name in names:
                conn.execute(sql.SQL("drop {} {}").format(sql.SQL(sort), sql.SQL(name)))
            conn.execute("delete from forebay.segment")
        extend(conn)


def extend(conn: psycopg.Connection[Any]) -> None:
    """Make segments until the reserve is complete."""
    while True:
        row = conn.execute("select forebay.extend_v1()").fetchone()
        if row is None or not row[0]:
            return

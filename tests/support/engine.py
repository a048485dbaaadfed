"""The engine's protocol spoken plainly: a connection, a lease, a group, and what they were handed.

Tests of the SQL use this instead of Forebay's worker, so that nothing but the SQL is under test.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from forebay.sql import latest_version

Row = dict[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The members of a claimed job after its arguments.
MORE_NAMES = (
    "job_id",
    "ordering_key",
    "expires_at",
    "attempt",
    "pauses",
    "max_attempts",
    "tag",
    "correlation_id",
    "headers",
    "limit_key",
)


def connect(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Return an autocommitting connection."""
    return psycopg.connect(dsn, autocommit=True)


def one(conn: psycopg.Connection[Any], query: str, *params: object) -> Any:
    """Run a query and return the first column of its first row."""
    row = conn.execute(query, params or None).fetchone()
    assert row is not None, query
    return row[0]


def sqlstate(conn: psycopg.Connection[Any], query: str, *params: object) -> str | None:
    """Run a statement; return its SQLSTATE, or None when it went well."""
    try:
        conn.execute(query, params or None)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def enqueue(conn: psycopg.Connection[Any], *, kind: str = "work", **options: Any) -> int:
    """Enqueue one job on a connection, in whatever transaction it is in; return its id."""
    args = json.dumps(options.pop("args", {}))
    names = "".join(f", {name} => %s" for name in options)
    return one(conn, f"select forebay.enqueue(%s, %s::jsonb{names})", kind, args, *options.values())


def enqueue_many(conn: psycopg.Connection[Any], jobs: Iterable[Row]) -> list[int]:
    """Enqueue jobs given as dictionaries; return their ids."""
    return one(conn, "select forebay.enqueue_many(%s::jsonb)", json.dumps(list(jobs)))


def open_group(conn: psycopg.Connection[Any], queue: str, name: str = "default", start=None) -> int:
    """Open a group of a queue; return its id."""
    return one(conn, "select forebay.open_group(%s, %s, %s)", queue, name, start)


def lane_of(queue: str, conn: psycopg.Connection[Any], priority: int = 100, audience=0) -> int:
    """Return the id of a lane."""
    return one(conn, "select forebay._lane_id(%s, %s, %s)", queue, priority, audience)


def open_groups_apart(conn: psycopg.Connection[Any], lanes: dict[str, list[int]]) -> dict[str, int]:
    """Open a group of each queue, and return their ids. No two of the lanes have the same lock.

    A lane has one of 128 locks, chosen by its id and that of the group, which is random.
    """
    taken: set[int] = set()
    groups = {}
    for queue in reversed(lanes):  # The last one has its usual group.
        for number in itertools.count():
            name = f"group-{number}" if number else "default"
            group = open_group(conn, queue, name, "beginning")
            query = "select hashint8(%s::bigint # %s::bigint) & 127"
            locks = {one(conn, query, group, lane) for lane in lanes[queue]}
            if len(locks) == len(lanes[queue]) and not locks & taken:
                break
        taken |= locks
        groups[queue] = group
    return groups


def states(conn: psycopg.Connection[Any], job_id: int) -> dict[str, str]:
    """Return the state of a job in each group."""
    rows = conn.execute("select group_name, state from forebay.job(%s)", [job_id]).fetchall()
    return dict(rows)


def state(conn: psycopg.Connection[Any], job_id: int, group: str = "default") -> str | None:
    """Return the state of a job in one group."""
    return states(conn, job_id).get(group)


def depth(conn: psycopg.Connection[Any], queue: str | None = None) -> dict[str, tuple[int, ...]]:
    """Return (ready, claimed or running, scheduled or retrying) for each group, summed over
    queues and priorities.
    """
    rows = conn.execute(
        "select group_name, sum(ready)::int, sum(claimed + running)::int, sum(scheduled + "
        "retrying)::int"
        " from forebay.depth(%s) group by group_name",
        [queue],
    ).fetchall()
    return {name: tuple(numbers) for name, *numbers in rows}


def small_segments(conn: psycopg.Connection[Any], rows: int = 300, reserve: int = 6000) -> None:
    """Let the log go on in segments of so many rows, behind the big ones it was made with."""
    last = one(conn, "select max(hi) - 1 from forebay.segment")
    one(conn, "select setval('forebay.log_seq', %s)", last)
    one(conn, "select forebay.configure('segment_rows', %s)", rows)
    one(conn, "select forebay.configure('reserve_rows', %s)", max(reserve, 1000))
    one(conn, "select forebay.extend_v1()")


def trim(conn: psycopg.Connection[Any], part: str | None = None, most: int = 5000) -> int:
    """Make a pass of one part of trimming, or of all; return the number of rows deleted."""
    parts = one(conn, "select forebay._trim_parts()") if part is None else [part]
    total = 0
    for name in parts:
        after = None
        while True:
            rows, after = conn.execute(
                "select rows, next from forebay.trim_v1(%s, %s, %s)", [name, after, most]
            ).fetchone()
            total += rows
            if after is None:
                break
    return total


#: One step of each duty of maintenance, and what it did.
STEPS = {
    "extend": "select forebay.extend_v1()",
    "promote": "select forebay.promote_v1()",
    "seal": "select forebay.seal_v1()",
    "retain": "select emptied from forebay.retain_v1()",
    "trim": "select sum(t.rows) from unnest(forebay._trim_parts()) p, forebay.trim_v1(p) t",
    "sweep": "select expired from forebay.sweep_v1()",
    "summarize": "select * from forebay.summarize_v1()",
}


def shift_clock(conn: psycopg.Connection[Any], seconds: float = 0) -> None:
    """Replace the schema's clock in this database by one that is so far ahead."""
    conn.execute(
        "create or replace function forebay._now() returns timestamptz language sql volatile as"
        f" $$ select clock_timestamp() + make_interval(secs => {seconds}) $$"
    )


class StillClock:
    """The clock of a database: it stands still, so that a slow machine changes nothing."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.began = one(conn, "select clock_timestamp()")
        self.set(0)

    def set(self, seconds: float) -> None:
        """Let so many seconds have passed since the beginning."""
        self.conn.execute(
            "create or replace function forebay._now() returns timestamptz language sql volatile"
            f" as $$ select timestamptz '{self.began + timedelta(seconds=seconds)}' $$"
        )


def forget_polls(conn: psycopg.Connection[Any]) -> None:
    """Let the next poll of this session look at all lanes, as the first one of a session does."""
    conn.execute("select set_config('forebay.idle_' || i, '', false) from generate_series(0, 15) i")


def claimed(text: str | None) -> list[Row]:
    """Read what a claim returned; apart from Forebay's own decoder, which has its own tests."""
    jobs = []
    for offset, item in enumerate(json.loads(f"[{text or ''}]"), 1):
        seq, kind, enqueued, args, *more = item
        row: Row = dict(zip_longest(MORE_NAMES, more))
        enqueued_at = EPOCH + timedelta(microseconds=enqueued)
        expires = row["expires_at"]
        jobs.append(
            {
                **row,
                "batch_offset": offset,
                "seq": seq,
                "job_id": row["job_id"] or seq,
                "kind": kind,
                "args": args,
                "attempt": row["attempt"] or 0,
                "pauses": row["pauses"] or 0,
                "enqueued_at": enqueued_at,
                "expires_at": enqueued_at + timedelta(days=30)
                if expires is None
                else EPOCH + timedelta(microseconds=expires),
            }
        )
    return jobs


@dataclass
class Batch:
    """What one claim handed out."""

    claim_no: int
    jobs: list[Row]

    @property
    def job_ids(self) -> list[int]:
        return [job["job_id"] for job in self.jobs]

    @property
    def seqs(self) -> list[int]:
        return [job["seq"] for job in self.jobs]


@dataclass
class Reader:
    """One lease that claims for one group of one queue."""

    dsn: str
    queue: str = "default"
    group: str = "default"
    lease_seconds: float = 30
    suspect_seconds: float = 5
    conn: psycopg.Connection[Any] | None = None
    lease_id: int = 0
    claim_no: int = 0
    open_claims: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        is_own = self.conn is None
        if is_own:
            self.conn = connect(self.dsn)
        try:
            self.group_id = open_group(self.conn, self.queue, self.group)
            self.open_lease()
        except BaseException:
            if is_own:  # Nothing else closes it: there is no ``with`` block yet.
                self.conn.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.conn.close()

    def open_lease(self) -> int:
        """Take a new lease and begin to count claims anew."""
        self.lease_id = one(
            self.conn,
            "select forebay.open_lease_v1(%s, %s, %s, %s)",
            f"{self.group}@test",
            float(self.lease_seconds),
            float(self.suspect_seconds),
            latest_version(),
        )
        self.claim_no = 0
        self.open_claims = set()
        return self.lease_id

    def ready(self) -> list[Row]:
        """Ask which lanes have something to claim."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            query = "select * from forebay.ready_v1(%s::bigint[])"
            return cursor.execute(query, [[self.group_id]]).fetchall()

    def claim(self, limit: int = 10, lane: int | None = None, priority: int = 100) -> Batch:
        """Claim from a lane, the public one unless told otherwise."""
        if lane is None:
            lane = lane_of(self.queue, self.conn, priority)
        self.claim_no += 1
        floor = min(self.open_claims, default=self.claim_no)
        jobs = claimed(
            one(
                self.conn,
                "select forebay.claim_v1(%s, %s, %s, %s, %s, %s)",
                *[self.lease_id, self.claim_no, floor, self.group_id, lane, limit],
            )
        )
        if jobs:
            self.open_claims.add(self.claim_no)
        return Batch(self.claim_no, jobs)

    def claim_ready(self, limit: int = 10) -> Batch:
        """Claim from the first ready lane that gives anything; an empty batch when none does."""
        for lane in self.ready():
            batch = self.claim(limit, lane["lane"])
            if batch.jobs:
                return batch
        return Batch(0, [])

    def claim_all(self) -> list[Batch]:
        """Claim until nothing is ready."""
        batches = []
        while (batch := self.claim_ready(1000)).jobs:
            batches.append(batch)
        return batches

    def settle(
        self,
        claim_no: int,
        done: Sequence[int] | None = None,
        *,
        flush_no: int = 1,
        ended: Sequence[Row] = (),
        conn: psycopg.Connection[Any] | None = None,
    ) -> str:
        """Settle offsets of a batch as done, and others as told; the whole batch without either."""
        flush: Row = {"claim_no": claim_no, "flush_no": flush_no}
        if ended:
            flush["ended"] = list(ended)
        if done is not None or ended:
            flush["done"] = list(done or ())
        rows = (
            (conn or self.conn)
            .execute(
                "select status from forebay.settle_v1(%s, %s::jsonb)",
                [self.lease_id, json.dumps([flush])],
            )
            .fetchall()
        )
        return rows[0][0]

    def finish(self, batch: Batch) -> None:
        """Settle a whole batch as done and hold it no longer."""
        assert self.settle(batch.claim_no) == "settled"
        self.open_claims.discard(batch.claim_no)

    def revoked_by(self, conn: psycopg.Connection[Any], *, suspects: bool = True) -> int | None:
        """Have this lease revoked on another connection; return how many jobs went back."""
        return one(conn, "select forebay._revoke(%s, 'revoked', %s)", self.lease_id, suspects)

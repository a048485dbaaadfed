"""The jobs of the scenario console.

A quarter is in one queue, with all kinds; each other queue has three kinds and a tag. One ended job
in 499 is dead, of several causes for each kind, and one in 997 waits for its next attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from forebay.ops import protocol
from forebay_bench.engines.forebay_log import Log, extend

if TYPE_CHECKING:
    from collections.abc import Callable

#: Jobs of one call.
BATCH: Final = 10_000

#: Jobs of one claim: more than a worker claims at a time.
_CLAIM: Final = 1_000

_KINDS: Final = 200

_ENQUEUE: Final = """
select cardinality(forebay.enqueue_many(jsonb_agg(jsonb_build_object(
    'kind', 'kind_' || case when i %% 4 = 0 then i / 4 else q.nr + i %% 3 end %% %s,
    'queue', case when i %% 4 = 0 then 'busy' else 'queue_' || q.nr end,
    'tag', case when i %% 4 > 0 then 'region ' || q.nr %% 4 end,
    'correlation_id', 'order-' || i / 2,
    'args', jsonb_build_object('i', i, 'email', 'person' || i || '@example.com')))))
from generate_series(%s::bigint, %s::bigint) i
cross join lateral (select (i / 4 * 3 + i %% 4) %% %s as nr) q
"""


def fill(dsn: str, jobs: int, queues: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Fill a database with waiting and with ended jobs; return ids for the pages."""
    log = Log(dsn, "busy")
    groups = [log.group_ids[0]] + [
        log.run(protocol.open_group(f"queue_{number}", "default")) for number in range(queues)
    ]
    for part in ("ended", "waiting"):
        for first in range(0, jobs, BATCH):
            progress(f"{part}: {first:,} of {jobs:,} jobs")
            log.conn.execute(_ENQUEUE, [_KINDS, first, first + BATCH - 1, queues])
            extend(log.conn)
        while part == "ended" and (lanes := log.run(protocol.ready(groups))):
            for lane in lanes:
                while _end_batch(log, lane):
                    pass
        log.conn.execute("select forebay.seal_v1()")
    for duty in ("archive_v1(16)", "fold_v1()", "renew_counters_v1()"):
        idle = 0
        while idle < 2:
            (made,) = log.conn.execute(f"select forebay.{duty}").fetchone() or (0,)
            idle = 0 if made else idle + 1
    log.conn.execute("vacuum analyze")
    row = log.conn.execute(
        "select s.last_value - 10, d.job_id, d.cause"
        " from forebay.log_seq s, forebay.dead_letter d limit 1"
    ).fetchone()
    assert row is not None
    log.close()
    return {"waiting": row[0], "dead": row[1], "cause": quote(row[2])}


def _end_batch(log: Log, lane: protocol.ReadyLane) -> int:
    """Claim from a lane and end the jobs; return how many there were."""
    claim_no, taken = log.claim_lane(_CLAIM, lane.lane, lane.group_id)
    if not taken:
        return 0
    flush = protocol.Flush(claim_no, 1, done=[])
    assert flush.done is not None
    for job in taken:
        if job.job_id % 499 and job.job_id % 997:
            flush.done.append(job.offset)
            continue
        error = {"type": f"Error{job.job_id // 499 % 3}", "message": f"no route {job.job_id}"}
        flush.ended.append(
            protocol.Ended(job.offset, "retried", after=3600, error=error)
            if job.job_id % 499
            else protocol.Ended(job.offset, "dead", reason="permanent", error=error)
        )
    log.run(protocol.settle(log.lease_id, [flush]))
    return len(taken)

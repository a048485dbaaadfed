"""The overview of all queues, the settings of the database, and adopting a restored log."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

from forebay._dataclass import dataclass
from forebay.ops.operation import Operation
from forebay.ops.records import rows_as

_QUEUES: Final = """\
select (to_jsonb(d) operator(pg_catalog.||) to_jsonb(x)
    operator(pg_catalog.||) jsonb_build_object(
    'done', coalesce(t.done, 0), 'failed', coalesce(t.failed, 0), 'claimed_at', c.claimed_at,
        'paused_at', g.paused_at,
    'resume_at', g.resume_at))::text
from forebay.depth(only_queue => %(queue)s) d
left join (
    select s.queue, s.priority, s.group_name, sum(s.done)::bigint as done, sum(s.failed)::bigint
        as failed
    from forebay.stats(only_queue => %(queue)s) s group by s.queue, s.priority, s.group_name) t
  on t.queue operator(pg_catalog.=) d.queue and t.priority operator(pg_catalog.=) d.priority
  and t.group_name operator(pg_catalog.=) d.group_name
left join lateral (
    select i.group_id,
           case when i.resume_at operator(pg_catalog.<=) clock_timestamp() then null
                else i.paused_at end as paused_at,
           case when i.resume_at operator(pg_catalog.>) clock_timestamp()
                then i.resume_at end as resume_at
    from forebay.queue_group i
    where i.queue operator(pg_catalog.=) d.queue
      and i.name operator(pg_catalog.=) d.group_name) g on true
cross join lateral (
    select count(*) as dead from forebay.dead_letter l
    where l.queue operator(pg_catalog.=) d.queue and l.group_id operator(pg_catalog.=) g.group_id
      and l.priority operator(pg_catalog.=) d.priority and l.redriven_at is null) x
left join lateral (
    select max(b.claimed_at) as claimed_at
    from (select distinct i.lane from forebay.lane i
          where i.queue operator(pg_catalog.=) d.queue
            and i.priority operator(pg_catalog.=) d.priority) i
    cross join lateral (select b.claimed_at from forebay.batch b
                        where b.group_id operator(pg_catalog.=) g.group_id
                          and b.lane operator(pg_catalog.=) i.lane and b.lease_id is not null
                        order by b.no desc limit 1) b) c on true
order by d.queue, d.priority, d.group_name"""


#: A queue may have a million lanes, one for each limit key: the index is probed once for each
#: queue.
_NAMES: Final = """\
with recursive q as (
    (select l.queue from forebay.lane l order by l.queue limit 1)
    union all
    select (select l.queue from forebay.lane l
            where l.queue operator(pg_catalog.>) q.queue order by l.queue limit 1)
    from q where q.queue is not null)
select (select json_agg(q.queue) from q where q.queue is not null)::text,
       (select json_agg(distinct k.kind) from forebay.kind_queue k)::text"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """One queue, priority and group.

    Attributes:
        cancelled: jobs that were cancelled or replaced while they were ready, and that no worker
            has passed yet.
        done: jobs that were completed since the group was opened.
        failed: attempts that ended with an error and were repeated, since then.
        dead: dead letters that were not redriven.
        claimed_at: when a worker last claimed jobs from it; None if never.
        paused_at: since when the queue is paused; None if it is not.
        resume_at: when that pause ends by itself; None if it does not.
    """

    queue: str
    priority: int
    group: str
    scheduled: int
    ready: int
    claimed: int
    running: int
    retrying: int
    cancelled: int
    done: int
    failed: int
    dead: int
    claimed_at: datetime | None
    paused_at: datetime | None
    resume_at: datetime | None = None


def queue_overview(queue: str | None = None) -> Operation[list[QueueOverview]]:
    """Return the call that counts waiting, running, ended and dead jobs.

    It visits dead letters, and no job that just waits or has ended.
    """
    return Operation(_QUEUES, lambda rows: rows_as(QueueOverview, rows), {"queue": queue})


def known_names() -> Operation[tuple[list[str], list[str]]]:
    """Return the call that reads the names of all queues and kinds, without visiting jobs."""
    return Operation(
        _NAMES, lambda rows: (json.loads(rows[0][0] or "[]"), json.loads(rows[0][1] or "[]"))
    )


def database_settings() -> Operation[dict[str, int]]:
    """Return the call that reads the settings stored in the database."""
    return Operation("select name, value from forebay.setting", dict)


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of adopting a restored log: jobs appended again, jobs given up."""

    resumed: int
    discarded: int


def adopt(*, resume: bool) -> Operation[Adopted]:
    """Return the call that makes a restored log belong to this cluster.

    Running it raises ``AdoptRefused`` if it already belongs to this cluster.
    """
    return Operation(
        "select resumed, discarded from forebay.adopt_v1(%(resume)s)",
        lambda rows: Adopted(*rows[0]),
        {"resume": resume},
    )

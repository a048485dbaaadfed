"""What an operator sees of all queues at once, and of the settings of the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from forebay.ops._records import rows_as
from forebay.ops.operation import Operation

_QUEUES: Final = """\
select json_build_object(
    'queue', d.queue, 'priority', d.priority, 'group', d.group_name,
    'scheduled', d.scheduled, 'ready', d.ready, 'claimed', d.claimed, 'running', d.running,
    'retrying', d.retrying, 'dead', x.dead, 'claimed_at', c.claimed_at,
    'paused_at', g.paused_at)::text
from forebay.depth(only_queue => %(queue)s) d
left join forebay.queue_group g on g.queue = d.queue and g.name = d.group_name
cross join lateral (
    select count(*) as dead from forebay.dead_letter l
    where l.queue = d.queue and l.group_id = g.group_id and l.priority = d.priority
      and l.redriven_at is null) x
left join lateral (
    select max(b.claimed_at) as claimed_at
    from (select distinct i.lane from forebay.lane i
          where i.queue = d.queue and i.priority = d.priority) i
    cross join lateral (select b.claimed_at from forebay.batch b
                        where b.group_id = g.group_id and b.lane = i.lane and b.lease_id is not null
                        order by b.no desc limit 1) b) c on true
order by d.queue, d.priority, d.group_name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """One queue, priority and group.

    Attributes:
        dead: dead letters that were not redriven.
        claimed_at: when a worker last took jobs of it; None for never.
        paused_at: since when nothing may be claimed; None when it may.
    """

    queue: str
    priority: int
    group: str
    scheduled: int
    ready: int
    claimed: int
    running: int
    retrying: int
    dead: int
    claimed_at: datetime | None
    paused_at: datetime | None


def queue_overview(queue: str | None = None) -> Operation[list[QueueOverview]]:
    """Return the call that counts what waits, runs and died; every waiting job is visited."""
    return Operation(_QUEUES, lambda rows: rows_as(QueueOverview, rows), {"queue": queue})


def database_settings() -> Operation[dict[str, int]]:
    """Return the call that reads the settings stored in the database."""
    return Operation("select name, value from forebay.setting", dict)


@dataclass(frozen=True, slots=True)
class Adopted:
    """What adopting a restored log did: jobs appended anew, jobs given up."""

    resumed: int
    discarded: int


def adopt(*, resume: bool) -> Operation[Adopted]:
    """Return the call that makes a restored log at home in this cluster.

    Running it raises ``AdoptRefused`` when it is at home already.
    """
    return Operation(
        "select resumed, discarded from forebay.adopt_v1(%(resume)s)",
        lambda rows: Adopted(*rows[0]),
        {"resume": resume},
    )

"""Whether keys with waiting jobs have a reason for a claim to look at them again, read from the
tables of the engine.
"""

from typing import Any

import psycopg

from tests.support.key_model import KeyModel

#: What makes a claim look at a key: rows of jobs, and recheck rows, that no claim has read.
_UNREAD = """
with lane as materialized (
    select distinct g.group_id, g.name, l.lane
    from forebay.queue_group g join forebay.lane l on l.queue = g.queue and l.audience in (0,
        g.group_id, -g.group_id)
    where g.queue = %(queue)s and l.sort in ('keyed', 'limited')
)
select c.name, l.ordering_key, l.limit_key, coalesce(l.job_id, l.seq), l.attempt, l.kind = '', 0
from lane c
left join lateral (select * from forebay.batch i where i.group_id = c.group_id and i.lane = c.lane
    order by i.no desc limit 1) b on true
left join forebay.segment s on s.segment_id = b.pos_segment
join forebay.log l on l.lane = c.lane and l.seq >= %(low)s
where b.no is null
   or not forebay._is_consumed(l.xid, l.seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid,
       b.pos_seq)
union all
select c.name, d.ordering_key, d.limit_key, d.job_id, d.attempt, d.kind = '', extract(epoch
    from d.run_at)::float8
from lane c
join forebay.deferred d on d.lane = c.lane
left join (select * from forebay.promotion i order by i.no desc limit 1) p on true
where p.no is null or (d.run_at, d.deferred_id) > (p.run_at, p.deferred_id)
    or not pg_visible_in_snapshot(d.xid, p.snap)
"""

#: Keys with jobs that the cursors have passed: ordering keys without a job in a batch, limit keys.
#: An ordering key whose first job has an untaken row of a limit key is due when that one is.
_PASSED = """
select g.name, 'ordering', s.ordering_key, s.head, null, null
from forebay.queue_group g
cross join lateral forebay._key_states(g.group_id, array(
    select i.ordering_key from forebay.parked i where i.group_id = g.group_id
    union select i.ordering_key from forebay.key_run i where i.group_id = g.group_id)) s
where g.queue = %(queue)s and s.open = 0
  and (s.head is not null or s.waiting_seqs <> '{}'
       or exists (select from forebay.parked p where p.group_id = g.group_id
           and p.ordering_key = s.ordering_key
                  and p.parked_no > s.taken_up_to))
  and not coalesce(s.waits_at > (select coalesce(t.taken_up_to, 0) from forebay.limit_run t
                                 where t.group_id = g.group_id and t.limit_key = s.waits_for
                                     order by t.no desc limit 1), false)
union all
select g.name, 'limit', t.limit_key, null, (coalesce(t.turn, 0) & 2147483647)::integer, t.is_full
from forebay.queue_group g
cross join lateral (select distinct on (i.limit_key) i.* from forebay.limit_run i
                    where i.group_id = g.group_id order by i.limit_key, i.no desc) t
where g.queue = %(queue)s and t.waiting > 0
"""

_FOREVER = float("inf")


def assert_nothing_is_forgotten(
    conn: psycopg.Connection[Any], queue: str, low: int, model: KeyModel
) -> None:
    """Jobs of a key wait that cursors have passed: then something makes a claim look at the key,
    or has to end first.

    Args:
        low: the first number of the log that counts.
    """
    given = {"queue": queue, "low": low}
    passed = conn.execute(_PASSED, given).fetchall()
    if not passed:
        return
    unread = conn.execute(_UNREAD, given).fetchall()
    for group, sort, key, head, turn, is_full in passed:
        mine = [row for row in unread if row[0] == group]
        if sort == "ordering":
            assert _is_due(model, mine, key, head), (group, key, head, unread, model.parts(group))
        else:
            is_served = is_full and _is_full(model, group, key)
            assert is_served or _has_turn(model, mine, key, turn), (
                group,
                key,
                turn,
                is_full,
                unread,
            )


def _until(model: KeyModel, sort: str, key: str, most: float) -> float:
    """Return the time until which a reason for a claim has to come."""
    return (model.pauses[sort, key][1] if model.is_paused(sort, key) else model.now) + most


def _is_due(model: KeyModel, unread: list[tuple], key: str, head: int | None) -> bool:
    """Whether something makes a claim look at an ordering key of which no job is in a batch."""
    if head is not None:
        is_held = any(
            letter.holds and letter.redriven is None and letter.part.job.job_id == head
            for letter in model.letters
        )
        return is_held or any(row[1] == key and row[3] == head for row in unread)
    until = _until(model, "ordering", key, 11)
    return until == _FOREVER or any(row[1] == key and row[6] <= until for row in unread)


def _is_full(model: KeyModel, group: str, key: str) -> bool:
    """Whether as many jobs of a limit key run as may: the end of one gives the key its turn."""
    most = model.concurrency_of(key)
    running = [part for part in model.held(group) if part.job.limit == key]
    return most is not None and len(running) >= most


def _has_turn(model: KeyModel, unread: list[tuple], key: str, turn: int) -> bool:
    """Whether a limit key with parked jobs gets its next turn from a recheck row, or all keys
    get one.
    """
    until = _until(model, "limit", key, 21)
    return until == _FOREVER or any(
        is_recheck and (of == "" or (of == key and row_turn in (None, turn) and due <= until))
        for _, _, of, _, row_turn, is_recheck, due in unread
    )

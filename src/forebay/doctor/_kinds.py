"""Kinds whose queue is in dispute between versions of an application, and keys that their dead
letters hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.doctor._finding import Finding, Level
from forebay.model.text import counted
from forebay.ops.operation import Operation
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.operation import ResultRows

_CHECK: Final = "kinds"

#: After this time without a change to and fro, the versions agree.
_DISPUTED_HOURS: Final = 24

_SQL: Final = f"""
select k.kind, k.queue, k.recorded_by, k.previous_queue, k.previous_by,
       greatest(extract(epoch from clock_timestamp() - k.recorded_at), 0)::float8,
       (select count(*) from forebay.kind_queue)
from forebay.kind_queue k
where k.previous_queue is not null
  and (k.alternated_at > clock_timestamp() - interval '{_DISPUTED_HOURS} hours'
       or exists (select from forebay.lease l where l.worker = k.previous_by
           and l.closed_at is null))
union all
select null, null, null, null, null, 0, (select count(*) from forebay.kind_queue)
"""


def kinds() -> Operation[list[Finding]]:
    """Kinds that workers in use, or workers by turns, declare in different queues."""
    return Operation(_SQL, _judge)


def _judge(rows: ResultRows) -> list[Finding]:
    found = [_finding(row) for row in rows if row[0] is not None]
    known = rows[0][-1]
    return found or [
        Finding(
            _CHECK,
            Level.OK,
            f"{counted(known, 'kind')} with a queue, none in dispute",
            facts={"kinds": known},
        )
    ]


def _finding(row: Sequence[Any]) -> Finding:
    kind, queue, worker, before, by, seconds, _ = row
    facts = {"kind": kind, "queue": queue, "worker": worker, "previous_queue": before}
    return Finding(
        _CHECK,
        Level.WARNING,
        f"kind {kind} is in queue {queue} for worker {worker}, started "
        f"{human_duration(seconds)} ago, and in queue {before} for"
        f" worker {by}",
        f"Jobs enqueued without a queue go to {queue}. Stop the workers of the other "
        f"version, or give the kind one queue in"
        " both.",
        facts,
    )


#: A dead letter that has held its ordering key for longer has perhaps not been seen.
_HELD_SECONDS: Final = 3600

_HELD_SQL: Final = f"""
select count(*), count(*) filter (where i.seconds > {_HELD_SECONDS}), max(i.seconds)::float8,
    (array_agg(i.dead_id order by i.dead_id))[1],
       (array_agg(i.queue order by i.dead_id))[1]
from (select d.dead_id, d.queue, extract(epoch from clock_timestamp() - d.died_at) as seconds
      from forebay.dead_letter d where d.holds_key and d.redriven_as is null limit 10000) i
"""


def held_keys() -> Operation[list[Finding]]:
    """Ordering keys that dead letters hold, for long."""
    return Operation(_HELD_SQL, _judge_held)


def _judge_held(rows: ResultRows) -> list[Finding]:
    held, old, seconds, dead_id, queue = rows[0]
    check, facts = "held keys", {"held": held, "old": old}
    if not held:
        return [Finding(check, Level.OK, "no dead letter holds its ordering key", facts=facts)]
    what = (
        f"{counted(held, 'dead letter')} {'holds its' if held == 1 else 'hold their'} "
        f"ordering key, the oldest, {dead_id} of queue"
        f" {queue}, for {human_duration(seconds)}"
    )
    if not old:
        return [Finding(check, Level.OK, what, facts=facts)]
    remedy = (
        f"Later jobs of the key wait. Mend the cause, then run forebay dead redrive {dead_id};"
        f" or forebay dead skip {dead_id} to do without the job."
    )
    return [Finding(check, Level.WARNING, what, remedy, facts)]

"""Kinds whose queue is in dispute between versions of an application."""

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
       or exists (select from forebay.lease l where l.worker = k.previous_by and l.closed_at is null))
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
        f"kind {kind} is in queue {queue} for worker {worker}, started {human_duration(seconds)} ago, and in queue {before} for"
        f" worker {by}",
        f"Jobs enqueued without a queue go to {queue}. Stop the workers of the other version, or give the kind one queue in"
        " both.",
        facts,
    )

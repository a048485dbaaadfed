"""Flows that wait with recorded steps which the code of their kind did not ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.doctor._finding import Finding, Level
from forebay.model.text import counted
from forebay.ops.operation import Operation
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.operation import ResultRows

_CHECK: Final = "steps"

#: Flows that are looked at; the numbers are those among them.
_FLOWS_MOST: Final = 10_000

#: A step that code asks for again later is not told: then a newer flow has it.
_SQL: Final = f"""
with waiting as materialized (
    select d.job_id, d.kind from forebay.deferred d
    where d.job_id is not null and d.kind in (select u.kind from forebay.unasked_step u)
    limit {_FLOWS_MOST})
select u.kind, u.name, count(distinct w.job_id), min(w.job_id),
       greatest(extract(epoch from clock_timestamp() - u.noted_at), 0)::float8
from forebay.unasked_step u
join waiting w on w.kind = u.kind
join forebay.step s on s.job_id = w.job_id and s.name = u.name and s.at < u.noted_at
group by u.kind, u.name, u.noted_at
order by 3 desc, 1, 2
limit 20
"""


def steps() -> Operation[list[Finding]]:
    """Recorded steps of flows that wait, for which ended flows of their kind were not asked."""
    return Operation(_SQL, _judge)


def _judge(rows: ResultRows) -> list[Finding]:
    return [_finding(row) for row in rows] or [
        Finding(_CHECK, Level.OK, "no waiting flow has a step that its code did not ask for")
    ]


def _finding(row: Sequence[Any]) -> Finding:
    kind, name, flows, first, seconds = row
    return Finding(
        _CHECK,
        Level.NOTICE,
        f"{counted(flows, 'flow')} of kind {kind} {'waits' if flows == 1 else 'wait'} with the"
        f" recorded step {name!r}, the first is job {first}; a flow that ended"
        f" {human_duration(seconds)} ago was not asked for it",
        f"If the step has another name now, deploy it with also=[{name!r}]: else it is done again."
        " If it was removed, nothing is needed.",
        {"kind": kind, "step": name, "flows": flows, "job_id": first},
    )

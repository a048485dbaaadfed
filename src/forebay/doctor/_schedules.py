"""Schedules that no worker decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.doctor._finding import Finding, Level
from forebay.model.text import counted
from forebay.ops.operation import Operation
from forebay.watch.rules import SCHEDULES_OFF

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

_CHECK: Final = "schedules"

_SHOWN_MAX: Final = 3

_SQL: Final = """
select (select coalesce(array_agg(s.name order by s.name), '{}') from forebay.schedule s
    where s.paused_at is null),
       count(*) filter (where coalesce(l.details ->> 'schedules', 'true')::boolean), count(*),
       exists (select from forebay.ticks() t where t.schedules)
from forebay.lease l
join lateral (select h.heartbeat_at from forebay.heartbeat h where h.lease_id = l.lease_id
    order by h.heartbeat_at desc limit 1) h
    on h.heartbeat_at > clock_timestamp() - make_interval(secs => l.lease_seconds)
where l.closed_at is null
"""


def schedules() -> Operation[list[Finding]]:
    """Whether a live worker, or a tick, decides the instants of schedules."""
    return Operation(_SQL, _judge)


def _judge(rows: ResultRows) -> list[Finding]:
    ((names, deciding, workers, ticks),) = rows
    facts = {"schedules": len(names), "deciding": deciding, "workers": workers, "ticks": ticks}
    if not names or deciding or ticks:
        who = counted(deciding, "worker") if deciding else "ticks"
        what = f"{counted(len(names), 'schedule')}, decided by {who}" if names else "no schedule"
        return [Finding(_CHECK, Level.OK, what, facts=facts)]
    shown = ", ".join(names[:_SHOWN_MAX])
    if len(names) > _SHOWN_MAX:
        shown += f" and {len(names) - _SHOWN_MAX} more"
    return [
        Finding(
            _CHECK,
            Level.WARNING,
            (
                f"no worker decides "
                f"{'this schedule' if len(names) == 1 else 'these schedules'}: {shown}"
            ),
            f"Start a worker that does not have {SCHEDULES_OFF}."
            if workers
            else "Start a worker, or run ticks: they enqueue the jobs of schedules.",
            facts,
        )
    ]

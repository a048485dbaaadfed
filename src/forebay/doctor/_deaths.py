"""What failed: jobs that died in the last day, and jobs without a handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.doctor._finding import Finding, Level
from forebay.model.text import counted
from forebay.ops.operation import Operation
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

_FAILURES_SQL: Final = """
select 'dead', d.queue, d.kind, d.reason, count(*),
       extract(epoch from clock_timestamp() - max(d.died_at))::float8,
       (array_agg(d.errors -> -1 ->> 'message' order by d.died_at desc))[1],
       bool_and(d.errors -> -1 ->> 'type' = 'forebay.errors.ChildrenDied')
from forebay.dead_letter d
where d.redriven_at is null and d.died_at > clock_timestamp() - interval '1 day'
  and not exists (select from forebay.muted_cause m where m.cause = d.cause
      and (m.until > clock_timestamp() or m.until is null))
group by 2, 3, 4
union all
(select 'unknown', null, null, null, count(*),
        extract(epoch from clock_timestamp() - max(f.failed_at))::float8,
        (array_agg(f.message order by f.failed_at desc))[1], false
 from (select * from forebay.failure f where f.outcome = 'unknown kind'
       and f.failed_at > clock_timestamp() - interval '1 hour' limit 10000) f
 having count(*) > 0)
order by 5 desc
limit 6
"""


def failures() -> Operation[list[Finding]]:
    """Jobs that died in the last day, and jobs that no worker has a handler for."""
    return Operation(_FAILURES_SQL, _judge_failures)


def _judge_failures(rows: ResultRows) -> list[Finding]:
    found = []
    for sort, queue, kind, reason, count, seconds, message, is_consequence in rows:
        last = f"the last {human_duration(seconds)} ago"
        detail = f": {_first_line(message)}" if message else ""
        if sort == "unknown":
            found.append(
                Finding(
                    "failures",
                    Level.WARNING,
                    f"{counted(count, 'job')} postponed in the last hour: no handler,"
                    f" {last}{detail}",
                    (
                        "Deploy workers that import the handler, or let only such workers "
                        "serve the queue. A handler that was renamed keeps its jobs by "
                        "@app.job(name=OLD_NAME)."
                    ),
                    {"unknown_kind": count, "message": message},
                )
            )
        else:
            found.append(
                Finding(
                    "failures",
                    Level.NOTICE,
                    f"{count:,} dead ({reason}) in the last day, kind {kind}, {last}{detail}",
                    f"`forebay dead groups --kind {kind}`"
                    + (
                        " names the jobs to redrive; these follow by themselves"
                        if is_consequence
                        else f"; after a fix: `forebay dead redrive --kind {kind}`"
                    ),
                    {"kind": kind, "queue": queue, "reason": reason, "dead": count},
                )
            )
    return found or [
        Finding("failures", Level.OK, "no job died in the last day", facts={"dead": 0})
    ]


def _first_line(message: str) -> str:
    line = message.strip().partition("\n")[0]
    return line if len(line) <= 100 else line[:99] + "…"

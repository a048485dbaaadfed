"""Why does this job not run: read the facts, and follow the decision tree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from forebay._dataclass import dataclass
from forebay.model.explanation import Explanation
from forebay.model.status import Failure, JobStatus
from forebay.ops.jobs import STATUS, checked_id
from forebay.ops.operation import Operation
from forebay.watch.explanation import explain, explain_absence
from forebay.watch.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.operation import ResultRows

#: The facts about a job, one row for each group.
EXPLAIN: Final = f"""\
select json_build_object(
    'facts', f.facts operator(pg_catalog.||) jsonb_build_object('read_at', clock_timestamp())
        operator(pg_catalog.||) case when w.group_name is not null
           then jsonb_build_object('flow', to_jsonb(w)
               operator(pg_catalog.-) '{{steps,group_name}}'::text[]
               operator(pg_catalog.||) jsonb_build_object(
                   'group', w.group_name, 'steps', '[]'::jsonb)) else '{{}}' end,
    'job', case when f.group_name is not null then {STATUS} end,
    'errors', coalesce(h.errors, '[]'))::text
from forebay.explain_job(%(job_id)s::bigint) f
left join forebay.job(%(job_id)s::bigint) j on j.group_name operator(pg_catalog.=) f.group_name
left join forebay.job_history(%(job_id)s::bigint) h
    on h.group_name operator(pg_catalog.=) f.group_name
left join forebay.flow(%(job_id)s::bigint) w on w.group_name operator(pg_catalog.=) f.group_name
where f.group_name is null or j.job_id is not null"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    facts: Facts
    job: JobStatus | None
    errors: list[Failure]


def explain_job(job_id: int) -> Operation[list[Explanation]]:
    """Return the call that finds why a job does not run, for each group of its queue."""

    def decode(rows: ResultRows) -> list[Explanation]:
        return explanations(job_id, [json.loads(text) for (text,) in rows])

    return Operation(EXPLAIN, decode, {"job_id": checked_id(job_id, "job_id")})


def explanations(job_id: int, found: Sequence[object]) -> list[Explanation]:
    """Return the explanations of a job from decoded rows of ``EXPLAIN``."""
    read = [msgspec.convert(one, _Read) for one in found]
    return [
        explain_absence(job_id, one.facts)
        if one.job is None
        else explain(one.job, one.errors, one.facts)
        for one in read
    ]

"""Search the log, replay its jobs, and look at a moment of the past."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from forebay.errors import InvalidJob, shown
from forebay.model import JobState, checks
from forebay.model.archive import FoundJobs
from forebay.ops.jobs import LIST_MAX, STATUS
from forebay.ops.operation import Operation

if TYPE_CHECKING:
    from forebay.model.change import JobFilter
    from forebay.ops.operation import ResultRows

#: Most rows that one call of a search reads: a fifth of a second or so.
BUDGET: Final = 200_000

_SEARCH: Final = f"""\
select json_build_object(
    'next', s.next, 'looked_at', s.looked_at, 'remaining', s.remaining,
    'jobs', (select coalesce(json_agg({STATUS}) order by u.nr), '[]')
             from unnest(s.job_ids) with ordinality u (job_id, nr) cross join lateral forebay.job(u.job_id) j))::text
from forebay.search_jobs(%(filter)s::jsonb, only_state => %(state)s, contains => %(contains)s, most => %(limit)s::integer,
                         before => %(before)s::bigint, budget => %(budget)s::integer) s"""


def search(
    *,
    which: JobFilter | None = None,
    state: JobState | str | None = None,
    contains: str | None = None,
    limit: int = 50,
    before: int | None = None,
    budget: int = BUDGET,
) -> Operation[FoundJobs]:
    """Return the call that finds jobs in the log: one page."""
    params = {
        "filter": json.dumps({"all": True} if which is None else which.as_json()),
        "state": checked_state(state),
        "contains": contains,
        "limit": checks.checked_integer(limit, "limit", least=1, most=LIST_MAX),
        "before": before,
        "budget": checks.checked_integer(budget, "budget", least=1000, most=10_000_000),
    }

    def decode(rows: ResultRows) -> FoundJobs:
        ((text,),) = rows
        return msgspec.convert(json.loads(text), FoundJobs)

    return Operation(_SEARCH, decode, params)


def checked_state(state: JobState | str | None) -> str | None:
    """Return a state as text; raise ``InvalidJob`` if it is none."""
    if state is not None and state not in set(JobState):
        raise InvalidJob("state", f"is {shown(state)}", hint=f"States are {', '.join(JobState)}.")
    return None if state is None else str(state)

"""Search the log, replay its jobs, and look at a moment of the past."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypedDict, cast

import msgspec

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, shown
from forebay.model import JobState, checks
from forebay.model.archive import Family, FoundJobs, JobAt, Replay, ReplayPlan
from forebay.ops.jobs import LIST_MAX, STATUS, checked_id
from forebay.ops.operation import Operation, scalar
from forebay.ops.records import rows_as

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.model.change import JobFilter
    from forebay.ops.operation import ResultRows

#: Most rows that one call of a search reads: a fifth of a second or so.
BUDGET: Final = 200_000

#: Most jobs whose state one call of a search asks for: up to a second.
STATES: Final = 1000

_SEARCH: Final = f"""\
select json_build_object(
    'next', s.next, 'looked_at', s.looked_at, 'remaining', s.remaining,
    'jobs', (select coalesce(jsonb_agg({STATUS} order by u.nr), '[]')
             from unnest(s.job_ids) with ordinality u (job_id, nr)
                 cross join lateral forebay.job(u.job_id) j))::text
from forebay.search_jobs(%(filter)s::jsonb, only_state => %(state)s, contains => %(contains)s,
    most => %(limit)s::integer,
                         before => %(before)s::bigint, budget => %(budget)s::integer,
                         states => %(states)s::integer) s"""


def search(
    *,
    which: JobFilter | None = None,
    state: JobState | str | None = None,
    contains: str | None = None,
    limit: int = 50,
    before: int | None = None,
    budget: int = BUDGET,
    states: int = STATES,
) -> Operation[FoundJobs]:
    """Return the call that finds jobs in the log: one page.

    Args:
        which: the filter; None: all jobs.
        state: in any group; None: any.
        contains: a text in the arguments or in an error; None: any.
        limit: jobs at most.
        before: only jobs whose first row has a lower number; None: from the newest on.
        budget: rows that it reads at most.
        states: jobs whose state it asks for at most.

    Raises:
        InvalidJob: the state is unknown, or a number is out of its range.
    """
    params = {
        "filter": json.dumps({"all": True} if which is None else which.as_json()),
        "state": checked_state(state),
        "contains": contains,
        "limit": checks.checked_integer(limit, "limit", least=1, most=LIST_MAX),
        "before": before,
        "budget": checks.checked_integer(budget, "budget", least=1000, most=10_000_000),
        "states": checks.checked_integer(states, "states", least=1, most=10_000),
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


#: Jobs of one step of a replay: about a fifth of a second.
_REPLAY_STEP: Final = 20_000

_PLAN: Final = """\
select to_jsonb(p)::text
from forebay.plan_replay(%(filter)s::jsonb, %(options)s::jsonb) p"""

_REPLAY: Final = """\
select r.replay_id, r.total, r.is_over, r.redacted
from forebay.replay_jobs(%(filter)s::jsonb, %(options)s::jsonb, %(token)s, %(most)s::integer,
    %(replay_id)s::bigint) r"""

_AT: Final = """\
select to_jsonb(a)::text
from forebay.jobs_at(%(at)s::timestamptz, %(queue)s, %(limit)s::integer) a"""


@dataclass(slots=True)
class ReplaySteps:
    """The steps of a replay, each a separate transaction: run each operation of ``operations()``.

    Args:
        which: the jobs; None continues a replay.
        options: as ``forebay.replay_jobs`` takes them.
        token: of the plan.
        replay_id: of the replay to continue.
        at_once: one step takes all jobs.
    """

    which: JobFilter | None
    options: dict[str, str]
    token: str | None = None
    replay_id: int | None = None
    at_once: bool = False
    jobs: int = 0
    redacted: int = 0
    _is_over: bool = False

    def operations(self) -> Iterator[Operation[int]]:
        """Yield the call of each step; its result is the number of jobs so far."""
        wanted = None if self.which is None else json.dumps(self.which.as_json())
        while not self._is_over:
            yield Operation(
                _REPLAY,
                self._note,
                {
                    "filter": wanted,
                    "options": json.dumps(self.options),
                    "token": self.token,
                    "most": 1_000_000 if self.at_once else _REPLAY_STEP,
                    "replay_id": self.replay_id,
                },
            )

    @property
    def result(self) -> Replay:
        """What the steps did."""
        assert self.replay_id is not None
        return Replay(replay_id=self.replay_id, jobs=self.jobs, redacted=self.redacted)

    def _note(self, rows: ResultRows) -> int:
        ((self.replay_id, self.jobs, self._is_over, self.redacted),) = rows
        return self.jobs


class ReplayOptions(TypedDict, total=False):
    """What a replay takes besides its filter, and who gets the jobs.

    Attributes:
        group: only this consumer group of their queue gets the new jobs. None: each group.
        state: only jobs in this state in a consumer group.
        unfinished_at: only jobs that had been enqueued and had not ended at this time.
        died_after: only jobs that died since this instant; the state is ``"dead"``.
        died_before: only jobs that died before this instant; the state is ``"dead"``.
    """

    group: str | None
    state: JobState | str | None
    unfinished_at: datetime | None
    died_after: datetime | None
    died_before: datetime | None


def replay_options(options: ReplayOptions) -> dict[str, str]:
    """Return the options of a replay, checked."""
    given: dict[str, str] = {}
    for name, value in options.items():
        if name not in ReplayOptions.__annotations__:
            raise TypeError(f"{name!r} is no option of a replay")
        if value is None:
            continue
        if name == "group":
            given[name] = checks.checked_name(value, name)
        elif name == "state":
            given[name] = str(checked_state(cast("str", value)))
        else:
            given[name] = str(checks.instant_text(cast("datetime", value), name))
    return given


def plan_replay(which: JobFilter, options: dict[str, str]) -> Operation[ReplayPlan]:
    """Return the call that tells what a replay would enqueue."""
    return Operation(
        _PLAN,
        lambda rows: rows_as(ReplayPlan, rows)[0],
        {"filter": json.dumps(which.as_json()), "options": json.dumps(options)},
    )


def jobs_at(at: datetime, queue: str | None, limit: int) -> Operation[list[JobAt]]:
    """Return the call that reads which jobs were ready or running at a moment."""
    return Operation(
        _AT,
        lambda rows: rows_as(JobAt, rows),
        {
            "at": checks.instant_text(at, "at"),
            "queue": queue,
            "limit": checks.checked_integer(limit, "limit", least=1, most=10_000),
        },
    )


#: The family of a job, one row.
FAMILY: Final = """\
select jsonb_build_object(
    'parent', (array_agg(jsonb_build_object('job_id', f.relative, 'kind', f.kind, 'state', f.state))
               filter (where f.relation operator(pg_catalog.=) 'parent'))[1],
    'children', coalesce(jsonb_agg(
        jsonb_build_object('job_id', f.relative, 'kind', f.kind, 'state', f.state)
        order by f.relative desc)
            filter (where f.relation operator(pg_catalog.=) 'child' and f.relative is not null),
        '[]'),
    'is_complete', coalesce(bool_and(f.is_last), true))::text
from forebay.family(%(job_id)s::bigint, %(most)s::integer) f"""


def family(job_id: int, most: int) -> Operation[Family]:
    """Return the call that finds what enqueued a job, and what it has enqueued."""
    return Operation(
        FAMILY,
        lambda rows: msgspec.json.decode(scalar(rows), type=Family),
        {
            "job_id": checked_id(job_id, "job_id"),
            "most": checks.checked_integer(most, "most", least=1, most=100),
        },
    )

"""Where a job is: find it, and read what is known of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.errors import InvalidJob, shown
from forebay.model.archive import Family, FoundAs, JobAttempt, Whereabouts
from forebay.model.explanation import Explanation
from forebay.model.flows import FlowState
from forebay.model.status import JobHistory, JobStatus
from forebay.model.text import whole_number
from forebay.ops.archive import FAMILY
from forebay.ops.flows import FLOW
from forebay.ops.jobs import STATUS
from forebay.ops.operation import Operation
from forebay.ops.results import HISTORY
from forebay.watch.explain import EXPLAIN, explanations
from forebay.watch.explanation import explain
from forebay.watch.facts import Facts
from forebay.watch.next_step import next_step

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

#: Most jobs of one correlation id or key that are shown.
JOBS_MAX: Final = 20

#: Most jobs that it has enqueued that are shown.
RELATIVES_MAX: Final = 20

_ATTEMPTS: Final = """\
select to_jsonb(a) operator(pg_catalog.||)
    jsonb_build_object('group', a.group_name, 'xid', a.xid::text::bigint)
from forebay.job_attempts(%(job_id)s::bigint) a"""

_FAMILY: Final = FAMILY.replace("%(most)s", str(RELATIVES_MAX)).replace(")::text\n", ")\n")

_CHOSEN: Final = "(select c.job_id from chosen c)"
_ENDED: Final = "'{done,cancelled,expired,dead}'"


def _details(query: str) -> str:
    """Return a list of the rows of a query about one job, for the chosen one; null without one."""
    about = query.replace("%(job_id)s::bigint", _CHOSEN)
    return (
        f"case when {_CHOSEN} is not null then (select json_agg(i.one::json) from ({about}) i "
        f"(one)) end"
    )


# One statement: a second one would open a second connection, and both would plan the same
# functions.
_WHERE: Final = f"""\
with found as materialized (
    select row_number() over () as nr, w.found_as, w.is_last, j.job_id, j.state, {STATUS} as job
    from forebay.where_is(%(what)s, {JOBS_MAX}, %(as_key)s::boolean) w
    cross join lateral forebay.job(w.job_id) j),
-- The newest unfinished job, or the newest; an unknown id too.
chosen as materialized (
    select coalesce((select f.job_id from found f
                     order by f.state operator(pg_catalog.=) any ({_ENDED}), f.nr limit 1),
                    %(number)s::bigint) as job_id)
select json_build_object(
    'found', (select json_agg(json_build_object('found_as', f.found_as, 'is_last', f.is_last,
        'job', f.job) order by f.nr) from found f),
    'job_id', {_CHOSEN},
    'attempts', {_details(_ATTEMPTS)},
    'histories', {_details(HISTORY)},
    'flows', {_details(FLOW)},
    'family', {_details(_FAMILY)} operator(pg_catalog.->) 0,
    'facts', case when not exists (select from found f
                                    where f.job_id operator(pg_catalog.=) {_CHOSEN})
                    or exists (select from found f
                               where f.job_id operator(pg_catalog.=) {_CHOSEN}
                               and f.state operator(pg_catalog.<>) all ({_ENDED}))
                  then {_details(EXPLAIN)} end)::text"""


class _Match(msgspec.Struct):
    found_as: FoundAs
    is_last: bool
    job: JobStatus


class _Answer(msgspec.Struct):
    job_id: int | None
    found: list[_Match] | None
    attempts: list[JobAttempt] | None
    histories: list[JobHistory] | None
    flows: list[Any] | None
    family: Any | None
    facts: list[Any] | None


def where(what: object, *, as_key: bool = False) -> Operation[Whereabouts]:
    """Return the call that finds jobs by an id, a correlation id or a key, and reads what is
    known of one.
    """
    if isinstance(what, bool) or not isinstance(what, int | str):
        raise InvalidJob("what", f"must be a text or a number, not {shown(what)}")
    text = str(what)
    if not 1 <= len(text) <= 1000:
        raise InvalidJob("what", f"has {len(text)} characters, not 1 to 1000")

    def decode(rows: ResultRows) -> Whereabouts:
        ((answer,),) = rows
        return _whereabouts(text, msgspec.convert(json.loads(answer), _Answer))

    return Operation(
        _WHERE,
        decode,
        {"what": text, "as_key": as_key, "number": None if as_key else whole_number(text)},
    )


def _of_ended(read: _Answer, found: list[Any], flows: dict[str, FlowState]) -> list[Explanation]:
    # It has ended in every group: that alone is the answer, without a look at workers, limits and
    # keys.
    errors = {history.group: history.errors for history in read.histories or ()}
    now = datetime.now(UTC)
    ended = [match.job for match in found if match.job.job_id == read.job_id]
    return [
        explain(job, errors.get(job.group, ()), Facts(read_at=now, flow=flows.get(job.group)))
        for job in ended
    ]


def _whereabouts(what: str, read: _Answer) -> Whereabouts:
    found = read.found or []
    flows = {one.group: one for one in msgspec.convert(read.flows or [], list[FlowState])}
    reasons = [] if read.job_id is None else explanations(read.job_id, read.facts or [])
    if read.facts is None:
        reasons = _of_ended(read, found, flows)
    by_group = {one.group: one for one in reasons}
    return Whereabouts(
        what=what,
        found_as=found[0].found_as if found else None,
        is_complete=all(match.is_last for match in found),
        jobs=[match.job for match in found],
        job_id=read.job_id if found else None,
        attempts=read.attempts or [],
        histories=read.histories or [],
        flows=list(flows.values()),
        family=Family() if read.family is None else msgspec.convert(read.family, Family),
        explanations=reasons,
        next_steps={
            match.job.group: next_step(
                match.job, by_group.get(match.job.group), flows.get(match.job.group)
            )
            for match in found
            if match.job.job_id == read.job_id
        },
    )

"""Where a job is: find it, and read what is known of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from forebay.errors import InvalidJob, shown
from forebay.model.archive import FoundAs, JobAttempt, Whereabouts
from forebay.model.status import JobHistory, JobStatus
from forebay.ops.explain import EXPLAIN, explanations
from forebay.ops.jobs import STATUS
from forebay.ops.operation import Operation
from forebay.ops.results import HISTORY
from forebay.policy.next_step import next_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.operation import ResultRows

#: Most jobs of one correlation id or key that are shown.
JOBS_MAX: Final = 20

_FIND: Final = f"""\
select json_build_object('found_as', w.found_as, 'is_last', w.is_last, 'job', {STATUS}))::text
from forebay.where_is(%(what)s, {JOBS_MAX}) w cross join lateral forebay.job(w.job_id) j"""

_ATTEMPTS: Final = """\
select json_build_object(
    'group', a.group_name, 'attempt', a.attempt, 'seq', a.seq, 'xid', a.xid::text::bigint, 'same_xid', a.same_xid, 'is_first', a.is_first,
    'claimed_at', a.claimed_at, 'worker', a.worker, 'outcome', a.outcome, 'ended_at', a.ended_at, 'millis', a.millis)
from forebay.job_attempts(%(job_id)s::bigint) a"""

_DETAILS: Final = f"""\
select json_build_object(
    'attempts', (select coalesce(json_agg(i.one), '[]') from ({_ATTEMPTS}) i (one)),
    'histories', (select coalesce(json_agg(i.one::json), '[]') from ({HISTORY}) i (one)),
    'facts', (select coalesce(json_agg(i.one::json), '[]') from ({EXPLAIN}) i (one)))::text"""


class _Match(msgspec.Struct):
    found_as: FoundAs
    is_last: bool
    job: JobStatus


@dataclass(frozen=True, slots=True)
class Matches:
    """The jobs that were found."""

    what: str
    found_as: FoundAs | None
    is_complete: bool
    jobs: Sequence[JobStatus]

    @property
    def chosen(self) -> int | None:
        """The job to describe: the newest unfinished one, or the newest; an unknown id too."""
        for job in self.jobs:
            if not job.state.is_final:
                return job.job_id
        if self.jobs:
            return self.jobs[0].job_id
        is_number = self.what.isascii() and self.what.isdigit() and len(self.what) <= 18
        return int(self.what) if is_number else None


def find(what: object) -> Operation[Matches]:
    """Return the call that finds jobs by an id, a correlation id or a key."""
    if isinstance(what, bool) or not isinstance(what, int | str):
        raise InvalidJob("what", f"must be a text or a number, not {shown(what)}")
    text = str(what)
    if not 1 <= len(text) <= 1000:
        raise InvalidJob("what", f"has {len(text)} characters, not 1 to 1000")

    def decode(rows: ResultRows) -> Matches:
        found = [msgspec.convert(json.loads(one), _Match) for (one,) in rows]
        return Matches(
            text,
            found[0].found_as if found else None,
            all(match.is_last for match in found),
            [match.job for match in found],
        )

    return Operation(_FIND, decode, {"what": text})


def details(found: Matches) -> Operation[Whereabouts]:
    """Return the call that reads what is known of the chosen job; there must be one."""
    job_id = found.chosen
    assert job_id is not None

    def decode(rows: ResultRows) -> Whereabouts:
        ((text,),) = rows
        read = json.loads(text)
        reasons = explanations(job_id, read["facts"])
        by_group = {one.group: one for one in reasons}
        return Whereabouts(
            what=found.what,
            found_as=found.found_as,
            is_complete=found.is_complete,
            jobs=found.jobs,
            job_id=job_id if found.jobs else None,
            attempts=msgspec.convert(read["attempts"], list[JobAttempt]),
            histories=msgspec.convert(read["histories"], list[JobHistory]),
            explanations=reasons,
            next_steps={
                job.group: next_step(job, by_group.get(job.group))
                for job in found.jobs
                if job.job_id == job_id
            },
        )

    return Operation(_DETAILS, decode, {"job_id": job_id})


def nothing_found(found: Matches) -> Whereabouts:
    """Return the answer for a text that no job has."""
    return Whereabouts(
        what=found.what,
        found_as=None,
        is_complete=found.is_complete,
        jobs=[],
        job_id=None,
        attempts=[],
        histories=[],
        explanations=[],
        next_steps={},
    )

"""Acts on many jobs: cancel, purge, truncate, retry, reschedule, reprioritise."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from forebay._dataclass import dataclass
from forebay.model import checks
from forebay.model.change import ChangeAct, ChangeAnswer, ChangePlan, ChangeResult, JobFilter
from forebay.ops.operation import Operation, ResultRows

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Most jobs of a step. A cancellation takes no lock; the steps of the others hold the locks of
#: lanes.
_STEP: Final = {"cancel": 50_000, "purge": 50_000, "truncate": 50_000}
_STEP_OF_MOVES: Final = 1_000
_IDS_MAX: Final = 10_000

_PLAN: Final = """\
select to_jsonb(p)::text
from forebay.plan_change(%(act)s, %(filter)s::jsonb, %(options)s::jsonb) p"""

_STEP_SQL: Final = """\
select json_build_array(c.job_id, c.answer, c.jobs, c.event)::text
from forebay.change_jobs(%(act)s, %(filter)s::jsonb, %(options)s::jsonb, token => %(token)s,
                         most => %(most)s::integer, event_id => %(event)s::bigint) c"""


@dataclass(frozen=True, slots=True)
class Change:
    """One checked act: the parameters that all its calls share."""

    act: ChangeAct
    filter: dict[str, Any]
    options: dict[str, Any]

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The filter, in parts that have not too many ids."""
        ids = self.filter.get("ids")
        if ids is None:
            return [self.filter]
        starts = range(0, max(len(ids), 1), _IDS_MAX)
        return [{**self.filter, "ids": ids[start : start + _IDS_MAX]} for start in starts]


def change(
    act: ChangeAct,
    which: JobFilter,
    *,
    run_at: datetime | None = None,
    priority: int | None = None,
    now: bool = False,
) -> Change:
    """Return an act, checked as far as possible without a database.

    Raises:
        InvalidJob: the filter or an option is invalid.
    """
    options: dict[str, Any] = {"now": True} if now and act in ("cancel", "purge") else {}
    if act == "reschedule":
        options["run_at"] = checks.checked_instant(run_at, "run_at").isoformat()
    elif act == "reprioritise":
        options["priority"] = checks.checked_integer(
            priority, "priority", least=checks.PRIORITY_MIN, most=checks.PRIORITY_MAX
        )
    return Change(act, which.as_json(), options)


def plan(what: Change) -> Operation[ChangePlan]:
    """Return the call that tells what an act would do."""
    return Operation(_PLAN, _plan_of, _params(what, what.filter))


@dataclass(slots=True)
class Steps:
    """The steps of an act, each a separate transaction: run each operation of ``next()`` until
    there is none.

    Args:
        what: the act.
        token: of the plan; None for none.
        at_once: one step takes all jobs.
    """

    what: Change
    token: str | None = None
    at_once: bool = False
    _answers: Counter[str] = field(default_factory=Counter)
    _jobs: dict[int, ChangeAnswer] = field(default_factory=dict)
    _event: int | None = None
    _taken: int = 0

    def operations(self) -> Iterator[Operation[int]]:
        """Yield the call of each step; its result is the number of jobs taken so far."""
        for part in self.what.parts:
            has_ids = "ids" in part
            most = None if self.at_once else _STEP.get(self.what.act, _STEP_OF_MOVES)
            if has_ids and most is not None:
                most = max(most, _IDS_MAX)
            while True:
                before = self._taken
                params = _params(self.what, part)
                yield Operation(
                    _STEP_SQL,
                    self._note,
                    {**params, "token": self.token, "most": most, "event": self._event},
                )
                # The steps of a truncation end by themselves: they take only what waited at the
                # first one.
                least = 1 if self.what.act == "truncate" else most
                if has_ids or least is None or most is None or self._taken - before < least:
                    break

    @property
    def result(self) -> ChangeResult:
        """What the steps did."""
        return ChangeResult(answers=dict(self._answers), jobs=dict(self._jobs))

    def _note(self, rows: ResultRows) -> int:
        for (text,) in rows:
            job_id, answer, jobs, event = json.loads(text)
            self._answers[answer] += jobs
            self._event = event if event is not None else self._event
            if answer in ("cancelled", "requested", "changed"):
                self._taken += jobs
            if job_id is not None:
                self._jobs[job_id] = cast("ChangeAnswer", answer)
        return self._taken


def _params(what: Change, part: dict[str, Any]) -> dict[str, Any]:
    return {"act": what.act, "filter": json.dumps(part), "options": json.dumps(what.options)}


def _plan_of(rows: ResultRows) -> ChangePlan:
    found = [json.loads(text) for (text,) in rows]
    answers: Counter[str] = Counter()
    states: Counter[str] = Counter()
    times = []
    for row in found:
        if row["answer"] is None:
            continue
        answers[row["answer"]] += row["jobs"]
        if row["answer"] in ("cancelled", "requested", "changed"):
            states[row["state"]] += row["jobs"]
            times += [datetime.fromisoformat(row[name]) for name in ("oldest_at", "newest_at")]
    return ChangePlan(
        token=found[0]["token"],
        jobs=sum(states.values()),
        answers=dict(answers),
        states=dict(states),
        oldest_at=min(times, default=None),
        newest_at=max(times, default=None),
    )

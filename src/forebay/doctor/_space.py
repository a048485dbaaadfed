"""What alerts know and no other check has: sizes, growth, whether a write succeeds now, and the
problems that hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.doctor._finding import Finding, Level
from forebay.model.text import human_bytes
from forebay.watch.problems import problems, unseen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.model.problems import Problem

_SPACE: Final = frozenset({"writes", "size"})

#: Problems at which another check looks more closely.
_DEEPER: Final = frozenset({
    "A3", "dead-growing", "unserved", "overdue", "breaker", "endpoint-full", "schedule",
    "snapshot", "maintenance", "reserve", "export", "unchecked",
})  # fmt: skip


def judge_measured(data: Mapping[str, Any]) -> list[Finding]:
    """Return whether writes succeed, how large the database is, and what else holds.

    Args:
        data: what was measured, with ``write_failed``.
    """
    space = data["space"]
    what = f"a write succeeds; the log has {human_bytes(space['log_bytes'])}"
    if space["database_bytes"] is not None:
        what += f", the database {human_bytes(space['database_bytes'])}"
    if space["growth_bytes"] is not None:
        what += f", {_growth(space['growth_bytes'])} a day"
    facts = {**space, "write_failed": data["write_failed"]}
    found = [
        _finding(one, "space" if one.code in _SPACE else one.code, facts)
        for one in problems(data)
        if one.state == "holds" and one.code not in _DEEPER
    ]
    found += [
        Finding("snapshots", Level.NOTICE, one.cause, one.hint, {"unseen": True})
        for one in unseen(data)
    ]
    is_fine = all(finding.check != "space" for finding in found)
    return [*([Finding("space", Level.OK, what, facts=facts)] if is_fine else []), *found]


def _finding(problem: Problem, check: str, facts: Mapping[str, Any]) -> Finding:
    level = Level.ERROR if problem.severity == "error" and check == "space" else Level.WARNING
    what = problem.cause if check == "space" else f"{problem.subject}: {problem.cause}".lstrip(": ")
    return Finding(check, level, what, problem.hint, facts if check == "space" else {})


def _growth(growth: float) -> str:
    return f"{'shrinks' if growth < 0 else 'grows'} by {human_bytes(abs(growth))}"

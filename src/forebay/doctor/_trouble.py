"""Trouble of the database as the reason why one job does not run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from forebay.doctor._finding import Finding, Level
from forebay.model.explanation import Explanation, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Checks that can find why jobs do not start although workers live, in this order.
TROUBLES: Final = ("schema", "cluster", "locks", "maintenance", "reserve", "notifications")

#: After these answers a problem of the database is the better one.
AFTER_WHICH_TROUBLE_COUNTS: Final = frozenset({"soon", "overdue", "busy", "jobs before"})

_QUESTION: Final = "database"


def with_trouble(explanation: Explanation, findings: Sequence[Finding]) -> Explanation:
    """Return an explanation with the worst problem of the database as its answer, if there is
    one that explains more.
    """
    if explanation.cause not in AFTER_WHICH_TROUBLE_COUNTS:
        return explanation
    severe = [one for one in findings if one.level in (Level.ERROR, Level.WARNING)]
    if not severe:
        return replace(explanation, steps=[*explanation.steps, Step(_QUESTION, "no problem found")])
    worst = min(severe, key=lambda one: one.level.rank)
    return replace(
        explanation,
        cause="trouble",
        answer=worst.what,
        hint=worst.remedy,
        steps=[*explanation.steps, Step(_QUESTION, f"{worst.check}: {worst.what}")],
    )

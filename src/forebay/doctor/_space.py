"""Sizes, growth, and whether a write succeeds now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.doctor._finding import Finding, Level
from forebay.model.text import human_bytes
from forebay.watch.problems import judged

if TYPE_CHECKING:
    from collections.abc import Mapping


def judge_space(data: Mapping[str, Any]) -> list[Finding]:
    """Return whether writes succeed, and how large the database is.

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
        Finding(
            "space",
            Level.ERROR if alert.severity == "error" else Level.WARNING,
            alert.problem,
            alert.hint,
            facts,
        )
        for alert in judged(data)
        if alert.code in ("writes", "size")
    ]
    return found or [Finding("space", Level.OK, what, facts=facts)]


def _growth(growth: float) -> str:
    return f"{'shrinks' if growth < 0 else 'grows'} by {human_bytes(abs(growth))}"

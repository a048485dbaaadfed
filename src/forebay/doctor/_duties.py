"""Duties of maintenance that fail or are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.doctor._finding import Finding, Level
from forebay.ops.operation import Operation
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

_CHECK: Final = "maintenance"

#: A duty that is not well is reported once a minute. After this time without a report no worker
#: does it.
_SILENT_SECONDS: Final = 300.0

_SQL: Final = """
select d.name, d.error, d.worker,
       greatest(extract(epoch from clock_timestamp() - d.since), 0)::float8,
       greatest(extract(epoch from clock_timestamp() - d.recorded_at), 0)::float8
from forebay.duty d order by d.since
"""


def duties() -> Operation[list[Finding]]:
    """Duties that the leader of maintenance reports."""
    return Operation(_SQL, _judge)


def _judge(rows: ResultRows) -> list[Finding]:
    found = [_finding(*row) for row in rows]
    return found or [Finding(_CHECK, Level.OK, "no duty fails or is behind")]


def _finding(name: str, error: str | None, worker: str, seconds: float, age: float) -> Finding:
    facts = {"duty": name, "error": error, "worker": worker, "seconds": seconds, "reported": age}
    since = human_duration(seconds)
    if age > _SILENT_SECONDS:
        return Finding(
            _CHECK,
            Level.WARNING,
            f"{name}: not done for {since}, and not tried for {human_duration(age)}",
            "Start a worker: one worker of a database does the maintenance. So does each tick.",
            facts,
        )
    if error is None:
        return Finding(
            _CHECK,
            Level.WARNING,
            f"{name} is behind: its pass is not over after {since}",
            "See locks and snapshots; if there is nothing, give the server more CPU or "
            "faster storage. Work is in steps, so"
            " it catches up by itself when the load falls.",
            facts,
        )
    return Finding(
        _CHECK,
        Level.WARNING,
        f"{name} fails since {since}: {error}",
        (
            f"Remove the cause; {worker or 'the leader'} tries again at least once a minute, "
            f"and its log has every error."
        ),
        facts,
    )

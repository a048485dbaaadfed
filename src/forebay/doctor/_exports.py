"""Exports that segments wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.doctor._finding import Finding, Level
from forebay.model.text import counted
from forebay.ops.operation import Operation
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

_CHECK: Final = "exports"

_SQL: Final = """
select e.name, e.hold_hours, e.waiting, e.due, extract(epoch
    from clock_timestamp() - e.due_at)::float8, e.missed,
       extract(epoch from clock_timestamp() - e.missed_at)::float8
from forebay.exports() e
"""


def exports() -> Operation[list[Finding]]:
    """Exports that lag, so that segments past their retention wait, or were emptied."""
    return Operation(_SQL, _judge)


def _judge(rows: ResultRows) -> list[Finding]:
    found = [_finding(row) for row in rows]
    return found or [Finding(_CHECK, Level.OK, "no segment waits for an export")]


def _finding(row: tuple[Any, ...]) -> Finding:
    name, hold_hours, waiting, due, due_seconds, missed, missed_seconds = row
    facts = {
        "export": name,
        "waiting": waiting,
        "due": due,
        "due_seconds": due_seconds,
        "missed": missed,
    }
    run = (
        f"`forebay exports run {name} DIRECTORY`, regularly; `forebay exports drop {name}` if "
        f"it is not needed."
    )
    if due_seconds is not None:
        left = hold_hours * 3600 - due_seconds
        return Finding(
            _CHECK,
            Level.WARNING,
            f"{counted(due, 'segment')} past retention for export {name}, which has not "
            f"written them for"
            f" {human_duration(due_seconds)}; the oldest is emptied in "
            f"{human_duration(max(left, 0.0))}",
            run,
            facts,
        )
    if missed_seconds is not None:
        return Finding(
            _CHECK,
            Level.WARNING,
            f"{counted(missed, 'segment')} emptied before export {name} had written them, the last"
            f" {human_duration(missed_seconds)} ago",
            run,
            facts,
        )
    return Finding(
        _CHECK, Level.OK, f"export {name}: {counted(waiting, 'segment')} to write", None, facts
    )

"""Sessions that hold a lock for which claims, enqueues or maintenance have to wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from forebay.doctor._finding import Finding, Level
from forebay.ops.locks import lock_holders
from forebay.ops.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.locks import LockHolder

CHECK: Final = "locks"

#: Our functions hold these locks for a fraction of a second.
_HELD_SECONDS: Final = 5.0

_ACTIVE_SECONDS: Final = 60.0

#: Where this role may not see the times of other roles' sessions.
GRANT_TO_SEE: Final = (
    "As an administrator: grant pg_read_all_stats to the role that runs the doctor."
)

_START_WORKER: Final = "Start a worker"


def locks() -> Operation[list[Finding]]:
    """Transactions that have held such a lock for long."""
    found = lock_holders()
    return Operation(found.sql, lambda rows: judge_locks(found.decode(rows)))


def judge_locks(found: Sequence[LockHolder]) -> list[Finding]:
    """Return a finding for each transaction that has held a lock, or made a session wait, for
    long.
    """
    findings = [
        _finding(holder, Level.ERROR) if _is_stuck(holder) else _finding(holder, Level.NOTICE)
        for holder in found
        if _is_stuck(holder) or holder.seconds is None
    ]
    return findings or [Finding(CHECK, Level.OK, "no session holds a lock of the engine for long")]


def without_workers(found: Sequence[Finding]) -> list[Finding]:
    """Return findings with the advice to release the lock in place of that to start a worker,
    which would wait as well.
    """
    if all(finding.check != CHECK or finding.level is not Level.ERROR for finding in found):
        return list(found)
    advice = "A session holds a lock that stops workers: see locks. Release that lock first."
    return [
        replace(finding, remedy=advice)
        if finding.remedy is not None and finding.remedy.startswith(_START_WORKER)
        else finding
        for finding in found
    ]


def _is_stuck(holder: LockHolder) -> bool:
    if holder.waiting_seconds >= _HELD_SECONDS:
        return True
    # Without a waiting session, a statement in progress may be a long maintenance task.
    limit = _ACTIVE_SECONDS if holder.state == "active" else _HELD_SECONDS
    return (holder.seconds or 0.0) >= limit


def _finding(holder: LockHolder, level: Level) -> Finding:
    facts: dict[str, object] = {
        "pid": holder.pid,
        "prepared": holder.prepared,
        "user": holder.user,
        "application": holder.application,
        "state": holder.state,
        "seconds": holder.seconds,
        "query_seconds": holder.query_seconds,
        "tables": list(holder.tables),
        "waiting": holder.waiting,
        "waiting_seconds": holder.waiting_seconds,
    }
    if level is Level.ERROR:
        return Finding(CHECK, level, f"{holder}", holder.remedy, facts)
    what = f"{holder}; this role may not see for how long"
    return Finding(CHECK, level, what, GRANT_TO_SEE, {**facts, "unseen": True})

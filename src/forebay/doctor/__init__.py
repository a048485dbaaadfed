"""The doctor: checks of a database, and what to do about each finding.

Each check is one statement and a judgement of its rows. Checks are independent: a check that fails
does not hide the others. No check writes anything or waits for a lock for long.
"""

from __future__ import annotations

from typing import Final

from forebay.doctor import (
    _deaths,
    _duties,
    _exports,
    _kinds,
    _locks,
    _log,
    _schedules,
    _schema,
    _server,
    _snapshots,
    _steps,
)
from forebay.doctor._finding import (
    Check,
    Finding,
    Level,
)
from forebay.doctor._locks import without_workers
from forebay.doctor._schema import catalog, installed, judge_installed, judge_objects, not_compared

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "Level",
    "catalog",
    "installed",
    "judge_installed",
    "judge_objects",
    "not_compared",
    "without_workers",
]

#: In the order of the report.
CHECKS: Final = (
    Check("server", _server.server(), needs="nothing"),
    Check("schema", _schema.applied()),
    Check("objects", _schema.objects(), needs="version"),
    Check("cluster", _log.cluster()),
    Check("roles", _server.roles()),
    Check("durability", _server.durability(), needs="nothing"),
    Check("timeouts", _server.timeouts(), needs="nothing"),
    Check("locks", _locks.locks()),
    Check("maintenance", _duties.duties()),
    Check("workers", _log.leases()),
    Check("queues", _log.queues()),
    Check("kinds", _kinds.kinds()),
    Check("held keys", _kinds.held_keys()),
    Check("steps", _steps.steps()),
    Check("scheduled", _log.overdue()),
    Check("breakers", _log.breakers()),
    Check("schedules", _schedules.schedules()),
    Check("failures", _deaths.failures()),
    Check("reserve", _log.reserve()),
    Check("retention", _log.retention()),
    Check("exports", _exports.exports()),
    Check("notifications", _server.notifications(), needs="nothing"),
    Check("snapshots", _snapshots.snapshots(), needs="nothing"),
)

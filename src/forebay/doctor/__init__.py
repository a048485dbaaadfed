"""The doctor: what is wrong with this database, in one look.

Each check is one statement and the judgement of its rows, independent of all others: what one
cannot see does not hide the rest. Nothing is written, and nothing is waited for.
"""

from __future__ import annotations

from typing import Final

from forebay.doctor import _log, _schema, _server, _snapshots
from forebay.doctor._finding import (
    Check,
    Finding,
    Level,
    counted,
    human_bytes,
)
from forebay.doctor._schema import catalog, installed, judge_drift, judge_installed

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "Level",
    "catalog",
    "counted",
    "human_bytes",
    "installed",
    "judge_drift",
    "judge_installed",
]

#: In the order in which they are read out.
CHECKS: Final = (
    Check("server", _server.server(), needs="nothing"),
    Check("schema", _schema.applied()),
    Check("drift", _schema.drift(), needs="version"),
    Check("cluster", _log.home()),
    Check("roles", _server.roles()),
    Check("durability", _server.durability(), needs="nothing"),
    Check("timeouts", _server.timeouts(), needs="nothing"),
    Check("workers", _log.leases()),
    Check("queues", _log.queues()),
    Check("scheduled", _log.overdue()),
    Check("failures", _log.failures()),
    Check("room", _log.reserve()),
    Check("retention", _log.retention()),
    Check("notifications", _server.notifications(), needs="nothing"),
    Check("snapshots", _snapshots.snapshots(), needs="nothing"),
)

"""The metrics of a worker process, beside those of its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.watch.metrics import WORKER_METRICS as WORKER
from forebay.watch.metrics import Exporter, Family, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.worker.ground.stats import Stats
    from forebay.worker.process._health import FleetHealth, HealthCheck

#: The ends of an attempt, as the counters of ``Stats``.
_OUTCOMES = ("done", "retried", "dead", "cancelled", "snoozed", "postponed", "released")


def exporter_of(dsn: str, check: HealthCheck | FleetHealth, stats: Sequence[Stats]) -> Exporter:
    """Return what answers /metrics: the metrics of the database, and of the workers in this
    process.

    Args:
        dsn: the database of the workers.
        check: reads their health, in any thread.
        stats: their counters, which are read in any thread.
    """
    return Exporter(dsn, process=lambda: _families(check, stats))


def _families(check: HealthCheck | FleetHealth, stats: Sequence[Stats]) -> list[Family]:
    health = check.read()

    def total(name: str) -> float:
        return float(sum(getattr(each, name) for each in stats))

    values: dict[str, list[Sample]] = {
        "forebay_worker_claimed_jobs_total": [((), total("claimed"))],
        "forebay_worker_attempts_total": [((name,), total(name)) for name in _OUTCOMES],
        "forebay_worker_steps_total": _steps(stats),
        "forebay_worker_leases_lost_total": [((), total("leases_lost"))],
        "forebay_worker_reconnects_total": [((), total("reconnects"))],
        "forebay_worker_listener_errors_total": [((), total("listener_errors"))],
        "forebay_worker_live": [((), float(health.is_live))],
        "forebay_worker_ready": [((), float(health.is_ready))],
    }
    return [Family(name, sort, text, labels, values[name]) for name, sort, text, labels in WORKER]


def _steps(stats: Sequence[Stats]) -> list[Sample]:
    found: dict[tuple[str, ...], float] = {}
    for each in stats:
        for which, count in list(each.steps.items()):
            found[which] = found.get(which, 0.0) + count
    return list(found.items())

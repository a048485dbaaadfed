"""What the rules of alerts are about: the measurements, with their thresholds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from forebay.policy.keys import next_probe

if TYPE_CHECKING:
    from collections.abc import Mapping

#: An alert that fires needs this share of its threshold to clear, so that a value at the threshold
#: does not flap.
CLEAR_SHARE: Final = 0.8

#: In the first hour of an installation, what has never worked is no alert: it is being set up.
NEW_SECONDS: Final = 3600.0

#: The thresholds, with their defaults. The meaning of each is in docs/howto/monitoring.md.
THRESHOLDS: Final[Mapping[str, float]] = {
    "completed_least": 0.0,
    "stalled_for": 600.0,
    "waiting_most": 10_000.0,
    "waiting_for": 600.0,
    "oldest_ready": 600.0,
    "unserved_for": 60.0,
    "overdue_for": 60.0,
    "dead_most": 0.0,
    "dead_lately_most": 100.0,
    "breaker_for": 60.0,
    "breakers_most": 0.0,
    "lost_most": 0.0,
    "drift_most": 0.0,
    "snapshot_for": 900.0,
    "dead_rows_most": 1_000_000.0,
    "maintenance_for": 300.0,
    "reserve_share": 0.5,
    "schedule_late": 120.0,
    "undecided_for": 60.0,
    "export_late": 3600.0,
    "database_bytes_most": 0.0,
    "full_within": 259_200.0,
}


class Watched:
    """The measurements, their thresholds and the alerts that fire.

    Args:
        data: what ``forebay.measurements()`` returned.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.at = float(data["at"])
        self.is_new = self.at - float(data["installed_at"] or 0) < NEW_SECONDS
        self._set = {(t["name"], t["queue"], t["tag"]): t["value"] for t in data["thresholds"]}
        self._open = {
            (a["code"], a["subject"], a["group"])
            for a in data["alerts"]
            if a["fired_at"] is not None
        }

    def threshold(self, name: str, queue: str = "", tag: str | None = None) -> float:
        """Return the most special value: of queue and tag, of the tag, of the queue, of all, the
        default.
        """
        for place in ((queue, tag or ""), ("", tag or ""), (queue, ""), ("", "")):
            value = self._set.get((name, *place))
            if value is not None:
                return float(value)
        return THRESHOLDS[name]

    def exceeds(
        self, value: float, threshold: float, code: str, subject: str = "", group: str = ""
    ) -> bool:
        """Whether a value is above a threshold.

        For an alert that fires, the level at which it clears counts instead.
        """
        if self.is_open(code, subject, group):
            return value > threshold * CLEAR_SHARE
        return value > threshold

    def is_open(self, code: str, subject: str = "", group: str = "") -> bool:
        """Whether an alert has fired, and is not over."""
        return (code, subject, group) in self._open

    def instant(self, seconds: float | None) -> datetime | None:
        """Return an instant of the measurements."""
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    def tick_seconds(self, queue: str | None, group: str = "") -> float:
        """Return how long jobs of a queue, or instants of schedules, may wait for the next tick.

        0: no tick is expected. What waits for a tick is no alert before that tick is late.
        """
        return max(
            (
                tick["expected_by"] - tick["ended_at"]
                for tick in self.data["ticks"]
                if tick["expected_by"] > self.at
                and (
                    tick["schedules"]
                    if queue is None
                    else tick["group"] == group and queue in tick["queues"]
                )
            ),
            default=0.0,
        )

    def any_tick_seconds(self) -> float:
        """Return how long due jobs may wait for the next tick: each makes those of all queues
        ready, as any worker that stays does.
        """
        return max(
            (
                tick["expected_by"] - tick["ended_at"]
                for tick in self.data["ticks"]
                if tick["expected_by"] > self.at and tick["alone"]
            ),
            default=0.0,
        )

    def open_breakers(self, queue: str) -> int:
        """Return how many limit keys of a queue have an open breaker."""
        return next((one["open"] for one in self.data["breakers"] if one["queue"] == queue), 0)

    def next_probe(self, seconds: float | None) -> str:
        """Return when the next probe of an open breaker runs."""
        return next_probe(self.instant(seconds or self.at), datetime.fromtimestamp(self.at, UTC))

"""What is wrong now, whether or not a process has recorded it.

Shown by: tests/cli/test_full_disk.py.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from forebay.watch.rules import alerts_of_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.model.alerts import Alert

#: A recorded condition that no check saw for this long has begun anew, as record_alerts_v1 says.
_SEEN_SECONDS: Final = 180.0


def judged(data: Mapping[str, Any]) -> list[Alert]:
    """Return every condition that holds now, with since when, as far as that is recorded.

    ``fired_at`` is set for those that have lasted long enough, recorded or not.

    Args:
        data: what ``forebay.measurements()`` returned, with the part ``write_failed`` if a write
            was tried.
    """
    at = datetime.fromtimestamp(data["at"], UTC)
    records = {(one["code"], one["subject"], one["group"]): one for one in data["alerts"]}
    return [_lasting(one, records.get((one.code, one.subject, one.group)), at)
            for one in alerts_of_all(data)]  # fmt: skip


def _lasting(alert: Alert, record: Mapping[str, Any] | None, at: datetime) -> Alert:
    since = min(alert.since or at, at)
    if record is not None:
        has_fired = record["fired_at"] is not None
        if has_fired or at.timestamp() - record["seen_at"] < _SEEN_SECONDS:
            since = min(since, datetime.fromtimestamp(record["since"], UTC))
        if has_fired:
            return replace(
                alert, since=since, fired_at=datetime.fromtimestamp(record["fired_at"], UTC)
            )
    fires = (at - since).total_seconds() >= alert.for_seconds
    return replace(alert, since=since, fired_at=at if fires else None)

"""What is wrong now, whether or not a process has recorded it: the one list of all screens.

Shown by: tests/unit/test_problems.py, tests/cli/test_status.py, tests/cli/test_full_disk.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from forebay.model.alerts import Alert
from forebay.model.problems import Problem
from forebay.model.text import counted
from forebay.policy.retry import human_duration
from forebay.watch.commands import known_app, worker_command
from forebay.watch.rules import CLEAR_SECONDS, alerts_of_all
from forebay.watch.snapshot_rules import grant_to_see
from forebay.watch.watched import NEW_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A recorded condition that no check saw for this long has begun anew, as record_alerts_v1 says.
_SEEN_SECONDS: Final = 180.0

#: After this time without a check, the alerts are unchecked, as forebay.alerts() says.
CHECKED_SECONDS: Final = 180.0

#: The order of the list: the worst first.
_STATES: Final = ("holds", "ending", "pending", "noted")

_COMMAND: Final = re.compile(r"`([^`]+)`")


def problems(data: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong, the worst first; what only threatens, last.

    Args:
        data: what ``forebay.measurements(within_seconds => 900)`` returned, with the part
            ``write_failed`` if a write was tried.
    """
    found = judged(data)
    held = {(one.code, one.subject, one.group) for one in found}
    listed = [problem_of(one, "pending" if one.fired_at is None else "holds") for one in found]
    for record in data["alerts"]:
        is_over = data["at"] - record["seen_at"] > CLEAR_SECONDS
        key = (record["code"], record["subject"], record["group"])
        if record["fired_at"] is not None and key not in held and not is_over:
            listed.append(problem_of(_alert_of(record), "ending"))
    if _is_unchecked(data):
        listed.append(problem_of(_unchecked(data)))
    return in_order(listed)


def pauses(data: Mapping[str, Any]) -> list[Problem]:
    """Return the paused queues with ready jobs, and the workers that are silent and not yet lost:
    no problem, but why jobs do not start or move.

    Args:
        data: see ``problems``.
    """
    return [
        problem_of(
            Alert(
                code="paused",
                subject=one["queue"],
                group=one["group"],
                problem=f"{counted(one['ready'], 'job')} ready, and none starts",
                hint=f"`forebay queues resume {one['queue']}` resumes it.",
                since=datetime.fromtimestamp(one["paused_at"], UTC),
            ),
            "noted",
        )
        for one in data["queues"]
        if one["paused_at"] is not None and one["ready"]
    ] + _silences(data)


def unseen(data: Mapping[str, Any]) -> list[Problem]:
    """Return what this installation cannot see: no problem, but why there may be no alert.

    Args:
        data: see ``problems``.
    """
    facts = data["database"]
    if not facts["sessions_unseen"]:
        return []
    sessions = counted(facts["sessions_unseen"], "session")
    return [
        problem_of(
            Alert(
                code="snapshot",
                problem=f"{facts['owner']}, the owner of the schema, may not see the transactions "
                f"of {sessions}: no alert tells of one that stays open",
                hint=f"As an administrator: `{grant_to_see(facts)}`",
            ),
            "noted",
        )
    ]


def _is_unchecked(data: Mapping[str, Any]) -> bool:
    if data["checked_at"] is None:
        return bool(data["at"] - (data["installed_at"] or data["at"]) > NEW_SECONDS)
    # A tick checks them, too.
    is_expected = any(tick["alone"] and tick["expected_by"] > data["at"] for tick in data["ticks"])
    return bool(data["at"] - data["checked_at"] > CHECKED_SECONDS and not is_expected)


def _unchecked(data: Mapping[str, Any]) -> Alert:
    """Return the alert of forebay.alerts() that no event tells of any alert."""
    checked_at = data["checked_at"]
    return Alert(
        code="unchecked",
        severity="error",
        problem="no process checks the alerts, so that no event tells of them",
        hint="Start a worker, whose maintenance checks them: "
        f"`{worker_command(known_app(data))}`; or run forebay alerts regularly.",
        since=None if checked_at is None else datetime.fromtimestamp(checked_at, UTC),
    )


def _silences(data: Mapping[str, Any]) -> list[Problem]:
    """Return the workers whose heartbeat is overdue, and whose lease still has its jobs."""
    found = []
    for worker in data["workers"]:
        if not worker["is_alive"] or data["at"] - worker["heartbeat_at"] <= worker["silent_after"]:
            continue
        silent = human_duration(round(data["at"] - worker["heartbeat_at"]))
        lost_after = human_duration(worker["lease_seconds"])
        alert = Alert(
            code="silent",
            subject=worker["worker"],
            problem=f"silent for {silent}; after {lost_after} others take its jobs",
            hint="See `forebay workers list`.",
            since=datetime.fromtimestamp(worker["heartbeat_at"], UTC),
        )
        found.append(problem_of(alert, "noted"))
    return found


def in_order(found: Iterable[Problem]) -> list[Problem]:
    """Return problems with the worst first, and of these the oldest."""
    return sorted(
        found,
        key=lambda one: (
            _STATES.index(one.state),
            one.severity != "error",
            # The cause of others.
            one.code != "writes",
            one.since.timestamp() if one.since else 0.0,
            one.name,
        ),
    )


def problem_of(alert: Alert, state: Any = "holds") -> Problem:
    """Return the problem that an alert is about."""
    return Problem(
        name=f"{alert.code} {alert.place}".rstrip(),
        severity=alert.severity,
        state=state,
        since=alert.since,
        for_seconds=alert.for_seconds,
        cause=alert.problem,
        command=command_in(alert.hint),
        hint=alert.hint,
        code=alert.code,
        subject=alert.subject,
        group=alert.group,
    )


def command_in(hint: str) -> str:
    """Return the first command of an advice; the advice, if it has none.

    >>> command_in("Resume it: `forebay queues resume mail`."), command_in("Wait.")
    ('forebay queues resume mail', 'Wait.')
    """
    found = _COMMAND.search(hint)
    return found[1] if found else hint


def judged(data: Mapping[str, Any]) -> list[Alert]:
    """Return every condition that holds now, with since when, as far as that is recorded.

    ``fired_at`` is set for those that have lasted long enough, recorded or not.
    """
    at = datetime.fromtimestamp(data["at"], UTC)
    records = {(one["code"], one["subject"], one["group"]): one for one in data["alerts"]}
    return [
        _lasting(one, records.get((one.code, one.subject, one.group)), at, data["checked_at"])
        for one in alerts_of_all(data)
    ]


def _lasting(
    alert: Alert, record: Mapping[str, Any] | None, at: datetime, checked_at: float | None
) -> Alert:
    since = min(alert.since or at, at)
    if record is not None:
        has_fired = record["fired_at"] is not None
        # What the last check did not find was over, and begins anew, although its alert has not
        # cleared yet.
        was_over = has_fired and record["seen_at"] < (checked_at or 0.0)
        is_recent = has_fired or at.timestamp() - record["seen_at"] < _SEEN_SECONDS
        if is_recent and not was_over:
            since = min(since, datetime.fromtimestamp(record["since"], UTC))
        if has_fired:
            return replace(
                alert, since=since, fired_at=datetime.fromtimestamp(record["fired_at"], UTC)
            )
    fires = (at - since).total_seconds() >= alert.for_seconds
    return replace(alert, since=since, fired_at=at if fires else None)


def _alert_of(record: Mapping[str, Any]) -> Alert:
    return Alert(
        code=record["code"],
        subject=record["subject"],
        group=record["group"],
        severity=record["severity"],
        problem=record["problem"],
        hint=record["hint"],
        since=datetime.fromtimestamp(record["since"], UTC),
    )

"""Schedules in Django's admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay.django._admin_base import LogAdmin, client, given, lasting, pretty, short
from forebay.errors import InvalidJob
from forebay.policy.cron import Timing
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from datetime import datetime

    from forebay.model.schedules import Occurrence, ScheduleStatus

_TIME: Final = "%Y-%m-%d %H:%M:%S UTC"

#: Rows of a schedule's page.
_NEXT_MAX: Final = 10
_HISTORY_MAX: Final = 50


class ScheduleAdmin(LogAdmin):
    """Schedules with their next instants, and on the page of each one its decisions."""

    heads = ("Schedule", "State", "When", "Kind", "Next", "Last")
    verbs = {"Pause": "paused", "Resume": "resumed", "Run": "run now"}  # noqa: RUF012
    has_pages = False

    def newest(self, *, before: int | None, **filters: Any) -> Any:
        """Return all schedules."""
        del before, filters
        return client("schedules")

    def place(self, row: Any) -> Any:
        """Return nothing: the page has all schedules."""

    def row(self, row: ScheduleStatus) -> dict[str, Any]:
        """Return the cells of a schedule."""
        coming = next(iter(_next_instants(row, 1)), None)
        last = (
            None if row.last_for is None else f"{row.last_for.strftime(_TIME)}, {row.last_status}"
        )
        return {
            "id": row.name,
            "url": self.url(row.name),
            "can_act": True,
            "state": _colour(row),
            "cells": [
                short(_state(row)),
                _when(row),
                row.kind,
                coming.strftime(_TIME) if coming else "",
                last or "never",
            ],
        }

    def detail(self, number: str) -> tuple[str, bool, list[Any]]:
        """Return the definition of a schedule, its next instants and its newest decisions."""
        found: ScheduleStatus = client("schedule", number)
        history: list[Occurrence] = client("schedule_history", number, limit=_HISTORY_MAX)
        facts = [
            ("State", _state(found)),
            ("Problem", found.problem),
            ("When", _when(found)),
            ("Starts", found.starts_at),
            ("Kind", found.kind),
            ("Queue", f"{found.queue or 'of its kind'}, priority {found.priority}"),
            ("Jitter", human_duration(found.jitter) if found.jitter else None),
            ("Overlap", found.overlap + (", pause on failure" if found.pause_on_failure else "")),
            (
                "Missed",
                (
                    f"{found.missed}, within {human_duration(found.catch_up)}, at most "
                    f"{found.missed_max:,}"
                ),
            ),
            ("Declared by", found.declared_by),
            ("Decided to", found.decided_to),
            ("Decisions", f"{found.decisions:,}"),
            ("Options", pretty(found.options) if found.options else None),
        ]
        coming = [
            (each.scheduled_for.strftime(_TIME), f"job starts {each.starts_at.strftime(_TIME)}")
            for each in _preview(found)
        ]
        decided = [(each.scheduled_for.strftime(_TIME), _decision(each)) for each in history]
        return (
            f"Schedule {found.name}",
            True,
            [
                ("", given(facts), []),
                ("Arguments", [], [("", None, pretty(found.args))]),
                ("Next instants", coming or [("None", "")], []),
                ("Occurrences, newest first", decided or [("None", "")], []),
            ],
        )

    def key(self, text: str) -> str:
        """Return the name of a schedule."""
        return text

    def act(self, key: str, verb: str, value: str) -> str:
        """Pause, resume or run a schedule."""
        del value
        if verb == "Run":
            return f"Run as job {client('run_schedule', key)}."
        client("pause_schedule" if verb == "Pause" else "resume_schedule", key)
        return "Paused." if verb == "Pause" else "Resumed."


def _next_instants(found: ScheduleStatus, most: int) -> list[datetime]:
    """Return the next instants by the clock of the database.

    A schedule that is paused or cannot be used has none.
    """
    if found.paused_at is not None:
        return []
    try:
        timing = Timing(found.cron, found.every, found.tz, found.starts_at)
    except InvalidJob:
        return []
    return timing.between(found.server_time, None, most)


def _preview(found: ScheduleStatus) -> Any:
    return (
        client("preview_schedule", found.name, limit=_NEXT_MAX) if _next_instants(found, 1) else []
    )


def _when(found: ScheduleStatus) -> str:
    if found.every is not None:
        return f"every {human_duration(found.every)}"
    return f"{found.cron} {found.tz}"


def _state(found: ScheduleStatus) -> str:
    if found.problem is not None:
        return f"problem: {found.problem}"
    if found.paused_at is not None:
        note = f": {found.pause_note}" if found.pause_note else ""
        return f"paused for {lasting(found.paused_at)}{note}"
    return "active" if found.vanished_at is None else "active, no longer declared"


def _colour(found: ScheduleStatus) -> str:
    if found.problem is not None:
        return "dead"
    return "done" if found.paused_at is None and found.vanished_at is None else "retrying"


def _decision(each: Occurrence) -> str:
    job = "" if each.job_id is None else f", job {each.job_id}"
    several = f", {each.instants:,} instants" if each.instants > 1 else ""
    reason = f": {each.reason}" if each.reason else ""
    return f"{each.status}{job}{several}{reason}"

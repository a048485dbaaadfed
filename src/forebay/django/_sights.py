"""Alerts, endpoints, keys and events in Django's admin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.db import connections
from django.urls import reverse

from forebay.db.drivers import run
from forebay.django._admin_base import PAGE, ListAdmin, client, instant, lasting, pretty, short
from forebay.django._app import app
from forebay.model.alerts import Alert
from forebay.model.endpoints import Endpoint
from forebay.model.events import Event
from forebay.model.keys import KeyInfo
from forebay.watch.operations import measurements
from forebay.watch.rules import alerts_of_all

_ROWS_MAX: Final = PAGE * 4

#: Colours, by the states of jobs.
_SEVERITIES: Final = {"error": "failed", "warning": "retrying"}


class AlertAdmin(ListAdmin):
    """What is wrong with queues, endpoints, mirrors, schedules and the database, the worst first.

    It is measured when the page is shown: no worker needs to be alive.
    """

    heads = ("Alert", "Severity", "Problem", "What to do", "Since")

    def newest(self, *, before: int | None, **filters: Any) -> list[Alert]:
        """Return the conditions that hold now."""
        del before, filters
        data = run(connections[app.alias], measurements())
        return sorted(alerts_of_all(data), key=lambda one: (one.severity, one.code, one.place))[
            :_ROWS_MAX
        ]

    def row(self, row: Alert) -> dict[str, Any]:
        """Return the cells of an alert."""
        name = " ".join(filter(None, (row.code, row.place)))
        return {
            "id": name,
            "url": self._jobs_of(row.subject),
            "can_act": False,
            "state": _SEVERITIES[row.severity],
            "cells": [row.severity, row.problem, row.hint, row.since or ""],
        }

    def _jobs_of(self, subject: str) -> str:
        where = reverse("admin:forebay_job_changelist", current_app=self.admin_site.name)
        return f"{where}?{urlencode({'queue': subject})}" if subject else "."


class EndpointAdmin(ListAdmin):
    """Endpoints with their health."""

    heads = (
        "Endpoint", "State", "Sink", "Waiting", "Oldest", "Accepted/s", "Failed/s", "Last success",
        "Last error",
    )  # fmt: skip
    verbs = {  # noqa: RUF012
        "Enable": "enabled", "Disable": "disabled", "Close breaker": "tried again",
    }  # fmt: skip

    def newest(self, *, before: int | None, **filters: Any) -> list[Endpoint]:
        """Return all endpoints."""
        del before, filters
        return list(client("endpoints"))[:_ROWS_MAX]

    def row(self, row: Endpoint) -> dict[str, Any]:
        """Return the cells of an endpoint."""
        where = reverse("admin:forebay_job_changelist", current_app=self.admin_site.name)
        if row.disabled_at:
            state, colour = f"disabled for {lasting(row.disabled_at)}", "cancelled"
        elif row.opened_at:
            state, colour = f"breaker {row.breaker} for {lasting(row.opened_at)}", "failed"
        elif row.is_paused:
            state, colour = "paused", "retrying"
        else:
            state, colour = "active", "done"
        return {
            "id": row.name,
            "url": f"{where}?{urlencode({'key': row.name})}",
            "can_act": True,
            "state": colour,
            "cells": [
                state,
                row.sink,
                f"{row.waiting:,}",
                lasting(row.waiting_since) if row.waiting_since else "",
                f"{row.accepted_per_second:.1f}",
                f"{row.failed_per_second:.1f}",
                row.last_success_at or "never",
                short(row.last_error or ""),
            ],
        }

    def act(self, key: str, verb: str, value: str) -> str:
        """Enable or disable an endpoint, or close its breaker."""
        del value
        if verb == "Close breaker":
            client("reset_endpoint", key)
            return "Breaker closed."
        client("enable_endpoint" if verb == "Enable" else "disable_endpoint", key)
        return f"{verb}d."


class KeyAdmin(ListAdmin):
    """Ordering keys and limit keys that jobs wait for, and why they do not run."""

    filters = {"queue": None}  # noqa: RUF012
    heads = ("Key", "Why", "Sort", "Queue", "Waiting", "Running", "Until")
    verbs = {"Pause": "paused", "Resume": "resumed"}  # noqa: RUF012
    note = "The keys with the most waiting jobs are first."

    def known_choices(self) -> dict[str, Sequence[str] | None]:
        """Return the queues of the project."""
        return {"queue": sorted(app.kinds.queues())}

    def newest(self, *, before: int | None, queue: str | None = None, **filters: Any) -> Any:
        """Return the keys for which most jobs wait."""
        del before, filters
        return client("keys", queue, limit=_ROWS_MAX)

    def row(self, row: KeyInfo) -> dict[str, Any]:
        """Return the cells of a key."""
        where = reverse("admin:forebay_job_changelist", current_app=self.admin_site.name)
        return {
            "id": json.dumps([row.queue, row.sort, row.key]),
            "label": short(row.key),
            "url": f"{where}?{urlencode({'queue': row.queue, 'key': row.key})}",
            "can_act": True,
            "state": "running" if row.running else "retrying",
            "cells": [
                str(row.reason).replace("_", " "),
                row.sort,
                row.queue if row.group == "default" else f"{row.queue}, {row.group}",
                f"{row.waiting:,}",
                f"{row.running:,}",
                row.until or "",
            ],
        }

    def act(self, key: str, verb: str, value: str) -> str:
        """Pause or resume a key, in all groups."""
        del value
        queue, sort, name = json.loads(key)
        method = "pause_key" if verb == "Pause" else "resume_key"
        client(method, queue, **{"ordering_key" if sort == "ordering" else "limit_key": name})
        return f"{verb}d."


class EventAdmin(ListAdmin):
    """What operators did, newest first."""

    filters = {"queue": None, "act": None, "until": None}  # noqa: RUF012
    fields_of = {"until": "datetime-local"}  # noqa: RUF012
    heads = ("Event", "Act", "At", "Who", "Concerns", "Count", "Before", "After")
    note = f'The newest {_ROWS_MAX} are shown; the filter "until" leads to older ones.'

    def newest(self, *, before: int | None, until: str = "", **filters: Any) -> Any:
        """Return the newest events."""
        del before
        end = instant(until, "until") if until else None
        return client("events", until=end, limit=_ROWS_MAX, **filters)

    def row(self, row: Event) -> dict[str, Any]:
        """Return the cells of an event."""
        places = (row.queue, row.group, row.kind, row.subject_id)
        who = row.role if row.actor is None else f"{row.actor} ({row.role})"
        return {
            "id": row.event_id,
            "url": ".",
            "can_act": False,
            "state": "done",
            "cells": [
                row.act,
                row.at,
                who,
                ", ".join(str(one) for one in places if one is not None),
                "" if row.count is None else f"{row.count:,}",
                *("" if one is None else short(pretty(one)) for one in (row.old, row.new)),
            ],
        }

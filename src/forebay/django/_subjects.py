"""Subjects in Django's admin: list, kill, revive, drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from forebay.django._admin_base import PAGE, ListAdmin, call_of, client, short
from forebay.model.subjects import SUBJECT_STATES

#: Colours of states, by the states of jobs.
_COLOURS = {"completed": "done", "killed": "cancelled"}


class SubjectAdmin(ListAdmin):
    """Subjects of a queue, in the order of their names."""

    filters = {"queue": None, "state": list(SUBJECT_STATES), "after": None}  # noqa: RUF012
    heads = ("Subject", "State", "Call", "Queue", "Due", "Last run", "Iterations", "Reason")
    verbs = {"Kill": "killed", "Revive": "revived", "Drop": "dropped"}  # noqa: RUF012

    def known_choices(self) -> dict[str, Sequence[str] | None]:
        """Return the queues that have subjects."""
        return {"queue": sorted({each.queue for each in client("subject_counts")})}

    def newest(self, *, before: int | None, queue: str | None = None, **filters: Any) -> list[Any]:
        """Return the subjects of a page, in the order of their names: the filter ``after`` leads
        to the next ones.
        """
        del before
        queues = [queue] if queue else self.known_choices()["queue"] or ()
        found: list[Any] = []
        for each in queues:
            if len(found) < PAGE:
                found += client("subjects", each, limit=PAGE - len(found), **filters)
        return found

    def row(self, row: Any) -> dict[str, Any]:
        """Return the cells of a subject."""
        name = self.admin_site.name
        if row.job_id is None:
            where = reverse("admin:forebay_job_changelist", current_app=name)
            url = f"{where}?{urlencode({'queue': row.queue})}"
        else:
            url = reverse("admin:forebay_job_change", args=[row.job_id], current_app=name)
        return {
            "id": f"{row.queue}/{row.subject}",
            "label": row.subject,
            "url": url,
            "can_act": True,
            "state": _COLOURS.get(row.state, row.state),
            "cells": [
                row.state,
                call_of(row.kind, row.args or {}),
                row.queue,
                row.due_at or "",
                row.last_at or "never",
                f"{row.iterations:,}",
                short(row.reason or ""),
            ],
        }

    def act(self, key: str, verb: str, value: str) -> str:
        """Kill, revive or drop a subject; return what became of it."""
        del value
        queue, _, subject = key.partition("/")
        method = {"Kill": "kill_subject", "Revive": "revive_subject", "Drop": "drop_subject"}[verb]
        return f"{str(client(method, queue, subject)).capitalize()}."

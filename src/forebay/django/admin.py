"""Jobs and dead letters in Django's admin: read, cancel, retry.

The pages use the same operations as the command line: newest first, bounded, without counting.
The permission "view" allows reading; "change" allows cancelling jobs and retrying dead letters.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse

from forebay.client import Client
from forebay.django._app import app
from forebay.django.models import DeadLetter, Job
from forebay.errors import (
    DeadLetterNotFound,
    ForebayError,
    InvalidJob,
    JobNotFound,
)
from forebay.model import JobState
from forebay.ops.dead import REASONS
from forebay.ops.events import acting_as

_PAGE: Final = 50
_SHORT: Final = 60

#: Maximum number of ids per POST.
_CHOSEN_MAX: Final = 200


class _LogAdmin(admin.ModelAdmin):
    """Common base of both lists."""

    #: Names of the filters with their choices; None for free text.
    filters: dict[str, Sequence[str] | None] = {}  # noqa: RUF012 - as Django's own options
    #: What a filter without a value shows, if that is not all.
    unfiltered: dict[str, str] = {}  # noqa: RUF012
    verb = ""
    done = ""

    def get_urls(self) -> list[Any]:
        """Omit the pages that need a table."""
        kept = (f"_{self.opts.model_name}_changelist", f"_{self.opts.model_name}_change")
        return [url for url in super().get_urls() if url.name and url.name.endswith(kept)]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: only code enqueues jobs."""
        del request
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: retention deletes finished jobs."""
        del request, obj
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the newest entries; a POST acts on the selected entries."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            self._act_on(request, request.POST.getlist("chosen")[:_CHOSEN_MAX])
            return redirect(request.get_full_path())
        chosen = {name: request.GET.get(name, "").strip() for name in self.filters}
        rows: list[Any] = []
        try:
            before = request.GET.get("before")
            rows = self.newest(
                before=int(before) if before else None,
                **{name: value for name, value in chosen.items() if value},
            )
        except (InvalidJob, ValueError, KeyError) as error:
            messages.error(request, f"Invalid filter: {error}")
        except ForebayError as error:
            messages.error(request, f"{error} {error.hint or ''}")
        older = ""
        if len(rows) > _PAGE:
            rows = rows[:_PAGE]
            given = {name: value for name, value in chosen.items() if value}
            older = urlencode({**given, "before": self.place(rows[-1])})
        context = {
            **self.admin_site.each_context(request),
            "title": f"{self.opts.verbose_name_plural}".capitalize(),
            "opts": self.opts,
            "filters": [
                (name, chosen[name], choices, self.unfiltered.get(name, "all"))
                for name, choices in self.filters.items()
            ],
            "rows": [self.row(row) for row in rows],
            "heads": self.heads,
            "is_filtered": any(chosen.values()) or bool(request.GET.get("before")),
            "older": older,
            "verb": self.verb if self.has_change_permission(request) else "",
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/forebay/list.html", context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: Any = None,
    ) -> HttpResponse:
        """Show one entry; a POST acts on it."""
        del form_url
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            self._act_on(request, [object_id])
            return redirect(request.get_full_path())
        try:
            title, can_act, sections = self.detail(int(object_id))
        except (ValueError, InvalidJob, JobNotFound, DeadLetterNotFound) as error:
            raise Http404(str(error)) from error
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "sections": sections,
            "verb": self.verb if can_act and self.has_change_permission(request) else "",
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/forebay/detail.html", context)

    def _act_on(self, request: HttpRequest, ids: Sequence[str]) -> None:
        if not self.has_change_permission(request):
            raise PermissionDenied
        if not ids:
            messages.warning(request, "No rows selected.")
        count = 0
        for chosen in ids:
            try:
                with (
                    acting_as(f"django {request.user.get_username()}"),
                    transaction.atomic(using=app.alias),
                ):
                    text = self.act(int(chosen))
            except (ForebayError, ValueError) as error:
                messages.error(request, f"{self.opts.verbose_name} {chosen}: {error}")
            else:
                count += 1
                self.log_change(request, self.model(int(chosen)), text)
        if count:
            noun = self.opts.verbose_name if count == 1 else self.opts.verbose_name_plural
            messages.success(request, f"{count} {noun} {self.done}.")

    # --- per list ---

    heads: Sequence[str] = ()

    @abstractmethod
    def newest(self, *, before: int | None, **filters: Any) -> Any:
        """Return one more entry than a page has."""

    @abstractmethod
    def place(self, row: Any) -> Any:
        """Return the position before which the next page begins."""

    @abstractmethod
    def row(self, row: Any) -> dict[str, Any]:
        """Return the cells of an entry."""

    @abstractmethod
    def detail(self, number: int) -> tuple[str, bool, list[Any]]:
        """Return the title of an entry's page, whether its action is available, and its sections."""

    @abstractmethod
    def act(self, number: int) -> str:
        """Act on one entry and return the text for the admin log."""

    def url(self, number: int) -> str:
        """Return the address of an entry's page."""
        name = f"admin:forebay_{self.opts.model_name}_change"
        return str(reverse(name, args=[number], current_app=self.admin_site.name))


@admin.register(Job)
class JobAdmin(_LogAdmin):
    """Jobs and their states."""

    filters = {"queue": None, "kind": None, "state": [str(state) for state in JobState]}  # noqa: RUF012
    heads = ("Job", "State", "Kind", "Queue", "Attempt", "Enqueued", "Arguments")
    verb = "Cancel"
    done = "requested to cancel"

    def newest(self, *, before: int | None, **filters: Any) -> Any:
        """Return one more job than a page has."""
        return _client("jobs", limit=_PAGE + 1, before=before, **filters)

    def place(self, row: Any) -> Any:
        """Return the place of a job."""
        return row.place

    def row(self, row: Any) -> dict[str, Any]:
        """Return the cells of a job."""
        state = f"{row.state}, cancelling" if _is_cancelling(row) else str(row.state)
        if row.group != "default":
            state += f" ({row.group})"
        return {
            "id": row.job_id,
            "url": self.url(row.job_id),
            "can_act": not row.state.is_final and not row.cancel_requested,
            "state": str(row.state),
            "cells": [
                state,
                row.kind,
                row.queue,
                _of(row.attempt, row.max_attempts),
                row.enqueued_at,
                _short(row.args),
            ],
        }

    def detail(self, number: int) -> tuple[str, bool, list[Any]]:
        """Return everything about a job, for each group."""
        statuses = _client("job", number)
        sections: list[Any] = []
        for status in statuses:
            facts = [
                (
                    "State",
                    f"{status.state}, cancelling" if _is_cancelling(status) else status.state,
                ),
                ("Kind", status.kind),
                ("Queue", f"{status.queue}, priority {status.priority}"),
                ("Attempt", _of(status.attempt, status.max_attempts)),
                ("Enqueued", status.enqueued_at),
                ("Due", status.run_at),
                ("Expires", status.expires_at),
                ("Claimed", status.claimed_at),
                ("Worker", status.worker),
                ("Ended", status.ended_at),
                ("Tag", status.tag),
                ("Correlation id", status.correlation_id),
                ("Headers", _pretty(status.headers) if status.headers else None),
                ("Dead letter", status.dead_id),
                ("Redriven from job", status.redriven_from),
                ("Redriven from dead letter", status.redriven_from_dead_id),
                ("Redriven as job", status.redriven_as),
            ]
            name = "" if len(statuses) == 1 else f"Group {status.group}"
            sections.append((name, _given(facts), []))
        sections.append(("Arguments", [], [("", None, _pretty(statuses[0].args))]))
        can_act = any(not s.state.is_final and not s.cancel_requested for s in statuses)
        return f"Job {number}", can_act, sections

    def act(self, number: int) -> str:
        """Cancel a job."""
        match _client("cancel", number):
            case "already ended":
                raise ForebayError("it has already ended")
            case "unknown":
                raise JobNotFound(number)
            case answer:
                return "Cancelled." if answer == "cancelled" else "Cancellation requested."


@admin.register(DeadLetter)
class DeadLetterAdmin(_LogAdmin):
    """Dead letters, with their errors."""

    filters = {  # noqa: RUF012
        "job": None,
        "queue": None,
        "kind": None,
        "tag": None,
        "cause": None,
        "reason": REASONS,
        "retried": ("yes", "all"),
    }
    unfiltered = {"retried": "no"}  # noqa: RUF012
    heads = ("Dead letter", "Reason", "Kind", "Queue", "Died", "Last error", "Retried as")
    verb = "Retry"
    done = "enqueued again"

    def newest(self, *, before: int | None, **filters: Any) -> Any:
        """Return one more dead letter than a page has."""
        if "job" in filters:
            filters["job_id"] = int(filters.pop("job"))
        if "retried" in filters:
            filters["redriven"] = {"yes": True, "all": "any"}[filters.pop("retried")]
        return _client("dead_letters", limit=_PAGE + 1, before=before, **filters)

    def place(self, row: Any) -> Any:
        """Return the number of a dead letter."""
        return row.dead_id

    def row(self, row: Any) -> dict[str, Any]:
        """Return the cells of a dead letter."""
        last = row.errors[-1] if row.errors else None
        error = f"{last.type}: {last.message}" if last else ""
        return {
            "id": row.dead_id,
            "url": self.url(row.dead_id),
            "can_act": row.redriven_as is None,
            "state": "dead" if row.redriven_as is None else "done",
            "cells": [
                row.reason,
                row.kind,
                row.queue,
                row.died_at,
                _short(error, as_text=True),
                f"job {row.redriven_as}" if row.redriven_as is not None else "",
            ],
        }

    def detail(self, number: int) -> tuple[str, bool, list[Any]]:
        """Return everything about a dead letter."""
        letter = _client("dead_letter", number)
        facts = [
            ("Reason", letter.reason),
            ("Job", letter.job_id),
            ("Kind", letter.kind),
            ("Queue", f"{letter.queue}, priority {letter.priority}"),
            ("Group", None if letter.group == "default" else letter.group),
            ("Cause", letter.cause),
            ("Raised in", letter.place),
            ("Attempt", _of(letter.attempt, letter.max_attempts)),
            ("Enqueued", letter.enqueued_at),
            ("Died", letter.died_at),
            ("Tag", letter.tag),
            ("Correlation id", letter.correlation_id),
            ("Headers", _pretty(letter.headers) if letter.headers else None),
            ("Retried", letter.redriven_at),
            ("Retried as job", letter.redriven_as),
        ]
        errors = [
            (
                f"Attempt {_of(failure.attempt, failure.max_attempts)}: {failure.type or failure.outcome}",
                failure.failed_at,
                failure.traceback or failure.message or "",
            )
            for failure in reversed(letter.errors)
        ]
        sections = [
            ("", _given(facts), []),
            ("Arguments", [], [("", None, _pretty(letter.args))]),
            ("Errors, newest first", [], errors),
        ]
        return f"Dead letter {number}", letter.redriven_as is None, sections

    def act(self, number: int) -> str:
        """Enqueue a new job from a dead letter."""
        return f"Retried as job {_client('redrive', number)}."


def _client(method: str, *args: Any, **kwargs: Any) -> Any:
    call: Callable[..., Any] = getattr(Client(), method)
    return call(*args, conn=connections[app.alias], **kwargs)


def _is_cancelling(status: Any) -> bool:
    return status.cancel_requested and not status.state.is_final


def _given(facts: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in facts if value is not None]


def _of(attempt: int, attempts_max: int | None) -> str:
    return str(attempt) if attempts_max is None else f"{attempt} of {attempts_max}"


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _short(value: Any, *, as_text: bool = False) -> str:
    text = value if as_text else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"

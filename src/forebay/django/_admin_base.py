"""What the lists of the admin have in common."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from forebay._actor import acting_as
from forebay.client import Client
from forebay.django._app import app
from forebay.errors import (
    DeadLetterNotFound,
    ForebayError,
    InvalidJob,
    JobNotFound,
    ScheduleNotFound,
    shown,
)
from forebay.model.status import SHOWN_OPTIONS, DeadLetter, Failure, JobStatus
from forebay.model.text import call_text
from forebay.policy.retry import human_duration

PAGE: Final = 50
_SHORT: Final = 60

#: Maximum number of ids per POST.
_CHOSEN_MAX: Final = 200


class LogAdmin(admin.ModelAdmin):
    """Common base of the lists."""

    #: Names of the filters with their choices; None for free text.
    filters: dict[str, Sequence[str] | None] = {}  # noqa: RUF012 - as Django's own options
    #: What a filter without a value shows, if that is not all.
    unfiltered: dict[str, str] = {}  # noqa: RUF012
    #: What can be done with entries, and how that is reported.
    verbs: dict[str, str] = {}  # noqa: RUF012
    #: The types of the fields of filters, and of the value that a verb needs, other than text.
    fields_of: dict[str, str] = {}  # noqa: RUF012
    #: What the list says above its entries: their order.
    note = ""
    #: Whether a list shows ``PAGE`` entries and a link to older ones; False: all that ``newest``
    #: returns.
    has_pages = True

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
        filters = dict(self.filters)
        try:
            filters |= self.known_choices()
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
        if self.has_pages and len(rows) > PAGE:
            rows = rows[:PAGE]
            given = {name: value for name, value in chosen.items() if value}
            older = urlencode({**given, "before": self.place(rows[-1])})
        context = {
            **self.admin_site.each_context(request),
            "title": f"{self.opts.verbose_name_plural}".capitalize(),
            "opts": self.opts,
            "filters": [
                (
                    name,
                    chosen[name],
                    _with_given(choices, chosen[name]),
                    self.unfiltered.get(name, "all"),
                    self.fields_of.get(name, "text"),
                )
                for name, choices in filters.items()
            ],
            "note": self.note,
            "rows": [self.row(row) for row in rows],
            "heads": self.heads,
            "is_filtered": any(chosen.values()) or bool(request.GET.get("before")),
            "older": older,
            "verbs": self._verbs_for(request),
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
            title, can_act, sections = self.detail(self.key(object_id))
        except (ValueError, InvalidJob, JobNotFound, DeadLetterNotFound, ScheduleNotFound) as error:
            raise Http404(str(error)) from error
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "sections": sections,
            "verbs": self._verbs_for(request) if can_act else [],
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/forebay/detail.html", context)

    def _verbs_for(self, request: HttpRequest) -> list[tuple[str, str | None]]:
        """Return what a user may do: each verb with the type of the field for its value."""
        allowed = self.verbs if self.has_change_permission(request) else ()
        return [(verb, self.fields_of.get(verb)) for verb in allowed]

    def _act_on(self, request: HttpRequest, ids: Sequence[str]) -> None:
        if not self.has_change_permission(request):
            raise PermissionDenied
        if not ids:
            messages.warning(request, "No rows selected.")
        verb = request.POST.get("verb", next(iter(self.verbs), ""))
        if verb not in self.verbs:
            raise PermissionDenied
        count = 0
        for chosen in ids:
            try:
                with (
                    acting_as(f"django {request.user.get_username()}"),
                    transaction.atomic(using=app.alias),
                ):
                    text = self.act(self.key(chosen), verb, request.POST.get(f"value {verb}", ""))
            except (ForebayError, ValueError) as error:
                messages.error(request, f"{self.opts.verbose_name} {chosen}: {error}")
            else:
                count += 1
                self.log_change(request, self.model(self.key(chosen)), text)
        if count:
            noun = self.opts.verbose_name if count == 1 else self.opts.verbose_name_plural
            messages.success(request, f"{count} {noun} {self.verbs[verb]}.")

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
    def detail(self, number: Any) -> tuple[str, bool, list[Any]]:
        """Return the title of an entry's page, whether its action is available, and its
        sections.
        """

    @abstractmethod
    def act(self, key: Any, verb: str, value: str) -> str:
        """Do one of ``verbs`` with an entry and return the text for the admin log.

        Args:
            key: of the entry.
            verb: what to do.
            value: what a person typed into the field of the verb; empty without one.
        """

    def key(self, text: str) -> Any:
        """Return the key of an entry from a form."""
        return int(text)

    def known_choices(self) -> dict[str, Sequence[str] | None]:
        """Return filters whose choices are names that the database has."""
        return {}

    def url(self, number: Any) -> str:
        """Return the address of an entry's page."""
        name = f"admin:forebay_{self.opts.model_name}_change"
        return str(reverse(name, args=[number], current_app=self.admin_site.name))


class ListAdmin(LogAdmin):
    """A list that has all its entries on one page; an entry has no page."""

    has_pages = False

    def get_urls(self) -> list[Any]:
        """Omit the page of one entry."""
        return [url for url in super().get_urls() if url.name.endswith("_changelist")]

    def place(self, row: Any) -> Any:
        """Return nothing: the page has all entries."""

    def detail(self, number: Any) -> tuple[str, bool, list[Any]]:
        """Refuse: an entry has no page."""
        raise JobNotFound(number)

    def key(self, text: str) -> Any:
        """Return the name of an entry."""
        return text

    def act(self, key: Any, verb: str, value: str) -> str:
        """Refuse: most lists are only read."""
        del value
        raise InvalidJob(verb, f"is not possible for {self.opts.verbose_name} {key}")


def client(method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the client on the connection of the request."""
    call: Callable[..., Any] = getattr(Client(), method)
    return call(*args, conn=connections[app.alias], **kwargs)


def is_cancelling(status: Any) -> bool:
    """Return whether a cancellation was requested and the job has not ended."""
    return status.cancel_requested and not status.state.is_final


def given(facts: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the facts that have a value."""
    return [(name, value) for name, value in facts if value is not None]


def options_shown(job: JobStatus | DeadLetter) -> list[tuple[str, Any]]:
    """Return the options of a job that only people read and that are set, by their names in
    words.
    """
    values = ((name, getattr(job, name)) for name in SHOWN_OPTIONS)
    return [
        (name.replace("_", " ").capitalize(), value if isinstance(value, str) else pretty(value))
        for name, value in values
        if value
    ]


def attempt_of(attempt: int, attempts_max: int | None) -> str:
    """Return the number of an attempt, with the maximum number if known."""
    return str(attempt) if attempts_max is None else f"{attempt} of {attempts_max}"


def call_of(kind: str, args: Mapping[str, Any]) -> str:
    """Return a job as a call, its arguments in the order of the handler's parameters.

    The database has them in the order of the lengths of their names.
    """
    return short(call_text(kind, in_order(kind, args)))


def in_order(kind: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in the order of the handler's parameters, others after them."""
    names = (app.kinds.get(kind).arguments.names or ()) if kind in app.kinds else ()
    return {**{name: args[name] for name in names if name in args}, **args}


def lasting(since: datetime) -> str:
    """Return how long ago a time was, or how long it is until then."""
    return human_duration(round(abs((timezone.now() - since).total_seconds())))


def instant(text: str, name: str) -> datetime:
    """Return the time that a field of the type ``datetime-local`` holds, in Django's time zone.

    Raises:
        InvalidJob: there is none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidJob(name, f"is {shown(text)}, not a time such as 2026-11-28T14:00") from None
    return found if found.tzinfo else timezone.make_aware(found)


def pretty(value: Any) -> str:
    """Return indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def short(text: str) -> str:
    """Return text for a cell of a list."""
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def error_sections(errors: Sequence[Failure]) -> list[tuple[str, Any, str]]:
    """Return failed attempts as texts with a title and a time, newest first."""
    return [
        (
            f"Attempt {attempt_of(one.attempt, one.max_attempts)}: {one.type or one.outcome}",
            one.failed_at,
            one.traceback or one.message or "",
        )
        for one in reversed(errors)
    ]


def _with_given(choices: Sequence[str] | None, value: str) -> Sequence[str] | None:
    return [*choices, value] if choices and value and value not in choices else choices

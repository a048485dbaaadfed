"""Enqueue a job for each row that a person has chosen in the admin of a model: the selected ones,
or all that a filter shows.

Invariant "what was shown is what is enqueued": the page before the act counts the jobs by a query
that the database runs, and has the token of this set. The act runs the query again, in one
transaction, with the token: rows that came, went or changed meanwhile refuse it, and the page is
shown anew. A token begins one backfill, so that a second click on its button enqueues nothing.

A crash before the commit leaves nothing; after it, the jobs with the act in both logs.

Shown by: tests/django/test_enqueue.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin import helpers
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.contenttypes.models import ContentType
from django.core import checks
from django.core.exceptions import EmptyResultSet, FieldError
from django.db import DatabaseError, connections, transaction
from django.db.models import F, QuerySet
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from forebay._actor import acting_as
from forebay.app import Handler
from forebay.django._admin_base import call_of
from forebay.django._app import app
from forebay.django._settings import has_schema
from forebay.errors import BackfillChanged, ConfigError, ForebayError, shown
from forebay.model.backfill import Rows
from forebay.model.text import counted

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from forebay.mirror import Mirror
    from forebay.model.backfill import BackfillPlan

_SAMPLE: Final = 10
_TOKEN: Final = "forebay_token"  # noqa: S105 - the name of a field


class Enqueue:
    """What the admin of a model can enqueue, see ``EnqueueMixin``.

    Args:
        what: a handler, the name of a kind, or a mirror.
        args: the argument of each job by name: a lookup of Django such as ``"pk"`` or
            ``"author__email"``, or an expression. For a mirror ``{"id": "pk"}``, which is the
            default.
        rows: returns the rows that become jobs from the chosen ones, as another queryset; default:
            the chosen ones.
        label: the text of the action; default: made of the name of the kind.
        shared: arguments that all jobs share; not for a mirror.
        options: of all jobs: those of ``Client.backfill``, such as ``priority`` and ``tag``, or for
            a mirror ``tag``, ``priority`` and ``force``. Default: the priority 1000, after all
            other jobs, and the tag ``backfill``.

    Raises:
        ConfigError: ``what`` cannot be enqueued, or the arguments are missing.
    """

    def __init__(
        self,
        what: Handler[..., ..., Any] | Mirror | str,
        args: Mapping[str, Any] | None = None,
        *,
        rows: Callable[[QuerySet[Any]], QuerySet[Any]] | None = None,
        label: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._mirror: Mirror | None = None
        if isinstance(what, str):
            self.kind = what
        elif isinstance(what, Handler):
            self.kind = what.kind.name
        elif hasattr(what, "plan_backfill"):
            self._mirror = what
            self.kind = what.handler.kind.name
            args = {"id": "pk"} if args is None else args
        else:
            raise ConfigError(
                "Enqueue",
                f"has {shown(what)}, no handler, kind or mirror",
                hint="Give what @app.job returns, the name of a kind, or a Mirror.",
            )
        if not args:
            raise ConfigError(
                f"Enqueue({self.kind})", "has no args", hint='Name them: {"page_id": "pk"}.'
            )
        if self._mirror is not None and (set(args) != {"id"} or shared):
            raise ConfigError(
                f"Enqueue({self.kind})",
                f"has the arguments {shown(sorted({*args, *(shared or {})}))}",
                hint='Jobs of a mirror have one: {"id": "pk"}; force=True is an option.',
            )
        self.label = label or f"Enqueue {self.kind} for selected %(verbose_name_plural)s"
        self.shared = dict(shared or {})
        self.options = options
        self._args = dict(args)
        self._rows = rows

    def query(self, chosen: QuerySet[Any]) -> str:
        """Return the SQL that selects the arguments of each job, with its values as literals.

        Raises:
            FieldError: a lookup is wrong.
        """
        named, found = self._chosen(chosen)
        connection = connections[chosen.db]
        connection.ensure_connection()
        columns = ", ".join(
            f"q.{column} as {connection.ops.quote_name(name)}"
            for column, name in zip(named, self._args, strict=True)
        )
        try:
            sql, values = found.query.get_compiler(using=chosen.db).as_sql()
        except EmptyResultSet:
            nothing = ", ".join(f"null as {connection.ops.quote_name(name)}" for name in self._args)
            return f"select {nothing} where false"
        return f"select {columns} from ({connection.ops.compose_sql(sql, values)}) q"

    def _chosen(self, chosen: QuerySet[Any]) -> tuple[list[str], QuerySet[Any]]:
        """Return the names of the columns, in the order of the arguments, and their query."""
        rows = chosen if self._rows is None else self._rows(chosen)
        named = {
            # Django refuses an annotation that has the name of a field.
            f"forebay_{nr}": F(value) if isinstance(value, str) else value
            for nr, value in enumerate(self._args.values())
        }
        # With the key, since a filter may have made the rows distinct.
        return list(named), rows.order_by().annotate(**named).values("pk", *named)

    def problem(self, model: Any) -> str | None:
        """Return what is wrong with its lookups and arguments; None: nothing."""
        try:
            self._chosen(model._default_manager.none())  # noqa: SLF001 - documented by Django
        except FieldError as error:
            return str(error)
        if self.kind in app.kinds:
            names = app.kinds.get(self.kind).arguments.names
            given = {*self._args, *self.shared}
            if names is not None and not given <= set(names):
                return f"{self.kind} has no argument {', '.join(sorted(given - set(names)))}"
        return None

    def plan(self, sql: str, connection: Any) -> BackfillPlan:
        """Return what ``enqueue`` would do, and its token."""
        if self._mirror is not None:
            return self._mirror.plan_backfill(Rows.query(sql), conn=connection, **self.options)
        return app.client().plan_backfill(
            self.kind, Rows.query(sql), args=self.shared, conn=connection, **self.options
        )

    def enqueue(self, sql: str, connection: Any, token: str) -> int:
        """Enqueue exactly the jobs of a plan; return their number.

        Raises:
            BackfillChanged: other rows are chosen now.
        """
        if self._mirror is not None:
            return self._mirror.backfill(
                Rows.query(sql), conn=connection, token=token, **self.options
            )
        return app.client().backfill(
            self.kind,
            Rows.query(sql),
            args=self.shared,
            conn=connection,
            token=token,
            **self.options,
        )


class EnqueueMixin:
    """Adds an action to the admin of a model for each entry of ``enqueue_kinds``.

    The action shows how many jobs the chosen rows become, in which queue, with which tag, and up to
    ten of them; then a button enqueues exactly these, in one transaction. It takes the selected
    rows, or all that the filters and the search show. Who may change the model may do it, unless
    ``has_enqueue_permission`` says something else. The event log of Forebay and the log of the
    admin have the act with the name of the user.

    Attributes:
        enqueue_kinds: what can be enqueued.
        enqueue_jobs_max: more jobs than this are refused: a request waits for them. Enqueue them by
            ``forebay backfill --chunk``.
    """

    enqueue_kinds: Sequence[Enqueue] = ()
    enqueue_jobs_max: int = 1_000_000

    # Those of ModelAdmin.
    model: Any
    opts: Any
    admin_site: Any
    actions: Any

    def has_enqueue_permission(self, request: HttpRequest) -> bool:
        """Return whether a user may enqueue: who may change the model may."""
        return bool(self.has_change_permission(request))  # type: ignore[attr-defined]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions of the model and those that enqueue."""
        found: dict[str, Any] = super().get_actions(request)  # type: ignore[misc]
        closed = self.actions is None or IS_POPUP_VAR in request.GET
        if not closed and self.has_enqueue_permission(request):
            for number, one in enumerate(self.enqueue_kinds):
                name = f"forebay_enqueue_{number}"
                found[name] = (_action(name, one), name, one.label)
        return found

    def check(self, **kwargs: Any) -> list[Any]:
        """Return what is wrong with the entries, beside what Django finds."""
        found: list[Any] = super().check(**kwargs)  # type: ignore[misc]
        return [*found, *self._check_enqueue()]

    def _check_enqueue(self) -> Iterator[Any]:
        for one in self.enqueue_kinds:
            problem = one.problem(self.model)
            if problem is not None:
                yield checks.Error(
                    f"enqueue_kinds: {one.kind}: {problem}", obj=type(self), id="forebay.E001"
                )

    def response_enqueue(
        self, request: HttpRequest, chosen: QuerySet[Any], name: str, one: Enqueue
    ) -> HttpResponse | None:
        """Show what would be enqueued; with the token of such a page, enqueue it."""
        if not has_schema(chosen.db):
            messages.error(request, f"The database {chosen.db} has no jobs: see FOREBAY.")
            return None
        token = request.POST.get(_TOKEN)
        try:
            with acting_as(f"django {request.user.get_username()}"):
                if token:
                    try:
                        self._enqueue_now(request, chosen, one, token)
                        return None
                    except BackfillChanged:
                        messages.warning(
                            request, "Nothing was enqueued: the rows have changed. Look again."
                        )
                return self._enqueue_preview(request, chosen, name, one)
        except ForebayError as error:
            messages.error(request, f"Nothing was enqueued: {error} {error.hint or ''}")
        except DatabaseError as error:
            messages.error(request, f"Nothing was enqueued: {error}")
        return None

    def _enqueue_now(
        self, request: HttpRequest, chosen: QuerySet[Any], one: Enqueue, token: str
    ) -> None:
        connection = connections[chosen.db]
        with transaction.atomic(using=chosen.db):
            jobs = one.enqueue(one.query(chosen), connection, token)
            text = f"{counted(jobs, 'job')} {one.kind} enqueued"
            LogEntry.objects.create(
                user_id=request.user.pk,
                content_type=ContentType.objects.get_for_model(
                    self.model, for_concrete_model=False
                ),
                object_repr=str(self.opts.verbose_name_plural)[:200],
                action_flag=CHANGE,
                change_message=text,
            )
        messages.success(request, _with_link(request, self.admin_site.name, text, one.kind))

    def _enqueue_preview(
        self, request: HttpRequest, chosen: QuerySet[Any], name: str, one: Enqueue
    ) -> HttpResponse | None:
        connection = connections[chosen.db]
        with transaction.atomic(using=chosen.db):
            sql = one.query(chosen)
            plan = one.plan(sql, connection)
            with connection.cursor() as cursor:
                cursor.execute(f"select to_jsonb(s)::text from ({sql}) s limit {_SAMPLE}")
                sample = [json.loads(text) for (text,) in cursor.fetchall()]
        if not plan.jobs:
            messages.warning(request, "Nothing to enqueue: these rows become no job.")
            return None
        if plan.jobs > self.enqueue_jobs_max:
            messages.error(
                request,
                f"Nothing was enqueued: {plan.jobs:,} jobs are more than {self.enqueue_jobs_max:,}."
                " Filter more closely, or use forebay backfill --chunk.",
            )
            return None
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": f"Enqueue {one.kind}",
            "opts": self.opts,
            "facts": [
                ("Jobs", f"{plan.jobs:,}"),
                ("Kind", one.kind),
                ("Queue", plan.queue),
                ("Tag", one.options.get("tag", "backfill")),
                ("Priority", one.options.get("priority", 1000)),
                (
                    "Waiting there already",
                    f"{plan.waiting:,}, {plan.waiting_alike:,} of them with this priority",
                ),
            ],
            "sample": [call_of(one.kind, {**one.shared, **args}) for args in sample],
            "more": plan.jobs - len(sample),
            "button": f"Enqueue {counted(plan.jobs, 'job')}",
            "hidden": [
                ("action", name),
                ("select_across", request.POST.get("select_across", "0")),
                (_TOKEN, plan.token),
                *(
                    (helpers.ACTION_CHECKBOX_NAME, key)
                    for key in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)
                ),
            ],
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, "admin/forebay/enqueue.html", context)


def _action(name: str, one: Enqueue) -> Callable[..., Any]:
    def act(
        model_admin: EnqueueMixin, request: HttpRequest, chosen: QuerySet[Any]
    ) -> HttpResponse | None:
        return model_admin.response_enqueue(request, chosen, name, one)

    return act


def _with_link(request: HttpRequest, site: str, text: str, kind: str) -> str:
    """Return a message that leads to the jobs, if the user may see them."""
    if not request.user.has_perm("forebay.view_job"):
        return f"{text}."
    try:
        where = reverse("admin:forebay_job_changelist", current_app=site)
    except NoReverseMatch:  # The site does not have it.
        return f"{text}."
    where += "?" + urlencode({"kind": kind})
    return str(format_html('{}: <a href="{}">see them</a>.', text, where))

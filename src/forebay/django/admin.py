"""Jobs, dead letters, queues, workers, schedules and what else an operator looks at in Django's
admin: read, cancel, retry, pause, resume and run.

The pages use the same operations as the command line: newest first and bounded; only the page of
queues counts jobs. The permission "view" allows reading; "change" allows cancelling jobs, retrying
dead letters, pausing queues, keys and schedules, running schedules, and enabling endpoints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.db import connections
from django.urls import reverse

from forebay.db.drivers import run
from forebay.django._admin_base import (
    PAGE,
    ListAdmin,
    LogAdmin,
    call_of,
    client,
    error_sections,
    given,
    in_order,
    instant,
    is_cancelling,
    lasting,
    options_shown,
    pretty,
    short,
)
from forebay.django._app import app
from forebay.django._between import BetweenFilter
from forebay.django._enqueue import Enqueue, EnqueueMixin
from forebay.django._schedules import ScheduleAdmin
from forebay.django._sights import AlertAdmin, EndpointAdmin, EventAdmin, KeyAdmin
from forebay.django._subjects import SubjectAdmin
from forebay.django.models import (
    Alert,
    DeadLetter,
    Endpoint,
    Event,
    Job,
    Key,
    Queue,
    Schedule,
    Subject,
    Worker,
)
from forebay.errors import ForebayError, JobNotFound
from forebay.model import JobState
from forebay.model.change import ChangeResult, JobFilter
from forebay.model.explanation import Explanation
from forebay.model.flows import RecordedStep
from forebay.model.status import JobHistory, JobStatus
from forebay.model.text import attempt_of, human_bytes, whole_number
from forebay.ops.dead import REASONS
from forebay.ops.overview import QueueOverview, known_names, queue_overview

#: What an application imports; Django imports the rest when it looks for admins.
__all__ = ["BetweenFilter", "Enqueue", "EnqueueMixin"]


@admin.register(Job)
class JobAdmin(LogAdmin):
    """Jobs and their states."""

    filters = {  # noqa: RUF012
        "search": None,
        "queue": None,
        "kind": None,
        "state": [str(state) for state in JobState],
        "tag": None,
        "since": None,
        "until": None,
    }
    fields_of = {  # noqa: RUF012
        "search": "search",
        "since": "datetime-local",
        "until": "datetime-local",
        "Reschedule": "datetime-local",
        "Set priority": "number",
    }
    heads = ("Job", "State", "Call", "Queue", "Attempt", "Enqueued")
    verbs = {  # noqa: RUF012
        "Cancel": "requested to cancel",
        "Retry now": "made ready",
        "Reschedule": "rescheduled",
        "Set priority": "given another priority",
    }
    note = (
        "Newest first; a retry counts as new. A search finds a number, and what is the whole tag,"
        " key or correlation id of a job."
    )

    def known_choices(self) -> dict[str, Sequence[str] | None]:
        """Return the queues and kinds that the project or the database has."""
        return known_choices()

    def newest(self, *, before: int | None, **filters: Any) -> Any:
        """Return one more job than a page has."""
        which = {
            name: instant(filters.pop(given), given)
            for given, name in (("since", "enqueued_after"), ("until", "enqueued_before"))
            if given in filters
        }
        if "tag" in filters:
            which["tag"] = filters.pop("tag")
        wanted = filters.pop("search", None)
        if wanted is None:
            return _jobs(before, filters, which)
        found = {}
        if (number := whole_number(wanted)) is not None:
            with contextlib.suppress(JobNotFound):
                found = {one.place: one for one in client("job", number)}
        for name in _SEARCHED:
            if name not in which:
                found |= {one.place: one for one in _jobs(before, filters, {**which, name: wanted})}
        return [found[place] for place in sorted(found, reverse=True)][: PAGE + 1]

    def place(self, row: Any) -> Any:
        """Return the place of a job."""
        return row.place

    def row(self, row: Any) -> dict[str, Any]:
        """Return the cells of a job."""
        state = f"{row.state}, cancelling" if is_cancelling(row) else str(row.state)
        if row.group != "default":
            state += f" ({row.group})"
        return {
            "id": row.job_id,
            "url": self.url(row.job_id),
            "can_act": not row.state.is_final and not row.cancel_requested,
            "state": str(row.state),
            "cells": [
                state,
                call_of(row.kind, row.args),
                row.queue,
                attempt_of(row.attempt, row.max_attempts),
                row.enqueued_at,
            ],
        }

    def detail(self, number: int) -> tuple[str, bool, list[Any]]:
        """Return everything about a job, for each group."""
        statuses = client("job", number)
        histories = {history.group: history for history in client("job_history", number)}
        flows = {flow.group: flow for flow in client("flow", number)}
        waiting = any(not status.state.is_final for status in statuses)
        answers = {one.group: one for one in client("explain", number)} if waiting else {}
        sections: list[Any] = []
        for status in statuses:
            history = histories.get(status.group)
            facts = _facts(status, history, answers.get(status.group))
            name = "" if len(statuses) == 1 else f"Group {status.group}"
            sections.append((name, given(facts), []))
            if status.group in flows:
                sections.append(_steps(flows[status.group].steps))
            if history and history.errors:
                sections.append(("Errors, newest first", [], error_sections(history.errors)))
            if history and history.result:
                kept = history.result
                text = kept.problem or pretty(kept.value)
                sections.append(("Result", [("Kept until", kept.kept_until)], [("", None, text)]))
        args = in_order(statuses[0].kind, statuses[0].args)
        sections.append(("Arguments", [], [("", None, pretty(args))]))
        can_act = any(not s.state.is_final and not s.cancel_requested for s in statuses)
        return f"Job {number}", can_act, sections

    def act(self, key: int, verb: str, value: str) -> str:
        """Cancel a job, or change when or before which others it starts."""
        this, own = JobFilter(ids=[key]), app.client()  # An act runs in its own transaction.
        match verb:
            case "Retry now":
                return _changed(key, own.retry_matching(this), "Made ready.")
            case "Reschedule":
                when = instant(value, "run_at")
                changed = own.reschedule_matching(this, run_at=when)
                return _changed(key, changed, f"Rescheduled to {when:%Y-%m-%d %H:%M:%S %z}.")
            case "Set priority":
                changed = own.reprioritise_matching(this, int(value))
                return _changed(key, changed, f"Priority {value}.")
        match client("cancel", key):
            case "already ended":
                raise ForebayError("it has already ended")
            case "unknown":
                raise JobNotFound(key)
            case answer:
                return "Cancelled." if answer == "cancelled" else "Cancellation requested."


def _facts(
    status: JobStatus, history: JobHistory | None, waits: Explanation | None
) -> list[tuple[str, Any]]:
    progress = history.progress if history else None
    return [
        (
            "State",
            f"{status.state}, cancelling" if is_cancelling(status) else status.state,
        ),
        ("Why", waits and waits.answer),
        (
            "Next step",
            waits.hint if waits and waits.cause not in ("retrying", "running") else None,
        ),
        ("Progress", progress and f"{progress.done:.0%} {progress.note}"),
        ("Kind", status.kind),
        ("Queue", f"{status.queue}, priority {status.priority}"),
        ("Attempt", attempt_of(status.attempt, status.max_attempts)),
        ("Enqueued", status.enqueued_at),
        ("Due", status.run_at),
        ("Expires", status.expires_at),
        ("Claimed", status.claimed_at),
        ("Worker", status.worker),
        ("Ended", status.ended_at),
        *options_shown(status),
        ("Dead letter", status.dead_id),
        ("Redriven from job", status.redriven_from),
        ("Redriven from dead letter", status.redriven_from_dead_id),
        ("Redriven as job", status.redriven_as),
    ]


#: Most steps of a flow on the page of its job.
_STEPS_MAX: Final = 50


def _steps(steps: Sequence[RecordedStep]) -> tuple[str, list[Any], list[Any]]:
    """Return the section with the newest steps of a flow, without what they returned."""
    left_out = len(steps) - _STEPS_MAX
    name = "Steps" if left_out <= 0 else f"The last {_STEPS_MAX} of {len(steps):,} steps"
    facts = [(f"{each.no}. {each.title} ({each.kind})", each.at) for each in steps[-_STEPS_MAX:]]
    return name, facts, []


#: What a search compares, as a whole.
_SEARCHED: Final = ("tag", "correlation_id", "unique_key", "ordering_key", "limit_key")


def _jobs(before: int | None, filters: dict[str, Any], which: dict[str, Any]) -> Any:
    """Return one more job than a page has."""
    chosen = JobFilter(**which) if which else None
    return client("jobs", limit=PAGE + 1, before=before, which=chosen, **filters)


def _changed(job_id: int, result: ChangeResult, done: str) -> str:
    """Return what was done with a job.

    Raises:
        ForebayError: nothing was; the job is not one that waits.
    """
    answer = result.jobs.get(job_id, "unknown")
    if answer == "unknown":
        raise JobNotFound(job_id)
    if answer != "changed":
        raise ForebayError(f"it was not changed: {answer}")
    return done


@admin.register(DeadLetter)
class DeadLetterAdmin(LogAdmin):
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
    verbs = {"Retry": "enqueued again"}  # noqa: RUF012
    note = "Newest first. Those that were retried are not shown; choose so above."

    def known_choices(self) -> dict[str, Sequence[str] | None]:
        """Return the queues and kinds that the project or the database has."""
        return known_choices()

    def newest(self, *, before: int | None, **filters: Any) -> Any:
        """Return one more dead letter than a page has."""
        if "job" in filters:
            filters["job_id"] = int(filters.pop("job"))
        if "retried" in filters:
            filters["redriven"] = {"yes": True, "all": "any"}[filters.pop("retried")]
        return client("dead_letters", limit=PAGE + 1, before=before, **filters)

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
                short(error),
                f"job {row.redriven_as}" if row.redriven_as is not None else "",
            ],
        }

    def detail(self, number: int) -> tuple[str, bool, list[Any]]:
        """Return everything about a dead letter."""
        letter = client("dead_letter", number)
        facts = [
            ("Reason", letter.reason),
            ("Job", letter.job_id),
            ("Kind", letter.kind),
            ("Queue", f"{letter.queue}, priority {letter.priority}"),
            ("Group", None if letter.group == "default" else letter.group),
            ("Cause", letter.cause),
            ("Raised in", letter.place),
            ("Attempt", attempt_of(letter.attempt, letter.max_attempts)),
            ("Enqueued", letter.enqueued_at),
            ("Died", letter.died_at),
            *options_shown(letter),
            ("Retried", letter.redriven_at),
            ("Retried as job", letter.redriven_as),
        ]
        sections = [
            ("", given(facts), []),
            ("Arguments", [], [("", None, pretty(in_order(letter.kind, letter.args)))]),
            ("Errors, newest first", [], error_sections(letter.errors)),
        ]
        return f"Dead letter {number}", letter.redriven_as is None, sections

    def act(self, key: int, verb: str, value: str) -> str:
        """Enqueue a new job from a dead letter."""
        del verb, value
        return f"Retried as job {client('redrive', key)}."


@admin.register(Queue)
class QueueAdmin(ListAdmin):
    """Queues with the numbers of their jobs by state, for each consumer group."""

    heads = (
        "Queue", "State", "Scheduled", "Ready", "Cancelled, not passed", "Claimed", "Running",
        "Retrying", "Done", "Failed", "Dead", "Last claim",
    )  # fmt: skip
    verbs = {"Pause": "paused", "Resume": "resumed"}  # noqa: RUF012

    def newest(self, *, before: int | None, **filters: Any) -> Any:
        """Return all queues; this visits no job that just waits or has ended."""
        del before, filters
        found: dict[tuple[str, str], list[QueueOverview]] = {}
        for one in run(connections[app.alias], queue_overview()):
            found.setdefault((one.queue, one.group), []).append(one)
        return list(found.values())[: PAGE * 4]

    def row(self, row: list[QueueOverview]) -> dict[str, Any]:
        """Return the cells of a queue and group: the sums over its priorities."""
        first = row[0]
        names = (
            "scheduled", "ready", "cancelled", "claimed", "running", "retrying", "done", "failed",
            "dead",
        )  # fmt: skip
        claims = [one.claimed_at for one in row if one.claimed_at is not None]
        state = f"paused for {lasting(first.paused_at)}" if first.paused_at else "active"
        if first.resume_at:
            state += f", for another {lasting(first.resume_at)}"
        where = reverse("admin:forebay_job_changelist", current_app=self.admin_site.name)
        dead = reverse("admin:forebay_deadletter_changelist", current_app=self.admin_site.name)

        def counted(name: str) -> Any:
            count = sum(getattr(one, name) for one in row)
            if name == "failed" or not count:  # attempts, not jobs
                return f"{count:,}"
            chosen = {"queue": first.queue} | ({} if name == "dead" else {"state": name})
            url = f"{dead if name == 'dead' else where}?{urlencode(chosen)}"
            return {"text": f"{count:,}", "url": url}

        return {
            "id": first.queue,
            "label": first.queue if first.group == "default" else f"{first.queue}, {first.group}",
            "url": f"{where}?{urlencode({'queue': first.queue})}",
            "can_act": True,
            "state": "retrying" if first.paused_at else "done",
            "cells": [
                state,
                *map(counted, names),
                max(claims, default="never"),
            ],
        }

    def act(self, key: str, verb: str, value: str) -> str:
        """Pause or resume a queue, for all its groups."""
        del value
        client("pause_queue" if verb == "Pause" else "resume_queue", key)
        return "Paused." if verb == "Pause" else "Resumed."


@admin.register(Worker)
class WorkerAdmin(ListAdmin):
    """Running workers."""

    heads = ("Worker", "Heartbeat", "Queues", "Running", "Slots", "Memory", "Version", "Started")

    def newest(self, *, before: int | None, **filters: Any) -> Any:
        """Return all workers."""
        del before, filters
        return client("workers", jobs=0)[: PAGE * 4]

    def row(self, row: Any) -> dict[str, Any]:
        """Return the cells of a worker."""
        where = reverse("admin:forebay_job_changelist", current_app=self.admin_site.name)
        queues = ", ".join(row.queues or ())
        return {
            "id": row.worker,
            "url": f"{where}?state=running",
            "can_act": False,
            "state": "running",
            "cells": [
                f"{lasting(row.heartbeat_at)} ago" if row.heartbeat_at else "never",
                queues if row.group in (None, "default") else f"{queues} (group {row.group})",
                row.running,
                row.concurrency,
                human_bytes(row.memory_bytes) if row.memory_bytes else "",
                row.app_version or row.forebay_version or "",
                row.started_at,
            ],
        }


admin.site.register(Schedule, ScheduleAdmin)
admin.site.register(Subject, SubjectAdmin)
admin.site.register(Alert, AlertAdmin)
admin.site.register(Endpoint, EndpointAdmin)
admin.site.register(Key, KeyAdmin)
admin.site.register(Event, EventAdmin)


def known_choices() -> dict[str, Sequence[str] | None]:
    """Return the queues and kinds for filters: those of the project, and those that the database
    has seen.
    """
    queues, kinds = run(connections[app.alias], known_names())
    return {
        "queue": sorted({*queues, *app.kinds.queues()}),
        "kind": sorted({*kinds, *(kind.name for kind in app.kinds)}),
    }

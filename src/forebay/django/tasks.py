"""A backend for Django tasks: ``django.tasks`` of Django 6.0 and later, or the package
django-tasks for older ones.

    TASKS = {"default": {"BACKEND": "forebay.django.tasks.ForebayBackend", "QUEUES": ["default",
    "mail"]}}

``task.enqueue(...)`` writes a job in the open transaction of Django; in autocommit mode it is
committed immediately. Each task is a kind of the project's application under its full name, so
``manage.py forebay worker`` runs it with retries, leases and dead letters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from django.db import connections
from django.utils import timezone

from forebay.arguments.results import ran
from forebay.client import Client
from forebay.django._app import app
from forebay.errors import JobNotFound
from forebay.model import JobState
from forebay.model.checks import PRIORITY_DEFAULT
from forebay.model.context import Context
from forebay.model.outcome import Outcome
from forebay.model.status import JobStatus
from forebay.ops.protocol import Ended
from forebay.policy.error_text import calls_handlers
from forebay.worker.run.endings import ending, failure

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ModuleNotFoundError:  # Django before 6.0
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import TaskError
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "forebay.django.tasks needs Django 6.0, or django-tasks: pip install django-tasks",
            name=error.name,
        ) from error

_STATUS: Final = {
    JobState.SCHEDULED: TaskResultStatus.READY,
    JobState.READY: TaskResultStatus.READY,
    JobState.CLAIMED: TaskResultStatus.RUNNING,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.RETRYING: TaskResultStatus.READY,
    JobState.DONE: TaskResultStatus.SUCCESSFUL,
}


class ForebayBackend(BaseTaskBackend):
    """Enqueues tasks as jobs.

    OPTIONS:
        DATABASE: alias of the database, the same as the worker's. Default: ``"default"``.
        MAX_ATTEMPTS: maximum number of attempts of each task. Default: the settings. Use 1 for a
            task that must not run again after a failure.
        TIMEOUT: an attempt is stopped after this number of seconds.
        KEEP_RESULT: how long ``return_value`` is kept, in seconds or as a timedelta; True for a
            week, False for not at all, which saves a row per task. Default: True.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._database: str = self.options.get("DATABASE", "default")

    def validate_task(self, task: Any) -> None:
        """Refuse a task that cannot run, and declare the task as a kind.

        Django calls it for each task, also in the worker, which thus knows all tasks.
        """
        super().validate_task(task)
        name = task.module_path
        if (self.alias, name) not in app.tasks:
            handler = app.job(
                name=name,
                queue=task.queue_name,
                max_attempts=self.options.get("MAX_ATTEMPTS"),
                timeout=self.options.get("TIMEOUT"),
                keep_result=self.options.get("KEEP_RESULT", True),
                tag=f"task {self.alias}",
            )(_body(task, self))
            app.tasks[self.alias, name] = (task, handler)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task in Django's open transaction."""
        self.validate_task(task)
        _, declared = app.tasks[self.alias, task.module_path]
        handler = declared.using(
            queue=task.queue_name,
            # Django: -100 to 100, higher numbers first. Forebay: lower numbers first.
            priority=PRIORITY_DEFAULT - int(task.priority),
            run_at=_aware(task.run_after),
        )
        job_id = handler.enqueue(connections[self._database], args=list(args), kwargs=dict(kwargs))
        result = TaskResult(
            task=task,
            id=str(job_id),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the state of a task, with its errors and its return value.

        ``return_value`` is None also if it was not kept, has been deleted, has no JSON form, or is
        too large.

        Only tasks that this process has declared are found. A job's kind is text that a producer
        has written, so it is never imported.

        Raises:
            TaskResultDoesNotExist: the job does not exist, is not a task of this backend, or its
                task is in a module that this process has not imported.
        """
        client, conn = Client(), connections[self._database]
        try:
            (status, *_) = client.job(int(result_id), conn=conn)
            task, _ = app.tasks[self.alias, status.kind]
            args, kwargs = status.args["args"], status.args["kwargs"]
        except (JobNotFound, KeyError, ValueError) as error:
            raise TaskResultDoesNotExist(result_id) from error
        history = [
            entry
            for entry in client.job_history(status.job_id, conn=conn)
            if entry.group == status.group
        ]
        result = TaskResult(
            task=task,
            id=str(status.job_id),
            status=_STATUS.get(status.state, TaskResultStatus.FAILED),
            enqueued_at=status.enqueued_at,
            started_at=status.claimed_at,
            finished_at=status.ended_at,
            last_attempted_at=status.claimed_at,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[
                TaskError(
                    exception_class_path=_class_path(failure.type),
                    traceback=failure.traceback or failure.message or "",
                )
                for entry in history
                for failure in entry.errors
            ],
            worker_ids=_attempts(status),
        )
        for entry in history:
            if entry.result is not None:
                object.__setattr__(result, "_return_value", entry.result.value)
        return result


def _body(task: Any, backend: ForebayBackend) -> Callable[..., Any]:
    """Return the handler that runs a task's function."""
    function, takes_context = task.func, task.takes_context

    def arguments(
        ctx: Context, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        result = TaskResult(
            task=task,
            id=str(ctx.job.job_id),
            status=TaskResultStatus.RUNNING,
            enqueued_at=ctx.job.enqueued_at,
            started_at=timezone.now(),
            finished_at=None,
            last_attempted_at=timezone.now(),
            args=args,
            kwargs=kwargs,
            backend=backend.alias,
            errors=[],
            worker_ids=["forebay"] * ctx.attempt,
        )
        task_started.send(type(backend), task_result=result)
        return result, (TaskContext(task_result=result), *args) if takes_context else tuple(args)

    def finished(result: Any, ended: Ended | None = None) -> None:
        # Receivers alert on FAILED: an attempt that the job survives is not told.
        if ended is not None and ended.outcome not in ("done", "dead", "cancelled"):
            return
        is_done = ended is None or ended.outcome == "done"
        status = TaskResultStatus.SUCCESSFUL if is_done else TaskResultStatus.FAILED
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", timezone.now())
        task_finished.send(type(backend), task_result=result)

    @calls_handlers
    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result, positional = arguments(ctx, args, kwargs)
        try:
            returned = ran(function(*positional, **kwargs), ctx.job.kind)
        except Exception as error:
            finished(result, failure(app.kinds.get(ctx.job.kind), ctx.job, error))
            raise
        finished(result, _outcome_of(ctx, returned))
        return returned

    @calls_handlers
    async def run_async(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result, positional = arguments(ctx, args, kwargs)
        try:
            returned = ran(await function(*positional, **kwargs), ctx.job.kind)
        except Exception as error:
            finished(result, failure(app.kinds.get(ctx.job.kind), ctx.job, error))
            raise
        finished(result, _outcome_of(ctx, returned))
        return returned

    return run_async if inspect.iscoroutinefunction(function) else run


def _outcome_of(ctx: Context, returned: object) -> Ended | None:
    if isinstance(returned, Outcome):
        return ending(app.kinds.get(ctx.job.kind), ctx.job, returned)
    return None


def _aware(instant: datetime | None) -> datetime | None:
    if instant is None or timezone.is_aware(instant):
        return instant
    aware: datetime = timezone.make_aware(instant)
    return aware


def _attempts(status: JobStatus) -> list[str]:
    has_begun = status.state.is_held or status.state.is_final
    return [status.worker or "forebay"] * (status.attempt if has_begun else status.attempt - 1)


def _class_path(name: str | None) -> str:
    if not name:
        return "builtins.RuntimeError"
    return name if "." in name else f"builtins.{name}"

"""Run a handler as a worker would, inside a test: what it does and how the attempt ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from forebay._dataclass import dataclass
from forebay.app import Handler
from forebay.db.drivers import connection_of, given
from forebay.db.handler_connections import connection_class
from forebay.errors import ConfigError, WrongConnection
from forebay.in_threads import in_thread
from forebay.model.doors import declaring_door
from forebay.model.status import SHOWN_OPTIONS
from forebay.testing._contexts import RecordingContext, internals_of, job_for
from forebay.testing._failed import JobFailed
from forebay.testing._single_run import OUTCOMES, SingleRun, error_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from forebay.app import App, Internals
    from forebay.arguments.kinds import Kind
    from forebay.model import Job
    from forebay.model.attempts import AttemptOutcome
    from forebay.model.status import JobStatus
    from forebay.ops.protocol import Ended
    from forebay.testing._contexts import Reported

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed(Generic[R]):
    """How one performed attempt ended.

    Attributes:
        outcome: ``done``, ``retried``, ``dead``, ``cancelled`` or ``snoozed``.
        returned: what the handler returned; None if it raised.
        error: what it raised, or why its arguments do not fit.
        message: type and message of the error, or the reason of an outcome.
        after: seconds until the job would run again; None if it would not.
        context: the context that the handler had, if it takes one.
    """

    outcome: AttemptOutcome
    returned: R | None
    error: BaseException | None
    message: str | None
    after: float | None
    context: RecordingContext

    @property
    def reports(self) -> list[Reported]:
        """The progress that the handler reported."""
        return self.context.reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Performer:
    """Runs handlers in a test, under the given circumstances.

    Attributes:
        conn: the connection for a handler with ``transaction=True``, of the type that its context
            declares, or what stands for one at an enqueue, as ``django.db.connection`` and aliases
            do. The handler runs in a savepoint of its transaction; if the attempt fails, its writes
            are rolled back. Nothing commits.
        attempt: the number of the attempt.
        resources: what ``ctx.resources`` has.
        raise_on_failure: raise what the handler raises; with False the outcome has it.
        state: with a handler of subjects, what ``ctx.state`` has. The context of the outcome has it
            as the handler left it.
    """

    conn: Any = None
    attempt: int = 1
    resources: Mapping[str, Any] = field(default_factory=dict)
    raise_on_failure: bool = True
    state: Mapping[str, Any] | None = None

    @declaring_door
    def perform(
        self, handler: Handler[P, Q, R], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Performed[R]:
        """Run one attempt of a job with these arguments, and return how it ended.

        The arguments are encoded and decoded as for a real job. Options given by
        ``handler.using(...)`` are those of the job. A coroutine function runs on a new event loop;
        inside a running loop use ``perform_async``.

        Raises:
            InvalidJob: the arguments do not fit, as at an enqueue.
            Exception: what the handler raised.
            JobFailed: the attempt failed without an exception.
            ConfigError: the handler has a transaction, and no ``conn`` was given.
            WrongConnection: ``conn`` is not of the type that the handler declares.
        """
        return self._one(self._run(internals_of(handler), [self._job(handler, *args, **kwargs)]))

    @declaring_door
    async def perform_async(
        self, handler: Handler[P, Q, R], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Performed[R]:
        """Do as ``perform``, on a running event loop; a plain function runs in a thread."""
        jobs = [self._job(handler, *args, **kwargs)]
        return self._one(await self._run_async(internals_of(handler), jobs))

    @declaring_door
    def perform_batch(
        self, handler: Handler[..., ..., Any], items: Iterable[Any]
    ) -> list[Performed[Any]]:
        """Run one call of a batch handler with these items, and return how each job ended.

        For a handler of ``Job`` or ``msgspec.Raw`` values an item is a dict of arguments.
        """
        found = self._run(internals_of(handler), self._jobs(handler, items))
        return [self._raising(each) for each in found]

    @declaring_door
    async def perform_batch_async(
        self, handler: Handler[..., ..., Any], items: Iterable[Any]
    ) -> list[Performed[Any]]:
        """Do as ``perform_batch``, on a running event loop."""
        found = await self._run_async(internals_of(handler), self._jobs(handler, items))
        return [self._raising(each) for each in found]

    @declaring_door
    def perform_job(self, app: App, job: JobStatus) -> Performed[Any]:
        """Run one attempt of an enqueued job, such as ``assert_enqueued`` returned.

        The job stays enqueued.
        """
        return self._one(self._run(app._internals, [self._enqueued(app, job)]))

    @declaring_door
    async def perform_job_async(self, app: App, job: JobStatus) -> Performed[Any]:
        """Do as ``perform_job``, on a running event loop."""
        return self._one(await self._run_async(app._internals, [self._enqueued(app, job)]))

    def _job(self, handler: Handler[..., ..., Any], *args: Any, **kwargs: Any) -> Job:
        call = handler.call(*args, **kwargs)
        return job_for(handler, args=json.loads(call.args), attempt=self.attempt, state=self.state)

    def _jobs(self, handler: Handler[..., ..., Any], items: Iterable[Any]) -> list[Job]:
        by_name = handler.kind.takes_any_names
        return [
            self._job(handler, **item)
            if by_name and isinstance(item, Mapping)
            else self._job(handler, item)
            for item in items
        ]

    def _enqueued(self, app: App, job: JobStatus) -> Job:
        facts: dict[str, Any] = {
            name: getattr(job, name)
            for name in ("job_id", "queue", "priority", "group", "enqueued_at", "expires_at",
                *SHOWN_OPTIONS)
        }  # fmt: skip
        facts["headers"] = dict(job.headers or {})
        return job_for(
            job.kind,
            **facts,
            args=dict(job.args),
            attempt=self.attempt,
            max_attempts=job.max_attempts or app.kinds.get(job.kind).retry.max_attempts,
        )

    def _run(self, app: Internals, jobs: list[Job]) -> list[Performed[Any]]:
        kind = app.kinds.get(jobs[0].kind)
        if kind.is_async:
            return asyncio.run(self._run_async(app, jobs))
        run, context = self._prepared(app, kind, jobs)
        with _savepoint(context.conn) as savepoint:
            run.run()
            savepoint.keep = run.returned  # It may have ended its job in any way.
        return _performed(run, context)

    async def _run_async(self, app: Internals, jobs: list[Job]) -> list[Performed[Any]]:
        kind = app.kinds.get(jobs[0].kind)
        if not kind.is_async:
            return await in_thread(self._run, app, jobs)
        run, context = self._prepared(app, kind, jobs)
        async with _savepoint_async(context.conn) as savepoint:
            await run.run_async()
            savepoint.keep = run.returned  # It may have ended its job in any way.
        return _performed(run, context)

    def _prepared(
        self, app: Internals, kind: Kind, jobs: list[Job]
    ) -> tuple[SingleRun, RecordingContext]:
        context = RecordingContext(
            job=jobs[0],
            jobs=jobs,
            conn=_connection_for(kind, self.conn) if kind.transaction else None,
            resources=self.resources,
        )
        return SingleRun(app.kinds, jobs, context, app.middleware), context

    def _one(self, found: list[Performed[Any]]) -> Performed[Any]:
        (performed,) = found
        return self._raising(performed)

    def _raising(self, performed: Performed[Any]) -> Performed[Any]:
        if self.raise_on_failure and performed.outcome in {"retried", "dead"}:
            if performed.error is not None:
                raise performed.error
            job = performed.context.job
            raise JobFailed(
                f"job of kind {job.kind} would be {performed.outcome}: {performed.message}"
            )
        return performed


@declaring_door
def perform(handler: Handler[P, Q, R], /, *args: Q.args, **kwargs: Q.kwargs) -> Performed[R]:
    """Run one attempt of a job with these arguments: see ``Performer.perform``, which also takes
    a connection.

    >>> import forebay
    >>> app = forebay.App()
    >>> @app.job
    ... def double(n: int) -> int: return 2 * n
    >>> done = perform(double, 21)
    >>> done.outcome, done.returned
    ('done', 42)
    """
    return Performer().perform(handler, *args, **kwargs)


@declaring_door
async def perform_async(
    handler: Handler[P, Q, R], /, *args: Q.args, **kwargs: Q.kwargs
) -> Performed[R]:
    """Do as ``perform``, on a running event loop."""
    return await Performer().perform_async(handler, *args, **kwargs)


def _performed(run: SingleRun, context: RecordingContext) -> list[Performed[Any]]:
    return [
        Performed(
            outcome="done" if ended is None else OUTCOMES[ended.outcome],
            returned=run.result,
            error=error,
            message=None if ended is None else error_text(ended) or None,
            after=_after(ended),
            context=context,
        )
        for ended, error in zip(run.endings, run.errors, strict=True)
    ]


def _after(ended: Ended | None) -> float | None:
    runs_again = ended is not None and ended.outcome in {"retried", "snoozed"}
    return (ended.after or 0.0) if ended is not None and runs_again else None


# --- the transaction of a handler, within that of the test ---


@dataclass(slots=True)
class _Savepoint:
    keep: bool = False


class _Undo(Exception):  # noqa: N818 - not an error
    """Ends a savepoint that is not kept."""


@contextlib.contextmanager
def _savepoint(conn: Any) -> Iterator[_Savepoint]:
    found = _Savepoint()
    if conn is None:
        yield found
    elif hasattr(conn, "savepoint_rollback"):  # of Django
        name = conn.savepoint()
        try:
            yield found
        finally:
            (conn.savepoint_commit if found.keep else conn.savepoint_rollback)(name)
    else:
        with contextlib.suppress(_Undo), _nested(conn):
            yield found
            if not found.keep:
                raise _Undo


@contextlib.asynccontextmanager
async def _savepoint_async(conn: Any) -> AsyncIterator[_Savepoint]:
    found = _Savepoint()
    if conn is None:
        yield found
        return
    with contextlib.suppress(_Undo):
        async with _nested(conn):
            yield found
            if not found.keep:
                raise _Undo


def _nested(conn: Any) -> Any:
    """Return a nested transaction of a connection of psycopg, or of a connection or session of
    SQLAlchemy.
    """
    return conn.begin_nested() if hasattr(conn, "begin_nested") else conn.transaction()


def _connection_for(kind: Kind, conn: Any) -> Any:
    wanted = connection_class(kind.connection, is_async=kind.is_async)
    if conn is None:
        raise ConfigError(
            f"kind {kind.name}",
            "has a transaction, and needs a connection for it",
            hint="Performer(conn=...).perform(...)",
        )
    found = connection_of(conn)
    if not isinstance(found, wanted):
        raise WrongConnection(
            f"kind {kind.name} takes a {wanted.__module__}.{wanted.__qualname__},"
            f" not a {given(conn)}",
            given=given(conn),
            hint="Pass what the kind's context declares: `TransactionContext[...]`.",
        )
    return found

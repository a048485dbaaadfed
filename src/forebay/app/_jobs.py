"""Declarations of jobs, without an application: what a module of a larger program has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import (
    Any,
    Concatenate,
    Final,
    Literal,
    TypeVar,
    cast,
    overload,
)

from forebay.app._decorators import BatchDecorator, JobDecorator
from forebay.app._events import JobsEvents
from forebay.app._handler import Handler, P, Q
from forebay.app._internals import Internals
from forebay.app._mistakes import refuse_unknown_options
from forebay.app._producing import JobsProducing
from forebay.app._queues import JobsQueues
from forebay.app._schedules import JobsSchedules
from forebay.app._subjects import JobsSubjects
from forebay.arguments.keys import KindOptions
from forebay.arguments.kinds import QUEUE_DEFAULT, Kind
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import JobOptions, Unique, checks
from forebay.model.context import Context, TransactionContext
from forebay.model.doors import declaring_door
from forebay.ops.enqueue import checked_expires_in
from forebay.policy.key_breaker import Breaker
from forebay.policy.retry import RetryPolicy, as_policy

R = TypeVar("R")
C = TypeVar("C")
X = TypeVar("X", bound=Context)
F = TypeVar("F", bound=Callable[[], Any])

BATCH_SIZE_DEFAULT: Final = 100


class Jobs(JobsQueues, JobsSchedules, JobsSubjects, JobsEvents, JobsProducing):
    """Handlers and other declarations of a module, which an ``App`` includes.

    An ``App`` is a ``Jobs`` too: it declares in the same way. ``app.include(jobs)`` means the same
    as each declaration written with the app.

    Until then its handlers can be called, and can enqueue on the connection of the caller, with the
    settings of this process and without the middlewares of an app. What needs an app raises
    ``NotIncluded``: an enqueue without a connection, ``handle``, ``client``, ``dsn``.

    The methods for queues, schedules, subjects, events and clients are in base classes, in modules
    beside this one.

    >>> jobs = Jobs()
    >>> @jobs.job(queue="mail")
    ... def send_welcome(user_id: int) -> None: ...
    >>> send_welcome.call(42).args
    '{"user_id":42}'
    """

    #: What includes it; None: nothing does.
    _includer: Jobs | None = None

    @declaring_door
    def __init__(self) -> None:
        module = sys._getframe(2).f_globals.get("__name__")  # noqa: SLF001 - the caller of the door
        self._own = Internals(self, None, None, module)

    @property
    def _internals(self) -> Internals:
        """For the library itself: the declarations, those of the app once it is included."""
        includer = self._includer
        return self._own if includer is None else includer._internals

    def __repr__(self) -> str:
        return f"<jobs of module {self._own.module}>"

    def include(self, *jobs: Jobs) -> None:
        """Take all declarations of a ``Jobs``, those of today and later ones.

        A second call with the same object does nothing.

        Args:
            jobs: what to include, each a ``forebay.Jobs``. It may include others itself.

        Raises:
            ConfigError: it is included elsewhere already, is an app, or declares a kind, queue,
                schedule, mirror, drain or resource that exists here, with another meaning. Then
                nothing of it is included.

        >>> jobs = Jobs()
        >>> @jobs.job
        ... def resize(image: int) -> None: ...
        >>> app = forebay.App()
        >>> app.include(jobs)
        >>> [kind.name for kind in app.kinds]
        ['resize']
        """
        for each in jobs:
            self._include(each)

    def _include(self, jobs: object) -> None:
        if not isinstance(jobs, Jobs):
            problem = f"got {shown(jobs)}, not a forebay.Jobs"
            raise ConfigError("include", problem, hint="Write app.include(module.jobs).")
        here, there = self._internals, jobs._internals
        if there.is_app and there.owner is jobs:
            problem = f"got {jobs}, which is an App"
            hint = "Declare the handlers of the module with jobs = forebay.Jobs()."
            raise ConfigError("include", problem, hint=hint)
        if here.owner is jobs:
            raise ConfigError("include", f"got {jobs}, which includes this")
        if there is here:
            return
        if there.owner is not jobs:
            problem = f"got {jobs}, which {there.owner} includes already"
            hint = "A handler belongs to one app of a process: make the app once, in a module."
            raise ConfigError("include", problem, hint=hint)
        here.take(there)
        jobs._includer = self  # noqa: SLF001 - of the same class

    # --- declaring ---

    @overload
    def job(
        self, function: Callable[Concatenate[X, Q], R], /
    ) -> Handler[Concatenate[X, Q], Q, R]: ...

    @overload
    def job(
        self, function: Callable[Concatenate[TransactionContext[C], Q], R], /
    ) -> Handler[Concatenate[TransactionContext[C], Q], Q, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Handler[P, P, R]: ...

    @overload
    def job(
        self,
        *,
        name: str | None = None,
        queue: str = QUEUE_DEFAULT,
        priority: int = checks.PRIORITY_DEFAULT,
        tag: str | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        soft_timeout: float | timedelta | None = None,
        transaction: bool = False,
        expires_in: float | timedelta | None = None,
        unique_by: Sequence[str] = (),
        unique: Callable[[str], Unique] | None = None,
        limit_by: Sequence[str] = (),
        breaker: Breaker | None = None,
        order_by: Sequence[str] = (),
        keep_result: bool | float | timedelta = False,
        holds_key: bool = False,
        on_done: str | Handler[..., ..., Any] | None = None,
        on_dead: str | Handler[..., ..., Any] | None = None,
        executor: Literal["process"] | None = None,
        memory_bytes: int | None = None,
        cpu_seconds: float | None = None,
    ) -> JobDecorator: ...

    def job(self, *functions: Any, **options: Any) -> Any:
        """Declare a function as the handler of a kind. It can still be called as a function.

        A coroutine function runs on the worker's event loop, any other function in a thread. If its
        first parameter is a ``Context``, it receives one. See ``Outcome`` for what it may return.

        Args:
            functions: the handler, for the bare form ``@app.job``.
            options: options of the kind, see below.

        Options:
            name: name of the kind. Default: the function's name.
            queue: the queue of its jobs.
            priority: -32768 to 32767, lower numbers first.
            tag: where its jobs come from, free text.
            retry: the retry policy. Default: the settings.
            max_attempts: maximum number of attempts; overrides the retry policy.
            timeout: an attempt is stopped after this time, in seconds or as a timedelta.
            soft_timeout: an attempt is requested to stop after this time.
            transaction: the handler runs in a database transaction, ``ctx.conn``, that also
                completes the job; see ``TransactionContext`` for SQLAlchemy sessions and Django's
                connection.
            expires_in: a job expires if it has not started within this time after it was due.
            unique_by: names of arguments that make the unique key of each job;
                ``using(unique=...)`` replaces it.
            unique: the uniqueness mode of these keys: ``Once``, the default, ``Coalesce``, or
                ``lambda key: Debounce(key, wait=10)``.
            limit_by: names of arguments that make the limit key of each job, the argument itself if
                it is one: ``("host",)``. ``using(limit_key=...)`` replaces it. If all are None, the
                job has none.
            breaker: when the jobs of a limit key wait because the key fails; needs ``limit_by``.
                Jobs of all kinds of the queue with that key wait.
            order_by: as ``limit_by``, for the ordering key.
            keep_result: keep what the handler returns, as JSON, for this time; True for a week.
                Read it with ``handle(job_id).result()``.
            holds_key: a dead letter holds its ordering key: later jobs of the key wait until it is
                redriven, in its place, or skipped or purged. Otherwise they run.
            on_done: a kind, by its name or its handler. When a job is done, a job of that kind is
                enqueued in the same transaction: the follow-up. Its arguments say which job ended,
                and how. ``handler.using(...)`` gives it options.
            on_dead: the same when a job has become a dead letter, also when it expired.
            executor: "process" runs the handler in a separate process, which is reused and is
                killed at the timeout.
            memory_bytes: with "process", on Linux: maximum memory above that at its start; beyond
                it the handler gets a MemoryError.
            cpu_seconds: with "process": maximum processor time; beyond it the process is killed,
                which counts as a failed attempt.

        Raises:
            ConfigError: the declaration is invalid; the error names the kind and the reason.
        """
        refuse_unknown_options(options)
        if functions:
            return self._declared(*functions, **options)
        return lambda function: self._declared(function, **options)

    def batch_job(
        self,
        *,
        size: int = BATCH_SIZE_DEFAULT,
        linger: float | timedelta | None = None,
        name: str | None = None,
        queue: str = QUEUE_DEFAULT,
        priority: int = checks.PRIORITY_DEFAULT,
        tag: str | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        soft_timeout: float | timedelta | None = None,
        transaction: bool = False,
        expires_in: float | timedelta | None = None,
        unique_by: Sequence[str] = (),
        unique: Callable[[str], Unique] | None = None,
        limit_by: Sequence[str] = (),
        breaker: Breaker | None = None,
        order_by: Sequence[str] = (),
        holds_key: bool = False,
        on_done: str | Handler[..., ..., Any] | None = None,
        on_dead: str | Handler[..., ..., Any] | None = None,
        executor: Literal["process"] | None = None,
        memory_bytes: int | None = None,
        cpu_seconds: float | None = None,
    ) -> BatchDecorator:
        """Declare a function that handles many jobs of its kind per call.

        Its parameter is a list with one element per job. If the element type is ``msgspec.Raw``, it
        is the JSON text of the job's arguments, not decoded and not checked, and ``enqueue`` takes
        any arguments by name. If the element type is a struct, dataclass, typed dict or pydantic
        model, ``enqueue`` takes one such value. If it is ``Job``, ``enqueue`` takes any arguments
        by name. A context may come first; its ``jobs`` have the order of the list.

        If the handler returns None, every job is done. If it returns a list, each entry decides
        about its job: an outcome, an exception for a failure, or None for done. If it raises, all
        jobs fail.

        Args:
            size: maximum number of jobs per call, 1 to 10,000.
            linger: after a claim that found fewer jobs than a call takes, wait at most this time,
                up to one second, before the next claim from the queue, so that calls are fuller.
                None: a call never waits for more jobs.
            name: see ``job``, also for the following options.
            queue: ...
            priority: ...
            tag: ...
            retry: ...
            max_attempts: ...
            timeout: ...
            soft_timeout: ...
            transaction: ...
            expires_in: ...
            unique_by: ...
            unique: ...
            limit_by: ...
            breaker: ...
            order_by: ...
            holds_key: ...
            on_done: ...
            on_dead: ...
            executor: ...
            memory_bytes: ...
            cpu_seconds: ...

        Raises:
            ConfigError: the declaration is invalid; the error names the kind and the reason.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            return self._declared(
                function,
                batch_size=size,
                linger=linger,
                name=name,
                queue=queue,
                priority=priority,
                tag=tag,
                retry=retry,
                max_attempts=max_attempts,
                timeout=timeout,
                soft_timeout=soft_timeout,
                transaction=transaction,
                expires_in=expires_in,
                unique_by=unique_by,
                unique=unique,
                limit_by=limit_by,
                breaker=breaker,
                order_by=order_by,
                holds_key=holds_key,
                on_done=on_done,
                on_dead=on_dead,
                executor=executor,
                memory_bytes=memory_bytes,
                cpu_seconds=cpu_seconds,
            )

        return cast("BatchDecorator", decorate)

    @overload
    def resource(self, factory: F, /) -> F: ...

    @overload
    def resource(self, name: str, /) -> Callable[[F], F]: ...

    def resource(self, named: Any, /) -> Any:
        """Declare a function that builds a resource.

        Handlers find it in ``ctx.resources`` by its name.

        Each worker builds the resource once and closes it when the worker ends.

        >>> app = App()
        >>> @app.resource
        ... async def http():
        ...     async with contextlib.nullcontext("a client") as client:
        ...         yield client
        """
        if not isinstance(named, str):
            self._internals.resources.add(getattr(named, "__name__", shown(named)), named)
            return named

        def decorate(factory: F) -> F:
            self._internals.resources.add(named, factory)
            return factory

        return decorate

    def _declared(
        self,
        function: Callable[..., Any],
        *,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        tag: str | None = None,
        timeout: float | timedelta | None = None,
        soft_timeout: float | timedelta | None = None,
        expires_in: float | timedelta | None = None,
        unique_by: Sequence[str] = (),
        limit_by: Sequence[str] = (),
        order_by: Sequence[str] = (),
        made: type[Handler[..., ..., Any]] = Handler,
        **declared: Any,
    ) -> Handler[..., ..., Any]:
        if isinstance(function, Handler):
            raise ConfigError(f"kind {function.kind.name}", "is already declared")
        if not callable(function):
            raise ConfigError(
                "handler",
                f"is not a function: {shown(function)}",
                hint='Options go by name: @app.job(queue="mail").',
            )
        try:
            options = JobOptions(tag=tag)
            expires = checked_expires_in(expires_in)
        except InvalidJob as error:
            name = declared.get("name") or getattr(function, "__name__", "?")
            raise ConfigError(f"kind {name}: {error.field}", str(error.problem)) from None
        policy = retry = cast("RetryPolicy | None", as_policy(retry))
        if max_attempts is not None:
            policy = replace(retry or RetryPolicy(), max_attempts=max_attempts)
        kind = Kind.declare(
            function,
            options=options,
            retry=policy,
            hard_timeout_seconds=_seconds(timeout),
            soft_timeout_seconds=_seconds(soft_timeout),
            keys_by={"unique_by": unique_by, "limit_by": limit_by, "order_by": order_by},
            **declared,
        )
        self._internals.add_kind(kind)
        if retry is None:
            self._internals.leave_retry_to_settings(kind.name, max_attempts)
        handler = made(self, kind, expires_in=expires)
        self._internals.add_options(kind.name, KindOptions(handler.options, expires, kind.keys))
        return handler


def _seconds(value: Any) -> Any:
    # The kind refuses a value that is not a duration, and names itself.
    return value.total_seconds() if isinstance(value, timedelta) else value


def require_jobs(jobs: object) -> None:
    """Refuse what can declare nothing.

    Raises:
        ConfigError: it is neither an app nor a ``Jobs``.
    """
    if not isinstance(jobs, Jobs):
        raise ConfigError(
            "app",
            f"is {shown(jobs)}, not an App",
            hint="Pass the App that declares the handlers, or a forebay.Jobs that it includes.",
        )

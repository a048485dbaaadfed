"""The composition root: the one object that knows handlers, settings, database and worker.

Creating an ``App`` and declaring handlers reads no settings and does not access the database, so a
module with an app can be imported anywhere. Settings and address are looked up on first use.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from msgspec import Raw

from forebay.app._events import AppEvents
from forebay.app._handle import JobHandle
from forebay.app._handler import Handler, P, Q
from forebay.app._internals import Declaration, Internals
from forebay.app._middleware import enqueue_each, enqueue_each_async
from forebay.app._mistakes import refuse_unknown_options
from forebay.app._queues import AppQueues
from forebay.app._schedules import AppSchedules
from forebay.app._subjects import AppSubjects
from forebay.app._workers import AppWorkers
from forebay.arguments.keys import KindOptions
from forebay.arguments.kinds import QUEUE_DEFAULT, Kind, Kinds
from forebay.config import Settings
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import Job, JobId, JobOptions, Unique, checks
from forebay.model.context import Context, TransactionContext
from forebay.model.doors import declaring_door, door
from forebay.ops.enqueue import CHUNK_DEFAULT, Call, checked_expires_in
from forebay.policy.key_breaker import Breaker
from forebay.policy.retry import RetryPolicy, as_policy

if TYPE_CHECKING:
    from forebay.client import AsyncClient, Client
    from forebay.db.drivers import AsyncConnection, SyncConnection
    from forebay.model.middleware import Middleware

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
F = TypeVar("F", bound=Callable[[], Any])

BATCH_SIZE_DEFAULT: Final = 100


class JobDecorator(Protocol):
    """What ``app.job(...)`` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Q], R], /
    ) -> Handler[Concatenate[Context, Q], Q, R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[TransactionContext[C], Q], R], /
    ) -> Handler[Concatenate[TransactionContext[C], Q], Q, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, P, R]: ...


class BatchDecorator(Protocol):
    """What ``app.batch_job(...)`` returns.

    If the items are declared as ``Job`` or ``msgspec.Raw``, ``enqueue`` accepts any arguments by
    name.
    """

    @overload
    def __call__(self, function: Callable[[list[Job]], R], /) -> Handler[[list[Job]], ..., R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a handler with any context has items of one type
        self, function: Callable[[Context, list[Job]], R], /
    ) -> Handler[[Context, list[Job]], ..., R]: ...

    @overload
    def __call__(
        self, function: Callable[[TransactionContext[C], list[Job]], R], /
    ) -> Handler[[TransactionContext[C], list[Job]], ..., R]: ...

    @overload
    def __call__(self, function: Callable[[list[Raw]], R], /) -> Handler[[list[Raw]], ..., R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # as above
        self, function: Callable[[Context, list[Raw]], R], /
    ) -> Handler[[Context, list[Raw]], ..., R]: ...

    @overload
    def __call__(
        self, function: Callable[[TransactionContext[C], list[Raw]], R], /
    ) -> Handler[[TransactionContext[C], list[Raw]], ..., R]: ...

    @overload
    def __call__(self, function: Callable[[list[T]], R], /) -> Handler[[list[T]], [T], R]: ...

    @overload
    def __call__(
        self, function: Callable[[Context, list[T]], R], /
    ) -> Handler[[Context, list[T]], [T], R]: ...

    @overload
    def __call__(
        self, function: Callable[[TransactionContext[C], list[T]], R], /
    ) -> Handler[[TransactionContext[C], list[T]], [T], R]: ...


class App(AppQueues, AppSchedules, AppSubjects, AppEvents, AppWorkers):
    """Handlers, and everything needed to enqueue and run them.

    The methods for queues, schedules and subjects are in the base classes ``AppQueues``,
    ``AppSchedules`` and ``AppSubjects``, in modules beside this one.

    Args:
        dsn: the database address. Default: FOREBAY_DATABASE_URL, DATABASE_URL or PG*.
        settings: default: forebay.toml or pyproject.toml, and FOREBAY_* variables.
        middleware: what runs around enqueues, attempts and settlements, outermost first.
        name: the name of the app among those that apply declarations to one database. Default:
            ``module:attribute``. A renamed app does not remove what it applied under its old name.

    >>> app = App()
    >>> @app.job(queue="mail", timeout=30)
    ... def send_welcome(user_id: int, locale: str = "en") -> None: ...
    >>> send_welcome.call(42, locale="it").args
    '{"user_id":42,"locale":"it"}'
    """

    @declaring_door
    def __init__(
        self,
        dsn: str | None = None,
        *,
        settings: Settings | None = None,
        name: str | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        module = sys._getframe(2).f_globals.get("__name__")  # noqa: SLF001 - the caller of the door
        #: For the library itself: see ``Internals``.
        self._internals = Internals(self, dsn, settings, module, name)
        for each in middleware:
            self._internals.middlewares.add(each)

    # --- declaring ---

    @overload
    def job(
        self, function: Callable[Concatenate[Context, Q], R], /
    ) -> Handler[Concatenate[Context, Q], Q, R]: ...

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

    # --- producing ---

    @door
    def enqueue_many(
        self,
        conn: SyncConnection,
        calls: Iterable[Call],
        *,
        chunk: int = CHUNK_DEFAULT,
        ids: list[JobId] | None = None,
    ) -> int:
        """Enqueue jobs of any kinds, each a ``handler.call(...)``; see ``Handler.enqueue_many``."""
        around = self._internals.middlewares.enqueue
        return enqueue_each(around, conn, calls, _as_call, chunk, ids=ids)

    @door
    async def aenqueue_many(
        self,
        conn: AsyncConnection,
        calls: Iterable[Call] | AsyncIterable[Call],
        *,
        chunk: int = CHUNK_DEFAULT,
        ids: list[JobId] | None = None,
    ) -> int:
        """Asynchronous form of ``enqueue_many``."""
        around = self._internals.middlewares.aenqueue
        return await enqueue_each_async(around, conn, calls, _as_call, chunk, ids=ids)

    def client(self) -> Client:
        """Return a client for the app's database.

        Jobs that it enqueues by name get the queue of their kind.
        """
        from forebay.client import Client  # noqa: PLC0415 - most programs need none

        return Client(lambda: self.dsn, declared=self._internals.options_of)

    def async_client(self) -> AsyncClient:
        """Return an asynchronous client for the app's database; see ``client``."""
        from forebay.client import AsyncClient  # noqa: PLC0415 - most programs need none

        return AsyncClient(lambda: self.dsn, declared=self._internals.options_of)

    @door
    def handle(self, job_id: int, *, group: str = "default") -> JobHandle[Any]:
        """Return a handle of an enqueued job, for its state and result.

        ``Handler.handle`` knows the type of the result.

        Args:
            job_id: the id that ``enqueue`` returned.
            group: the consumer group of its queue.
        """
        return JobHandle(self.client(), self.async_client(), job_id, group)

    # --- looked up when first needed ---

    @property
    def dsn(self) -> str:
        """The address of the database; for ``embedded``, the local server is started if needed.

        Raises:
            ConfigError: no address is set.
        """
        return self._internals.address

    @property
    def settings(self) -> Settings:
        """The settings of this process.

        Raises:
            ConfigError: a setting is invalid; the error names it and its source.
        """
        return self._internals.settings

    @property
    def kinds(self) -> Kinds:
        """The declared kinds; a kind without a retry policy gets that of the settings."""
        return self._internals.kinds

    @property
    def mirrors(self) -> Mapping[str, Declaration]:
        """The declared mirrors, by name."""
        return self._internals.mirrors

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


def _as_call(item: Any) -> Call:
    if not isinstance(item, Call):
        raise InvalidJob(
            "call",
            f"must be a handler's call(...), not {type(item).__name__}",
            hint="Use handler.enqueue_many for plain arguments.",
        )
    return item


def require_app(app: object) -> None:
    """Refuse what is not an app.

    Raises:
        ConfigError: it is not an app.
    """
    if not isinstance(app, App):
        raise ConfigError(
            "app", f"is {shown(app)}, not an App", hint="Pass the App that declares the handlers."
        )

"""The composition root: the one object that knows handlers, settings, database and worker.

Making an ``App`` and declaring handlers reads no setting and touches no database, so a module with
an app in it can be imported anywhere. Both are looked up when they are first needed.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
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

from forebay.app._handle import JobHandle
from forebay.app._handler import Handler, P, Q
from forebay.app._internals import Declaration, Internals
from forebay.arguments.kinds import QUEUE_DEFAULT, Kind, Kinds
from forebay.client import AsyncClient, Client
from forebay.config import Settings
from forebay.db.bulk import enqueue_all, enqueue_all_async
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import Job, JobOptions, checks
from forebay.model.context import Context, TransactionContext
from forebay.ops.enqueue import CHUNK_DEFAULT, Call, checked_expires_in
from forebay.policy.retry import RetryPolicy

if TYPE_CHECKING:
    from forebay.db.drivers import AsyncConnection, SyncConnection
    from forebay.worker import Stats, Worker

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

    With items declared as ``Job`` the arguments of a job are free, and given by name.
    """

    @overload
    def __call__(self, function: Callable[[list[Job]], R], /) -> Handler[[list[Job]], ..., R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # whoever takes any context has items of one type
        self, function: Callable[[Context, list[Job]], R], /
    ) -> Handler[[Context, list[Job]], ..., R]: ...

    @overload
    def __call__(
        self, function: Callable[[TransactionContext[C], list[Job]], R], /
    ) -> Handler[[TransactionContext[C], list[Job]], ..., R]: ...

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


class App:
    """Handlers, and what they need to be enqueued and run.

    Args:
        dsn: the database; None means FOREBAY_DATABASE_URL, DATABASE_URL or PG*.
        settings: None means forebay.toml or pyproject.toml, and FOREBAY_* variables.

    >>> app = App()
    >>> @app.job(queue="mail", timeout=30)
    ... def send_welcome(user_id: int, locale: str = "en") -> None: ...
    >>> send_welcome.call(42, locale="it").args
    '{"user_id":42,"locale":"it"}'
    """

    def __init__(self, dsn: str | None = None, *, settings: Settings | None = None) -> None:
        module = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001
        #: For the library itself: see ``Internals``.
        self._internals = Internals(self, dsn, settings, module)

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
        retry: RetryPolicy | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        soft_timeout: float | timedelta | None = None,
        transaction: bool = False,
        expires_in: float | timedelta | None = None,
        keep_result: bool | float | timedelta = False,
        executor: Literal["process"] | None = None,
        memory_bytes: int | None = None,
        cpu_seconds: float | None = None,
    ) -> JobDecorator: ...

    def job(self, *functions: Any, **options: Any) -> Any:
        """Declare a function as the handler of a kind; it stays callable as it is.

        A coroutine function runs on the worker's event loop, any other in a thread. When its
        first parameter is a ``Context``, it is given one. See ``Outcome`` for what it may return.

        Args:
            functions: the handler, with the bare form ``@app.job``.
            options: of the kind, as below.

        Options:
            name: of the kind; None takes the function's.
            queue: where its jobs wait.
            priority: -32768 to 32767, lower first.
            tag: where its jobs come from, free text.
            retry: what follows a failed attempt; None means what the settings say.
            max_attempts: attempts in all; goes before the policy's own number.
            timeout: an attempt is stopped after so long; in seconds or as a timedelta.
            soft_timeout: and asked to stop after so long.
            transaction: it runs in a database transaction, ``ctx.conn``, that also completes the job;
                see ``TransactionContext`` for sessions of SQLAlchemy and Django's connection.
            expires_in: a job that did not start so long after it was due is not started any more.
            keep_result: what the handler returns is kept as JSON for so long, True for a week; read it with
                ``handle(job_id).result()``.
            executor: "process" runs it in a process of its own, reused for the next, killed at the timeout whatever it does.
            memory_bytes: in a process: how much more memory than at its start it may take, on Linux; then MemoryError is
                raised in it.
            cpu_seconds: in a process: how much processor time it may use; then the process is killed, which counts as
                a failed attempt.

        Raises:
            ConfigError: the declaration cannot be served; it names the kind and the reason.
        """
        if functions:
            return self._declared(*functions, **options)
        return lambda function: self._declared(function, **options)

    def batch_job(
        self,
        *,
        size: int = BATCH_SIZE_DEFAULT,
        name: str | None = None,
        queue: str = QUEUE_DEFAULT,
        priority: int = checks.PRIORITY_DEFAULT,
        tag: str | None = None,
        retry: RetryPolicy | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        soft_timeout: float | timedelta | None = None,
        transaction: bool = False,
        expires_in: float | timedelta | None = None,
        executor: Literal["process"] | None = None,
        memory_bytes: int | None = None,
        cpu_seconds: float | None = None,
    ) -> BatchDecorator:
        """Declare a function that takes many jobs of its kind per call.

        Its parameter is a list: of a struct, dataclass, typed dict or pydantic model, one value per
        job, and then ``enqueue`` takes one such value; or of ``Job``, and then ``enqueue`` takes
        any arguments by name. A context may come first; its ``jobs`` are in the list's order.

        Returning None ends every job as done. Returning a list ends each as its own entry says: an
        outcome, an exception for a failed one, or None for done. Raising fails all of them.

        Args:
            size: most jobs of one call, 1 to 10,000. A call never waits for more to arrive.
            name: see ``job``, as for all that follow.
            queue: ...
            priority: ...
            tag: ...
            retry: ...
            max_attempts: ...
            timeout: ...
            soft_timeout: ...
            transaction: ...
            expires_in: ...
            executor: ...
            memory_bytes: ...
            cpu_seconds: ...

        Raises:
            ConfigError: the declaration cannot be served; it names the kind and the reason.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            return self._declared(
                function,
                batch_size=size,
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
        """Declare a function that builds what handlers find in ``ctx.resources`` under its name.

        Each worker builds it once, and closes it when it ends.

        >>> app = App()
        >>> @app.resource
        ... async def http():
        ...     async with contextlib.nullcontext("a client") as client:
        ...         yield client
        """
        if not isinstance(named, str):
            self._internals.resources.add(getattr(named, "__name__", repr(named)), named)
            return named

        def decorate(factory: F) -> F:
            self._internals.resources.add(named, factory)
            return factory

        return decorate

    # --- producing ---

    def enqueue_many(
        self, conn: SyncConnection, calls: Iterable[Call], *, chunk: int = CHUNK_DEFAULT
    ) -> int:
        """Enqueue jobs of any kinds, each a ``handler.call(...)``; see ``Handler.enqueue_many``."""
        return enqueue_all(conn, calls, _as_call, chunk)

    async def aenqueue_many(
        self,
        conn: AsyncConnection,
        calls: Iterable[Call] | AsyncIterable[Call],
        *,
        chunk: int = CHUNK_DEFAULT,
    ) -> int:
        """Do as ``enqueue_many``, on an asynchronous connection."""
        return await enqueue_all_async(conn, calls, _as_call, chunk)

    def client(self) -> Client:
        """Return a client for the app's database."""
        return Client(lambda: self.dsn)

    def async_client(self) -> AsyncClient:
        """Return an asynchronous client for the app's database."""
        return AsyncClient(lambda: self.dsn)

    def handle(self, job_id: int, *, group: str = "default") -> JobHandle:
        """Return a handle on a job that was enqueued: where it stands, what it returned.

        Args:
            job_id: as ``enqueue`` returned it.
            group: for which reader of its queue.
        """
        return JobHandle(self.client(), self.async_client(), job_id, group)

    # --- running ---

    def worker(self, *, queues: Mapping[str, int] | None = None, group: str = "default") -> Worker:
        """Return a worker for some queues.

        Args:
            queues: queues with their weights; None means the setting ``queue``, and without it
                all queues the kinds wait in.
            group: the group of each queue to read for.
        """
        from forebay.worker import Worker  # noqa: PLC0415 - producers never need it

        return Worker(
            self._internals, self.dsn, queues=queues, settings=self.settings.worker, group=group
        )

    def run_worker(
        self,
        *,
        queues: Mapping[str, int] | None = None,
        group: str = "default",
        until_idle: bool = False,
    ) -> Stats:
        """Run a worker in this thread until it is stopped, or until nothing is left to do.

        ``forebay worker`` does the same and minds signals.
        """
        from forebay.worker import run_to_the_end  # noqa: PLC0415 - producers never need it

        return run_to_the_end(self.worker(queues=queues, group=group).run(until_idle=until_idle))

    # --- looked up when first needed ---

    @property
    def dsn(self) -> str:
        """The address of the database; ``embedded`` starts or finds the user's own server.

        Raises:
            ConfigError: there is none.
        """
        return self._internals.address

    @property
    def settings(self) -> Settings:
        """The settings of this process.

        Raises:
            ConfigError: one of them is wrong, with its name and source.
        """
        return self._internals.settings

    @property
    def kinds(self) -> Kinds:
        """The kinds declared here, their retries as the settings say where they say nothing."""
        return self._internals.kinds

    @property
    def mirrors(self) -> Mapping[str, Declaration]:
        """The mirrors declared with it, by name."""
        return self._internals.mirrors

    def _declared(
        self,
        function: Callable[..., Any],
        *,
        retry: RetryPolicy | None = None,
        max_attempts: int | None = None,
        tag: str | None = None,
        timeout: float | timedelta | None = None,
        soft_timeout: float | timedelta | None = None,
        expires_in: float | timedelta | None = None,
        **declared: Any,
    ) -> Handler[..., ..., Any]:
        if isinstance(function, Handler):
            raise ConfigError(f"kind {function.kind.name}", "is declared already")
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
        policy = retry
        if max_attempts is not None:
            policy = replace(retry or RetryPolicy(), max_attempts=max_attempts)
        kind = Kind.declare(
            function,
            options=options,
            retry=policy,
            hard_timeout_seconds=_seconds(timeout),
            soft_timeout_seconds=_seconds(soft_timeout),
            **declared,
        )
        self._internals.add_kind(kind)
        if retry is None:
            self._internals.leave_retry_to_settings(kind.name, max_attempts)
        return Handler(self, kind, expires_in=expires)


def _seconds(value: Any) -> Any:
    # What is no duration at all is refused by the kind, with its name.
    return value.total_seconds() if isinstance(value, timedelta) else value


def _as_call(item: Any) -> Call:
    if not isinstance(item, Call):
        raise InvalidJob(
            "call",
            f"must be a handler's call(...), not {type(item).__name__}",
            hint="Use handler.enqueue_many for plain arguments.",
        )
    return item

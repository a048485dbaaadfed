"""The part of an app for subjects: standing jobs, and the handlers of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from forebay.app._handler import Handler, HandlerOptions, P, Q
from forebay.arguments.kinds import QUEUE_DEFAULT, SubjectKind
from forebay.db.drivers import AsyncConnection, SyncConnection
from forebay.errors import ConfigError, EnqueueError, InvalidJob, shown
from forebay.model import checks
from forebay.model.context import Context, TransactionContext
from forebay.model.doors import Doors, door
from forebay.model.subjects import SubjectResult, checked_version, kind_of_version
from forebay.ops.subjects import CHUNK_DEFAULT, SubjectItem, subject_item, subject_maker

if TYPE_CHECKING:
    from forebay.client import AsyncClient, Client
    from forebay.policy.key_breaker import Breaker
    from forebay.policy.retry import RetryPolicy

R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C")
X = TypeVar("X", bound=Context)

EVERY_SECONDS_MAX: Final = 100 * 360 * 86_400

#: What enqueues a job: a handler of subjects has none of it.
_ENQUEUES: Final = (
    "enqueue", "aenqueue", "enqueue_now", "aenqueue_now", "enqueue_many", "aenqueue_many",
    "calls", "callback",
)  # fmt: skip


class SubjectHandler(Handler[P, Q, R_co]):
    """A function decorated with ``@app.subject``: the handler of the runs of its subjects.

    Calling it calls the function. The methods below take a connection, then the name of a subject,
    then the function's arguments without the context; type checkers verify them. They work in the
    transaction of the connection and never commit. With a connection of None they open one and
    commit.

    Attributes:
        kind: the declaration.
        options: the options of its runs.
    """

    #: Names of the options that were given with ``using``, or differ from the defaults.
    _given: frozenset[str] = frozenset()

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Any:
            """Refuse the enqueue methods of jobs: a run without a subject has no state and no
            next time.
            """
            if name in _ENQUEUES:
                raise AttributeError(name)
            return object.__getattribute__(self, name)

        def __getattr__(self, attribute: str) -> Any:
            """Refuse an attribute; for the verbs of jobs, name the call for subjects."""
            if attribute not in _ENQUEUES:
                return super().__getattr__(attribute)
            kind = self.__dict__["__name__"]
            message = (
                f"{kind} is a handler of subjects, and has no {attribute}; use "
                f"{kind}.push(conn, subject, ...)"
            )
            raise AttributeError(message)

    def __repr__(self) -> str:
        return f"<handler of subjects of kind {self.kind.name!r}>"

    def using(self, **options: Unpack[HandlerOptions]) -> SubjectHandler[P, Q, R_co]:
        """Return a copy whose pushes and upserts set other options; None removes an option.

        ``delay`` or ``run_at`` is when the subject is due first, or with an upsert next.
        ``expires_at`` kills a subject that is due at or after it. An upsert changes the options
        that are given, here or in the declaration.

        Raises:
            InvalidJob: an option is unknown, not one of subjects, or its value is refused.
        """
        for name in ("unique", "expires_in"):
            if name in options:
                raise InvalidJob(f"option {name}", "is not one of subjects")
        other: Any = super().using(**options)
        other._given = self._given | options.keys()  # noqa: SLF001 - of a copy of this object
        return other  # type: ignore[no-any-return]

    def item(self, subject: str | None, /, *args: Q.args, **kwargs: Q.kwargs) -> SubjectItem:
        """Return a subject for ``push_many`` or ``upsert_many``, its arguments checked.

        Args:
            subject: its name, 1 to 512 bytes; None: a random one.
            args: arguments of its runs.
            kwargs: arguments of its runs by name.

        Raises:
            InvalidJob: the name or an argument is refused.
            PayloadTooLarge: the arguments are too large.
            PayloadTooDeep: the arguments are nested too deeply.
        """
        return self._item(subject, self._options(), *args, **kwargs)

    def push(
        self, conn: SyncConnection | None, subject: str, /, *args: Q.args, **kwargs: Q.kwargs
    ) -> SubjectResult:
        """Create a subject; if it exists, in any state, it is left as it is.

        Args:
            conn: the connection; None: a new one, and commit.
            subject: its name, 1 to 512 bytes, unique in its queue.
            args: arguments of its runs.
            kwargs: arguments of its runs by name.

        Raises:
            EnqueueError: the name, an argument or an option is refused; nothing was sent.
        """
        return self.push_many(conn, [self.item(subject, *args, **kwargs)])[0]

    async def apush(
        self, conn: AsyncConnection | None, subject: str, /, *args: Q.args, **kwargs: Q.kwargs
    ) -> SubjectResult:
        """Asynchronous form of ``push``."""
        return (await self.apush_many(conn, [self.item(subject, *args, **kwargs)]))[0]

    def append(self, conn: SyncConnection | None, /, *args: Q.args, **kwargs: Q.kwargs) -> str:
        """Create a subject with a random name; return the name. See ``push``."""
        return self.push_many(conn, [self.item(None, *args, **kwargs)])[0].subject

    async def aappend(
        self, conn: AsyncConnection | None, /, *args: Q.args, **kwargs: Q.kwargs
    ) -> str:
        """Asynchronous form of ``append``."""
        return (await self.apush_many(conn, [self.item(None, *args, **kwargs)]))[0].subject

    def upsert(
        self, conn: SyncConnection | None, subject: str, /, *args: Q.args, **kwargs: Q.kwargs
    ) -> SubjectResult:
        """Create a subject, or give it these arguments, the version of this handler, and the
        options of ``using``.

        Its next time changes only with ``using(delay=...)`` or ``using(run_at=...)``. A subject is
        skipped while a worker has its run, and if it is completed, dead or killed.
        ``Client.upsert_subjects(revive=True)`` schedules these.

        Args:
            conn: see ``push``.
            subject: see ``push``.
            args: see ``push``.
            kwargs: see ``push``.

        Raises:
            EnqueueError: see ``push``.
        """
        item = self._item(subject, self._options(), *args, **kwargs)
        return self.upsert_many(conn, [item])[0]

    async def aupsert(
        self, conn: AsyncConnection | None, subject: str, /, *args: Q.args, **kwargs: Q.kwargs
    ) -> SubjectResult:
        """Asynchronous form of ``upsert``."""
        item = self._item(subject, self._options(), *args, **kwargs)
        return (await self.aupsert_many(conn, [item]))[0]

    @door
    def push_many(
        self,
        conn: SyncConnection | None,
        items: Iterable[SubjectItem | tuple[str, Mapping[str, Any]] | str],
        /,
        *,
        chunk: int = CHUNK_DEFAULT,
    ) -> list[SubjectResult]:
        """Create many subjects; return what became of each, in order.

        All are checked before the first one is written.

        Args:
            conn: see ``push``.
            items: each an ``item(...)``; a tuple of a name and a dict of arguments; or a name
                alone, for a handler without arguments.
            chunk: maximum number of subjects per statement, 1 to 10,000.

        Raises:
            EnqueueError: an item was refused, or a name is given twice; its ``index`` counts from
                0.
        """
        found = self._items(items, self._options())
        return self._client().push_subjects(found, chunk=chunk, conn=conn)

    @door
    async def apush_many(
        self,
        conn: AsyncConnection | None,
        items: Iterable[SubjectItem | tuple[str, Mapping[str, Any]] | str],
        /,
        *,
        chunk: int = CHUNK_DEFAULT,
    ) -> list[SubjectResult]:
        """Asynchronous form of ``push_many``."""
        found = self._items(items, self._options())
        return await self._async_client().push_subjects(found, chunk=chunk, conn=conn)

    @door
    def upsert_many(
        self,
        conn: SyncConnection | None,
        items: Iterable[SubjectItem | tuple[str, Mapping[str, Any]] | str],
        /,
        *,
        revive: bool = False,
        chunk: int = CHUNK_DEFAULT,
    ) -> list[SubjectResult]:
        """Create or change many subjects; return what became of each, in order.

        See ``upsert`` and ``push_many``.

        Args:
            conn: see ``push``.
            items: see ``push_many``.
            revive: schedule those that are completed, dead or killed. Without it they are skipped.
            chunk: see ``push_many``.

        Raises:
            EnqueueError: see ``push_many``.
        """
        found = self._items(items, self._options())
        return self._client().upsert_subjects(found, revive=revive, chunk=chunk, conn=conn)

    @door
    async def aupsert_many(
        self,
        conn: AsyncConnection | None,
        items: Iterable[SubjectItem | tuple[str, Mapping[str, Any]] | str],
        /,
        *,
        revive: bool = False,
        chunk: int = CHUNK_DEFAULT,
    ) -> list[SubjectResult]:
        """Asynchronous form of ``upsert_many``."""
        found = self._items(items, self._options())
        return await self._async_client().upsert_subjects(
            found, revive=revive, chunk=chunk, conn=conn
        )

    def _client(self) -> Client:
        from forebay.client import Client  # noqa: PLC0415 - a worker does without

        app = self._app
        return Client(lambda: app.dsn)

    def _async_client(self) -> AsyncClient:
        from forebay.client import AsyncClient  # noqa: PLC0415 - a worker does without

        app = self._app
        return AsyncClient(lambda: app.dsn)

    def _options(self) -> dict[str, Any]:
        """Return the options to send. A default priority is not among them: an upsert would set
        it.
        """
        given = self.options.given()
        if "priority" not in self._given and given["priority"] == checks.PRIORITY_DEFAULT:
            del given["priority"]
        return given

    def _item(
        self, subject: str | None, options: dict[str, Any], *args: Any, **kwargs: Any
    ) -> SubjectItem:
        return self._maker(options)(subject, *args, **kwargs)

    def _maker(self, options: dict[str, Any]) -> Callable[..., SubjectItem]:
        """Return a function that makes a subject of a name and arguments. What is the same for
        all subjects is checked and encoded once.
        """
        of, keys = self.kind.subject, self.kind.keys
        assert of is not None
        encode = self._app._internals.encoder(self.kind)
        plain = subject_maker(kind=of.name, version=of.version, options=options)
        if keys is None:
            return lambda subject, /, *args, **kwargs: plain(subject, encode(*args, **kwargs))

        def make(subject: str | None, /, *args: Any, **kwargs: Any) -> SubjectItem:
            encoded = encode(*args, **kwargs)
            made = keys.options(encoded, self.options)
            own = {"limit_key": made.limit_key, "ordering_key": made.ordering_key}
            given = options | {name: key for name, key in own.items() if key is not None}
            return subject_item(
                subject, kind=of.name, version=of.version, args=encoded, options=given
            )

        return make

    def _items(self, items: Iterable[Any], options: dict[str, Any]) -> list[SubjectItem]:
        found: list[SubjectItem] = []
        make = self._maker(options)
        for index, item in enumerate(items):
            try:
                found.append(_as_item(item, make))
            except EnqueueError as error:
                raise error.at_index(index) from None
        return found


def _as_item(item: Any, make: Callable[..., SubjectItem]) -> SubjectItem:
    if isinstance(item, SubjectItem):
        return item
    if isinstance(item, str):
        return make(item)
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping):
        return make(item[0], **item[1])
    raise InvalidJob(
        "item",
        f"is {shown(item)}, not a subject",
        hint='Pass handler.item("name", ...), or ("name", {"argument": 1}).',
    )


class SubjectDecorator(Protocol):
    """What ``app.subject(...)`` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[X, Q], R_co], /
    ) -> SubjectHandler[Concatenate[X, Q], Q, R_co]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[TransactionContext[C], Q], R_co], /
    ) -> SubjectHandler[Concatenate[TransactionContext[C], Q], Q, R_co]: ...

    @overload
    def __call__(self, function: Callable[P, R_co], /) -> SubjectHandler[P, P, R_co]: ...


class JobsSubjects(Doors, declares=True):
    """Declares handlers of subjects."""

    if TYPE_CHECKING:

        def _declared(self, function: Callable[..., Any], **options: Any) -> Any: ...

    def subject(
        self,
        *,
        queue: str = QUEUE_DEFAULT,
        every: float | timedelta | None = None,
        version: int = 0,
        name: str | None = None,
        priority: int = checks.PRIORITY_DEFAULT,
        tag: str | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        soft_timeout: float | timedelta | None = None,
        transaction: bool = False,
        executor: Literal["process"] | None = None,
        memory_bytes: int | None = None,
        cpu_seconds: float | None = None,
        holds_key: bool = False,
        limit_by: Sequence[str] = (),
        breaker: Breaker | None = None,
        order_by: Sequence[str] = (),
    ) -> SubjectDecorator:
        """Declare a function as the handler of subjects: standing jobs, each with a unique name,
        arguments and a state, that come due again.

        Each run is a job. The handler returns ``Again``, ``Complete``, ``Drop``, or another
        ``Outcome``: ``Snooze`` and ``Retry`` run it again, ``Cancel`` kills the subject, ``Dead``
        makes it dead. An exception is a failed attempt; after the last one the subject is dead.
        ``ctx.subject`` and ``ctx.state`` tell what is known of the subject.

        Args:
            queue: the queue of the runs; a subject is unique in its queue.
            every: seconds or a timedelta, at least 1 s: a run that returns None is due again at the
                next instant of the grid of its due time. Without it, None completes the subject.
            version: of the arguments, 0 to 9999. Handlers of two versions of one name may stand
                side by side: a run goes to that of its version.
            name: the kind of the subjects. Default: the function's name. Runs of version 2 have the
                kind ``NAME.v2``.
            priority: see ``job``, also for the following options.
            tag: ...
            retry: ...
            max_attempts: ...
            timeout: ...
            soft_timeout: ...
            transaction: the transaction of ``ctx.conn`` also saves the state and the next time: all
                of it is one commit.
            executor: see ``job``, also for the following options.
            memory_bytes: ...
            cpu_seconds: ...
            holds_key: ...
            limit_by: ...
            breaker: ...
            order_by: ...

        Raises:
            ConfigError: the declaration is invalid.

        >>> import forebay
        >>> app = forebay.App()
        >>> @app.subject(queue="crawl")
        ... def crawl(ctx: forebay.Context, url: str) -> forebay.Again:
        ...     ctx.state["seen"] = ctx.state.get("seen", 0) + 1
        ...     return forebay.Again("+1 week")
        """

        def decorate(function: Callable[..., Any]) -> Any:
            chosen = str(name or getattr(function, "__name__", ""))
            try:
                seconds = _checked_every(every)
                number = checked_version(version)
            except InvalidJob as error:
                raise ConfigError(
                    f"subject {chosen}: {error.field}", str(error.problem), hint=error.hint
                ) from None
            return self._declared(
                function,
                made=SubjectHandler,
                subject=SubjectKind(name=chosen, version=number, every=seconds),
                name=kind_of_version(chosen, number) if number else name,
                queue=queue,
                priority=priority,
                tag=tag,
                retry=retry,
                max_attempts=max_attempts,
                timeout=timeout,
                soft_timeout=soft_timeout,
                transaction=transaction,
                executor=executor,
                memory_bytes=memory_bytes,
                cpu_seconds=cpu_seconds,
                holds_key=holds_key,
                limit_by=limit_by,
                breaker=breaker,
                order_by=order_by,
            )

        return decorate


def _checked_every(every: float | timedelta | None) -> float | None:
    if every is None:
        return None
    seconds = checks.checked_seconds(every, "every", most=EVERY_SECONDS_MAX)
    if seconds < 1:
        raise InvalidJob("every", f"is {seconds:g} s, less than a second")
    return seconds

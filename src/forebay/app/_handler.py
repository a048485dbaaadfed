"""A decorated function: callable as before, and enqueued with the same arguments."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from forebay.app._handle import JobHandle
from forebay.app._internals import Internals
from forebay.app._middleware import (
    enqueue_each,
    enqueue_each_async,
    enqueue_one,
    enqueue_one_async,
)
from forebay.app._mistakes import connection_first, likelier, missing_attribute
from forebay.arguments.keys import as_request
from forebay.arguments.kinds import Kind
from forebay.arguments.results import result_type
from forebay.db.drivers import AsyncConnection, SyncConnection, run, run_async
from forebay.db.kept import run_kept, run_kept_async
from forebay.errors import EnqueueError, InvalidJob, WrongConnection
from forebay.model import Idempotent, JobId, JobOptionChanges, JobOptions
from forebay.model.doors import door
from forebay.ops.enqueue import CHUNK_DEFAULT, Call, checked_expires_in
from forebay.ops.flows import GIVEN_TO_CALLBACKS

P = ParamSpec("P")  # parameters of the function
Q = ParamSpec("Q")  # parameters of enqueue: without the context; for a batch handler, one item
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Producer(Protocol):
    """What a handler needs from its app to enqueue."""

    @property
    def dsn(self) -> str:
        """The address of the database."""

    @property
    def _internals(self) -> Internals:
        """Internal to the library."""


class HandlerOptions(JobOptionChanges, total=False):
    """The keywords of ``using``: the options of a job, and ``expires_in``."""

    expires_in: float | timedelta | None


class Handler(Generic[P, Q, R_co]):
    """A function decorated with ``@app.job`` or ``@app.batch_job``.

    Calling the handler calls the function. The enqueue methods take a connection and then the
    function's arguments without the context; type checkers verify them. A batch handler takes one
    item instead. Only the ``_now`` methods commit.

    Attributes:
        kind: the declaration.
        options: the options of its jobs.
        expires_in_seconds: its jobs expire this time after they were due; None if only ``options``
            decide.
    """

    __name__: str
    kind: Kind
    options: JobOptions
    expires_in_seconds: float | None

    def __init__(self, app: Producer, kind: Kind, *, expires_in: float | None = None) -> None:
        functools.update_wrapper(self, kind.function)
        self.kind = kind
        self.options = JobOptions(queue=kind.queue, priority=kind.priority).merged(
            **kind.options.given()
        )
        self._app = app
        self.expires_in_seconds = expires_in
        #: Whether ``using`` chose a uniqueness mode, or none.
        self._chose_unique = False

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function directly."""
        result: R_co = self.kind.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<handler of kind {self.kind.name!r}>"

    if not TYPE_CHECKING:  # For type checkers a handler has no other attributes.

        def __getattr__(self, attribute: str) -> Any:
            """Refuse an attribute.

            The error for a verb of another library names the call that does the same.
            """
            raise missing_attribute(self.__dict__.get("__name__", "?"), attribute)

    def using(self, **options: Unpack[HandlerOptions]) -> Handler[P, Q, R_co]:
        """Return a copy whose jobs have other options; None removes an option.

        ``run_at`` and ``delay`` replace each other. So do ``expires_at`` and ``expires_in``;
        ``expires_in`` counts from the time at which the job is due.

        Raises:
            InvalidJob: an option is unknown, or its value is refused.
        """
        changes: dict[str, Any] = dict(options)
        expires_in = self.expires_in_seconds
        if "expires_in" in changes:
            expires_in = checked_expires_in(changes.pop("expires_in"))
            if expires_in is not None:
                changes.setdefault("expires_at", None)
        elif changes.get("expires_at") is not None:
            expires_in = None
        other = copy.copy(self)
        other.options = self.options.merged(**changes)
        other.expires_in_seconds = expires_in
        if "unique" in options:
            other._chose_unique = True  # noqa: SLF001 - of a copy of this object
        return other

    def call(self, /, *args: Q.args, **kwargs: Q.kwargs) -> Call:
        """Return a job to enqueue with ``enqueue_many``, its arguments checked.

        Raises:
            InvalidJob: an argument is unknown, missing, of the wrong type, or has no JSON form.
            PayloadTooLarge: the arguments are too large.
            PayloadTooDeep: the arguments are nested too deeply.
        """
        return self._call_with(self._app._internals.encoder(self.kind)(*args, **kwargs))

    def callback(self, /, *args: Any, **kwargs: Any) -> Call:
        """Return a job for the ``then`` of ``forebay.gather``, its arguments checked.

        The arguments ``results`` and ``died`` are left out: the worker gives them.

        Raises:
            EnqueueError: as ``call``.
        """
        encoder = self._app._internals.encoder(self.kind, GIVEN_TO_CALLBACKS)
        return self._call_with(encoder(*args, **kwargs))

    def _call_with(self, encoded: str) -> Call:
        options = self.options
        keys = self.kind.keys
        if keys is not None:
            options = keys.options(encoded, options, with_unique=not self._chose_unique)
        unique = options.unique
        if isinstance(unique, Idempotent) and unique.request is None:
            unique = as_request(unique, encoded, self.kind.arguments.defaults())
            options = options.merged(unique=unique)
        return Call(
            kind=self.kind.name,
            args=encoded,
            options=options,
            expires_in_seconds=self.expires_in_seconds,
            not_unique=self._chose_unique and unique is None,
        )

    @door
    def calls(self, items: Iterable[Any], /) -> list[Call]:
        """Return a job for each item, its arguments checked: for ``ctx.gather``.

        Args:
            items: as for ``enqueue_many``.

        Raises:
            EnqueueError: an item is refused; its ``index`` counts from 0.
        """
        found: list[Call] = []
        for index, item in enumerate(items):
            try:
                found.append(self._as_call(item))
            except EnqueueError as error:
                raise error.at_index(index) from error.__cause__
        return found

    @connection_first
    def enqueue(self, conn: SyncConnection, /, *args: Q.args, **kwargs: Q.kwargs) -> JobId:
        """Enqueue a job in the connection's transaction; return its id.

        The job exists if, and only if, that transaction commits. With a unique key the
        id may be that of an existing job; then its ``is_new`` is False.

        Raises:
            EnqueueError: an argument or option is refused, see ``call``; nothing was sent.
            KeyBusy: another open transaction is taking the unique key, with ``on_busy="raise"``.
            PayloadDiffers: the idempotency key belongs to another request.
            WrongConnection: the first argument is not a synchronous connection.
            SchemaError: the database has no schema.
        """
        try:
            call = self.call(*args, **kwargs)
            around = self._app._internals.middlewares.enqueue
            return enqueue_one(around, call, functools.partial(run, conn))
        except (InvalidJob, WrongConnection) as error:
            raise likelier(error, conn, self.__name__) from error.__cause__

    @connection_first
    async def aenqueue(self, conn: AsyncConnection, /, *args: Q.args, **kwargs: Q.kwargs) -> JobId:
        """Asynchronous form of ``enqueue``."""
        try:
            call = self.call(*args, **kwargs)
            around = self._app._internals.middlewares.aenqueue
            return await enqueue_one_async(around, call, functools.partial(run_async, conn))
        except (InvalidJob, WrongConnection) as error:
            raise likelier(error, conn, self.__name__) from error.__cause__

    @overload
    def handle(
        self: Handler[P, Q, Coroutine[Any, Any, T]], job_id: int, *, group: str = "default"
    ) -> JobHandle[T]: ...

    @overload
    def handle(self, job_id: int, *, group: str = "default") -> JobHandle[R_co]: ...

    @door
    def handle(self, job_id: int, *, group: str = "default") -> JobHandle[Any]:
        """Return a handle of a job of this kind, whose result has the return type of the function.

        Args:
            job_id: the id that ``enqueue`` returned.
            group: the consumer group of its queue.
        """
        from forebay.client import AsyncClient, Client  # noqa: PLC0415 - most programs need none

        app, kind = self._app, self.kind
        return JobHandle(
            Client(lambda: app.dsn),
            AsyncClient(lambda: app.dsn),
            job_id,
            group,
            lambda: Any if kind.batch_size else result_type(kind.function, kind.name),
        )

    def enqueue_now(self, /, *args: Q.args, **kwargs: Q.kwargs) -> JobId:
        """Enqueue and commit a job on a connection of the library; return its id.

        The connection is kept for the next call. The job is not atomic with any other write.

        Raises:
            EnqueueError: an argument or option is refused.
            ConfigError: the app has no database address.
            DatabaseUnavailable: the connection failed or was lost; the job may exist.
        """
        around = self._app._internals.middlewares.enqueue
        write = functools.partial(run_kept, self._app.dsn)
        return enqueue_one(around, self.call(*args, **kwargs), write)

    async def aenqueue_now(self, /, *args: Q.args, **kwargs: Q.kwargs) -> JobId:
        """Asynchronous form of ``enqueue_now``."""
        around = self._app._internals.middlewares.aenqueue
        write = functools.partial(run_kept_async, self._app.dsn)
        return await enqueue_one_async(around, self.call(*args, **kwargs), write)

    @connection_first
    @door
    def enqueue_many(
        self,
        conn: SyncConnection,
        items: Iterable[Any],
        /,
        *,
        chunk: int = CHUNK_DEFAULT,
        ids: list[JobId] | None = None,
    ) -> int:
        """Enqueue a job for each item, in the connection's transaction; return how many.

        One chunk is in memory at a time, so the items may come from a generator of any length.

        Args:
            conn: the connection.
            items: each a ``call(...)``, a dict of arguments by name, a tuple of positional
                arguments, or anything else as the only argument.
            chunk: maximum number of jobs per statement.
            ids: a list that gets the id of each item's job, in order. Its ``is_new`` is False if an
                existing job has the unique key; ``replaced`` is always None. Without the list no
                ids are read, which is faster.

        Raises:
            EnqueueError: an item was refused; its ``index`` counts from 0. Nothing of its chunk
                was written. The previous chunks are part of your transaction: roll it back. In
                autocommit mode they are committed.
        """
        around = self._app._internals.middlewares.enqueue
        return enqueue_each(around, conn, items, self._as_call, chunk, ids=ids)

    @connection_first
    @door
    async def aenqueue_many(
        self,
        conn: AsyncConnection,
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        *,
        chunk: int = CHUNK_DEFAULT,
        ids: list[JobId] | None = None,
    ) -> int:
        """Asynchronous form of ``enqueue_many``; the items may be an asynchronous iterable."""
        around = self._app._internals.middlewares.aenqueue
        return await enqueue_each_async(around, conn, items, self._as_call, chunk, ids=ids)

    def _as_call(self, item: Any) -> Call:
        # Without static types: encoding checks the item.
        call: Callable[..., Call] = self.call
        kind = type(item)
        if kind is Call:
            return cast("Call", item)
        if kind is tuple:  # A named tuple is one value with fields, not a list of arguments.
            return call(*item)
        if kind is dict or isinstance(item, Mapping):
            return call(**item)
        return call(item)

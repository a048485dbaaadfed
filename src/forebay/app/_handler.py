"""A decorated function: still callable as it is, and enqueued with the same arguments."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

from forebay.app._internals import Internals
from forebay.arguments.kinds import Kind
from forebay.db.bulk import enqueue_all, enqueue_all_async
from forebay.db.drivers import AsyncConnection, SyncConnection, run, run_async
from forebay.db.own import run_own, run_own_async
from forebay.model import JobId, JobOptionChanges, JobOptions
from forebay.ops.enqueue import CHUNK_DEFAULT, Call, checked_expires_in, enqueue

P = ParamSpec("P")  # how the function is called
Q = ParamSpec("Q")  # how a job of it is enqueued: without the context; for a batch, one item
R_co = TypeVar("R_co", covariant=True)


class Producer(Protocol):
    """What a handler needs of its app to enqueue."""

    @property
    def dsn(self) -> str:
        """The address of the database."""

    #: For the library itself.
    _internals: Internals


class HandlerOptions(JobOptionChanges, total=False):
    """The keywords of ``using``: the options of a job, and ``expires_in``."""

    expires_in: float | timedelta | None


class Handler(Generic[P, Q, R_co]):
    """What ``@app.job`` and ``@app.batch_job`` make of a function.

    Calling it calls the function. Enqueuing takes a connection first and then the function's own
    arguments, which type checkers verify; a context is left out, and of a batch handler one item
    is given. Nothing is committed, except by the ``_now`` forms.

    Attributes:
        kind: what was declared about it.
        options: the options its jobs are enqueued with.
        expires_in_seconds: its jobs expire so long after they were due; None by ``options`` alone.
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

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function, here and now."""
        result: R_co = self.kind.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<handler of kind {self.kind.name!r}>"

    def using(self, **options: Unpack[HandlerOptions]) -> Handler[P, Q, R_co]:
        """Return a copy whose jobs have other options; None withdraws one.

        ``run_at`` and ``delay`` replace each other, and so do ``expires_at`` and ``expires_in``,
        which counts from the enqueue, or from the start of a delayed job.

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
        return other

    def call(self, /, *args: Q.args, **kwargs: Q.kwargs) -> Call:
        """Return a job that is not enqueued yet, its arguments checked; for ``enqueue_many``.

        Raises:
            InvalidJob: an argument is unknown, missing, of the wrong type, or has no JSON form.
            PayloadTooLarge: the arguments are too large.
            PayloadTooDeep: the arguments are nested too deeply.
        """
        return Call(
            kind=self.kind.name,
            args=self._app._internals.encoder(self.kind)(*args, **kwargs),
            options=self.options,
            expires_in_seconds=self.expires_in_seconds,
        )

    def enqueue(self, conn: SyncConnection, /, *args: Q.args, **kwargs: Q.kwargs) -> JobId:
        """Enqueue a job in the connection's transaction; return its id.

        The job exists if that transaction commits, and is not seen before. With a unique key the
        id may be that of an existing job: its ``is_new`` tells.

        Raises:
            EnqueueError: an argument or option is refused, as by ``call``; nothing was sent.
            KeyBusy: another open transaction is taking the unique key, with ``on_busy="raise"``.
            PayloadDiffers: an idempotency key belongs to another request.
            WrongConnection: the first argument is not a synchronous connection.
            SchemaError: the database has no schema.
        """
        return run(conn, enqueue(self.call(*args, **kwargs)))

    async def aenqueue(self, conn: AsyncConnection, /, *args: Q.args, **kwargs: Q.kwargs) -> JobId:
        """Do as ``enqueue``, on an asynchronous connection."""
        return await run_async(conn, enqueue(self.call(*args, **kwargs)))

    def enqueue_now(self, /, *args: Q.args, **kwargs: Q.kwargs) -> JobId:
        """Enqueue a job in a transaction of its own on a new connection; return its id.

        It is not atomic with anything written elsewhere.

        Raises:
            EnqueueError: an argument or option is refused.
            ConfigError: the app has no database address.
            DatabaseUnavailable: no connection, or it was lost: the job may exist then.
        """
        return run_own(self._app.dsn, enqueue(self.call(*args, **kwargs)))

    async def aenqueue_now(self, /, *args: Q.args, **kwargs: Q.kwargs) -> JobId:
        """Do as ``enqueue_now``, asynchronously."""
        return await run_own_async(self._app.dsn, enqueue(self.call(*args, **kwargs)))

    def enqueue_many(
        self, conn: SyncConnection, items: Iterable[Any], /, *, chunk: int = CHUNK_DEFAULT
    ) -> int:
        """Enqueue a job for each item, in the connection's transaction; return how many.

        Memory is bounded by one chunk, so the items may come from a generator of any length.

        Args:
            conn: the connection.
            items: each a ``call(...)``, a dict of arguments by name, a tuple of positional
                arguments, or anything else as the only argument.
            chunk: most jobs of one statement.

        Raises:
            EnqueueError: an item was refused; its ``index`` counts from 0. Nothing of its chunk
                was written. The chunks before belong to your transaction: roll it back. In
                autocommit mode they are committed.
        """
        return enqueue_all(conn, items, self._as_call, chunk)

    async def aenqueue_many(
        self,
        conn: AsyncConnection,
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        *,
        chunk: int = CHUNK_DEFAULT,
    ) -> int:
        """Do as ``enqueue_many``, on an asynchronous connection; the items may be asynchronous."""
        return await enqueue_all_async(conn, items, self._as_call, chunk)

    def _as_call(self, item: Any) -> Call:
        # By way of Any: what an item is was decided by the caller, and is checked when encoded.
        call: Callable[..., Call] = self.call
        kind = type(item)
        if kind is Call:
            return cast("Call", item)
        if kind is tuple:  # A named one is a value with fields, not a list of arguments.
            return call(*item)
        if kind is dict or isinstance(item, Mapping):
            return call(**item)
        return call(item)

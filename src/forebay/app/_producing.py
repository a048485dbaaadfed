"""The part of an app that enqueues jobs of any kinds, and looks at them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any

from forebay.app._handle import JobHandle
from forebay.app._middleware import enqueue_each, enqueue_each_async
from forebay.errors import InvalidJob, NotIncluded
from forebay.model import JobId
from forebay.model.doors import Doors, door
from forebay.ops.enqueue import CHUNK_DEFAULT, Call

if TYPE_CHECKING:
    from forebay.app._internals import Internals
    from forebay.client import AsyncClient, Client
    from forebay.db.drivers import AsyncConnection, SyncConnection


class JobsProducing(Doors, declares=True):
    """Enqueues jobs, and makes clients and handles."""

    if TYPE_CHECKING:

        @property
        def _internals(self) -> Internals: ...

    @property
    def dsn(self) -> str:
        """The address of the database of the app.

        Raises:
            NotIncluded: no app includes this object.
            ConfigError: no address is set.
        """
        internals = self._internals
        if not internals.is_app:
            raise NotIncluded(internals.module)
        return internals.owner.dsn

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

        return Client(lambda: self.dsn, declared=lambda kind: self._internals.options_of(kind))

    def async_client(self) -> AsyncClient:
        """Return an asynchronous client for the app's database; see ``client``."""
        from forebay.client import AsyncClient  # noqa: PLC0415 - most programs need none

        return AsyncClient(lambda: self.dsn, declared=lambda kind: self._internals.options_of(kind))

    @door
    def handle(self, job_id: int, *, group: str = "default") -> JobHandle[Any]:
        """Return a handle of an enqueued job, for its state and result.

        ``Handler.handle`` knows the type of the result.

        Args:
            job_id: the id that ``enqueue`` returned.
            group: the consumer group of its queue.
        """
        return JobHandle(self.client(), self.async_client(), job_id, group)


def _as_call(item: Any) -> Call:
    if not isinstance(item, Call):
        raise InvalidJob(
            "call",
            f"must be a handler's call(...), not {type(item).__name__}",
            hint="Use handler.enqueue_many for plain arguments.",
        )
    return item

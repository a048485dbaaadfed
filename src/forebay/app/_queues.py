"""The part of an app for queues: they are declared in code and applied to the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from forebay.model.declared import Queue, QueueDifference, declared_queue
from forebay.model.doors import Doors, names_door

if TYPE_CHECKING:
    from forebay.app._internals import Internals
    from forebay.client import AsyncClient, Client
    from forebay.db.drivers import AsyncConnection, SyncConnection


class JobsQueues(Doors, declares=True):
    """Declares queues."""

    if TYPE_CHECKING:

        @property
        def _internals(self) -> Internals: ...

    @names_door
    def queue(
        self,
        name: str,
        *,
        max_waiting: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        key_rate: float | None = None,
        key_burst: int | None = None,
        key_concurrency: int | None = None,
        shards: int | None = None,
        dead_keep_days: int | Literal["forever"] | None = None,
        groups: Iterable[str] = (),
        max_waiting_group: str | None = None,
        notices: bool | None = None,
    ) -> Queue:
        """Declare settings of a queue.

        Return its name, a ``Queue``, for use in ``@app.job(queue=...)`` and elsewhere.

        ``forebay apply`` or ``app.apply()`` changes the database; the declaration alone does
        nothing. What is not given is not declared: the database decides.

        Args:
            name: the queue.
            max_waiting: maximum number of waiting jobs, at least 1; see ``Client.limit_queue``,
                also for the following ones.
            rate: maximum number of starts per second.
            burst: maximum number of starts at once after a pause; needs ``rate``.
            concurrency: maximum number of running jobs.
            key_rate: as ``rate``, for the jobs of each limit key.
            key_burst: as ``burst``, for the jobs of each limit key; needs ``key_rate``.
            key_concurrency: as ``concurrency``, for the jobs of each limit key.
            shards: number of shards, 1 to 64; see ``Client.shard_queue``.
            dead_keep_days: for how many days dead letters are kept, 1 to 36,500, or ``"forever"``.
                Default: the setting of the database for all queues.
            groups: consumer groups to open. If none of the queue was opened before, they miss no
                job. Groups are never closed.
            max_waiting_group: the consumer group whose waiting jobs count; needs ``max_waiting``.
                Default: ``default``.
            notices: whether the queue sends notices of changes; see ``Client.set_notices``.

        Raises:
            ConfigError: a setting is refused, or the queue is declared twice with different
                settings.

        >>> app = App()
        >>> imports = app.queue("imports", concurrency=20, key_concurrency=5)
        >>> @app.job(queue=imports)
        ... def fetch(customer: int) -> None: ...
        """
        declared = declared_queue(
            name,
            max_waiting=max_waiting,
            rate=rate,
            burst=burst,
            concurrency=concurrency,
            key_rate=key_rate,
            key_burst=key_burst,
            key_concurrency=key_concurrency,
            shards=shards,
            dead_keep_days=dead_keep_days,
            groups=groups,
            max_waiting_group=max_waiting_group,
            notices=notices,
        )
        self._internals.add_queue(declared)
        return declared


class AppQueues(Doors, declares=True):
    """Applies the declarations of queues."""

    if TYPE_CHECKING:

        @property
        def _internals(self) -> Internals: ...
        def client(self) -> Client: ...
        def async_client(self) -> AsyncClient: ...

    @property
    def name(self) -> str:
        """The name of the app among those that apply declarations to one database.

        The default is ``module:attribute``.
        """
        return self._internals.name

    @property
    def queues(self) -> Mapping[str, Queue]:
        """The declared queues, by name."""
        return self._internals.queues

    def apply(
        self,
        conn: SyncConnection | None = None,
        *,
        overwrite: bool = False,
        dry_run: bool = False,
    ) -> list[QueueDifference]:
        """Make the settings of queues in the database what the app declares, except those
        changed by hand.

        A setting that the app no longer declares is removed if it still has the value that was
        applied. Calls wait for each other. ``forebay apply`` does the same.

        Args:
            conn: the connection whose transaction to use. Default: a new one, and commit.
            overwrite: take the declared value also where the database's would be kept.
            dry_run: change nothing.

        Returns:
            The differences that there were, with what was done about each; nothing if code and
            database are the same.

        Raises:
            GroupInUse: a declared group is being closed.
        """
        return self.client().apply_queues(
            self.name, self.queues.values(), overwrite=overwrite, dry_run=dry_run, conn=conn
        )

    async def aapply(
        self,
        conn: AsyncConnection | None = None,
        *,
        overwrite: bool = False,
        dry_run: bool = False,
    ) -> list[QueueDifference]:
        """Asynchronous form of ``apply``."""
        return await self.async_client().apply_queues(
            self.name, self.queues.values(), overwrite=overwrite, dry_run=dry_run, conn=conn
        )

"""The part of an app that runs its handlers: workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.model.doors import Doors

if TYPE_CHECKING:
    from forebay.app._internals import Internals
    from forebay.config import Queues, Settings
    from forebay.worker import Stats, Worker


class AppWorkers(Doors, declares=True):
    """Makes and runs workers."""

    if TYPE_CHECKING:

        @property
        def _internals(self) -> Internals: ...
        @property
        def dsn(self) -> str: ...
        @property
        def settings(self) -> Settings: ...

    def worker(
        self,
        *,
        queues: Queues | None = None,
        group: str = "default",
        concurrency: int | None = None,
    ) -> Worker:
        """Return a worker for some queues.

        Args:
            queues: names, names with weights, or their short form ``"mail,reports=3"``. Default:
                the setting ``queue``, or else all queues of the declared kinds.
            group: the consumer group of each queue.
            concurrency: the number of jobs that run at once. Default: the setting ``concurrency``.

        Raises:
            ConfigError: an argument is refused, or there is no queue to serve.
        """
        from forebay.worker import Worker  # noqa: PLC0415 - producers never need it

        settings = self.settings.worker
        if concurrency is not None:
            settings = replace(settings, concurrency=concurrency)
        return Worker(self._internals, self.dsn, queues=queues, settings=settings, group=group)

    def run_worker(
        self,
        *,
        queues: Queues | None = None,
        group: str = "default",
        until_idle: bool = False,
        concurrency: int | None = None,
    ) -> Stats:
        """Run a worker in this thread until it is stopped.

        With ``until_idle`` it also stops when no job is ready or running.

        ``forebay worker`` does the same and handles signals.
        """
        from forebay.worker import run_to_the_end  # noqa: PLC0415 - producers never need it

        worker = self.worker(queues=queues, group=group, concurrency=concurrency)
        return run_to_the_end(worker.run(until_idle=until_idle))

"""``QueueService``: a worker of one queue with one handler, and database sessions beside those
of the worker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.config import WorkerSettings
from forebay.db.session import Session
from forebay.worker import OneHandlerApplication, Worker

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kind
    from forebay.worker.ground.application import Intake


class QueueService(OneHandlerApplication):
    """What a worker of one queue runs, with one handler for its jobs.

    Args:
        kind: the handler, with the queue.
        title: what the worker does, for people.
        concurrency: slots of the worker.
        group: the consumer group of the queue.
        intake: bounds the claims; None: only the slots do.
        call_seconds: the deadline of a call of the database; a call waits for a lock for at most a
            quarter of it.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        title: str,
        concurrency: int,
        group: str = "default",
        intake: Intake | None = None,
        call_seconds: float = 20.0,
    ) -> None:
        super().__init__(kind, title, intake)
        self.group = group
        self.concurrency = concurrency
        self._call_seconds = call_seconds
        self._dsn = ""
        self._name = ""
        self._settings = WorkerSettings()

    def worker(self, dsn: str, settings: WorkerSettings | None = None) -> Worker:
        """Return a worker: each service has its own, so that one that hangs holds up its own
        jobs only.

        Args:
            dsn: the database.
            settings: as of a worker of handlers; the concurrency is that of the service.
        """
        self._dsn = dsn
        self._settings = replace(
            settings or WorkerSettings(), concurrency=self.concurrency, queue=None
        )
        worker = Worker(
            self,
            dsn,
            queues={self._kind.queue: 1},
            settings=self._settings,
            group=self.group,
        )
        self._name = worker.name
        return worker

    def _session(self) -> Session:
        settings = self._settings
        return Session(
            self._dsn,
            name=f"forebay {self._name}"[:63],
            lock_timeout=f"{self._call_seconds / 4:g}s",
            connect_seconds=settings.connect_timeout_seconds,
            call_seconds=self._call_seconds,
            pooler=settings.pooler,
        )

"""``QueueService``: a worker of one internal queue, with database sessions beside those of the worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.config import WorkerSettings
from forebay.db.session import Session
from forebay.worker import OneHandlerApplication, Worker

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kind


class QueueService(OneHandlerApplication):
    """What a worker of an internal queue runs.

    Args:
        kind: the handler, with the queue.
        title: what the worker does, for people.
        concurrency: slots of the worker.
        call_seconds: the deadline of a call of the database; a call waits for a lock for at most a quarter of it.
    """

    def __init__(self, kind: Kind, *, title: str, concurrency: int, call_seconds: float) -> None:
        super().__init__(kind)
        self._title = title
        self._concurrency = concurrency
        self._call_seconds = call_seconds
        self._dsn = ""
        self._name = ""
        self._settings = WorkerSettings()

    def worker(
        self, dsn: str, settings: WorkerSettings | None = None, *, answers_probes: bool = True
    ) -> Worker:
        """Return the worker; call it once.

        Args:
            dsn: the database.
            settings: as of a worker of handlers; the concurrency is that of the service.
            answers_probes: whether it answers probes; False if several workers of a process do so together.
        """
        self._dsn = dsn
        self._settings = replace(
            settings or WorkerSettings(), concurrency=self._concurrency, queue=None
        )
        worker = Worker(
            self,
            dsn,
            queues={self._kind.queue: 1},
            settings=self._settings,
            answers_probes=answers_probes,
            title=self._title,
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

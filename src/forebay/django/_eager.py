"""``FOREBAY = {"EAGER": True}``: jobs run in the process that enqueues them, for tests of views and
for work without a worker.

Invariant "commit decides" holds: a job is written as always, and runs when Django's transaction has
committed, before the code after the commit; outside of a transaction that is at once. What a
handler raises is raised there. Jobs that are due later wait. A crash leaves a job as any job
without a worker.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from forebay.model import JobState
from forebay.model.middleware import Attempt, Middleware, NewJob

if TYPE_CHECKING:
    from forebay.django._app import DjangoApp

#: Whether this code runs in a handler: who runs it also runs what it enqueues.
_in_a_handler: contextvars.ContextVar[bool] = contextvars.ContextVar("in_a_handler", default=False)


class Eager(Middleware):
    """Runs jobs of an app after the commit that made them visible."""

    def __init__(self, app: DjangoApp) -> None:
        self._app = app
        #: One worker after the other, so that no commit is between two of them.
        self._running = threading.Lock()
        #: Jobs of transactions that never commit.
        self._performed: set[int] = set()

    def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[None]:
        """Run the job after the commit."""
        del jobs
        yield
        self._after_commit()

    async def aenqueue(self, jobs: Sequence[NewJob]) -> AsyncIterator[None]:
        """Do the same in Django's thread for database calls."""
        del jobs
        yield
        await sync_to_async(self._after_commit, thread_sensitive=True)()

    def attempt(self, attempt: Attempt) -> Iterator[None]:
        """Leave what a handler enqueues to the worker that runs it."""
        del attempt
        token = _in_a_handler.set(True)
        try:
            yield
        finally:
            _in_a_handler.reset(token)

    def _after_commit(self) -> None:
        if not _in_a_handler.get():
            transaction.on_commit(self._run, using=self._app.alias)

    def _run(self) -> None:
        from forebay.testing import run_until_idle  # noqa: PLC0415 - only if this is used

        if connections[self._app.alias].in_atomic_block:
            self._perform()
        else:
            with self._running:
                run_until_idle(self._app)

    def _perform(self) -> None:
        """Run the jobs of a transaction that calls its callbacks and does not commit, as that of a
        ``TestCase``.
        """
        from forebay.testing import Performer, enqueued  # noqa: PLC0415

        conn = connections[self._app.alias]
        performer, kinds = Performer(conn=conn), self._app.kinds

        def waiting() -> list[Any]:
            return [
                job
                for job in enqueued(conn)
                if job.state == JobState.READY
                and job.kind in kinds
                and job.job_id not in self._performed
            ]

        while found := waiting():
            for job in found:
                self._performed.add(job.job_id)
                if kinds.get(job.kind).is_async:  # so that its models use this connection
                    async_to_sync(performer.perform_job_async)(self._app, job)
                else:
                    performer.perform_job(self._app, job)

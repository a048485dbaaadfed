"""procrastinate: one table, jobs fetched one at a time by a function of the database.

Settings: psycopg, a worker that runs many jobs at a time (``concurrency``, with as many connections in the pool as it can
use), ended jobs deleted (``delete_jobs``) so that the table stays small, uvloop. Its pool is created here, without the default check
of each connection before use, which costs a round trip. Many jobs go by ``batch_defer``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

import procrastinate
import uvloop
from psycopg_pool import AsyncConnectionPool

from forebay_bench._counters import wait_for_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay_bench._counters import Counters

NAME: Final = "procrastinate"
NOTE: Final = (
    "procrastinate: psycopg, uvloop, concurrency 10 on 4 connections without checks, ended jobs deleted;"
    " it fetches one job at a time"
)
LOOP_FACTORY: Final = uvloop.new_event_loop

#: Jobs at a time, and connections for them.
CONCURRENCY: Final = 10
CONNECTIONS: Final = 4

#: Jobs of one enqueue statement, where there are many.
CHUNK: Final = 5000


def create(dsn: str) -> None:
    """Install its schema."""
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=dsn))
    with app.open():
        app.schema_manager.apply_schema()


class Queue:
    """See ``Engine``."""

    def __init__(self, dsn: str) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._dsn = dsn
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
        self._count: Callable[[], None] = lambda: None

        @self._app.task(name="noop")
        async def handle(number: int) -> None:
            del number
            self._count()

        self._task = handle

    async def open(self) -> None:
        """Connect."""
        self._pool = AsyncConnectionPool(
            self._dsn, min_size=CONNECTIONS, max_size=CONNECTIONS, open=False
        )
        await self._pool.open(wait=True)
        await self._app.open_async(self._pool)

    async def close(self) -> None:
        """Disconnect."""
        await self._app.close_async()
        await self._pool.close()

    async def enqueue(self, number: int) -> None:
        """Enqueue a job and commit."""
        await self._task.defer_async(number=number)

    async def enqueue_some(self, numbers: range) -> None:
        """Enqueue a few jobs by one call, and commit."""
        arguments: list[dict[str, Any]] = [{"number": number} for number in numbers]
        await self._task.batch_defer_async(*arguments)

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue any number of jobs of an iterator; each chunk is a separate transaction."""
        iterator = iter(numbers)
        while chunk := list(itertools.islice(iterator, CHUNK)):
            await self.enqueue_some(range(chunk[0], chunk[-1] + 1))

    async def drain(self, handler: str) -> int:
        """Run a worker until the queue is empty; return how many jobs it ended."""
        del handler  # it has one kind
        handled = 0

        def count() -> None:
            nonlocal handled
            handled += 1

        self._count = count
        await self._app.run_worker_async(
            wait=False,
            concurrency=CONCURRENCY,
            delete_jobs="always",
            install_signal_handlers=False,
        )
        return handled

    async def serve(self, counters: Counters) -> None:
        """Run a worker until the counters say stop, and count in it what was handled."""
        handled = 0

        def count() -> None:
            nonlocal handled
            handled += 1
            counters.handled = handled

        self._count = count
        worker = asyncio.create_task(
            self._app.run_worker_async(
                concurrency=CONCURRENCY,
                fetch_job_polling_interval=0.1,
                delete_jobs="always",
                install_signal_handlers=False,
            )
        )
        # Cancelling its task is how its documentation stops a worker inside an application.
        await wait_for_stop(counters, worker.cancel)
        await asyncio.gather(worker, return_exceptions=True)

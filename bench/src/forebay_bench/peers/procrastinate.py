"""procrastinate: one table, jobs fetched one at a time by a function of the database.

Settings: psycopg, a worker that runs many jobs at a time (``concurrency``, with as many connections
in the pool as it can use), ended jobs deleted (``delete_jobs``) so that the table stays small,
uvloop. Its pool is created here, without the default check of each connection before use, which
costs a round trip. Many jobs go by ``batch_defer``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

import procrastinate
import uvloop
from psycopg_pool import AsyncConnectionPool

from forebay_bench._counters import wait_for_stop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from forebay_bench._counters import Counters

NAME: Final = "procrastinate"
NOTE: Final = (
    "procrastinate: psycopg, uvloop, concurrency 10 on 4 connections without checks, ended "
    "jobs deleted;"
    " it fetches one job at a time"
)
LOOP_FACTORY: Final = uvloop.new_event_loop

#: Jobs at a time, and connections for them.
CONCURRENCY: Final = 10
CONNECTIONS: Final = 4

#: Rows that handlers with an effect update, and how many at a time.
EFFECT_ROWS: Final = 10_000
EFFECT_CONCURRENCY: Final = 20
_UPDATE: Final = "update effect set n = n + 1 where id = %s"

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
        self._handle: Callable[[int], Awaitable[None]] | None = None
        self._queues: list[str] = []
        self._idle: list[asyncio.Task[None]] = []

        @self._app.task(name="noop")
        async def handle(number: int) -> None:
            if self._handle is not None:
                await self._handle(number)

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
        for task in self._idle:
            task.cancel()
        await self._app.close_async()
        await self._pool.close()

    async def enqueue(self, number: int) -> None:
        """Enqueue a job and commit."""
        task: Any = self._task
        if self._queues:
            task = task.configure(queue=self._queues[number % len(self._queues)])
        await task.defer_async(number=number)

    async def enqueue_some(self, numbers: range) -> None:
        """Enqueue a few jobs by one call, or one for each queue, and commit."""
        if not self._queues:
            arguments: list[dict[str, Any]] = [{"number": number} for number in numbers]
            await self._task.batch_defer_async(*arguments)
            return
        by_queue: dict[str, list[dict[str, Any]]] = {}
        for number in numbers:
            queue = self._queues[number % len(self._queues)]
            by_queue.setdefault(queue, []).append({"number": number})
        for queue, each in by_queue.items():
            await self._task.configure(queue=queue).batch_defer_async(*each)

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue any number of jobs of an iterator; each chunk is a separate transaction."""
        iterator = iter(numbers)
        while chunk := list(itertools.islice(iterator, CHUNK)):
            await self.enqueue_some(range(chunk[0], chunk[-1] + 1))

    async def spread(self, queues: int) -> None:
        """From now on jobs go to this number of queues in turns.

        Its workers serve all queues anyway.
        """
        self._queues = [f"queue {number}" for number in range(queues)]

    async def drain(self, handler: str) -> int:
        """Run a worker until the queue is empty; return how many jobs it ended.

        Its handler does nothing, or updates a row (``update``).
        """
        handled = 0
        async with contextlib.AsyncExitStack() as stack:
            pool: AsyncConnectionPool | None = None
            if handler == "update":
                pool = AsyncConnectionPool(
                    self._dsn,
                    min_size=0,
                    max_size=EFFECT_CONCURRENCY,
                    kwargs={"autocommit": True},
                    open=False,
                )
                await stack.enter_async_context(pool)

            async def handle(number: int) -> None:
                nonlocal handled
                if pool is not None:
                    async with pool.connection() as conn:
                        await conn.execute(_UPDATE, [number % EFFECT_ROWS])
                handled += 1

            self._handle = handle
            await self._app.run_worker_async(
                wait=False,
                concurrency=EFFECT_CONCURRENCY if handler == "update" else CONCURRENCY,
                delete_jobs="always",
                install_signal_handlers=False,
            )
        return handled

    async def serve(self, counters: Counters, note: Callable[[int], None]) -> None:
        """Run a worker until the counters say stop, and count in it what was handled."""
        handled = 0

        async def handle(number: int) -> None:
            nonlocal handled
            note(number)
            handled += 1
            counters.handled = handled

        self._handle = handle
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

    async def idle(self, count: int) -> None:
        """Start workers that end with the process, with its own poll interval of 5 s: it
        listens.
        """
        for _ in range(count):
            pool = AsyncConnectionPool(self._dsn, min_size=1, max_size=CONNECTIONS, open=False)
            app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self._dsn))
            await pool.open(wait=True)
            await app.open_async(pool)
            work = app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
            self._idle.append(asyncio.create_task(work))

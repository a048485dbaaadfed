"""pgqueuer: one table, SKIP LOCKED in batches, a log table of what ended.

Settings, after its guide to performance and its own benchmark: the asyncpg driver on one
connection, uvloop (which its command line uses), a large ``batch_size``, its autovacuum settings
applied after the installation, and the durability that its guide calls the default: ``durable``,
like everything here. Many jobs go by the list form of ``enqueue``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from psycopg.conninfo import conninfo_to_dict

from forebay_bench._counters import wait_for_stop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from forebay_bench._counters import Counters

NAME: Final = "pgqueuer"
NOTE: Final = (
    "pgqueuer: asyncpg, uvloop, batch_size 500, its autovacuum settings, logged tables;"
    " it also writes a log row for each job that ends"
)
LOOP_FACTORY: Final = uvloop.new_event_loop

#: Jobs of one dequeue, and of one write of what ended.
BATCH: Final = 500

#: Jobs of one enqueue statement, where there are many.
CHUNK: Final = 5000

_ENTRYPOINT: Final = "noop"

#: Rows that handlers with an effect update, and how many at a time.
EFFECT_ROWS: Final = 10_000
EFFECT_CONCURRENCY: Final = 20
_UPDATE: Final = "update effect set n = n + 1 where id = $1"


def create(dsn: str) -> None:
    """Install its schema."""

    async def install() -> None:
        conn = await _connect(dsn)
        queries = Queries(AsyncpgDriver(conn))
        await queries.install()
        await queries.optimize_autovacuum()
        await conn.close()

    asyncio.run(install())


class Queue:
    """See ``Engine``. Its queues are entrypoints: a worker names each of them."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._entrypoints = [_ENTRYPOINT]
        self._idle: list[asyncio.Task[None]] = []
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)

    async def open(self) -> None:
        """Connect."""
        self._conn = await _connect(self._dsn)
        self._queries = Queries(AsyncpgDriver(self._conn))

    async def close(self) -> None:
        """Disconnect."""
        for task in self._idle:
            task.cancel()
        await self._conn.close()

    async def enqueue(self, number: int) -> None:
        """Enqueue a job and commit."""
        await self._queries.enqueue(self._entrypoint(number), b'{"number":%d}' % number)

    async def enqueue_some(self, numbers: range) -> None:
        """Enqueue a few jobs by one call, and commit."""
        payloads: list[bytes | None] = [b'{"number":%d}' % number for number in numbers]
        names = [self._entrypoint(number) for number in numbers]
        await self._queries.enqueue(names, payloads, [0] * len(numbers))

    def _entrypoint(self, number: int) -> str:
        return self._entrypoints[number % len(self._entrypoints)]

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue any number of jobs of an iterator, in one transaction."""
        iterator = iter(numbers)
        async with self._conn.transaction():
            while chunk := list(itertools.islice(iterator, CHUNK)):
                await self.enqueue_some(range(chunk[0], chunk[-1] + 1))

    async def spread(self, queues: int) -> None:
        """From now on jobs go to this number of entrypoints in turns."""
        self._entrypoints = [f"noop {number}" for number in range(queues)]

    async def drain(self, handler: str) -> int:
        """Run a worker until the queue is empty; return how many jobs it ended.

        Its handler does nothing, or updates a row (``update``).
        """
        handled = 0
        async with contextlib.AsyncExitStack() as stack:
            pool = None
            if handler == "update":
                pool = await stack.enter_async_context(await _pool(self._dsn))

            async def handle(job: Job) -> None:
                nonlocal handled
                if pool is not None:
                    await pool.execute(_UPDATE, _number(job) % EFFECT_ROWS)
                handled += 1

            await self._run(handle, None)
        return handled

    async def serve(self, counters: Counters, note: Callable[[int], None]) -> None:
        """Run a worker until the counters say stop, and count in it what was handled."""
        handled = 0

        async def handle(job: Job) -> None:
            nonlocal handled
            note(_number(job))
            handled += 1
            counters.handled = handled

        await self._run(handle, counters)

    async def idle(self, count: int) -> None:
        """Start workers that end with the process."""

        async def handle(job: Job) -> None:
            del job

        for _ in range(count):
            worker = self._worker(await _connect(self._dsn), handle)
            self._idle.append(asyncio.create_task(worker.run(batch_size=BATCH)))

    async def _run(
        self, handle: Callable[[Job], Awaitable[None]], counters: Counters | None
    ) -> None:
        conn = await _connect(self._dsn)
        worker = self._worker(conn, handle)
        if counters is None:
            await worker.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
        else:
            stopper = asyncio.create_task(wait_for_stop(counters, worker.shutdown.set))
            await worker.run(batch_size=BATCH)
            await stopper
        await conn.close()

    def _worker(self, conn: Any, handle: Callable[[Job], Awaitable[None]]) -> PgQueuer:
        worker = PgQueuer.from_asyncpg_connection(conn)
        for name in self._entrypoints:
            worker.entrypoint(name)(handle)
        return worker


def _number(job: Job) -> int:
    number: int = json.loads(job.payload or b"")["number"]
    return number


async def _pool(dsn: str) -> Any:
    return await asyncpg.create_pool(
        **_options(dsn), min_size=EFFECT_CONCURRENCY, max_size=EFFECT_CONCURRENCY
    )


async def _connect(dsn: str) -> Any:
    return await asyncpg.connect(**_options(dsn))


def _options(dsn: str) -> dict[str, Any]:
    found = conninfo_to_dict(dsn)
    named = {
        "host": "host",
        "port": "port",
        "user": "user",
        "password": "password",
        "dbname": "database",
    }
    return {name: found[key] for key, name in named.items() if found.get(key) is not None}

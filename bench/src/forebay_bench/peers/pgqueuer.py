"""pgqueuer: one table, SKIP LOCKED in batches, a log table of what ended.

Settings, after its guide to performance and its own benchmark: the asyncpg driver on one connection, uvloop (which its
command line uses), a large ``batch_size``, its autovacuum settings applied after the installation, and the durability
that its guide calls the default: ``durable``, like everything here. Many jobs go by the list form of ``enqueue``.
"""

from __future__ import annotations

import asyncio
import itertools
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
    from collections.abc import Callable, Iterable

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
    """See ``Engine``."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)

    async def open(self) -> None:
        """Connect."""
        self._conn = await _connect(self._dsn)
        self._queries = Queries(AsyncpgDriver(self._conn))

    async def close(self) -> None:
        """Disconnect."""
        await self._conn.close()

    async def enqueue(self, number: int) -> None:
        """Enqueue a job and commit."""
        await self._queries.enqueue(_ENTRYPOINT, b'{"number":%d}' % number)

    async def enqueue_some(self, numbers: range) -> None:
        """Enqueue a few jobs by one call, and commit."""
        count = len(numbers)
        payloads: list[bytes | None] = [b'{"number":%d}' % number for number in numbers]
        await self._queries.enqueue([_ENTRYPOINT] * count, payloads, [0] * count)

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue any number of jobs of an iterator, in one transaction."""
        iterator = iter(numbers)
        async with self._conn.transaction():
            while chunk := list(itertools.islice(iterator, CHUNK)):
                await self.enqueue_some(range(chunk[0], chunk[-1] + 1))

    async def drain(self, handler: str) -> int:
        """Run a worker until the queue is empty; return how many jobs it ended."""
        del handler  # it has one kind
        handled = 0

        def count() -> None:
            nonlocal handled
            handled += 1

        await self._run(count, None)
        return handled

    async def serve(self, counters: Counters) -> None:
        """Run a worker until the counters say stop, and count in it what was handled."""
        handled = 0

        def count() -> None:
            nonlocal handled
            handled += 1
            counters.handled = handled

        await self._run(count, counters)

    async def _run(self, count: Callable[[], None], counters: Counters | None) -> None:
        conn = await _connect(self._dsn)
        worker = PgQueuer.from_asyncpg_connection(conn)

        @worker.entrypoint(_ENTRYPOINT)
        async def handle(job: Job) -> None:
            del job
            count()

        if counters is None:
            await worker.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
        else:
            stopper = asyncio.create_task(wait_for_stop(counters, worker.shutdown.set))
            await worker.run(batch_size=BATCH)
            await stopper
        await conn.close()


async def _connect(dsn: str) -> Any:
    found = conninfo_to_dict(dsn)
    named = {"host": "host", "port": "port", "user": "user", "password": "password"}
    values = {name: found[key] for key, name in named.items() if found.get(key) is not None}
    return await asyncpg.connect(database=found.get("dbname"), **values)

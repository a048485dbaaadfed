"""Forebay as an engine: a worker and producers as in any application, with default settings except for the slots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.app import App
from forebay.config import Settings, WorkerSettings
from forebay.model import Job
from forebay.model.context import Context
from forebay_bench._counters import wait_for_stop

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay_bench._counters import Counters

#: Jobs at a time. The default of 10 is for handlers that wait, which these do not.
CONCURRENCY: Final = 10

#: Jobs of one call of the batch handler.
BATCH: Final = 500

#: Queues whose jobs have ordering keys, and how many keys they share.
KEYS: Final = {"keyed": 100, "one_key": 1, "keys_5k": 5_000, "keys_50k": 50_000}


class Queue:
    """See ``Engine``. A queue for each kind of handler, with the same name: async, thread, batch, tx, counters and those of KEYS."""

    def __init__(self, dsn: str) -> None:
        settings = Settings(worker=WorkerSettings(concurrency=CONCURRENCY))
        self._app = app = App(dsn, settings=settings)
        self._dsn = dsn
        self._counters: Counters | None = None
        self._handled = 0

        @app.job(name="async", queue="async")
        async def run_on_loop(number: int) -> None:
            del number

        @app.job(name="thread", queue="thread")
        def run_in_thread(number: int) -> None:
            del number

        @app.batch_job(name="batch", queue="batch", size=BATCH)
        async def run_many(jobs: list[Job]) -> None:
            del jobs

        @app.job(name="tx", queue="tx", transaction=True)
        async def run_in_transaction(ctx: Context, number: int) -> None:
            del ctx, number

        async def run_in_order(number: int) -> None:
            del number

        for name in KEYS:
            app.job(name=name, queue=name)(run_in_order)

        @app.job(name="counters", queue="counters")
        async def count(number: int) -> None:
            del number
            assert self._counters is not None
            self._handled += 1
            self._counters.handled = self._handled

        self._one = run_on_loop
        self._count = count

    async def open(self) -> None:
        """Connect."""
        self._conn = psycopg.connect(self._dsn, autocommit=True)

    async def close(self) -> None:
        """Disconnect."""
        self._conn.close()

    async def enqueue(self, number: int) -> None:
        """Enqueue a job and commit."""
        self._one.enqueue(self._conn, number)

    async def enqueue_some(self, numbers: range) -> None:
        """Enqueue a few jobs by one call, and commit."""
        self._count.enqueue_many(self._conn, numbers)

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue any number of jobs of an iterator, in one transaction."""
        with self._conn.transaction():
            self._one.enqueue_many(self._conn, numbers)

    async def drain(self, handler: str) -> int:
        """Run a worker until the queue of a kind of handler is empty; return how many jobs it ended."""
        stats = await self._app.worker(queues={handler: 1}).run(until_idle=True)
        return stats.done

    async def serve(self, counters: Counters) -> None:
        """Run a worker until the counters say stop, and count in it what was handled."""
        self._counters, self._handled = counters, 0
        worker = self._app.worker(queues={"counters": 1})
        stopper = asyncio.create_task(wait_for_stop(counters, worker.stop))
        await worker.run()
        await stopper


def fill(conn: psycopg.Connection[Any], handler: str, count: int) -> None:
    """Enqueue this number of jobs for a kind of handler; ordering keys alternate."""
    if handler in KEYS:
        conn.execute(
            "select forebay.enqueue_many(jsonb_agg(jsonb_build_object("
            " 'kind', %s::text, 'queue', %s::text, 'args', jsonb_build_object('number', i),"
            " 'ordering_key', format('document %%s', i %% %s)) order by i)) from generate_series(1, %s) i",
            [handler, handler, KEYS[handler], count],
        )
        return
    conn.execute(
        "select forebay.enqueue_many("
        " %s, array(select jsonb_build_object('number', i) from generate_series(1, %s) i), %s)",
        [handler, count, handler],
    )

"""Forebay as an engine: a worker and producers as in any application, with default settings
except for the slots.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from forebay.app import App
from forebay.config import Settings, WorkerSettings
from forebay.model import Job
from forebay.model.context import Context
from forebay_bench._counters import wait_for_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay_bench._counters import Counters

#: Jobs at a time. The default of 10 is for handlers that wait, which these do not.
CONCURRENCY: Final = 10

#: The same of jobs with limit keys, which do not wait in the worker: a job that it has counts as
#: running.
LIMITED_CONCURRENCY: Final = 500

#: Jobs of one call of the batch handler.
BATCH: Final = 500

#: Handlers that update one row each, and how many run at a time: in the worker's transaction, or in
#: their own on their own connection.
EFFECTS: Final = (
    "update",
    "update_by_hand",
    "update_autocommit",
    "update_in_thread",
    "update_in_thread_by_hand",
)
EFFECT_CONCURRENCY: Final = 20

#: Rows that these handlers update in turns, so that none waits for another one's lock.
EFFECT_ROWS: Final = 10_000

_UPDATE: Final = "update effect set n = n + 1 where id = %s"


@dataclass(frozen=True, slots=True)
class Keys:
    """How many keys of each sort the jobs of a queue share, in turns; 0: they have none."""

    ordering: int = 0
    limit: int = 0
    is_unique: bool = False
    """Each job has a unique key that no other has."""
    key_concurrency: int | None = None


#: Queues whose jobs have keys.
KEYS: Final = {
    "keyed": Keys(ordering=100),
    "one_key": Keys(ordering=1),
    "keys_5k": Keys(ordering=5_000),
    "keys_50k": Keys(ordering=50_000),
    "limit_keys": Keys(limit=100_000, key_concurrency=1),
    "ordering_unique": Keys(ordering=100, is_unique=True),
    "limit_unique": Keys(limit=100, is_unique=True, key_concurrency=CONCURRENCY),
    "all_keys": Keys(ordering=100, limit=100, is_unique=True, key_concurrency=CONCURRENCY),
}

_ENQUEUE_KEYED: Final = """
select forebay.enqueue_many(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
    'kind', %(name)s::text, 'queue', %(name)s::text, 'args', jsonb_build_object('number', i),
    'ordering_key', 'document ' || i %% nullif(%(ordering)s, 0), 'limit_key',
        'tenant ' || i %% nullif(%(limit)s, 0),
    'unique_as', case when %(is_unique)s then jsonb_build_object('once', gen_random_uuid()) end))
        order by i))
from generate_series(1, %(count)s) i
"""


class Queue:
    """See ``Engine``. A queue for each kind of handler, with the same name: async, thread,
    batch, batch_raw, tx, counters, those of KEYS and of EFFECTS.
    """

    def __init__(self, dsn: str) -> None:
        settings = Settings(worker=WorkerSettings(concurrency=CONCURRENCY))
        self._app = app = App(dsn, settings=settings)
        self._dsn = dsn

        @app.job(name="async", queue="async")
        async def run_on_loop(number: int) -> None:
            del number

        @app.job(name="thread", queue="thread")
        def run_in_thread(number: int) -> None:
            del number

        @app.batch_job(name="batch", queue="batch", size=BATCH)
        async def run_many(jobs: list[Job]) -> None:
            del jobs

        @app.batch_job(name="batch_raw", queue="batch_raw", size=BATCH)
        async def run_many_undecoded(items: list[msgspec.Raw]) -> None:
            del items

        @app.job(name="tx", queue="tx", transaction=True)
        async def run_in_transaction(ctx: Context, number: int) -> None:
            del ctx, number

        self._pool = AsyncConnectionPool(
            dsn, min_size=0, max_size=EFFECT_CONCURRENCY, open=False, name="by hand"
        )
        self._autocommit_pool = AsyncConnectionPool(
            dsn,
            min_size=0,
            max_size=EFFECT_CONCURRENCY,
            kwargs={"autocommit": True},
            open=False,
            name="by hand, autocommit",
        )
        self._thread_pool = ConnectionPool(
            dsn, min_size=0, max_size=EFFECT_CONCURRENCY, open=False, name="by hand, threads"
        )

        @app.job(name="update", queue="update", transaction=True)
        async def update(ctx: Context, number: int) -> None:
            await ctx.conn.execute(_UPDATE, [number % EFFECT_ROWS])

        @app.job(name="update_by_hand", queue="update_by_hand")
        async def update_by_hand(number: int) -> None:
            async with self._pool.connection() as conn:
                await conn.execute(_UPDATE, [number % EFFECT_ROWS])

        @app.job(name="update_autocommit", queue="update_autocommit")
        async def update_autocommit(number: int) -> None:
            async with self._autocommit_pool.connection() as conn:
                await conn.execute(_UPDATE, [number % EFFECT_ROWS])

        @app.job(name="update_in_thread", queue="update_in_thread", transaction=True)
        def update_in_thread(ctx: Context, number: int) -> None:
            ctx.conn.execute(_UPDATE, [number % EFFECT_ROWS])

        @app.job(name="update_in_thread_by_hand", queue="update_in_thread_by_hand")
        def update_in_thread_by_hand(number: int) -> None:
            with self._thread_pool.connection() as conn:
                conn.execute(_UPDATE, [number % EFFECT_ROWS])

        async def run_in_order(number: int) -> None:
            del number

        for name in KEYS:
            app.job(name=name, queue=name)(run_in_order)

        self._count_handled: Callable[[int], None] = lambda _: None

        @app.job(name="counters", queue="counters")
        async def count(number: int) -> None:
            self._count_handled(number)

        #: Its queues, after ``spread``.
        self._queues: list[str] = []
        self._spread: list[Any] = []
        self._idle: list[asyncio.Task[Any]] = []
        self._one = run_on_loop
        self._count = count

    async def open(self) -> None:
        """Connect."""
        self._conn = psycopg.connect(self._dsn, autocommit=True)
        await self._pool.open()
        await self._autocommit_pool.open()
        self._thread_pool.open()

    async def close(self) -> None:
        """Disconnect."""
        for task in self._idle:
            task.cancel()
        self._conn.close()
        await self._pool.close()
        await self._autocommit_pool.close()
        self._thread_pool.close()

    async def enqueue(self, number: int) -> None:
        """Enqueue a job and commit."""
        kind = self._spread[number % len(self._spread)] if self._spread else self._count
        kind.enqueue(self._conn, number)

    async def enqueue_some(self, numbers: range) -> None:
        """Enqueue a few jobs by one call, and commit."""
        self._count.enqueue_many(self._conn, numbers)

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue any number of jobs of an iterator, in one transaction."""
        with self._conn.transaction():
            if not self._spread:
                self._one.enqueue_many(self._conn, numbers)
                return
            by_queue: dict[int, list[int]] = {}
            for number in numbers:
                by_queue.setdefault(number % len(self._spread), []).append(number)
            for place, each in by_queue.items():
                self._spread[place].enqueue_many(self._conn, each)

    async def spread(self, queues: int) -> None:
        """From now on jobs go to this number of queues in turns, and workers serve all of them."""
        self._app = App(
            self._dsn, settings=Settings(worker=WorkerSettings(concurrency=CONCURRENCY))
        )

        async def count(number: int) -> None:
            self._count_handled(number)

        self._queues = [f"queue_{number}" for number in range(queues)]
        self._spread = [self._app.job(name=name, queue=name)(count) for name in self._queues]

    async def drain(self, handler: str) -> int:
        """Run a worker until the queue of a kind of handler is empty.

        Return how many jobs it ended.
        """
        keys = KEYS.get(handler)
        slots = LIMITED_CONCURRENCY if keys is not None and keys.limit else CONCURRENCY
        if handler in EFFECTS:
            slots = EFFECT_CONCURRENCY
        queues = dict.fromkeys(self._queues, 1) or {handler: 1}
        worker = self._app.worker(queues=queues, concurrency=slots)
        stats = await worker.run(until_idle=True)
        return stats.done

    async def serve(self, counters: Counters, note: Callable[[int], None]) -> None:
        """Run a worker until the counters say stop, and count in it what was handled."""
        handled = 0

        def count(number: int) -> None:
            nonlocal handled
            note(number)
            handled += 1
            counters.handled = handled

        self._count_handled = count
        worker = self._app.worker(queues=dict.fromkeys(self._queues, 1) or {"counters": 1})
        stopper = asyncio.create_task(wait_for_stop(counters, worker.stop))
        await worker.run()
        await stopper

    async def idle(self, count: int) -> None:
        """Start workers that end with the process."""
        for _ in range(count):
            worker = self._app.worker(queues=dict.fromkeys(self._queues, 1) or {"async": 1})
            self._idle.append(asyncio.create_task(worker.run()))
            await worker.started.wait()


def fill(conn: psycopg.Connection[Any], handler: str, count: int) -> None:
    """Enqueue this number of jobs for a kind of handler; keys alternate."""
    if handler in KEYS:
        keys = KEYS[handler]
        values = {
            "name": handler,
            "ordering": keys.ordering,
            "limit": keys.limit,
            "is_unique": keys.is_unique,
            "count": count,
        }
        conn.execute(_ENQUEUE_KEYED, values)
        return
    conn.execute(
        "select forebay.enqueue_many("
        " %s, array(select jsonb_build_object('number', i) from generate_series(1, %s) i), %s)",
        [handler, count, handler],
    )


def create_effects(dsn: str) -> None:
    """Make the table whose rows the handlers of EFFECTS update."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "create table effect (id integer primary key, n integer not null) with "
            "(fillfactor = 50)"
        )
        conn.execute(
            "insert into effect select g, 0 from generate_series(0, %s) g", [EFFECT_ROWS - 1]
        )


def set_limits(conn: psycopg.Connection[Any], handler: str) -> None:
    """Set the limits of a queue, if its keys have one."""
    if (most := KEYS[handler].key_concurrency) is not None:
        conn.execute("select forebay.limit_queue(%s, key_concurrency => %s)", [handler, most])

"""Flows as an engine: the kinds of the scenario ``steps``, whose workers are those of ``_ours``.

The name of a handler may end with its slots: ``steps_10/1``. A job is enqueued by the signal that
its parked flow waits for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

import forebay
from forebay_bench import _ours

if TYPE_CHECKING:
    from collections.abc import Callable

#: Steps, or transactions, of a flow that is named after them.
STEPS: Final = (0, 5, 10)

#: The name of the signal that a parked flow waits for; its key is the number of the job.
SIGNAL: Final = "approved"


async def _same(number: int) -> int:
    return number


async def _update(conn: Any, number: int) -> None:
    await conn.execute(_ours._UPDATE, [number])


def create(dsn: str) -> None:
    """Make the tables that handlers write into."""
    _ours.create_effects(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "create table done (turn bigint, number integer, step integer,"
            " primary key (turn, number, step))"
        )


def _row(number: int, step: int) -> int:
    return (number * max(STEPS) + step) % _ours.EFFECT_ROWS


class Queue(_ours.Queue):
    """See ``Engine``. A queue for each kind, with the same name, and both for a gather."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._queues = ["parked"]  # what it serves
        self._child_ended = 0.0
        app = self._app
        for steps in STEPS:
            app.job(name=f"steps_{steps}", queue=f"steps_{steps}")(_steps(steps))

        @app.job(name="once_10", queue="once_10")
        async def once(ctx: forebay.Context, number: int) -> None:
            for step in range(10):
                await ctx.once("update", _update, _row(number, step), key=step)

        @app.job(name="by_hand_10", queue="by_hand_10")
        async def by_hand(number: int) -> None:
            for step in range(10):
                async with self._pool.connection() as conn:
                    await _update(conn, _row(number, step))

        @app.job(name="row_by_hand_10", queue="row_by_hand_10")
        async def row_by_hand(number: int) -> None:
            for step in range(10):
                async with self._pool.connection() as conn:
                    await _update(conn, _row(number, step))
                    # What a careful user writes, so that a retry can see what is done.
                    await conn.execute(
                        "insert into done values (txid_current(), %s, %s)", [number, step]
                    )

        @app.job(name="child", queue="gather")
        async def child(number: int) -> None:
            del number
            self._child_ended = time.monotonic()

        @app.job(name="gather", queue="gather", keep_result=True)
        async def gather(ctx: forebay.Context, number: int) -> float:
            woken = time.monotonic()
            await ctx.gather("children", child.calls(range(number)))
            return woken - self._child_ended

        @app.job(name="parked", queue="parked")
        async def parked(ctx: forebay.Context, number: int) -> None:
            self._count_handled(number)
            await ctx.wait(SIGNAL, key=number)

        @app.job(name="waits", queue="waits")
        async def waits(ctx: forebay.Context, number: int) -> None:
            await ctx.step("before", _same, number)
            await ctx.wait(SIGNAL, key=number)
            await ctx.step("after", _same, number)

        @app.job(name="resumed", queue="resumed")
        async def resumed(ctx: forebay.Context, number: int) -> forebay.Snooze | None:
            done: list[int] = []

            async def do(step: int) -> None:
                done.append(step)

            for step in range(number):
                await ctx.step("step", do, step, key=step)
                if done:
                    return forebay.Snooze(0)
            return None

    async def enqueue(self, number: int) -> None:
        """Send the signal for a parked flow, and commit."""
        forebay.signal(self._conn, SIGNAL, number)

    async def drain(self, handler: str) -> int:
        """Run a worker until the queue is empty and no flow can continue."""
        kind, _, slots = handler.partition("/")
        worker = self._app.worker(queues={kind: 1}, concurrency=int(slots or _ours.CONCURRENCY))
        return (await worker.run(until_idle=True)).done


def _steps(steps: int) -> Callable[..., Any]:
    async def run(ctx: forebay.Context, number: int) -> None:
        for step in range(steps):
            await ctx.step("step", _same, number, key=step)

    return run

"""absurd: steps by name, in tables of each queue that are claimed with SKIP LOCKED.

Its schema is the one in the package absurdctl. Flows run on its asynchronous worker, ten at a time
on its one connection, as its documentation shows it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg
from absurd_sdk import Absurd, AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME: Final = "absurd"
NOTE: Final = (
    "absurd: its asynchronous worker with concurrency 10 and batches of 10, one connection"
)

_QUEUE: Final = "bench"


def create(dsn: str) -> None:
    """Install its schema."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(BUNDLED_SCHEMA_SQL)
    with contextlib.closing(Absurd(dsn, queue_name=_QUEUE)) as app:
        app.create_queue()


class Queue:
    """Its flows of five steps; see ``Engine``, of which this has what the scenario steps needs."""

    def __init__(self, dsn: str) -> None:
        self._app = app = AsyncAbsurd(dsn, queue_name=_QUEUE)
        self._left = self._ended = 0

        async def flow(params: Any, ctx: Any) -> None:
            async def same() -> int:
                return int(params["number"])

            for step in range(5):
                await ctx.step(f"step {step}", same)
            self._ended += 1
            if self._ended == self._left:
                app.stop_worker()

        app.register_task(name="flow")(flow)

    async def open(self) -> None:
        """Do nothing: it connects at the first call."""

    async def close(self) -> None:
        """Disconnect."""
        await self._app.close()

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue a flow for each number."""
        for number in numbers:
            await self._app.spawn("flow", {"number": number})
            self._left += 1

    async def drain(self, handler: str) -> int:
        """Run a worker until all flows have ended; return how many."""
        del handler
        self._ended = 0
        await self._app.start_worker(concurrency=10, poll_interval=0.01)
        self._left = 0
        return self._ended

"""DBOS: steps by position, each a row that the process which runs the workflow inserts.

Workflows are started directly, ten at a time in threads of its executor, without a queue: that is
its cheapest form. So a drain also writes the row of each workflow.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from dbos import DBOS
from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME: Final = "dbos"
NOTE: Final = "dbos: workflows started directly, 10 threads, no queue; their start is in the drain"


def _same(number: int) -> int:
    return number


def _five(number: int) -> None:
    for _ in range(5):
        _step(number)


_step = DBOS.step()(_same)
_flow = DBOS.workflow()(_five)


def create(dsn: str) -> None:
    """Install its schema."""
    DBOS.migrate(url(dsn))


class Queue:
    """Its flows of five steps; see ``Engine``, of which this has what the scenario steps needs."""

    def __init__(self, dsn: str) -> None:
        self._numbers: list[int] = []
        DBOS(
            config={
                "name": "bench",
                "system_database_url": url(dsn),
                "max_executor_threads": 10,
                "log_level": "ERROR",
            }
        )

    async def open(self) -> None:
        """Connect."""
        await asyncio.to_thread(DBOS.launch)

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.to_thread(DBOS.destroy)

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Remember which flows to start."""
        self._numbers += numbers

    async def drain(self, handler: str) -> int:
        """Run all flows; return how many."""
        del handler
        numbers, self._numbers = self._numbers, []
        await asyncio.to_thread(_run_all, numbers)
        return len(numbers)


def url(dsn: str) -> str:
    """Return an address as DBOS and SQLAlchemy take it."""
    found = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value}
    return f"postgresql+psycopg:///{found.pop('dbname')}?{urlencode(found)}"


def _run_all(numbers: list[int]) -> None:
    for handle in [DBOS.start_workflow(_flow, number) for number in numbers]:
        handle.get_result(polling_interval_sec=0.01)

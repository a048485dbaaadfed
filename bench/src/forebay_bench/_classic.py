"""The ordinary table as an engine: a loop that claims and deletes, without a library around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from forebay_bench.engines import classic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay_bench._counters import Counters

BATCH: Final = 500


class Queue:
    """See ``Engine``."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def open(self) -> None:
        """Connect."""
        self._conn = psycopg.connect(self._dsn, autocommit=True)

    async def close(self) -> None:
        """Disconnect."""
        self._conn.close()

    async def enqueue(self, number: int) -> None:
        """Enqueue a job and commit."""
        del number  # jobs are numbered by the statement
        classic.fill(self._conn, 1)

    async def enqueue_some(self, numbers: range) -> None:
        """Enqueue a few jobs by one call, and commit."""
        classic.fill(self._conn, len(numbers))

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue as many jobs by one statement."""
        classic.fill(self._conn, sum(1 for _ in numbers))

    async def drain(self, handler: str) -> int:
        """Claim and delete until nothing is left; return how many jobs there were."""
        del handler  # there is none
        ended = 0
        while jobs := classic.claim(self._conn, BATCH):
            classic.finish(self._conn, [job[0] for job in jobs])
            ended += len(jobs)
        return ended

    async def serve(self, counters: Counters, note: Callable[[int], None]) -> None:
        """Claim and delete until the counters say stop."""
        del note  # there are no numbers
        handled = 0
        while not counters.stop:
            jobs = classic.claim(self._conn, BATCH)
            classic.finish(self._conn, [job[0] for job in jobs])
            handled += len(jobs)
            counters.handled = handled

    async def spread(self, queues: int) -> None:
        """Refuse: it has one queue."""
        raise NotImplementedError(queues)

    async def idle(self, count: int) -> None:
        """Refuse: it has no workers."""
        raise NotImplementedError(count)

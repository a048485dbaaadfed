"""What the console reads of one database: bounded reads, and one sampler for all viewers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from forebay.client import AsyncClient
from forebay.client.reader import Reader, ReadTooSlow
from forebay.console._acts import Runs
from forebay.doctor.status import current_problems
from forebay.errors import ForebayError
from forebay.model.problems import Problem
from forebay.ops import events, workers
from forebay.watch import marks, operations
from forebay.watch.backlogs import count_each_backlog
from forebay.watch.top import Reads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from forebay.ops.operation import Operation
    from forebay.watch.screen import Overview

T = TypeVar("T")

#: Time between two samples while a browser is open.
SAMPLE_SECONDS: Final = 2.0

#: The problems are those of ``forebay status``, which looks at more than a sample does.
PROBLEMS_SECONDS: Final = 5.0

#: Samples that the curves show: ten minutes.
_SAMPLES: Final = 300

#: Most events, and most ended workers, that become marks: the newest.
_EVENTS_MAX: Final = 200

#: Most keys that are read.
_KEYS_MAX: Final = 50


class Sample(NamedTuple):
    """The numbers of one moment that the curves of the database show.

    Attributes:
        at: seconds since 1970, by the clock of the database.
        waiting: jobs that are ready, in all queues.
        done: jobs done a second, in all queues; None until it is known.
        dead_rows: of the tables of the schema.
        snapshot_seconds: age of the oldest transaction that holds back vacuum.
    """

    at: float
    waiting: int
    done: float | None
    dead_rows: int
    snapshot_seconds: float


class Problems(NamedTuple):
    """What ``forebay status`` says, and when it was asked.

    Attributes:
        found: the problems, the worst first.
        read_at: by the monotonic clock of this process.
    """

    found: Sequence[Problem]
    read_at: float


class Happened(NamedTuple):
    """What happened in the last minutes, and when it was read.

    Attributes:
        found: the oldest first.
        read_at: by the monotonic clock of this process.
    """

    found: Sequence[marks.Happening]
    read_at: float


class Source:
    """One database.

    Args:
        name: its name in addresses.
        dsn: its address; None: from the environment.
    """

    def __init__(self, name: str, dsn: str | None) -> None:
        self.name = name
        self._reader = Reader(dsn, name="forebay console")
        self._reads = Reads()
        self._overview: Overview | None = None
        self._data: dict[str, Any] = {}
        self._read_at = 0.0
        self._problems: Problems | None = None
        self._sample_lock = asyncio.Lock()
        self._problems_lock = asyncio.Lock()
        self._happened: Happened | None = None
        self._happened_lock = asyncio.Lock()
        self._counting: asyncio.Task[None] | None = None
        self._viewers: set[asyncio.Event] = set()
        self._sampling: asyncio.Task[None] | None = None
        #: Long acts that run, or have ended.
        self.runs = Runs()
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        #: Why the last sample failed; None if it did not.
        self.failed: str | None = None

    @property
    def address(self) -> str:
        """The address of the database."""
        return self._reader.address

    @property
    def client(self) -> AsyncClient:
        """A client for acts."""
        return AsyncClient(self._reader.address)

    async def read(self, operation: Operation[T]) -> T:
        """Run a read; see ``Reader.run``."""
        return await self._reader.run(operation)

    @property
    def age_seconds(self) -> float:
        """The age of the overview."""
        return time.monotonic() - self._read_at

    @property
    def data(self) -> dict[str, Any]:
        """The measurements behind the overview."""
        return self._data

    async def overview(self) -> Overview:
        """Return the overview, at most some seconds old.

        Raises:
            DatabaseUnavailable: there is none so young, and the database cannot be reached.
        """
        async with self._sample_lock:
            if self._overview is None or self.age_seconds >= SAMPLE_SECONDS:
                await self._sample()
            assert self._overview is not None
            return self._overview

    async def problems(self) -> Sequence[Problem]:
        """Return what is wrong now, as ``forebay status`` lists it, at most some seconds old."""
        async with self._problems_lock:
            last = self._problems
            if last is None or time.monotonic() - last.read_at >= PROBLEMS_SECONDS:
                found = await current_problems(self._reader.address, count=False)
                last = self._problems = Problems(found, time.monotonic())
            return last.found

    async def marks(self) -> Sequence[marks.Mark]:
        """Return the marks of the curves of samples, at most some seconds old."""
        times = [datetime.fromtimestamp(one.at, UTC) for one in self.samples]
        if len(times) < 2:
            return []
        async with self._happened_lock:
            last = self._happened
            if last is None or time.monotonic() - last.read_at >= PROBLEMS_SECONDS:
                found = await self.happenings(times[0], None)
                last = self._happened = Happened(found, time.monotonic())
        return marks.marks(last.found, times)

    async def happenings(self, since: datetime, queue: str | None) -> list[marks.Happening]:
        """Return what happened since a time, for all queues or for one; of much, the newest."""
        # The version before a deploy is that of a worker that may have ended before.
        before = since - timedelta(days=1)
        return marks.happenings(
            await self.read(events.events(queue=queue, since=since, limit=_EVENTS_MAX)),
            await self.read(workers.workers(0)),
            await self.read(workers.ended_workers(before, _EVENTS_MAX)),
            queue,
        )

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each sample, and keep the sampler going meanwhile."""
        changed = asyncio.Event()
        self._viewers.add(changed)
        if self._sampling is None:
            self._sampling = asyncio.create_task(self._keep_sampling())
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield
        finally:
            self._viewers.discard(changed)
            if not self._viewers and self._sampling is not None:
                self._sampling.cancel()
                self._sampling = None

    async def close(self) -> None:
        """Stop sampling and close the sessions."""
        for task in (self._sampling, self._counting):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ForebayError):
                    await task
        self._sampling = self._counting = None
        await self._reader.close()

    async def _keep_sampling(self) -> None:
        while True:
            with contextlib.suppress(ForebayError):  # the pages show that they are stale
                await self.overview()
            for changed in self._viewers:
                changed.set()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _sample(self) -> None:
        try:
            data, keys = await self._read_measurements()
        except ForebayError as error:
            self.failed = error.message
            raise
        self.failed = None
        self._data = data
        self._overview = self._reads.add({**data, "write_failed": None}, keys or [])
        self._read_at = time.monotonic()
        done = [queue.done_per_second for queue in self._overview.queues]
        known = [rate for rate in done if rate is not None]
        self.samples.append(
            Sample(
                at=self._overview.at,
                waiting=sum(queue.ready for queue in self._overview.queues),
                done=sum(known) if known else None,
                dead_rows=data["database"]["dead_rows"],
                snapshot_seconds=data["database"]["snapshot_seconds"],
            )
        )

    async def _read_measurements(self) -> Any:
        try:
            return await self.read(operations.measurements_with_keys(_KEYS_MAX))
        except ReadTooSlow:
            # A backlog that no worker has counted is counted beside: bounded, queue by queue.
            if self._counting is None or self._counting.done():
                self._counting = asyncio.create_task(count_each_backlog(self._reader.address))
            return await self.read(operations.measurements_with_keys(0))

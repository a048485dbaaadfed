"""What the console reads of one database: bounded reads, and one sampler for all viewers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from forebay.client.reader import Reader, ReadTooSlow
from forebay.console._acts import Actor, Runs
from forebay.doctor.status import current_problems
from forebay.errors import ForebayError
from forebay.ops import events, stats, workers
from forebay.watch import operations
from forebay.watch.backlogs import count_each_backlog
from forebay.watch.marks import Happening, Mark, happenings, marks
from forebay.watch.top import Reads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from forebay.model.problems import Problem
    from forebay.model.stats import StatsSample
    from forebay.ops.operation import Operation
    from forebay.watch.screen import Overview

T = TypeVar("T")

#: Time between two samples while a browser is open.
SAMPLE_SECONDS: Final = 2.0

#: The problems are those of ``forebay status``, which looks at more than a sample does.
PROBLEMS_SECONDS: Final = 5.0

#: After this time the console tries again what took too long.
TOO_SLOW_SECONDS: Final = 60.0

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


class _Kept(Generic[T]):
    """What all viewers see, read again when it is some seconds old."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._found: tuple[T] | None = None
        self._until = 0.0

    async def get(self, read: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        """Return it; ``read`` reads it, and says for how many seconds it is kept."""
        async with self._lock:
            if self._found is None or time.monotonic() >= self._until:
                found, seconds = await read()
                self._found, self._until = (found,), time.monotonic() + seconds
            return self._found[0]


class Source:
    """One database.

    Args:
        name: its name in addresses.
        dsn: its address; None: from the environment.
        acts_dsn: its address for acts; None: the same.
    """

    def __init__(self, name: str, dsn: str | None, acts_dsn: str | None = None) -> None:
        self.name = name
        self._acts_dsn = acts_dsn
        self._reader = Reader(dsn, name="forebay console")
        self._reads = Reads()
        self._overview: Overview | None = None
        self._data: dict[str, Any] = {}
        self._read_at = 0.0
        self._sample_lock = asyncio.Lock()
        self._problems: _Kept[Sequence[Problem]] = _Kept()
        self._happened: _Kept[Sequence[Happening]] = _Kept()
        self._minutes: _Kept[Sequence[StatsSample] | None] = _Kept()
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
    def client(self) -> Actor:
        """A client for acts."""
        return Actor(self._acts_dsn or self._reader.address)

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

        async def read() -> tuple[Sequence[Problem], float]:
            return await current_problems(self._reader.address, count=False), PROBLEMS_SECONDS

        return await self._problems.get(read)

    async def marks(self) -> Sequence[Mark]:
        """Return the marks of the curves of samples, at most some seconds old."""
        times = [datetime.fromtimestamp(one.at, UTC) for one in self.samples]
        if len(times) < 2:
            return []

        async def read() -> tuple[Sequence[Happening], float]:
            return await self.happenings(times[0], None), PROBLEMS_SECONDS

        return marks(await self._happened.get(read), times)

    async def minutes(self, since: datetime, queue: str | None) -> Sequence[StatsSample] | None:
        """Return the counters by minute since a time; None if there are too many to read."""

        async def read() -> tuple[Sequence[StatsSample] | None, float]:
            try:
                found = await self.read(stats.stats_series("minute", since, None, queue))
            except ReadTooSlow:  # of very many queues and kinds
                return None, TOO_SLOW_SECONDS
            return found, PROBLEMS_SECONDS

        return (await read())[0] if queue else await self._minutes.get(read)

    async def happenings(self, since: datetime, queue: str | None) -> list[Happening]:
        """Return what happened since a time, for all queues or for one; of much, the newest."""
        # The version before a deploy is that of a worker that may have ended before.
        before = since - timedelta(days=1)
        try:
            acts = await self.read(events.events(queue=queue, since=since, limit=_EVENTS_MAX))
            alive = await self.read(workers.workers(0))
            ended = await self.read(workers.ended_workers(before, _EVENTS_MAX))
        except ReadTooSlow:  # the curves are worth more than their marks
            return []
        return happenings(acts, alive, ended, queue)

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

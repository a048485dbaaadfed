"""What the console reads of one database: bounded reads, and one sampler for all viewers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from forebay.client import AsyncClient
from forebay.client.reader import Reader, ReadTooSlow
from forebay.console._acts import Runs
from forebay.console._doctor import Doctor
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

#: Time between two samples while a browser is open, at least.
SAMPLE_SECONDS: Final = 2.0

#: The problems are those of ``forebay status``, which looks at more than a sample does.
PROBLEMS_SECONDS: Final = 5.0

#: After this time the console tries again what took too long.
TOO_SLOW_SECONDS: Final = 60.0
#: A page shows what is this old, in seconds, while newer numbers are read beside it.
OLD_SECONDS: Final = 10.0

#: A sample ends after this time, in seconds: it is one for all viewers.
_SAMPLE_LIMIT: Final = 5.0

#: Samples take at most this part of the time, so that those of very many queues are rarer.
_SHARE: Final = 0.2

#: Samples that the curves show: ten minutes.
_SAMPLES: Final = 300

#: Samples of each queue that the overview shows: little more than a minute, since there may be
#: very many queues.
_COURSE: Final = 40

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
        snapshot_seconds: age of the oldest transaction that holds back vacuum; None if unknown.
    """

    at: float
    waiting: int
    done: float | None
    dead_rows: int
    snapshot_seconds: float | None


class Course(NamedTuple):
    """What happened in a queue, in all its groups, at one sample; None until it is known.

    Attributes:
        enqueued: jobs a second.
        done: jobs a second.
    """

    enqueued: float | None
    done: float | None


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


class Problems(NamedTuple):
    """What ``forebay status`` says, and when it was asked.

    Attributes:
        found: the problems, the worst first.
        began_at: when they were asked for, by the monotonic clock of this process.
    """

    found: Sequence[Problem]
    began_at: float


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
        self._sampler = Reader(
            lambda: self._reader.address, name="forebay console", sessions=1, seconds=_SAMPLE_LIMIT
        )
        self._reads = Reads()
        self._overview: Overview | None = None
        self._data: dict[str, Any] = {}
        self._read_at = 0.0
        self._problems: Problems | None = None
        #: When a person changed something; a sample that began before may not show it.
        self._changed_at = -math.inf
        self._began_at = -math.inf
        #: How long the last sample took.
        self._took_seconds = 0.0
        #: Renewals under way: of the sample and of the problems.
        self._renewing: dict[str, asyncio.Task[Any]] = {}
        #: Grows with each change of what all viewers see.
        self.version = 0
        self._sample_lock = asyncio.Lock()
        self._problems_lock = asyncio.Lock()
        self._happened: _Kept[Sequence[Happening]] = _Kept()
        self._minutes: _Kept[Sequence[StatsSample] | None] = _Kept()
        self._counting: asyncio.Task[None] | None = None
        self._viewers: set[asyncio.Event] = set()
        self._sampling: asyncio.Task[None] | None = None
        #: Long acts that run, or have ended.
        self.runs = Runs()
        #: The checks.
        self.doctor = Doctor(self)
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        #: By queue, what was enqueued and done a second, in its last samples.
        self.courses: dict[str, deque[Course]] = {}
        #: Why the last sample failed; None if it did not.
        self.failed: str | None = None

    @property
    def address(self) -> str:
        """The address of the database."""
        return self._reader.address

    @property
    def client(self) -> AsyncClient:
        """A client for acts."""
        return AsyncClient(self._acts_dsn or self._reader.address)

    async def read(self, operation: Operation[T]) -> T:
        """Run a read; see ``Reader.run``."""
        return await self._reader.run(operation)

    @property
    def age_seconds(self) -> float:
        """The age of the overview."""
        return time.monotonic() - self._read_at

    @property
    def _period(self) -> float:
        """Time between two samples: the longer one takes, the longer."""
        return max(SAMPLE_SECONDS, self._took_seconds / _SHARE)

    @property
    def data(self) -> dict[str, Any]:
        """The measurements behind the overview."""
        return self._data

    async def overview(self) -> Overview:
        """Return the overview, at most ``OLD_SECONDS`` old, or as old as the next sample may be.

        One that is due is renewed beside the page.

        Raises:
            DatabaseUnavailable: there is none so young, and the database cannot be reached.
        """
        age = self.age_of(self._began_at)
        if self._overview is None or age >= max(OLD_SECONDS, self._period):
            return await self._sampled()
        if age >= self._period:
            self.renew("sample", self._sampled)
        return self._overview

    async def problems(self) -> Sequence[Problem]:
        """Return what is wrong now, as ``forebay status`` lists it, with the age of the overview.

        Raises:
            DatabaseUnavailable: there are none so young, and the database cannot be reached.
        """
        last = self._problems
        age = math.inf if last is None else self.age_of(last.began_at)
        if last is None or age >= max(OLD_SECONDS, self._period):
            return await self._judged()
        if age >= max(PROBLEMS_SECONDS, self._period):
            self.renew("problems", self._judged)
        return last.found

    def forget(self) -> None:
        """Read again for the next page, since a person has changed something."""
        self._changed_at = time.monotonic()

    def age_of(self, began_at: float) -> float:
        """Return the age of a read; infinite if a person has acted since."""
        return time.monotonic() - began_at if began_at > self._changed_at else math.inf

    def renew(self, name: str, read: Callable[[], Awaitable[Any]]) -> None:
        """Read beside the pages, once at a time; what fails is seen by the next page."""

        async def renewed() -> None:
            with contextlib.suppress(Exception):
                await read()

        if name not in self._renewing or self._renewing[name].done():
            self._renewing[name] = asyncio.create_task(renewed())

    async def _sampled(self) -> Overview:
        async with self._sample_lock:
            if self._overview is None or self.age_of(self._began_at) >= self._period:
                await self._sample()
            assert self._overview is not None
            return self._overview

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

    async def happenings(
        self, since: datetime, queue: str | None, until: datetime | None = None
    ) -> list[Happening]:
        """Return what happened from one time to another, None: to now, for all queues or for one;
        of much, the newest.
        """
        # The version before a deploy is that of a worker that may have ended before.
        before = since - timedelta(days=1)
        try:
            acts = await self.read(
                events.events(queue=queue, since=since, until=until, limit=_EVENTS_MAX)
            )
            alive = await self.read(workers.workers(0))
            ended = await self.read(workers.ended_workers(before, _EVENTS_MAX))
        except ReadTooSlow:  # the curves are worth more than their marks
            return []
        found = happenings(acts, alive, ended, queue)
        return [one for one in found if until is None or one.at <= until]

    async def _judged(self) -> Sequence[Problem]:
        async with self._problems_lock:
            last = self._problems
            if last is None or self.age_of(last.began_at) >= PROBLEMS_SECONDS:
                await self.overview()
                began = time.monotonic()
                found = await current_problems(
                    self._reader.address, count=False, data={**self._data}
                )
                last = self._problems = Problems(found, began)
                self.version += 1
            return last.found

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
                if self._counting is not None:
                    self._counting.cancel()

    async def close(self) -> None:
        """Stop sampling and close the sessions."""
        for task in (self._sampling, self._counting, *self._renewing.values()):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ForebayError):
                    await task
        self._sampling = self._counting = None
        await self._sampler.close()
        await self._reader.close()

    async def _keep_sampling(self) -> None:
        while True:
            with contextlib.suppress(ForebayError):  # the pages show that they are stale
                await self._sampled()
            for changed in self._viewers:
                changed.set()
            await asyncio.sleep(self._period)

    async def _sample(self) -> None:
        began = time.monotonic()
        try:
            data, keys = await self._read_measurements()
        except ForebayError as error:
            self.failed = error.message
            self.version += 1
            raise
        self.failed = None
        self._data = data
        self._took_seconds = time.monotonic() - began
        self._overview = self._reads.add({**data, "write_failed": None}, keys or [])
        self._began_at, self._read_at = began, time.monotonic()
        self.version += 1
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
        self._keep_courses(self._overview)

    def _keep_courses(self, overview: Overview) -> None:
        """Add what happened in each queue, and forget the queues that no longer exist."""
        courses: dict[str, deque[Course]] = {}
        for one in overview.queues:
            known = courses.get(one.queue)
            if known is None:
                known = self.courses.get(one.queue, deque(maxlen=_COURSE))
                courses[one.queue] = known
                # Each group gets each job, so one group tells what is enqueued.
                known.append(Course(one.enqueued_per_second, one.done_per_second))
            elif one.done_per_second is not None:
                last = known.pop()
                known.append(last._replace(done=(last.done or 0.0) + one.done_per_second))
        self.courses = courses

    async def _read_measurements(self) -> Any:
        try:
            return await self._sampler.run(operations.measurements_with_keys(_KEYS_MAX))
        except ReadTooSlow:
            # A backlog that no worker has counted is counted beside: bounded, queue by queue.
            if self._counting is None or self._counting.done():
                self._counting = asyncio.create_task(self._count())
            return await self._sampler.run(operations.measurements_with_keys(0))

    async def _count(self) -> None:
        with contextlib.suppress(ForebayError):  # the next sample asks for it again
            await count_each_backlog(self._reader.address)

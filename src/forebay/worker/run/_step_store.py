"""Reads and records checkpoints, on a connection that opens with the first one.

While a call records checkpoints, those of other jobs gather for the next one. Several flows share a
commit, and each waits for the commit that has its checkpoint.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, TypeVar

from forebay.db.pools import is_duplicate
from forebay.db.session import Session
from forebay.errors import DatabaseUnavailable
from forebay.model.text import logger
from forebay.ops import flows
from forebay.policy.backoff import reconnect_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forebay.ops.flows import Checkpoint, Gathered, NewStep, StepStatus, Wait
    from forebay.ops.operation import Operation
    from forebay.worker.ground.held import HeldJob

T = TypeVar("T")

log = logger("forebay.worker")

#: How often a call is tried while the database is unavailable.
_TRIES: Final = 5

#: Checkpoints of one call.
_RECORDED_MOST: Final = 200

#: A step that code does not ask for is noted once in this time, however many flows have it.
_NOTED_SECONDS: Final = 3600.0
_NOTED_MOST: Final = 100

#: How long a note may delay the end of the worker.
_CLOSE_SECONDS: Final = 2.0


class StepStore:
    """The checkpoints of the flows in a process.

    Owns the connection, and what waits to be recorded. After a crash, a checkpoint is there or its
    step runs again.

    Args:
        dsn: the database.
        name: application_name of the connection.
    """

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._name = name
        self._session: Session | None = None
        self._waiting: dict[int, list[tuple[NewStep, asyncio.Future[StepStatus]]]] = {}
        self._writer: asyncio.Task[None] | None = None
        self._noted: dict[tuple[str, str], float] = {}
        self._notes: set[asyncio.Task[None]] = set()

    async def steps(self, held: HeldJob) -> list[Checkpoint]:
        """Return the checkpoints of a job."""
        return await self._read(held, flows.steps(held.row.job_id, held.lane.group_id))

    async def record(self, held: HeldJob, step: NewStep) -> StepStatus:
        """Record a checkpoint; it is durable when this returns.

        Raises:
            LeaseLost: the job belongs to another worker.
            DatabaseUnavailable: it may have been recorded, or not.
        """
        return await self._repeat(held, lambda: self._recorded(held.lease.lease_id, step))

    def _recorded(self, lease: int, step: NewStep) -> asyncio.Future[StepStatus]:
        """Let a checkpoint be written; one that is repeated is recognised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[StepStatus] = loop.create_future()
        self._waiting.setdefault(lease, []).append((step, future))
        if self._writer is None:
            self._writer = loop.create_task(self._write())
        return future

    async def _write(self) -> None:
        try:
            while self._waiting:
                lease, waiting = next(iter(self._waiting.items()))
                some, rest = waiting[:_RECORDED_MOST], waiting[_RECORDED_MOST:]
                if rest:
                    self._waiting[lease] = rest
                else:
                    del self._waiting[lease]
                steps = [step for step, _ in some]
                try:
                    statuses = await self._written(flows.record(lease, steps))
                except Exception as error:
                    for _, future in some:
                        if not future.done():
                            future.set_exception(error)
                            future.exception()  # Its waiter may be gone.
                    continue
                for (_, future), status in zip(some, statuses, strict=True):
                    if not future.done():
                        future.set_result(status)
        finally:
            self._writer = None

    async def _written(self, operation: Operation[T]) -> T:
        """Run an operation again that met another writer of a number, whose row it then sees."""
        for _ in range(_TRIES):
            try:
                return await self._opened().run(operation)
            except Exception as error:
                if not is_duplicate(error, "step_pkey"):
                    raise
        return await self._opened().run(operation)

    async def end_wait(self, held: HeldJob, no: int, wait: Wait) -> Checkpoint:
        """End a wait whose time is over; return its checkpoint.

        Raises:
            UnknownBatch: another checkpoint has this number.
        """
        (found,) = await self._read(
            held,
            flows.end_wait(held.lease.lease_id, held.row.job_id, held.lane.group_id, no, wait),
        )
        return found

    async def gather(self, held: HeldJob, step: NewStep, children: int, jobs: str) -> int:
        """Enqueue the children of a step; return the number of the gather.

        Not repeated: it may have been committed.
        """
        return await self._opened().run(
            flows.gather(held.lease.lease_id, step, children, jobs), seconds=300.0
        )

    async def gathered(self, held: HeldJob, gather_id: int) -> list[Gathered]:
        """Return how the children of a gather ended."""
        return await self._read(held, flows.gathered(gather_id))

    async def results_of(self, held: HeldJob, *, values: bool) -> list[Gathered]:
        """Return how the jobs ended that a callback waited for."""
        return await self._read(held, flows.results_of(held.row.job_id, values=values))

    def note_unasked(self, kind: str, names: list[str]) -> None:
        """Note for the doctor that code did not ask for these recorded steps, in a while.

        It is lost if the database is unavailable: the next such flow notes it.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        new = [
            name
            for name in names
            if now - self._noted.get((kind, name), -_NOTED_SECONDS) >= _NOTED_SECONDS
        ][:_NOTED_MOST]
        if not new or len(self._notes) > _TRIES:
            return
        if len(self._noted) > _NOTED_MOST * _NOTED_MOST:
            self._noted.clear()
        self._noted.update(dict.fromkeys([(kind, name) for name in new], now))
        task = loop.create_task(self._note(kind, new))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note(self, kind: str, names: list[str]) -> None:
        try:
            await self._opened().run(flows.note_unasked(kind, names))
        except Exception as error:
            log.debug("what flows of kind %s did not ask for was not noted: %s", kind, error)
            for name in names:
                self._noted.pop((kind, name), None)

    async def _read(self, held: HeldJob, operation: Operation[T]) -> T:
        return await self._repeat(held, lambda: self._opened().run(operation))

    async def _repeat(self, held: HeldJob, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that may be repeated, for some seconds."""
        failures = 0
        while True:
            try:
                return await call()
            except DatabaseUnavailable:
                failures += 1
                if failures == _TRIES or held.ended or held.lease.lost:
                    raise
                await asyncio.sleep(reconnect_seconds(failures, random.random(), cap_seconds=1.0))

    def _opened(self) -> Session:
        if self._session is None:
            self._session = Session(self._dsn, name=self._name)
        return self._session

    async def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        if self._notes:
            await asyncio.wait(self._notes, timeout=_CLOSE_SECONDS)
        if self._session is not None:
            await self._session.close()

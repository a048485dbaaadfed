"""Slots: running claimed jobs, several at a time, and telling how each ended.

Coroutine functions run as tasks, plain functions in threads. A call has at most three interruptions:
asked to stop at the soft timeout or when cancelled; stopped at the hard timeout, when its slot is given
free although the handler may not have noticed; and dropped when its lease is lost, when nothing is settled.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from forebay.db.lending import async_lender, lender
from forebay.db.pools import spoils_connection
from forebay.db.session import cut
from forebay.errors import (
    HandlerError,
    HardTimeout,
    InvalidJob,
    JobCancelled,
    LeaseLost,
    SoftTimeout,
    UnknownBatch,
    UnknownKind,
)
from forebay.model.context import Context, TransactionContext
from forebay.model.outcome import Endings
from forebay.ops import protocol
from forebay.ops.protocol import Ended, Flush
from forebay.policy.claims import mean_duration
from forebay.worker import _running
from forebay.worker._held import Chain, key_of
from forebay.worker._running import Call
from forebay.worker._threads import NoThreadError, Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from forebay.config import WorkerSettings
    from forebay.db.lending import AsyncLender, AsyncLent, Lender, Lent
    from forebay.kinds import Kind, Kinds
    from forebay.ops.operation import Operation
    from forebay.worker._children import Children
    from forebay.worker._held import Batch, HeldJob, Key, Lease
    from forebay.worker._messages import Answer

log = logging.getLogger("forebay.worker")

#: How long calls that never wait may keep the loop to themselves.
_LOOP_SECONDS_MAX = 0.002

#: The same where one runner has all of them, as with jobs of one ordering key: several would take their turns one after
#: another, and what ended in all of them is settled at once.
_LONE_LOOP_SECONDS_MAX = 0.01

#: After these a job goes on, and those behind it in its ordering key have to wait for it.
_GOES_ON = frozenset({"retried", "lost", "snoozed", "unknown", "handed_back"})

#: Threads that never came back from their handler before the worker says so at each further one.
_ABANDONED_MANY = 10


class Sink(Protocol):
    """Where endings go: the settler, or a child's pipe to its parent."""

    def done(self, jobs: Sequence[HeldJob]) -> None: ...
    def end(self, job: HeldJob, ended: Ended, *, solo: bool = False) -> None: ...
    def settled_elsewhere(self, job: HeldJob) -> None: ...


class Executor:
    """Runs jobs on ``concurrency`` slots.

    Args:
        kinds: the handlers.
        settings: concurrency and default timeouts.
        sink: is told how each job ended.
        dsn: for handlers in transactions.
        name: application_name of their connections.
        group: name of the group, for the jobs' view of themselves.
        on_free: called when a slot or a place before it became free.
        on_lease_lost: called when a handler's transaction learnt it.
        on_progress: called with what a handler says of its jobs, in whatever thread that is.
        processes: for handlers that ask for one; None in such a process.
    """

    def __init__(
        self,
        kinds: Kinds,
        settings: WorkerSettings,
        sink: Sink,
        *,
        dsn: str,
        name: str,
        group: str,
        resources: Mapping[str, Any],
        on_free: Callable[[], None],
        on_lease_lost: Callable[[Lease], None],
        on_progress: Callable[[Sequence[HeldJob], float, str], None],
        processes: Children | None = None,
    ) -> None:
        self._processes = processes
        self._kinds = kinds
        self._settings = settings
        self._sink = sink
        self._dsn = dsn
        self._name = name
        self._group = group
        self._resources = resources
        self._on_free = on_free
        self._on_lease_lost = on_lease_lost
        self._on_progress = on_progress
        self._waiting: deque[tuple[Kind, list[HeldJob], list[Any]]] = deque()
        #: What waits for an earlier job of its ordering key in the same lease, in order.
        self._chains: dict[Key, Chain] = {}
        #: Of keys the last job that goes on, until nothing can come any more that was claimed before that was known.
        self._went_on: dict[Key, HeldJob] = {}
        self._calls: dict[Call, list[HeldJob]] = {}
        self._threads = Threads(settings.concurrency)
        #: Whether handlers' transactions run in the sessions of a pooler; known once the worker is connected.
        self.is_pooled = False
        self._lenders: dict[type | None, Lender] = {}
        self._async_lenders: dict[type | None, AsyncLender] = {}
        self._reserved = 0
        self._runners: set[asyncio.Task[None]] = set()
        self._starting = 0
        #: What handlers find their context variables to be.
        self._context = contextvars.copy_context()
        self.buffered = 0
        #: How many of these wait for an earlier one of their ordering key.
        self.chained = 0
        #: Running mean of handler durations, by queue, in seconds.
        self.mean_seconds: dict[str, float] = {}

    @property
    def busy(self) -> int:
        """Slots with a call."""
        return len(self._calls) + self._reserved

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._calls and not self._waiting and not self._reserved

    def running_job_ids(self) -> list[int]:
        """Ids of the jobs whose handlers run."""
        return [held.row.job_id for helds in self._calls.values() for held in helds]

    def reserve(self) -> None:
        """Take a slot for a call that runs elsewhere, in a child."""
        self._reserved += 1

    def release(self) -> None:
        """Give it back."""
        self._reserved -= 1
        self._start_waiting()
        self._on_free()

    def prepare(self, held: HeldJob) -> tuple[Kind, Any] | None:
        """Find the handler of a job and decode its arguments; settle the job when that fails."""
        found = self._decode(held)
        if isinstance(found, Ended):
            self._finish(held, found)
            return None
        return found

    def _decode(self, held: HeldJob) -> tuple[Kind, Any] | Ended:
        row = held.row
        try:
            kind = self._kinds.get(row.kind)
        except UnknownKind as error:
            log.warning("job %s put aside: %s", row.job_id, error)
            return _running.unknown_kind(row, error)
        try:
            return kind, _running.decode_item(kind, held, self._group)
        except InvalidJob as error:
            job = _running.job_of(held, kind, self._group)
            log.warning("job %s is dead, %s: %s", row.job_id, _running.attempt_of(job), error)
            return _running.bad_arguments(job, error)
        except Exception as error:
            # The application's own code, in the type of an argument: as if the handler had raised it.
            job = _running.job_of(held, kind, self._group)
            log.info(
                "job %s, %s, failed: its arguments raised %s",
                row.job_id,
                _running.attempt_of(job),
                type(error).__name__,
            )
            return _running.failure(kind, job, error)

    def take(self, helds: Iterable[HeldJob]) -> None:
        """Run jobs of one claim as slots become free; of each ordering key one at a time, in order."""
        batches: dict[str, tuple[Kind, list[HeldJob], list[Any]]] = {}
        helds = list(helds)
        if self._went_on and helds:
            self._forget_what_went_on(helds[0].batch)
        firsts = [held for held in helds if held.row.ordering_key is None or self._is_first(held)]
        for held in firsts:
            prepared = self.prepare(held)
            if prepared is None:
                continue
            kind, item = prepared
            self.buffered += 1
            if kind.batch_size is None:
                self._waiting.append((kind, [held], [item]))
                continue
            unit = batches.get(kind.name)
            if unit is None or len(unit[1]) >= kind.batch_size:
                unit = batches[kind.name] = (kind, [], [])
                self._waiting.append(unit)
            unit[1].append(held)
            unit[2].append(item)
        self._start_waiting()

    def _forget_what_went_on(self, batch: Batch) -> None:
        """Of batches that are claimed from this one on, jobs of some keys are no longer too early."""
        self._went_on = {
            key: held
            for key, held in self._went_on.items()
            if key[0] is not batch.lease or held.batch.was_before(held.row.offset, batch.claim_no)
        }

    def _is_first(self, held: HeldJob) -> bool:
        """Whether a job of an ordering key may wait for a slot; else it was put behind another of its key, or handed back."""
        key = key_of(held)
        chain = self._chains.get(key)
        if chain is not None:
            held.chain = chain
            chain.behind.append(held)
            self.buffered += 1
            self.chained += 1
            return False
        if key in self._went_on:
            # The claim was made before the database knew that an earlier one goes on.
            self._hand_back_early(held)
            return False
        held.chain = self._chains[key] = Chain(key, held)
        return True

    def hand_back_waiting(self) -> int:
        """Give back what has not started; returns how many jobs."""
        count = 0
        while self._waiting:
            for held in self._waiting.popleft()[1]:
                self._end(held, Ended(0, "handed_back"))
                count += 1
        for chain in list(self._chains.values()):
            count += self._hand_back_chain(chain)
        self.buffered = 0
        return count

    def _hand_back_chain(self, chain: Chain) -> int:
        """Give back what waits behind the first of a chain, which is none any more; returns how many jobs."""
        if self._chains.get(chain.key) is chain:
            del self._chains[chain.key]
        count = len(chain.behind)
        self.buffered -= count
        self.chained -= count
        while chain.behind:
            self._hand_back_early(chain.behind.popleft())
        return count

    def _hand_back_early(self, held: HeldJob) -> None:
        """Give back a job of an ordering key that did not start.

        Until that is settled the database takes it for one that is worked here, and hands out those behind it.
        """
        self._end(held, Ended(0, "handed_back"))
        self._note_that_it_goes_on(held)

    def _note_that_it_goes_on(self, held: HeldJob) -> None:
        held.batch.goes_on(held.row.offset)
        self._went_on[key_of(held)] = held

    def _go_on_with_key(self, held: HeldJob, ended: Ended | None) -> None:
        """After a job of an ordering key: its next one may start, or all that follow go back to wait behind it."""
        chain = held.chain
        while True:
            held.follows = None
            if ended is not None and ended.outcome in _GOES_ON:
                self._note_that_it_goes_on(held)
                break
            if chain is None or chain.first is not held or not chain.behind:
                break
            follower = chain.first = chain.behind.popleft()
            self.buffered -= 1
            self.chained -= 1
            follower.follows = held
            found = self._decode(follower)
            if not isinstance(found, Ended):
                self._append(follower, *found)
                return
            self._end(follower, found)
            held, ended = follower, found
        if chain is not None and chain.first is held:
            self._hand_back_chain(chain)

    def _append(self, held: HeldJob, kind: Kind, item: Any) -> None:
        # Of several keys that go on at once, jobs of a batch handler make one call.
        if kind.batch_size is not None and self._waiting:
            last, helds, items = self._waiting[-1]
            if last is kind and helds[0].batch is held.batch and len(helds) < kind.batch_size:
                helds.append(held)
                items.append(item)
                self.buffered += 1
                return
        self._waiting.append((kind, [held], [item]))
        self.buffered += 1

    def hand_back_running(self) -> int:
        """Interrupt what still runs and give it back at no attempt; returns how many jobs."""
        count = 0
        for call, helds in list(self._calls.items()):
            if not call.settling:
                self._cut(call)
            for held in helds:
                if not held.ended:
                    count += 1
                self._finish(held, Ended(0, "handed_back"), solo=call.kind.transaction)
            self._interrupt(call, JobCancelled(helds[0].row.job_id, reason="the worker stops"))
        return count

    def cancel(self, job_ids: Iterable[int]) -> None:
        """Ask the handlers of some jobs to stop, because the jobs were cancelled."""
        wanted = set(job_ids)
        for call, helds in list(self._calls.items()):
            if (
                call.why is None
                and any(held.row.job_id in wanted for held in helds)
                and not call.kind.is_batch
            ):
                if self._is_elsewhere(call.kind):
                    assert self._processes is not None
                    self._processes.cancel({helds[0].row.job_id})
                    continue
                log.info("job %s is asked to stop: cancelled", helds[0].row.job_id)
                self._interrupt(call, JobCancelled(helds[0].row.job_id))

    def drop(self, lease: Lease, claim_nos: Iterable[int] | None = None) -> list[int]:
        """Forget jobs of a lost lease, or of some batches of it, and stop their handlers; nothing is settled."""
        gone = None if claim_nos is None else set(claim_nos)

        def lost(held: HeldJob) -> bool:
            return held.lease is lease and (gone is None or held.batch.claim_no in gone)

        dropped: list[int] = []
        kept: deque[tuple[Kind, list[HeldJob], list[Any]]] = deque()
        for unit in self._waiting:
            if lost(unit[1][0]):
                dropped.extend(held.row.job_id for held in unit[1])
                self.buffered -= len(unit[1])
            else:
                kept.append(unit)
        self._waiting = kept
        for chain in list(self._chains.values()):
            behind = [held for held in chain.behind if lost(held)]
            dropped.extend(held.row.job_id for held in behind)
            self.buffered -= len(behind)
            self.chained -= len(behind)
            chain.behind = deque(held for held in chain.behind if not lost(held))
            if lost(chain.first):
                self._hand_back_chain(chain)
        if gone is None:
            self._went_on = {key: held for key, held in self._went_on.items() if not lost(held)}
        for call, helds in list(self._calls.items()):
            if not lost(helds[0]):
                continue
            for held in helds:
                if not held.ended:
                    dropped.append(held.row.job_id)
                held.ended = True
            self._cut(call)
            self._interrupt(call, JobCancelled(helds[0].row.job_id, reason="the lease is lost"))
            self._abandon(call)
        return dropped

    async def close(self) -> None:
        """Let threads end and close the pools."""
        self._threads.close()
        for call in list(self._calls):
            call.task.cancel()
        for lent in self._async_lenders.values():
            await lent.close()
        for lent_to_threads in self._lenders.values():
            await asyncio.to_thread(lent_to_threads.close)

    # --- one call ---

    def _start_waiting(self) -> None:
        """See to it that each call that can start has a runner."""
        room = self._settings.concurrency - self.busy
        for _ in range(min(len(self._waiting), room) - self._starting):
            self._starting += 1
            task = asyncio.get_running_loop().create_task(
                self._run_calls(), context=self._context.copy()
            )
            self._runners.add(task)
            task.add_done_callback(self._on_runner_ended)

    def _on_runner_ended(self, task: asyncio.Task[None]) -> None:
        self._runners.discard(task)
        if self._waiting:
            self._start_waiting()

    async def _run_calls(self) -> None:
        """Run calls one after another while some wait and there is a slot.

        A task for several calls, because making one for each costs more than a short handler. No handler notices: a
        task that was asked to cancel, or whose context variables a handler has changed, runs no other call.
        """
        self._starting -= 1
        task = asyncio.current_task()
        assert task is not None
        clean = contextvars.copy_context()
        pause_at = time.monotonic() + self._loop_seconds()
        while self._waiting and self.busy < self._settings.concurrency:
            call, helds = self._begin(task)
            try:
                await self._run(call, helds)
            except GeneratorExit:
                # Raised by a handler in a thread, it closes whatever awaits it instead of passing through: the call has
                # ended as it should, and so does this task.
                return
            if task.cancelling() or not _is_same(contextvars.copy_context(), clean):
                self._start_waiting()
                return
            if self._waiting and time.monotonic() >= pause_at:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + self._loop_seconds()

    def _loop_seconds(self) -> float:
        return _LOOP_SECONDS_MAX if len(self._runners) > 1 else _LONE_LOOP_SECONDS_MAX

    def _begin(self, task: asyncio.Task[None]) -> tuple[Call, list[HeldJob]]:
        kind, helds, items = self._waiting.popleft()
        self.buffered -= len(helds)
        soft, hard = self._timeouts(kind)
        now = time.monotonic()
        call = Call(kind, helds, items, self._group, task)
        if kind.takes_context:
            make = Context if kind.connection is None else TransactionContext
            call.context = make(
                job=call.jobs[0],
                jobs=call.jobs,
                deadline=None if hard is None else now + hard,
                resources=self._resources,
                report=lambda done, note: self._on_progress(helds, done, note),
            )
        self._calls[call] = helds
        for held in helds:
            held.started_at = now
        if self._is_elsewhere(kind):
            return call, helds  # Its time begins when a process has it.
        if soft is not None:
            call.timers.append(task.get_loop().call_later(soft, self._on_soft, call, soft))
        if hard is not None:
            call.timers.append(task.get_loop().call_later(hard, self._on_hard, call, hard))
        return call, helds

    def _timeouts(self, kind: Kind) -> tuple[float | None, float | None]:
        soft = kind.soft_timeout_seconds
        hard = kind.hard_timeout_seconds
        if soft is None and hard is None:
            soft, hard = self._settings.soft_timeout_seconds, self._settings.hard_timeout_seconds
        return soft, hard

    async def _run(self, call: Call, helds: list[HeldJob]) -> None:
        kind = call.kind
        try:
            if self._is_elsewhere(kind):
                await self._run_in_process(call, helds)
            elif kind.transaction:
                await self._run_in_transaction(call, helds)
            else:
                result = await self._result_of(call)
                endeds = _running.endings(call, result)
                self._note_duration(helds, endeds)
                if isinstance(result, Endings) and result.tally and not helds[0].ended:
                    helds[0].batch.tallies.append(result.tally)
                self._finish_returned(helds, endeds)
        except BaseException as error:  # a handler may raise anything, and the worker goes on
            is_ours = kind.transaction or isinstance(error, NoThreadError)
            if is_ours and not call.started and call.why is None:
                # A pooled connection that the server had ended, none at all, or no thread: not the handler's fault.
                self._finish_all(call, helds, [Ended(0, "handed_back", after=1.0) for _ in helds])
                log.warning("job %s cannot begin: %s", helds[0].row.job_id, _short(error))
            else:
                if call.connection is not None and spoils_connection(error):
                    cut(call.connection)
                self._fail(call, helds, error)
        finally:
            for timer in call.timers:
                timer.cancel()
            if self._calls.pop(call, None) is not None:
                self._on_free()

    def _is_elsewhere(self, kind: Kind) -> bool:
        return kind.in_process and self._processes is not None

    async def _run_in_process(self, call: Call, helds: list[HeldJob]) -> None:
        assert self._processes is not None
        kind = call.kind
        call.started = True

        def on_start() -> None:
            for timer in call.timers:
                timer.cancel()
            _, hard = self._timeouts(kind)
            for held in helds:
                held.begin()
            if hard is not None:
                loop = call.task.get_loop()
                call.timers = [loop.call_later(hard, self._on_hard, call, hard)]

        answers = await self._processes.run_call(helds, kind, call.jobs, on_start=on_start)
        for held, job, answer in zip(helds, call.jobs, answers, strict=True):
            if not answer.died:
                self._take_answer(held, kind, answer)
                continue
            if not held.ended:
                # One of them killed the process. Alone it is known which.
                (alone,) = await self._processes.run_call([held], kind, [job], on_start=on_start)
                self._take_answer(held, kind, alone)
        endeds = [answer.ended for answer in answers if not answer.died]
        self._note_duration(helds, endeds)

    def _take_answer(self, held: HeldJob, kind: Kind, answer: Answer) -> None:
        if held.ended:
            return
        if answer.lease_lost:
            self._on_lease_lost(held.lease)
        elif answer.settled:
            held.ended = True
            self._sink.settled_elsewhere(held)
        else:
            self._finish(held, answer.ended, solo=answer.solo and kind.transaction)

    async def _result_of(self, call: Call) -> Any:
        positional, named = call.arguments()
        if call.kind.is_async:
            call.started = True
            result = call.kind.function(*positional, **named)
            return await result if inspect.isawaitable(result) else result
        function = call.kind.function
        call.thread_call = self._threads.submit(lambda: function(*positional, **named))
        call.started = True
        return await call.thread_call.future

    async def _run_in_transaction(self, call: Call, helds: list[HeldJob]) -> None:
        wanted = call.kind.connection
        for held in helds:
            # Its commit must not be there without the settlement of the one before it.
            if held.follows is not None:
                await held.follows.batch.settled(held.follows.row.offset)
        if any(held.ended for held in helds):
            raise LeaseLost(helds[0].lease.lease_id)
        if call.kind.is_async:
            if wanted not in self._async_lenders:
                self._async_lenders[wanted] = async_lender(
                    wanted, self._dsn, name=self._name, is_pooled=self.is_pooled
                )
            async with self._async_lenders[wanted].connection() as lent:
                self._lend(call, lent)
                async with lent.transaction():
                    result = await self._result_of(call)
                    endeds = _running.endings(call, result)
                    operation = self._own_settlement(call, helds, endeds)
                    self._check_statuses(helds, await lent.settle(operation))
        else:
            if wanted not in self._lenders:
                self._lenders[wanted] = lender(
                    wanted, self._dsn, name=self._name, is_pooled=self.is_pooled
                )
            call.thread_call = self._threads.submit(lambda: self._body_in_transaction(call, helds))
            endeds = await call.thread_call.future
        self._note_duration(helds, endeds)
        for held, ended in zip(helds, endeds, strict=True):
            if not held.ended:
                held.ended = True
                self._sink.settled_elsewhere(held)
                if held.row.ordering_key is not None:
                    self._go_on_with_key(held, ended)

    def _body_in_transaction(self, call: Call, helds: list[HeldJob]) -> list[Ended | None]:
        # Runs in a thread.
        with self._lenders[call.kind.connection].connection() as lent:
            self._lend(call, lent)
            with lent.transaction():
                positional, named = call.arguments()
                call.started = True
                result = call.kind.function(*positional, **named)
                endeds = _running.endings(call, result)
                operation = self._own_settlement(call, helds, endeds)
                self._check_statuses(helds, lent.settle(operation))
                return endeds

    @staticmethod
    def _lend(call: Call, lent: Lent | AsyncLent) -> None:
        call.connection = lent.raw
        if call.context is not None:
            call.context.conn = lent.given

    def _own_settlement(
        self, call: Call, helds: list[HeldJob], endeds: list[Ended | None]
    ) -> Operation[list[protocol.FlushStatus]]:
        # From here on the call is not interrupted: its transaction decides.
        if call.why is None:
            call.settling = True
        if any(held.ended for held in helds):
            raise LeaseLost(helds[0].lease.lease_id)
        flushes = []
        for held, ended in zip(helds, endeds, strict=True):
            offset = held.row.offset
            flush = Flush(
                claim_no=held.batch.claim_no,
                flush_no=-offset,
                done=[offset],
                millis=[held.millis(time.monotonic())],
            )
            if ended is not None:
                ended.offset = offset
                flush.done, flush.millis, flush.ended = [], None, [ended]
            flushes.append(flush)
        return protocol.settle(helds[0].lease.lease_id, flushes)

    @staticmethod
    def _check_statuses(helds: list[HeldJob], statuses: list[protocol.FlushStatus]) -> None:
        if any(status != "settled" for status in statuses):
            raise UnknownBatch(lease=helds[0].lease.lease_id, claim_no=helds[0].batch.claim_no)

    def _fail(self, call: Call, helds: list[HeldJob], error: BaseException) -> None:
        if isinstance(error, LeaseLost | UnknownBatch) and call.kind.transaction:
            if isinstance(error, LeaseLost) and not helds[0].ended:
                self._on_lease_lost(helds[0].lease)
            for held in helds:
                held.ended = True
                if held.chain is not None and held.chain.first is held:
                    self._hand_back_chain(held.chain)
            log.warning("job %s: %s; its transaction was rolled back", helds[0].row.job_id, error)
            return
        error = _running.raised_because(call, error)
        if isinstance(error, asyncio.CancelledError) and call.why is None:
            # Cancelled from inside: the handler cancelled itself, or a task group of its own did.
            error = RuntimeError("the handler ended with CancelledError")
        self._finish_all(
            call, helds, [_running.failure(call.kind, job, error) for job in call.jobs]
        )
        if not isinstance(error, HandlerError):
            log.info(
                "job %s, %s, failed: %s: %s",
                helds[0].row.job_id,
                _running.attempt_of(call.jobs[0]),
                type(error).__name__,
                _short(error),
            )

    def _finish_all(self, call: Call, helds: list[HeldJob], endeds: list[Ended]) -> None:
        for held, ended in zip(helds, endeds, strict=True):
            self._finish(held, ended, solo=call.kind.transaction)

    def _finish_returned(self, helds: list[HeldJob], endeds: list[Ended | None]) -> None:
        if len(helds) == 1:
            self._finish(helds[0], endeds[0])
            return
        done = []
        for held, ended in zip(helds, endeds, strict=True):
            if ended is not None:
                self._finish(held, ended)
            elif not held.ended:
                held.ended = True
                done.append(held)
        if done:
            self._sink.done(done)
        for held in done:
            if held.row.ordering_key is not None:
                self._go_on_with_key(held, None)

    def _finish(self, held: HeldJob, ended: Ended | None, *, solo: bool = False) -> None:
        if held.ended:
            return
        self._end(held, ended, solo=solo)
        if held.row.ordering_key is not None:
            self._go_on_with_key(held, ended)

    def _end(self, held: HeldJob, ended: Ended | None, *, solo: bool = False) -> None:
        held.ended = True
        if ended is None:
            self._sink.done([held])
        else:
            ended.offset = held.row.offset
            self._sink.end(held, ended, solo=solo)

    def _note_duration(self, helds: list[HeldJob], endeds: list[Ended | None]) -> None:
        # What a job keeps a slot for; of a batch its share. Only of what is done: a failure may be quick.
        if None in endeds or any(ended and ended.outcome == "done" for ended in endeds):
            queue = helds[0].lane.queue
            share = (time.monotonic() - helds[0].started_at) / len(helds)
            self.mean_seconds[queue] = mean_duration(
                self.mean_seconds.get(queue), share, jobs=len(helds)
            )

    # --- interruptions ---

    def _interrupt(self, call: Call, why: HandlerError) -> None:
        if call.settling:
            return
        call.why = call.why or why
        if call.context is not None:
            call.context.ask_to_stop(why)
        if call.kind.is_async or self._is_elsewhere(call.kind):
            call.task.cancel()  # A process is killed by it.
        elif call.thread_call is not None:
            self._threads.interrupt(call.thread_call, _ready_made(why))

    def _on_soft(self, call: Call, seconds: float) -> None:
        if call in self._calls and call.why is None:
            log.warning(
                "job %s, %s, is asked to stop after %g s",
                call.helds[0].row.job_id,
                _running.attempt_of(call.jobs[0]),
                seconds,
            )
            self._interrupt(call, SoftTimeout(seconds))

    def _on_hard(self, call: Call, seconds: float) -> None:
        helds = self._calls.get(call)
        if helds is None:
            return
        error = HardTimeout(seconds)
        log.warning(
            "job %s, %s, is stopped after %g s",
            call.helds[0].row.job_id,
            _running.attempt_of(call.jobs[0]),
            seconds,
        )
        self._cut(call)
        self._finish_all(
            call, helds, [_running.failure(call.kind, job, error) for job in call.jobs]
        )
        call.settling = False
        self._interrupt(call, error)
        self._abandon(call)

    def _cut(self, call: Call) -> None:
        # A transaction that must not commit any more: without its connection it cannot.
        if call.connection is not None:
            cut(call.connection)

    def _abandon(self, call: Call) -> None:
        # The slot is free; the handler may go on until it notices.
        if call.thread_call is not None and not call.thread_call.future.done():
            self._threads.abandon(call.thread_call)
            if self._threads.abandoned >= _ABANDONED_MANY:
                log.error(
                    "%s handlers ignored their timeouts and still run", self._threads.abandoned
                )
            call.thread_call.future.cancel()
        for timer in call.timers:
            timer.cancel()
        if self._calls.pop(call, None) is not None:
            self._start_waiting()
            self._on_free()


def _is_same(context: contextvars.Context, other: contextvars.Context) -> bool:
    try:
        return context == other
    except Exception:  # a comparison of two values of a handler's own variable
        return False


def _ready_made(error: HandlerError) -> type[HandlerError]:
    # What is raised in a thread from outside must be a class that needs no arguments.
    kind = type(error)

    def init(self: HandlerError) -> None:
        self.__dict__.update(error.__dict__)
        self.args = error.args

    return type(kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__})


def _short(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except BaseException:  # a __str__ may raise anything too
        return "(it cannot be shown)"

"""Runs claimed jobs, several at a time.

Coroutine functions run as tasks, plain functions in threads, others in child processes or in
database transactions.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import TYPE_CHECKING, Any

from forebay.model.text import logger
from forebay.ops.claimed import RawJob
from forebay.ops.flows import is_callback
from forebay.ops.protocol import Ended
from forebay.worker.ground.threads import Threads
from forebay.worker.run import endings
from forebay.worker.run._call_queue import CallQueue
from forebay.worker.run._call_runner import CallRunner
from forebay.worker.run._key_queues import KeyQueues
from forebay.worker.run._loop_share import LoopShare
from forebay.worker.run._places import Places
from forebay.worker.run._slots import Slots
from forebay.worker.run._step_store import StepStore
from forebay.worker.run._transactions import HandlerTransactions
from forebay.worker.run._verbs import Flows
from forebay.worker.run.reporter import OutcomeReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from forebay.arguments.kinds import Kind
    from forebay.worker.ground.common import Common
    from forebay.worker.ground.held import HeldJob, Lease
    from forebay.worker.run._call_queue import WaitingCall
    from forebay.worker.run.call import Call
    from forebay.worker.run.children import Children
    from forebay.worker.run.reporter import Outcomes

log = logger("forebay.worker")

#: How long calls that never wait may occupy the loop.
_LOOP_SECONDS_MAX = 0.002

#: The same for a single runner, as with jobs of one ordering key. It may be longer: with several
#: runners the times of all add up before the settler runs.
_LONE_LOOP_SECONDS_MAX = 0.01

#: The share of the event loop's time for decoding large arguments while calls wait: claims,
#: settlements and small jobs get the rest, however large the arguments are.
_DECODING_SHARE = 0.5

#: A job that is released because its limit key fails is ready again after this time, when the
#: database knows about the failures.
_HELD_BACK_SECONDS = 1.0

#: No more large jobs are claimed while this number of calls waits for decoding.
_DECODED_NEXT = 2


class Executor:
    """Runs jobs on ``concurrency`` slots.

    Owns the jobs that wait for a slot and the running ones. Each job that it takes ends once: its
    outcome is reported, or the job is dropped with its lease without a report. One job of an
    ordering key runs at a time, in order. After a crash its jobs are claimed and not settled: they
    come back when the lease is revoked.

    Args:
        common: the handlers and their middlewares, concurrency and default timeouts, and the
            database for handlers in transactions.
        outcomes: receives the outcome of each job, and progress.
        resources: shared objects for the contexts of handlers.
        on_free: called when a slot or a waiting place became free.
        processes: child processes for handlers that need one; None in a child process.
    """

    def __init__(
        self,
        common: Common,
        outcomes: Outcomes,
        resources: Mapping[str, Any],
        on_free: Callable[[], None],
        processes: Children | None = None,
    ) -> None:
        self._kinds = common.app.kinds
        self._group = common.group
        self._on_free = on_free
        self._reporter = OutcomeReporter(outcomes, self._start_next_of_key)
        self._waiting = CallQueue()
        self._decoding = LoopShare(_DECODING_SHARE, self._start_waiting)
        #: Jobs that wait for an earlier job of their ordering key in the same lease.
        self._keys = KeyQueues(self._release)
        self._threads = Threads(common.settings.slots)
        self.transactions = HandlerTransactions(
            common.dsn, common.application_name, self._threads, self._waiting.is_next
        )
        self._steps = StepStore(common.dsn, common.application_name)
        places = Places(
            self._threads,
            self.transactions,
            processes,
            common.settings.processes is not None,
            Flows(self._steps, self.transactions, self._kinds, common.stats.count_step),
        )
        self.slots = Slots(common, self._reporter, places, resources, self._on_slot_free)
        runner = CallRunner(self.slots, self._reporter, self._keys, places, on_free)
        self._run = runner.run
        #: Running mean of handler durations, by queue, in seconds.
        self.mean_seconds = runner.mean_seconds
        self._runners: set[asyncio.Task[Any]] = set()
        self._starting = 0
        #: The context variables that handlers start with.
        self._context = contextvars.copy_context()

    @property
    def buffered(self) -> int:
        """Jobs that wait for a slot or for an earlier job of their ordering key."""
        return self._waiting.jobs + self._keys.waiting

    @property
    def buffered_size(self) -> int:
        """About how many characters the buffered jobs had in the answers to their claims."""
        return self._waiting.size + self._keys.waiting_size

    @property
    def starting(self) -> int:
        """The number of calls that wait for their arguments to be decoded.

        They may start although no slot is taken yet.
        """
        return self._waiting.texts

    @property
    def is_decoding_behind(self) -> bool:
        """Whether several calls wait for their arguments, because decoding has used its share of
        the event loop.
        """
        return self._waiting.texts >= _DECODED_NEXT and self._must_pass()

    @property
    def waiting_for_key(self) -> int:
        """The number of buffered jobs that wait for an earlier job of their ordering key."""
        return self._keys.waiting

    @property
    def busy(self) -> int:
        """The number of slots with a call."""
        return self.slots.busy

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits for a slot."""
        return not self.slots.busy and not self._waiting

    def running_job_ids(self) -> list[int]:
        """Ids of the jobs whose handlers run."""
        return self.slots.running_job_ids()

    def coroutine_calls(self) -> list[Call]:
        """The running calls that can block the loop; for any thread."""
        return [call for call in list(self.slots.calls) if call.kind.is_async and not call.in_child]

    def reserve(self) -> None:
        """Take a slot for a call that runs in a child process."""
        self.slots.reserved += 1

    def release(self) -> None:
        """Give back a reserved slot."""
        self.slots.reserved -= 1
        self._on_slot_free()

    def _on_slot_free(self) -> None:
        self._start_waiting()
        self._on_free()

    def prepare(self, held: HeldJob) -> tuple[Kind, Any] | None:
        """Return the handler of a job and its decoded arguments.

        If that fails, settle the job and return None.
        """
        found = endings.decode(self._kinds, held, self._group)
        if isinstance(found, Ended):
            self._reporter.finish(held, found)
            return None
        return found

    def _found(self, held: HeldJob) -> tuple[Kind, Any] | Ended:
        """Return the handler of a job and its decoded arguments, None for those that are decoded
        later or in a child process.
        """
        name = held.row.kind
        if name in self._kinds:
            kind = self._kinds.get(name)
            if self.slots.runs_in_child(kind):
                return kind, None
        return endings.decode(self._kinds, held, self._group, later=True)

    def _one_raw_kind(self, helds: list[HeldJob]) -> Kind | None:
        """Return the handler of all these jobs if it takes their arguments as text and runs here.

        The result is None otherwise.
        """
        if not helds:
            return None
        name = helds[0].row.kind
        for held in helds:
            row = held.row
            if type(row) is not RawJob or row.kind != name:
                return None
            # Most jobs have no headers, and this runs for each.
            if row.headers is not None and is_callback(row.headers):
                return None
        kind = self._kinds.get(name)
        return None if self.slots.runs_in_child(kind) else kind

    def take(self, helds: Sequence[HeldJob]) -> None:
        """Run jobs of one claim as slots become free.

        The jobs of an ordering key run one at a time, in order.
        """
        batches: dict[str, WaitingCall] = {}
        ready = self._keys.admit(helds)
        if (raw := self._one_raw_kind(ready)) is not None:
            assert raw.batch_size is not None
            for first in range(0, len(ready), raw.batch_size):
                some = ready[first : first + raw.batch_size]
                self._waiting.append_many(raw, some, [held.row.args for held in some])
            self._start_waiting()
            return
        for held in ready:
            found = self._found(held)
            if isinstance(found, Ended):
                self._reporter.finish(held, found)
                continue
            kind, item = found
            if kind.batch_size is None:
                self._waiting.append(kind, held, item)
                continue
            call = batches.get(kind.name)
            if call is None or len(call[1]) >= kind.batch_size:
                batches[kind.name] = self._waiting.append(kind, held, item)
            else:
                self._waiting.extend(call, held, item)
        self._start_waiting()

    def release_waiting(self) -> int:
        """Release the jobs that have not started; return how many."""
        count = 0
        while self._waiting:
            for held in self._waiting.pop()[1]:
                self._release(held)
                count += 1
        return count + self._keys.release_all()

    def _release(self, held: HeldJob) -> None:
        self._reporter.end(held, Ended(0, "released"))

    def _start_next_of_key(self, held: HeldJob, ended: Ended | None) -> None:
        """Start the next job of an ordering key, or release the later ones if the ended job will
        run again.
        """
        while (follower := self._keys.next_after(held, ended)) is not None:
            found = self._found(follower)
            if not isinstance(found, Ended):
                self._append(follower, *found)
                return
            self._reporter.end(follower, found)
            held, ended = follower, found

    def _append(self, held: HeldJob, kind: Kind, item: Any) -> None:
        # If the next jobs of several keys start at the same time, those of one batch handler form
        # one call.
        if kind.batch_size is not None and (last := self._waiting.last) is not None:
            last_kind, helds, _ = last
            if last_kind is kind and helds[0].batch is held.batch and len(helds) < kind.batch_size:
                self._waiting.extend(last, held, item)
                return
        self._waiting.append(kind, held, item)

    def release_running(self) -> int:
        """Interrupt the running jobs and release them without using an attempt; return how many."""
        return self.slots.release_all()

    def cancel(self, job_ids: Iterable[int]) -> None:
        """Ask the handlers of cancelled jobs to stop."""
        self.slots.cancel(job_ids)

    def drop(self, lease: Lease, claim_nos: Iterable[int] | None = None) -> list[int]:
        """Drop the jobs of a lost lease, or of some of its batches, and stop their handlers.

        Settle nothing. Return their ids.
        """
        gone = None if claim_nos is None else set(claim_nos)

        def lost(held: HeldJob) -> bool:
            return held.lease is lease and (gone is None or held.batch.claim_no in gone)

        dropped = self._waiting.drop(lost) + self._keys.drop(lost, whole_lease=gone is None)
        return dropped + self.slots.drop(lost)

    async def close(self) -> None:
        """End idle threads and running calls, and close the connections."""
        self._decoding.close()
        self._threads.close()
        for call in list(self.slots.calls):
            call.task.cancel()
        await self.transactions.close()
        await self._steps.close()

    # --- one call ---

    def _start_waiting(self) -> None:
        """Start a runner for each waiting call that has a free slot."""
        free_slots = self.slots.concurrency - self.slots.busy
        ready = self._waiting.passing if self._must_pass() else len(self._waiting)
        for _ in range(min(ready, free_slots) - self._starting):
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
        """Run calls one after another while calls wait and a slot is free.

        One task runs several calls, because a task for each call costs more than a short handler.
        Handlers cannot see this: a task that was cancelled, or whose context variables a handler
        changed, runs no other call.
        """
        self._starting -= 1
        task = asyncio.current_task()
        assert task is not None
        clean = contextvars.copy_context()
        pause_at = time.monotonic() + self._loop_seconds()
        slots = self.slots
        waiting = self._waiting
        while waiting.jobs and slots.busy < self.slots.concurrency:
            if not waiting.texts:
                kind, helds, items = waiting.pop()
            elif self._must_pass():
                if not waiting.passing:
                    return
                kind, helds, items = waiting.pop_passing()
            elif waiting.starts_with_text:
                kind, helds, items = self._decoded(waiting.pop())
                if not helds:
                    continue
            else:
                kind, helds, items = waiting.pop()
            if kind.breaker is not None:
                helds, items = self._not_held_back(helds, items)
                if not helds:
                    continue
            call = slots.begin(kind, helds, items, task)
            try:
                await self._run(call, helds)
            except GeneratorExit:
                # A handler in a thread raised GeneratorExit. Python closes the coroutines that
                # await it instead of passing it on: the call has ended normally, and this task ends
                # too.
                return
            if task.cancelling() or not _is_same(contextvars.copy_context(), clean):
                self._start_waiting()
                return
            if waiting.jobs and time.monotonic() >= pause_at:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + self._loop_seconds()

    def _not_held_back(
        self, helds: list[HeldJob], items: list[Any]
    ) -> tuple[list[HeldJob], list[Any]]:
        """Return the jobs of a call that may run, and their arguments; release the others, whose
        limit key fails.
        """
        held_back = {id(held) for held in helds if self._reporter.holds_back(held)}
        if not held_back:
            return helds, items
        for held in helds:
            if id(held) in held_back:
                self._reporter.finish(held, Ended(0, "released", after=_HELD_BACK_SECONDS))
        kept = [
            (held, item)
            for held, item in zip(helds, items, strict=True)
            if id(held) not in held_back
        ]
        return [held for held, _ in kept], [item for _, item in kept]

    def _decoded(self, waiting: WaitingCall) -> WaitingCall:
        """Decode the arguments of a call that is about to start.

        Jobs whose arguments do not fit end here.
        """
        kind, helds, _ = waiting
        if self.slots.runs_in_child(kind):
            return waiting  # The child process decodes them.
        with self._decoding.used():
            prepared = [
                (held, found) for held in helds if (found := self.prepare(held)) is not None
            ]
        return kind, [held for held, _ in prepared], [item for _, (_, item) in prepared]

    def _must_pass(self) -> bool:
        """Return whether the next call waits for its arguments, because decoding has used its share
        of the event loop.
        """
        return self._waiting.starts_with_text and self._decoding.must_pause()

    def _loop_seconds(self) -> float:
        return _LOOP_SECONDS_MAX if len(self._runners) > 1 else _LONE_LOOP_SECONDS_MAX


def _is_same(context: contextvars.Context, other: contextvars.Context) -> bool:
    try:
        return context == other
    except Exception:  # comparing two values of a handler's context variable
        return False

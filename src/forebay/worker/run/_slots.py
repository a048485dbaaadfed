"""Slots and the calls in them, which can be interrupted.

A call can be interrupted in three ways. The soft timeout, or a cancelled job, asks the handler to
stop. The hard timeout ends the call and frees its slot even if the handler still runs. If the lease
is lost, the call is dropped and nothing is settled.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from typing import TYPE_CHECKING, Any

from forebay.errors import HardTimeout, JobCancelled, SoftTimeout
from forebay.model.context import Context, TransactionContext
from forebay.model.middleware import around_attempts
from forebay.model.text import logger
from forebay.ops.protocol import Ended
from forebay.worker.ground.job_log import log_started
from forebay.worker.run._stacks import stack_of
from forebay.worker.run.call import Call, attempt_of
from forebay.worker.run.endings import failures

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from forebay.arguments.kinds import Kind
    from forebay.worker.ground.common import Common
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.run._places import Places
    from forebay.worker.run.reporter import OutcomeReporter

log = logger("forebay.worker")

#: Number of abandoned threads from which the worker logs an error for each further one.
_ABANDONED_MANY = 10


class Slots:
    """The calls that run, each in a slot.

    Owns the calls and their timers. A slot is freed once: when its call ends, or when the call is
    abandoned. An interrupted call already has its outcome, or gets the reason of the interruption
    as its outcome.

    After a crash the jobs of these calls are claimed and not settled; child processes end
    themselves.

    Args:
        common: the number of slots, default timeouts, the group and the middlewares.
        reporter: receives the outcomes of interrupted calls, and progress.
        places: threads, child processes, and steps.
        resources: shared objects for the contexts of handlers.
        on_free: called when the slot of a call that still runs was freed, and when there are more
            slots.
    """

    def __init__(
        self,
        common: Common,
        reporter: OutcomeReporter,
        places: Places,
        resources: Mapping[str, Any],
        on_free: Callable[[], None],
    ) -> None:
        middleware = common.app.middleware
        self._settings = common.settings
        self._group = common.group
        self._reporter = reporter
        self._threads = places.threads
        self._processes = places.processes
        self._resources = resources
        self._around_plain = around_attempts(middleware, is_async=False)
        self._around_coroutines = around_attempts(middleware, is_async=True)
        self._on_free = on_free
        self._flows = places.flows
        #: Whether the calls of a kind run in child processes of this one.
        self.runs_in_child = places.runs_in_child
        #: The running calls with their jobs. Removing a call frees its slot.
        self.calls: dict[Call, list[HeldJob]] = {}
        #: The number of slots.
        self.concurrency = common.settings.slots
        #: Slots of calls that run in child processes outside this class.
        self.reserved = 0

    @property
    def busy(self) -> int:
        """The number of slots that are not free."""
        return len(self.calls) + self.reserved

    def adjust(self, concurrency: int) -> None:
        """Change the number of slots if it differs, and log it."""
        if concurrency != self.concurrency:
            log.info("concurrency: %s instead of %s", concurrency, self.concurrency)
            self.resize(concurrency)

    def resize(self, concurrency: int) -> None:
        """Change the number of slots; running calls keep theirs until they end."""
        self.concurrency = concurrency
        self._threads.resize(concurrency)
        self._on_free()

    def begin(
        self, kind: Kind, helds: list[HeldJob], items: list[Any], task: asyncio.Task[None]
    ) -> Call:
        """Take a slot for a call, which runs in this task from now on."""
        soft, hard = self._timeouts(kind)
        now = time.monotonic()
        call = Call(kind, helds, items, self._group, task)
        call.around = self._around_coroutines if kind.is_async else self._around_plain
        if kind.takes_context:
            make = Context if kind.connection is None else TransactionContext
            call.context = make(
                job=call.jobs[0],
                jobs=call.jobs,
                deadline=None if hard is None else now + hard,
                resources=self._resources,
                report=lambda done, note: self._reporter.progress(helds, done, note),
                verbs=functools.partial(self._flows.of, weakref.ref(call)),
            )
        self.calls[call] = helds
        for held in helds:
            held.started_at = now
        if log.isEnabledFor(logging.DEBUG):
            for held in helds:
                log_started(held, kind)
        if self.runs_in_child(kind):
            call.in_child = True
            return call  # Its timeouts start when a child process has the call.
        if soft is not None:
            call.timers.append(task.get_loop().call_later(soft, self._on_soft, call, soft))
        if hard is not None:
            call.timers.append(task.get_loop().call_later(hard, self._on_hard, call, hard))
        return call

    def begin_in_child(self, call: Call) -> None:
        """Start the timeouts of a call: a child process has its jobs now."""
        call.cancel_timers()
        _, hard = self._timeouts(call.kind)
        for held in call.helds:
            held.begin()
        if hard is not None:
            loop = call.task.get_loop()
            call.timers = [loop.call_later(hard, self._on_hard, call, hard)]

    def running_job_ids(self) -> list[int]:
        """Ids of the jobs whose handlers run."""
        return [held.row.job_id for helds in self.calls.values() for held in helds]

    def cancel(self, job_ids: Iterable[int]) -> None:
        """Ask the handlers of cancelled jobs to stop."""
        wanted = set(job_ids)
        for call, helds in list(self.calls.items()):
            if (
                call.why is None
                and any(held.row.job_id in wanted for held in helds)
                and not call.kind.is_batch
            ):
                if call.in_child:
                    assert self._processes is not None
                    self._processes.cancel({helds[0].row.job_id})
                    continue
                log.info("job %s was cancelled; stopping its handler", helds[0].row.job_id)
                call.interrupt(JobCancelled(helds[0].row.job_id), self._threads)

    def release_all(self) -> int:
        """Interrupt every call and release its jobs without using an attempt.

        Return how many jobs were released.
        """
        count = 0
        for call, helds in list(self.calls.items()):
            if not call.settling:
                call.cut()
            for held in helds:
                if not held.ended:
                    count += 1
                self._reporter.finish(held, Ended(0, "released"), solo=call.kind.transaction)
            why = JobCancelled(helds[0].row.job_id, reason="the worker stops")
            call.interrupt(why, self._threads)
        return count

    def drop(self, is_lost: Callable[[HeldJob], bool]) -> list[int]:
        """Interrupt and abandon calls whose jobs no longer belong to this worker, without settling.

        Return the job ids.
        """
        dropped = []
        for call, helds in list(self.calls.items()):
            if not is_lost(helds[0]):
                continue
            for held in helds:
                if not held.ended:
                    dropped.append(held.row.job_id)
                held.ended = True
            call.cut()
            why = JobCancelled(helds[0].row.job_id, reason="the lease is lost")
            call.interrupt(why, self._threads)
            self._abandon(call)
        return dropped

    def _timeouts(self, kind: Kind) -> tuple[float | None, float | None]:
        soft = kind.soft_timeout_seconds
        hard = kind.hard_timeout_seconds
        if soft is None and hard is None:
            soft, hard = self._settings.soft_timeout_seconds, self._settings.hard_timeout_seconds
        return soft, hard

    def _on_soft(self, call: Call, seconds: float) -> None:
        if call in self.calls and call.why is None:
            log.info(
                "job %s, %s, reached its soft timeout of %g s; stopping its handler",
                call.helds[0].row.job_id,
                attempt_of(call.jobs[0]),
                seconds,
            )
            call.interrupt(SoftTimeout(seconds), self._threads)

    def _on_hard(self, call: Call, seconds: float) -> None:
        if call not in self.calls:
            return
        error = HardTimeout(seconds)
        call.cut()
        # Another exception than the one for the handler, so that nothing keeps the frames.
        stuck = HardTimeout(seconds).with_traceback(stack_of(call))
        self._reporter.finish_all(call, failures(call, stuck))
        call.settling = False
        call.interrupt(error, self._threads)
        self._abandon(call)

    def _abandon(self, call: Call) -> None:
        # The slot is free; the handler may run until it notices the interruption.
        if call.thread_call is not None and not call.thread_call.future.done():
            self._threads.abandon(call.thread_call)
            if self._threads.abandoned >= _ABANDONED_MANY:
                log.error(
                    "%s handlers still run after their hard timeouts", self._threads.abandoned
                )
            call.thread_call.future.cancel()
        call.cancel_timers()
        if self.calls.pop(call, None) is not None:
            self._on_free()

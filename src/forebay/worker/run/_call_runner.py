"""Runs one call of a handler, wherever its kind runs, and reports how its jobs ended."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from forebay.db.pools import spoils_connection
from forebay.errors import DatabaseUnavailable, LeaseLost, ParkingSwallowed, UnknownBatch
from forebay.model.outcome import Endings, Outcome
from forebay.model.text import logger
from forebay.ops.flows import is_callback
from forebay.ops.protocol import Ended
from forebay.policy.claims import mean_duration
from forebay.worker.ground.held import Raised
from forebay.worker.ground.threads import NoThreadError
from forebay.worker.run import endings
from forebay.worker.run._callbacks import callback_item, is_incomplete
from forebay.worker.run._flow import Unwound, not_awaited
from forebay.worker.run._transactions import previous_settled
from forebay.worker.run.call import run_in_thread, run_on_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.arguments.kinds import Kind
    from forebay.errors import StepRefused
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.run._key_queues import KeyQueues
    from forebay.worker.run._places import Places
    from forebay.worker.run._slots import Slots
    from forebay.worker.run.call import Call
    from forebay.worker.run.messages import ChildReport
    from forebay.worker.run.reporter import OutcomeReporter

log = logger("forebay.worker")

#: More errors than these are not looked at, to find one in their chain.
_ERRORS_MOST: Final = 1000


class CallRunner:
    """Runs calls that have a slot, and frees the slot.

    Args:
        slots: the running calls.
        reporter: receives the outcomes.
        keys: jobs that wait for an earlier job of their ordering key.
        places: threads, transactions and child processes.
        on_free: called when a slot became free.
    """

    def __init__(
        self,
        slots: Slots,
        reporter: OutcomeReporter,
        keys: KeyQueues,
        places: Places,
        on_free: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._reporter = reporter
        self._keys = keys
        self._places = places
        self._on_free = on_free
        #: Running mean of handler durations, by queue, in seconds.
        self.mean_seconds: dict[str, float] = {}

    async def run(self, call: Call, helds: list[HeldJob]) -> None:
        """Run a call until its jobs have ended.

        Never raises, except when the worker cancels its task.
        """
        kind = call.kind
        try:
            if not call.in_child and is_incomplete(call.items):
                await self._give_results(call, helds)
            if call.in_child:
                await self._run_in_process(call, helds)
            elif helds:
                await self._run_here(call, helds)
        except Unwound as unwound:
            self._end_flow(call, helds, unwound)
        except BaseException as error:  # a handler may raise anything; the worker continues
            if (wrapped := _unwound_in(call, error)) is not None:
                self._end_flow(call, helds, wrapped)
                return
            may_be_released = kind.transaction or isinstance(
                error, NoThreadError | DatabaseUnavailable
            )
            if may_be_released and not call.started and call.why is None:
                # No connection, a pooled connection that the server had ended, or no thread: the
                # handler did not fail.
                released = [Ended(0, "released", after=1.0) for _ in helds]
                self._reporter.finish_all(call, released)
                log.warning(
                    "job %s released, it cannot start: %s", helds[0].row.job_id, _short(error)
                )
            else:
                if call.connection is not None and spoils_connection(error):
                    call.cut()
                self._fail(call, helds, error)
        finally:
            call.has_ended = True
            if call.flow is not None:
                call.forget_flow()
            for timer in call.timers:
                timer.cancel()
            if self._slots.calls.pop(call, None) is not None:
                self._on_free()

    async def _run_here(self, call: Call, helds: list[HeldJob]) -> None:
        if call.kind.transaction:
            endeds = await self._places.transactions.run(call, helds)
            self._record_duration(helds, endeds)
            self._reporter.finish_committed(helds, endeds)
            return
        try:
            if call.kind.is_async:
                result = await run_on_loop(call)
            else:
                result = await run_in_thread(call, self._places.threads)
        finally:
            if call.flow is not None:
                await call.flow.close()
        if call.flow is not None:
            _finish_flow(call, result)
        endeds = endings.endings(call, result)
        self._record_duration(helds, endeds)
        if isinstance(result, Endings) and result.counters and not helds[0].ended:
            helds[0].batch.counters.append(result.counters)
        self._reporter.finish_returned(helds, endeds)

    async def _give_results(self, call: Call, helds: list[HeldJob]) -> None:
        """Give callbacks what they waited for. Those of a batch that cannot run end here.

        Raises:
            Exception: the only job of the call cannot run.
        """
        for held in [held for held in helds if is_callback(held.row.headers)]:
            place = helds.index(held)
            try:
                call.items[place] = await callback_item(
                    call.kind, held, call.group, self._places.flows.store
                )
            except (Unwound, Exception) as error:
                if not call.kind.is_batch or held.ended:
                    raise
                ended = error.ended if isinstance(error, Unwound) else None
                if ended is None:
                    held.raised = Raised(error)
                    ended = endings.failure(call.kind, call.jobs[place], error)
                self._reporter.finish(held, ended)
                del helds[place], call.items[place], call.jobs[place]
        if call.why is not None:
            raise call.why

    def _end_flow(self, call: Call, helds: list[HeldJob], unwound: Unwound) -> None:
        """End an attempt that a step has ended."""
        if call.why is not None:
            self._fail(call, helds, call.why)
        elif unwound.ended is None:
            self._fail(call, helds, LeaseLost(helds[0].lease.lease_id))
        elif (wrong := _wrong_park(call, unwound.ended)) is not None:
            call.flow.unwound = None
            self._fail(call, helds, wrong)
        else:
            if unwound.ended.outcome == "retried":
                helds[0].raised = Raised(unwound.__cause__ or unwound)
            self._reporter.finish_all(call, [unwound.ended])

    async def _run_in_process(self, call: Call, helds: list[HeldJob]) -> None:
        processes = self._places.processes
        assert processes is not None
        kind = call.kind
        call.started = True
        if kind.transaction:
            await previous_settled(helds)

        def on_start() -> None:
            self._slots.begin_in_child(call)

        answers = await processes.run_call(helds, kind, call.jobs, on_start=on_start)
        for held, job, answer in zip(helds, call.jobs, answers, strict=True):
            if not answer.died:
                self._take_report(held, kind, answer)
                continue
            if not held.ended:
                # One of these jobs killed the process. Running each alone shows which.
                (alone,) = await processes.run_call([held], kind, [job], on_start=on_start)
                self._take_report(held, kind, alone)
        endeds = [answer.ended for answer in answers if not answer.died]
        self._record_duration(helds, endeds)

    def _take_report(self, held: HeldJob, kind: Kind, answer: ChildReport) -> None:
        if held.ended:
            return
        held.child = answer.child
        if answer.lease_lost:
            self._reporter.lease_lost(held.lease)
        elif answer.settled:
            self._reporter.finish_committed([held], [answer.ended])
        else:
            self._reporter.finish(held, answer.ended, solo=answer.solo and kind.transaction)

    def _fail(self, call: Call, helds: list[HeldJob], error: BaseException) -> None:
        if call.flow is not None and call.flow.unwound is not None:
            if call.flow.unwound.ended is None:
                error = LeaseLost(helds[0].lease.lease_id)
            elif call.why is None:
                unwound: Unwound = call.flow.unwound
                if not _follows(error, unwound):
                    error = ParkingSwallowed(unwound.step)
                elif unwound.ended is not None and unwound.ended.outcome != "snoozed":
                    # The step has failed already, and its own policy counts.
                    self._end_flow(call, helds, unwound)
                    return
                elif isinstance(error, BaseExceptionGroup):
                    error = error.split(Unwound)[1] or error
        if isinstance(error, LeaseLost | UnknownBatch) and (
            call.kind.transaction or call.flow is not None
        ):
            if isinstance(error, LeaseLost) and not helds[0].ended:
                self._reporter.lease_lost(helds[0].lease)
            for held in helds:
                held.ended = True
                self._keys.release_behind(held)
            log.warning("job %s: %s; its transaction was rolled back", helds[0].row.job_id, error)
            return
        error = endings.raised_because(call, error)
        if isinstance(error, asyncio.CancelledError) and call.why is None:
            # The handler cancelled itself, or one of its task groups did.
            error = RuntimeError("the handler ended with CancelledError")
        self._reporter.finish_all(call, endings.failures(call, error))

    def _record_duration(self, helds: list[HeldJob], endeds: list[Ended | None]) -> None:
        # How long a job occupies a slot; for a batch, its share. Only completed jobs count: a
        # failure may be quick.
        if None in endeds or any(ended and ended.outcome == "done" for ended in endeds):
            share = (time.monotonic() - helds[0].started_at) / len(helds)
            queue = helds[0].lane.queue
            self.mean_seconds[queue] = mean_duration(
                self.mean_seconds.get(queue), share, jobs=len(helds)
            )


def _unwound_in(call: Call, error: BaseException) -> Unwound | None:
    """Return what a step has ended the attempt with, if a task group has wrapped only that."""
    if call.flow is None or call.flow.unwound is None or not isinstance(error, BaseExceptionGroup):
        return None
    unwound: Unwound = call.flow.unwound
    others = error.split(Unwound)[1]
    return unwound if others is None else None


def _follows(error: BaseException, unwound: Unwound) -> bool:
    """Whether the handler raised an error while a step ended the attempt, as a clean-up may.

    A handler that catches what the step raises, and raises an error from another or from None, has
    swallowed it.
    """
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _ERRORS_MOST:
        found = waiting.pop()
        if found is unwound:
            return True
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, BaseExceptionGroup):
            waiting.extend(found.exceptions)
        if found.__context__ is not None and not found.__suppress_context__:
            waiting.append(found.__context__)
    return False


def _wrong_park(call: Call, ended: Ended) -> StepRefused | None:
    """Return the error of a handler that parks and has called a verb without await."""
    if call.flow is None or ended.outcome != "snoozed":
        return None
    found: StepRefused | None = not_awaited(call.flow)
    return found


def _finish_flow(call: Call, result: Any) -> None:
    """Look at what a flow did before its handler returned.

    Only a handler that is done has asked for all its steps.

    Raises:
        ParkingSwallowed: the handler caught what ends an attempt within a step.
        LeaseLost: the same, and the job belongs to another worker.
        StepRefused: it has called a verb without await.
    """
    assert call.flow is not None
    unwound = call.flow.unwound
    if unwound is not None and unwound.ended is None:
        raise LeaseLost(call.helds[0].lease.lease_id)
    if unwound is not None:
        raise ParkingSwallowed(unwound.step)
    if (wrong := not_awaited(call.flow)) is not None:
        raise wrong
    if not isinstance(result, Outcome) and (forgotten := call.flow.forgotten()):
        log.warning(
            "job %s has ended; its code did not ask for these recorded steps: %s",
            call.helds[0].row.job_id,
            ", ".join(forgotten[:10]),
        )
        call.flow.store.note_unasked(call.kind.name, forgotten)


def _short(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except BaseException:  # a __str__ may raise anything too
        return "(it cannot be shown)"

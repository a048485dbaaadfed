"""Calls that are sent to a child process several at a time, and run there in turn.

A message each way costs more than a short handler. So where handlers are short and many calls wait, a child gets a share of them in one
message, for about 5 ms of work. It answers when it has run them all.

Invariant "in turn": a call is started by the child that took its permit, or is taken back, never both; see ``Pipes``. The child records the
end of each call before it takes the next permit. So of the calls of a child that dies one was running: it uses an attempt. The others are
done, or run in another child at no attempt.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from forebay.model.text import logger
from forebay.ops.protocol import Ended
from forebay.worker.ground.held import job_of
from forebay.worker.ground.job_log import log_started
from forebay.worker.run import endings
from forebay.worker.run.children import CALLS_IN_TURN_MAX, ChildFailed
from forebay.worker.run.messages import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.arguments.kinds import Kind
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.run._call_queue import CallQueue
    from forebay.worker.run._slots import Slots
    from forebay.worker.run.call import Call
    from forebay.worker.run.children import Child, Children
    from forebay.worker.run.messages import ChildReport
    from forebay.worker.run.reporter import OutcomeReporter

log = logger("forebay.worker")

#: Handler time of the calls of one message.
_SECONDS_SENT: Final = 0.005

#: How often it is checked whether calls wait behind a slow one, and how long a call may take before that.
_CHECK_SECONDS: Final = 0.01
_SLOW_SECONDS: Final = 0.05


class Turns:
    """The messages with several calls that children have.

    Owns the jobs of these calls. Each leaves once: its outcome is reported, or it waits again as the first of its queue, or it becomes an
    ordinary call that runs in the same child. A message occupies one slot.

    Args:
        children: the processes.
        slots: the slots of the worker.
        waiting: the calls that wait.
        reporter: receives the outcomes.
        group: name of the group, as the jobs show it.
        on_done: called with jobs that are done, and their mean duration in seconds.
        on_put_back: called when calls wait again.
        on_free: called when a slot became free.
        on_progress: called with the progress that a handler reports.
    """

    def __init__(
        self,
        children: Children,
        slots: Slots,
        waiting: CallQueue,
        reporter: OutcomeReporter,
        *,
        group: str,
        on_done: Callable[[list[HeldJob], float], None],
        on_put_back: Callable[[], None],
        on_free: Callable[[], None],
        on_progress: Callable[[Sequence[HeldJob], float, str], None],
    ) -> None:
        self.children = children
        self.slots = slots
        self.waiting = waiting
        self.reporter = reporter
        self.group = group
        self.on_done = on_done
        self.on_put_back = on_put_back
        self.on_free = on_free
        self.on_progress = on_progress
        self._messages: set[_Message] = set()

    def take(self, kind: Kind, held: HeldJob, mean_seconds: float | None) -> list[HeldJob] | None:
        """Return the jobs of one message, the first of which has left the queue; None if it is to run alone.

        Each slot has a share of what waits, so that none is without a call because of it.
        """
        if not mean_seconds or held.row.is_text or not _may_run_in_turn(kind):
            return None
        share = -(-(self.waiting.jobs + 1) // self.slots.concurrency)
        count = min(CALLS_IN_TURN_MAX, int(_SECONDS_SENT / mean_seconds), share)
        if count < 2:
            return None
        helds = [held]
        while len(helds) < count and (other := self.waiting.pop_like(kind, held)) is not None:
            helds.append(other)
        return helds if len(helds) > 1 else None

    async def run(self, kind: Kind, helds: list[HeldJob]) -> None:
        """Run the jobs of one message, in this task. Never raises, except when the task is cancelled."""
        message = _Message(self, kind, helds)
        self._messages.add(message)
        self.slots.reserved += 1
        try:
            await message.run()
        except Exception:
            log.exception("calls in a process failed; their jobs are released")
            message.release_all(1.0)
        finally:
            self._messages.discard(message)
            message.leave_slot()
            self.on_free()

    def recall(self) -> None:
        """Take back the calls that have not started, and let the running ones become ordinary calls, which can be interrupted."""
        for message in list(self._messages):
            message.recall()

    def close(self) -> None:
        """Cancel the tasks of all messages."""
        for message in list(self._messages):
            message.task.cancel()


class _Message:
    def __init__(self, turns: Turns, kind: Kind, helds: list[HeldJob]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._turns = turns
        self._kind = kind
        #: By offset, in the order of their calls: the jobs that have not been taken back.
        self._helds = {held.row.offset: held for held in helds}
        #: Those of them that have not ended.
        self._open = self._helds.copy()
        #: The id under which the child runs.
        self._key = helds[0].row.job_id
        self._child: Child | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended_at = 0.0
        self._is_spoilt = False
        #: The running job as an ordinary call.
        self._call: Call | None = None
        self._has_slot = True

    async def run(self) -> None:
        children = self._turns.children
        try:
            child = await children.take(self._key)
        except ChildFailed as error:
            self.release_all(error.after)
            return
        if not self._open:  # All of them were taken back meanwhile.
            children.leave(child, keep=True)
            return
        self._child = child
        is_reusable = False
        try:
            self._send(child)
            is_reusable = await self._receive(child)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._record_death(child, await child.death())
        except asyncio.CancelledError:
            if self._call is None or self._call.why is None:
                raise
            # The call was interrupted and has its outcome.
        finally:
            if self._timer is not None:
                self._timer.cancel()
            children.leave(child, keep=is_reusable)
            if not is_reusable:
                await child.kill()

    def release_all(self, after: float) -> None:
        """Release the jobs that have neither ended nor been taken back."""
        for held in self._helds.values():
            self._turns.reporter.finish(held, Ended(0, "released", after=after))
        self._open.clear()

    def leave_slot(self) -> None:
        """Free the slot, once."""
        if self._has_slot:
            self._has_slot = False
            self._turns.slots.reserved -= 1
        self._end_call()

    def recall(self) -> None:
        """Take back what has not started, and let the running job become an ordinary call."""
        child = self._child
        if child is None:
            self._put_back(list(self._open))
            return
        if self._call is not None:
            return
        self._take_back(child)
        self._record_done(child)
        if not self._open:
            return
        # Jobs before it have ended otherwise than done, and their reports are on the way.
        running = list(self._open.values())[-1]
        slots = self._turns.slots
        self._call = call = slots.begin(self._kind, [running], [None], self.task)
        call.started = True
        slots.begin_in_child(call)
        self._key = running.row.job_id
        self._turns.children.hand_over(child, self._key)
        self._has_slot = False
        slots.reserved -= 1

    def _send(self, child: Child) -> None:
        helds = list(self._open.values())
        batch = helds[0].batch
        rows = [held.row for held in helds]
        offsets = list(self._open)
        lease_id = batch.lease.lease_id
        child.send_in_turn(
            Work(lease_id, batch.claim_no, rows, offsets, helds[0].lane, in_turn=True)
        )
        self._ended_at = time.monotonic()
        self._check_later()

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._check)

    def _check(self) -> None:
        assert self._child is not None
        self._record_done(self._child)
        turns = self._turns
        is_idle = turns.slots.busy < turns.slots.concurrency and not turns.waiting
        if is_idle or time.monotonic() - self._ended_at > _SLOW_SECONDS:
            self.recall()
        if self._call is None:
            self._check_later()

    async def _receive(self, child: Child) -> bool:
        """Receive reports until the child has no job left; return whether it may run other calls."""
        while True:
            answer = await child.answer()
            if answer.is_over:
                self._record_done(child)
                self._take_back(child)
                return not self._is_spoilt
            if answer.broken is not None:
                log.error(
                    "a child process failed before it could run job %s: %s",
                    self._key,
                    answer.broken,
                )
                self.release_all(5.0)
                return False
            held = self._open.get(answer.offset)
            if answer.progress is not None:
                if held is not None:
                    self._turns.on_progress([held], *answer.progress)
                continue
            self._is_spoilt |= answer.spoils
            self._record_done(child)
            if held is not None:
                self._report(held, answer)

    def _report(self, held: HeldJob, answer: ChildReport) -> None:
        del self._open[held.row.offset]
        self._ended_at = time.monotonic()
        held.started_at = self._ended_at - answer.micros / 1e6
        held.batch.counters += answer.counters
        self._log_started([held])
        self._turns.reporter.finish(held, answer.ended)
        if answer.ended is None or answer.ended.outcome == "done":
            self._turns.on_done([held], answer.micros / 1e6)

    def _record_done(self, child: Child) -> None:
        records = child.done_records()
        if not records:
            return
        self._ended_at = now = time.monotonic()
        helds, seconds = [], 0.0
        for offset, micros in records:
            held = self._open.pop(offset)
            held.started_at = now - micros / 1e6
            seconds += micros / 1e6
            helds.append(held)
        self._log_started(helds)
        self._turns.reporter.finish_returned(helds, [None] * len(helds))
        self._turns.on_done(helds, seconds / len(helds))

    def _log_started(self, helds: list[HeldJob]) -> None:
        # Not earlier: only now is it certain that they started. An ordinary call has been logged.
        if self._call is None:
            for held in helds:
                log_started(held, self._kind)

    def _record_death(self, child: Child, how: str) -> None:
        self._take_back(child)
        self._record_done(child)
        if not self._open:
            return
        *others, running = self._open.values()
        job = job_of(running, self._kind, self._turns.group)
        self._turns.reporter.finish(running, endings.lost_child(self._kind, job, how))
        for held in others:  # They have ended, but their reports were lost with the child.
            self._turns.reporter.finish(held, Ended(0, "released"))

    def _take_back(self, child: Child) -> None:
        if count := child.take_back():
            self._put_back(list(self._open)[-count:])

    def _put_back(self, offsets: list[int]) -> None:
        helds = [self._open.pop(offset) for offset in offsets]
        for offset in offsets:
            del self._helds[offset]
        self._turns.waiting.put_back(self._kind, [held for held in helds if not held.ended])
        self._turns.on_put_back()

    def _end_call(self) -> None:
        if self._call is not None:
            self._call.cancel_timers()
            self._turns.slots.calls.pop(self._call, None)


def _may_run_in_turn(kind: Kind) -> bool:
    # A handler's transaction reports in another way; limits concern a single call.
    return not (kind.is_batch or kind.transaction or kind.memory_bytes or kind.cpu_seconds)

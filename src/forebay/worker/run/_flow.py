"""The checkpoints of a job while one attempt runs, and how the verbs of its handler are answered.

A verb is a generator that asks for what it needs: to read or record checkpoints, or to call a
function. Coroutine handlers answer on the event loop, plain handlers in their threads; so both have
one implementation.

Invariants: docs/design/flows.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.errors import (
    DatabaseUnavailable,
    JobCancelled,
    LeaseLost,
    StepChanged,
    StepRefused,
    StepTooLarge,
    UnknownBatch,
    shown,
)
from forebay.ops.flows import Checkpoint, FlowEnd, NewStep
from forebay.ops.protocol import Ended
from forebay.worker.run._beside import Beside
from forebay.worker.run._step_calls import StepCall
from forebay.worker.run._step_values import (
    FLOW_BYTES_MOST,
    STEPS_MORE,
    STEPS_MOST,
    Json,
    checked_key,
    shown_step,
    text_of,
)
from forebay.worker.run._turn import Turn

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from forebay.worker.run._step_store import StepStore
    from forebay.worker.run.call import Call


#: How long a cancelled handler may run until its next verb, and then compensate.
NEXT_VERB_SECONDS: Final = 10.0
COMPENSATES_SECONDS: Final = 60.0


#: The verb that records a checkpoint of a kind.
_VERBS: Final = {
    "s": "step", "o": "once", "f": "step", "z": "sleep", "e": "each", "g": "gather", "d": "gather",
    "p": "wait", "w": "wait", "t": "wait", "x": "wait",
}  # fmt: skip

#: How often an attempt that waits for the commit of a step looks whether its lease is lost.
_COMMIT_SECONDS: Final = 1.0


#: Types of keys that are equal only if their texts are.
_PLAIN_KEYS: Final = (type(None), str, int)


class Unwound(BaseException):
    """Ends an attempt from within a step; no handler should catch it.

    Attributes:
        step: name of the step.
        ended: how the attempt ends; None: it is lost, and nothing is settled.
    """

    def __init__(self, step: str, ended: Ended | None) -> None:
        super().__init__(f"step {step!r} ends the attempt; do not catch BaseException")
        self.step = step
        self.ended = ended


class Flow:
    """The checkpoints of a job while one attempt runs.

    Attributes:
        progressed: whether this attempt has recorded a checkpoint; then attempts are counted anew.
        unwound: what ended the attempt; None while it runs.
    """

    def __init__(self, store: StepStore, call: Call) -> None:
        (self.held,) = call.helds
        self.store = store
        self.call = call
        self.loop = call.task.get_loop()
        self.progressed = False
        self.unwound: Unwound | None = None
        self._found: dict[tuple[str, str | None], Checkpoint] | None = None
        #: The begins of waits, also of those that are over.
        self._begun: dict[tuple[str, str | None], Checkpoint] = {}
        #: The steps that the handler has asked for; with earlier names of them, by ``also``.
        self._asked: set[tuple[str, str | None]] = set()
        #: The steps that have such an earlier name.
        self._renamed: dict[tuple[str, str | None], str] = {}
        #: The verbs of a coroutine handler that have not begun, with their names; by the id of what
        #: each answers.
        self.unbegun: dict[int, tuple[object, Coroutine[Any, Any, Any]]] = {}
        self._next = 1
        self._bytes = 0
        #: Whether this attempt was told that there are too many checkpoints.
        self._is_full = False
        self.beside = Beside(self.loop, is_async=call.kind.is_async)
        #: How many steps commit their effects; none begins to once the attempt is over.
        self._committing = 0
        self._quiet = asyncio.Event()
        self._is_over = False
        self._commits = threading.Lock()
        #: Why the job was cancelled while it ran; whether its handler knows; and whether its task
        #: waits for a verb.
        self._cancelled: JobCancelled | None = None
        self._knows = False
        self._waits = False
        #: Whether a verb of this attempt has raised the recorded cancellation.
        self._has_raised = False

    def forgotten(self) -> list[str]:
        """Return the names of the recorded steps that the handler has not asked for.

        Not those of bodies of loops whose items were done: these have keys, and stand before the
        checkpoint of their item.
        """
        found: set[str] = set()
        in_loop = False
        steps = (self._found or {}).values()
        for step in sorted(steps, key=lambda step: step.no, reverse=True):
            is_asked = (step.name, step.key) in self._asked
            if step.kind == "e":
                in_loop = is_asked
            if not is_asked and not (in_loop and step.key is not None):
                found.add(step.name)
        return sorted(found)

    def cancel(self, why: JobCancelled) -> None:
        """Let a verb of the coroutine handler raise this: the one that it waits for, or the next.

        The handler may compensate with further steps, for a time. Then its task is cancelled, as
        that of any handler.
        """
        self._cancelled = why
        if self._waits:
            self.call.task.cancel()
        self._end_in(NEXT_VERB_SECONDS, unless_known=True)

    def _end_in(self, seconds: float, *, unless_known: bool) -> None:
        def end() -> None:
            if not (unless_known and self._knows):
                self._knows = True
                self.call.task.cancel()

        self.call.timers.append(self.loop.call_later(seconds, end))

    def _cancellation(self) -> JobCancelled:
        """Return what tells the handler that its job was cancelled, once."""
        assert self._cancelled is not None
        self._knows = True
        self._end_in(COMPENSATES_SECONDS, unless_known=False)
        return self._cancelled

    def _raised(self, error: BaseException) -> BaseException:
        """Return what a verb raises in place of an error of its call."""
        task = self.call.task
        is_news = self._cancelled is not None and not self._knows
        if is_news and isinstance(error, asyncio.CancelledError) and asyncio.current_task() is task:
            task.uncancel()
            return self._cancellation()
        return error

    # --- the effects of steps ---

    @contextlib.contextmanager
    def commits(self) -> Iterator[None]:
        """Commit the effects of a step: the attempt ends after it.

        Raises:
            Unwound: another step has ended the attempt.
            StepRefused: it has ended.
        """
        with self._commits:
            self._require_running()
            self._committing += 1
        try:
            yield
        finally:
            with self._commits:
                self._committing -= 1
                if self._is_over and not self._committing:
                    self.loop.call_soon_threadsafe(self._quiet.set)

    def _require_running(self) -> None:
        if self.unwound is not None:
            raise self.unwound
        if self._is_over:
            raise StepRefused("a step", "is called after its attempt has ended")

    async def close(self) -> None:
        """End the attempt: from now on no step of it commits, and those that do have ended.

        A step may run beside the one that ended the attempt, or in a thread that a timeout has left
        behind. What it commits after the settlement would be there twice, or though its job is
        dead.
        """
        with self._commits:
            self._is_over = True
        while self._committing and not (self.held.ended or self.held.lease.lost):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_COMMIT_SECONDS):
                    await self._quiet.wait()

    # --- what each verb does ---

    def load(self) -> Generator[Any, Any, dict[tuple[str, str | None], Checkpoint]]:
        """Read the checkpoints, once in an attempt."""
        if self._found is None:
            read = yield functools.partial(self.store.steps, self.held)
            if self._found is None:  # Two verbs may have asked at once.
                self._found = {(step.name, step.key): step for step in read}
                self._begun = {(step.name, step.key): step for step in read if step.kind == "p"}
                self._next = max((step.no for step in read), default=0) + 1
                self._bytes = sum(len(step.value or "") for step in read)
        return self._found

    def find(
        self, name: str, key: object, kinds: str, also: tuple[str, ...] = ()
    ) -> Generator[Any, Any, Checkpoint | None]:
        """Return what is recorded for a step, and note that it was asked for.

        Args:
            name: of the step.
            key: of one of several with that name.
            kinds: the letters of the checkpoints that its verb makes.
            also: earlier names.

        Raises:
            JobCancelled: the job was cancelled while this step waited.
            StepChanged: another verb has recorded it.
        """
        text = checked_key(name, key)
        found = yield from self.load()
        self._note_asked(name, text, also)
        for each in (name, *also):
            if (each, text) in found:
                if found[each, text].kind == "c":
                    self._has_raised = True
                    raise self._recorded_cancellation(each)
                if found[each, text].kind not in kinds:
                    verb, recorded = _VERBS[kinds[0]], _VERBS[found[each, text].kind]
                    raise StepChanged(
                        shown_step(each, text), f"result of {verb}()", f"{recorded}() recorded it"
                    )
                return found[each, text]
        if ("", None) in found:
            yield from self.stop_if_cancelled(name, key)
        return None

    def _recorded_cancellation(self, name: str) -> JobCancelled:
        return JobCancelled(self.held.row.job_id, reason=f"while step {name!r} waited")

    def stop_if_cancelled(self, name: str, key: object) -> Generator[Any, Any, None]:
        """Raise a cancellation that no verb has raised, in a verb that would wait.

        The code may have no verb of that name any more, or the job was cancelled between two verbs.
        It becomes a checkpoint here, so later attempts raise it at the same place.

        Raises:
            JobCancelled: the job was cancelled.
        """
        found = yield from self.load()
        if self._has_raised or all(step.kind != "c" for step in found.values()):
            return
        yield from self.record("c", name, key, msgspec.UNSET)
        self._has_raised = True
        raise self._recorded_cancellation(name)

    def recorded(self, name: object, key: object, kinds: str) -> Checkpoint | None:
        """Return what is recorded for a step, and note that it was asked for, as ``find`` does.

        None where anything else may have to be done: then ``find`` does it. A resumed handler asks
        for each of its steps again, so this is what a long flow costs.
        """
        is_plain = type(name) is str and type(key) in _PLAIN_KEYS
        if not is_plain or self._found is None or self._cancelled is not None:
            return None
        if self.unwound is not None or self._is_over or self.held.ended:
            return None
        try:
            step = (name, str(key) if type(key) is int else key)
        except ValueError:  # It has thousands of digits.
            return None
        found = self._found.get(step)  # type: ignore[arg-type]
        if found is None or found.kind not in kinds or step in self._asked:
            return None
        self._asked.add(step)  # type: ignore[arg-type]
        return found

    def timeout_of(self, name: str, key: object) -> float:
        """Return the timeout with which a wait that is over began; 0 if that is not recorded."""
        begun = self._begun.get((name, text_of(key)))
        value = {} if begun is None else msgspec.json.decode(begun.value or "{}")
        return float(value.get("seconds") or 0.0)

    def _note_asked(self, name: str, key: str | None, also: tuple[str, ...]) -> None:
        """Note that a step was asked for, under all its names: a checkpoint answers one step.

        Whether it is one of the step that had the name before, or of the one that has it now, is
        not recorded.
        """
        before = [(each, key) for each in dict.fromkeys(also) if each != name]
        for step in ((name, key), *before):
            if step not in self._asked:
                continue
            other = self._renamed.get(step)
            if other is not None or step in before:
                problem = f"has the name {step[0]!r} by also=, which another step has"
                raise StepRefused(
                    shown_step(name, key) if other is None else other,
                    problem,
                    hint="Give the other step a name that no step of this flow has had.",
                )
            raise StepRefused(
                shown_step(name, key),
                "has this name a second time in one attempt",
                hint="Give each step another name, or a key: ctx.step(name, ..., key=line.id).",
            )
        self._asked.update(((name, key), *before))
        self._renamed.update(dict.fromkeys(before, shown_step(name, key)))

    def refuse_too_many(self, name: str, key: object) -> None:
        """Refuse what could not be recorded before it begins.

        A handler that catches the first error may record some more: its compensation.

        Raises:
            StepTooLarge: the flow has too many checkpoints.
        """
        text = text_of(key)
        if self._next + len(self.beside.others(name, key)) > STEPS_MOST + (
            STEPS_MORE if self._is_full else 0
        ):
            self._is_full = True
            raise _too_many(name, text)

    def new(self, kind: str, name: str, key: object, value: Json) -> NewStep:
        """Return a checkpoint to record, with the next number; ``find`` has checked its name.

        Raises:
            StepTooLarge: the flow has too many, or they are too large.
            StepRefused: the attempt has ended.
        """
        self._require_running()
        text = text_of(key)
        if self._next > STEPS_MOST + STEPS_MORE:
            raise _too_many(name, text)
        size = 0 if value is msgspec.UNSET else len(bytes(value))
        if size and self._bytes + size > FLOW_BYTES_MOST:
            problem = f"the results of the flow have more than {FLOW_BYTES_MOST} bytes as JSON"
            raise StepTooLarge(shown_step(name, text), problem)
        self._bytes += size
        step = NewStep(
            self.held.row.job_id, self.held.lane.group_id, self._next, kind, name, text, value
        )
        self._next += 1
        return step

    def keep(self, step: NewStep) -> Checkpoint:
        """Remember a checkpoint that is recorded."""
        self._progress()
        value = None if step.value is msgspec.UNSET else bytes(step.value).decode()
        kept_step = Checkpoint(
            step.no, step.kind, step.name, step.key, value, datetime.now(UTC), 0.0
        )
        assert self._found is not None
        self._found[step.name, step.key] = kept_step
        return kept_step

    def keep_found(self, step: Checkpoint) -> None:
        """Remember a checkpoint that the database made."""
        self._progress()
        self._next = max(self._next, step.no + 1)
        assert self._found is not None
        self._found[step.name, step.key] = step

    def _progress(self) -> None:
        if not self.progressed:
            self.progressed = True
            self.call.restart_attempts()

    def give_back(self, step: NewStep) -> None:
        """Use the number of a checkpoint again that was not recorded."""
        if step.no == self._next - 1:
            self._next -= 1

    def record(
        self, kind: str, name: str, key: object, value: Json
    ) -> Generator[Any, Any, Checkpoint]:
        """Record a checkpoint."""
        step = self.new(kind, name, key, value)
        status = yield functools.partial(self.store.record, self.held, step)
        if status == "refused":
            raise self.end(name, Ended(0, "released"))
        return self.keep(step)

    def end(self, name: str, ended: Ended | None) -> Unwound:
        """Return the exception that ends this attempt."""
        if ended is not None and self.progressed and isinstance(ended.attempts, msgspec.UnsetType):
            ended.attempts = 0
        self.unwound = Unwound(name, ended)
        return self.unwound

    def park(self, name: str, flow: FlowEnd) -> Unwound:
        """Return the exception that gives the slot back until the flow may continue."""
        self.beside.require_alone(name)
        # Its checkpoints are recorded by the settlement: an error of a clean-up may come before.
        ended = Ended(0, "snoozed", flow=flow)
        if flow.steps:
            ended.attempts = 0
        return self.end(name, ended)

    # --- the ways to answer ---

    @contextlib.contextmanager
    def _verb(self, name: object) -> Iterator[None]:
        self._require_running()
        if self.held.ended:
            # The worker has given the job away: nothing may follow, not even a compensation.
            raise self.end(_name_of(name), None)
        try:
            with self.beside.entered(_name_of(name)):
                yield
        except (LeaseLost, UnknownBatch):
            raise self.end(_name_of(name), None) from None
        except DatabaseUnavailable:
            raise self.end(_name_of(name), Ended(0, "released", after=1.0)) from None

    def answer(self, name: object, verb: Generator[Any, Any, Any]) -> Any:
        """Run a verb in the thread of a plain handler."""
        with self._verb(name):
            turn = Turn(verb)
            while turn.proceeds():
                try:
                    if isinstance(turn.asked, StepCall):
                        turn.reply = turn.asked.here()
                    else:
                        future = asyncio.run_coroutine_threadsafe(turn.asked(), self.loop)
                        turn.reply = future.result()
                except BaseException as raised:
                    turn.error = raised
            return turn.result

    async def answer_async(self, name: object, verb: Generator[Any, Any, Any]) -> Any:
        """Run a verb on the event loop of a coroutine handler."""
        self.unbegun.pop(id(verb), None)
        with self._verb(name):
            if self._cancelled is not None and not self._knows:
                verb.close()
                raise self._cancellation()
            is_own = asyncio.current_task() is self.call.task
            turn = Turn(verb)
            while turn.proceeds():
                self._waits = self._waits or is_own
                try:
                    turn.reply = await turn.asked()
                except BaseException as raised:
                    turn.error = self._raised(raised)
                finally:
                    self._waits = self._waits and not is_own
            return turn.result


def not_awaited(flow: Flow) -> StepRefused | None:
    """Return the error of a handler that ends with a verb that it has called without await.

    A task that was cancelled before it began has closed its verb.
    """
    for name, verb in flow.unbegun.values():
        if inspect.getcoroutinestate(verb) == inspect.CORO_CREATED:
            verb.close()  # Python would warn too.
            problem = "was called without await, so it was not done"
            return StepRefused(_name_of(name), problem, hint="Await each verb, also done().")
    return None


def _too_many(name: str, key: str | None) -> StepTooLarge:
    return StepTooLarge(shown_step(name, key), f"the flow has {STEPS_MOST} checkpoints, the most")


def _name_of(name: object) -> str:
    return name if isinstance(name, str) else shown(name)

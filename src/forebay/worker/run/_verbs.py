"""The verbs of flows: what a handler does in steps, each with a checkpoint."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import shlex
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.arguments.results import gives_coroutine, step_type
from forebay.db.pools import is_duplicate, may_have_committed
from forebay.errors import (
    ChildrenDied,
    FlowError,
    HandlerError,
    InvalidJob,
    JobDied,
    LeaseLost,
    StepFailed,
    StepRefused,
    UnknownBatch,
    WaitTaken,
    WaitTimeout,
    shown,
)
from forebay.ops.flows import Checkpoint, FlowEnd, NewStep, Wait
from forebay.ops.protocol import Ended
from forebay.policy.error_text import describe_exception
from forebay.policy.retry import GiveUp, RetryPolicy, leaves
from forebay.worker.run._flow import Flow, Unwound
from forebay.worker.run._step_calls import StepCall
from forebay.worker.run._step_values import (
    as_recorded,
    calls_of,
    checked_key,
    checked_loop,
    checked_signal_key,
    checked_type,
    deaths_of,
    decoded,
    encoded,
    item_key,
    policy_of,
    result_of,
    seconds_left,
    seconds_of,
    shown_step,
    text_of,
    time_of,
    unkept,
    until_in,
)
from forebay.worker.run.endings import error_record

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Generator
    from datetime import datetime, timedelta

    from forebay.model.context import Step
    from forebay.worker.run._step_store import StepStore
    from forebay.worker.run._transactions import HandlerTransactions
    from forebay.worker.run.call import Call


#: Errors that are no failure of the function that raises them, also in a group.
_NOT_OF_THE_STEP: Final = (FlowError, HandlerError, LeaseLost, UnknownBatch)


class Flows:
    """Makes the verbs for calls.

    Args:
        store: the checkpoints.
        transactions: the connections for steps in transactions.
        kinds: the kinds of the application.
        count: called in any thread with the kind of a job when a step of it ended, and how.
    """

    def __init__(
        self,
        store: StepStore,
        transactions: HandlerTransactions,
        kinds: Any,
        count: Callable[[str, str], None],
    ) -> None:
        self.count = count
        self.store = store
        self.transactions = transactions
        self.kinds = kinds

    def of(self, reference: weakref.ref[Call]) -> Verbs:
        """Return the verbs of a call that runs.

        A context has the reference: with the call itself, the two would keep each other, and the
        arguments, until Python looks for cycles.

        Raises:
            StepRefused: its kind cannot have steps, or it does not run any more.
        """
        call = reference()
        if call is None or call.has_ended:
            raise StepRefused("a step", "is called after its attempt has ended")
        kind = call.kind
        for wrong, what in (
            (kind.is_batch, "a batch handler: its jobs would share the steps"),
            (kind.transaction, "a handler with transaction=True: use once(), outside of it"),
        ):
            if wrong:
                raise StepRefused(kind.name, f"cannot be in {what}")
        if call.flow is None:
            call.flow = Flow(self.store, call)
        return AsyncVerbs(self, call.flow) if kind.is_async else Verbs(self, call.flow)


class Verbs:
    """The verbs of a flow, for a plain handler: each returns its result."""

    def __init__(self, parts: Flows, flow: Flow) -> None:
        self._parts = parts
        self._flow = flow
        self._do: Callable[[object, Generator[Any, Any, Any]], Any] = flow.answer
        #: The functions of steps that this attempt has checked, with the types of their results.
        self._checked: dict[Any, Any] = {}

    def step(self, asked: Step, *, in_transaction: bool) -> Any:
        """Do a step, see ``Context.step`` and ``Context.once``."""
        if (found := self._recorded(asked)) is not None:
            return result_of(found, self._checked[asked.function])
        return self._step(asked, in_transaction=in_transaction)

    def _recorded(self, asked: Step) -> Checkpoint | None:
        """Return the checkpoint of a step that has succeeded, if nothing of it is to be checked."""
        if asked.retry is not None or asked.also:
            return None
        try:
            if asked.function not in self._checked:
                return None
        except TypeError:  # It has no hash.
            return None
        return self._flow.recorded(asked.name, asked.key, "so")

    def _step(self, asked: Step, *, in_transaction: bool) -> Any:
        flow = self._flow
        kind = "o" if in_transaction else "s"
        name, key = asked.name, asked.key

        def verb() -> Generator[Any, Any, Any]:
            policy = policy_of(name, asked.retry, flow.call.kind.retry)
            self._check(asked)
            as_type = step_type(asked.function, name)
            with contextlib.suppress(TypeError):  # It has no hash.
                self._checked[asked.function] = as_type
            found = yield from flow.find(name, key, "sof", tuple(asked.also))
            if found is not None:
                return result_of(found, as_type)
            flow.refuse_too_many(name, key)
            shown = shown_step(name, text_of(key))
            made: list[NewStep] = []

            def make(result: Any) -> NewStep:
                made.append(flow.new(kind, name, key, encoded(shown, result)))
                return made[0]

            maker = make if in_transaction else None
            calls = StepCall(flow.call, self._parts.transactions, asked, maker, flow.commits)
            try:
                result = yield calls
            except Exception as error:
                if any(isinstance(each, _NOT_OF_THE_STEP) for each in leaves(error)):
                    raise
                if made and is_duplicate(error, "step_pkey"):
                    raise flow.end(name, Ended(0, "released")) from None
                if made and may_have_committed(error):
                    raise flow.end(name, Ended(0, "released", after=1.0)) from error
                for step in made:
                    flow.give_back(step)
                self._parts.count(flow.call.kind.name, "failed")
                yield from self._failed(name, key, policy, error)
            else:
                self._parts.count(flow.call.kind.name, "done")
                if in_transaction:
                    return result_of(flow.keep(result), as_type)
                recorded = yield from flow.record(kind, name, key, encoded(shown, result))
                return result_of(recorded, as_type)

        return self._do(name, flow.beside.during(name, key, verb()))

    def _check(self, asked: Step) -> None:
        if not callable(asked.function):
            raise StepRefused(asked.name, f"needs a function, not {shown(asked.function)}")
        if not self._flow.call.kind.is_async and gives_coroutine(asked.function):
            raise StepRefused(asked.name, "needs a plain function, since its handler is one")
        also = asked.also
        if not isinstance(also, list | tuple) or not all(isinstance(one, str) for one in also):
            raise StepRefused(asked.name, f"has also={shown(also)}, which is no list of names")

    def _failed(
        self, name: str, key: object, policy: RetryPolicy, error: Exception
    ) -> Generator[Any, Any, None]:
        """End the attempt so that the step is tried again; or raise ``StepFailed``."""
        flow = self._flow
        job = flow.call.jobs[0]
        shown = shown_step(name, text_of(key))
        most = policy.max_attempts if policy is not flow.call.kind.retry else job.max_attempts
        described = describe_exception(error)
        decision = policy.decide(error, job.attempt, random.random(), max_attempts=most)
        if not isinstance(decision, GiveUp):
            if flow.beside.has_rest():
                yield functools.partial(flow.beside.rest, name, key)
                if flow.unwound is not None:
                    raise flow.unwound
            ended = Ended(0, "retried", after=decision.seconds, of_step=True)
            # The log and the history count the attempts of the step.
            job = msgspec.structs.replace(job, max_attempts=most)
            ended.error = error_record(job, described, message=f"step {shown}: {described.message}")
            if flow.progressed:
                ended.attempts = 1
            raise flow.end(name, ended) from error
        facts: dict[str, Any] = {"type": described.type, "message": described.message[:2000]}
        if beside := flow.beside.recorded(name, key):
            facts["beside"] = beside
        yield from flow.record("f", name, key, msgspec.Raw(msgspec.json.encode(facts)))
        raise StepFailed(shown, described.type, described.message) from error

    def sleep(
        self, name: str, delay: float | timedelta | None, until: datetime | None, key: object
    ) -> Any:
        """Sleep, see ``Context.sleep``."""
        flow = self._flow

        def verb() -> Generator[Any, Any, None]:
            # First: later attempts continue it, whatever time they compute.
            found = yield from flow.find(name, key, "z")
            if found is not None and found.value is not None:
                began = msgspec.json.decode(found.value)
                left = seconds_left(found, began)
                if left <= 0:
                    return
                yield from flow.stop_if_cancelled(name, key)
                raise flow.park(name, until_in(FlowEnd(), began, left))
            yield from flow.stop_if_cancelled(name, key)
            seconds, at = time_of(name, delay, until)
            flow.refuse_too_many(name, key)
            value = {"seconds": seconds} if at is None else {"until": at.isoformat()}
            step = flow.new("z", name, key, msgspec.Raw(msgspec.json.encode(value)))
            raise flow.park(name, until_in(FlowEnd([step]), value, seconds or 0.0))

        return self._do(name, verb())

    def wait(
        self, name: str, key: object, timeout: float | timedelta | None, as_type: Any, step_key: Any
    ) -> Any:
        """Wait for a signal, see ``Context.wait``."""
        flow = self._flow

        def verb() -> Generator[Any, Any, Any]:
            checked_type(name, as_type)
            address = str(flow.held.row.job_id) if key is None else checked_signal_key(name, key)
            found = yield from flow.find(name, step_key, "pwtx")
            if found is None:
                yield from flow.stop_if_cancelled(name, step_key)
                seconds = None if timeout is None else seconds_of(name, timeout, "timeout")
                flow.refuse_too_many(name, step_key)
                value = {"key": address, "seconds": seconds}
                step = flow.new("p", name, step_key, msgspec.Raw(msgspec.json.encode(value)))
                wait = Wait(name, address, name, text_of(step_key))
                raise self._park_wait(wait, [step], seconds)
            if found.kind == "p":
                began = msgspec.json.decode(found.value or "{}")
                seconds = began.get("seconds")
                assert found.age is not None
                left = None if seconds is None else seconds - found.age
                wait = Wait(name, began["key"], found.name, found.key)
                if left is None or left > 0:
                    yield from flow.stop_if_cancelled(name, step_key)
                    raise self._park_wait(wait, [], left)
                no = flow.new("t", name, step_key, msgspec.UNSET).no
                try:
                    found = yield functools.partial(flow.store.end_wait, flow.held, no, wait)
                except UnknownBatch:
                    raise flow.end(name, Ended(0, "released")) from None
                flow.keep_found(found)
            shown_name = shown_step(name, text_of(step_key))
            if found.kind == "t":
                raise WaitTimeout(shown_name, flow.timeout_of(name, step_key))
            if found.kind == "x":
                raise WaitTaken(shown_name, int(found.value or 0), name, address)
            place = name if step_key is None else f"{name}={step_key}"
            hint = (
                "The signal has it. To wait for another one: forebay jobs rewind"
                f" {flow.held.row.job_id} --from {shlex.quote(place)}"
            )
            return decoded(shown_name, found.value, as_type, hint=hint)

        return self._do(name, verb())

    def _park_wait(self, wait: Wait, steps: list[NewStep], left: float | None) -> Unwound:
        flow = FlowEnd(steps, wait=wait)
        if left is not None:
            flow.after = left
        return self._flow.park(wait.step, flow)

    def gather(self, name: str, calls: Iterable[Any], on_dead: str, key: object) -> Any:
        """Gather the results of jobs, see ``Context.gather``."""
        flow = self._flow

        def verb() -> Generator[Any, Any, list[Any]]:
            if on_dead not in ("raise", "collect"):
                raise StepRefused(name, f"has on_dead={shown(on_dead)}, not 'raise' or 'collect'")
            found = yield from flow.find(name, key, "gd")
            if found is None:
                yield from flow.stop_if_cancelled(name, key)
                given = calls_of(name, calls, flow.call.jobs[0].correlation_id)
                flow.refuse_too_many(name, key)
                if not given:
                    yield from flow.record("g", name, key, msgspec.UNSET)
                    return []
                step = flow.new("g", name, key, msgspec.UNSET)
                from forebay.ops.enqueue import jobs_json  # noqa: PLC0415 - as there

                jobs = jobs_json(given)
                try:
                    with flow.beside.will_park(name):
                        gather_id = yield functools.partial(
                            flow.store.gather, flow.held, step, len(given), jobs
                        )
                except UnknownBatch:
                    raise flow.end(name, Ended(0, "released")) from None
                except InvalidJob as error:
                    problem = f"has a job that is refused: {error}"
                    raise StepRefused(name, problem, hint=error.hint) from error
                step.value = msgspec.Raw(
                    msgspec.json.encode({"gather": str(gather_id), "children": len(given)})
                )
                flow.keep(step)
                raise flow.park(name, FlowEnd(gather=str(gather_id)))
            if found.value is None:
                return []
            began = msgspec.json.decode(found.value)
            ends = yield functools.partial(flow.store.gathered, flow.held, int(began["gather"]))
            if found.kind == "g":
                if any(end.outcome is None for end in ends):
                    yield from flow.stop_if_cancelled(name, key)
                    raise flow.park(name, FlowEnd(gather=began["gather"]))
                if deaths := deaths_of(ends):
                    # A redrive of a child changes no answer that the handler has acted on.
                    began = {"gather": began["gather"], "ends": deaths}
                    if beside := flow.beside.recorded(name, key):
                        began["beside"] = beside
                    value = msgspec.Raw(msgspec.json.encode(began))
                    yield from flow.record("d", name, key, value)
            ends = as_recorded(ends, began.get("ends", ()))
            return self._results(name, key, ends, calls, on_dead)

        return self._do(name, verb())

    def _results(
        self, name: str, key: object, ends: list[Any], calls: Any, on_dead: str
    ) -> list[Any]:
        bad = [end for end in ends if end.outcome != "done"]
        shown_name = shown_step(name, text_of(key))
        if bad and on_dead == "raise":
            raise ChildrenDied(
                shown_name, len(bad), len(ends), bad[0].job_id,
                job_ids=tuple(end.job_id for end in bad[:20]),
            )  # fmt: skip
        # This attempt has not read them: a generator is a new one.
        given = list(itertools.islice(calls, len(ends))) if isinstance(calls, Iterable) else []
        types: dict[str | None, Any] = {}
        results: list[Any] = []
        for place, end in enumerate(ends):
            if end.outcome == "cancelled":
                reason = end.problem and end.problem.removeprefix("it was cancelled ")
                results.append(JobDied(end.job_id, reason=reason, is_cancelled=True))
                continue
            if end.outcome != "done":
                results.append(JobDied(end.job_id, reason=end.problem or end.outcome))
                continue
            if end.problem is not None:
                raise unkept(shown_name, end)
            kind = getattr(given[place], "kind", None) if place < len(given) else None
            if kind not in types:
                types[kind] = self._type_of_kind(name, kind)
            results.append(decoded(shown_name, end.value, types[kind]))
        return results

    def _type_of_kind(self, name: str, kind: str | None) -> Any:
        if kind not in self._parts.kinds:
            return Any
        found = self._parts.kinds.get(kind)
        return Any if found.is_batch else step_type(found.function, name)

    def done(self, name: str, key: object) -> Any:
        """Whether a step is recorded, see ``Context.done``."""
        flow = self._flow

        def verb() -> Generator[Any, Any, bool]:
            text = checked_key(name, key)
            found = yield from flow.load()
            return (name, text) in found

        return self._do(name, verb())

    def each(self, name: str, items: Any, key: Callable[[Any], object]) -> Any:
        """Do a loop with a checkpoint for each item, see ``Context.each``."""
        return self._each(name, items, key)

    def _each(self, name: str, items: Iterable[Any], key: Callable[[Any], object]) -> Iterator[Any]:
        flow = self._flow
        checked_loop(name, items, key)
        for item in items:
            text = item_key(name, key, item)
            if flow.recorded(name, text, "e") is not None:
                continue
            if flow.answer(name, flow.find(name, text, "e")) is not None:
                continue
            flow.refuse_too_many(name, text)
            yield item
            flow.answer(name, flow.record("e", name, text, msgspec.UNSET))


class AsyncVerbs(Verbs):
    """The verbs of a flow, for a coroutine handler: each returns a coroutine."""

    def __init__(self, parts: Flows, flow: Flow) -> None:
        super().__init__(parts, flow)
        self._do = self._later

    def _later(self, name: object, verb: Generator[Any, Any, Any]) -> Any:
        found = self._flow.answer_async(name, verb)
        self._flow.unbegun[id(verb)] = name, found
        return found

    def step(self, asked: Step, *, in_transaction: bool) -> Any:
        """Do a step, see ``Context.step`` and ``Context.once``."""
        found = self._step_later(asked, in_transaction=in_transaction)
        self._flow.unbegun[id(asked)] = asked.name, found
        return found

    async def _step_later(self, asked: Step, *, in_transaction: bool) -> Any:
        self._flow.unbegun.pop(id(asked), None)
        if (found := self._recorded(asked)) is not None:
            return result_of(found, self._checked[asked.function])
        return await self._step(asked, in_transaction=in_transaction)

    def each(self, name: str, items: Any, key: Callable[[Any], object]) -> AsyncIterator[Any]:
        """Do a loop with a checkpoint for each item, see ``Context.each``."""
        return self._each_async(name, items, key)

    async def _each_async(
        self, name: str, items: Any, key: Callable[[Any], object]
    ) -> AsyncIterator[Any]:
        flow = self._flow
        checked_loop(name, items, key)
        async for item in _async_items(items):
            text = item_key(name, key, item)
            if flow.recorded(name, text, "e") is not None:
                continue
            if await flow.answer_async(name, flow.find(name, text, "e")) is not None:
                continue
            flow.refuse_too_many(name, text)
            yield item
            await flow.answer_async(name, flow.record("e", name, text, msgspec.UNSET))


async def _async_items(items: Any) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item

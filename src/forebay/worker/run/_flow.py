"""The verbs of flows: what a handler does in steps, each with a checkpoint.

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
import random
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.arguments.results import decode_result, ran, result_type
from forebay.db.pools import spoils_connection
from forebay.errors import (
    ChildrenDied,
    ConfigError,
    DatabaseUnavailable,
    FlowError,
    HandlerError,
    InvalidJob,
    JobDied,
    LeaseLost,
    StepChanged,
    StepFailed,
    StepRefused,
    StepTooLarge,
    UnknownBatch,
    WaitTaken,
    WaitTimeout,
    shown,
)
from forebay.forks import end_if_copy
from forebay.model import checks
from forebay.ops import flows
from forebay.ops.enqueue import Call as JobCall
from forebay.ops.enqueue import jobs_json
from forebay.ops.flows import Checkpoint, FlowEnd, NewStep, Wait, signal_key
from forebay.ops.protocol import Ended
from forebay.ops.results import kept
from forebay.policy.error_text import calls_handlers, describe_exception
from forebay.policy.retry import GiveUp, RetryPolicy, as_policy
from forebay.worker.run.endings import error_record

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from forebay.worker.run._step_store import StepStore
    from forebay.worker.run._transactions import HandlerTransactions
    from forebay.worker.run.call import Call

#: Checkpoints of a flow, bytes of one as JSON, and of all: each attempt reads them.
STEPS_MOST: Final = 10_000
STEP_BYTES_MOST: Final = 1_048_576
FLOW_BYTES_MOST: Final = 16_777_216

#: Jobs of one gather.
CHILDREN_MOST: Final = 100_000

_NAME_MOST: Final = 200


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


class Flows:
    """Makes the verbs for calls.

    Args:
        store: the checkpoints.
        transactions: the connections for steps in transactions.
        kinds: the kinds of the application.
    """

    def __init__(self, store: StepStore, transactions: HandlerTransactions, kinds: Any) -> None:
        self.store = store
        self.transactions = transactions
        self.kinds = kinds

    def of(self, call: Call) -> Verbs:
        """Return the verbs of a call.

        Raises:
            StepRefused: its kind cannot have steps.
        """
        kind = call.kind
        for wrong, what in (
            (kind.is_batch, "a batch handler: its jobs would share the steps"),
            (kind.transaction, "a handler with transaction=True: use once(), outside of it"),
        ):
            if wrong:
                raise StepRefused(kind.name, f"cannot be in {what}")
        if call.flow is None:
            call.flow = Flow(self, call)
        return AsyncVerbs(call.flow) if kind.is_async else Verbs(call.flow)


class Flow:
    """The checkpoints of a job while one attempt runs.

    Attributes:
        progressed: whether this attempt has recorded a checkpoint; then attempts are counted anew.
        unwound: what ended the attempt; None while it runs.
    """

    def __init__(self, parts: Flows, call: Call) -> None:
        (self.held,) = call.helds
        self.parts = parts
        self.store = parts.store
        self.call = call
        self.loop = call.task.get_loop()
        self.progressed = False
        self.unwound: Unwound | None = None
        self._found: dict[tuple[str, str | None], Checkpoint] | None = None
        self._asked: set[tuple[str, str | None]] = set()
        self._next = 1
        self._bytes = 0
        self._open = 0

    @property
    def attempt(self) -> int:
        """Number of the attempt since the last checkpoint, from 1."""
        return 1 if self.progressed else self.call.jobs[0].attempt

    def forgotten(self) -> list[str]:
        """Return the names of the recorded steps that the handler has not asked for."""
        return sorted({name for name, _ in (self._found or {}).keys() - self._asked})

    # --- what each verb does ---

    def load(self) -> Generator[Any, Any, dict[tuple[str, str | None], Checkpoint]]:
        """Read the checkpoints, once in an attempt."""
        if self._found is None:
            read = yield functools.partial(self.store.steps, self.held)
            if self._found is None:  # Two verbs may have asked at once.
                self._found = {(step.name, step.key): step for step in read}
                self._next = max((step.no for step in read), default=0) + 1
                self._bytes = sum(len(step.value or "") for step in read)
        return self._found

    def find(
        self, name: str, key: object, also: tuple[str, ...] = ()
    ) -> Generator[Any, Any, Checkpoint | None]:
        """Return what is recorded for a step, and note that it was asked for."""
        text = _checked(name, key)
        found = yield from self.load()
        for each in (name, *also):
            if (each, text) in found:
                self._ask(name, text)
                self._asked.add((each, text))
                return found[each, text]
        self._ask(name, text)
        return None

    def _ask(self, name: str, key: str | None) -> None:
        if (name, key) in self._asked:
            raise StepRefused(
                _shown(name, key),
                "has this name a second time in one attempt",
                hint="Give each step another name, or a key: ctx.step(name, ..., key=line.id).",
            )
        self._asked.add((name, key))

    def new(self, kind: str, name: str, key: object, value: msgspec.Raw | None) -> NewStep:
        """Return a checkpoint to record, with the next number.

        Raises:
            StepTooLarge: the flow has too many, or they are too large.
        """
        text = _checked(name, key)
        if self._next > STEPS_MOST:
            raise StepTooLarge(
                _shown(name, text), f"the flow has {STEPS_MOST} checkpoints, and may have no more"
            )
        self._bytes += 0 if value is None else len(bytes(value))
        if self._bytes > FLOW_BYTES_MOST:
            problem = f"the results of the flow have more than {FLOW_BYTES_MOST} bytes as JSON"
            raise StepTooLarge(_shown(name, text), problem)
        step = NewStep(
            self.held.row.job_id, self.held.lane.group_id, self._next, kind, name, text, value
        )
        self._next += 1
        return step

    def keep(self, step: NewStep) -> Checkpoint:
        """Remember a checkpoint that is recorded."""
        self.progressed = True
        value = None if step.value is None else bytes(step.value).decode()
        kept_step = Checkpoint(
            step.no, step.kind, step.name, step.key, value, datetime.now(UTC), 0.0
        )
        assert self._found is not None
        self._found[step.name, step.key] = kept_step
        return kept_step

    def keep_found(self, step: Checkpoint) -> None:
        """Remember a checkpoint that the database made."""
        self.progressed = True
        self._next = max(self._next, step.no + 1)
        assert self._found is not None
        self._found[step.name, step.key] = step

    def give_back(self, step: NewStep) -> None:
        """Use the number of a checkpoint again that was not recorded."""
        if step.no == self._next - 1:
            self._next -= 1

    def record(
        self, kind: str, name: str, key: object, value: msgspec.Raw | None
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
        if self._open > 1:
            raise StepRefused(
                name,
                "gives the slot back while another step of the job runs",
                hint="Await the other steps first; wait, sleep and gather run alone.",
            )
        for step in flow.steps:
            self.keep(step)
        return self.end(name, Ended(0, "snoozed", flow=flow))

    # --- the ways to answer ---

    @contextlib.contextmanager
    def _verb(self, name: object) -> Iterator[None]:
        if self.unwound is not None:
            raise self.unwound
        self._open += 1
        try:
            yield
        except (LeaseLost, UnknownBatch):
            raise self.end(str(name), None) from None
        except DatabaseUnavailable:
            raise self.end(str(name), Ended(0, "released", after=1.0)) from None
        finally:
            self._open -= 1

    def answer(self, name: object, verb: Generator[Any, Any, Any]) -> Any:
        """Run a verb in the thread of a plain handler."""
        with self._verb(name):
            reply: Any = None
            error: BaseException | None = None
            while True:
                try:
                    asked = verb.send(reply) if error is None else verb.throw(error)
                except StopIteration as end:
                    return end.value
                reply, error = None, None
                try:
                    if isinstance(asked, _Run):
                        reply = asked.here()
                    else:
                        future = asyncio.run_coroutine_threadsafe(asked(), self.loop)
                        reply = future.result()
                except BaseException as raised:
                    error = raised

    async def answer_async(self, name: object, verb: Generator[Any, Any, Any]) -> Any:
        """Run a verb on the event loop of a coroutine handler."""
        with self._verb(name):
            reply: Any = None
            error: BaseException | None = None
            while True:
                try:
                    asked = verb.send(reply) if error is None else verb.throw(error)
                except StopIteration as end:
                    return end.value
                reply, error = None, None
                try:
                    reply = await asked()
                except BaseException as raised:
                    error = raised


class _Run:
    """A function of the application to call, perhaps in a transaction that also records its step.

    Args:
        flow: the flow.
        function: what to call.
        args: its arguments; after the connection, in a transaction.
        named: its arguments by name.
        made: makes the checkpoint of the result; None: it is not called in a transaction.
    """

    def __init__(
        self,
        flow: Flow,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
        made: Callable[[Any], NewStep] | None = None,
    ) -> None:
        self._flow = flow
        self._function = function
        self._args = args
        self._named = named
        self._made = made

    @calls_handlers
    def here(self) -> Any:
        """Call it in this thread."""
        if self._made is None:
            return self._plainly(self._args)
        flow, call = self._flow, self._flow.call
        connections = flow.parts.transactions.plain_connections()
        with connections.connection() as connection:
            call.connection = connection.raw
            try:
                with connection.transaction():
                    result = self._plainly((connection.given, *self._args))
                    step = self._made(result)
                    record = flows.record(flow.held.lease.lease_id, [step])
                    self._check(connection.settle(record))
            finally:
                call.connection = None
        return step

    def _plainly(self, args: tuple[Any, ...]) -> Any:
        try:
            return ran(self._function(*args, **self._named), self._flow.call.kind.name)
        finally:
            end_if_copy()

    @calls_handlers
    async def __call__(self) -> Any:
        """Call it for a coroutine handler: a plain function in a thread."""
        if not _is_coroutine_function(self._function):
            return await asyncio.to_thread(self.here)
        if self._made is None:
            return await self._awaited(self._args)
        flow, call = self._flow, self._flow.call
        connections = flow.parts.transactions.coroutine_connections()
        async with connections.connection() as connection:
            call.connection = connection.raw
            try:
                async with connection.transaction():
                    result = await self._awaited((connection.given, *self._args))
                    step = self._made(result)
                    record = flows.record(flow.held.lease.lease_id, [step])
                    self._check(await connection.settle(record))
            finally:
                call.connection = None
        return step

    async def _awaited(self, args: tuple[Any, ...]) -> Any:
        try:
            result = await self._function(*args, **self._named)
            return ran(result, self._flow.call.kind.name)
        finally:
            end_if_copy()

    @staticmethod
    def _check(statuses: list[flows.StepStatus]) -> None:
        if statuses != ["recorded"]:
            raise _Refused


class _Refused(BaseException):
    """Another attempt has recorded this checkpoint: roll the transaction back."""


class Verbs:
    """The verbs of a flow, for a plain handler: each returns its result."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._do: Callable[[object, Generator[Any, Any, Any]], Any] = flow.answer

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
        *,
        key: object,
        retry: object,
        also: tuple[str, ...],
        in_transaction: bool,
    ) -> Any:
        """Do a step, see ``Context.step`` and ``Context.once``."""
        flow = self._flow
        kind = "o" if in_transaction else "s"

        def verb() -> Generator[Any, Any, Any]:
            policy = _policy(name, retry, flow)
            if not callable(function):
                raise StepRefused(name, f"needs a function, not {shown(function)}")
            if flow.call.kind.is_async is False and _is_coroutine_function(function):
                raise StepRefused(name, "needs a plain function: its handler is one")
            as_type = _type_of(name, function)
            found = yield from flow.find(name, key, also)
            if found is not None:
                return _result_of(found, as_type)
            encode = functools.partial(_encoded, _shown(name, _text(key)))
            made: list[NewStep] = []

            def make(result: Any) -> NewStep:
                made.append(flow.new(kind, name, key, encode(result)))
                return made[0]

            try:
                result = yield _Run(flow, function, args, named, make if in_transaction else None)
            except _Refused:
                raise flow.end(name, Ended(0, "released")) from None
            except (FlowError, HandlerError, LeaseLost, UnknownBatch):
                raise
            except Exception as error:
                if made and spoils_connection(error):
                    # The commit may have arrived.
                    raise flow.end(name, Ended(0, "released", after=1.0)) from error
                for step in made:
                    flow.give_back(step)
                yield from self._failed(name, key, policy, error)
            else:
                if in_transaction:
                    return _result_of(flow.keep(result), as_type)
                recorded = yield from flow.record(kind, name, key, encode(result))
                return _result_of(recorded, as_type)

        return self._do(name, verb())

    def _failed(
        self, name: str, key: object, policy: RetryPolicy, error: Exception
    ) -> Generator[Any, Any, None]:
        """End the attempt so that the step is tried again; or raise ``StepFailed``."""
        flow = self._flow
        job = flow.call.jobs[0]
        shown_name = _shown(name, _text(key))
        most = policy.max_attempts if policy is not flow.call.kind.retry else job.max_attempts
        described = describe_exception(error)
        decision = policy.decide(error, flow.attempt, random.random(), max_attempts=most)
        if not isinstance(decision, GiveUp):
            ended = Ended(0, "retried", after=decision.seconds)
            ended.error = error_record(
                job, described, message=f"step {shown_name}: {described.message}"
            )
            if flow.progressed:
                ended.attempts = 1
            raise flow.end(name, ended) from error
        facts = {"type": described.type, "message": described.message[:2000]}
        yield from flow.record("f", name, key, msgspec.Raw(msgspec.json.encode(facts)))
        raise StepFailed(shown_name, described.type, described.message) from error

    def sleep(
        self, name: str, delay: float | timedelta | None, until: datetime | None, key: object
    ) -> Any:
        """Sleep, see ``Context.sleep``."""
        flow = self._flow

        def verb() -> Generator[Any, Any, None]:
            seconds, at = _time(name, delay, until)
            found = yield from flow.find(name, key)
            if found is not None and found.value is not None:
                began = msgspec.json.decode(found.value)
                left = _seconds_left(found, began)
                if left <= 0:
                    return
                raise flow.park(name, _until(FlowEnd(), began, left))
            value = {"seconds": seconds} if at is None else {"until": at.isoformat()}
            step = flow.new("z", name, key, msgspec.Raw(msgspec.json.encode(value)))
            raise flow.park(name, _until(FlowEnd([step]), value, seconds or 0.0))

        return self._do(name, verb())

    def wait(
        self, name: str, key: object, timeout: float | timedelta | None, as_type: Any, also_key: Any
    ) -> Any:
        """Wait for a signal, see ``Context.wait``."""
        flow = self._flow

        def verb() -> Generator[Any, Any, Any]:
            seconds = None if timeout is None else _time(name, timeout, None)[0]
            address = str(flow.held.row.job_id) if key is None else _signal_key(name, key)
            found = yield from flow.find(name, also_key)
            if found is None:
                value = {"key": address, "seconds": seconds}
                step = flow.new("p", name, also_key, msgspec.Raw(msgspec.json.encode(value)))
                raise self._park_wait(name, also_key, step.no + 1, [step], value, seconds)
            if found.kind == "p":
                began = msgspec.json.decode(found.value or "{}")
                seconds = began.get("seconds")
                left = None if seconds is None else seconds - found.age
                if left is None or left > 0:
                    raise self._park_wait(name, also_key, found.no + 1, [], began, left)
                ended = yield functools.partial(flow.store.end_wait, flow.held, found.no + 1)
                if ended is None:
                    ended = yield from flow.record("t", name, also_key, None)
                else:
                    flow.keep_found(ended)
                found = ended
            shown_name = _shown(name, _text(also_key))
            if found.kind == "t":
                raise WaitTimeout(shown_name, float(seconds or 0.0))
            if found.kind == "x":
                raise WaitTaken(shown_name, int(found.value or 0), name, address)
            return _decoded(shown_name, found.value, as_type)

        return self._do(name, verb())

    def _park_wait(
        self,
        name: str,
        step_key: object,
        no: int,
        steps: list[NewStep],
        began: dict[str, Any],
        left: float | None,
    ) -> Unwound:
        wait = Wait(name, began["key"], no, name, _text(step_key))
        flow = FlowEnd(steps, wait=wait)
        if left is not None:
            flow.after = left
        return self._flow.park(name, flow)

    def gather(self, name: str, calls: Iterable[Any], on_dead: str, key: object) -> Any:
        """Gather the results of jobs, see ``Context.gather``."""
        flow = self._flow

        def verb() -> Generator[Any, Any, list[Any]]:
            if on_dead not in ("raise", "collect"):
                raise StepRefused(name, f"has on_dead={shown(on_dead)}, not 'raise' or 'collect'")
            found = yield from flow.find(name, key)
            given = None
            if found is None:
                given = _calls(name, calls, flow)
                if not given:
                    yield from flow.record("s", name, key, msgspec.Raw(b"[]"))
                    return []
                step = flow.new("g", name, key, None)
                jobs = jobs_json(given)
                try:
                    gather_id = yield functools.partial(
                        flow.store.gather, flow.held, step, len(given), jobs
                    )
                except UnknownBatch:
                    raise flow.end(name, Ended(0, "released")) from None
                except InvalidJob as error:
                    raise StepRefused(name, f"has a job that is refused: {error}") from error
                step.value = msgspec.Raw(
                    msgspec.json.encode({"gather": str(gather_id), "children": len(given)})
                )
                flow.keep(step)
                raise flow.park(name, FlowEnd(gather=str(gather_id)))
            if found.kind != "g":
                return []
            began = msgspec.json.decode(found.value or "{}")
            ends = yield functools.partial(
                flow.store.gathered, flow.held, int(began["gather"])
            )
            if any(end.outcome is None for end in ends):
                raise flow.park(name, FlowEnd(gather=began["gather"]))
            return self._results(name, key, ends, calls, on_dead)

        return self._do(name, verb())

    def _results(
        self, name: str, key: object, ends: list[Any], calls: Iterable[Any], on_dead: str
    ) -> list[Any]:
        bad = [end for end in ends if end.outcome != "done"]
        shown_name = _shown(name, _text(key))
        if bad and on_dead == "raise":
            raise ChildrenDied(
                shown_name, len(bad), len(ends), bad[0].job_id,
                job_ids=tuple(end.job_id for end in bad[:20]),
            )  # fmt: skip
        given = list(calls) if isinstance(calls, list | tuple) else []
        results: list[Any] = []
        for place, end in enumerate(ends):
            if end.outcome != "done":
                results.append(JobDied(end.job_id, reason=end.problem or end.outcome))
                continue
            if end.problem is not None:
                raise StepTooLarge(shown_name, f"job {end.job_id} returned {end.problem}")
            as_type = Any
            call = given[place] if place < len(given) else None
            if isinstance(call, JobCall) and call.kind in self._flow.parts.kinds:
                kind = self._flow.parts.kinds.get(call.kind)
                as_type = Any if kind.is_batch else _type_of(name, kind.function)
            results.append(_decoded(shown_name, end.value, as_type))
        return results

    def done(self, name: str, key: object) -> Any:
        """Whether a step is recorded, see ``Context.done``."""
        flow = self._flow

        def verb() -> Generator[Any, Any, bool]:
            text = _checked(name, key)
            found = yield from flow.load()
            return (name, text) in found

        return self._do(name, verb())

    def each(self, name: str, items: Any, key: Callable[[Any], object]) -> Any:
        """Do a loop with a checkpoint for each item, see ``Context.each``."""
        return self._each(name, items, key)

    def _each(
        self, name: str, items: Iterable[Any], key: Callable[[Any], object]
    ) -> Iterator[Any]:
        flow = self._flow
        for item in items:
            text = _item_key(name, key, item)
            if flow.answer(name, flow.find(name, text)) is not None:
                continue
            yield item
            flow.answer(name, flow.record("e", name, text, None))


class AsyncVerbs(Verbs):
    """The verbs of a flow, for a coroutine handler: each returns a coroutine."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._do = flow.answer_async

    def each(self, name: str, items: Any, key: Callable[[Any], object]) -> AsyncIterator[Any]:
        """Do a loop with a checkpoint for each item, see ``Context.each``."""
        return self._each_async(name, items, key)

    async def _each_async(
        self, name: str, items: Any, key: Callable[[Any], object]
    ) -> AsyncIterator[Any]:
        flow = self._flow
        async for item in _async_items(items):
            text = _item_key(name, key, item)
            if await flow.answer_async(name, flow.find(name, text)) is not None:
                continue
            yield item
            await flow.answer_async(name, flow.record("e", name, text, None))


async def _async_items(items: Any) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _item_key(name: str, key: Callable[[Any], object], item: Any) -> str:
    found = key(item)
    if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
        raise StepRefused(
            name, f"has a key that is no text and no whole number: {shown(found)}"
        )
    return str(found)


def _checked(name: object, key: object) -> str | None:
    """Return the key of a step as text.

    Raises:
        StepRefused: name or key cannot be used.
    """
    for what, value in (("name", name), ("key", key)):
        if value is None and what == "key":
            continue
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or (what == "name" and not isinstance(value, str)):
            raise StepRefused(str(name)[:40], f"has a {what} that is no text: {shown(value)}")
        if not 1 <= len(text) <= _NAME_MOST or any(ord(sign) < 32 or ord(sign) == 127 for sign in text):
            raise StepRefused(
                text[:40],
                f"has a {what} of {len(text)} characters, or with control characters;"
                f" 1 to {_NAME_MOST} are possible",
            )
    return _text(key)


def _text(key: object) -> str | None:
    return None if key is None else str(key)


def _shown(name: str, key: str | None) -> str:
    return name if key is None else f"{name}[{key}]"


def _signal_key(name: str, key: object) -> str:
    try:
        return signal_key(key)
    except InvalidJob as error:
        raise StepRefused(name, f"waits for a {error.field} that {error.problem}") from None


def _is_coroutine_function(function: object) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(  # type: ignore[arg-type]
        getattr(function, "__call__", None)  # noqa: B004 - of an object that is called
    )


def _policy(name: str, retry: object, flow: Flow) -> RetryPolicy:
    if retry is None:
        return flow.call.kind.retry
    try:
        policy = as_policy(retry)
    except ConfigError as error:
        raise StepRefused(name, f"has a retry policy that is refused: {error}") from error
    if not isinstance(policy, RetryPolicy):
        raise StepRefused(name, f"has retry={shown(retry)}, which is no RetryPolicy")
    return policy


def _type_of(name: str, function: Callable[..., Any]) -> Any:
    try:
        return result_type(function, name)
    except (ConfigError, TypeError, ValueError):
        return Any


def _encoded(step: str, result: Any) -> msgspec.Raw | None:
    if result is None:
        return None
    found = kept(result, 0)
    if isinstance(found.value, msgspec.UnsetType):
        problem = str(found.problem).replace("what the handler returned", "its result")
        raise StepTooLarge(step, problem) if "bytes" in problem else StepRefused(
            step, f"cannot be recorded: {problem}", hint="Return what JSON can hold."
        )
    size = len(bytes(found.value))
    if size > STEP_BYTES_MOST:
        raise StepTooLarge(step, f"its result has {size} bytes, the limit is {STEP_BYTES_MOST}")
    return found.value


def _result_of(found: Checkpoint, as_type: Any) -> Any:
    name = _shown(found.name, found.key)
    if found.kind == "f":
        facts = msgspec.json.decode(found.value or "{}")
        raise StepFailed(name, facts.get("type", "?"), facts.get("message", ""))
    return _decoded(name, found.value, as_type)


def _decoded(step: str, value: str | None, as_type: Any) -> Any:
    try:
        return decode_result(value or "null", as_type)
    except ConfigError:
        return msgspec.json.decode(value or "null")
    except ValueError as error:
        expected = getattr(as_type, "__name__", str(as_type))
        raise StepChanged(step, expected, str(error).replace("\n", " ")[:300]) from error


def _time(
    name: str, delay: float | timedelta | None, until: datetime | None
) -> tuple[float | None, datetime | None]:
    if (delay is None) == (until is None):
        raise StepRefused(name, "takes a delay or until=, one of them")
    try:
        if until is not None:
            return None, checks.checked_instant(until, "until")
        return checks.checked_seconds(delay, "delay"), None
    except InvalidJob as error:
        raise StepRefused(name, f"has a {error.field} that {error.problem}") from None


def _seconds_left(found: Checkpoint, began: dict[str, Any]) -> float:
    """Return how long a sleep lasts from now on, by the clock of the database."""
    if "until" in began:
        now = found.at + timedelta(seconds=found.age)
        return (datetime.fromisoformat(began["until"]) - now).total_seconds()
    return float(began["seconds"]) - found.age


def _until(flow: FlowEnd, began: dict[str, Any], left: float) -> FlowEnd:
    if "until" in began:
        flow.until = began["until"]
    else:
        flow.after = left
    return flow


def _calls(name: str, calls: Iterable[Any], flow: Flow) -> list[JobCall]:
    given: list[JobCall] = []
    correlation_id = flow.call.jobs[0].correlation_id
    for call in calls:
        if not isinstance(call, JobCall):
            raise StepRefused(
                name,
                f"gathers {shown(call)}, which is no call",
                hint="Use handler.calls(items), or a list of handler.call(...).",
            )
        if call.options.unique is not None:
            raise StepRefused(
                name,
                f"gathers a job of kind {call.kind} with a unique key",
                hint="The key could belong to a job that is no child. Use using(unique=None).",
            )
        if correlation_id is not None and call.options.correlation_id is None:
            options = call.options.merged(correlation_id=correlation_id)
            call = msgspec.structs.replace(call, options=options)  # noqa: PLW2901
        if len(given) == CHILDREN_MOST:
            raise StepTooLarge(name, f"it gathers more than {CHILDREN_MOST} jobs")
        given.append(call)
    return given

"""Names, keys, times and results of steps: checked, encoded and decoded."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.arguments.results import check_decodable, decode_result
from forebay.errors import (
    ConfigError,
    InvalidJob,
    PayloadTooLarge,
    StepChanged,
    StepFailed,
    StepRefused,
    StepTooLarge,
    shown,
)
from forebay.model import checks
from forebay.ops.flows import Checkpoint, FlowEnd, as_text, checked_address
from forebay.ops.results import encoded_result, problem_of
from forebay.policy.retry import RetryPolicy, as_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.ops.enqueue import Call as JobCall
    from forebay.ops.flows import Gathered

#: Checkpoints of a flow, bytes of one as JSON, and of all: each attempt reads them.
STEPS_MOST: Final = 10_000
#: Further ones, for failures, and for what a handler does that catches the error of too many.
STEPS_MORE: Final = 100
STEP_BYTES_MOST: Final = 1_048_576
FLOW_BYTES_MOST: Final = 16_777_216

#: Jobs of one gather.
CHILDREN_MOST: Final = 100_000

#: Characters of all reasons that a gather records of children that ended badly.
_REASONS_MOST: Final = 2_000_000

#: The result of a step as JSON; unset for None.
Json = msgspec.Raw | msgspec.UnsetType

_CALLS: Final = "Use handler.calls(items), or a list of handler.call(...)."


def checked_loop(name: str, items: Any, key: object) -> None:
    """Refuse what no loop can be made of.

    Raises:
        StepRefused: there are no items, or the key is not a function.
    """
    if not isinstance(items, Iterable | AsyncIterable):
        raise StepRefused(name, f"needs items to go through, not {shown(items)}")
    if not callable(key):
        raise StepRefused(
            name,
            f"has key={shown(key)}, which is not a function",
            hint="It gives the key of an item: key=lambda item: item.id",
        )


def item_key(name: str, key: Callable[[Any], object], item: Any) -> str:
    """Return the key of an item of a loop as text."""
    found = key(item)
    if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
        raise StepRefused(name, f"has a key that is no text and no whole number: {shown(found)}")
    text = checked_key(name, found)
    assert text is not None
    return text


def checked_key(name: object, key: object) -> str | None:
    """Return the key of a step as text.

    Raises:
        StepRefused: name or key cannot be used.
    """
    for what, value in (("name", name), ("key", key)):
        if value is None and what == "key":
            continue
        try:
            checked_address(value, what)
        except InvalidJob as error:
            step = name[:40] if isinstance(name, str) else shown(name)
            raise StepRefused(step, f"has a {what} that {error.problem}") from None
    return text_of(key)


def text_of(key: object) -> str | None:
    """Return the key of a step as text; None for none."""
    return as_text(key) if isinstance(key, str | int) else None if key is None else str(key)


def shown_step(name: str, key: str | None) -> str:
    """Return a step as errors name it."""
    return name if key is None else f"{name}[{key}]"


def checked_signal_key(name: str, key: object) -> str:
    """Return the key of a signal as text."""
    try:
        return checked_address(key, "key")
    except InvalidJob as error:
        raise StepRefused(name, f"waits for a {error.field} that {error.problem}") from None


def policy_of(name: str, retry: object, default: RetryPolicy) -> RetryPolicy:
    """Return how a step is retried."""
    if retry is None:
        return default
    try:
        policy = as_policy(retry)
    except ConfigError as error:
        raise StepRefused(name, f"has a retry policy that is refused: {error}") from error
    if not isinstance(policy, RetryPolicy):
        raise StepRefused(name, f"has retry={shown(retry)}, which is no RetryPolicy")
    return policy


def encoded(step: str, result: Any) -> Json:
    """Return the result of a step as JSON."""
    if result is None:
        return msgspec.UNSET
    try:
        found = encoded_result(result)
    except PayloadTooLarge as error:
        raise StepTooLarge(step, problem_of(error, "its result")) from None
    except Exception as error:
        problem = f"cannot be recorded: {problem_of(error, 'its result')}"
        hint = getattr(error, "hint", None) or "Return what JSON can hold."
        raise StepRefused(step, problem, hint=hint) from None
    size = len(bytes(found))
    if size > STEP_BYTES_MOST:
        raise StepTooLarge(step, f"its result has {size} bytes, the limit is {STEP_BYTES_MOST}")
    return found


def deaths_of(ends: Sequence[Gathered]) -> list[tuple[int, int, str | None, str | None]]:
    """Return what a gather records of its children: those that ended badly, and how."""
    bad = [end for end in ends if end.outcome != "done"]
    most = _REASONS_MOST // max(len(bad), 1)
    return [(end.nr, end.job_id, end.outcome, end.problem and end.problem[:most]) for end in bad]


def as_recorded(ends: list[Gathered], deaths: Iterable[Sequence[Any]]) -> list[Gathered]:
    """Return the ends of children; of those that had ended badly, these ends."""
    recorded = {nr: (job_id, outcome, problem) for nr, job_id, outcome, problem in deaths}
    found = list(ends)
    for place, end in enumerate(found if recorded else ()):
        if end.nr in recorded:
            job_id, outcome, problem = recorded[end.nr]
            found[place] = end._replace(job_id=job_id, outcome=outcome, value=None, problem=problem)
    return found


def unkept(step: str, end: Gathered) -> StepRefused:
    """Return the error of a gather one of whose jobs has ended well without a kept result."""
    return StepRefused(
        step,
        f"has no result of job {end.job_id}: {end.problem}",
        hint="Return what JSON can hold, and not more than result_bytes_max: for example the key "
        "of a row that has the data.",
    )


def result_of(found: Checkpoint, as_type: Any) -> Any:
    """Return what a checkpoint of a step says, or raise its failure."""
    if found.kind == "f":
        facts = msgspec.json.decode(found.value or "{}")
        name = shown_step(found.name, found.key)
        raise StepFailed(name, facts.get("type", "?"), facts.get("message", ""))
    with contextlib.suppress(ConfigError, ValueError):
        return decode_result(found.value or "null", as_type)
    return decoded(shown_step(found.name, found.key), found.value, as_type)


def decoded(step: str, value: str | None, as_type: Any, *, hint: str | None = None) -> Any:
    """Return a recorded value in a type; ``hint`` says what to do if it has another one."""
    try:
        return decode_result(value or "null", as_type)
    except ValueError as error:
        expected = getattr(as_type, "__name__", str(as_type))
        raise StepChanged(step, expected, str(error).replace("\n", " ")[:300], hint=hint) from error


def checked_type(name: str, as_type: Any) -> Any:
    """Return the type of a payload, if JSON can be decoded to it."""
    try:
        check_decodable(as_type, "as_type")
    except ConfigError as error:
        raise StepRefused(name, f"has an as_type that {error.problem}", hint=error.hint) from error
    return as_type


def seconds_of(name: str, value: float | timedelta, field: str) -> float:
    """Return a delay or a timeout in seconds; one that is over is 0, as a past instant is now."""
    try:
        return checks.checked_delay(value, field)
    except InvalidJob as error:
        raise StepRefused(name, f"has a {error.field} that {error.problem}") from None


def time_of(
    name: str, delay: float | timedelta | None, until: datetime | None
) -> tuple[float | None, datetime | None]:
    """Return a delay in seconds, or an instant."""
    if (delay is None) == (until is None):
        raise StepRefused(name, "takes a delay or until=, one of them")
    if until is None:
        assert delay is not None
        return seconds_of(name, delay, "delay"), None
    try:
        return None, checks.checked_instant(until, "until")
    except InvalidJob as error:
        raise StepRefused(name, f"has a time {error.field} that {error.problem}") from None


def seconds_left(found: Checkpoint, began: dict[str, Any]) -> float:
    """Return how long a sleep lasts from now on, by the clock of the database."""
    assert found.at is not None
    assert found.age is not None
    if "until" in began:
        now = found.at + timedelta(seconds=found.age)
        return (datetime.fromisoformat(began["until"]) - now).total_seconds()
    return float(began["seconds"]) - found.age


def until_in(flow: FlowEnd, began: dict[str, Any], left: float) -> FlowEnd:
    """Note in the end of an attempt when a sleep is over."""
    if "until" in began:
        flow.until = began["until"]
    else:
        flow.after = left
    return flow


def calls_of(name: str, calls: Any, correlation_id: str | None) -> list[JobCall]:
    """Return the jobs to gather, checked, with the correlation id of their parent."""
    from forebay.ops.enqueue import Call  # noqa: PLC0415 - most workers gather nothing

    if not isinstance(calls, Iterable):
        problem = f"gathers {shown(calls)}, which is no list of calls"
        raise StepRefused(name, problem, hint=_CALLS)
    given: list[JobCall] = []
    with_id: dict[int, tuple[Any, Any]] = {}
    for call in calls:
        if not isinstance(call, Call):
            raise StepRefused(
                name,
                f"gathers {shown(call)}, which is no call",
                hint=_CALLS,
            )
        if call.options.unique is not None:
            raise StepRefused(
                name,
                f"gathers a job of kind {call.kind} with a unique key",
                hint="The key could belong to a job that is no child. Use using(unique=None).",
            )
        if correlation_id is not None and call.options.correlation_id is None:
            # The calls of one handler share their options. They are kept beside what is made of
            # them, so that no other object gets their address.
            options, merged = with_id.get(id(call.options), (None, None))
            if options is None:
                options, merged = call.options, call.options.merged(correlation_id=correlation_id)
                with_id[id(options)] = options, merged
            call = msgspec.structs.replace(call, options=merged)  # noqa: PLW2901
        if len(given) == CHILDREN_MOST:
            raise StepTooLarge(name, f"it gathers more than {CHILDREN_MOST} jobs")
        given.append(call)
    return given

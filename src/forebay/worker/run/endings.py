"""How the jobs of a call end: pure rules on what the handler returned or raised.

The settler writes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.errors import (
    FlowError,
    InvalidJob,
    JobCancelled,
    SoftTimeout,
    StepFailed,
    UnknownKind,
    WorkerLost,
)
from forebay.model.again import Again, Complete, Drop
from forebay.model.job import Job
from forebay.model.outcome import (
    Cancel,
    Dead,
    Endings,
    Failed,
    Keep,
    Release,
    Retry,
    Snooze,
)
from forebay.ops.claimed import raw_args
from forebay.ops.flows import ChildEnd, is_callback, parent_of
from forebay.ops.protocol import Ended, FollowUpJob
from forebay.ops.results import kept
from forebay.policy.backoff import unknown_kind_seconds
from forebay.policy.cause import cause_of, without_values
from forebay.policy.error_text import describe_exception
from forebay.policy.retry import GiveUp, leaves
from forebay.worker.ground.held import Raised, job_of
from forebay.worker.run._subjects import refuse_without_subject, with_subject

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kind, Kinds
    from forebay.ops.claimed import ClaimedJob
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.run.call import Call


#: What a handler may return that is no result.
_OUTCOMES: Final = (Snooze, Retry, Cancel, Dead, Release, Failed, Again, Complete, Drop)


def decode(
    kinds: Kinds, held: HeldJob, group: str, *, later: bool = False
) -> tuple[Kind, Any] | Ended:
    """Return the handler of a job and its decoded arguments.

    If that fails, return how the job ended.

    With ``later``, arguments that are text remain so, and None is returned for them. So it is for
    a callback, whose arguments come when it has a slot.
    """
    row = held.row
    try:
        kind = kinds.get(row.kind)
    except UnknownKind as error:
        return unknown_kind(row, error)
    # Most jobs have no headers, and this runs for each.
    if row.headers is not None and is_callback(row.headers):
        return kind, None
    if kind.takes_raw and isinstance(row.args, msgspec.Raw | dict):
        return kind, raw_args(row.args)
    is_text = row.is_text
    if later and is_text:
        return kind, None
    try:
        if is_text:
            with _collector_paused():
                row.decode_args()
                return kind, decode_item(kind, held, group)
        return kind, decode_item(kind, held, group)
    except InvalidJob as error:
        held.raised = Raised(error)
        return bad_arguments(kind, job_of(held, kind, group), error)
    except Exception as error:
        # The application's code in an argument type raised it: treat it as an error of the handler.
        held.raised = Raised(error)
        return failure(kind, job_of(held, kind, group), error)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the search for reference cycles while large arguments are decoded.

    Decoded JSON has no cycles. Up to Python 3.11 the search begins again and again while containers
    are created, and takes several times as long as the decoding itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def decode_item(kind: Kind, held: HeldJob, group: str) -> Any:
    """Return the handler's argument for a job.

    A batch handler for ``Job`` values gets the job itself.

    Raises:
        InvalidJob: the arguments do not fit the handler.
    """
    item = kind.decode(held.row.args)
    return job_of(held, kind, group) if item is held.row.args and kind.is_batch else item


def endings(call: Call, result: Any) -> list[Ended | None]:
    """Return how each job of a call ended after the handler returned; None means done.

    A batch handler returns None (all done) or a sequence with one entry for each job: None, an
    outcome, or an exception.

    Raises:
        TypeError: the sequence does not fit the jobs.
    """
    kind = call.kind
    # Most calls have one job without headers.
    if len(call.helds) > 1 or call.helds[0].row.headers is not None:
        _note_children(call, result)
    keeps_nothing = kind.keep_result_seconds is None and kind.subject is None
    if (
        keeps_nothing
        and kind.on_done is None
        and (result is None or (isinstance(result, Endings) and result.are_done(len(call.helds))))
    ):
        return [None] * len(call.helds)
    if not call.kind.is_batch:
        ended = ending(call.kind, call.jobs[0], result)
        return [ended if call.kind.subject is None else with_subject(call, ended, result)]
    if isinstance(result, Snooze | Retry | Cancel | Dead | None):
        return [ending(call.kind, job, result) for job in call.jobs]
    if (
        isinstance(result, str | bytes | Mapping)
        or not isinstance(result, Sequence)
        or len(result) != len(call.helds)
    ):
        message = (
            f"batch handler {call.kind.name} must return None or one entry for each of its"
            f" {len(call.helds)} jobs, not {type(result).__name__}"
        )
        raise TypeError(message)
    return [
        _failure_of(held, call.kind, job, entry)
        if isinstance(entry, BaseException)
        else ending(call.kind, job, entry)
        for held, job, entry in zip(call.helds, call.jobs, result, strict=True)
    ]


def ending(kind: Kind, job: Job, result: Any) -> Ended | None:
    """Return how a job ended after its handler returned; None means done.

    The offset is set later.
    """
    refuse_without_subject(kind, result)
    if isinstance(result, Snooze):
        after = result.delay_seconds
        if after is None and result.until is not None:
            after = max(0.0, (result.until - datetime.now(UTC)).total_seconds())
        return Ended(0, "snoozed", after=after)
    if isinstance(result, Retry):
        error = _error(job, "Retry", result.reason or "the handler asked for a retry")
        if job.is_last_attempt:
            return dead(kind, job, "exhausted", error)
        after = result.after_seconds
        return Ended(
            0,
            "retried",
            after=kind.retry.delay_seconds(job.attempt, random.random())
            if after is None
            else after,
            error=error,
        )
    if isinstance(result, Cancel):
        return Ended(
            0,
            "cancelled",
            error=_error(job, "Cancel", result.reason) if result.reason else None,
        )
    if isinstance(result, Dead):
        error = _error(job, "Dead", result.reason or "the handler returned Dead")
        return _judged(kind, dead(kind, job, "permanent", error), works=True)
    if isinstance(result, Release):
        return Ended(0, "released", after=result.after)
    if isinstance(result, Failed):
        return _failed(kind, job, result)
    if isinstance(result, Keep):
        return Ended(0, "done", kept=kept(result.result, result.seconds))
    ended = None
    if kind.keep_result_seconds is not None:
        ended = Ended(0, "done", kept=kept(result, kind.keep_result_seconds))
    if kind.on_done is not None:
        follow_up = FollowUpJob(**kind.on_done.as_json())
        if ended is None:
            ended = Ended(0, "done")
            follow_up.returned = kept(result, 0)
        ended.follow_up = follow_up
    return ended


def _failed(kind: Kind, job: Job, result: Failed) -> Ended:
    counted = msgspec.structs.replace(job, max_attempts=result.of)
    error = _error(counted, "Dead" if result.permanent else "Retry", result.reason)
    if result.permanent:
        return dead(kind, job, "permanent", error)
    if result.after is None:
        return dead(kind, job, "exhausted", error)
    return Ended(0, "retried", after=result.after, error=error)


def dead(kind: Kind, job: Job, reason: str, error: dict[str, Any]) -> Ended:
    """Return the outcome of a job that becomes a dead letter.

    It holds its ordering key, and has a follow-up, if its kind says so.
    """
    ended = Ended(0, "dead", reason=reason, error=error)
    ended.follow_up = None if kind.on_dead is None else FollowUpJob(**kind.on_dead.as_json())
    if kind.holds_key and job.ordering_key is not None:
        ended.holds_key = True
    return ended


def failures(call: Call, error: BaseException) -> list[Ended]:
    """Return how the jobs of a call ended after it raised an exception."""
    raised = Raised(error)
    for held in call.helds:
        if not held.ended:
            held.raised = raised
    endeds = [failure(call.kind, job, error) for job in call.jobs]
    if call.flow is not None and call.flow.progressed:
        endeds[0].attempts = 1
    return endeds


def _failure_of(held: HeldJob, kind: Kind, job: Job, error: BaseException) -> Ended:
    held.raised = Raised(error)
    return failure(kind, job, error)


def failure(kind: Kind, job: Job, error: BaseException) -> Ended:
    """Return how a job ended after its handler raised an exception."""
    record = describe_exception(error)
    described = _error(job, record.type, record.message, record.traceback, record.place)
    found = leaves(error)
    if any(isinstance(each, JobCancelled) for each in found):
        return Ended(0, "cancelled", error=described)
    of_flow = [each for each in found if isinstance(each, FlowError)]
    if of_flow:
        reason = "exhausted" if isinstance(of_flow[0], StepFailed) else "permanent"
        ended = dead(kind, job, reason, described)
        if reason == "exhausted":
            ended.of_step = True
        return ended
    decision = kind.retry.decide(error, job.attempt, random.random(), max_attempts=job.max_attempts)
    if isinstance(decision, GiveUp):
        ended = dead(kind, job, decision.reason, described)
    else:
        ended = Ended(0, "retried", after=decision.seconds, error=described)
    if kind.breaker is None:
        return ended
    is_permanent = ended.reason == "permanent"
    return _judged(kind, ended, works=kind.breaker.works(error, is_permanent=is_permanent))


def _judged(kind: Kind, ended: Ended, *, works: bool | None) -> Ended:
    """Return the end with what it says of the limit key, if the kind has a breaker."""
    if kind.breaker is not None and works is not None:
        ended.key_works = works
    return ended


def lost_child(kind: Kind, job: Job, how: str, stack: str = "") -> Ended:
    """Return how a job ended after its child process died; with the stack of a crash if known."""
    error = _error(job, "WorkerLost", f"the process that ran this job alone died: {how}", stack)
    if job.is_last_attempt:
        ended = dead(kind, job, "worker lost", error)
    else:
        after = kind.retry.delay_seconds(job.attempt, random.random(), WorkerLost(how))
        ended = Ended(0, "lost", after=after, error=error)
    return _judged(kind, ended, works=False)


def unknown_kind(row: ClaimedJob, error: UnknownKind) -> Ended:
    """Return the outcome of a job without a handler in this worker: postponed, longer each time."""
    record = describe_exception(error)
    near = _near_kind(error.kind or "", error.known)
    message = record.message if near is None else f"{record.message} (did you mean {near!r}?)"
    return Ended(
        0,
        "unknown",
        after=unknown_kind_seconds((row.pauses or 0) + 1, random.random()),
        error={"type": record.type, "message": message, "traceback": ""},
    )


@lru_cache(maxsize=256)
def _near_kind(kind: str, known: tuple[str, ...]) -> str | None:
    """Return the kind that may be meant: its handler was renamed, or a name is misspelt."""
    import difflib  # noqa: PLC0415 - for a mistake only

    return next(iter(difflib.get_close_matches(kind, known, n=1, cutoff=0.75)), None)


def bad_arguments(kind: Kind, job: Job, error: InvalidJob) -> Ended:
    """Return the outcome of a job whose arguments do not fit its handler."""
    record = describe_exception(error)
    return dead(kind, job, "permanent", _error(job, record.type, record.message))


def raised_because(call: Call, error: BaseException) -> BaseException:
    """Return the error to record: the reason of an interruption, else what the handler raised."""
    if call.why is not None and all(
        isinstance(each, asyncio.CancelledError | SoftTimeout | JobCancelled)
        for each in leaves(error)
    ):
        # With the place where the handler was.
        return call.why.with_traceback(error.__traceback__)
    return error


def _error(
    job: Job, name: str, message: str, traceback: str = "", place: str | None = None
) -> dict[str, Any]:
    """Return an error as the job's history keeps it, with its cause and the number of attempts that
    its kind allows.
    """
    return {
        "cause": cause_of(job.kind, name, place or without_values(message)),
        "place": place,
        "type": name,
        "message": message,
        "traceback": traceback,
        "max_attempts": job.max_attempts,
    }


def error_record(job: Job, record: Any, *, message: str) -> dict[str, Any]:
    """Return a described exception as the job's history keeps it, with another message."""
    return _error(job, record.type, message, record.traceback, record.place)


def _note_children(call: Call, result: Any) -> None:
    """Note what the parents of the jobs learn of their ends, if they are children of flows."""
    for held in call.helds:
        if held.row.headers is None or (parent := parent_of(held.row.headers)) is None:
            continue
        held.child = ChildEnd(parent.gather, parent.nr, held.row.job_id)
        if result is None or call.kind.is_batch or isinstance(result, _OUTCOMES):
            continue
        found = kept(result.result if isinstance(result, Keep) else result, 0)
        held.child.value, held.child.problem = found.value, found.problem

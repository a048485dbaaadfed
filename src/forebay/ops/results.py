"""Results of handlers: encode them for the settlement, read them, wait for them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forebay._dataclass import dataclass
from forebay.arguments.json_guard import encode_json
from forebay.arguments.results import decode_result
from forebay.errors import InvalidJob, JobDied, NoResult, PayloadTooDeep, PayloadTooLarge
from forebay.model.status import JobHistory
from forebay.ops.jobs import checked_id
from forebay.ops.operation import Operation, ResultRows
from forebay.ops.protocol import Kept
from forebay.ops.records import rows_as

#: Notification channel for the ids of ended jobs that a client waits for.
CHANNEL: Final = "forebay_result"

#: A worker never sends a larger result. The settlement also checks the limit of the database.
_SENT_BYTES_MAX: Final = 16 * 1024 * 1024

_RESULT: Final = """\
select r.state, r.value::text, r.problem, r.reason, r.error_type, r.error_message
from forebay.result(%(job_id)s::bigint, %(group)s, %(wait)s::integer) r"""

#: The history of a job, one row for each group.
HISTORY: Final = """\
select (to_jsonb(h) operator(pg_catalog.||) jsonb_build_object(
    'group', h.group_name,
    'progress', case when h.recorded_at is not null then jsonb_build_object(
        'done', h.done, 'note', h.note, 'recorded_at', h.recorded_at) end,
    'result', case when h.kept_at is not null then jsonb_build_object(
        'value', h.value, 'problem', h.problem, 'kept_at', h.kept_at, 'kept_until',
            h.kept_until) end))::text
from forebay.job_history(%(job_id)s::bigint) h"""

_ENDED: Final = frozenset({"done", "cancelled", "expired", "dead"})


@dataclass(frozen=True, slots=True)
class JobResult:
    """The state of a job; ``value`` is the JSON text of its result, if it has one."""

    job_id: int
    state: str
    value: str | None
    problem: str | None
    reason: str | None
    error_type: str | None
    error_message: str | None

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state in _ENDED

    def read(self, as_type: Any) -> Any:
        """Return the result, converted to a type.

        Raises:
            JobDied: the job is a dead letter.
            NoResult: it ended without a result, or the result has another type.
        """
        if self.state == "dead":
            raise JobDied(
                self.job_id,
                reason=self.reason,
                error_type=self.error_type,
                error_message=self.error_message,
            )
        if self.value is None:
            raise NoResult(self.job_id, state=self.state, reason=self.problem)
        try:
            return decode_result(self.value, as_type)
        except ValueError as error:
            problem = str(error).replace("\n", " ")
            raise NoResult(
                self.job_id, state=self.state, reason=f"it has another type: {problem[:300]}"
            ) from error


def kept(value: Any, seconds: float | None) -> Kept:
    """Return a handler's result for the settlement, kept for some seconds; None: as long as ended
    jobs.

    If it cannot be kept, return the reason instead; the job does not fail.
    """
    try:
        return Kept(seconds, value=encoded_result(value))
    except Exception as error:
        return Kept(seconds, problem=problem_of(error, "what the handler returned"))


def encoded_result(value: Any) -> msgspec.Raw:
    """Return a result as JSON.

    Raises:
        Exception: it has no JSON form, or is too large; ``problem_of`` says it.
    """
    dump = getattr(value, "model_dump", None)
    plain = dump(mode="json", by_alias=True) if callable(dump) else value
    return msgspec.Raw(encode_json(plain, bytes_max=_SENT_BYTES_MAX).encode())


def problem_of(error: Exception, what: str) -> str:
    """Return why a result has no JSON form, without the value; ``what`` names the result."""
    match error:
        case InvalidJob():
            # It leaves out the value and its place: others can read it, and keys of a dict may be
            # data too.
            place = "" if error.field == "args" else "a part of "
            return f"{place}{what} {str(error.problem).partition(':')[0]}"
        case PayloadTooLarge():
            return f"{what} has {error.bytes} bytes, the limit is {error.limit}"
        case PayloadTooDeep():
            return f"{what} is nested {error.depth} levels deep, the limit is {error.limit}"
        case _:
            return f"{type(error).__name__} when it was encoded"[:1000]


def result(job_id: int, group: str, *, wait_seconds: float = 0.0) -> Operation[JobResult]:
    """Return the call that reads how a job ended.

    Args:
        job_id: the job.
        group: the consumer group of its queue.
        wait_seconds: how long the caller will listen if the job has not ended; 0 means not at all.
    """

    def decode(rows: ResultRows) -> JobResult:
        return JobResult(job_id, *rows[0])

    wait = min(60_000, int(wait_seconds * 1000)) if wait_seconds > 0 else None
    return Operation(
        _RESULT, decode, {"job_id": checked_id(job_id, "job_id"), "group": group, "wait": wait}
    )


def history(job_id: int) -> Operation[list[JobHistory]]:
    """Return the call that reads the history of a job for each group."""
    return Operation(
        HISTORY,
        lambda rows: rows_as(JobHistory, rows),
        {"job_id": checked_id(job_id, "job_id")},
    )

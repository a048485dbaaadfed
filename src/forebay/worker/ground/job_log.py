"""One line of the log for each attempt that ended, with the facts of its job as fields of the
record.

Invariant: logging changes no outcome. A line is written after the outcome was passed on, and
whatever a handler's exception or a handler of the log raises here ends here.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import traceback
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import UnknownKind
from forebay.model.checks import MAX_ATTEMPTS_MAX
from forebay.model.endpoints import DELIVERIES
from forebay.model.text import escaped_controls, log_block, logger
from forebay.policy.cause import cause_of
from forebay.policy.error_text import describe_exception, shown_traceback
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from forebay.arguments.kinds import Kind, Kinds
    from forebay.ops.protocol import Ended
    from forebay.worker.ground.held import HeldJob, Raised

log = logger("forebay.worker")

_WHY_DEAD: Final = {
    "exhausted": "no attempts are left",
    "permanent": "a retry cannot help",
    "worker lost": "it killed its process each time it ran alone",
}
_MESSAGE_CHARACTERS_MAX: Final = 500


class JobLog:
    """Writes a line for each attempt that ended.

    Done and snoozed jobs are logged at DEBUG, cancelled ones at INFO, failed attempts at WARNING,
    and dead jobs at ERROR with their exception; at INFO without it if their cause is muted.

    Args:
        kinds: the handlers, which know how many attempts a job has.

    Attributes:
        muted: the muted causes, as of the last heartbeat.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self.muted: frozenset[str] = frozenset()

    def done(self, helds: Sequence[HeldJob]) -> None:
        """Jobs are done."""
        if log.isEnabledFor(logging.DEBUG):
            for held in helds:
                self.ended(held, None)

    def ended(self, held: HeldJob, ended: Ended | None) -> None:
        """An attempt ended; None means done. Never raises."""
        raised, held.raised = held.raised, None
        try:
            self._log(held, ended, raised)
        except (
            BaseException
        ):  # an exception of a handler, or a handler of the log, may raise anything
            if logging.raiseExceptions:
                with contextlib.suppress(BaseException):
                    traceback.print_exc(file=sys.stderr)

    def _log(self, held: HeldJob, ended: Ended | None, raised: Raised | None) -> None:
        outcome = "done" if ended is None else ended.outcome
        level = _LEVELS[outcome]
        is_muted = outcome == "dead" and self._is_muted(held, ended)
        if is_muted:
            level = logging.INFO
        if not log.isEnabledFor(level):
            return
        seconds = time.monotonic() - held.started_at if held.started_at else None
        fields = fields_of(held, self._kind_of(held))
        fields["outcome"] = outcome
        if ended is not None and ended.error and "max_attempts" in ended.error:
            fields["max_attempts"] = ended.error["max_attempts"]
        fields["duration_seconds"] = None if seconds is None else round(seconds, 6)
        if ended is not None and outcome in _RUNS_AGAIN:
            next_at = datetime.now(UTC) + timedelta(seconds=ended.after or 0.0)
            fields["next_at"] = next_at.isoformat(timespec="milliseconds")
        template, arguments = _message(fields, ended, seconds)
        if is_muted:
            template += " (this cause is muted)"
        error = ended.error if ended is not None else None
        exc_info, shown = None, None
        if error is not None and (
            (outcome == "dead" and not is_muted) or log.isEnabledFor(logging.DEBUG)
        ):
            exc_info, shown = _exception(held, error, raised)
        record = log.makeRecord(
            log.name, level, __file__, 0, template, arguments, exc_info, extra=fields
        )
        record.exc_text = shown
        log.handle(record)

    def _is_muted(self, held: HeldJob, ended: Ended | None) -> bool:
        if not self.muted or ended is None:
            return False
        if ended.reason == "worker lost":
            return cause_of(held.row.kind, ended.reason) in self.muted
        return ended.error is not None and ended.error.get("cause") in self.muted

    def _kind_of(self, held: HeldJob) -> Kind | None:
        try:
            return self._kinds.get(held.row.kind)
        except UnknownKind:
            return None


_LEVELS: Final = {
    "done": logging.DEBUG,
    "snoozed": logging.DEBUG,
    "released": logging.DEBUG,
    "cancelled": logging.INFO,
    "retried": logging.WARNING,
    "lost": logging.WARNING,
    "unknown": logging.WARNING,
    "dead": logging.ERROR,
}
_RUNS_AGAIN: Final = {"retried", "lost", "snoozed", "unknown", "released"}


def log_started(held: HeldJob, kind: Kind) -> None:
    """Log that the handler of a job starts. Never raises."""
    if log.isEnabledFor(logging.DEBUG):
        with contextlib.suppress(BaseException):  # see JobLog.ended
            fields = fields_of(held, kind)
            log.debug(
                f"job %s ({_in_template(held.row.kind)}), %s, started",  # noqa: G004 - see _message
                held.row.job_id,
                _attempt_text(fields),
                extra=fields,
            )


def fields_of(held: HeldJob, kind: Kind | None) -> dict[str, Any]:
    """Return the facts of an attempt that its records have as fields."""
    row = held.row
    fields: dict[str, Any] = {
        "job_id": row.job_id,
        "kind": row.kind,
        "queue": held.lane.queue,
        "attempt": row.attempts_used + 1,
        "max_attempts": row.max_attempts or _attempts_of(kind),
        "tag": row.tag,
        "correlation_id": row.correlation_id,
    }
    if held.lane.queue == DELIVERIES:
        fields["endpoint"] = row.limit_key
    return fields


def _attempts_of(kind: Kind | None) -> int | None:
    """Return how many attempts a kind allows; None where its handler decides."""
    most = kind.retry.max_attempts if kind else MAX_ATTEMPTS_MAX
    return None if most == MAX_ATTEMPTS_MAX else most


def _message(
    fields: dict[str, Any], ended: Ended | None, seconds: float | None
) -> tuple[str, tuple[Any, ...]]:
    """Return the message of a record and its arguments.

    The kind is part of the message, because tools such as Sentry group records by their message
    without arguments.
    """
    outcome = fields["outcome"]
    head = f"job %s ({_in_template(fields['kind'])}), %s, "
    after = "" if seconds is None else f" after {human_duration(seconds)}"
    arguments: tuple[Any, ...] = (fields["job_id"], _attempt_text(fields))
    if ended is None or outcome == "done":
        return f"{head}done%s", (*arguments, after)
    if outcome == "released":
        return f"{head}released without using an attempt", arguments
    again = f"runs again in {human_duration(ended.after)}" if ended.after else "runs again at once"
    if outcome == "snoozed":
        return f"{head}snoozed%s, %s", (*arguments, after, again)
    if outcome == "unknown":
        what = "no handler" if ended.error is None else ended.error["message"]
        return f"{head}postponed: %s in this worker, %s", (*arguments, what, again)
    error = error_text(ended)
    if outcome == "cancelled":
        return f"{head}cancelled%s%s", (*arguments, after, f": {error}" if error else "")
    if outcome in {"retried", "lost"}:
        return f"{head}failed%s, %s: %s", (*arguments, after, again, error)
    why = _WHY_DEAD.get(ended.reason or "", ended.reason)
    if seconds is None and ended.reason == "permanent":
        why = "its arguments do not fit the handler"
    return f"{head}failed%s and is a dead letter now, %s: %s", (*arguments, after, why, error)


def _in_template(kind: str) -> str:
    return escaped_controls(kind).replace("%", "%%")


def _attempt_text(fields: dict[str, Any]) -> str:
    text = f"attempt {fields['attempt']}"
    if "endpoint" in fields:
        text = f"endpoint {fields['endpoint']}, {text}"
    return text if fields["max_attempts"] is None else f"{text} of {fields['max_attempts']}"


def error_text(ended: Ended) -> str:
    """Return type and message of the error of an outcome; empty without an error."""
    if ended.error is None:
        return ""
    message = ended.error["message"][:_MESSAGE_CHARACTERS_MAX]
    return f"{ended.error['type']}: {message}" if message else str(ended.error["type"])


_ExcInfo = tuple[type[BaseException], BaseException, "TracebackType | None"]


def _exception(
    held: HeldJob, error: dict[str, Any], raised: Raised | None
) -> tuple[_ExcInfo | None, str | None]:
    """Return the exception for the record, and its text.

    The result is None for an outcome without an exception, such as ``Dead``.
    """
    if raised is None:
        if not error.get("traceback"):
            return None, None
        made = rebuilt(error)
        return (type(made), made, None), log_block(error["traceback"])
    exception = raised.error
    info = (type(exception), exception, shown_traceback(exception))
    if raised.shown_for is not None:
        return info, log_block(f"The traceback is that of job {raised.shown_for}.")
    raised.shown_for = held.row.job_id
    return info, log_block(describe_exception(exception).traceback)


class _ChildTraceback(Exception):  # noqa: N818 - what it shows
    """The traceback of an exception in a child process, as its cause: so it is shown where
    exceptions are.
    """

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def rebuilt(error: dict[str, Any]) -> BaseException:
    """Return an exception with the name and the message of one that was raised in a child
    process.
    """
    module, _, name = error["type"].rpartition(".")
    made: BaseException = type(name, (Exception,), {"__module__": module or "builtins"})(
        error["message"]
    )
    made.__cause__ = _ChildTraceback(error["traceback"])
    return made

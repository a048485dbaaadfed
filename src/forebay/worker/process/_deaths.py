"""Lines of the log for jobs that the database itself made dead letters.

A job that a claim or the sweep finds expired, and a job with the last of the workers that it
killed, have no attempt that ends in a worker. The call that wrote their dead letters tells its
caller of them: see ``forebay._report_deaths()``.

Invariant "told after the commit": a line is written only after the call succeeded. If its answer is
lost, so are its lines; the dead letters are there.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.model.text import escaped_controls, logger

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

log = logger("forebay.worker")

#: Most lines for the dead letters of one call; then a line tells how many more there are.
LINES_MAX: Final = 20


class _Death(msgspec.Struct):
    job_id: int
    kind: str
    queue: str
    reason: str
    attempt: int
    cause: str
    max_attempts: int | None = None
    tag: str | None = None
    correlation_id: str | None = None
    endpoint: str | None = None


class _Report(msgspec.Struct):
    total: int
    jobs: list[_Death]


_DECODER: Final = msgspec.json.Decoder(_Report)


def log_deaths(reports: Sequence[str], muted: Collection[str]) -> None:
    """Log the dead letters that one call has written: at ERROR, of muted causes at INFO.

    Never raises.

    Args:
        reports: what the call told of them, as JSON.
        muted: the muted causes.
    """
    try:
        found = [_DECODER.decode(report) for report in reports]
        deaths = [death for report in found for death in report.jobs][:LINES_MAX]
        for death in deaths:
            _log(death, is_muted=death.cause in muted)
        more = sum(report.total for report in found) - len(deaths)
        if more > 0:
            level = logging.INFO if all(death.cause in muted for death in deaths) else logging.ERROR
            log.log(level, "%s more jobs are dead letters now: forebay dead list", more)
    except Exception:  # a handler of the log may raise anything; see JobLog.ended
        if logging.raiseExceptions:
            with contextlib.suppress(Exception):
                traceback.print_exc(file=sys.stderr)


def _log(death: _Death, *, is_muted: bool) -> None:
    fields: dict[str, Any] = {
        name: getattr(death, name)
        for name in (
            "job_id",
            "kind",
            "queue",
            "attempt",
            "max_attempts",
            "tag",
            "correlation_id",
            "reason",
        )
    }
    fields["outcome"] = "dead"
    if death.endpoint is not None:
        fields["endpoint"] = death.endpoint
    to = "" if death.endpoint is None else f", endpoint {death.endpoint},"
    # The kind is part of the message, as in the lines of attempts.
    kind = escaped_controls(death.kind).replace("%", "%%")
    if death.reason == "expired":
        template = f"job %s ({kind})%s expired before a worker started it and is a dead letter now"
        arguments: tuple[Any, ...] = (death.job_id, to)
    else:
        template = (
            f"job %s ({kind})%s attempt %s, killed its worker each time it ran alone and is a "
            f"dead letter now"
        )
        arguments = (death.job_id, to or ",", death.attempt)
    if is_muted:
        template += " (this cause is muted)"
    log.log(logging.INFO if is_muted else logging.ERROR, template, *arguments, extra=fields)

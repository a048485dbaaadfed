"""The end of an attempt as a value, for listeners and tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from forebay.errors import UnknownKind
from forebay.model.attempts import AttemptEnded
from forebay.worker._job_log import error_text, rebuilt
from forebay.worker._running import job_of
from forebay.worker._stats import COUNTERS

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kinds
    from forebay.ops.protocol import Ended
    from forebay.worker._held import HeldJob

_RUNS_AGAIN: Final = {"retried", "snoozed", "postponed", "released"}


def attempt_ended(
    held: HeldJob, ended: Ended | None, *, kinds: Kinds, group: str, worker: str
) -> AttemptEnded:
    """Return the end of a job's attempt; None means done. Call it before the outcome is logged, which forgets the exception."""
    try:
        kind = kinds.get(held.row.kind)
    except UnknownKind:
        kind = None
    outcome = "done" if ended is None else COUNTERS[ended.outcome]
    error: BaseException | None = None
    if held.raised is not None:
        error = held.raised.error
    elif ended is not None and ended.error is not None and ended.error.get("traceback"):
        error = rebuilt(ended.error)
    return AttemptEnded(
        job=job_of(held, kind, group),
        outcome=outcome,
        error=error,
        message=None if ended is None else error_text(ended) or None,
        reason=None if ended is None else ended.reason,
        seconds=time.monotonic() - held.started_at if held.started_at else None,
        runs_again_in=(ended.after or 0.0)
        if ended is not None and outcome in _RUNS_AGAIN
        else None,
        worker=worker,
    )

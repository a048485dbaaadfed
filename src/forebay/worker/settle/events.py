"""The end of an attempt as a value, for listeners and tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import UnknownKind
from forebay.model.attempts import AttemptEnded
from forebay.worker.ground.held import job_of
from forebay.worker.ground.job_log import error_text, rebuilt
from forebay.worker.ground.stats import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.arguments.kinds import Kinds
    from forebay.model.attempts import AttemptOutcome
    from forebay.ops.protocol import Ended
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.settle.listeners import Listeners

_RUNS_AGAIN: Final = {"retried", "snoozed", "postponed", "released"}


class Announcer:
    """Gives the end of each attempt to the listeners of the application once it is settled, and to
    a test at once.

    Args:
        listeners: those of the application.
        on_attempt: that of a test.
        kinds: the handlers.
        group: name of the group.
        worker: name of the worker.
    """

    def __init__(
        self,
        listeners: Listeners,
        on_attempt: Callable[[AttemptEnded], None] | None,
        *,
        kinds: Kinds,
        group: str,
        worker: str,
    ) -> None:
        self._listeners = listeners
        self._on_attempt = on_attempt
        self._facts: dict[str, Any] = {"kinds": kinds, "group": group, "worker": worker}

    @property
    def is_needed(self) -> bool:
        """Whether anybody listens."""
        return self._on_attempt is not None or self._listeners.is_needed

    def ended(self, held: HeldJob, ended: Ended | None) -> None:
        """An attempt ended; its settlement follows, unless the handler's transaction made it."""
        is_wanted = self._listeners.wants(outcome_of(ended))
        if self._on_attempt is None and not is_wanted:
            return
        attempt = attempt_ended(held, ended, **self._facts)
        if self._on_attempt is not None:
            self._on_attempt(attempt)
        if not is_wanted:
            return
        announcement = self._listeners.announce(attempt)
        offset = held.row.offset
        if offset in held.batch.open_offsets:
            held.batch.announced[offset] = announcement
        else:
            self._listeners.recorded(announcement)


def outcome_of(ended: Ended | None) -> AttemptOutcome:
    """Return the outcome of an attempt as applications see it; None means done."""
    return "done" if ended is None else COUNTERS[ended.outcome]


def attempt_ended(
    held: HeldJob, ended: Ended | None, *, kinds: Kinds, group: str, worker: str
) -> AttemptEnded:
    """Return the end of a job's attempt; None means done.

    Call it before the outcome is logged, which forgets the exception.
    """
    try:
        kind = kinds.get(held.row.kind)
    except UnknownKind:
        kind = None
    outcome = outcome_of(ended)
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

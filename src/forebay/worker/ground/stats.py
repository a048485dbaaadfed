"""Counters of a worker."""

from __future__ import annotations

import threading
from dataclasses import field
from typing import TYPE_CHECKING, Final

from forebay._dataclass import dataclass

if TYPE_CHECKING:
    from forebay.model.attempts import AttemptOutcome
    from forebay.ops.protocol import OutcomeName

_COUNTING: Final = threading.Lock()


@dataclass(slots=True)
class Stats:
    """What a worker did since it started.

    Attributes:
        claimed: jobs that were claimed.
        done: attempts that ended done.
        ended: attempts that ended in any other way: the sum of the following six.
        retried: failed attempts of jobs that run again.
        dead: jobs that ended as dead letters.
        cancelled: jobs that ended as cancelled.
        snoozed: jobs that run again because their handlers returned ``Snooze``.
        postponed: jobs without a handler in this worker.
        released: jobs given back without using an attempt.
        leases_lost: leases that the worker lost.
        reconnects: how often claims lost the database.
        listener_errors: exceptions of listeners, and of middlewares around settlements.
        events_dropped: events whose listeners were not called, because too many waited.
        steps: how often the function of a step ended, by kind of the job and ``done`` or
            ``failed``; without those of handlers in other processes.
    """

    claimed: int = 0
    done: int = 0
    ended: int = 0
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    snoozed: int = 0
    postponed: int = 0
    released: int = 0
    leases_lost: int = 0
    reconnects: int = 0
    listener_errors: int = 0
    events_dropped: int = 0
    steps: dict[tuple[str, str], int] = field(default_factory=dict)

    def count_step(self, kind: str, outcome: str) -> None:
        """Count a step that ended; handlers in threads may call it at once."""
        with _COUNTING:
            self.steps[kind, outcome] = self.steps.get((kind, outcome), 0) + 1

    def count(self, outcome: OutcomeName) -> None:
        """Count the end of one attempt."""
        if outcome != "done":
            self.ended += 1
        counter = COUNTERS[outcome]
        setattr(self, counter, getattr(self, counter) + 1)


#: The counter of each outcome.
COUNTERS: Final[dict[OutcomeName, AttemptOutcome]] = {
    "done": "done",
    "retried": "retried",
    "lost": "retried",
    "dead": "dead",
    "cancelled": "cancelled",
    "snoozed": "snoozed",
    "unknown": "postponed",
    "released": "released",
}

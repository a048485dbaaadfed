"""Reports how jobs ended: the first decision counts, later ones are ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.ops.protocol import Ended
    from forebay.worker.ground.held import HeldJob, Lease
    from forebay.worker.run.call import Call


class Outcomes(Protocol):
    """The receiver of outcomes: the settler, or a child's pipe to its parent."""

    def done(self, jobs: Sequence[HeldJob]) -> None: ...
    def end(self, job: HeldJob, ended: Ended, *, solo: bool = False) -> None: ...
    def settled_by_handler(self, job: HeldJob, ended: Ended | None) -> None: ...

    def progress(self, jobs: Sequence[HeldJob], done: float, note: str) -> None:
        """The handler of these jobs reports how far it is; from any thread."""

    def lease_lost(self, lease: Lease) -> None:
        """The database says that a lease is lost."""

    def holds_back(self, job: HeldJob) -> bool:
        """Whether the breaker of a job's limit key is about to open, or opened since its claim."""


class OutcomeReporter:
    """Passes each job's outcome on, once.

    Owns the decision ``HeldJob.ended``. It guarantees that the outcome of a job is reported before
    the next job of its ordering key may start. It stores nothing: after a crash, a job whose
    outcome was not settled comes back.

    Args:
        outcomes: receives the outcome of each job.
        on_key_free: called when a job of an ordering key has ended, with its outcome.
    """

    def __init__(
        self, outcomes: Outcomes, on_key_free: Callable[[HeldJob, Ended | None], None]
    ) -> None:
        self._outcomes = outcomes
        self._on_key_free = on_key_free
        self.progress = outcomes.progress
        self.lease_lost = outcomes.lease_lost
        self.holds_back = outcomes.holds_back

    def finish(self, held: HeldJob, ended: Ended | None, *, solo: bool = False) -> None:
        """End a job, None for done; then the next job of its ordering key may start."""
        if held.ended:
            return
        self.end(held, ended, solo=solo)
        if held.row.ordering_key is not None:
            self._on_key_free(held, ended)

    def finish_all(self, call: Call, endeds: Sequence[Ended]) -> None:
        """End the jobs of a call that did not return."""
        for held, ended in zip(call.helds, endeds, strict=True):
            self.finish(held, ended, solo=call.kind.transaction)

    def finish_returned(self, helds: list[HeldJob], endeds: list[Ended | None]) -> None:
        """End the jobs of a call that returned."""
        if len(helds) == 1:
            self.finish(helds[0], endeds[0])
            return
        done: list[HeldJob] = []
        for held, ended in zip(helds, endeds, strict=True):
            if ended is not None:
                self.finish(held, ended)
            elif not held.ended:
                held.ended = True
                done.append(held)
        if done:
            self._outcomes.done(done)
        for held in done:
            if held.row.ordering_key is not None:
                self._on_key_free(held, None)

    def finish_committed(self, helds: list[HeldJob], endeds: list[Ended | None]) -> None:
        """End the jobs of a call whose own transaction settled them."""
        for held, ended in zip(helds, endeds, strict=True):
            if not held.ended:
                held.ended = True
                self._outcomes.settled_by_handler(held, ended)
                if held.row.ordering_key is not None:
                    self._on_key_free(held, ended)

    def end(self, held: HeldJob, ended: Ended | None, *, solo: bool = False) -> None:
        """End a job, without starting the next one of its ordering key."""
        held.ended = True
        if ended is None:
            self._outcomes.done([held])
        else:
            ended.offset = held.row.offset
            self._outcomes.end(held, ended, solo=solo)

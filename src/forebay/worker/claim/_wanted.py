"""How many jobs a worker claims: those for its free slots, and some in advance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policy.claims import claim_size

if TYPE_CHECKING:
    from collections.abc import Collection

    from forebay.worker.ground.common import Common
    from forebay.worker.run.executor import Executor

#: Up to this many queues the slowest one decides how many jobs are claimed in advance.
_FEW_QUEUES = 20


class Wanted:
    """Computes the number of jobs to claim.

    Owns nothing, and leaves nothing behind. It guarantees that no more jobs are in hand than the
    intake allows.

    Args:
        common: the handlers, the queues, the slots, the limits of claims, and what else bounds the
            number.
        executor: knows what runs and what waits for a slot.
    """

    def __init__(self, common: Common, executor: Executor) -> None:
        self._kinds = common.app.kinds
        self._settings = common.settings
        self._queues = common.weights
        self._intake = common.app.intake
        self._executor = executor

    def jobs(self, *, coming: int = 0) -> int:
        """Return how many jobs to claim.

        Args:
            coming: jobs that are claimed and not yet passed to the executor.
        """
        wanted = self._for_slots(coming)
        if self._intake is not None and (most := self._intake.rows_max()) is not None:
            in_hand = self._executor.busy + self._executor.buffered + coming
            return max(0, min(wanted, most - in_hand))
        return wanted

    def _for_slots(self, coming: int) -> int:
        settings, executor = self._settings, self._executor
        size = claim_size(
            max(0, executor.slots.concurrency - executor.busy - executor.starting - coming),
            concurrency=executor.slots.concurrency,
            buffered=executor.buffered + coming,
            waiting_for_key=executor.waiting_for_key,
            # The slowest queue decides: jobs claimed in advance for a slow handler would wait here.
            mean_seconds=_slowest(executor.mean_seconds.values()),
            ahead_seconds=settings.ahead_seconds,
            rows_max=settings.claim_rows_max,
            buffered_size=executor.buffered_size,
        )
        if executor.busy < executor.slots.concurrency and not (executor.buffered or coming):
            # A batch handler's slot takes as many jobs as its batch.
            # The user chose the batch size: it may exceed the limit of a claim.
            sizes = [k.batch_size for k in self._kinds if k.batch_size and k.queue in self._queues]
            return max([min(size, settings.claim_rows_max), *sizes])
        return min(size, settings.claim_rows_max)


def _slowest(means: Collection[float]) -> float | None:
    """Return the mean duration that decides.

    If there are very many queues, the 5 % with the highest means do not count: they may be
    accidents.
    """
    if len(means) <= _FEW_QUEUES:
        return max(means, default=None)
    return sorted(means)[int(len(means) * 0.95)]

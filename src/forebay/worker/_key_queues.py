"""Jobs of ordering keys that wait in this worker for an earlier job of their key.

Invariant: of a key the worker runs one job at a time, in order. A job that will run again blocks its key: what was claimed of the
key before the database knew that goes back, unstarted, to wait behind it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from forebay.worker._held import KeyQueue, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.ops.protocol import Ended
    from forebay.worker._held import Batch, HeldJob, Key

#: After these outcomes a job will run again, and those behind it in its ordering key have to wait for it.
_CONTINUES = frozenset({"retried", "lost", "snoozed", "unknown", "released"})


class KeyQueues:
    """The queues of the ordering keys that are in hand.

    Owns the order within a key: which job may start, which one comes next, and which ones must go back. Every job it takes up
    leaves it again: as the next one, as released, or dropped with its lease. It decides nothing about jobs without a key.

    A crash leaves nothing of it: the order is in the database, and the jobs are claimed anew in that order.

    Args:
        release: ends a job as given back unstarted.
    """

    def __init__(self, release: Callable[[HeldJob], None]) -> None:
        self._release = release
        self._queues: dict[Key, KeyQueue] = {}
        #: Of keys the last job that will run again, until no job can arrive that was claimed before the database knew it.
        self._continuing: dict[Key, HeldJob] = {}
        #: How many jobs wait behind the first one of their key.
        self.waiting = 0

    def forget_settled(self, batch: Batch) -> None:
        """A batch arrived: of batches that are claimed from this one on, jobs of some keys are no longer too early."""
        if self._continuing:
            self._continuing = {
                key: held
                for key, held in self._continuing.items()
                if key[0] is not batch.lease
                or held.batch.was_before(held.row.offset, batch.claim_no)
            }

    def is_first(self, held: HeldJob) -> bool:
        """Whether a job of a key may wait for a slot; else it was queued behind another of its key, or released."""
        key = key_of(held)
        queue = self._queues.get(key)
        if queue is not None:
            held.key_queue = queue
            queue.waiting.append(held)
            self.waiting += 1
            return False
        if key in self._continuing:
            # The claim was made before the database knew that an earlier one will run again.
            self._release_early(held)
            return False
        held.key_queue = self._queues[key] = KeyQueue(key, held)
        return True

    def next_after(self, held: HeldJob, ended: Ended | None) -> HeldJob | None:
        """A job of a key ended: return the next one of the key, which may start; None when there is none.

        When the job will run again, all that wait behind it are released.
        """
        held.follows = None
        queue = held.key_queue
        if ended is not None and ended.outcome in _CONTINUES:
            self._record_continuing(held)
        elif queue is not None and queue.first is held and queue.waiting:
            follower = queue.first = queue.waiting.popleft()
            self.waiting -= 1
            follower.follows = held
            return follower
        self.release_behind(held)
        return None

    def release_behind(self, held: HeldJob) -> None:
        """Release what waits behind a job, if it is the first of its key; its queue ends."""
        queue = held.key_queue
        if queue is not None and queue.first is held:
            self._release_queue(queue)

    def release_all(self) -> int:
        """Release everything that waits; return how many jobs."""
        return sum(self._release_queue(queue) for queue in list(self._queues.values()))

    def drop(self, is_lost: Callable[[HeldJob], bool], *, whole_lease: bool) -> list[int]:
        """Forget jobs that are no longer ours; return their ids. Nothing is settled of them.

        Args:
            is_lost: which jobs.
            whole_lease: all of a lease, not single batches.
        """
        dropped: list[int] = []
        for queue in list(self._queues.values()):
            lost = [held for held in queue.waiting if is_lost(held)]
            dropped.extend(held.row.job_id for held in lost)
            self.waiting -= len(lost)
            queue.waiting = deque(held for held in queue.waiting if not is_lost(held))
            if is_lost(queue.first):
                self._release_queue(queue)
        if whole_lease:
            self._continuing = {
                key: held for key, held in self._continuing.items() if not is_lost(held)
            }
        return dropped

    def _release_queue(self, queue: KeyQueue) -> int:
        if self._queues.get(queue.key) is queue:
            del self._queues[queue.key]
        count = len(queue.waiting)
        self.waiting -= count
        while queue.waiting:
            self._release_early(queue.waiting.popleft())
        return count

    def _release_early(self, held: HeldJob) -> None:
        # Until that is settled the database takes it for one that is worked here, and hands out those behind it.
        self._release(held)
        self._record_continuing(held)

    def _record_continuing(self, held: HeldJob) -> None:
        held.batch.continues(held.row.offset)
        self._continuing[key_of(held)] = held

"""Jobs of ordering keys that wait in this worker for an earlier job of their key.

Invariant: the worker runs one job of a key at a time, in order. A job that will run again blocks its key: later jobs of the
key that were claimed before the database knew this are released, so that they run after it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from forebay.worker._held import KeyQueue, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.ops.protocol import Ended
    from forebay.worker._held import Batch, HeldJob, Key

#: After these outcomes a job will run again, and later jobs of its ordering key must wait for it.
_CONTINUES = frozenset({"retried", "lost", "snoozed", "unknown", "released"})


class KeyQueues:
    """The queues of the ordering keys with jobs in this worker.

    Owns the order within a key: which job may start, which one is next, and which ones must be released. Every job that it
    accepts leaves it again: as the next job, released, or dropped with its lease. It does not handle jobs without a key.

    A crash loses only these queues: the order is in the database, and the jobs are claimed again in that order.

    Args:
        release: ends a job as released, without starting it.
    """

    def __init__(self, release: Callable[[HeldJob], None]) -> None:
        self._release = release
        self._queues: dict[Key, KeyQueue] = {}
        #: By key, the last job that will run again, while jobs that were claimed before the database knew this can arrive.
        self._continuing: dict[Key, HeldJob] = {}
        #: The number of jobs that wait for the first one of their key.
        self.waiting = 0
        #: The size of these jobs.
        self.waiting_size = 0

    def forget_settled(self, batch: Batch) -> None:
        """A batch arrived: forget the keys whose jobs in this and later batches were not claimed too early."""
        if self._continuing:
            self._continuing = {
                key: held
                for key, held in self._continuing.items()
                if key[0] is not batch.lease
                or held.batch.was_before(held.row.offset, batch.claim_no)
            }

    def is_first(self, held: HeldJob) -> bool:
        """Return whether a job of a key may wait for a slot; otherwise queue it after another of its key, or release it."""
        key = key_of(held)
        queue = self._queues.get(key)
        if queue is not None:
            held.key_queue = queue
            queue.waiting.append(held)
            self._count(held, 1)
            return False
        if key in self._continuing:
            # This job was claimed before the database knew that an earlier one will run again.
            self._release_early(held)
            return False
        held.key_queue = self._queues[key] = KeyQueue(key, held)
        return True

    def next_after(self, held: HeldJob, ended: Ended | None) -> HeldJob | None:
        """A job of a key ended: return the next job of the key, which may start; None if there is none.

        If the ended job will run again, release all jobs that wait for it.
        """
        held.follows = None
        queue = held.key_queue
        if ended is not None and ended.outcome in _CONTINUES:
            self._record_continuing(held)
        elif queue is not None and queue.first is held and queue.waiting:
            follower = queue.first = queue.waiting.popleft()
            self._count(follower, -1)
            follower.follows = held
            return follower
        self.release_behind(held)
        return None

    def release_behind(self, held: HeldJob) -> None:
        """If a job is the first of its key, release all jobs that wait for it and end the queue."""
        queue = held.key_queue
        if queue is not None and queue.first is held:
            self._release_queue(queue)

    def release_all(self) -> int:
        """Release all waiting jobs; return how many."""
        return sum(self._release_queue(queue) for queue in list(self._queues.values()))

    def drop(self, is_lost: Callable[[HeldJob], bool], *, whole_lease: bool) -> list[int]:
        """Drop jobs that no longer belong to this worker, without settling them; return their ids.

        Args:
            is_lost: selects the jobs.
            whole_lease: the jobs are a whole lease, not single batches.
        """
        dropped: list[int] = []
        for queue in list(self._queues.values()):
            lost = [held for held in queue.waiting if is_lost(held)]
            dropped.extend(held.row.job_id for held in lost)
            for held in lost:
                self._count(held, -1)
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
        while queue.waiting:
            held = queue.waiting.popleft()
            self._count(held, -1)
            self._release_early(held)
        return count

    def _count(self, held: HeldJob, change: int) -> None:
        self.waiting += change
        self.waiting_size += change * held.row.size

    def _release_early(self, held: HeldJob) -> None:
        # Until the release is settled the database counts this job as claimed here, and gives out the later ones.
        self._release(held)
        self._record_continuing(held)

    def _record_continuing(self, held: HeldJob) -> None:
        held.batch.continues(held.row.offset)
        self._continuing[key_of(held)] = held

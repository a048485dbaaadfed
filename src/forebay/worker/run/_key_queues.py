"""Jobs of ordering keys that wait in this worker for an earlier job of their key.

Invariant: the worker runs one job of a key at a time, in order. A job that will run again, or whose
dead letter holds the key, blocks its key: later jobs that were claimed before the database knew
this are released, so that they run after it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from forebay.ops.protocol import Ended
    from forebay.worker.ground.held import Batch, HeldJob, Lease

    #: An ordering key within a lease: the same text is another key in another queue.
    Key: TypeAlias = tuple[Lease, int, str]

#: After these outcomes a job will run again, and later jobs of its ordering key must wait for it.
_CONTINUES = frozenset({"retried", "lost", "snoozed", "unknown", "released"})


class KeyQueues:
    """The queues of the ordering keys with jobs in this worker.

    Owns the order within a key: which job may start, which one is next, and which ones must be
    released. Every job that it accepts leaves it again: as the next job, released, or dropped with
    its lease. Jobs without a key may start at once.

    A crash loses only these queues: the order is in the database, and the jobs are claimed again in
    that order.

    Args:
        release: ends a job as released, without starting it.
    """

    def __init__(self, release: Callable[[HeldJob], None]) -> None:
        self._release = release
        #: The job of each key that runs or waits for a slot. Jobs do not refer to their key: cycles
        #: would wait for the collector.
        self._first: dict[Key, HeldJob] = {}
        #: The jobs of each key that wait for the first one, in order; only keys with such jobs.
        self._behind: dict[Key, deque[HeldJob]] = {}
        #: The last job of each key that will run again, while jobs that were claimed before the
        #: database knew this can arrive.
        self._continuing: dict[Key, HeldJob] = {}
        #: The number of jobs that wait for the first one of their key.
        self.waiting = 0
        #: The size of these jobs.
        self.waiting_size = 0

    def admit(self, helds: Sequence[HeldJob]) -> list[HeldJob]:
        """Return those jobs of a claim that may wait for a slot.

        Queue the others after one of their key, or release them.
        """
        if not helds:
            return []
        self._forget_settled(helds[0].batch)
        lease, group_id = helds[0].lease, helds[0].lane.group_id
        firsts, ready = self._first, []
        for held in helds:
            name = held.row.ordering_key
            if name is not None:
                key = lease, group_id, name
                if key in firsts:
                    self._behind.setdefault(key, deque()).append(held)
                    self._count(held, 1)
                    continue
                if key in self._continuing:
                    # This job was claimed before the database knew that an earlier one will run
                    # again.
                    self._release_early(held)
                    continue
                firsts[key] = held
            ready.append(held)
        return ready

    def next_after(self, held: HeldJob, ended: Ended | None) -> HeldJob | None:
        """A job of a key ended: return the next job of the key, which may start.

        The result is None if there is no such job.

        If the ended job will run again, or holds its key as a dead letter, release all jobs that
        wait for it.
        """
        held.follows = None
        if ended is not None and (ended.outcome in _CONTINUES or ended.holds_key is True):
            self._record_continuing(held)
            self.release_behind(held)
            return None
        key = _key_of(held)
        if self._first.get(key) is not held:
            return None
        behind = self._behind.get(key)
        if behind is None:
            del self._first[key]
            return None
        follower = self._first[key] = behind.popleft()
        if not behind:
            del self._behind[key]
        self._count(follower, -1)
        follower.follows = held
        return follower

    def release_behind(self, held: HeldJob) -> None:
        """If a job is the first of its key, release all jobs that wait for it and end the queue."""
        key = _key_of(held)
        if self._first.get(key) is held:
            self._release_queue(key)

    def release_all(self) -> int:
        """Release all waiting jobs; return how many."""
        return sum(self._release_queue(key) for key in list(self._first))

    def drop(self, is_lost: Callable[[HeldJob], bool], *, whole_lease: bool) -> list[int]:
        """Drop jobs that no longer belong to this worker, without settling them; return their ids.

        Args:
            is_lost: selects the jobs.
            whole_lease: the jobs are a whole lease, not single batches.
        """
        dropped: list[int] = []
        for key, behind in list(self._behind.items()):
            lost = [held for held in behind if is_lost(held)]
            dropped.extend(held.row.job_id for held in lost)
            for held in lost:
                self._count(held, -1)
            kept = deque(held for held in behind if not is_lost(held))
            if kept:
                self._behind[key] = kept
            else:
                del self._behind[key]
        for key in [key for key, first in self._first.items() if is_lost(first)]:
            self._release_queue(key)
        if whole_lease:
            self._continuing = {
                key: held for key, held in self._continuing.items() if not is_lost(held)
            }
        return dropped

    def _forget_settled(self, batch: Batch) -> None:
        """A batch arrived: forget the keys whose jobs in this and later batches were not claimed
        too early.
        """
        if self._continuing:
            self._continuing = {
                key: held
                for key, held in self._continuing.items()
                if key[0] is not batch.lease
                or held.batch.was_before(held.row.offset, batch.claim_no)
            }

    def _release_queue(self, key: Key) -> int:
        del self._first[key]
        behind = self._behind.pop(key, None)
        if behind is None:
            return 0
        for held in behind:
            self._count(held, -1)
            self._release_early(held)
        return len(behind)

    def _count(self, held: HeldJob, change: int) -> None:
        self.waiting += change
        self.waiting_size += change * held.row.size

    def _release_early(self, held: HeldJob) -> None:
        # Until the release is settled the database counts this job as claimed here, and gives out
        # the later ones.
        self._release(held)
        self._record_continuing(held)

    def _record_continuing(self, held: HeldJob) -> None:
        held.batch.continues(held.row.offset)
        self._continuing[_key_of(held)] = held


def _key_of(held: HeldJob) -> Key:
    return held.batch.lease, held.lane.group_id, held.row.ordering_key or ""

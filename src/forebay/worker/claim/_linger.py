"""Pauses between the claims of queues whose batch handlers wait for fuller calls.

Invariant: a queue is delayed only after a claim that found fewer jobs than it asked for, and for at
most ``linger`` seconds. Meanwhile its jobs are not claimed: other workers may take them, and
neither a stop nor a crash concerns them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forebay.model.text import logger
from forebay.policy.claims import is_full_claim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from forebay.arguments.kinds import Kind
    from forebay.ops.claimed import ClaimedJob
    from forebay.ops.protocol import ReadyLane

log = logger("forebay.worker")

#: Other queues are polled this often while a queue is delayed.
_POLL_SECONDS = 0.02


class Linger:
    """Decides when to claim next from a queue of batch handlers with ``linger``, and how many jobs.

    Owns the time until which each lane is delayed. A claim of such a lane asks for whole calls. It
    never changes claims from other queues, from lanes with limits, of retries and of suspects.

    A crash loses only these times.

    Args:
        kinds: the handlers of the worker.
        clock: the monotonic clock, in seconds.
    """

    def __init__(self, kinds: Iterable[Kind], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        by_queue: dict[str, list[Kind]] = {}
        for kind in kinds:
            by_queue.setdefault(kind.queue, []).append(kind)
        #: By queue, the size of a call and the longest pause.
        self._rules: dict[str, tuple[int, float]] = {}
        for queue, its in by_queue.items():
            rules = [(k.batch_size, k.linger_seconds) for k in its if k.batch_size]
            sizes = [size for size, _ in rules]
            pauses = [seconds for _, seconds in rules if seconds is not None]
            if len(pauses) == len(its):
                self._rules[queue] = (min(sizes), min(pauses))
            elif pauses:
                log.warning(
                    "linger has no effect in queue %s: not every handler of the queue declares it",
                    queue,
                )
        #: By lane, until when it is delayed.
        self._until: dict[int, float] = {}

    def open(self, lanes: Iterable[ReadyLane]) -> list[ReadyLane]:
        """Return the lanes that are not delayed."""
        now = self._clock()
        return [lane for lane in lanes if self._until.get(lane.lane, now) <= now]

    def pause_seconds(self, lanes: Iterable[ReadyLane], default: float) -> float:
        """Return how long to pause after no ready lane gave a job.

        The result is ``default`` unless all are delayed.
        """
        now = self._clock()
        return min(
            (
                max(default, min(self._until.get(lane.lane, now) - now, _POLL_SECONDS))
                for lane in lanes
            ),
            default=default,
        )

    def rows(self, lane: ReadyLane, count: int) -> int:
        """Return how many jobs to claim instead of ``count``: 0 if the lane is delayed, otherwise
        those of whole calls.
        """
        if count <= 0 or not self._applies(lane):
            return count
        if not self.open([lane]):
            return 0
        size = self._rules[lane.queue][0]
        return -(-count // size) * size

    def record(self, lane: ReadyLane, *, asked: int, rows: Sequence[ClaimedJob]) -> None:
        """Record a claim that returned jobs.

        A claim that got fewer than it wanted, and not because of their size, emptied the lane.
        """
        if not self._applies(lane):
            return
        if not is_full_claim(asked, jobs=len(rows), size=sum(row.size for row in rows)):
            self._until[lane.lane] = self._clock() + self._rules[lane.queue][1]

    def _applies(self, lane: ReadyLane) -> bool:
        return lane.queue in self._rules and not (
            lane.is_private or lane.is_suspect or lane.is_limited
        )

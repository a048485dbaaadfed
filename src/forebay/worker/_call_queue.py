"""The calls of handlers that wait for a slot, in order."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from forebay.arguments.kinds import Kind
    from forebay.worker._held import HeldJob

    #: A handler, the jobs of one call of it, and their arguments. The arguments of a large claim are text in the jobs.
    WaitingCall: TypeAlias = tuple[Kind, list[HeldJob], list[Any]]


class CallQueue:
    """The waiting calls, and how many jobs they have.

    Owns the order of the calls. A job that is added leaves in a call, once. Calls leave in the order in which they came, and the
    calls of a lane always do. Calls of other lanes may pass those whose arguments are text.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        #: With their numbers, calls whose arguments are text, and calls of the same lanes behind them.
        self._slow: deque[tuple[int, WaitingCall]] = deque()
        #: With their numbers, all other calls.
        self._quick: deque[tuple[int, WaitingCall]] = deque()
        #: By lane, the number of calls in ``_slow``.
        self._slow_lanes: dict[int, int] = {}
        self._last: WaitingCall | None = None
        #: The number of jobs in all calls.
        self.jobs = 0
        #: Their size in the answers to their claims.
        self.size = 0
        #: The number of calls whose arguments are text.
        self.texts = 0

    def __len__(self) -> int:
        return len(self._slow) + len(self._quick)

    def __bool__(self) -> bool:
        return bool(self._quick or self._slow)

    @property
    def starts_with_text(self) -> bool:
        """Whether the arguments of the next call are text."""
        return self.texts > 0 and self._is_slow_next() and self._slow[0][1][1][0].row.is_text

    @property
    def passing(self) -> int:
        """The number of calls that may pass those whose arguments are text."""
        return len(self._quick)

    def is_next(self, kind: Kind, more_than: int) -> bool:
        """Whether the next call is of a kind, and more calls wait than a number; from any thread, where it may be a little out of date."""
        try:
            return len(self._quick) > more_than and self._quick[0][1][0] is kind
        except IndexError:
            return False

    @property
    def last(self) -> WaitingCall | None:
        """The call that was added last; None if it does not wait any more."""
        return self._last

    def append(self, kind: Kind, held: HeldJob, item: Any) -> WaitingCall:
        """Add a call with one job, and return it."""
        call = (kind, [held], [item])
        row = held.row
        if row.is_text or (self._slow_lanes and held.lane.lane in self._slow_lanes):
            lane = held.lane.lane
            self._slow.append((next(self._numbers), call))
            self._slow_lanes[lane] = self._slow_lanes.get(lane, 0) + 1
            self.texts += row.is_text
        else:
            self._quick.append((next(self._numbers), call))
        self._last = call
        self.jobs += 1
        self.size += row.size
        return call

    def extend(self, call: WaitingCall, held: HeldJob, item: Any) -> None:
        """Add a job of the same claim to a waiting call."""
        call[1].append(held)
        call[2].append(item)
        self.jobs += 1
        self.size += held.row.size

    def pop(self) -> WaitingCall:
        """Remove the first call and return it."""
        if not (self._slow and self._is_slow_next()):
            return self.pop_passing()
        _, call = self._slow.popleft()
        self._forget(call)
        self._leave_lane(call)
        return call

    def pop_passing(self) -> WaitingCall:
        """Remove the first call that may pass those whose arguments are text, and return it; there must be one."""
        _, call = self._quick.popleft()
        if call is self._last:
            self._last = None
        helds = call[1]
        if len(helds) == 1:
            self.jobs -= 1
            self.size -= helds[0].row.size
        else:
            self._uncount(helds)
        return call

    def drop(self, is_lost: Callable[[HeldJob], bool]) -> list[int]:
        """Remove calls whose jobs no longer belong to this worker; return the ids of the jobs."""
        lost = [call for _, call in (*self._slow, *self._quick) if is_lost(call[1][0])]
        for _, call in self._slow:
            if is_lost(call[1][0]):
                self._leave_lane(call)
        self._slow = deque(item for item in self._slow if not is_lost(item[1][1][0]))
        self._quick = deque(item for item in self._quick if not is_lost(item[1][1][0]))
        for call in lost:
            self._forget(call)
        return [held.row.job_id for _, helds, _ in lost for held in helds]

    def _is_slow_next(self) -> bool:
        return bool(self._slow) and (not self._quick or self._slow[0][0] < self._quick[0][0])

    def _leave_lane(self, call: WaitingCall) -> None:
        held = call[1][0]
        self.texts -= held.row.is_text
        lane = held.lane.lane
        self._slow_lanes[lane] -= 1
        if not self._slow_lanes[lane]:
            del self._slow_lanes[lane]

    def _forget(self, call: WaitingCall) -> None:
        if call is self._last:
            self._last = None
        self._uncount(call[1])

    def _uncount(self, helds: list[HeldJob]) -> None:
        self.jobs -= len(helds)
        self.size -= sum(held.row.size for held in helds)

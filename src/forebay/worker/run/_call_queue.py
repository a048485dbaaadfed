"""The calls of handlers that wait for a slot, in order."""

from __future__ import annotations

import itertools
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from forebay.arguments.kinds import Kind
    from forebay.worker.ground.held import HeldJob

    #: A handler, the jobs of one call of it, and their arguments. The arguments of a large claim
    #: are text in the jobs.
    WaitingCall: TypeAlias = tuple[Kind, list[HeldJob], list[Any]]


class _Line:
    """Calls in turns: each call that comes gives its queue a turn, and in a turn the call of the
    queue with the first priority leaves.

    Owns the order of its calls. It stores nothing. So a job of a high priority does not wait behind
    jobs of its queue that were claimed in advance, and no queue loses its turns to another one.
    """

    def __init__(self) -> None:
        #: The queues in the order of their turns, with the number of the call that came.
        self._turns: deque[tuple[int, str]] = deque()
        #: A heap of priorities, numbers and calls for each queue. Calls that came in order are
        #: a heap already.
        self._calls: dict[str, list[tuple[int, int, WaitingCall]]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[WaitingCall]:
        return (call for calls in self._calls.values() for _, _, call in sorted(calls))

    @property
    def first_no(self) -> int:
        """The number of the next turn; there must be one."""
        return self._turns[0][0]

    @property
    def first(self) -> WaitingCall:
        """The next call; there must be one."""
        return self._calls[self._turns[0][1]][0][2]

    def append(self, number: int, call: WaitingCall) -> None:
        lane = call[1][0].lane
        queue = lane.queue
        self._turns.append((number, queue))
        calls = self._calls.get(queue)
        if calls is None:
            self._calls[queue] = [(lane.priority, number, call)]
        else:
            heappush(calls, (lane.priority, number, call))

    def pop(self) -> WaitingCall:
        queue = self._turns.popleft()[1]
        calls = self._calls[queue]
        if len(calls) == 1:
            del self._calls[queue]
            return calls[0][2]
        return heappop(calls)[2]

    def remove(self, is_lost: Callable[[WaitingCall], bool]) -> list[WaitingCall]:
        """Remove some calls with the last turns of their queues, and return them."""
        lost = [call for call in self if is_lost(call)]
        if lost:
            left = {
                queue: [item for item in calls if not is_lost(item[2])]
                for queue, calls in self._calls.items()
            }
            turns: deque[tuple[int, str]] = deque()
            counts = {queue: len(calls) for queue, calls in left.items()}
            for number, queue in self._turns:
                if counts[queue]:
                    counts[queue] -= 1
                    turns.append((number, queue))
            self._turns = turns
            self._calls = {queue: calls for queue, calls in left.items() if calls}
            for calls in self._calls.values():
                heapify(calls)
        return lost


class CallQueue:
    """The waiting calls, and how many jobs they have.

    Owns the order of the calls. A job that is added leaves in a call, once. Calls leave in the
    order in which they came, except that those of a higher priority pass others of their queue. The
    calls of a lane leave in the order in which they came. Calls of other lanes may pass those whose
    arguments are text.

    Low priorities wait no longer than claims take to fill the places: calls that are passed keep
    their places, so that fewer jobs are claimed, until no call is left that can pass.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        #: Calls whose arguments are text, and calls of the same lanes behind them.
        self._slow = _Line()
        #: All other calls.
        self._quick = _Line()
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
        return self.texts > 0 and self._is_slow_next() and self._slow.first[1][0].row.is_text

    @property
    def passing(self) -> int:
        """The number of calls that may pass those whose arguments are text."""
        return len(self._quick)

    def is_next(self, kind: Kind, more_than: int) -> bool:
        """Whether the next call is of a kind, and more calls wait than a number.

        Any thread may call it; the answer may be a little out of date there.
        """
        try:
            return len(self._quick) > more_than and self._quick.first[0] is kind
        except LookupError:
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
            self._slow.append(next(self._numbers), call)
            self._slow_lanes[lane] = self._slow_lanes.get(lane, 0) + 1
            self.texts += row.is_text
        else:
            self._quick.append(next(self._numbers), call)
        self._last = call
        self.jobs += 1
        self.size += row.size
        return call

    def append_many(self, kind: Kind, helds: list[HeldJob], items: list[Any]) -> None:
        """Add a call with several jobs of one claim, none of which has arguments to decode."""
        call = (kind, helds, items)
        lane = helds[0].lane.lane
        if lane in self._slow_lanes:
            self._slow.append(next(self._numbers), call)
            self._slow_lanes[lane] += 1
        else:
            self._quick.append(next(self._numbers), call)
        self._last = call
        self.jobs += len(helds)
        self.size += sum(held.row.size for held in helds)

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
        call = self._slow.pop()
        self._forget(call)
        self._leave_lane(call)
        return call

    def pop_passing(self) -> WaitingCall:
        """Remove the first call that may pass those whose arguments are text, and return it.

        The queue must have such a call.
        """
        call = self._quick.pop()
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
        slow = self._slow.remove(lambda call: is_lost(call[1][0]))
        for call in slow:
            self._leave_lane(call)
        lost = slow + self._quick.remove(lambda call: is_lost(call[1][0]))
        for call in lost:
            self._forget(call)
        return [held.row.job_id for _, helds, _ in lost for held in helds]

    def _is_slow_next(self) -> bool:
        return bool(self._slow) and (not self._quick or self._slow.first_no < self._quick.first_no)

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

"""The calls of handlers that wait for a slot, in order."""

from __future__ import annotations

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

    Owns the order of the calls. A job that is added leaves in a call, once.
    """

    def __init__(self) -> None:
        self._calls: deque[WaitingCall] = deque()
        #: The number of jobs in all calls.
        self.jobs = 0
        #: Their size in the answers to their claims.
        self.size = 0
        #: The number of calls whose arguments are text.
        self.texts = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def starts_with_text(self) -> bool:
        """Whether the arguments of the next call are text."""
        return self.texts > 0 and self._calls[0][1][0].row.is_text

    @property
    def last(self) -> WaitingCall:
        """The last call; there must be one."""
        return self._calls[-1]

    def append(self, kind: Kind, held: HeldJob, item: Any) -> WaitingCall:
        """Add a call with one job, and return it."""
        call = (kind, [held], [item])
        self._calls.append(call)
        self.jobs += 1
        self.size += held.row.size
        self.texts += held.row.is_text
        return call

    def extend(self, call: WaitingCall, held: HeldJob, item: Any) -> None:
        """Add a job of the same claim to a waiting call."""
        call[1].append(held)
        call[2].append(item)
        self.jobs += 1
        self.size += held.row.size

    def pop(self) -> WaitingCall:
        """Remove the first call and return it."""
        call = self._calls.popleft()
        self._forget(call)
        return call

    def drop(self, is_lost: Callable[[HeldJob], bool]) -> list[int]:
        """Remove calls whose jobs no longer belong to this worker; return the ids of the jobs."""
        lost = [call for call in self._calls if is_lost(call[1][0])]
        self._calls = deque(call for call in self._calls if not is_lost(call[1][0]))
        for call in lost:
            self._forget(call)
        return [held.row.job_id for _, helds, _ in lost for held in helds]

    def _forget(self, call: WaitingCall) -> None:
        self.jobs -= len(call[1])
        self.size -= sum(held.row.size for held in call[1])
        self.texts -= call[1][0].row.is_text

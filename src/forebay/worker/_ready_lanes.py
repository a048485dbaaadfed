"""Polls: which lanes have jobs that this worker can claim."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from forebay.ops import protocol

if TYPE_CHECKING:
    from forebay.db.session import Session
    from forebay.ops.protocol import ReadyLane
    from forebay.worker._held import Lease
    from forebay.worker._leases import LeaseKeeper
    from forebay.worker._polling import PollLeadership
    from forebay.worker._signals import Signals

#: How long claimed jobs wait for the answer to a poll before they are started. The poll comes first because handlers that never
#: wait occupy the loop: the next claim would be sent only when they have ended.
_POLL_FIRST_SECONDS: Final = 0.005


class ReadyLanes:
    """The answers to the polls of a worker.

    Owns the last answer, and a poll that is under way between two claims. It guarantees that no answer is used twice. It stores
    nothing: a poll changes nothing except the wake-ups of sleeping workers.

    Args:
        session: the connection for claims.
        leases: has the groups that the worker serves.
        leadership: decides for how long producers notify after a poll without a ready lane, and who leads.
        signals: has the state of the claim loop.
        poll_seconds: how long an answer counts as recent.
    """

    def __init__(
        self,
        session: Session,
        leases: LeaseKeeper,
        leadership: PollLeadership,
        signals: Signals,
        poll_seconds: float,
    ) -> None:
        self._session = session
        self._leases = leases
        self._leadership = leadership
        self._signals = signals
        self._poll_seconds = poll_seconds
        self._between_claims: asyncio.Task[list[ReadyLane]] | None = None
        #: The lanes that were ready at the last poll, and are the only ones as far as is known until ``until``.
        self.last: frozenset[int] = frozenset()
        #: The time (monotonic clock) at which the last poll is no longer recent.
        self.until = 0.0

    async def next(self) -> list[ReadyLane]:
        """Return the ready lanes, by the poll that was sent between two claims, or by a new one."""
        poll, self._between_claims = self._between_claims, None
        # An answer without lanes is not used: a job that ran meanwhile may have made some ready.
        return (await poll if poll else []) or await self._poll()

    async def only_until(self, lease: Lease, lane: ReadyLane) -> float:
        """Poll between two claims: return until when (monotonic clock) a lane counts as the only ready one, 0.0 if it is not.

        The jobs of the claim before wait for the answer, for a short time only, and whatever the answer is: this does not raise
        its error. ``next`` returns an answer with other lanes. A leader does not poll here, because it has to resign.
        """
        if self._leases.current is not lease or self._leadership.held:
            return 0.0
        self._between_claims = poll = asyncio.create_task(self._poll())
        await asyncio.wait({poll}, timeout=_POLL_FIRST_SECONDS)
        if not poll.done() or poll.exception() or poll.result() != [lane]:
            return 0.0
        self._between_claims = None
        self._signals.failed_claims = 0
        self._signals.outage.answered("claims")
        return self.until

    def forget(self) -> None:
        """Forget a poll that is under way: the groups have other ids now, or the worker stops."""
        if self._between_claims is not None:
            self._between_claims.cancel()
            self._between_claims = None

    async def _poll(self) -> list[ReadyLane]:
        called_at = time.monotonic()
        lanes = await self._session.run(
            protocol.ready(list(self._leases.groups), sleep_millis=self._leadership.sleep_millis)
        )
        self._signals.has_polled = True
        self.last = frozenset(lane.lane for lane in lanes)
        self.until = called_at + self._poll_seconds
        return lanes

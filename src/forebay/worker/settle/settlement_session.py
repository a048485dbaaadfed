"""The connection for settlements of a worker that may be at rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from forebay.db.session import Session
    from forebay.ops.operation import Operation

T = TypeVar("T")

#: After this time without a settlement the connection is closed.
REST_SECONDS: Final = 3.0


class SettlementSession:
    """Runs settlements on a separate connection while there are many, and beside the claims while
    there are few.

    The first settlement after a rest uses the connection for claims, unless a call is under way
    there. The next one opens the connection for settlements. So a claim never waits behind more
    than one settlement, and a worker with a job now and then keeps one connection for both.

    Args:
        own: the connection for settlements.
        claims: the connection for claims.
    """

    def __init__(self, own: Session, claims: Session) -> None:
        self._own = own
        self._claims = claims
        self._used_at = 0.0

    async def run(self, operation: Operation[T], *, seconds: float | None = None) -> T:
        """Run an operation; see ``Session.run``."""
        now = time.monotonic()
        is_rested, self._used_at = now - self._used_at >= REST_SECONDS, now
        if is_rested and not self._own.is_open and self._claims.is_free:
            return await self._claims.run(operation, seconds=seconds)
        return await self._own.run(operation, seconds=seconds)

    async def rest(self) -> None:
        """Close the connection for settlements if it was not used for some time."""
        await self._own.rest(REST_SECONDS * 0.9)

"""Takes jobs over from workers that fell silent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forebay.model.attempts import LostWorker
from forebay.model.text import counted, logger
from forebay.ops import maintenance, protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.db.session import Session
    from forebay.policy.server_clock import ServerClock

log = logger("forebay.maintenance")


class LostLeases:
    """Revokes leases whose workers were not heard for too long.

    Args:
        session: the connection of maintenance.
        server_clock: what this process observed of the server's clock: a lease is silent for no
            longer than that.
        on_lost: called with each worker that lost its lease.
    """

    def __init__(
        self, session: Session, server_clock: ServerClock, on_lost: Callable[[LostWorker], None]
    ) -> None:
        self._session = session
        self._server_clock = server_clock
        self._on_lost = on_lost

    async def revoke(self) -> bool:
        """Revoke at most one lease; return whether there was one."""
        asked_at = time.monotonic()
        clock = await self._session.run(protocol.now())
        observed = self._server_clock.observe(clock, asked_at, time.monotonic())
        if observed is None:
            return False
        revoked = await self._session.run(maintenance.revoke_lost(observed, clock))
        if revoked is None:
            return False
        log.warning(
            ("lease %s of %s revoked after %.1f s without a heartbeat: %s returned to the queue"),
            revoked.lease_id,
            revoked.worker,
            revoked.silent_seconds,
            counted(revoked.jobs, "job"),
        )
        self._on_lost(
            LostWorker(
                worker=revoked.worker, jobs=revoked.jobs, silent_seconds=revoked.silent_seconds
            )
        )
        return True

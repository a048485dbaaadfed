"""Progress that handlers report: the newest report of each job is written, at most once a
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Final

from forebay.model.text import logger
from forebay.ops import protocol
from forebay.ops.protocol import ProgressReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.db.session import Session
    from forebay.worker.ground.held import HeldJob

log = logger("forebay.worker")

#: Pause between two writes.
_EVERY_SECONDS: Final = 1.0


class ProgressReports:
    """Collects reports in any thread and writes them in its loop.

    Reports that cannot be written are dropped.
    """

    def __init__(self) -> None:
        self._reports: dict[int, dict[tuple[int, int], ProgressReport]] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()

    def record(self, helds: Sequence[HeldJob], done: float, note: str) -> None:
        """Record the progress that a handler reports for its jobs; callable from any thread."""
        with self._lock:
            was_empty = not self._reports
            for held in helds:
                key = held.row.job_id, held.lane.group_id
                of_lease = self._reports.setdefault(held.lease.lease_id, {})
                of_lease[key] = ProgressReport(*key, done, note)
        if was_empty:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._some.set)

    async def run(self, session: Session) -> None:
        """Write the collected reports, until cancelled."""
        while True:
            await self._some.wait()
            await self.flush(session)
            await asyncio.sleep(_EVERY_SECONDS)

    async def flush(self, session: Session) -> None:
        """Write what was reported since the last write."""
        self._some.clear()
        with self._lock:
            reports, self._reports = self._reports, {}
        for lease_id, of_lease in reports.items():
            try:
                await session.run(protocol.record_progress(lease_id, list(of_lease.values())))
            except Exception as error:
                log.debug("progress of %s jobs not recorded: %s", len(of_lease), error)

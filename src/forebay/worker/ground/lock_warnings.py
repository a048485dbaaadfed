"""Warnings that name the sessions for whose locks a worker waits."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from forebay.ops.locks import LockHolder, lock_holders

if TYPE_CHECKING:
    from forebay.db.session import Session

_LOCK_NOT_AVAILABLE: Final = "55P03"
_SHOWN_MAX: Final = 3

#: Our functions hold these locks for a fraction of a second.
_HELD_SECONDS: Final = 1.0


async def holders_after_timeout(session: Session, error: Exception) -> list[LockHolder]:
    """Return the transactions that hold locks of the engine, if a call failed because it waited too
    long for a lock.

    Args:
        session: a connection that runs no other call.
        error: why the call failed.
    """
    if getattr(error, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
        return []
    with contextlib.suppress(Exception):
        found = await session.run(lock_holders())
        return [one for one in found if one.seconds is None or one.is_old(_HELD_SECONDS)][
            :_SHOWN_MAX
        ]
    return []


class LockWatch:
    """Logs a warning for each transaction that holds a lock of the engine in two passes.

    Maintenance passes over a locked task without an error, so nothing else would report it. Two
    passes need no right to see the age of other sessions' transactions.

    Args:
        log: gets the warnings.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._before: set[str] = set()
        self._reported: set[str] = set()

    def record(self, found: list[LockHolder]) -> None:
        """Record one pass."""
        for holder in found:
            if holder.transaction in self._before - self._reported:
                self._reported.add(holder.transaction)
                self._log.warning("%s. %s", holder, holder.remedy)
        self._before = {holder.transaction for holder in found}
        self._reported &= self._before

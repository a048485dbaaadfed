"""Counts of backlogs that no worker has counted, so that a look at them does not visit each job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay._error import ForebayError, is_database_error
from forebay.db.session import Session
from forebay.errors import DatabaseUnavailable
from forebay.ops import maintenance, overview

if TYPE_CHECKING:
    from collections.abc import Awaitable

#: Uncounted jobs from which on a backlog is counted first.
_UNCOUNTED: Final = 10_000

#: The first count of a queue visits its waiting jobs, about a million in a second.
_FIRST_COUNT_SECONDS: Final = 300

_QUERY_CANCELED: Final = "57014"


async def count_backlogs(session: Session, dsn: str) -> None:
    """Count the waiting jobs that nothing has counted, so that a check does not visit them.

    Workers do it, if there is one alive. If all queues together take too long for the session, one
    after the other is counted on a new connection, and each count stays. A role that may not, and a
    full disk, change nothing: the check visits the jobs then.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
    """
    error = await _failed(session.run(maintenance.renew_counters(_UNCOUNTED)))
    if getattr(error, "sqlstate", None) == _QUERY_CANCELED:
        await count_each_backlog(dsn)


async def count_each_backlog(dsn: str) -> None:
    """Do so for one queue after the other, with time for a first count of each."""
    session = Session(
        dsn,
        name="forebay counts",
        lock_timeout="1s",
        call_seconds=_FIRST_COUNT_SECONDS + 10.0,
        settings={"statement_timeout": f"{_FIRST_COUNT_SECONDS}s", "jit": "off"},
    )
    try:
        queues, _ = await session.run(overview.known_names())
        for queue in queues:
            await _failed(session.run(maintenance.renew_counters(_UNCOUNTED, [queue])))
    finally:
        await session.close()


async def _failed(call: Awaitable[int]) -> Exception | None:
    """Return the error of the database with which a call failed; None: it did not."""
    try:
        await call
    except DatabaseUnavailable:
        raise
    except Exception as error:
        if not (isinstance(error, ForebayError) or is_database_error(error)):
            raise
        return error
    return None

"""A check of the alerts: read the measurements, apply the rules, record the result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay._error import ForebayError, is_database_error
from forebay.db.session import Session
from forebay.errors import DatabaseUnavailable
from forebay.ops import maintenance, overview
from forebay.watch import operations
from forebay.watch.problems import judged, problems

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from forebay.model.alerts import AlertChange
    from forebay.model.problems import Problem

#: A read that takes longer is given up: the next one may find a database that answers.
CALL_SECONDS: Final = 10.0

_SETTINGS: Final = {"statement_timeout": "8s", "jit": "off"}

#: A backlog of so many uncounted jobs is counted first.
_UNCOUNTED: Final = 10_000

#: The first count of a queue visits its waiting jobs, about a million in a second.
_FIRST_COUNT_SECONDS: Final = 300

_QUERY_CANCELED: Final = "57014"


class Checked(NamedTuple):
    """The result of a check.

    Attributes:
        alerts: the problems that hold, and alerts that are about to clear.
        pending: conditions that have not lasted long enough.
        changes: what fired or cleared with this check.
    """

    alerts: list[Problem]
    pending: list[Problem]
    changes: list[AlertChange]


async def check_session(session: Session, data: dict[str, Any] | None = None) -> Checked:
    """Check on a session; the result does not depend on whether it can be recorded.

    Args:
        session: the connection.
        data: what was measured; None: measure now.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        SchemaError: it has no schema, or an old one.
    """
    if data is None:
        data = await session.run(operations.measurements(with_counters=False))
    if "write_failed" not in data:
        data["write_failed"] = await session.run(operations.probe_write())
    changes: list[AlertChange] = []
    if data["write_failed"] is None and await session.run(operations.may_record()):
        changes = await session.run(operations.record_alerts(judged(data)))
        data["checked_at"] = data["at"]
    listed = problems(data)
    return Checked(
        [one for one in listed if one.state != "pending"],
        [one for one in listed if one.state == "pending"],
        changes,
    )


async def count_backlogs(session: Session, dsn: str) -> None:
    """Count the waiting jobs that nothing has counted, so that a check does not visit them.

    Where no worker is alive nobody else does it. If all together take too long for the session,
    one queue after the other is counted on a new connection, and each count stays. A role that may
    not, and a full disk, change nothing: the check visits the jobs then.

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


async def acheck(dsn: str) -> Checked:
    """Check on a new connection, see ``check_session``."""
    session = new_session(dsn, "forebay alerts")
    try:
        await count_backlogs(session, dsn)
        return await check_session(session)
    finally:
        await session.close()


def check(dsn: str) -> Checked:
    """Check on a new connection, see ``check_session``; not in a thread that runs an event loop."""
    return asyncio.run(acheck(dsn))


def new_session(dsn: str, name: str) -> Session:
    """Return a session with bounded calls."""
    return Session(dsn, name=name, lock_timeout="1s", call_seconds=CALL_SECONDS, settings=_SETTINGS)

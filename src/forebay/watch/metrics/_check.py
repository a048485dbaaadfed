"""A check of the alerts: read the measurements, apply the rules, record the result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay.db.session import Session
from forebay.watch import operations
from forebay.watch.backlogs import count_backlogs
from forebay.watch.problems import judged, problems

if TYPE_CHECKING:
    from forebay.model.alerts import AlertChange
    from forebay.model.problems import Problem

#: A read that takes longer is given up: the next one may find a database that answers.
CALL_SECONDS: Final = 10.0

_SETTINGS: Final = {"statement_timeout": "8s", "jit": "off"}


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

"""A check of the alerts: read the measurements, apply the rules, record the result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay.db.session import Session
from forebay.watch import operations
from forebay.watch.problems import judged

if TYPE_CHECKING:
    from forebay.model.alerts import Alert, AlertChange

#: A read that takes longer is given up: the next one may find a database that answers.
CALL_SECONDS: Final = 10.0

_SETTINGS: Final = {"statement_timeout": "8s", "jit": "off"}


class Checked(NamedTuple):
    """The result of a check.

    Attributes:
        alerts: the alerts that fire, also those recorded before.
        pending: conditions that have not lasted long enough.
        changes: what fired or cleared with this check.
    """

    alerts: list[Alert]
    pending: list[Alert]
    changes: list[AlertChange]


async def check_session(session: Session, data: dict[str, Any] | None = None) -> Checked:
    """Check on a session; a role that may not record only reads what others recorded.

    Where writes fail, nothing can be recorded: what holds now is returned as it is.

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
    listed = judged(data)
    if data["write_failed"] is None:
        if await session.run(operations.may_record()):
            changes = await session.run(operations.record_alerts(listed))
        listed = await session.run(operations.alerts(with_pending=True))
    return Checked(
        [alert for alert in listed if alert.fired_at is not None],
        [alert for alert in listed if alert.fired_at is None],
        changes,
    )


async def acheck(dsn: str) -> Checked:
    """Check on a new connection, see ``check_session``."""
    session = new_session(dsn, "forebay alerts")
    try:
        return await check_session(session)
    finally:
        await session.close()


def check(dsn: str) -> Checked:
    """Check on a new connection, see ``check_session``; not in a thread that runs an event loop."""
    return asyncio.run(acheck(dsn))


def new_session(dsn: str, name: str) -> Session:
    """Return a session with bounded calls."""
    return Session(dsn, name=name, lock_timeout="1s", call_seconds=CALL_SECONDS, settings=_SETTINGS)

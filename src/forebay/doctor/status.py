"""``forebay status``: what is wrong now, as one list.

The problems are those of ``forebay.watch.problems``. A few checks of the doctor add what stops jobs
without an alert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from forebay.doctor import CHECKS, Level, without_workers
from forebay.doctor.examine import look, read_session
from forebay.model.problems import Problem
from forebay.watch.backlogs import count_backlogs
from forebay.watch.metrics import check_session
from forebay.watch.operations import measurements
from forebay.watch.problems import command_in, in_order, pauses, unseen

if TYPE_CHECKING:
    from forebay.doctor import Finding

#: Checks of what stops jobs, each bounded: none visits waiting or ended jobs.
_OPERATION: Final = (
    "server", "schema", "cluster", "locks", "workers", "held keys", "notifications",
)  # fmt: skip

#: Checks of how a database is set up, of which only errors stop jobs.
_SETTINGS: Final = ("roles", "durability", "timeouts")


async def current_problems(
    dsn: str,
    *,
    count: bool = True,
    data: dict[str, Any] | None = None,
    with_notes: bool = False,
) -> list[Problem]:
    """Return what is wrong, the worst first, and record the alerts if this role may.

    Args:
        dsn: the address.
        count: first count what no worker has counted, which may take minutes.
        data: what was just measured, and may be changed here; None: measure now.
        with_notes: last, also paused queues with ready jobs, and what cannot be seen, which are
            no problems.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        SchemaError: it has no schema, or an old one.
    """
    session = read_session(dsn, may_write=True)
    try:
        if count:
            await count_backlogs(session, dsn)
        if data is None:
            data = await session.run(measurements(with_counters=False))
        checked = await check_session(session, data)
        found: list[Finding] = []
        for check in CHECKS:
            if check.name in _OPERATION:
                found += await look(session, check)
            elif check.name in _SETTINGS:
                seen = await look(session, check)
                found += [one for one in seen if one.level is Level.ERROR]
    finally:
        await session.close()
    return in_order([
        *checked.alerts, *checked.pending, *((*pauses(data), *unseen(data)) if with_notes else ()),
        *(_problem(one) for one in without_workers(found) if one.level in _LEVELS),
        *(_problem(one, "noted") for one in found if with_notes and one.facts.get("unchecked")),
    ])  # fmt: skip


_LEVELS: Final = (Level.ERROR, Level.WARNING)


def _problem(finding: Finding, state: Literal["holds", "noted"] = "holds") -> Problem:
    hint = finding.remedy or "See `forebay doctor`."
    return Problem(
        name=finding.check,
        severity="error" if finding.level is Level.ERROR else "warning",
        state=state,
        cause=finding.what,
        command=command_in(hint),
        hint=hint,
        code=finding.check,
    )

"""Holders of old snapshots, which block vacuum and the removal of old segments.

An old snapshot does not slow down claims and enqueues. It slows down everything else in the
database, so the doctor names its holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.doctor._finding import Finding, Level
from forebay.doctor._locks import GRANT_TO_SEE
from forebay.guard import holder_query as holders
from forebay.model.alerts import UNSEEN_AGE_MOST
from forebay.model.text import counted
from forebay.ops.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.guard.holders import Holder

#: Transactions begun since; used only where the age of a holder is unknown.
_AGE_NOTICE: Final = 100_000


def snapshots() -> Operation[list[Finding]]:
    """Holders of the oldest snapshots."""
    found = holders.holders()
    return Operation(found.sql, lambda rows: judge_holders(found.decode(rows)))


def judge_holders(found: Sequence[Holder]) -> list[Finding]:
    """Return a finding for each holder that is too old; for the oldest one when none is."""
    if not found:
        return [Finding("snapshots", Level.OK, "no session holds a snapshot")]
    findings = [_finding(holder) for holder in found if level_of(holder) is not Level.OK]
    # Replication has no age in time, and is judged by its age in transactions.
    unseen = [one for one in found if one.seconds is None and not one.is_replication]
    if unseen:
        findings.append(_unseen(unseen))
    elif not findings:
        findings.append(_finding(found[0], "the oldest snapshot is held by "))
    return findings


def _unseen(found: Sequence[Holder]) -> Finding:
    """Return that the age of some holders is unknown."""
    age = max(holder.age for holder in found)
    return Finding(
        "snapshots",
        Level.NOTICE,
        f"this role may not see since when {counted(len(found), 'session')} "
        f"{'holds a snapshot' if len(found) == 1 else 'hold snapshots'}, the oldest from"
        f" {counted(age, 'transaction')} ago",
        GRANT_TO_SEE,
        {"unseen": True, "pids": [holder.pid for holder in found], "age": age},
    )


def level_of(holder: Holder) -> Level:
    """Return how serious a holder is."""
    if holder.sort == "inactive replication slot":
        return Level.WARNING
    if holder.seconds is None:
        notice, warning, value = float(_AGE_NOTICE), float(UNSEEN_AGE_MOST), float(holder.age)
    else:
        # A forgotten prepared transaction does not end by itself; none should exist for a minute.
        limits = {"prepared transaction": (10.0, 60.0), "idle in transaction": (60.0, 900.0)}
        notice, warning = limits.get(holder.sort, (300.0, 3600.0))
        value = holder.seconds
    if value >= warning:
        return Level.WARNING
    return Level.NOTICE if value >= notice else Level.OK


def _finding(holder: Holder, prefix: str = "") -> Finding:
    level = level_of(holder)
    what = f"{prefix}{holder}"
    if holder.age:
        what += f", {counted(holder.age, 'transaction')} ago"
    if holder.query and level is not Level.OK:
        what += f": {holder.query[:100]}"
    facts = {
        "sort": holder.sort,
        "name": holder.name,
        "who": holder.who,
        "seconds": None if holder.seconds is None else round(holder.seconds, 1),
        "age": holder.age,
        "writes": holder.xid is not None,
        "query": holder.query,
    }
    if holder.is_session:
        facts["pid"] = holder.pid
    return Finding("snapshots", level, what, None if level is Level.OK else holder.remedy, facts)

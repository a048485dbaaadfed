"""Who holds an old snapshot: what keeps vacuum, and old segments, from being cleared.

Claims and enqueues do not slow down under one. Everything else in the database does, so it is
worth a name at three in the morning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.ops.doctor._finding import Finding, Level, counted
from forebay.ops.operation import Operation
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.ops.operation import Rows

#: Transactions begun since; only used where nothing says how old a holder is.
_AGE_NOTICE: Final = 100_000
_AGE_WARNING: Final = 10_000_000

_HELD_SQL: Final = """
select case when a.state like 'idle in transaction%%' then 'idle in transaction' else 'session' end,
       a.pid::text,
       concat_ws(', ', a.usename, nullif(a.application_name, ''), a.client_addr::text,
                 case when a.datname <> current_database() then 'database ' || a.datname end),
       extract(epoch from clock_timestamp() - a.xact_start)::float8,
       greatest(age(a.backend_xmin), age(a.backend_xid)),
       a.backend_xid is not null, left(regexp_replace(a.query, '\\s+', ' ', 'g'), 100)
from pg_stat_activity a
where a.pid <> pg_backend_pid() and a.backend_type not in ('autovacuum worker', 'walsender')
  -- A snapshot counts in its own database, a transaction id in all of them.
  and (a.backend_xid is not null or (a.backend_xmin is not null and a.datname = current_database()))
union all
select 'prepared transaction', p.gid, concat_ws(', ', p.owner, 'database ' || p.database),
       extract(epoch from clock_timestamp() - p.prepared)::float8, age(p.transaction), true, null
from pg_prepared_xacts p
union all
select case when s.active then 'replication slot' else 'inactive replication slot' end, s.slot_name,
       concat_ws(', ', s.slot_type, 'database ' || s.database), null,
       greatest(age(s.xmin), age(s.catalog_xmin)), false, null
from pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
union all
select 'standby', r.application_name, concat_ws(', ', r.usename, r.client_addr::text), null,
       age(r.backend_xmin), false, null
from pg_stat_replication r where r.backend_xmin is not null
order by 5 desc nulls last
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who holds a snapshot or an open transaction.

    Attributes:
        sort: session, idle in transaction, prepared transaction, replication slot, inactive
            replication slot, standby.
        name: pid, global transaction id, slot or standby name.
        who: user, application, address, as far as known.
        seconds: how long; None where nothing says so.
        age: transactions begun in the cluster since.
        writes: it has a transaction id of its own.
        query: its last statement, shortened.
    """

    sort: str
    name: str
    who: str
    seconds: float | None
    age: int
    writes: bool
    query: str | None

    @property
    def level(self) -> Level:
        """How much it matters."""
        if self.sort == "inactive replication slot":
            return Level.WARNING
        if self.seconds is None:
            notice, warning, value = _AGE_NOTICE, _AGE_WARNING, float(self.age)
        else:
            # Nothing forgets a prepared transaction by itself; none should live for a minute.
            limits = {"prepared transaction": (10, 60), "idle in transaction": (60, 900)}
            notice, warning = limits.get(self.sort, (300, 3600))
            value = self.seconds
        if value >= warning:
            return Level.WARNING
        return Level.NOTICE if value >= notice else Level.OK

    @property
    def remedy(self) -> str:
        """What makes it let go."""
        match self.sort:
            case "prepared transaction":
                return f"In its database: rollback prepared '{self.name}'; or commit it."
            case "inactive replication slot":
                return (
                    "If its consumer is gone for good:"
                    f" select pg_drop_replication_slot('{self.name}');"
                )
            case "replication slot" | "standby":
                return "Look for a long query on the standby, or a consumer that fell behind."
            case _:
                return f"Ask its owner, then: select pg_terminate_backend({self.name});"

    def __str__(self) -> str:
        """Return it for people: ``session 4711 (app, psql) for 3 h``."""
        who = f" ({self.who})" if self.who else ""
        label = f"{self.sort} {self.name}{who}"
        if self.sort == "idle in transaction":
            label = f"session {self.name}{who}, idle in transaction,"
        if self.seconds is not None:
            label += f" for {human_duration(self.seconds)}"
        return label.replace(",  for", ", for")


def snapshots() -> Operation[list[Finding]]:
    """The holders of the oldest snapshots."""
    return Operation(_HELD_SQL, _judge)


def _judge(rows: Rows) -> list[Finding]:
    holders = [Holder(*row) for row in rows]
    if not holders:
        return [Finding("snapshots", Level.OK, "nobody holds a snapshot")]
    found = [_finding(holder) for holder in holders if holder.level is not Level.OK]
    oldest = holders[0]
    if not found:
        found.append(_finding(oldest, "the oldest snapshot is held by "))
    if all("pid" in finding.facts and not finding.facts["who"] for finding in found):
        found.append(
            Finding(
                "snapshots",
                Level.NOTICE,
                "this role may not see who other sessions are",
                "grant pg_read_all_stats to the role that runs the doctor.",
            )
        )
    return found


def _finding(holder: Holder, prefix: str = "") -> Finding:
    what = f"{prefix}{holder}"
    if holder.age:
        what += f", {counted(holder.age, 'transaction')} ago"
    if holder.query and holder.level is not Level.OK:
        what += f": {holder.query}"
    facts = {
        "sort": holder.sort,
        "name": holder.name,
        "who": holder.who,
        "seconds": None if holder.seconds is None else round(holder.seconds, 1),
        "age": holder.age,
        "writes": holder.writes,
        "query": holder.query,
    }
    if holder.sort in ("session", "idle in transaction"):
        facts["pid"] = int(holder.name)
    remedy = None if holder.level is Level.OK else holder.remedy
    return Finding("snapshots", holder.level, what, remedy, facts)

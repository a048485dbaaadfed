"""Sessions that hold a lock for which claims, enqueues or maintenance have to wait, or which
maintenance passes over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay._dataclass import dataclass
from forebay.ops.operation import Operation, scalar
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Whether a lock ``l`` on a relation ``c`` of the schema stops our functions. Reading locks no lock
#: table; a dump does.
STOPS_OURS: Final = (
    "(l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
    " or c.relname ~ '^lock_' and l.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock'))"
)

_SHOWN_MAX: Final = 3

#: Needs no privilege. What a role may not see of other sessions is null; ``pg_locks`` shows how
#: long a session has waited.
_HOLDERS_SQL: Final = f"""
with held as (
    select l.pid, l.virtualtransaction as transaction, array_agg(distinct c.relname::text) as tables
    from pg_locks l
    join pg_class c on c.oid = l.relation
    where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid()
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and c.relnamespace = to_regnamespace('forebay') and {STOPS_OURS}
    group by 1, 2),
waiting as (
    select b.pid, count(*) as sessions, max(extract(epoch from clock_timestamp() - w.since)::float8)
        as seconds
    from (select l.pid, min(l.waitstart) as since from pg_locks l where not l.granted
        and l.pid is not null group by 1) w
    cross join lateral unnest(pg_blocking_pids(w.pid)) b (pid)
    group by 1)
select h.transaction, h.pid, p.gid, coalesce(a.usename, p.owner)::text, nullif(a.application_name,
    ''), a.state,
       extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8,
       extract(epoch from clock_timestamp() - a.query_start)::float8,
       h.tables, coalesce(w.sessions, 0)::integer, coalesce(w.seconds, 0)
from held h
left join pg_stat_activity a on a.pid = h.pid
left join pg_locks x on h.pid is null and x.pid is null and x.locktype = 'transactionid'
    and x.granted
                     and x.virtualtransaction = h.transaction
left join pg_prepared_xacts p on p.transaction = x.transactionid
left join waiting w on w.pid = coalesce(h.pid, 0)  -- Prepared transactions block as process 0.
order by 11 desc, 7 desc nulls last, 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A transaction that holds such a lock.

    Attributes:
        transaction: its virtual transaction id: the same in two observations means the same
            transaction.
        pid: the process id of its session; None for a prepared transaction.
        prepared: the id of a prepared transaction.
        user: its role.
        application: its ``application_name``.
        state: as the server reports it; None if this role may not see it.
        seconds: the age of the transaction; None if this role may not see it.
        query_seconds: when its last statement began; None if unknown.
        tables: the tables.
        waiting: how many sessions wait for it.
        waiting_seconds: for how long the first of them has waited.
    """

    transaction: str
    pid: int | None
    prepared: str | None
    user: str | None
    application: str | None
    state: str | None
    seconds: float | None
    query_seconds: float | None
    tables: tuple[str, ...]
    waiting: int
    waiting_seconds: float

    def __str__(self) -> str:
        if self.prepared is not None:
            who = f"prepared transaction {self.prepared!r}"
        else:
            who = f"pid {self.pid}"
        known = [
            self.user and f"role {self.user}",
            self.application,
            self.state,
            self.seconds is not None and f"in a transaction of {human_duration(self.seconds)}",
            self.query_seconds is not None
            and f"last statement {human_duration(self.query_seconds)} ago",
        ]
        about = ", ".join(str(part) for part in known if part)
        tables = ", ".join(self.tables[:_SHOWN_MAX])
        if len(self.tables) > _SHOWN_MAX:
            tables += f" and {len(self.tables) - _SHOWN_MAX} more"
        text = (
            f"{who} ({about}) holds a lock on {tables}"
            if about
            else f"{who} holds a lock on {tables}"
        )
        if self.waiting:
            what = "session waits" if self.waiting == 1 else "sessions wait"
            text += f"; {self.waiting} {what}, for up to {human_duration(self.waiting_seconds)}"
        return text

    @property
    def remedy(self) -> str:
        """How to release the lock."""
        if self.prepared is not None:
            gid = self.prepared.replace("'", "''")
            return f"In this database: rollback prepared '{gid}'; or commit it."
        return f"End that transaction; or: select pg_terminate_backend({self.pid});"

    def is_old(self, seconds: float) -> bool:
        """Return whether it has held the lock, or made a session wait, for at least this time."""
        return max(self.seconds or 0.0, self.waiting_seconds) >= seconds


def lock_holders() -> Operation[list[LockHolder]]:
    """Return the query for lock holders, the one with the longest waiting session first."""
    return Operation(_HOLDERS_SQL, lambda rows: [_holder(row) for row in rows])


def _holder(row: Sequence[object]) -> LockHolder:
    names = (
        "transaction", "pid", "prepared", "user", "application", "state", "seconds",
        "query_seconds",
        "tables", "waiting", "waiting_seconds",
    )  # fmt: skip
    facts = dict(zip(names, row, strict=True))
    facts["tables"] = tuple(facts["tables"])  # type: ignore[arg-type]
    return LockHolder(**facts)  # type: ignore[arg-type]


def try_tick_lock(app: str) -> Operation[bool]:
    """Take the lock of the ticks of an app until the transaction ends, unless another one has it;
    return whether it was taken.
    """
    return Operation(
        "select pg_try_advisory_xact_lock(hashtextextended('forebay tick ' || %(app)s, 0))"
        " from (select set_config('idle_in_transaction_session_timeout', '0', true) offset 0) s",
        scalar,
        {"app": app},
    )

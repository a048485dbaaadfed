"""Sessions that block a migration: they hold locks on its tables, or call what it removes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from forebay._dataclass import dataclass
from forebay.policy.retry import human_duration

#: A transaction this old probably does not end within an attempt: wait for it before asking for a
#: lock.
_OLD_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session that has held a lock for long."""

    who: str
    mode: str
    relation: str
    seconds: float

    def __str__(self) -> str:
        length = human_duration(self.seconds)
        return f"{self.who} holds {self.mode} on {self.relation}, in a transaction of {length}"


def holder_of(
    conn: psycopg.Connection[Any],
    tables: Sequence[str],
    *,
    older_than_seconds: float | None = None,
) -> LockHolder | None:
    """Return the session that has locked our tables, or their partitions, for longest.

    The result is None when there is no such session.
    """
    if not tables:
        return None
    old = _OLD_SECONDS if older_than_seconds is None else older_than_seconds
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(
            _HOLDER, {"tables": [f"forebay.{name}" for name in tables], "old": old}
        ).fetchone()
    if row is None:
        return None
    pid, prepared, application, state, seconds, mode, relation = row
    if prepared is not None:
        who = f"prepared transaction {prepared!r}"
    else:
        who = f"pid {pid} ({', '.join(filter(None, (application, state)))})"
    return LockHolder(who, mode, relation, seconds)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on the server.

    Attributes:
        epoch: seconds since 1970.
        hidden: the transactions that were open then, of sessions whose statements this role may not
            see.
    """

    epoch: Decimal
    hidden: list[str]


def moment(conn: psycopg.Connection[Any]) -> Moment:
    """Return the present moment."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(_MOMENT).fetchone()
    assert row is not None
    return Moment(*row)


def session_running_since(
    conn: psycopg.Connection[Any], since: Moment, *, writers: bool = False
) -> str | None:
    """Return the session whose statement has been running since before a moment.

    The result is None when all have ended.

    Such a statement may run a function from before the last migration, and use what the next one
    removes.

    PostgreSQL shows the statements of a session to its own role and to pg_read_all_stats. Of other
    sessions it shows which transactions are open, and whether they have a snapshot, as each
    statement has. So such a session counts while a transaction with a snapshot is open that was
    open at the moment.

    Args:
        conn: the connection.
        since: that moment.
        writers: include transactions that have written something, even if they run no statement
            now.
    """
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(
            _RUNNING, {"epoch": since.epoch, "hidden": since.hidden, "writers": writers}
        ).fetchone()
    if row is None:
        return None
    who, runs, seconds = row
    if seconds is None:
        return (
            f"{who} may run a statement: grant pg_read_all_stats to the role that migrates, to "
            f"see it"
        )
    what = "runs a statement" if runs else "has a transaction"
    return f"{who} {what} that began {human_duration(seconds)} ago"


#: Sessions of which this role sees no statement.
_HIDDEN: Final = """
from pg_stat_activity a
join pg_locks l on l.pid = a.pid and l.locktype = 'virtualxid' and l.granted
    and l.mode = 'ExclusiveLock'
where a.datname = current_database() and a.backend_type is null and a.usesysid is not null
"""

#: A number, since a date as text depends on settings of the session.
_MOMENT: Final = f"""
select extract(epoch from clock_timestamp()),
       coalesce((select array_agg(a.pid || ' ' || l.virtualtransaction) {_HIDDEN}), '{{}}')
"""

_RUNNING: Final = f"""
select format('pid %%s (%%s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed')), s.runs,
       extract(epoch from clock_timestamp() - case when s.runs then a.query_start
           else a.xact_start end)::float8
from pg_stat_activity a
cross join lateral (
    select a.state in ('active', 'fastpath function call')
        and a.query_start < to_timestamp(%(epoch)s::float8) as runs) s
where a.datname = current_database() and a.backend_type = 'client backend'
    and a.pid <> pg_backend_pid()
  and (s.runs or %(writers)s and a.backend_xid is not null
      and a.xact_start < to_timestamp(%(epoch)s::float8))
union all
select format('prepared transaction %%L', p.gid), false, extract(epoch
    from clock_timestamp() - p.prepared)::float8
from pg_prepared_xacts p
where %(writers)s and p.database = current_database()
    and p.prepared < to_timestamp(%(epoch)s::float8)
union all
select format('pid %%s (%%s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed')), null,
    null
{_HIDDEN}
  and a.pid || ' ' || l.virtualtransaction = any (%(hidden)s)
  and (a.backend_xmin is not null or %(writers)s and a.backend_xid is not null)
order by 3 desc
limit 1
"""

_HOLDER: Final = """
select l.pid, p.gid, a.application_name, a.state,
       extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8,
       l.mode, l.relation::regclass::text
from pg_locks l
left join pg_stat_activity a on a.pid = l.pid
left join pg_locks x on l.pid is null and x.pid is null and x.locktype = 'transactionid'
    and x.granted
                     and x.virtualtransaction = l.virtualtransaction
left join pg_prepared_xacts p on p.transaction = x.transactionid
where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid()
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and l.relation in (
      select t::regclass from unnest(%(tables)s::text[]) t
      union all
      select i.inhrelid from pg_inherits i where i.inhparent in (select t::regclass
          from unnest(%(tables)s::text[]) t))
  and coalesce(a.xact_start, p.prepared) <= clock_timestamp() - make_interval(secs => %(old)s)
order by 5 desc
limit 1
"""

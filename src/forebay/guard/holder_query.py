"""Holders of an old snapshot, an open transaction, or a lock on a segment: one query for doctor
and guard.
"""

from __future__ import annotations

from typing import Any, Final

from forebay.guard.holders import Holder
from forebay.ops.locks import STOPS_OURS
from forebay.ops.operation import Operation

#: Needs none of our objects and no privilege: what a role may not see is null.
_HOLDERS_SQL: Final = """
with here as (
    select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next, pg_is_in_recovery()
        as standby,
           r.rolsuper as super, pg_has_role('pg_signal_backend', 'usage') as signals, d.oid
               as database
    from pg_roles r, pg_database d where r.rolname = current_user
        and d.datname = current_database()),
locked as (
    select l.pid, l.virtualtransaction as lxid,
           array_agg(distinct substring(c.relname from '^log_([0-9]+)$')::bigint)
               filter (where c.relname ~ '^log_[0-9]+$') as segments,
           array_agg(distinct c.relname::text) filter (where /* stops ours */) as locks
    from here join pg_locks l on l.database = here.database and l.locktype = 'relation'
        and l.granted
    join pg_class c on c.oid = l.relation
    where c.relnamespace = to_regnamespace('forebay') and (c.relname ~ '^log_[0-9]+$'
        or /* stops ours */)
    group by 1, 2)
select case when a.backend_type <> 'client backend' then 'background process'
            -- Host, pid and a token; a long host name is cut off.
            when a.application_name ~ '^forebay ([^[:space:]]+:[0-9]+|[^[:space:]]{55})'
                 and (a.state ~ '^idle in' or a.query !~ 'forebay[.][a-z0-9_]+_v1[(]')
                     then 'handler'
            when a.state ~ '^idle in' then 'idle in transaction'
            else 'session' end as sort,
       a.pid::text as name, a.usename::text as user, nullif(a.application_name, '') as application,
       coalesce(a.client_hostname, host(a.client_addr)) as address,
       a.datname::text as database, a.datname is not distinct from current_database() as here,
       coalesce(a.state, a.backend_type) as state, a.xact_start as since,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
       coalesce(greatest(age(a.backend_xmin), age(a.backend_xid)), 0) as age,
       a.backend_xid::text::bigint as xid, false as catalog_only, k.segments, k.locks,
       a.backend_type = 'client backend'
       and (h.super or (r.rolsuper is false and (h.signals or pg_has_role(a.usesysid, 'usage'))))
           as may_end,
       a.pid, a.backend_start, left(regexp_replace(a.query, '[[:space:]]+', ' ', 'g'), 200)
           as query, h.next
from here h
cross join pg_stat_activity a
left join pg_roles r on r.oid = a.usesysid
left join (select pid, array_agg(distinct s) filter (where s is not null) as segments,
                  array_agg(distinct t) filter (where t is not null) as locks
           from locked left join unnest(segments) s on true left join unnest(locks) t on true
           where pid is not null group by pid) k on k.pid = a.pid
where a.pid <> pg_backend_pid()
  -- Walsenders are listed below as slots and standbys; a parallel worker counts with its leader.
  and coalesce(a.backend_type, '') not in ('walsender', 'parallel worker')
  -- Vacuum does not wait for other vacuums.
  and not exists (select from pg_stat_progress_vacuum v where v.pid = a.pid)
  -- A snapshot counts in one database, a transaction id in all; on a standby both count everywhere.
  and (a.backend_xid is not null or k.pid is not null
       or (a.backend_xmin is not null and (a.datname = current_database() or h.standby)))
union all
select 'prepared transaction', p.gid, p.owner, null, null, p.database,
    p.database = current_database(),
       'prepared', p.prepared, extract(epoch from clock_timestamp() - p.prepared)::float8,
       age(p.transaction), p.transaction::text::bigint, false, k.segments, k.locks,
       h.super or p.owner = current_user, null, null, null, h.next
from here h
cross join pg_prepared_xacts p
left join pg_locks x on x.pid is null and x.locktype = 'transactionid' and x.granted
    and x.transactionid = p.transaction
left join locked k on k.pid is null and k.lxid = x.virtualtransaction
union all
select case when s.active then 'replication slot' else 'inactive replication slot' end, s.slot_name,
       null, null, null, s.database, s.database is null or s.database = current_database(),
           s.slot_type,
       -- Since PostgreSQL 17.
       (to_jsonb(s) ->> 'inactive_since')::timestamptz,
       extract(epoch from clock_timestamp() - (to_jsonb(s) ->>
           'inactive_since')::timestamptz)::float8,
       greatest(age(s.xmin), age(s.catalog_xmin)), null, s.xmin is null, null, null,
       false, null, null, null, h.next
from here h cross join pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
union all
select 'standby', r.application_name, r.usename, null, host(r.client_addr), null, true, r.state,
    null, null,
       age(r.backend_xmin), null, false, null, null, false, r.pid, r.backend_start, null, h.next
from here h cross join pg_stat_replication r where r.backend_xmin is not null
order by age desc, seconds desc nulls last
""".replace("/* stops ours */", STOPS_OURS)


def holders() -> Operation[list[Holder]]:
    """Return the query for holders, the oldest first."""
    return Operation(_HOLDERS_SQL, lambda rows: [_holder(*row) for row in rows])


def _holder(*row: Any) -> Holder:
    names = (
        "sort", "name", "user", "application", "address", "database", "here", "state", "since",
        "seconds", "age", "xid", "catalog_only", "segments", "locks", "may_end", "pid",
        "backend_start", "query",
    )  # fmt: skip
    *values, following = row
    facts = dict(zip(names, values, strict=True))
    facts["xid"] = full_xid(facts["xid"], following)
    facts["segments"] = tuple(sorted(facts["segments"] or ()))
    facts["locks"] = tuple(facts["locks"] or ())
    facts["may_end"] = bool(facts["may_end"])
    return Holder(**facts)


def full_xid(xid: int | None, near: int) -> int | None:
    """Return a 64-bit transaction id from its lower half and a transaction id near it.

    >>> full_xid(4294967290, near=2**32 + 10), full_xid(15, near=2**32 + 10), full_xid(None, 5)
    (4294967290, 4294967311, None)
    """
    if xid is None:
        return None
    distance = (xid - near) % 2**32
    return near + (distance if distance < 2**31 else distance - 2**32)

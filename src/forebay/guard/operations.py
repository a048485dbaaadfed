"""The guard's queries: the server, its segments, the guard's acts and their record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay._dataclass import dataclass
from forebay.guard.rules import Action, GuardDecision, HeldSegments, Place, Segment
from forebay.ops.operation import Operation, ResultRows, nothing, scalar, scalar_or_none

if TYPE_CHECKING:
    from datetime import datetime

    from forebay.guard.holders import Holder


@dataclass(frozen=True, slots=True)
class Server:
    """What the guard knows about a server before it looks for holders.

    Attributes:
        cluster: the system identifier, which a primary and its standbys share.
        place: its name, and whether it is a standby that sends feedback.
        has_segments: the schema exists.
        may_read: this role may read the list of segments.
        has_record: the table for acts exists.
        may_record: this role may record acts.
    """

    cluster: str
    place: Place
    has_segments: bool
    may_read: bool
    has_record: bool
    may_record: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A holder, what it blocks, the verdict, and the outcome.

    Attributes:
        event_id: the record of the act; None when there was no act.
        outcome: the outcome of the act.
    """

    place: Place
    holder: Holder
    verdict: GuardDecision
    held_segments: HeldSegments
    event_id: int | None = None
    outcome: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its transaction is over, ended by the guard or by itself."""
        return self.outcome in {"ended", "gone before"}


@dataclass(frozen=True, slots=True)
class Unseen:
    """A replica that could not be examined, and the reason."""

    name: str
    why: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class GuardPass:
    """One examination of the primary and its replicas.

    Attributes:
        at: the time.
        found: all holders, by server, the oldest first.
        unseen: replicas that could not be examined.
        segments_seen: the list of segments is known.
    """

    at: datetime
    found: tuple[Found, ...]
    unseen: tuple[Unseen, ...]
    segments_seen: bool

    @property
    def over(self) -> tuple[Found, ...]:
        """Holders older than the limit and not excepted, whose transactions are still open."""
        return tuple(one for one in self.found if one.verdict.is_over and not one.has_ended)

    @property
    def unknown(self) -> tuple[Found, ...]:
        """Holders whose age this role may not see."""
        return tuple(one for one in self.found if one.verdict.kind == "unknown")


# Look up privileges in the catalog: a role without any on the schema cannot even resolve its names.
_SERVER_SQL: Final = """
select c.system_identifier::text, pg_is_in_recovery(),
       pg_is_in_recovery() and current_setting('hot_standby_feedback')::boolean,
       s.oid is not null,
       coalesce(has_schema_privilege(n.oid, 'usage') and has_table_privilege(s.oid, 'select'),
           false),
       t.oid is not null and f.oid is not null,
       coalesce(has_function_privilege(f.oid, 'execute'), false)
from pg_control_system() c
left join pg_namespace n on n.nspname = 'forebay'
left join pg_class t on t.relnamespace = n.oid and t.relname = 'guard_event'
left join pg_class s on s.relnamespace = n.oid and s.relname = 'segment'
left join pg_proc f on f.pronamespace = n.oid and f.proname = 'record_act'
"""


def server(name: str) -> Operation[Server]:
    """Return the query that identifies a server; ``name`` is its name in reports."""

    def decode(rows: ResultRows) -> Server:
        ((cluster, standby, feedback, *rest),) = rows
        return Server(cluster, Place(name=name, standby=standby, feedback=feedback), *rest)

    return Operation(_SERVER_SQL, decode)


# The same conditions as in forebay.retain_v1(), on tables that an operator may read.
_SEGMENTS_SQL: Final = """
with used as (
    select s.segment_id, f.xid, f.sealed_at
    from forebay.segment s left join forebay.seal f using (segment_id)
    where s.removed_at is null
      and s.lo <= coalesce((select max(i.hi) from forebay.segment i join forebay.seal
          using (segment_id)), 0)),
total as (
    select sum(pg_total_relation_size(('forebay.log_' || u.segment_id)::regclass)) > b.value::bigint
        as is_large,
           make_interval(days => d.value::integer) as age
    from used u, forebay.setting b, forebay.setting d
    where b.name = 'retention_bytes' and d.name = 'retention_days' group by b.value, d.value)
select u.segment_id, u.xid::text::bigint, u.sealed_at + t.age,
       t.is_large or u.sealed_at + t.age < clock_timestamp()
from used u, total t where u.xid is not null order by u.segment_id
"""


def segments() -> Operation[list[Segment]]:
    """Return the query for sealed segments and when they are due to be emptied."""
    return Operation(_SEGMENTS_SQL, lambda rows: [Segment(*row) for row in rows])


def record_act(place: Place, holder: Holder, verdict: GuardDecision) -> Operation[int]:
    """Return the call that records an act before it happens; it returns the event's number."""
    return Operation(
        "select forebay.record_act(%(server)s, %(action)s, %(holder)s, %(name)s, %(reason)s,"
        " p_user => %(user)s, p_application => %(application)s, p_database => %(database)s,"
        " p_state => %(state)s, p_xact_start => %(since)s, p_seconds => %(seconds)s,"
        " p_age => %(age)s, p_query => %(query)s)",
        scalar,
        {
            "server": place.name,
            "action": verdict.action,
            "holder": holder.sort,
            "name": holder.name,
            "reason": verdict.reason,
            "user": holder.user,
            "application": holder.application,
            "database": holder.database,
            "state": holder.state,
            "since": holder.since,
            "seconds": holder.seconds,
            "age": holder.age,
            "query": holder.query,
        },
    )


def record_outcome(event_id: int, outcome: str) -> Operation[None]:
    """Return the call that records the outcome of an act."""
    return Operation(
        "select forebay.record_outcome(%(event_id)s, %(outcome)s)",
        nothing,
        {"event_id": event_id, "outcome": outcome},
    )


# The statement that sends the signal also checks that it is still the judged transaction.
_SAME_SQL: Final = (
    "from pg_stat_get_activity(%(pid)s) a"
    " where a.backend_start = %(backend_start)s and a.xact_start = %(since)s"
)


def signal(holder: Holder, action: Action) -> Operation[bool | None]:
    """Return the call that ends a session's transaction if it is still the same one.

    It returns whether the signal was sent; None when that transaction is over.
    """
    function = {"cancel": "pg_cancel_backend", "terminate": "pg_terminate_backend"}[action]
    return Operation(f"select {function}(a.pid) {_SAME_SQL}", scalar_or_none, _identity(holder))


def continues(holder: Holder) -> Operation[bool]:
    """Return the query whether a session's transaction is still open."""
    return Operation(f"select a.pid {_SAME_SQL}", bool, _identity(holder))


def _identity(holder: Holder) -> dict[str, object]:
    return {
        "pid": holder.pid,
        "backend_start": holder.backend_start,
        "since": holder.since,
    }


def rollback_statement(holder: Holder) -> Operation[str | None]:
    """Return the query for the statement that rolls back a prepared transaction.

    The result is None when the transaction is over.
    """
    return Operation(
        "select format('rollback prepared %%L', p.gid) from pg_prepared_xacts p"
        " where p.gid = %(gid)s and p.prepared = %(since)s and p.database = current_database()",
        scalar_or_none,
        {"gid": holder.name, "since": holder.since},
    )


def statement(text: str) -> Operation[None]:
    """Return the call that runs a statement made by the server."""
    return Operation(text.replace("%", "%%"), nothing, outside_block=True)

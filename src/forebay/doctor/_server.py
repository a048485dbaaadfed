"""The server: version, durability, timeouts, roles, notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.doctor._finding import Finding, Level
from forebay.ops.operation import Operation
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.ops.operation import ResultRows

VERSION_MIN: Final = 150_000
VERSION_TRIED_MAX: Final = 189_999

_SETTINGS: Final = (
    "default_transaction_isolation",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "statement_timeout",
    "synchronous_commit",
    "transaction_timeout",
)

#: Each role, and a function that it must be able to call.
_ROLES: Final = {
    "forebay_producer": "enqueue",
    "forebay_worker": "claim_v1",
    "forebay_operator": "redrive",
    "forebay_reader": "job",
}


def server() -> Operation[list[Finding]]:
    """The version, and whether the server accepts writes."""
    return Operation(
        "select current_setting('server_version_num')::int, current_setting('server_version'),"
        " pg_is_in_recovery(), current_database(), current_user::text,"
        " extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8",
        _judge_server,
    )


def _judge_server(rows: ResultRows) -> list[Finding]:
    ((number, version, standby, database, user, up_seconds),) = rows
    facts = {
        "version": version,
        "database": database,
        "user": user,
        "up_seconds": round(up_seconds),
        "standby": standby,
    }
    if number < VERSION_MIN:
        return [
            Finding(
                "server",
                Level.ERROR,
                f"PostgreSQL {version} is older than 15",
                "Upgrade the server.",
                facts,
            )
        ]
    if standby:
        return [
            Finding(
                "server",
                Level.ERROR,
                "this is a standby: nothing can be enqueued or claimed here",
                "Connect to the primary (target_session_attrs=read-write), or promote this server.",
                facts,
            )
        ]
    if number > VERSION_TRIED_MAX:
        return [
            Finding(
                "server",
                Level.NOTICE,
                (
                    f"PostgreSQL {version} is newer than the versions this library was tested "
                    f"with (15 to 18)"
                ),
                "Look for a newer release of the library.",
                facts,
            )
        ]
    return [
        Finding(
            "server",
            Level.OK,
            f"PostgreSQL {version}, up {human_duration(up_seconds)}",
            facts=facts,
        )
    ]


def durability() -> Operation[list[Finding]]:
    """Whether a commit survives a crash."""
    settings = _settings(_judge_durability)
    return Operation(
        settings.sql,
        lambda rows: [
            *_judge_persistence([name for part, name, *_ in rows if part == _UNLOGGED]),
            *settings.decode(rows),
        ],
        settings.params,
    )


def _judge_persistence(unlogged: list[str]) -> list[Finding]:
    if not unlogged:
        return []
    shown = ", ".join(unlogged[:3]) + (f" and {len(unlogged) - 3} more" if unlogged[3:] else "")
    return [
        Finding(
            "durability",
            Level.ERROR,
            (
                f"unlogged tables or sequences: {shown}; a crash or a promotion of the server "
                f"empties them"
            ),
            (
                f"alter table forebay.{unlogged[0]} set logged, and likewise for the others; "
                f"for a sequence, alter sequence."
            ),
            {"unlogged": unlogged},
        )
    ]


def _judge_durability(settings: dict[str, str], overrides: list[_Override]) -> list[Finding]:
    names = ("fsync", "full_page_writes", "synchronous_commit")
    facts = {name: settings[name] for name in names}
    found = [
        Finding(
            "durability",
            Level.WARNING,
            f"{name} is off: a crash of the machine can destroy the whole database",
            f"Set {name} = on, unless the data may be lost.",
            facts,
        )
        for name in ("fsync", "full_page_writes")
        if settings[name] == "off"
    ]
    if settings["synchronous_commit"] == "off":
        found.append(
            Finding(
                "durability",
                Level.WARNING,
                "synchronous_commit is off: a crash can undo jobs whose commit succeeded",
                "Set synchronous_commit = on for producers and workers.",
                facts,
            )
        )
    found += [
        Finding(
            "durability",
            Level.WARNING,
            f"{override}: a crash can undo its commits",
            override.reset,
            facts,
        )
        for override in overrides
        if override.name == "synchronous_commit" and not override.is_on
    ]
    return found or [
        Finding(
            "durability",
            Level.OK,
            ", ".join(f"{name} {settings[name]}" for name in names),
            facts=facts,
        )
    ]


def timeouts() -> Operation[list[Finding]]:
    """Session settings that interrupt a worker or its handlers."""
    return _settings(_judge_timeouts)


def _judge_timeouts(settings: dict[str, str], overrides: list[_Override]) -> list[Finding]:
    facts: dict[str, Any] = {
        name: value for name, value in settings.items() if name not in _NOT_TIMEOUTS
    }
    facts["overrides"] = [str(override) for override in overrides]
    found = []
    if settings["default_transaction_isolation"] != _ISOLATION:
        found.append(
            Finding(
                "timeouts",
                Level.NOTICE,
                f"default_transaction_isolation is {settings['default_transaction_isolation']}:"
                f" {_ISOLATION_MEANS}",
                "If that is not wanted: alter role ... reset default_transaction_isolation, or"
                " alter database.",
                facts,
            )
        )
    if settings["default_transaction_read_only"] == "on":
        found.append(
            Finding(
                "timeouts",
                Level.ERROR,
                "default_transaction_read_only is on: nothing can be enqueued or claimed",
                "Set it to off for producers and workers.",
                facts,
            )
        )
    for name, limit in _LIMITS.items():
        if settings.get(name) is not None:  # transaction_timeout exists since PostgreSQL 17
            found += limit.judge(name, float(settings[name]) / 1000, facts)
    if not float(settings["idle_in_transaction_session_timeout"]) and not float(
        settings.get("transaction_timeout") or 0
    ):
        found.append(
            Finding(
                "timeouts",
                Level.NOTICE,
                "idle_in_transaction_session_timeout is off: a session that leaves its "
                "transaction open"
                " keeps dead rows and segments until it is ended",
                "alter role ... set idle_in_transaction_session_timeout = '5min', for the"
                " applications' roles; or let `forebay guard` end such sessions.",
                facts,
            )
        )
    found += [
        Finding("timeouts", Level.NOTICE, f"{override}: {means}", remedy, facts)
        for override in overrides
        for means, remedy in _judge_override(override)
    ]
    if any(finding.level in {Level.WARNING, Level.ERROR} for finding in found):
        return found
    off = [name for name in _LIMITS if name in settings and not float(settings[name])]
    what = f"off: {', '.join(off)}" if off else "no session timeout is too short for workers"
    return [*found, Finding("timeouts", Level.OK, what, facts=facts)]


@dataclass(frozen=True, slots=True)
class _Override:
    """A setting of a role or a database, which new sessions get.

    Attributes:
        place: the role and the database.
        alter: the statement that changes it, up to the place.
        name: of the setting.
        value: as it was given.
    """

    place: str
    alter: str
    name: str
    value: str

    @property
    def is_on(self) -> bool:
        """Whether the value stands for neither off nor zero."""
        text = self.value.lower()
        return (
            text not in {"off", "false", "no"} and text.rstrip("abcdefghijklmnopqrstuvwxyz ") != "0"
        )

    @property
    def reset(self) -> str:
        """The statement that ends it."""
        return f"{self.alter} reset {self.name};"

    def __str__(self) -> str:
        return f"{self.place}: {self.name}={self.value}"


def _judge_override(override: _Override) -> list[tuple[str, str]]:
    """Return what it does, and the remedy; nothing where it does no harm."""
    if override.name == "default_transaction_isolation":
        is_usual = override.value.lower() == _ISOLATION
        remedy = f"If that is not wanted: {override.reset}"
        return [] if is_usual else [(_ISOLATION_MEANS, remedy)]
    if not override.is_on:
        return []
    if override.name == "default_transaction_read_only":
        return [("its sessions can neither enqueue nor claim", override.reset)]
    limit = _LIMITS.get(override.name)
    remedy = f"If it is too short: {override.alter} set {override.name} = 0;"
    return [(limit.consequence, remedy)] if limit is not None else []


@dataclass(frozen=True, slots=True)
class _Limit:
    """What a timeout of the server does to workers when it is short.

    Attributes:
        least: below this number of seconds it is a warning; 0: it never is.
        consequence: what it interrupts.
        fits: which value suits workers.
    """

    least: float
    consequence: str
    fits: str

    def judge(self, name: str, seconds: float, facts: dict[str, Any]) -> list[Finding]:
        """Return the findings; none when the timeout is off."""
        if not seconds:
            return []
        level = Level.WARNING if seconds < self.least else Level.NOTICE
        what = f"{name} is {human_duration(seconds)}: {self.consequence}"
        remedy = f"alter role ... set {name} = 0, for the workers' role{self.fits}."
        if not self.least:
            remedy = f"If that is not wanted: {remedy}"
        elif level is Level.NOTICE:
            remedy = f"Usually sufficient; if handlers need longer: {remedy}"
        return [Finding("timeouts", level, what, remedy, facts)]


_LIMITS: Final = {
    "statement_timeout": _Limit(
        10.0,
        "statements of transaction=True handlers, producers and operators that take longer are"
        " cancelled",
        "; or more than their longest statement takes",
    ),
    "transaction_timeout": _Limit(
        60.0,
        "transaction=True handlers that take longer are interrupted, and run again",
        "; or more than their longest handler's timeout",
    ),
    "idle_in_transaction_session_timeout": _Limit(
        5.0,
        "transaction=True handlers that compute longer than this are interrupted",
        "; or more than they compute between two statements",
    ),
    "idle_session_timeout": _Limit(
        0.0, "idle connections of transaction=True handlers are closed and opened again", ""
    ),
}

#: The part of the result that names unlogged tables and sequences.
_UNLOGGED: Final = 2

#: What each call of this library sets for itself.
_ISOLATION: Final = "read committed"

_ISOLATION_MEANS: Final = (
    "transactions of producers and of transaction=True handlers may have to be repeated; this"
    " library sets read committed for its own calls, as workers in other languages must"
)

_NOT_TIMEOUTS: Final = frozenset({"fsync", "full_page_writes", "synchronous_commit"})


def _settings(judge: Any) -> Operation[list[Finding]]:
    # reset_val is what a new session of this role gets, whatever this session has set.
    return Operation(
        "select 0, name, reset_val, null from pg_settings where name = any (%(names)s)"
        " union all"
        " select 1, format('%%s in %%s', coalesce('role ' || r.rolname, 'all roles'),"
        "        coalesce('database ' || d.datname, 'all databases')), c.item,"
        "        case when s.setrole = 0 and s.setdatabase <> 0"
        "        then 'alter database ' || quote_ident(d.datname)"
        "        else 'alter role ' || coalesce(quote_ident(r.rolname), 'all')"
        "            || coalesce(' in database ' || quote_ident(d.datname), '') end"
        " from pg_db_role_setting s"
        " left join pg_roles r on r.oid = s.setrole"
        " left join pg_database d on d.oid = s.setdatabase"
        " cross join unnest(s.setconfig) c (item)"
        " where split_part(c.item, '=', 1) = any (%(names)s)"
        "   and (d.datname is null or d.datname = current_database())"
        " union all"
        f" select {_UNLOGGED}, c.relname::text, '', null"
        " from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'forebay' and c.relpersistence = 'u' and c.relkind in ('r', 'p', 'S')"
        # It means nothing, and may be lost.
        " and c.relname <> 'ballast'"
        " order by 1, 2, 3",
        lambda rows: judge(
            {name: value for part, name, value, _ in rows if part == 0},
            [
                _Override(place, alter, *value.split("=", 1))
                for part, place, value, alter in rows
                if part == 1
            ],
        ),
        {"names": list(_SETTINGS)},
    )


def roles() -> Operation[list[Finding]]:
    """Whether the four roles exist and have their grants."""
    return Operation(
        "select w.role, r.oid is not null,"
        " case when r.oid is not null then exists ("
        "     select from pg_proc p where p.pronamespace = 'forebay'::regnamespace"
        "     and p.proname = w.call and has_function_privilege(r.oid, p.oid, 'execute')) end,"
        " array(select m.rolname::text from pg_auth_members a join pg_roles m on m.oid = a.member"
        "       where a.roleid = r.oid order by 1)"
        " from unnest(%(roles)s::text[], %(calls)s::text[]) w (role, call)"
        " left join pg_roles r on r.rolname = w.role order by 1",
        _judge_roles,
        {"roles": list(_ROLES), "calls": list(_ROLES.values())},
    )


def _judge_roles(rows: ResultRows) -> list[Finding]:
    found = []
    facts = {role: members if exists else None for role, exists, _, members in rows}
    missing = [role for role, exists, _, _ in rows if not exists]
    if missing:
        found.append(
            Finding(
                "roles",
                Level.NOTICE,
                f"missing: {', '.join(missing)}",
                "As a role with createrole: create role "
                f"{missing[0]} nologin; then, as the schema's owner: select forebay._grant().",
                facts,
            )
        )
    powerless = [role for role, exists, able, _ in rows if exists and not able]
    if powerless:
        found.append(
            Finding(
                "roles",
                Level.WARNING,
                f"without their grants: {', '.join(powerless)}",
                "As the schema's owner: select forebay._grant().",
                facts,
            )
        )
    if found:
        return found
    members = [f"{role.removeprefix('forebay_')}: {', '.join(m)}" for role, _, _, m in rows if m]
    what = "; ".join(members) if members else "the four roles exist and have no members yet"
    return [Finding("roles", Level.OK, what, facts=facts)]


def notifications() -> Operation[list[Finding]]:
    """How full the notification queue is."""
    return Operation("select pg_notification_queue_usage()", _judge_notifications)


def _judge_notifications(rows: ResultRows) -> list[Finding]:
    ((usage,),) = rows
    facts = {"usage": usage}
    what = f"notification queue {usage:.0%} full"
    if usage < 0.25:
        return [Finding("notifications", Level.OK, what, facts=facts)]
    remedy = (
        "A listening session is in a long transaction: find it under snapshots,"
        " and end its transaction."
    )
    if usage < 0.75:
        what += ": workers are no longer woken and find jobs by polling"
        return [Finding("notifications", Level.WARNING, what, remedy, facts)]
    what += ": when it is full, every transaction that notifies fails, in any program"
    return [Finding("notifications", Level.ERROR, what, remedy, facts)]

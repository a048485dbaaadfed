"""Queues, their groups, and the settings of the database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast

from forebay._dataclass import dataclass
from forebay.arguments.json_guard import encode_json
from forebay.errors import InvalidJob, shown
from forebay.model import checks
from forebay.model.groups import ClosedGroup, DroppedQueue, GroupOverview
from forebay.model.limits import UNSET, Limits, QueueLimits, Unset
from forebay.model.settings import DatabaseSetting, QueueSetting
from forebay.ops.operation import Operation, ResultRows, number, scalar, scalar_or_none
from forebay.ops.records import rows_as

Start = Literal["beginning", "now"]

#: A value of a setting of the database; None: the built-in one.
SettingValue: TypeAlias = float | str | list[Any] | dict[str, Any] | None

_GROUPS: Final = """\
select to_jsonb(g)::text
from forebay.groups(only_queue => %(queue)s) g order by g.queue, g.group_name"""

_CLOSE_GROUP: Final = """\
select to_jsonb(c)::text
from forebay.close_group(
    queue => %(queue)s, name => %(name)s, force => %(force)s::boolean,
    dry_run => %(dry_run)s::boolean) c"""

#: The limits, with the SQL types of their parameters.
_LIMIT_TYPES: Final = {
    "max_waiting": "bigint",
    "rate": "double precision",
    "burst": "integer",
    "concurrency": "integer",
    "key_rate": "double precision",
    "key_burst": "integer",
    "key_concurrency": "integer",
    "max_waiting_group": "text",
}
_SET_LIMITS: Final = (
    "select forebay.limit_queue(queue => %(queue)s, "
    + ", ".join(f"{name} => %({name})s::{type_}" for name, type_ in _LIMIT_TYPES.items())
    + ", remove => string_to_array(%(remove)s, ','))::text"
)
_LIMITS: Final = (
    "select json_build_object('queue', l.queue, 'group', l.group_name, 'running', l.running,"
    " 'keys_waiting', l.keys_waiting, 'next_start_at', l.next_start_at, 'limits', "
    "json_build_object("
    + ", ".join(f"'{name}', l.{name}" for name in _LIMIT_TYPES if name != "max_waiting_group")
    + ", 'max_waiting_group', q.max_waiting_group))::text from forebay.limits(%(queue)s) l"
    " left join forebay.queue_limits q on q.queue operator(pg_catalog.=) l.queue"
    " order by l.queue, l.group_name"
)


_REDACT: Final = """\
select redacted, next::text, event
from forebay.redact_queue(
    queue => %(queue)s, before => %(before)s::timestamptz, dead => %(dead)s::boolean,
        after => %(after)s::jsonb,
    event_id => %(event)s::bigint)"""


def queue_of(kind: str) -> Operation[str | None]:
    """Return the call that tells the queue of a kind, as workers declared it; None if none did."""
    return Operation(
        "select forebay.queue_of(%(kind)s)",
        lambda rows: None if (found := scalar_or_none(rows)) is None else str(found),
        {"kind": checks.checked_name(kind, "kind")},
    )


def queue_known(queue: str) -> Operation[tuple[bool, bool]]:
    """Return the call that tells whether a queue has had jobs, and whether it has been served."""
    return Operation(
        "select has_jobs, is_served from forebay.queue_known(%(queue)s)",
        lambda rows: (bool(rows[0][0]), bool(rows[0][1])),
        {"queue": queue},
    )


def open_group(queue: str, name: str = "default", start: Start | None = None) -> Operation[int]:
    """Return the call that opens a consumer group of a queue; it returns the group's id."""
    return Operation(
        "select forebay.open_group(queue => %(queue)s, name => %(name)s, start => %(start)s)",
        number,
        {"queue": queue, "name": name, "start": start},
    )


def groups(queue: str | None = None) -> Operation[list[GroupOverview]]:
    """Return the call that lists consumer groups; it visits every waiting job."""
    return Operation(_GROUPS, lambda rows: rows_as(GroupOverview, rows), {"queue": queue})


def close_group(
    queue: str, name: str = "default", *, force: bool = False, dry_run: bool = False
) -> Operation[ClosedGroup]:
    """Return the call that begins to close a consumer group, or with ``dry_run`` only reports."""
    return Operation(
        _CLOSE_GROUP,
        lambda rows: rows_as(ClosedGroup, rows)[0],
        {"queue": queue, "name": name, "force": force, "dry_run": dry_run},
    )


def drop_queue(
    queue: str, *, token: str | None = None, force: bool = False, dry_run: bool = False
) -> Operation[DroppedQueue]:
    """Return the call that drops a queue, or with ``dry_run`` only reports."""
    return Operation(
        "select cancelled, running, groups, settings, subjects from forebay.drop_queue(queue => "
        "%(queue)s, token => %(token)s,"
        " force => %(force)s::boolean, dry_run => %(dry_run)s::boolean)",
        _dropped,
        {
            "queue": checks.checked_name(queue, "queue"),
            "token": token,
            "force": force,
            "dry_run": dry_run,
        },
    )


@dataclass(slots=True)
class Redaction:
    """The steps of a redaction, each a separate transaction: run each operation of
    ``operations()``.

    Args:
        queue: the queue.
        before: only of jobs that were enqueued before; None for now.
        dead: delete dead letters, too.
    """

    queue: str
    before: datetime | None = None
    dead: bool = False
    redacted: int = 0
    _after: str | None = None
    _event: int | None = None

    def operations(self) -> Iterator[Operation[int]]:
        """Yield the call of each step; its result is the number of rows erased so far."""
        while True:
            yield Operation(
                _REDACT,
                self._record,
                {
                    "queue": checks.checked_name(self.queue, "queue"),
                    "before": checks.instant_text(self.before, "before"),
                    "dead": self.dead,
                    "after": self._after,
                    "event": self._event,
                },
            )
            if self._after is None:
                return

    def _record(self, rows: ResultRows) -> int:
        ((redacted, self._after, event),) = rows
        self.redacted += redacted
        self._event = event if event is not None else self._event
        return self.redacted


def _dropped(rows: ResultRows) -> DroppedQueue:
    ((cancelled, running, groups, settings, subjects),) = rows
    return DroppedQueue(
        cancelled=cancelled,
        running=running,
        groups=tuple(groups),
        settings=tuple(settings),
        subjects=subjects,
    )


def continue_closing() -> Operation[int]:
    """Return the call that continues to close groups, in steps.

    The result is 0 when nothing is left to do now.
    """
    return Operation("select forebay.close_groups()", number)


def pause_queue(
    queue: str,
    group: str | None = None,
    *,
    until: datetime | None = None,
    for_: float | timedelta | None = None,
) -> Operation[int]:
    """Return the call that pauses a queue; it returns how many groups changed."""
    if until is not None and for_ is not None:
        raise InvalidJob("until", "and for_ are both given: give one of them")
    return Operation(
        "select forebay.pause_queue(queue => %(queue)s, group_name => %(group)s, until => "
        "coalesce(%(until)s::timestamptz,"
        " clock_timestamp() operator(pg_catalog.+)"
        " make_interval(secs => %(seconds)s::double precision)))",
        number,
        {
            "queue": queue,
            "group": group,
            "until": checks.instant_text(until, "until"),
            "seconds": None if for_ is None else checks.checked_seconds(for_, "for_"),
        },
    )


def resume_queue(queue: str, group: str | None = None) -> Operation[int]:
    """Return the call that resumes a queue; it returns how many groups changed."""
    return Operation(
        "select forebay.resume_queue(queue => %(queue)s, group_name => %(group)s)",
        number,
        {"queue": queue, "group": group},
    )


def pause_key(
    queue: str,
    *,
    ordering_key: str | None = None,
    limit_key: str | None = None,
    for_: float | timedelta | None = None,
    at: datetime | None = None,
) -> Operation[bool]:
    """Return the call that pauses one key of a queue; it returns whether something changed."""
    return Operation(
        "select forebay.pause_key(queue => %(queue)s, ordering_key => %(ordering_key)s, "
        "limit_key => %(limit_key)s,"
        " resume_after => make_interval(secs => %(seconds)s::double precision), pause_at "
        "=> %(at)s::timestamptz)",
        lambda rows: bool(scalar(rows)),
        {
            "queue": queue,
            "ordering_key": ordering_key,
            "limit_key": limit_key,
            "seconds": None if for_ is None else checks.checked_seconds(for_, "for_"),
            "at": checks.instant_text(at, "at"),
        },
    )


def resume_key(
    queue: str, *, ordering_key: str | None = None, limit_key: str | None = None
) -> Operation[bool]:
    """Return the call that resumes one key of a queue; it returns whether the key was paused."""
    return Operation(
        "select forebay.resume_key("
        "queue => %(queue)s, ordering_key => %(ordering_key)s, limit_key => %(limit_key)s)",
        lambda rows: bool(scalar(rows)),
        {"queue": queue, "ordering_key": ordering_key, "limit_key": limit_key},
    )


def shard_queue(queue: str, lanes: int) -> Operation[int]:
    """Return the call that splits a queue into shards; it returns the previous number."""
    return Operation(
        "select forebay.shard_queue(queue => %(queue)s, lanes => %(lanes)s)",
        number,
        {"queue": queue, "lanes": checks.integer_or_none(lanes, "lanes")},
    )


def limit_queue(
    queue: str, changes: Mapping[str, float | str | Unset | None]
) -> Operation[Limits | None]:
    """Return the call that sets limits of a queue; it returns the previous limits.

    Args:
        queue: the queue.
        changes: new values by names of ``Limits``; None removes a limit, UNSET keeps it.
    """
    removed = [name for name, value in changes.items() if value is None]
    given = {name: value for name, value in changes.items() if value is not UNSET}
    for name, value in given.items():
        if _LIMIT_TYPES[name] == "integer":
            checks.integer_or_none(cast("int | None", value), name)
    return Operation(
        _SET_LIMITS,
        _limits_or_none,
        {"queue": queue, "remove": ",".join(removed), **dict.fromkeys(_LIMIT_TYPES), **given},
    )


def limits(queue: str | None = None) -> Operation[list[QueueLimits]]:
    """Return the call that reads the limits of queues and their running jobs."""
    return Operation(_LIMITS, lambda rows: rows_as(QueueLimits, rows), {"queue": queue})


def set_max_attempts(queue: str, attempts: int | None) -> Operation[int | None]:
    """Return the call that sets the maximum attempts of a queue's jobs.

    It returns the previous number.
    """
    return Operation(
        "select forebay.set_max_attempts(queue => %(queue)s, attempts => %(attempts)s::integer)",
        lambda rows: None if (found := scalar_or_none(rows)) is None else int(found),
        {
            "queue": checks.checked_name(queue, "queue"),
            "attempts": None
            if attempts is None
            else checks.checked_integer(
                attempts, "attempts", least=1, most=checks.MAX_ATTEMPTS_MAX
            ),
        },
    )


def max_attempts() -> Operation[dict[str, int]]:
    """Return the call that reads the maximum attempts of the queues that have one."""
    return Operation("select queue, max_attempts from forebay.queue_attempts order by queue", dict)


def set_notices(queue: str, enabled: bool) -> Operation[bool]:
    """Return the call that switches the notices of a queue; it returns whether it sent them."""
    if not isinstance(enabled, bool):
        raise InvalidJob("enabled", f"must be True or False, not {shown(enabled)}")
    return Operation(
        "select forebay.set_notices(queue => %(queue)s, enabled => %(enabled)s::boolean)",
        lambda rows: bool(scalar(rows)),
        {"queue": checks.checked_name(queue, "queue"), "enabled": enabled},
    )


def configure(name: str, value: SettingValue, *, dry_run: bool = False) -> Operation[Any]:
    """Return the call that changes a setting of the database; it returns the previous value.

    Args:
        name: the setting.
        value: its new value; None gives the built-in one back.
        dry_run: only check the value.

    Raises:
        InvalidJob: the value is none of these types, or cannot be a text of PostgreSQL.
    """
    return Operation(
        "select forebay.configure(name => %(name)s::text, value => %(value)s::text,"
        " dry_run => %(dry_run)s::boolean)::text",
        lambda rows: None if (text := scalar(rows)) is None else json.loads(text),
        {
            "name": checks.checked_text(name, "name", characters_max=100),
            "value": _setting_text(value),
            "dry_run": bool(dry_run),
        },
    )


def settings() -> Operation[list[DatabaseSetting]]:
    """Return the call that reads the settings of the database."""
    return Operation(
        "select to_jsonb(s)::text from forebay.settings() s",
        lambda rows: rows_as(DatabaseSetting, rows),
    )


def queue_settings(queue: str) -> Operation[list[QueueSetting]]:
    """Return the call that reads all settings that hold for a queue."""
    return Operation(
        "select to_jsonb(s)::text from forebay.queue_settings(%(queue)s) s",
        lambda rows: rows_as(QueueSetting, rows),
        {"queue": checks.checked_name(queue, "queue")},
    )


def _setting_text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        return encode_json(list(value) if isinstance(value, tuple) else value)
    if value is None or isinstance(value, str):
        return value and checks.checked_text(value, "value", characters_max=10_000)
    raise InvalidJob(
        "value",
        f"is {shown(value)}, not a value of a setting",
        hint="It is a number, a text, True or False, a list, a dict, or None for the built-in one.",
    )


def _limits_or_none(rows: ResultRows) -> Limits | None:
    text = scalar(rows)
    return None if text is None else Limits(**json.loads(text))


def paused_queues(
    group_ids: Collection[int],
) -> Operation[list[tuple[str, datetime, datetime | None]]]:
    """Return which of some groups are paused: the queue, since when, and until when."""
    return Operation(
        "select queue, paused_at, resume_at from forebay.paused_queues_v1(%(group_ids)s)",
        list,
        {"group_ids": list(group_ids)},
    )

"""The schedules of django-celery-beat, read from its tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import msgspec
from celery import schedules

from forebay.errors import ConfigError
from forebay.moving.celery_words import Order, headers_of, priority_of, timing_of
from forebay.moving.found import (
    FoundJob,
    FoundSchedule,
    Refused,
    UnkeptError,
    Work,
    instant_of,
    owner_of,
)
from forebay.moving.sql_words import place_of
from forebay.ops.operation import Operation
from forebay.ops.records import rows_as

T = TypeVar("T")

_READ: Final = """\
select jsonb_build_object(
    'id', p.id, 'name', p.name, 'task', p.task, 'args', p.args, 'kwargs', p.kwargs,
    'queue', p.queue, 'exchange', p.exchange, 'routing_key', p.routing_key, 'headers', p.headers,
    'priority', p.priority, 'expires', p.expires, 'expired', p.expires <= now(),
    'expire_seconds', p.expire_seconds, 'one_off', p.one_off, 'start_time', p.start_time,
    'enabled', p.enabled, 'solar', s.event,
    'crontab', case when c.id is not null then jsonb_build_array(
        c.minute, c.hour, c.day_of_week, c.day_of_month, c.month_of_year) end,
    'timezone', c.timezone::text, 'every', i.every, 'period', i.period,
    'clocked', k.clocked_time, 'gone', k.clocked_time <= now()
    )::text
from django_celery_beat_periodictask p
left join django_celery_beat_crontabschedule c on c.id = p.crontab_id
left join django_celery_beat_intervalschedule i on i.id = p.interval_id
left join django_celery_beat_clockedschedule k on k.id = p.clocked_id
left join django_celery_beat_solarschedule s on s.id = p.solar_id
order by p.name"""

#: Deletes results of Celery; beat makes it itself.
_CLEANUP: Final = "celery.backend_cleanup"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic task, with its schedule."""

    id: int
    name: str
    task: str
    args: str
    kwargs: str
    queue: str | None
    exchange: str | None
    routing_key: str | None
    headers: str
    priority: int | None
    expires: str | None
    expired: bool | None
    expire_seconds: int | None
    one_off: bool
    start_time: str | None
    enabled: bool
    solar: str | None
    crontab: list[str] | None
    timezone: str | None
    every: int | None
    period: str | None
    clocked: str | None
    gone: bool | None


def periodic_tasks() -> Operation[list[Row]]:
    """Return the call that reads the tables."""
    return Operation(_READ, lambda rows: rows_as(Row, rows))


class DjangoCeleryBeat:
    """The periodic tasks of a database.

    Args:
        run: runs an operation there.
        order: which priority goes first at the broker; None: not known.
        source: its name; None: that of the database, and what tells its table from others.

    Raises:
        ConfigError: the tables are not there.
    """

    def __init__(
        self,
        run: Callable[[Operation[Any]], Any],
        order: Order | None,
        source: str | None = None,
    ) -> None:
        place = place_of(run, "django_celery_beat_periodictask")
        if place.table is None:
            raise ConfigError(
                "--from",
                f"leads to database {place.database}, where the search path shows no table of "
                "django-celery-beat",
                hint="Give the address of Django's database: --from postgresql://...",
            )
        self._run = run
        self._order = order
        self._identity = place.identity
        self.label = owner_of("django-celery-beat", source, f"{place.database} {place.short}")
        self.farewell = (
            "stop beat first, and disable the periodic tasks in Django's admin: both would run them"
        )

    def read(self) -> Iterator[FoundSchedule | FoundJob | Refused]:
        """Yield the periodic tasks, by name."""
        for row in self._run(periodic_tasks()):
            try:
                yield self._found(row)
            except UnkeptError as error:
                yield Refused(name=row.name, reason=str(error))

    def _found(self, row: Row) -> FoundSchedule | FoundJob:
        _refuse(row)
        work = Work(
            task=row.task,
            positional=tuple(_json(row.args, list, "args")),
            named=_json(row.kwargs, dict, "kwargs"),
            queue=row.queue or None,
            priority=priority_of(row.priority, self._order),
            headers=headers_of(_json(row.headers, dict, "headers")),
        )
        if row.clocked is not None:
            if row.gone:
                raise UnkeptError(f"its time was {row.clocked}")
            run_at = instant_of(row.clocked)
            return FoundJob(
                name=row.name,
                source_id=f"django-celery-beat:{self._identity}:{row.id}:{row.clocked}",
                work=work,
                run_at=run_at,
                expires_at=(
                    None
                    if row.expire_seconds is None
                    else run_at + timedelta(seconds=row.expire_seconds)
                ),
            )
        if row.one_off:
            raise UnkeptError(
                "it runs once (one_off): enqueue a job with a time, forebay enqueue --run-at"
            )
        return FoundSchedule(
            name=row.name,
            work=work,
            starts_at=None if row.start_time is None else instant_of(row.start_time),
            expires_in=None if row.expire_seconds is None else float(row.expire_seconds),
            **_timing(row),
        )


def _refuse(row: Row) -> None:
    if row.task == _CLEANUP:
        raise UnkeptError("it deletes results of Celery; results here end by their own retention")
    if not row.enabled:
        raise UnkeptError("it is disabled")
    if row.expires is not None:
        raise UnkeptError(
            f"it has ended, at {row.expires}"
            if row.expired
            else f"it ends at {row.expires}, and schedules here do not end by themselves"
        )
    if row.exchange or row.routing_key:
        raise UnkeptError("its route is an exchange or a routing key, not a queue")


def _timing(row: Row) -> dict[str, Any]:
    if row.crontab is not None:
        minute, hour, day_of_week, day_of_month, month_of_year = row.crontab
        try:
            when = schedules.crontab(
                minute=minute,
                hour=hour,
                day_of_week=day_of_week,
                day_of_month=day_of_month,
                month_of_year=month_of_year,
            )
            zone = ZoneInfo(row.timezone or "UTC")
        except (ValueError, KeyError, OSError, schedules.ParseException) as error:
            raise UnkeptError(f"its crontab cannot be read: {error}") from None
        return timing_of(when, zone)
    if row.every is not None and row.period is not None:
        try:
            return timing_of(timedelta(**{row.period: row.every}), None)
        except (TypeError, OverflowError):
            raise UnkeptError(f"its interval is {row.every} {row.period}") from None
    if row.solar is not None:
        raise UnkeptError(
            f"it follows the sun (solar {row.solar}), and schedules here follow a clock"
        )
    raise UnkeptError("it has no schedule")


def _json(text: str, form: type[T], name: str) -> T:
    try:
        found = json.loads(text or ("[]" if form is list else "{}"))
    except (ValueError, RecursionError):
        raise UnkeptError(f"its {name} are not JSON") from None
    if not isinstance(found, form):
        raise UnkeptError(f"its {name} are not a JSON {'array' if form is list else 'object'}")
    return found

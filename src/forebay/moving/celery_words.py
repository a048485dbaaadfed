"""The words of Celery in ours: schedules, options and priorities."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta, tzinfo
from itertools import pairwise
from typing import Any, Final, Literal

from celery import schedules

from forebay.errors import shown
from forebay.model import checks
from forebay.moving.found import UnkeptError

#: Which of two priorities goes first: 0 in Redis, the higher one in RabbitMQ.
Order = Literal["low-first", "high-first"]

#: What says how a message gets to the broker and how its result is kept: nothing of the work.
_OF_THE_WAY: Final = frozenset(
    {"retry", "retry_policy", "serializer", "compression", "ignore_result", "delivery_mode"}
)

#: Of each field of a cron expression: its first value and how many there are.
_FIELDS: Final = {
    "minute": (0, 60),
    "hour": (0, 24),
    "day_of_month": (1, 31),
    "month_of_year": (1, 12),
    "day_of_week": (0, 7),
}
_SERIES_MIN: Final = 3


def timing_of(when: Any, zone: tzinfo | None) -> dict[str, Any]:
    """Return ``cron`` and ``tz``, or ``every``, of a schedule of Celery.

    Args:
        when: a schedule, a timedelta or seconds.
        zone: of an expression; None: that of the schedule.

    Raises:
        UnkeptError: it cannot be kept exactly.
    """
    if isinstance(when, bool):
        raise UnkeptError(f"its schedule is {shown(when)}")
    if isinstance(when, (int, float)):
        when = timedelta(seconds=when)
    if isinstance(when, timedelta):
        return {"every": _every(when)}
    if type(when) is schedules.crontab:
        if when.nowfun is not None and zone is None:
            raise UnkeptError("its clock is a function (nowfun)")
        return {"cron": cron_of(when), "tz": _zone_name(when.tz if zone is None else zone)}
    if type(when) is schedules.schedule:
        if when.relative:
            raise UnkeptError("it is rounded to whole units (relative): write it as a crontab")
        return {"every": _every(when.run_every)}
    if isinstance(when, schedules.solar):
        raise UnkeptError(
            f"it follows the sun (solar {when.event}), and schedules here follow a clock"
        )
    raise UnkeptError(
        f"its schedule is of the class {type(when).__name__}, which is not known here"
    )


def cron_of(when: Any) -> str:
    """Return the expression of a crontab, from the times that Celery has computed of it.

    Raises:
        UnkeptError: it restricts both days of the month and days of the week.
    """
    texts = {
        name: _field(getattr(when, name), first, count) for name, (first, count) in _FIELDS.items()
    }
    if texts["day_of_month"] != "*" and texts["day_of_week"] != "*":
        raise UnkeptError(
            "it names days of the month and days of the week: Celery runs on days that are both, "
            "cron on days that are either"
        )
    return " ".join(texts.values())


def _field(numbers: Collection[int], first: int, count: int) -> str:
    """Return a field.

    >>> _field({0, 15, 30, 45}, 0, 60), _field(range(24), 0, 24), _field({1, 2, 3, 9}, 1, 31)
    ('*/15', '*', '1-3,9')
    """
    found = sorted(numbers)
    if len(found) == count:
        return "*"
    steps = {after - before for before, after in pairwise(found)}
    if len(found) >= _SERIES_MIN and len(steps) == 1 and (step := min(steps)) > 1:
        if found[0] == first and found[-1] + step >= first + count:
            return f"*/{step}"
        return f"{found[0]}-{found[-1]}/{step}"
    parts: list[list[int]] = []
    for number in found:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(
        f"{part[0]}-{part[-1]}" if len(part) >= _SERIES_MIN else ",".join(map(str, part))
        for part in parts
    )


def _every(interval: timedelta) -> float:
    seconds = interval.total_seconds()
    if seconds < 1 or seconds % 1:
        raise UnkeptError(f"its interval is {seconds:g} s, and intervals here are whole seconds")
    return seconds


def _zone_name(zone: tzinfo) -> str:
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name is None and zone.utcoffset(None) == timedelta(0):
        name = "UTC"
    if name is None:
        raise UnkeptError(
            f"its time zone, {shown(str(zone))}, has no name: set timezone in Celery's settings"
        )
    return str(name)


def priority_of(priority: object, order: Order | None) -> int | None:
    """Return a priority in our order; the one of a task without one is 100.

    >>> priority_of(3, "low-first"), priority_of(3, "high-first")
    (103, 97)

    Raises:
        UnkeptError: its type is wrong, or it is not known which priority goes first.
    """
    if priority is None:
        return None
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise UnkeptError(f"its priority is {shown(priority)}, not a number")
    if order is None:
        raise UnkeptError(
            f"it has priority {priority}, and whether 0 goes first depends on the broker: name it "
            "with --broker redis or --broker amqp"
        )
    found = checks.PRIORITY_DEFAULT + (priority if order == "low-first" else -priority)
    if not checks.PRIORITY_MIN <= found <= checks.PRIORITY_MAX:
        raise UnkeptError(f"its priority {priority} is out of range")
    return found


def order_of(broker: str | None) -> Order | None:
    """Return which priority goes first at a broker, by its address or the name of its transport.

    >>> order_of("rediss://:secret@h:1/0"), order_of("amqp"), order_of("sqs://")
    ('low-first', 'high-first', None)
    """
    transport = (broker or "").partition(":")[0].partition("+")[0].lower()
    if transport in {"redis", "rediss", "sentinel"}:
        return "low-first"
    return "high-first" if transport in {"amqp", "amqps", "pyamqp", "librabbitmq"} else None


def options_of(options: Mapping[str, Any], order: Order | None) -> dict[str, Any]:
    """Return ``queue``, ``priority``, ``headers`` and ``expires_in`` of the options of a call.

    Raises:
        UnkeptError: an option has no equal here.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or name in _OF_THE_WAY:
            continue
        match name:
            case "queue" if isinstance(value, str):
                found["queue"] = value
            case "priority":
                found["priority"] = priority_of(value, order)
            case "headers":
                found["headers"] = headers_of(value)
            case "expires":
                found["expires_in"] = _expires_in(value)
            case _:
                raise UnkeptError(f"its option {name} has no equal here")
    return found


def headers_of(value: object) -> dict[str, str]:
    """Return headers, whose values must be texts.

    Raises:
        UnkeptError: they are not.
    """
    if not isinstance(value, Mapping):
        raise UnkeptError("its headers are not an object")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise UnkeptError(f"its header {name} is {shown(text)}, and headers are texts here")
    return dict(value)


def _expires_in(value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise UnkeptError(f"it expires at a fixed time, {shown(value)}: its runs cannot start after it")

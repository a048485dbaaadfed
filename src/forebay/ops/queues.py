"""Queues, their groups, and the settings of the database."""

from __future__ import annotations

import json
from typing import Final, Literal

from forebay.model.status import Limits, Pace
from forebay.ops._records import rows_as
from forebay.ops.operation import Operation, ResultRows, scalar

Start = Literal["beginning", "now"]

_PACE: Final = """\
select json_build_object(
    'queue', p.queue, 'group', p.group_name, 'running', p.running, 'keys_waiting', p.keys_waiting,
    'next_start_at', p.next_start_at, 'limits', json_build_object(
        'concurrency', p.concurrency, 'rate', p.rate, 'burst', p.burst,
        'key_concurrency', p.key_concurrency, 'key_rate', p.key_rate, 'key_burst', p.key_burst))::text
from forebay.pace(%(queue)s) p order by p.queue, p.group_name"""


def open_group(queue: str, name: str = "default", start: Start | None = None) -> Operation[int]:
    """Return the call that opens a group, an independent reader of a queue; it answers its id."""
    return Operation(
        "select forebay.open_group(queue => %(queue)s, name => %(name)s, start => %(start)s)",
        _number,
        {"queue": queue, "name": name, "start": start},
    )


def pause_queue(queue: str, group: str | None = None) -> Operation[int]:
    """Return the call that pauses a queue; it answers how many groups changed."""
    return Operation(
        "select forebay.pause_queue(queue => %(queue)s, group_name => %(group)s)",
        _number,
        {"queue": queue, "group": group},
    )


def resume_queue(queue: str, group: str | None = None) -> Operation[int]:
    """Return the call that resumes a queue; it answers how many groups changed."""
    return Operation(
        "select forebay.resume_queue(queue => %(queue)s, group_name => %(group)s)",
        _number,
        {"queue": queue, "group": group},
    )


def spread_queue(queue: str, lanes: int) -> Operation[int]:
    """Return the call that spreads a queue's jobs over lanes; it answers the number before."""
    return Operation(
        "select forebay.spread_queue(queue => %(queue)s, lanes => %(lanes)s)",
        _number,
        {"queue": queue, "lanes": lanes},
    )


def limit_queue(queue: str, most: int | None) -> Operation[int | None]:
    """Return the call that limits how many jobs of a queue may wait; it answers the limit before."""
    return Operation(
        "select forebay.limit_queue(queue => %(queue)s, most => %(most)s::bigint)",
        _number_or_none,
        {"queue": queue, "most": most},
    )


def pace_queue(queue: str, limits: Limits) -> Operation[Limits | None]:
    """Return the call that sets the pace of a queue; it answers the limits before."""
    return Operation(
        "select forebay.pace_queue(queue => %(queue)s, concurrency => %(concurrency)s::integer,"
        " rate => %(rate)s::double precision, burst => %(burst)s::integer,"
        " key_concurrency => %(key_concurrency)s::integer,"
        " key_rate => %(key_rate)s::double precision, key_burst => %(key_burst)s::integer)::text",
        _limits_or_none,
        {
            "queue": queue,
            "concurrency": limits.concurrency,
            "rate": limits.rate,
            "burst": limits.burst,
            "key_concurrency": limits.key_concurrency,
            "key_rate": limits.key_rate,
            "key_burst": limits.key_burst,
        },
    )


def pace(queue: str | None = None) -> Operation[list[Pace]]:
    """Return the call that tells the pace of queues, and what runs of them."""
    return Operation(_PACE, lambda rows: rows_as(Pace, rows), {"queue": queue})


def configure(name: str, value: int) -> Operation[int]:
    """Return the call that changes a setting of the database; it answers the value before."""
    return Operation(
        "select forebay.configure(name => %(name)s, value => %(value)s::bigint)",
        _number,
        {"name": name, "value": value},
    )


def _limits_or_none(rows: ResultRows) -> Limits | None:
    text = scalar(rows)
    return None if text is None else Limits(**json.loads(text))


def _number_or_none(rows: ResultRows) -> int | None:
    value = scalar(rows)
    return None if value is None else int(value)


def _number(rows: ResultRows) -> int:
    return int(scalar(rows))

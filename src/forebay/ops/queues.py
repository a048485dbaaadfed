"""Queues, their groups, and the settings of the database."""

from __future__ import annotations

from typing import Literal

from forebay.ops.operation import Operation, Rows, scalar

Start = Literal["beginning", "now"]


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


def configure(name: str, value: int) -> Operation[int]:
    """Return the call that changes a setting of the database; it answers the value before."""
    return Operation(
        "select forebay.configure(name => %(name)s, value => %(value)s::bigint)",
        _number,
        {"name": name, "value": value},
    )


def _number_or_none(rows: Rows) -> int | None:
    value = scalar(rows)
    return None if value is None else int(value)


def _number(rows: Rows) -> int:
    return int(scalar(rows))

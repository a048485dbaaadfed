"""Event types, subscriptions, publishing and replays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from forebay.arguments.json_guard import encode_json
from forebay.errors import InvalidJob, shown
from forebay.model import checks
from forebay.model.publishing import EventType, Publication, Subscription
from forebay.ops.enqueue import MESSAGE, message_parameters
from forebay.ops.operation import Operation, ResultRows, boolean, number, scalar
from forebay.ops.records import rows_as

_PUBLISH: Final = f"""\
select to_jsonb(p)::text
from forebay.publish(%(event_type)s, %(payload)s::jsonb, {MESSAGE}) p"""

_TYPES: Final = """\
select to_jsonb(t)::text
from forebay.event_types() t order by t.name"""

_SUBSCRIPTIONS: Final = """\
select to_jsonb(s)::text
from forebay.subscriptions(%(endpoint)s) s order by s.endpoint, s.event_type"""


def create_event_type(name: str, description: str | None = None) -> Operation[bool]:
    """Return the call that creates an event type; it returns whether it is new."""
    return Operation(
        "select forebay.create_event_type(%(name)s, %(description)s)",
        boolean,
        {"name": name, "description": description},
    )


def drop_event_type(name: str) -> Operation[bool]:
    """Return the call that drops an event type; it returns whether there was one."""
    return Operation("select forebay.drop_event_type(%(name)s)", boolean, {"name": name})


def event_types() -> Operation[list[EventType]]:
    """Return the call that lists the event types, by name."""
    return Operation(_TYPES, lambda rows: rows_as(EventType, rows))


def publish(event_type: str, payload: Any, options: Mapping[str, Any]) -> Operation[Publication]:
    """Return the call that publishes an event."""
    return Operation(
        _PUBLISH,
        lambda rows: rows_as(Publication, rows)[0],
        {
            "event_type": event_type,
            "payload": encode_json(payload),
            **message_parameters(options, "is not one of an event"),
        },
    )


def publish_many(event_type: str, payloads: Iterable[Any]) -> Operation[list[int]]:
    """Return the call that publishes events of one type; it returns their ids."""
    items = ",".join(
        f'{{"event_type":{json.dumps(event_type)},"payload":{encode_json(payload)}}}'
        for payload in payloads
    )
    return Operation(
        "select forebay.publish_many(%(events)s::jsonb)", _numbers, {"events": f"[{items}]"}
    )


def subscribe(
    endpoint: str, event_type: str, contained: Any, start: str | datetime
) -> Operation[int]:
    """Return the call that subscribes an endpoint; it returns the id of the subscription."""
    if isinstance(start, datetime):
        start = checks.instant_text(start, "start") or ""
    elif start not in ("now", "beginning"):
        raise InvalidJob("start", f"{shown(start)} is neither 'now' nor 'beginning' nor a datetime")
    return Operation(
        "select forebay.subscribe(%(endpoint)s, %(event_type)s, %(filter)s::jsonb, %(start)s)",
        number,
        {
            "endpoint": endpoint,
            "event_type": event_type,
            "filter": None if contained is None else encode_json(contained),
            "start": start,
        },
    )


def unsubscribe(endpoint: str, event_type: str) -> Operation[bool]:
    """Return the call that ends a subscription; it returns whether there was one."""
    return Operation(
        "select forebay.unsubscribe(%(endpoint)s, %(event_type)s)",
        boolean,
        {"endpoint": endpoint, "event_type": event_type},
    )


def subscriptions(endpoint: str | None = None) -> Operation[list[Subscription]]:
    """Return the call that lists subscriptions, by endpoint and event type."""
    return Operation(
        _SUBSCRIPTIONS, lambda rows: rows_as(Subscription, rows), {"endpoint": endpoint}
    )


def replay_endpoint(name: str, since: datetime, until: datetime | None = None) -> Operation[int]:
    """Return the call that delivers events again; it returns the id of the job that does it."""
    return Operation(
        "select forebay.replay_endpoint(%(name)s, %(since)s::timestamptz, %(until)s::timestamptz)",
        number,
        {
            "name": name,
            "since": checks.instant_text(since, "since"),
            "until": checks.instant_text(until, "until"),
        },
    )


def redrive_endpoint(name: str, limit: int | None = None) -> Operation[int]:
    """Return the call that redrives the dead letters of an endpoint; it returns their number."""
    return Operation(
        "select forebay.redrive_endpoint(%(name)s, %(limit)s::integer)",
        number,
        {
            "name": name,
            "limit": None
            if limit is None
            else checks.checked_integer(limit, "limit", least=1, most=checks.INTEGER_MAX),
        },
    )


def _numbers(rows: ResultRows) -> list[int]:
    return list(scalar(rows))

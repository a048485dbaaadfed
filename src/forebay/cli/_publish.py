"""forebay publish, event-types and subscriptions: events and who gets them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import client_of
from forebay.cli.options import Dsn, Json, duration, instant_or_age, json_value
from forebay.cli.output import ago, compact, one_line, print_json, table
from forebay.cli.text import console
from forebay.errors import ConfigError
from forebay.model.text import counted

if TYPE_CHECKING:
    from forebay.model.publishing import Subscription

types = Commands()
subscriptions = Commands()

EventType = Annotated[str, argument("EVENT_TYPE", "The event type.")]
Endpoint = Annotated[str, argument("ENDPOINT", "The endpoint.")]


def publish(
    event_type: EventType,
    payload: Annotated[
        str | None, argument("[PAYLOAD]", "A JSON value; - reads it from stdin.")
    ] = None,
    *,
    ordering_key: Annotated[
        str | None,
        option("--ordering-key TEXT", "Events with the same key reach each endpoint in order."),
    ] = None,
    delay: Annotated[
        str | None, option("--delay TIME", "Publish it after this time: 90, 15m, 2h.")
    ] = None,
    correlation_id: Annotated[
        str | None, option("--correlation-id TEXT", "Sent with each delivery, unchanged.")
    ] = None,
    tag: Annotated[str | None, option("--tag TEXT", "Where the event comes from.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Publish an event, and commit it: each endpoint that subscribes gets a delivery."""
    from forebay.model.publishing import PublishOptions

    options: PublishOptions = {}
    if ordering_key is not None:
        options["ordering_key"] = ordering_key
    if delay is not None:
        options["delay"] = duration(delay, "--delay")
    if correlation_id is not None:
        options["correlation_id"] = correlation_id
    if tag is not None:
        options["tag"] = tag
    body = None if payload is None else json_value(payload, "payload")
    if payload is not None and body is None:
        raise ConfigError("payload", "is null, which an event of the command line cannot have")
    found = client_of(dsn).publish(None, event_type, body, **options)
    if as_json:
        print_json(found)
    elif found.subscriptions == 0:
        console().print(f"published event {found.event_id}; no endpoint subscribes to {event_type}")
    else:
        count = f"{found.subscriptions:,} subscription" + "s" * (found.subscriptions != 1)
        console().print(f"published event {found.event_id}; {event_type} has {count}")
        if found.dropping:
            console().print(
                f"{counted(found.dropping, 'endpoint')} of them full: this event may be dropped for"
                f" them. `forebay endpoints list` shows which.",
                style="yellow",
            )


# --- event types ---


@types.add("list")
def list_types(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """List the event types."""
    found = client_of(dsn).event_types()
    if as_json:
        print_json(found)
        return
    rows = table(
        *("event type", "subscriptions", "description"),
        right=("subscriptions",),
        loose=("event type", "description"),
    )
    for each in found:
        rows.add_row(each.name, f"{each.subscriptions:,}", one_line(each.description or "-"))
    console().print(rows)


@types.add("create")
def create_type(
    name: EventType,
    *,
    description: Annotated[str | None, option("--description TEXT", "For people.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Create an event type, or change its description."""
    is_new = client_of(dsn).create_event_type(name, description)
    if as_json:
        print_json({"event_type": name, "is_new": is_new})
    else:
        console().print(f"event type {name}: {'created' if is_new else 'was there already'}")


@types.add("drop")
def drop_type(name: EventType, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Drop an event type and its subscriptions. Deliveries that wait are still sent."""
    dropped = client_of(dsn).drop_event_type(name)
    if as_json:
        print_json({"event_type": name, "dropped": dropped})
    else:
        console().print(f"event type {name}: {'dropped' if dropped else 'does not exist'}")


# --- subscriptions ---


@subscriptions.add("list")
def list_subscriptions(
    endpoint: Annotated[str | None, argument("[ENDPOINT]", "Only of this endpoint.")] = None,
    *,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """List the subscriptions."""
    found = client_of(dsn).subscriptions(endpoint)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No subscriptions.", style="dim")
        return
    rows = table(
        *("endpoint", "event type", "filter", "start", "state"),
        loose=("endpoint", "event type", "filter"),
    )
    for each in found:
        rows.add_row(
            each.endpoint,
            each.event_type,
            "-" if each.filter is None else compact(each.filter, 40),
            _start(each),
            "active" if each.is_active else "catches up",
        )
    out.print(rows)


@subscriptions.add("add")
def add(
    endpoint: Endpoint,
    event_type: EventType,
    *,
    contained: Annotated[
        str | None, option("--filter JSON", "What the payload must contain. Default: anything.")
    ] = None,
    start: Annotated[
        str, option("--from TIME", "now, beginning, an age such as 2h, or ISO 8601.")
    ] = "now",
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Subscribe an endpoint to an event type. Repeat it to change the filter."""
    begins = start if start in ("now", "beginning") else instant_or_age(start, "--from")
    wanted = None if contained is None else json_value(contained, "--filter")
    number = client_of(dsn).subscribe(endpoint, event_type, wanted, start=begins or "now")
    if as_json:
        print_json({"subscription_id": number, "endpoint": endpoint, "event_type": event_type})
    else:
        filtered = "" if contained is None else f" that contain {json.dumps(wanted)}"
        console().print(f"{endpoint} gets events of type {event_type}{filtered}")


@subscriptions.add("remove")
def remove(
    endpoint: Endpoint, event_type: EventType, *, dsn: Dsn = None, as_json: Json = False
) -> None:
    """End a subscription. Deliveries that wait are still sent."""
    removed = client_of(dsn).unsubscribe(endpoint, event_type)
    if as_json:
        print_json({"endpoint": endpoint, "event_type": event_type, "removed": removed})
    else:
        what = "no more events" if removed else "did not get events"
        console().print(f"{endpoint}: {what} of type {event_type}")


def _start(each: Subscription) -> str:
    if each.is_from_beginning:
        return "beginning"
    return ago(each.starts_at or each.created_at)

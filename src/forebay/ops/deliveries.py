"""Calls of deliverers: settings of endpoints, payloads of events, and reports of calls."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from forebay._dataclass import dataclass
from forebay.ops.operation import Operation, nothing
from forebay.ops.sendable import sendable_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.operation import ResultRows


class RetiredSecret(msgspec.Struct, frozen=True):
    """A reference to a secret that still signs until an instant."""

    secret: str
    until: datetime


class EndpointSettings(msgspec.Struct, frozen=True):
    """What a deliverer needs of an endpoint.

    Attributes:
        retired_secrets: they sign too, until their instants.
        disabled_at: None: it is enabled.
        opened_at: None: its breaker is closed.
        disable_on_gone: an answer that it wants no messages any more disables it.
    """

    endpoint_id: int
    name: str
    sink: str
    config: dict[str, Any]
    retired_secrets: list[RetiredSecret]
    retry: Any
    concurrency: int
    keeps_response: bool
    breaker_threshold: int
    disabled_at: datetime | None
    opened_at: datetime | None
    version: int
    disable_on_gone: bool = True


@dataclass(frozen=True, slots=True)
class ChangedSettings:
    """Endpoints that changed since a version.

    Attributes:
        version: for the next call.
        ids: of all endpoints.
        endpoints: those that changed; one may be among them again.
    """

    version: int
    ids: frozenset[int]
    endpoints: list[EndpointSettings]


@dataclass(frozen=True, slots=True)
class EndpointState:
    """What the database answers to a report.

    Attributes:
        opened_at: since when the breaker is open; None: it is closed.
        disabled_at: since when the endpoint is disabled; None: it is enabled.
        version: of the endpoint's settings.
    """

    endpoint_id: int
    opened_at: datetime | None
    disabled_at: datetime | None
    version: int


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """The part of a message that all deliveries of an event share.

    Attributes:
        payload: the JSON text that PostgreSQL shows, as UTF-8.
        ordering_key: that of the event, without an endpoint.
    """

    payload: bytes
    headers: dict[str, str]
    ordering_key: str | None


def endpoint_settings(since: int) -> Operation[ChangedSettings]:
    """Return the settings of endpoints that changed since a version; 0: of all."""
    return Operation(
        "select version, ids, endpoints::text from forebay.endpoint_settings_v1(%(since)s)",
        _settings,
        {"since": since},
    )


def deliveries_wait() -> Operation[bool]:
    """Return whether deliveries wait behind limits of endpoints, and can run soon."""
    return Operation("select forebay.deliveries_wait_v1()", lambda rows: bool(rows[0][0]))


def event_payloads(
    keys: Sequence[tuple[int, datetime]],
) -> Operation[dict[tuple[int, datetime], PublishedEvent]]:
    """Return the events of some keys: id and time of publication.

    Events that were deleted are missing.
    """
    return Operation(
        "select event_id, published_at, payload::text, headers, ordering_key"
        " from forebay.event_payloads_v1(%(ids)s::bigint[], %(times)s::timestamptz[])",
        lambda rows: {
            (event_id, at): PublishedEvent(payload.encode(), headers or {}, key)
            for event_id, at, payload, headers, key in rows
        },
        {"ids": [event_id for event_id, _ in keys], "times": [at for _, at in keys]},
    )


def record_sink_type(
    name: str, settings: Sequence[str], required: Sequence[str]
) -> Operation[None]:
    """Let endpoints have sinks of a type of another distribution.

    Args:
        name: of the type.
        settings: that a configuration may have.
        required: of these, the ones that it must have.
    """
    found = [{"name": name, "settings": settings, "required": required}]
    return Operation(
        "select forebay.record_sink_types_v1(%(types)s::jsonb)",
        nothing,
        {"types": msgspec.json.encode(found).decode()},
    )


def report_deliveries(worker: str, reports: Sequence[Any]) -> Operation[list[EndpointState]]:
    """Report what calls of endpoints found; return the states of those that exist."""
    return Operation(
        "select endpoint_id, opened_at, disabled_at, version"
        " from forebay.report_deliveries_v1(%(worker)s, %(reports)s::jsonb)",
        lambda rows: [EndpointState(*row) for row in rows],
        {"worker": worker, "reports": sendable_json(reports).decode()},
    )


def _settings(rows: ResultRows) -> ChangedSettings:
    ((version, ids, endpoints),) = rows
    return ChangedSettings(
        version, frozenset(ids), msgspec.json.decode(endpoints, type=list[EndpointSettings])
    )

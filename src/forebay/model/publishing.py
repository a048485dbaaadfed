"""Published events, their types, and subscriptions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from forebay._dataclass import dataclass
from forebay.model.options import MessageOptions


class PublishOptions(MessageOptions, total=False):
    """The keywords of ``publish``; see ``JobOptions``.

    Deliveries have priority, tag, correlation id and expiry of their event.

    Keys:
        ordering_key: events with the same key are sent to each endpoint in the order in which they
            were published.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What ``publish`` returns.

    Attributes:
        event_id: with ``unique`` perhaps that of an existing event.
        subscriptions: how many subscriptions of enabled endpoints the event type has, before
            filters, counted up to 100. 0: nothing will be delivered, unless a subscription is made
            later that begins earlier.
        dropping: of how many of these endpoints events are dropped now, since they are full and
            have ``when_full="drop"``.
    """

    event_id: int
    subscriptions: int
    dropping: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """An event type.

    Attributes:
        description: None: it has none.
        subscriptions: how many there are.
    """

    name: str
    description: str | None
    subscriptions: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What an endpoint gets of an event type.

    Attributes:
        endpoint: name of the endpoint.
        filter: what a payload must contain; None: all events.
        starts_at: events published since then; None: those after ``created_at``, or all.
        is_from_beginning: it began with all events that were kept.
        is_active: routers expand new events for it. False: it still catches up, or no router runs.
    """

    subscription_id: int
    endpoint: str
    event_type: str
    filter: Any
    starts_at: datetime | None
    is_from_beginning: bool
    is_active: bool
    created_at: datetime

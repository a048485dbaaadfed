# Generated from src/forebay/client/_async/publishing.py by tools/async_to_sync.py. Do not edit.
"""The part of the synchronous client for published events."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Unpack

from forebay.client._sync.base import ClientBase
from forebay.db.drivers import SyncConnection
from forebay.model.publishing import EventType, Publication, PublishOptions, Subscription
from forebay.ops import publishing


class Publishing(ClientBase):
    """Publish events, and manage event types and subscriptions."""

    def publish(
        self,
        conn: SyncConnection | None,
        event_type: str,
        payload: Any = None,
        **options: Unpack[PublishOptions],
    ) -> Publication:
        """Publish an event in the transaction of a connection: one row, whatever the number of
        subscriptions.

        With None as the connection, the event has a separate transaction.

        Args:
            conn: the connection whose transaction to use; None: a separate transaction.
            event_type: one that ``create_event_type`` made.
            payload: a value with a JSON form; None: an empty object.
            options: see ``PublishOptions``.

        Raises:
            InvalidJob: the event type does not exist, or an option is refused.
            QueueFull: as many deliveries wait for a subscriber as its ``max_waiting`` allows, and
                it has ``when_full="refuse"``; nothing was written.
            PayloadTooLarge, PayloadTooDeep: as for the arguments of a job.
        """
        return self._run(
            conn, publishing.publish(event_type, {} if payload is None else payload, options)
        )

    def publish_many(
        self,
        conn: SyncConnection | None,
        event_type: str,
        payloads: Iterable[Any],
    ) -> list[int]:
        """Publish an event for each payload, all or none; return their ids in the same order.

        Args:
            conn: the connection whose transaction to use; None: a separate transaction.
            event_type: one that ``create_event_type`` made.
            payloads: values with a JSON form.

        Raises:
            InvalidJob: the event type does not exist, or a payload is refused.
            QueueFull: as for ``publish``; no event was written.
        """
        return self._run(conn, publishing.publish_many(event_type, payloads))

    def create_event_type(
        self, name: str, description: str | None = None, *, conn: SyncConnection | None = None
    ) -> bool:
        """Create an event type, or change its description; return whether it is new.

        Args:
            name: at most 128 letters, digits and ``_ . : -``, not beginning with ``forebay.``.
            description: for people; None for none.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: the name is refused.
        """
        return self._run(conn, publishing.create_event_type(name, description))

    def drop_event_type(self, name: str, *, conn: SyncConnection | None = None) -> bool:
        """Drop an event type and its subscriptions; return whether there was one.

        Deliveries that wait are still sent. Events that no router has expanded yet become dead
        letters.

        Args:
            name: of the event type.
            conn: the connection whose transaction to use.
        """
        return self._run(conn, publishing.drop_event_type(name))

    def event_types(self, *, conn: SyncConnection | None = None) -> list[EventType]:
        """Return the event types, by name."""
        return self._run(conn, publishing.event_types())

    def subscribe(
        self,
        endpoint: str,
        event_type: str,
        filter: Any = None,  # noqa: A002 - the name in SQL
        *,
        start: str | datetime = "now",
        conn: SyncConnection | None = None,
    ) -> int:
        """Subscribe an endpoint to an event type; return the id of the subscription.

        For an endpoint that is subscribed already, the call changes the filter and nothing else.

        Args:
            endpoint: its name.
            event_type: its name.
            filter: what the payload must contain, as ``payload @> filter`` in SQL; None: all
                events.
            start: ``"now"``, events whose transaction commits after this call; ``"beginning"``, all
                events that are kept; or an aware datetime, events published since then.
            conn: the connection whose transaction to use.

        Raises:
            EndpointNotFound: no endpoint has this name.
            InvalidJob: the event type does not exist, or an argument is refused.
        """
        return self._run(conn, publishing.subscribe(endpoint, event_type, filter, start))

    def unsubscribe(
        self, endpoint: str, event_type: str, *, conn: SyncConnection | None = None
    ) -> bool:
        """End a subscription; return whether there was one. Deliveries that wait are still sent.

        Args:
            endpoint: its name.
            event_type: its name.
            conn: the connection whose transaction to use.

        Raises:
            EndpointNotFound: no endpoint has this name.
        """
        return self._run(conn, publishing.unsubscribe(endpoint, event_type))

    def subscriptions(
        self, endpoint: str | None = None, *, conn: SyncConnection | None = None
    ) -> list[Subscription]:
        """Return the subscriptions of an endpoint, or of all, by endpoint and event type.

        Args:
            endpoint: its name; None: all.
            conn: the connection whose transaction to use.
        """
        return self._run(conn, publishing.subscriptions(endpoint))

    def replay_endpoint(
        self,
        name: str,
        since: datetime,
        until: datetime | None = None,
        *,
        conn: SyncConnection | None = None,
    ) -> int:
        """Deliver events to an endpoint once more, under the ids that they had.

        Return the id of the job that does it in steps.

        Its subscriptions and filters select the events, as they are when a router works on them.

        Args:
            name: of the endpoint.
            since: events published from this instant on.
            until: events published before this instant; None: now.
            conn: the connection whose transaction to use.

        Raises:
            EndpointNotFound: no endpoint has this name.
            InvalidJob: the endpoint is disabled, or a time is refused.
        """
        return self._run(conn, publishing.replay_endpoint(name, since, until))

    def redrive_endpoint(
        self, name: str, *, limit: int | None = None, conn: SyncConnection | None = None
    ) -> int:
        """Send the dead letters of an endpoint again, oldest first; return their number.

        Args:
            name: of the endpoint.
            limit: the maximum number; None: all.
            conn: the connection whose transaction to use.

        Raises:
            EndpointNotFound: no endpoint has this name.
        """
        return self._run(conn, publishing.redrive_endpoint(name, limit))

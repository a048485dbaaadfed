# Generated from src/forebay/client/_async/endpoints.py by tools/async_to_sync.py. Do not edit.
"""The part of the synchronous client for endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Unpack

from forebay.client._sync.base import ClientBase
from forebay.db.drivers import SyncConnection, run
from forebay.model.endpoints import (
    Endpoint,
    EndpointOptions,
    EndpointProblem,
    ManyOptions,
    SendOptions,
)
from forebay.model.unique import Unique
from forebay.ops import endpoints


class Endpoints(ClientBase):
    """Manage endpoints, and send messages to them."""

    def create_endpoint(
        self,
        name: str,
        sink: str,
        config: Mapping[str, Any],
        *,
        conn: SyncConnection | None = None,
        **options: Unpack[EndpointOptions],
    ) -> int:
        """Create an endpoint, which is enabled; return its id.

        The configuration is checked by the class of the sink, which must be installed here, and by
        the database. Nothing is connected.

        Args:
            name: 1 to 100 letters, digits and ``_ . -``.
            sink: the type of the sink, such as ``"http"``.
            config: its settings: the arguments of its class. Secrets are references, ``"env:NAME"``
                or ``"file:/path"``; the deliverers read them.
            conn: the connection whose transaction to use.
            options: see ``EndpointOptions``.

        Raises:
            ConfigError: the class of the sink refuses the configuration.
            InvalidJob: an option is refused.
            EndpointExists: the name is taken.
        """
        _check(sink, config)
        return self._run(conn, endpoints.create_endpoint(name, sink, config, options))

    def validate_endpoint(
        self,
        name: str,
        sink: str,
        config: Mapping[str, Any],
        *,
        conn: SyncConnection | None = None,
        **options: Unpack[EndpointOptions],
    ) -> list[EndpointProblem]:
        """Return what the database would refuse about an endpoint with these settings; write
        nothing.

        A name that is taken is no problem. What the name of a host leads to is not known to the
        database: ``test_endpoint`` tells it.

        Args:
            name: of the endpoint.
            sink: the type of its sink.
            config: the settings of the sink.
            conn: the connection to use.
            options: see ``EndpointOptions``.

        Raises:
            InvalidJob: an option is unknown or has the wrong type.
        """
        return self._run(conn, endpoints.validate_endpoint(name, sink, config, options))

    def alter_endpoint(
        self,
        name: str,
        *,
        sink: str | None = None,
        config: Mapping[str, Any] | None = None,
        conn: SyncConnection | None = None,
        **options: Unpack[EndpointOptions],
    ) -> bool:
        """Change settings of an endpoint, also while it delivers.

        Return whether that changed anything.

        Options that are not given stay; None removes a limit. A configuration replaces the old one
        as a whole, and is checked as in ``create_endpoint``.

        Args:
            name: the endpoint.
            sink: another type of sink; it needs a configuration too.
            config: the settings of the sink.
            conn: the connection whose transaction to use.
            options: see ``EndpointOptions``.

        Raises:
            ConfigError: the class of the sink refuses the configuration.
            InvalidJob: an option is refused; nothing was changed.
            EndpointNotFound: no endpoint has this name.
        """
        changes: dict[str, Any] = dict(options)
        if sink is not None:
            changes["sink"] = sink
        if config is not None:
            changes["config"] = config
            _check(sink or (self._run(conn, endpoints.endpoint(name))).sink, config)
        return self._run(conn, endpoints.alter_endpoint(name, changes))

    def drop_endpoint(
        self, name: str, *, discard: bool = False, conn: SyncConnection | None = None
    ) -> None:
        """Drop an endpoint, with its subscriptions.

        Args:
            name: the endpoint.
            discard: also if deliveries wait. They become dead letters when a deliverer comes to
                them.
            conn: the connection whose transaction to use.

        Raises:
            EndpointNotFound: no endpoint has this name.
            EndpointInUse: deliveries wait, and ``discard`` is False; nothing was changed.
        """
        self._run(conn, endpoints.drop_endpoint(name, discard=discard))

    def enable_endpoint(self, name: str, *, conn: SyncConnection | None = None) -> bool:
        """Enable an endpoint: deliveries that wait are sent, and its breaker is closed.

        Return whether it was disabled.

        Events that were published meanwhile are not delivered.

        Raises:
            EndpointNotFound: no endpoint has this name.
        """
        return self._run(conn, endpoints.enable_endpoint(name))

    def disable_endpoint(
        self, name: str, why: str | None = None, *, conn: SyncConnection | None = None
    ) -> bool:
        """Disable an endpoint: deliveries wait, and new events are not delivered to it.

        Return whether it was enabled.

        Calls that run finish.

        Args:
            name: the endpoint.
            why: the reason, for the event log; at most 1,000 characters.
            conn: the connection whose transaction to use.

        Raises:
            EndpointNotFound: no endpoint has this name.
        """
        return self._run(conn, endpoints.disable_endpoint(name, why))

    def reset_endpoint(self, name: str, *, conn: SyncConnection | None = None) -> bool:
        """Close the breaker of an endpoint and count its failures from 0.

        Deliveries that wait for a probe are sent; those that are retrying keep their time. Return
        whether the breaker was open.

        Raises:
            EndpointNotFound: no endpoint has this name.
        """
        return self._run(conn, endpoints.reset_endpoint(name))

    def rotate_secret(
        self,
        endpoint: str,
        secret: str,
        *,
        grace: float | timedelta | None = None,
        conn: SyncConnection | None = None,
    ) -> None:
        """Sign the messages of an endpoint with a new secret, and until the grace has passed
        with the old ones too.

        Args:
            endpoint: the endpoint.
            secret: a reference, ``"env:NAME"`` or ``"file:/path"``, which all deliverers can read.
            grace: seconds or timedelta, at most 30 days. Default: 24 hours.
            conn: the connection whose transaction to use.

        Raises:
            EndpointNotFound: no endpoint has this name.
            InvalidJob: its sink does not sign, or the secret is not a reference or is in use.
        """
        self._run(conn, endpoints.rotate_secret(endpoint, secret, grace))

    def endpoints(self, *, conn: SyncConnection | None = None) -> list[Endpoint]:
        """Return the endpoints with their settings and their health, by name.

        No jobs are counted.
        """
        return self._run(conn, endpoints.endpoints())

    def endpoint(self, name: str, *, conn: SyncConnection | None = None) -> Endpoint:
        """Return one endpoint.

        Raises:
            EndpointNotFound: no endpoint has this name.
        """
        return self._run(conn, endpoints.endpoint(name))

    def test_endpoint(self, name: str, *, conn: SyncConnection | None = None) -> int:
        """Send a message of the kind ``forebay.test`` to an endpoint, before its other deliveries.

        Return the id of the delivery.

        Raises:
            EndpointNotFound: no endpoint has this name.
            EndpointDisabled: it is disabled.
        """
        return self._run(conn, endpoints.test_endpoint(name))

    def send(
        self,
        conn: SyncConnection,
        endpoint: str,
        payload: Any,
        *,
        kind: str = "message",
        **options: Unpack[SendOptions],
    ) -> int:
        """Send a message to one endpoint, in the connection's transaction.

        Return the id of the delivery, a job.

        Args:
            conn: the connection, or one of its cursors.
            endpoint: the endpoint.
            payload: the body of the message, a value with a JSON form.
            kind: for the receiver.
            options: see ``JobOptions``. Messages with the same ``ordering_key`` are sent one at a
                time, in order.

        Raises:
            EndpointNotFound: no endpoint has this name; nothing was written.
            EndpointDisabled: it is disabled; nothing was written.
            QueueFull: as many deliveries wait for it as its ``max_waiting`` allows.
            InvalidJob: an argument or option is refused.
            PayloadTooLarge: the payload is too large.
            PayloadTooDeep: the payload is nested too deeply.
        """
        return run(conn, endpoints.send(endpoint, payload, kind, options))

    def send_many(
        self,
        conn: SyncConnection | None,
        endpoint: str,
        payloads: Iterable[Any],
        *,
        kind: str = "message",
        unique: Iterable[Unique] | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[int]:
        """Send a message for each payload to one endpoint, all or none, in one statement; return
        the ids of the deliveries in the same order.

        With None as the connection, the messages have a separate transaction.

        Args:
            conn: the connection whose transaction to use; None: a separate transaction.
            endpoint: the endpoint.
            payloads: the bodies of the messages, values with a JSON form.
            kind: of all messages, for the receiver.
            unique: a unique key for each payload, in their order; an id may then be that of an
                existing delivery. None: no keys.
            options: of all messages; see ``JobOptions``.

        Raises:
            EndpointNotFound: no endpoint has this name; nothing was written.
            EndpointDisabled: it is disabled; nothing was written.
            QueueFull: more deliveries would wait for it than its ``max_waiting`` allows.
            InvalidJob: an argument, a payload or an option is refused; ``index`` is that of the
                payload.
            PayloadTooLarge: a payload is too large.
            PayloadTooDeep: a payload is nested too deeply.
        """
        operation = endpoints.send_many(endpoint, payloads, kind, unique, options)
        return self._run(conn, operation)


def _check(sink: str, config: Mapping[str, Any]) -> None:
    from forebay.sinks import checked_row_sink  # noqa: PLC0415 - most clients have no endpoints

    checked_row_sink(sink, config)

"""``Deliverer``: sends the deliveries of all endpoints.

Invariant "accepted means done": a delivery is done only after its endpoint accepted the message. A
delivery that was sent and failed has used an attempt; one that was not sent, since its endpoint is
left alone, has not. See docs/design/endpoints.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.arguments.kinds import Kind
from forebay.errors import DatabaseUnavailable
from forebay.model import Dead
from forebay.model.checks import MAX_ATTEMPTS_MAX
from forebay.model.context import Context
from forebay.model.endpoints import DELIVERIES
from forebay.model.outcome import Failed, Keep, Release
from forebay.model.text import logger
from forebay.ops import deliveries
from forebay.policy.retry import RetryPolicy
from forebay.sending._endpoint_calls import NotSent
from forebay.sending._endpoints import Endpoint, Endpoints
from forebay.sending._payloads import Payloads
from forebay.sending._reports import Reports
from forebay.sending._sender import message_of
from forebay.sending._service import QueueService
from forebay.sending._sink_types import record_hosts, record_sink_types
from forebay.sinks import Accepted, EndpointGone, Permissions, Refused, Rejected, TryLater

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from forebay.config import DeliverySettings
    from forebay.model import Job
    from forebay.ops.deliveries import PublishedEvent
    from forebay.sending._endpoint_calls import SendResult
    from forebay.sinks import Message

log = logger("forebay.endpoints")

#: How many deliveries a process has in hand. An endpoint that hangs holds at most its own
#: concurrency of them.
SLOTS_DEFAULT: Final = 500


#: Each call has its own timeout; this one ends what does not obey it.
_HARD_SECONDS: Final = 86_400.0

#: How long a delivery waits that cannot be sent for a reason of this process or of the database.
_AGAIN_SECONDS: Final = 1.0

#: For the last report of a process that stops.
_LAST_REPORT_SECONDS: Final = 2.0

#: Deadline of a call of the database.
_CALL_SECONDS: Final = 20.0


class Deliverer(QueueService):
    """Sends the deliveries of all endpoints: what a worker of the queue ``forebay.deliver`` runs.

    Owns the endpoints as this process knows them, their sinks, and its connections. Any number of
    processes may deliver. A crash leaves the deliveries in hand under their leases; they are sent
    again under the same ids.

    Args:
        slots: how many deliveries this process holds, 1 to 10,000.
        permissions: what the settings of endpoints may make this process do; None: call
            public addresses by https.
    """

    def __init__(
        self, *, slots: int = SLOTS_DEFAULT, permissions: DeliverySettings | None = None
    ) -> None:
        self._permissions = Permissions(permissions)
        self._endpoints: Endpoints
        self._payloads: Payloads
        self._read_waits: Callable[[], Awaitable[bool]]

        async def deliver(context: Context) -> Any:
            return await self._deliver(context.job)

        kind = Kind.declare(
            deliver,
            name=DELIVERIES,
            queue=DELIVERIES,
            # The delays of the endpoint decide.
            retry=RetryPolicy(max_attempts=MAX_ATTEMPTS_MAX),
            hard_timeout_seconds=_HARD_SECONDS,
        )
        super().__init__(
            kind, title="deliveries to endpoints", concurrency=slots, call_seconds=_CALL_SECONDS
        )

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Record the types of the sinks, begin to read settings and to report.

        At the end, end the calls and then the sinks.
        """
        facts, events = self._session(), self._session()
        self._read_waits = lambda: facts.run(deliveries.deliveries_wait())
        stack.push_async_callback(facts.close)
        stack.push_async_callback(events.close)
        reports = Reports(
            lambda found: facts.run(deliveries.report_deliveries(self._name, found)),
            lambda *found: self._endpoints.set_state(*found),
        )
        self._endpoints = Endpoints(
            lambda since: facts.run(deliveries.endpoint_settings(since)),
            reports,
            self._permissions,
        )
        self._payloads = Payloads(lambda keys: events.run(deliveries.event_payloads(keys)))
        stack.push_async_callback(_flush, reports)
        stack.push_async_callback(self._payloads.close)
        stack.push_async_callback(self._endpoints.close)
        for service in (
            record_sink_types(facts.run),
            record_hosts(facts.run, self._permissions.hosts),
            reports.run(),
            self._endpoints.run(),
        ):
            stack.push_async_callback(_end, asyncio.create_task(service))
        return {}

    async def has_more(self) -> bool:
        """Return whether deliveries wait behind the rate or concurrency of an endpoint only."""
        return await self._read_waits()

    # --- the handler ---

    async def _deliver(self, job: Job) -> Any:
        """Send one delivery; return how its job ends."""
        args = job.args
        endpoint_id = args["endpoint"]
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None:
            try:
                endpoint = await self._endpoints.find(endpoint_id)
            except TimeoutError:
                return Release(_AGAIN_SECONDS)
            if endpoint is None:
                return Dead("its endpoint was dropped")
        if endpoint.settings.disabled_at is not None:
            return Release(_AGAIN_SECONDS)
        key = _event_key(args)
        event: PublishedEvent | None = None
        if "payload" not in args:
            if key is None:
                return _undeliverable(endpoint, "the delivery names no event and has no payload")
            found = self._payloads.get(key)
            try:
                event = await asyncio.shield(found) if asyncio.isfuture(found) else found
            except DatabaseUnavailable:
                return Release(_AGAIN_SECONDS)
            if event is None:
                return _undeliverable(endpoint, "its event was deleted")
        message = _message(job, endpoint, key, event)
        if message is None:
            return _undeliverable(endpoint, "its url_suffix or timeout has the wrong type")
        if message.url_suffix is not None or message.timeout is not None:
            refusal = endpoint.calls.refusal_of(message)
            if refusal is not None:
                # The settings that allow it may be as new as the message.
                try:
                    endpoint = await self._endpoints.renewed(endpoint_id)
                except TimeoutError:
                    return Release(_AGAIN_SECONDS)
                if endpoint is None:
                    return Dead("its endpoint was dropped")
                refusal = endpoint.calls.refusal_of(message)
            if refusal is not None:
                return _undeliverable(endpoint, refusal)
        return _ending(endpoint, job, await endpoint.calls.send(message))


def _undeliverable(endpoint: Endpoint, reason: str) -> Failed:
    return Failed(reason, endpoint.retries.tries, permanent=True)


def _event_key(args: Mapping[str, Any]) -> tuple[int, datetime] | None:
    """Return id and time of publication of the event of a delivery; None: a message without an
    event.
    """
    event = args.get("event")
    return None if event is None else (event[0], msgspec.convert(event[1], datetime))


def _message(
    job: Job, endpoint: Endpoint, key: tuple[int, datetime] | None, event: PublishedEvent | None
) -> Message | None:
    """Return the message of a delivery; None: its arguments, which a producer may have
    written without ``forebay.send``, have a suffix or a timeout of a wrong type.
    """
    name = endpoint.settings.name
    suffix, timeout = job.args.get("url_suffix"), job.args.get("timeout")
    if not isinstance(suffix, str | None) or not _is_seconds(timeout):
        return None
    if event is not None:
        body, headers, ordering_key = event.payload, event.headers, event.ordering_key
    else:
        body, headers = msgspec.json.encode(job.args["payload"]), job.headers
        ordering_key = job.ordering_key and job.ordering_key.removeprefix(f"{name}/")
    return message_of(
        job, name, body, headers, ordering_key, event=key, url_suffix=suffix, timeout=timeout
    )


def _is_seconds(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _ending(endpoint: Endpoint, job: Job, result: SendResult) -> Any:
    """Return how a delivery ends; the settings of now decide."""
    if isinstance(result, Accepted):
        if not endpoint.settings.keeps_response:
            return None
        found = {
            **(result.details or {}),
            "response": result.response,
            "proof": result.proof,
            "is_duplicate": result.is_duplicate,
        }
        return Keep(found, None)
    if isinstance(result, NotSent | Refused):
        return Release()
    if isinstance(result, Rejected | EndpointGone):
        return _undeliverable(endpoint, result.reason)
    after = result.after if isinstance(result, TryLater) else None
    reason = result.reason if isinstance(result, TryLater) else str(result)
    delay = endpoint.retries.delay_seconds(job.attempt, random.random(), after)
    return Failed(reason, endpoint.retries.tries, delay)


async def _flush(reports: Reports) -> None:
    try:
        async with asyncio.timeout(_LAST_REPORT_SECONDS):
            await reports.flush()
    except Exception as error:
        log.debug("the last report failed: %s", error)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

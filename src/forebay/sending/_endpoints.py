"""The endpoints as this process knows them: their settings, sinks and calls."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigError, DatabaseUnavailable
from forebay.model.text import logger
from forebay.sending._endpoint_calls import EndpointCalls
from forebay.sending._presets import as_retries
from forebay.sinks import Refused, Sink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from forebay.ops.deliveries import ChangedSettings, EndpointSettings, EndpointState
    from forebay.sending._presets import Retries
    from forebay.sending._reports import Reports
    from forebay.sinks import Answer, Message, Permissions

log = logger("forebay.endpoints")

#: How often changed settings are read.
_POLL_SECONDS: Final = 1.0

#: How long a delivery of an unknown endpoint waits for the settings.
_FIND_SECONDS: Final = 5.0


class RefusedSink(Sink):
    """Stands for a sink whose settings are refused: it sends nothing, at no attempt."""

    type = "refused"

    def __init__(self, name: str, problem: str) -> None:
        self._name = name
        self._problem = problem

    @property
    def place(self) -> str:
        """The endpoint."""
        return f"endpoint {self._name}"

    def refusal_of(self, message: Message) -> str | None:
        """Refuse none for good: the settings may be mended."""
        del message
        return None

    async def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """Refuse.

        Raises:
            Refused: always.
        """
        del messages
        raise Refused(self._problem)


class Endpoint:
    """An endpoint with its settings and the calls of this process.

    Attributes:
        settings: as last read.
        calls: send its messages.
        retries: when failed deliveries are tried again.
    """

    def __init__(
        self, settings: EndpointSettings, reports: Reports, permissions: Permissions
    ) -> None:
        self._permissions = permissions
        self.settings = settings
        self.retries = self._retries(settings)
        self._sink_facts, sink = _made_sink(settings, datetime.now(UTC), permissions)
        self.calls = EndpointCalls(
            settings.endpoint_id, settings.name, sink, reports, threshold=settings.breaker_threshold
        )
        self.calls.begin_with(settings.opened_at)
        self.calls.ends_on_gone = settings.disable_on_gone

    def change(self, settings: EndpointSettings) -> None:
        """Take new settings. The sink is replaced only if what it was made of changed."""
        before, self.settings = self.settings, settings
        self.retries = self._retries(settings)
        self.calls.threshold = settings.breaker_threshold
        self.calls.ends_on_gone = settings.disable_on_gone
        self.renew_sink()
        if before.opened_at != settings.opened_at:
            self.calls.set_state(settings.opened_at, is_newest=False)

    def renew_sink(self) -> None:
        """Replace the sink if its settings changed, or a retired secret has expired."""
        now = datetime.now(UTC)
        if _sink_facts(self.settings, now) != self._sink_facts:
            self._sink_facts, sink = _made_sink(self.settings, now, self._permissions)
            self.calls.replace(sink)

    def _retries(self, settings: EndpointSettings) -> Retries:
        try:
            return as_retries(settings.retry)
        except ConfigError as error:  # written by a newer version
            log.warning("endpoint %s: %s; it has the standard retries", settings.name, error)
            return as_retries("standard")


class Endpoints:
    """The endpoints of this process, by id.

    Owns them and their calls. It guarantees that a change that was committed is known here within
    about a second.

    Args:
        read: reads what changed since a version.
        reports: where the calls count.
        permissions: what the settings of endpoints may make this process do.
    """

    def __init__(
        self,
        read: Callable[[int], Awaitable[ChangedSettings]],
        reports: Reports,
        permissions: Permissions,
    ) -> None:
        self._read = read
        self._permissions = permissions
        self._reports = reports
        self._by_id: dict[int, Endpoint] = {}
        self._version = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._polled = asyncio.Condition()

    def get(self, endpoint_id: int) -> Endpoint | None:
        """Return an endpoint; None if it is not known here."""
        return self._by_id.get(endpoint_id)

    async def find(self, endpoint_id: int) -> Endpoint | None:
        """Return an endpoint, after the settings were read once more; None if it does not exist.

        Raises:
            TimeoutError: the settings could not be read.
        """
        async with asyncio.timeout(_FIND_SECONDS), self._polled:
            # A call that began before may not have seen the endpoint; the delivery was written
            # after it.
            for _ in range(2):
                await self._polled.wait()
                if endpoint_id in self._by_id:
                    break
        return self._by_id.get(endpoint_id)

    async def renewed(self, endpoint_id: int) -> Endpoint | None:
        """Return an endpoint with settings that were read after this call; None if it does not
        exist.

        Raises:
            TimeoutError: the settings could not be read.
        """
        async with asyncio.timeout(_FIND_SECONDS), self._polled:
            for _ in range(2):  # The first one may have begun before.
                await self._polled.wait()
        return self._by_id.get(endpoint_id)

    def set_state(self, endpoint_id: int, state: EndpointState | None, is_newest: bool) -> None:
        """Take the answer of the database to a report."""
        endpoint = self._by_id.get(endpoint_id)
        if endpoint is not None:
            opened_at = None if state is None else state.opened_at
            endpoint.calls.set_state(opened_at, is_newest=is_newest)

    async def run(self) -> None:
        """Read changed settings until cancelled."""
        while True:
            try:
                await self.poll()
            except DatabaseUnavailable as error:
                log.debug("settings of endpoints are read later: %s", error)
            except Exception:
                log.exception("settings of endpoints could not be read")
            await asyncio.sleep(_POLL_SECONDS)

    async def poll(self) -> None:
        """Read what changed."""
        found = await self._read(self._version)
        for settings in found.endpoints:
            endpoint = self._by_id.get(settings.endpoint_id)
            if endpoint is None:
                self._by_id[settings.endpoint_id] = Endpoint(
                    settings, self._reports, self._permissions
                )
            elif endpoint.settings != settings:
                log.info("endpoint %s: settings of version %s", settings.name, settings.version)
                endpoint.change(settings)
        self._version = found.version
        for gone in self._by_id.keys() - found.ids:
            task = asyncio.create_task(self._by_id.pop(gone).calls.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for endpoint in self._by_id.values():
            if endpoint.settings.retired_secrets:
                endpoint.renew_sink()
        async with self._polled:
            self._polled.notify_all()

    async def close(self) -> None:
        """End all calls and close the sinks."""
        closing = [endpoint.calls.close() for endpoint in self._by_id.values()]
        with contextlib.suppress(Exception):
            await asyncio.gather(*closing, *self._closing, return_exceptions=True)


def _sink_facts(settings: EndpointSettings, now: datetime) -> tuple[str, dict[str, Any]]:
    """Return what a sink is made of: type and configuration, with the retired secrets that still
    sign.
    """
    config = settings.config
    retired = [one.secret for one in settings.retired_secrets if one.until > now]
    if retired:
        config = {**config, "secrets": [*config.get("secrets", ()), *retired]}
    return settings.sink, {"concurrency": settings.concurrency, **config}


def _made_sink(
    settings: EndpointSettings, now: datetime, permissions: Permissions
) -> tuple[tuple[str, Mapping[str, Any]], Sink]:
    """Return what the sink is made of, and the sink.

    One that sends nothing if the configuration is refused.
    """
    facts = sink, config = _sink_facts(settings, now)
    try:
        if sink != "http" and "concurrency" not in settings.config:
            config = {name: value for name, value in config.items() if name != "concurrency"}
        elif "concurrency" not in settings.config:
            # As many requests at once as there may be deliveries.
            config = {**config, "concurrency": min(settings.concurrency, 1000)}
        return facts, permissions.sink(sink, config)
    except Exception as error:  # the class of another package may raise anything
        problem = (
            str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        )
        log.warning("endpoint %s: %s", settings.name, problem)
        return facts, RefusedSink(settings.name, problem)

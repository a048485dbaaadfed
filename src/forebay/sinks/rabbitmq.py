"""RabbitMQ: an exchange, with publisher confirms.

Needs the extra ``rabbitmq``. The sink uses aiormq, the protocol layer of aio-pika: its connections
can be cut, which is the only way out of a server that blocks publishers or does not answer any
more.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected, Sink
from forebay.sinks._support import checked_name, checked_number, checked_url, library, place_of
from forebay.sinks._template import Template, UnfitMessageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The longest short text of the protocol, in bytes: routing keys, message ids, correlation ids.
_SHORT_BYTES: Final = 255
#: The client cuts longer names of headers without notice.
_HEADER_NAME_BYTES: Final = 128
#: The server takes these headers for lists of more routing keys, and closes the channel if they are
#: texts.
_HEADERS_OF_THE_SERVER: Final = {"CC", "BCC"}
#: The headers of a message travel in one frame; a larger one ends the connection. Jobs have at most
#: 8 KiB of them.
_FRAME_BYTES_LEAST: Final = 16_384
#: How long a connection may take to say goodbye.
_CLOSE_SECONDS: Final = 1.0

_TOO_LARGE: Final = re.compile(r"message size \d+ is larger than configured max size (\d+)")


class RabbitMQ(Sink):
    """Publishes each message to an exchange and waits for the confirm of the server.

    The properties of a message: ``message_id``, ``type`` (the kind), ``correlation_id``,
    ``timestamp`` (when the job was enqueued) and ``content_type``. Its headers are those of the
    job, ``forebay-id``, ``forebay-kind`` and the like. The body is the arguments of the job as
    JSON. A repeated message is another one with the same ``message_id``.

    A message that no queue takes, because none is bound, waits; so does one that a queue refuses
    because it is full.

    Args:
        url: amqp://user:password@host:port/vhost, or amqps:// for TLS; without a vhost, /. TLS
            files: ?cafile=...&certfile=...&keyfile=...
        exchange: its name; it must exist. Empty: the default exchange, which takes the routing key
            for the name of a queue.
        routing_key: a text, or a template with {kind}, {queue}, {ordering_key}, {tag},
            {header:NAME}. A job that lacks such a value becomes a dead letter.
        persistent: whether queues write the messages to disk.
        confirm_timeout: seconds in which no message of a call is confirmed, until the rest counts
            as not confirmed, 0.1 to 3600; below the timeout of the drain.
        connect_timeout: seconds to connect and log in, 0.1 to 60.
        heartbeat: seconds between signs of life of an idle connection, 0 to 3600; 0 for none. It is
            lost after three of them.

    Raises:
        ConfigError: an argument is refused, or the library aiormq is missing.
    """

    type: ClassVar[str] = "rabbitmq"
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "routing_key": FromRow.PLAIN,
        "exchange": FromRow.PLAIN,
        "persistent": FromRow.PLAIN,
        "confirm_timeout": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
        "heartbeat": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str,
        routing_key: str,
        *,
        exchange: str = "",
        persistent: bool = True,
        confirm_timeout: float = 20.0,
        connect_timeout: float = 5.0,
        heartbeat: int = 30,
    ) -> None:
        self._library = library("aiormq", "rabbitmq")
        self._errors = library("aiormq.exceptions", "rabbitmq")
        self._transports = library("aiormq.connection", "rabbitmq")
        self._url = checked_url(self.type, url, "amqp", "amqps")
        self._routing_key = Template(self.type, "routing_key", routing_key)
        constant = self._routing_key.constant
        if constant is not None and len(constant.encode()) > _SHORT_BYTES:
            raise ConfigError(
                f"sink {self.type}: routing_key", f"is longer than {_SHORT_BYTES} bytes"
            )
        if exchange != "":
            checked_name(self.type, "exchange", exchange)
        self._exchange = exchange
        for field, value, kind in (("persistent", persistent, bool), ("heartbeat", heartbeat, int)):
            if type(value) is not kind:
                raise ConfigError(
                    f"sink {self.type}: {field}",
                    f"is {shown(value)}, not {kind.__name__}",
                    value=value,
                )
        self._delivery_mode = 2 if persistent else 1
        self._confirm_seconds = checked_number(
            self.type, "confirm_timeout", confirm_timeout, least=0.1, most=3600
        )
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        self._heartbeat = int(checked_number(self.type, "heartbeat", heartbeat, least=0, most=3600))
        self._connection: Any = None
        self._channel: Any = None
        self._wire: _Wire | None = None

    @property
    def place(self) -> str:
        """The exchange, or the queue with the default exchange; the server and the vhost."""
        vhost = urlsplit(self._url).path
        name = self._exchange or self._routing_key.text
        return f"{name} at {place_of(self._url)}{vhost if vhost != '/' else ''}"

    async def open(self) -> None:
        """Connect, log in, and check that the exchange exists.

        A queue is not checked: it may be bound at any time, and an unroutable message is noticed.
        """
        await self.close()
        mark = "&" if urlsplit(self._url).query else "?"
        is_tls = self._url.startswith("amqps:")
        self._wire = _Wire(
            self._transports.TLSTransportFactory()
            if is_tls
            else self._transports.TCPTransportFactory()
        )
        try:
            async with asyncio.timeout(self._connect_seconds):
                # It never connects again by itself: the drain decides when.
                self._connection = self._library.Connection(
                    f"{self._url}{mark}heartbeat={self._heartbeat}",
                    transport_factory=self._wire,
                    client_properties={"connection_name": "forebay"},
                )
                try:
                    await self._connection.connect()
                except self._errors.InvalidFrameError:
                    # The client does not read the reason when the server closes instead of opening.
                    raise SinkUnavailable(
                        f"{self.place}: the vhost does not exist, or the user may not use it"
                    ) from None
                self._check_frames(self._connection.connection_tune.frame_max)
                channel = await self._connection.channel(
                    publisher_confirms=True,
                    on_return_raises=True,  # Otherwise an unroutable message counts as confirmed.
                )
                if self._exchange:
                    await channel.exchange_declare(self._exchange, passive=True)
                self._channel = channel
        except SinkUnavailable:
            await self._drop()
            raise
        except Exception as error:
            await self._drop()
            raise self._unavailable(error) from error
        except asyncio.CancelledError:
            await self._drop()
            raise

    async def close(self) -> None:
        """Close the connection. A server that does not answer gets one second."""
        connection, wire = self._connection, self._wire
        self._connection = self._channel = self._wire = None
        if connection is None or wire is None:
            return
        # The client waits for the goodbye of the server, up to minutes, and does not obey a
        # timeout.
        timer = asyncio.get_running_loop().call_later(_CLOSE_SECONDS, wire.cut)
        try:
            # The reason for calls that still wait.
            await connection.close(self._errors.ConnectionClosed(320, "closed by the sink"))
        except Exception:
            return  # It is closed, or was lost before.
        finally:
            timer.cancel()
            wire.cut()

    async def _drop(self) -> None:
        """End the connection at once, with whatever is still on its way."""
        if self._wire is not None:
            self._wire.cut()
        await self.close()

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Publish all messages, then wait for all confirms."""
        if self._channel is None:
            await self.open()
        channel = self._channel
        answers: dict[int, Answer] = {}
        calls: dict[int, asyncio.Task[Any]] = {}
        for place, message in enumerate(messages):
            try:
                calls[place] = asyncio.create_task(self._publish(channel, message))
            except UnfitMessageError as error:
                answers[place] = Rejected(str(error))
        if calls:
            try:
                late = await self._late_ones(calls.values())
            except asyncio.CancelledError:
                # Late answers of this call could be taken for those of the next one, which has the
                # same message ids.
                await self._drop()
                await _end(calls.values())
                raise
            if late:
                problem = self._late(await self._is_blocked())
                await self._drop()
                await _end(late)
                answers.update(
                    (place, SinkUnavailable(problem))
                    for place, call in calls.items()
                    if call in late
                )
        for place, call in calls.items():
            if place not in answers:
                answers[place] = self._answer(messages[place], call)
        return [answers[place] for place in range(len(messages))]

    async def _late_ones(self, calls: Iterable[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
        """Wait for the confirms; return what is open when none has come for some time.

        A busy server that confirms some messages confirms the others too: to send them again
        would cost it more.
        """
        late, before = set(calls), 0
        while late and len(late) != before:
            before = len(late)
            _, late = await asyncio.wait(late, timeout=self._confirm_seconds)
        return late

    def _publish(self, channel: Any, message: Message) -> Any:
        """Return the call that publishes a message and ends with its confirm."""
        routing_key = self._routing_key.fill(message)
        if len(routing_key.encode()) > _SHORT_BYTES:
            raise UnfitMessageError(f"the routing key has more than {_SHORT_BYTES} bytes")
        headers = message.metadata()
        for name in headers:
            if name in _HEADERS_OF_THE_SERVER:
                raise UnfitMessageError(f"the header {name} has a meaning for the server")
            if len(name.encode()) > _HEADER_NAME_BYTES:
                raise UnfitMessageError(
                    f"the name of a header has more than {_HEADER_NAME_BYTES} bytes"
                )
        correlation_id = message.correlation_id
        if correlation_id is not None and len(correlation_id.encode()) > _SHORT_BYTES:
            correlation_id = None  # It is whole in the headers.
        return channel.basic_publish(
            message.body,
            exchange=self._exchange,
            routing_key=routing_key,
            properties=self._library.spec.Basic.Properties(
                message_id=message.id,
                message_type=message.kind,
                correlation_id=correlation_id,
                timestamp=message.enqueued_at,
                headers=headers,
                content_type="application/json",
                delivery_mode=self._delivery_mode,
            ),
            mandatory=True,
            wait=False,  # The confirm comes later than the socket takes the frames.
        )

    def _answer(self, message: Message, call: asyncio.Task[Any]) -> Answer:
        error = None if call.cancelled() else call.exception()
        if error is None and not call.cancelled():
            return Accepted()
        if isinstance(error, self._errors.PublishError):
            key = self._routing_key.fill(message)
            return SinkUnavailable(
                f"{self.place}: no queue takes messages with the routing key {shown(key)}"
            )
        if isinstance(error, self._errors.DeliveryError):
            return SinkUnavailable(f"{self.place}: refused; a queue may be full")
        if isinstance(error, self._errors.ChannelPreconditionFailed):
            found = _TOO_LARGE.search(str(error))
            # The server names no message, and has closed the channel for all of the call.
            if found is not None and len(message.body) > int(found[1]):
                return Rejected(f"{len(message.body)} bytes, and the server takes {found[1]}")
        return self._unavailable(error or ConnectionError("the connection was closed"))

    def _unavailable(self, problem: str | BaseException) -> SinkUnavailable:
        if isinstance(problem, TimeoutError):
            problem = f"no answer within {self._connect_seconds:g} s"
        elif isinstance(problem, self._errors.ChannelInvalidStateError):
            problem = "the connection is closed"  # The client says which object in memory it was.
        return super()._unavailable(problem)

    def _late(self, is_blocked: bool) -> str:
        why = " because the server blocks publishers: memory or disk alarm" if is_blocked else ""
        return f"{self.place}: no confirm within {self._confirm_seconds:g} s{why}"

    async def _is_blocked(self) -> bool:
        """Whether the server said that it reads nothing from publishers."""
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(0):
                await self._connection.ready()
        except TimeoutError:
            return True
        return False

    def _check_frames(self, frame_bytes: int) -> None:
        if 0 < frame_bytes < _FRAME_BYTES_LEAST:
            raise SinkUnavailable(
                f"{self.place}: frame_max of the server is {frame_bytes}, and must be at "
                f"least {_FRAME_BYTES_LEAST}"
            )


class _Wire:
    """Opens the TCP connection of a client, and can end it whatever the client waits for."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory
        self._writer: asyncio.StreamWriter | None = None

    async def create(self, url: Any, **options: Any) -> Any:
        """Connect; the client calls this."""
        reader, self._writer = await self._factory.create(url, **options)
        return reader, self._writer

    def cut(self) -> None:
        """End the connection at once, without sending what waits."""
        if self._writer is not None:
            self._writer.transport.abort()


async def _end(calls: Any) -> None:
    """Cancel calls and wait until they have ended, so that none of them is left behind."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)

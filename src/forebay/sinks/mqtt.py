"""MQTT 5: a topic of a broker, with an acknowledgement for each message.

Needs the extra ``mqtt``. A broker keeps a message for subscribers only: one without a subscriber is
gone, unless it is retained. So by default such a message waits.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import ssl
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected
from forebay.sinks._secrets import Secret, checked_secret, read_secret
from forebay.sinks._support import checked_name, checked_number, checked_url, library, place_of
from forebay.sinks._template import Template, UnfitMessageError
from forebay.sinks._threaded import ThreadedSink, shut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}

#: No wildcards, and nothing that begins like the broker's own topics.
_TOPIC: Final = re.compile(r"(?!\$)[^+#]+")
#: What a broker may end the connection for, with all other messages of the call: control characters
#: and what is no character.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
#: The longest text of the protocol, in bytes.
_TEXT_BYTES: Final = 65_535

#: The most messages without an acknowledgement; many brokers allow fewer.
_WINDOW: Final = 1_000
#: Seconds between signs of life of an idle connection, unless the broker wants others.
_KEEP_ALIVE: Final = 30
#: How long a connection may take to say goodbye.
_CLOSE_SECONDS: Final = 1.0
#: What a packet has beside topic, properties and payload, at most.
_PACKET_BYTES: Final = 9
#: The longest time of the protocol, in seconds.
_EXPIRY_MAX: Final = 0xFFFF_FFFF

#: Codes of acknowledgements: no matching subscribers.
_NO_SUBSCRIBER: Final = 0x10
#: The topic is not valid, the packet is too large, the payload is not what it says.
_OF_THE_MESSAGE: Final = {0x90, 0x95, 0x99}


class Mqtt(ThreadedSink):
    """Publishes each message to a topic with QoS 1, and waits for the acknowledgement of each.

    The payload of a message is the arguments of the job as JSON. Its user properties are the
    headers of the job, ``forebay-id``, ``forebay-kind`` and the like. A job that expires is a
    message that expires. A repeated message is another one with the same ``forebay-id``.

    Args:
        url: mqtt://user:password@host:port, or mqtts:// for TLS; without a port, 1883 or 8883.
        topic: a text, or a template with {kind}, {queue}, {ordering_key}, {tag}, {header:NAME}. A
            job that lacks such a value, or whose value makes the topic invalid, becomes a dead
            letter.
        password: a reference to the password of the user in ``url``, instead of one there.
        retain: whether the broker keeps the last message of a topic for later subscribers.
        needs_subscriber: whether a message waits while its topic has no subscriber. Otherwise it
            counts as sent, although the broker forgets it. It does not matter with ``retain``, nor
            with a broker that does not tell.
        ack_timeout: seconds in which no message of a call is acknowledged, until the rest counts as
            not sent, 0.1 to 3600; below the timeout of the drain.
        connect_timeout: seconds to connect and log in, 0.1 to 60.
        ca_file: the only trusted certificate authorities; None: those of the system.
        cert_file: with ``key_file``, the certificate to log in with.
        key_file: its key.

    Raises:
        ConfigError: an argument is refused, or the library paho-mqtt is missing.
    """

    type: ClassVar[str] = "mqtt"
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "topic": FromRow.PLAIN,
        "password": FromRow.SECRETS,
        "retain": FromRow.PLAIN,
        "needs_subscriber": FromRow.PLAIN,
        "ack_timeout": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        password: str | Secret | None = None,
        retain: bool = False,
        needs_subscriber: bool = True,
        ack_timeout: float = 20.0,
        connect_timeout: float = 5.0,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
    ) -> None:
        super().__init__()
        self._library = library("paho.mqtt.client", self.type)
        self._url = checked_url(self.type, url, *_PORTS)
        self._address = _address(self.type, self._url)
        self._topic = _checked_topic(self.type, topic)
        self._password = None
        if password is not None:
            self._password = checked_secret(f"sink {self.type}: password", password)
            if self._address.user is None or self._address.password is not None:
                raise ConfigError(
                    f"sink {self.type}: password",
                    "needs a user in url, without a password there",
                    hint="Write mqtt://USER@HOST.",
                )
        for field, value in (("retain", retain), ("needs_subscriber", needs_subscriber)):
            if not isinstance(value, bool):
                raise ConfigError(
                    f"sink {self.type}: {field}", f"is {shown(value)}, not bool", value=value
                )
        self._retain = retain
        self._needs_subscriber = needs_subscriber and not retain
        self._ack_seconds = checked_number(
            self.type, "ack_timeout", ack_timeout, least=0.1, most=3600
        )
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        self._files = _checked_files(
            self.type, {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file},
            is_tls=self._address.is_tls,
        )  # fmt: skip

    @property
    def place(self) -> str:
        """The topic and the broker."""
        return f"{self._topic.text} at {place_of(self._url)}"

    def _connect(self) -> _Link:
        password = self._address.password
        if self._password is not None:
            password = read_secret(f"sink {self.type}: password", self._password)
        context = self._context() if self._address.is_tls else None
        link = _Link(self._library, self._address, password, context, self._connect_seconds)
        try:
            link.open(self._connect_seconds)
            if link.limit("MaximumQoS", 1) < 1:
                raise self._unavailable("the broker acknowledges nothing: its maximum is QoS 0")
            if self._retain and not link.limit("RetainAvailable", 1):
                raise self._unavailable("the broker retains nothing")
        except BaseException:
            link.close()
            raise
        return link

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._files["ca_file"])
        if self._files["cert_file"] is not None:
            context.load_cert_chain(self._files["cert_file"], self._files["key_file"])
        return context

    def _disconnect(self, client: _Link) -> None:
        client.close()

    def _interrupt(self, client: _Link) -> None:
        client.give_up()

    def _is_usable(self, client: _Link, answers: Sequence[Answer]) -> bool:
        del answers  # A topic without a subscriber says nothing about the connection.
        return client.problem is None

    def _as_unavailable(self, error: Exception) -> SinkUnavailable | None:
        return self._unavailable(error) if isinstance(error, OSError) else None

    def _deliver(self, client: _Link, messages: Sequence[Message]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        packets: dict[int, _Packet] = {}
        for place, message in enumerate(messages):
            try:
                packets[place] = self._packet(client, message)
            except UnfitMessageError as error:
                answers[place] = Rejected(str(error))
        found = client.send(list(packets.values()), self._ack_seconds)
        for place, reason in zip(packets, found, strict=True):
            answers[place] = self._answer(client, packets[place].topic, reason)
        return [answers[place] for place in range(len(messages))]

    def _packet(self, link: _Link, message: Message) -> _Packet:
        topic = self._topic.fill(message)
        if not _TOPIC.fullmatch(topic):
            raise UnfitMessageError(f"{shown(topic)} is not a topic to publish to")
        texts = message.metadata()
        for text in (topic, *texts, *texts.values()):
            if _UNFIT.search(text) or len(text.encode()) > _TEXT_BYTES:
                raise UnfitMessageError(f"{shown(text)} cannot be a topic or a user property")
        properties = link.properties()
        properties.PayloadFormatIndicator = 1  # UTF-8
        properties.ContentType = "application/json"
        properties.UserProperty = list(texts.items())
        if message.expires_at is not None:
            left = math.ceil((message.expires_at - datetime.now(UTC)).total_seconds())
            properties.MessageExpiryInterval = min(max(left, 1), _EXPIRY_MAX)
        size = len(properties.pack()) + len(topic.encode()) + len(message.body) + _PACKET_BYTES
        # The broker would end the connection, and with it the other messages of the call, each time
        # again.
        if size > link.limit("MaximumPacketSize", size):
            most = link.limit("MaximumPacketSize", size)
            raise UnfitMessageError(f"{size} bytes, and the broker takes {most}")
        return _Packet(topic, message.body, properties, self._retain)

    def _answer(self, link: _Link, topic: str, reason: Any) -> Answer:
        if reason is None:
            return self._unavailable(link.problem or "no acknowledgement")
        if reason.value == _NO_SUBSCRIBER and self._needs_subscriber:
            return SinkUnavailable(f"{self.place}: {topic} has no subscriber")
        if not reason.is_failure:
            return Accepted()
        if reason.value in _OF_THE_MESSAGE:
            return Rejected(f"the broker refused it: {reason}")
        # No right, a quota, an error inside of the broker: an operator can mend it.
        return SinkUnavailable(f"{self.place}: the broker refused {topic}: {reason}")


class _Packet(NamedTuple):
    """A message in the form of the protocol."""

    topic: str
    payload: bytes
    properties: Any
    retain: bool


class _Address(NamedTuple):
    """Where the broker is, and who logs in."""

    host: str
    port: int
    user: str | None
    password: str | None
    is_tls: bool


class _Link:
    """A connection to a broker, which one call uses at a time.

    Owns the client of the library, whose thread keeps the connection alive and receives
    acknowledgements, and what is known about the messages of the call. The library knows neither
    how many messages the broker takes at once, so they are counted here, nor when to give up; it
    never connects again by itself, since messages of an earlier call would then be sent with later
    ones.
    """

    def __init__(
        self,
        client_library: Any,
        address: _Address,
        password: str | None,
        context: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        self._library = client_library
        self._address = address
        self._changed = threading.Condition()
        #: Why no message can be sent any more.
        self.problem: str | None = None
        self._limits: Any = None
        self._reasons: dict[int, Any] = {}
        self._client = client = client_library.Client(
            client_library.CallbackAPIVersion.VERSION2,
            protocol=client_library.MQTTv5,
            reconnect_on_failure=False,
        )
        client.connect_timeout = seconds
        client.max_inflight_messages_set(0)  # They are counted here.
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_publish = self._on_publish
        if address.user is not None:
            client.username_pw_set(address.user, password)
        self._sockets: list[ssl.SSLSocket] = []
        if context is not None:
            self._remember_sockets(context)
            client.tls_set_context(context)

    def _remember_sockets(self, context: ssl.SSLContext) -> None:
        """The library leaves its socket open when the handshake fails."""
        wrap = context.wrap_socket

        def remembered(*args: Any, **options: Any) -> ssl.SSLSocket:
            self._sockets.append(wrap(*args, **options))
            return self._sockets[-1]

        context.wrap_socket = remembered  # type: ignore[method-assign]  # of this context alone

    # --- in the thread of the library ---

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, reason: Any, limits: Any) -> None:
        with self._changed:
            if reason.is_failure:
                self.problem = self.problem or f"the broker refused the login: {reason}"
            else:
                self._limits = limits
            self._changed.notify_all()

    def _on_disconnect(self, _client: Any, _data: Any, flags: Any, reason: Any, _: Any) -> None:
        said = f": {reason}" if flags.is_disconnect_packet_from_server else ""
        self._end(f"the connection was lost{said}")

    def _on_publish(self, _client: Any, _data: Any, number: int, reason: Any, _: Any) -> None:
        with self._changed:
            self._reasons[number] = reason
            self._changed.notify_all()

    # --- in the thread of a call ---

    def open(self, seconds: float) -> None:
        """Connect and log in.

        Raises:
            OSError: it is not possible, or takes too long.
        """
        deadline = time.monotonic() + seconds
        self._client.connect(self._address.host, self._address.port, keepalive=_KEEP_ALIVE)
        # Otherwise a small message waits for the receipt of the one before.
        self._client.socket().setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client.loop_start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._limits is not None or self.problem is not None,
                max(deadline - time.monotonic(), 0),
            )
        if self.problem is not None:
            raise ConnectionError(self.problem)
        if self._limits is None:
            raise TimeoutError(f"no answer within {seconds:g} s")

    def limit(self, name: str, default: int) -> int:
        """Return what the broker said when it took the connection."""
        return int(getattr(self._limits, name, default))

    def properties(self) -> Any:
        """Return properties of a message, empty."""
        return self._library.Properties(self._library.PacketTypes.PUBLISH)

    def send(self, packets: Sequence[_Packet], seconds: float) -> list[Any]:
        """Publish some messages, and return the reason in the acknowledgement of each; None: it has
        none, and ``problem`` says why.

        Args:
            packets: the messages.
            seconds: how long to wait while none is acknowledged.
        """
        window = min(self.limit("ReceiveMaximum", _WINDOW), _WINDOW)
        self._reasons.clear()
        numbers: list[int] = []
        for packet in packets:
            if not self._wait_for(len(numbers) - window + 1, seconds):
                break
            # Not under the lock: the library has its own, and takes it before it calls.
            info = self._client.publish(
                packet.topic,
                packet.payload,
                qos=1,
                retain=packet.retain,
                properties=packet.properties,
            )
            numbers.append(info.mid)
        self._wait_for(len(numbers), seconds)
        with self._changed:
            found = [self._reasons.get(number) for number in numbers]
        return found + [None] * (len(packets) - len(numbers))

    def _wait_for(self, count: int, seconds: float) -> bool:
        """Wait until ``count`` messages are acknowledged; return whether the link is in order."""
        with self._changed:
            while self.problem is None and len(self._reasons) < count:
                before = len(self._reasons)
                if not self._changed.wait_for(
                    lambda: self.problem is not None or len(self._reasons) != before,  # noqa: B023
                    seconds,
                ):
                    self.problem = f"no acknowledgement within {seconds:g} s"
            return self.problem is None

    # --- in any thread ---

    def _end(self, problem: str) -> None:
        with self._changed:
            self.problem = self.problem or problem
            self._changed.notify_all()

    def give_up(self) -> None:
        """Make the call that uses the link end."""
        self._end("the call was given up")
        shut(self._client.socket())

    def close(self) -> None:
        """Say goodbye, and end the connection after a second at the latest."""
        is_alive = self._limits is not None and self.problem is None
        with contextlib.suppress(Exception):  # It is given up, whatever its state.
            self._client.disconnect()
        if is_alive:
            with self._changed:
                self._changed.wait_for(lambda: self.problem is not None, _CLOSE_SECONDS)
        shut(self._client.socket())
        self._client.loop_stop()
        for one in self._sockets:
            one.close()


def _address(sink: str, url: str) -> _Address:
    """Return the parts of an address.

    Raises:
        ConfigError: it has no host, a wrong port, or something behind it. The message does not
            repeat it.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    host = parts.hostname
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment
    has_no_user = parts.password is not None and not parts.username
    if not host or port == 0 or has_more or has_no_user:
        raise ConfigError(
            f"sink {sink}: url",
            "is not an address of a broker",
            hint="Write mqtt://USER:PASSWORD@HOST:PORT, without a path or options.",
        )
    user, password = (
        None if one is None else unquote(one) for one in (parts.username, parts.password)
    )
    is_tls = parts.scheme == "mqtts"
    return _Address(host, port or _PORTS[parts.scheme], user or None, password, is_tls)


def _checked_topic(sink: str, text: object) -> Template:
    template = Template(sink, "topic", text)
    example = template.constant or re.sub(r"\{[^}]*\}", "x", template.text)
    if not _TOPIC.fullmatch(example) or len(example.encode()) > _TEXT_BYTES:
        raise ConfigError(
            f"sink {sink}: topic", f"is {shown(text)}, not a topic to publish to", value=text
        )
    return template


def _checked_files(
    sink: str, files: Mapping[str, str | None], *, is_tls: bool
) -> Mapping[str, str | None]:
    given = [name for name, path in files.items() if path is not None]
    for name in given:
        checked_name(sink, name, files[name])
    if given and not is_tls:
        raise ConfigError(f"sink {sink}: {given[0]}", "is for mqtts:// only")
    if (files["cert_file"] is None) != (files["key_file"] is None):
        raise ConfigError(f"sink {sink}: cert_file", "and key_file belong together")
    return files

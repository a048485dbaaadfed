"""Topics of Apache Kafka, and of brokers that speak its protocol.

Needs the extra ``kafka``. The producer is idempotent and waits for all replicas that are in sync. A
topic with ``min.insync.replicas`` of 1 can still lose what it acknowledged: set it to 2 of 3.
"""

from __future__ import annotations

import asyncio
import re
import string
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.model.text import logger, whole_number
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected, Sent, Sink
from forebay.sinks._kafka_reader import Reader, Wanted, codes
from forebay.sinks._support import (
    call_in_thread,
    checked_choice,
    checked_name,
    checked_number,
    checked_url,
    library,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

log = logger("forebay.sinks.kafka")

#: What a topic may contain besides text.
_FIELDS: Final = ("kind", "queue")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

#: Options that the sink decides, since its promises depend on them.
_DECIDED: Final = {
    "acks": "the sink waits for all replicas in sync",
    "request.required.acks": "the sink waits for all replicas in sync",
    "enable.idempotence": "the producer is idempotent",
    "transactional.id": "the sink uses no transactions",
    "bootstrap.servers": "the url names the servers",
    "metadata.broker.list": "the url names the servers",
    "sasl.username": "the url names the user",
    "sasl.password": "the url has the password",
    "message.timeout.ms": "set delivery_timeout",
    "delivery.timeout.ms": "set delivery_timeout",
    "allow.auto.create.topics": "set create",
    "delivery.report.only.error": "the sink needs every report",
    "enable.partition.eof": "the sink reads in its own way",
    "auto.offset.reset": "the sink reads in its own way",
    "group.id": "the sink is in no consumer group",
    "isolation.level": "the sink reads in its own way",
    "test.mock.num.brokers": "it would send to no broker",
}

#: Partitioners that keep messages of a key in one partition.
_PARTITIONERS: Final = (
    "consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random",
)  # fmt: skip

#: Options of the connection, which the reader shares with the producer.
_OF_CONNECTIONS: Final = (
    "api.", "broker.", "client.", "connections.", "enable.sasl", "enable.ssl", "https.", "log.",
    "reconnect.",
    "sasl.", "security.", "socket.", "ssl.",
)  # fmt: skip

#: How long looks for delivery reports follow each other, as brokers nearby answer within that; then
#: the seconds between two looks, at first and at most.
_BUSY_SECONDS: Final = 0.002
_LOOK_SECONDS: Final = 0.001
_LOOK_SECONDS_MAX: Final = 0.02

#: How long to wait for a topic that the brokers do not know: it may be new.
_NEW_TOPIC_SECONDS: Final = 5.0


class Kafka(Sink):
    """Appends each message to a topic. The proof is topic/partition/offset.

    The key of a record is the ordering key of the job, the value its arguments as JSON. Headers are
    those of the job and ``forebay-id``, ``forebay-kind`` and the like. A repeated message is
    another record with the same ``forebay-id``.

    Args:
        url: kafka://user:password@host:port,host:port, or kafkas:// for TLS; without a user there
            is no login.
        topic: the topic; ``{kind}`` and ``{queue}`` stand for those of the job. A message whose
            topic would have an invalid name is rejected.
        create: whether brokers with ``auto.create.topics.enable`` may create a missing topic.
            Otherwise messages wait until it exists.
        sasl_mechanism: how to log in: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        connect_timeout: seconds to connect and log in, 0.1 to 60.
        delivery_timeout: seconds until a message that no broker confirmed counts as not sent, 0.1
            to 300. Keep it below the timeout of the drain, or the drain does not learn why.
        options: more options of librdkafka, such as ``compression.type`` or ``ssl.ca.location``.
            Those that the promises of the sink depend on are refused.

    Raises:
        ConfigError: an argument is refused, or the library confluent-kafka is missing.
    """

    type: ClassVar[str] = "kafka"
    can_verify: ClassVar[bool] = True
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "topic": FromRow.PLAIN,
        "create": FromRow.PLAIN,
        "sasl_mechanism": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
        "delivery_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        create: bool = False,
        sasl_mechanism: str = "PLAIN",
        connect_timeout: float = 5.0,
        delivery_timeout: float = 20.0,
        options: Mapping[str, str | float | bool] | None = None,
    ) -> None:
        self._library = library("confluent_kafka", "kafka")
        self._url = checked_url(self.type, url, "kafka", "kafkas")
        self._topic = checked_name(self.type, "topic", topic)
        self._is_template = self._check_topic()
        self._create = create
        checked_choice(
            self.type, "sasl_mechanism", sasl_mechanism, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
        )
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        self._delivery_seconds = checked_number(
            self.type, "delivery_timeout", delivery_timeout, least=0.1, most=300
        )
        self._options = self._checked_options(options or {})
        self._connection = self._connection_options(sasl_mechanism)
        self._client: _Client | None = None
        #: Codes of errors that mean a message, or another one of its batch.
        self._of_the_message = codes(self._library, *_OF_THE_MESSAGE)

    @property
    def place(self) -> str:
        """The topic and the servers."""
        return f"{self._topic} at {place_of(self._url)}"

    # --- the configuration ---

    def _check_topic(self) -> bool:
        """Check the topic, and return whether it contains fields."""
        try:
            parts = list(string.Formatter().parse(self._topic))
        except ValueError as error:
            raise self._refused("topic", f"is {shown(self._topic)}: {error}") from None
        for _, field, form, conversion in parts:
            if field is None:
                continue
            if field not in _FIELDS or form or conversion:
                raise self._refused(
                    "topic", f"is {shown(self._topic)}: use only {{kind}} and {{queue}}"
                )
        sample = self._topic.format(**dict.fromkeys(_FIELDS, "x"))
        if not _is_topic(sample):
            raise self._refused(
                "topic",
                f"is {shown(self._topic)}, not at most 249 of the characters A-Z a-z 0-9 . _ -",
            )
        return any(field is not None for _, field, _, _ in parts)

    def _checked_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            if name in _DECIDED:
                raise self._refused(f"options: {name}", f"cannot be set: {_DECIDED[name]}")
            if not isinstance(value, str | int | float):
                raise self._refused(f"options: {name}", f"is a {type(value).__name__}")
        partitioner = options.get("partitioner", _PARTITIONERS[0])
        if partitioner not in _PARTITIONERS:
            raise self._refused(
                "options: partitioner",
                f"is {shown(partitioner)}, which does not keep the order of keys",
                hint=f"Use one of {', '.join(_PARTITIONERS)}.",
            )
        checked = dict(options)
        if checked:
            # The library checks names and values. Without servers it connects to nothing.
            try:
                self._library.Producer({**checked, "enable.idempotence": True, "log_level": 0})
            except (self._library.KafkaException, TypeError, ValueError) as error:
                raise self._refused("options", f"are refused: {_text(error)}") from None
        return checked

    def _connection_options(self, mechanism: str) -> dict[str, Any]:
        parts = urlsplit(self._url)
        login, _, servers = parts.netloc.rpartition("@")
        if not servers or parts.path.strip("/") or parts.query:
            raise self._refused(
                "url", "is not of the form kafka://user:password@host:port,host:port"
            )
        user, _, password = login.partition(":")
        options: dict[str, Any] = {
            "bootstrap.servers": servers,
            "security.protocol": ("SASL_" if login else "")
            + ("SSL" if parts.scheme == "kafkas" else "PLAINTEXT"),
            "log.connection.close": False,
        }
        if login:
            options |= {
                "sasl.mechanism": mechanism,
                "sasl.username": unquote(user),
                "sasl.password": unquote(password),
            }
        found = {
            name: value for name, value in self._options.items() if name.startswith(_OF_CONNECTIONS)
        }
        return options | found

    def _refused(self, field: str, problem: str, *, hint: str | None = None) -> ConfigError:
        return ConfigError(f"sink {self.type}: {field}", problem, hint=hint)

    # --- the connection ---

    async def open(self) -> None:
        """Connect, log in, and check that the topic exists unless its name depends on the job."""
        await self.close()
        client = self._new_client()
        try:
            topic = None if self._is_template else self._topic
            found = await call_in_thread(
                partial(client.check, topic, self._connect_seconds), name="forebay-kafka-open"
            )
        except self._library.KafkaException as error:
            await client.close()
            raise self._unavailable(client.explained(error)) from error
        except BaseException:
            client.discard()
            raise
        if found is not None and not (self._create and _may_appear(self._library, found)):
            await client.close()
            raise self._unavailable(f"the topic cannot be used: {found.str()}")
        self._client = client

    async def close(self) -> None:
        """Drop what is queued, and close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _new_client(self, more: Mapping[str, Any] | None = None) -> _Client:
        return _Client(
            self._library,
            {
                "partitioner": "murmur2_random",  # that of the Java client
                # A call brings all of its messages within this time, in few requests.
                "linger.ms": 1,
                # Calls are bounded by the drain.
                "queue.buffering.max.messages": 10_000_000,
                "queue.buffering.max.kbytes": 2_000_000,
                "topic.metadata.propagation.max.ms": int(
                    1000 * min(_NEW_TOPIC_SECONDS, self._delivery_seconds)
                ),
                **self._options,
                **self._connection,
                **(more or {}),
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": int(1000 * self._delivery_seconds),
                "allow.auto.create.topics": self._create,
            },
        )

    # --- messages ---

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Produce the messages, and wait until each is confirmed or refused."""
        if self._client is None:
            await self.open()
        client = self._client
        if client is None:
            raise self._unavailable("closed")
        try:
            answers = await self._produce(client, messages)
        except BaseException:
            # What is still queued must not be sent behind a later message.
            if self._client is client:
                self._client = None
            client.discard()
            raise
        suspects = [place for place, one in enumerate(answers) if isinstance(one, _Suspect)]
        if suspects:
            # A broker refuses a batch as a whole, and a batch may contain messages of several
            # calls.
            single = self._new_client({"batch.num.messages": 1})
            try:
                again = await self._produce(single, [messages[place] for place in suspects])
            finally:
                single.discard()
            for place, answer in zip(suspects, again, strict=True):
                answers[place] = Rejected(answer.reason) if isinstance(answer, _Suspect) else answer
        return answers  # type: ignore[return-value]  # no suspects are left

    async def _produce(
        self, client: _Client, messages: Sequence[Message]
    ) -> list[Answer | _Suspect]:
        call = _Call(len(messages))
        produce = client.producer.produce
        for place, message in enumerate(messages):
            topic = self._topic
            if self._is_template:
                topic = topic.format(kind=message.kind, queue=message.queue)
                if not _is_topic(topic):
                    call.answer(place, Rejected(f"{shown(topic)} cannot be the name of a topic"))
                    continue
            try:
                produce(
                    topic,
                    message.body,
                    message.ordering_key,
                    headers=message.metadata(),
                    on_delivery=partial(call.report, place),
                )
            except (self._library.KafkaException, BufferError) as error:
                call.answer(place, self._refusal(client, error, is_alone=True))
        del produce  # With the last reference, the producer waits for its threads.
        busy_until = time.monotonic() + _BUSY_SECONDS
        seconds = 0.0
        while call.left:
            if client.producer is None:
                raise self._unavailable("closed during the call")
            # Reports are read in this thread: a thread for them would need the lock of the
            # interpreter once for each message.
            try:
                client.producer.poll(0)
            except (
                self._library.KafkaException
            ) as error:  # of the producer as a whole: it is of no more use
                raise self._unavailable(client.explained(error)) from error
            if call.left:
                await asyncio.sleep(seconds)
                if time.monotonic() > busy_until:
                    seconds = min(max(1.5 * seconds, _LOOK_SECONDS), _LOOK_SECONDS_MAX)
        return [
            answer
            if isinstance(answer, Accepted | Rejected | SinkUnavailable | _Suspect)
            else self._refusal(client, answer, is_alone=False)
            for answer in call.answers
        ]

    def _refusal(
        self, client: _Client, error: Any, *, is_alone: bool
    ) -> SinkUnavailable | Rejected | _Suspect:
        found = _kafka_error(error)
        if found is not None and found.code() in self._of_the_message:
            reason = f"{found.name()}: {found.str()}"
            return Rejected(reason) if is_alone else _Suspect(reason)
        return self._unavailable(client.explained(error))

    async def seen(self, sent: Sequence[Sent]) -> list[bool | None]:
        """Read the records at their offsets.

        A record of another message there, or a log that ends before, is a loss. A record that
        retention or compaction removed is unknown. Nothing is known either if the broker did not
        tell the offset.
        """
        results: list[bool | None] = [None] * len(sent)
        wanted: Wanted = {}
        for place, one in enumerate(sent):
            topic, _, rest = (one.proof or "").partition("/")
            partition, offset = map(whole_number, rest.partition("/")[::2])
            if partition is not None and offset is not None:
                wanted.setdefault((topic, partition), {}).setdefault(offset, []).append(place)
        if not wanted:
            return results
        reader = Reader(
            self._library, {**self._connection, "logger": _Log()}, wanted, sent, results
        )
        try:
            await call_in_thread(
                partial(reader.read, self._delivery_seconds), name="forebay-kafka-read"
            )
        except self._library.KafkaException as error:
            raise self._unavailable(_text(error)) from error
        except TimeoutError as error:
            raise self._unavailable(
                f"could not be read within {self._delivery_seconds:g} s"
            ) from error
        finally:
            reader.stop()
        return results


#: Errors that mean a message. Brokers refuse a batch as a whole, so they may mean another message
#: of the batch.
_OF_THE_MESSAGE: Final = (
    "MSG_SIZE_TOO_LARGE", "INVALID_MSG", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE",
    "INVALID_RECORD",
    "_INVALID_DIFFERENT_RECORD",
)  # fmt: skip


class _Suspect:
    """The answer about a message that was refused with the batch in which it was."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _Call:
    """The answers of one call, or the errors, by the place of the message.

    All runs on the thread of the event loop.
    """

    __slots__ = ("answers", "left")

    def __init__(self, count: int) -> None:
        self.answers: list[Any] = [None] * count
        self.left = count

    def answer(self, place: int, answer: Any) -> None:
        self.answers[place] = answer
        self.left -= 1

    def report(self, place: int, error: Any, record: Any) -> None:
        """Take a delivery report: an answer, or the error."""
        if error is None:
            offset = record.offset()
            # Without an offset, it was confirmed as a repetition within the producer.
            has_proof = offset is not None and offset >= 0
            error = Accepted(
                f"{record.topic()}/{record.partition()}/{offset}" if has_proof else None
            )
        self.answer(place, error)


class _Log:
    """Takes what librdkafka logs. A drain reports failures itself, once."""

    @staticmethod
    def log(_level: int, text: str, *values: object) -> None:
        log.debug(text, *values)


class _Client:
    """A producer. After ``close`` or ``discard`` it sends nothing, and its calls end as
    unavailable.
    """

    def __init__(self, kafka: Any, config: dict[str, Any]) -> None:
        self._less = codes(kafka, "_ALL_BROKERS_DOWN")
        self._vague = codes(kafka, "_MSG_TIMED_OUT", "_TRANSPORT", "_TIMED_OUT")
        self._problem: str | None = None
        self._producer: Any = kafka.Producer({**config, "error_cb": self._note, "logger": _Log()})

    @property
    def producer(self) -> Any:
        """The producer of librdkafka; None after the end."""
        return self._producer

    def _note(self, error: Any) -> None:
        if error.code() not in self._less:  # follows one that tells more
            self._problem = error.str()

    def explained(self, error: Any) -> str:
        """Return the text of an error, with the last one of a connection where that is the
        cause.
        """
        found = _kafka_error(error)
        if self._problem is not None and found is not None and found.code() in self._vague:
            return f"{found.str()}: {self._problem}"
        return _text(error)

    def check(self, topic: str | None, seconds: float) -> Any:
        """Ask a broker; return the error of a topic, or None. Blocks."""
        producer = self._producer
        try:
            if topic is None:
                producer.cluster_id(seconds)
                return None
            return producer.list_topics(topic, seconds).topics[topic].error
        finally:
            producer.poll(0)  # for the errors of the connections

    def discard(self) -> None:
        """Drop what is queued at once, and close the connections in a thread, since that may
        take a while.
        """
        threading.Thread(target=self._end(), name="forebay-kafka-close", daemon=True).start()

    async def close(self) -> None:
        """Drop what is queued, and close the connections."""
        await call_in_thread(self._end(), name="forebay-kafka-close")

    def _end(self) -> Callable[[], None]:
        """Drop what is queued.

        Return a function that waits for the threads of the producer and closes its connections.
        """
        producers = [] if self._producer is None else [self._producer]
        self._producer = None
        for one in producers:
            one.purge(blocking=False)

        def end() -> None:
            for one in producers:
                one.flush(1)  # Unread reports keep their messages in memory.
            producers.clear()

        return end


def _is_topic(text: str) -> bool:
    return _TOPIC.fullmatch(text) is not None and text not in {".", ".."}


def _may_appear(kafka: Any, error: Any) -> bool:
    """Whether a topic is missing, or on its way."""
    return error.code() in codes(kafka, "UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE")


def _kafka_error(error: Any) -> Any:
    """Return the error of Kafka in an exception, or the error itself; None for others."""
    if isinstance(error, Exception):
        error = error.args[0] if error.args else None
    return error if hasattr(error, "retriable") else None


def _text(error: Any) -> str:
    found = _kafka_error(error)
    return str(error) or type(error).__name__ if found is None else str(found.str())

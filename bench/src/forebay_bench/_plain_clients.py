"""What an application does without a drain: the client library of a far side, as its documentation shows it, and nothing around it.

Each sends batches of messages that are made beforehand, and waits until the far side has confirmed a batch before it sends the next one.
Libraries are imported when they are used: each is an extra.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg

from forebay.errors import ForebayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.sinks import Message

    #: A message, and its headers.
    Item = tuple[Message, dict[str, str]]

_READ_SECONDS: Final = 10.0
_READ_RECORDS: Final = 500
_LOOK_SECONDS: Final = 0.1


class PlainClient(Protocol):
    """A connection to the far side, where it has a place for the messages of this run."""

    def __init__(self, address: str, name: str) -> None: ...

    async def open(self) -> None:
        """Connect, and make the place."""

    def prepared(self, items: Sequence[Item]) -> Any:
        """Return a batch in the form that the library takes."""

    async def send(self, batch: Any) -> None:
        """Send a batch, and wait until the far side has confirmed each message."""

    async def take(self) -> int:
        """Return how many messages came to the place since the last call, and remove them if that is possible."""

    async def close(self) -> None:
        """Remove the place, and disconnect."""


class PlainRedis:
    """redis-py, not asyncio: a pipeline of XADD."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name

    async def open(self) -> None:
        """Connect; a stream is made by its first entry."""
        import redis  # noqa: PLC0415 - an extra

        self._client = redis.Redis.from_url(f"redis://{self._address}")
        self._client.ping()

    def prepared(self, items: Sequence[Item]) -> Any:
        """Return the fields of the entries."""
        return [{"body": message.body, **headers} for message, headers in items]

    async def send(self, batch: Any) -> None:
        """Append the entries."""
        pipeline = self._client.pipeline(transaction=False)
        for fields in batch:
            pipeline.xadd(self._name, fields)
        pipeline.execute()

    async def take(self) -> int:
        """Count and remove the entries."""
        found: Any = self._client.xlen(self._name)
        self._client.delete(self._name)
        return int(found)

    async def close(self) -> None:
        """Disconnect."""
        self._client.delete(self._name)
        self._client.close()


class PlainRabbitMQ:
    """aio-pika: persistent messages to a durable queue, with publisher confirms, a batch at once."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name

    async def open(self) -> None:
        """Connect, and declare the queue."""
        import aio_pika  # noqa: PLC0415 - an extra

        self._library = aio_pika
        self._connection = await aio_pika.connect(f"amqp://guest:guest@{self._address}/")
        self._channel = await self._connection.channel(
            publisher_confirms=True, on_return_raises=True
        )
        self._queue = await self._channel.declare_queue(self._name, durable=True)

    def prepared(self, items: Sequence[Item]) -> Any:
        """Return the messages."""
        return [
            self._library.Message(
                message.body,
                headers=dict(headers),
                content_type="application/json",
                delivery_mode=self._library.DeliveryMode.PERSISTENT,
                message_id=message.id,
                timestamp=message.enqueued_at,
                type=message.kind,
            )
            for message, headers in items
        ]

    async def send(self, batch: Any) -> None:
        """Publish to the default exchange."""
        publish = self._channel.default_exchange.publish
        await asyncio.gather(*(publish(one, self._name, mandatory=True) for one in batch))

    async def take(self) -> int:
        """Count and remove the messages."""
        return (await self._queue.purge()).message_count or 0

    async def close(self) -> None:
        """Delete the queue, and disconnect."""
        await self._queue.delete(if_unused=False, if_empty=False)
        await self._connection.close()


class PlainNats:
    """nats-py: asynchronous publishes to a stream, a batch at once."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name

    async def open(self) -> None:
        """Connect, and add the stream."""
        import nats  # noqa: PLC0415 - an extra

        self._client = await nats.connect(f"nats://{self._address}")
        self._streams = self._client.jetstream()
        await self._streams.add_stream(name=self._name, subjects=[self._name])

    def prepared(self, items: Sequence[Item]) -> Any:
        """Return payloads and headers."""
        return [
            (message.body, {**headers, "Nats-Msg-Id": message.id}) for message, headers in items
        ]

    async def send(self, batch: Any) -> None:
        """Publish, and wait for the acknowledgements."""
        publish = self._streams.publish_async
        acks = [await publish(self._name, body, headers=headers) for body, headers in batch]
        await asyncio.gather(*acks)

    async def take(self) -> int:
        """Count and remove the messages."""
        found = (await self._streams.stream_info(self._name)).state.messages
        await self._streams.purge_stream(self._name)
        return found

    async def close(self) -> None:
        """Delete the stream, and disconnect."""
        await self._streams.delete_stream(self._name)
        await self._client.close()


class PlainKafka:
    """confluent-kafka: an idempotent producer that waits for all replicas in sync; a flush after each batch."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name
        self._next = self._confirmed = 0

    async def open(self) -> None:
        """Connect, and create the topic with one partition."""
        self._library: Any = importlib.import_module("confluent_kafka")
        self._admin: Any = importlib.import_module("confluent_kafka.admin")
        servers = {"bootstrap.servers": self._address}
        topic = self._admin.NewTopic(self._name, 1, 1)
        with self._admin.AdminClient(servers) as admin:
            for future in admin.create_topics([topic]).values():
                future.result(_READ_SECONDS)
        self._producer = self._library.Producer(
            {
                **servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,  # that of the sink; a flush does not wait for it
            }
        )

    def prepared(self, items: Sequence[Item]) -> Any:
        """Return values and headers."""
        return [(message.body, headers) for message, headers in items]

    async def send(self, batch: Any) -> None:
        """Produce, and wait for the reports."""
        wanted = self._confirmed + len(batch)
        produce = self._producer.produce
        for body, headers in batch:
            produce(self._name, body, headers=headers, on_delivery=self._report)
        self._producer.flush()
        if self._confirmed != wanted:
            raise ForebayError("Kafka did not confirm each message")

    def _report(self, error: Any, _record: Any) -> None:
        if error is None:
            self._confirmed += 1

    async def take(self) -> int:
        """Read and count the records; they stay."""
        consumer = self._library.Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": self._name,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        found = 0
        try:
            consumer.assign([self._library.TopicPartition(self._name, 0, self._next)])
            deadline = time.monotonic() + _READ_SECONDS
            while time.monotonic() < deadline:
                # It waits for all that time if there are fewer records.
                for record in consumer.consume(_READ_RECORDS, _LOOK_SECONDS):
                    if record.error() is None:
                        found += 1
                        self._next = record.offset() + 1
                    elif record.error().code() == self._library.KafkaError._PARTITION_EOF:
                        return found
                    else:
                        raise ForebayError(f"Kafka: {record.error().str()}")
        finally:
            consumer.close()
        raise ForebayError("Kafka did not answer")

    async def close(self) -> None:
        """Delete the topic, and disconnect."""
        self._producer.flush()
        with self._admin.AdminClient({"bootstrap.servers": self._address}) as admin:
            for future in admin.delete_topics([self._name]).values():
                future.result(_READ_SECONDS)


_ENQUEUE: Final = "select forebay.enqueue_many(%s::jsonb)"


class PlainPostgres:
    """psycopg, not asyncio: ``forebay.enqueue_many`` of a batch, a transaction each."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name
        self._taken = 0

    async def open(self) -> None:
        """Connect; a queue needs no declaration."""
        self._conn = psycopg.connect(self._address, autocommit=True)

    def prepared(self, items: Sequence[Item]) -> Any:
        """Return the jobs as a text."""
        return json.dumps(
            [
                {
                    "kind": message.kind,
                    "queue": self._name,
                    "args": json.loads(message.body),
                    "headers": {**message.headers, "forebay-id": message.id},
                }
                for message, _ in items
            ]
        )

    async def send(self, batch: Any) -> None:
        """Enqueue, and commit."""
        self._conn.execute(_ENQUEUE, [batch], prepare=True)

    async def take(self) -> int:
        """Count the jobs; they stay. The database has no others."""
        row = self._conn.execute("select count(*) from forebay.log").fetchone()
        assert row is not None
        found = int(row[0]) - self._taken
        self._taken = int(row[0])
        return found

    async def close(self) -> None:
        """Disconnect."""
        self._conn.close()


#: By the names of ``--sink``.
PLAIN_CLIENTS: Final[dict[str, type[PlainClient]]] = {
    "redis": PlainRedis,
    "rabbitmq": PlainRabbitMQ,
    "nats": PlainNats,
    "kafka": PlainKafka,
    "forebay": PlainPostgres,
}

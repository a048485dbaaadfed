"""Dramatiq: messages for the actors of its workers, through Redis or RabbitMQ.

Needs the extra ``dramatiq``. What the broker acknowledged it can lose: see the pages about Redis
and RabbitMQ.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.sinks._contract import Accepted, Answer, FromRow, Message
from forebay.sinks._support import checked_name, checked_number, checked_url, library, place_of
from forebay.sinks._threaded import (
    ANSWER_SECONDS,
    ThreadedSink,
    arguments_of,
    checked_tasks,
    interrupt_redis,
    task_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What Dramatiq allows as the name of a queue.
_QUEUE: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9._-]*")


class Dramatiq(ThreadedSink):
    """Enqueues a Dramatiq message for each message: for the actor of its kind, with the
    arguments of the job as keyword arguments.

    ``message_id`` is the id of the message, so a repetition has the same one; Dramatiq itself runs
    both. The option ``forebay`` has the headers of the job, ``forebay-id``, ``forebay-kind`` and
    the like. A job that expires is a message with ``max_age``.

    Args:
        url: redis://user:password@host:port/database, rediss://,
            amqp://user:password@host:port/vhost or amqps://.
        queue: of Dramatiq.
        tasks: the name of the actor of each kind. A kind that is not there is the name of its actor
            itself.
        namespace: the prefix of the keys in Redis; not used for RabbitMQ.
        max_priority: the ``max_priority`` of the workers' broker for RabbitMQ, 1 to 255; None
            without priorities. It must be the same: RabbitMQ refuses a queue that is declared in
            two ways.
        connect_timeout: seconds to connect and log in, 0.1 to 60.

    Raises:
        ConfigError: an argument is refused, or the library dramatiq is missing.
    """

    type: ClassVar[str] = "dramatiq"
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "queue": FromRow.PLAIN,
        "tasks": FromRow.PLAIN,
        "namespace": FromRow.PLAIN,
        "max_priority": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str,
        queue: str = "default",
        *,
        tasks: dict[str, str] | None = None,
        namespace: str = "dramatiq",
        max_priority: int | None = None,
        connect_timeout: float = 5.0,
    ) -> None:
        super().__init__()
        self._dramatiq = library("dramatiq", self.type)
        self._url = checked_url(self.type, url, "redis", "rediss", "amqp", "amqps")
        self._is_redis = urlsplit(self._url).scheme.startswith("redis")
        self._queue = _checked_queue(queue)
        self._tasks = checked_tasks(self.type, tasks)
        self._namespace = checked_name(self.type, "namespace", namespace)
        if max_priority is not None:
            checked_number(self.type, "max_priority", max_priority, least=1, most=255)
        self._max_priority = max_priority
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        if self._is_redis:
            self._client_library = library("redis", self.type)
            self._redis_broker = library("dramatiq.brokers.redis", self.type)
            self._errors: tuple[type[Exception], ...] = (self._client_library.RedisError,)
        else:
            self._client_library = library("pika", self.type)
            self._rabbitmq_broker = library("dramatiq.brokers.rabbitmq", self.type)
            self._errors = (self._client_library.exceptions.AMQPError,)
        self._errors = (*self._errors, self._dramatiq.BrokerError, OSError)

    @property
    def place(self) -> str:
        """The name of the queue, and the server."""
        return f"{self._queue} at {place_of(self._url)}"

    def _connect(self) -> Any:
        return self._connect_redis() if self._is_redis else self._connect_rabbitmq()

    def _connect_redis(self) -> Any:
        client = self._client_library.Redis.from_url(
            self._url,
            socket_connect_timeout=self._connect_seconds,
            socket_timeout=ANSWER_SECONDS,
            retry=None,  # The drain decides when to try again.
        )
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
        # Without middleware: it belongs to the workers.
        return self._redis_broker.RedisBroker(
            client=client, namespace=self._namespace, middleware=[]
        )

    def _connect_rabbitmq(self) -> Any:
        broker = self._rabbitmq_broker.RabbitmqBroker(
            url=self._url,
            # Without it RabbitMQ silently drops a message that has no queue.
            confirm_delivery=True,
            max_priority=self._max_priority,
            middleware=[],
        )
        if broker.parameters.heartbeat is None:
            broker.parameters.heartbeat = round(ANSWER_SECONDS / 2)
        broker.parameters.socket_timeout = self._connect_seconds
        broker.parameters.stack_timeout = self._connect_seconds
        broker.parameters.blocked_connection_timeout = ANSWER_SECONDS
        # One connection for the calls of all threads, of which there is one at a time, instead of
        # one for each thread.
        broker.state = SimpleNamespace()
        try:
            broker.declare_queue(self._queue, ensure=True)
        except BaseException:
            self._quietly_end(broker)
            raise
        return broker

    def _disconnect(self, client: Any) -> None:
        if self._is_redis:
            client.client.connection_pool.disconnect()
        else:
            client.close()

    def _interrupt(self, client: Any) -> None:
        if self._is_redis:
            interrupt_redis(client.client.connection_pool)
        # A call that waits for RabbitMQ ends with the heartbeats.

    def _as_unavailable(self, error: Exception) -> SinkUnavailable | None:
        return self._unavailable(error) if isinstance(error, self._errors) else None

    def _deliver(self, client: Any, messages: Sequence[Message]) -> list[Answer]:
        answers: list[Answer] = []
        unavailable: SinkUnavailable | None = None
        for message in messages:
            if unavailable is None:
                try:
                    client.enqueue(self._message(message))
                except Exception as error:
                    unavailable = self._as_unavailable(error)
                    if unavailable is None:
                        raise
            answers.append(Accepted() if unavailable is None else unavailable)
        return answers

    def _message(self, message: Message) -> Any:
        options: dict[str, Any] = {"forebay": message.metadata()}
        if message.expires_at is not None:
            left = (message.expires_at - datetime.now(UTC)).total_seconds()
            options["max_age"] = max(1, round(left * 1000))
        return self._dramatiq.Message(
            queue_name=self._queue,
            actor_name=task_of(self._tasks, message),
            args=(),
            kwargs=arguments_of(message),
            options=options,
            message_id=message.id,
        )


def _checked_queue(value: object) -> str:
    if not isinstance(value, str) or not _QUEUE.fullmatch(value):
        raise ConfigError(
            f"sink {Dramatiq.type}: queue",
            f"is {shown(value)}, not a name of letters, digits and _ . -",
            value=value,
        )
    return value

"""RQ: jobs for its workers.

Needs the extra ``rq``. Redis keeps the jobs; it can lose what it acknowledged unless it syncs every
write (``appendfsync always``).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected
from forebay.sinks._support import (
    checked_choice,
    checked_integer,
    checked_number,
    checked_url,
    library,
    place_of,
)
from forebay.sinks._threaded import (
    ANSWER_SECONDS,
    ThreadedSink,
    arguments_of,
    checked_queue,
    checked_tasks,
    interrupt_redis,
    task_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: How often a call starts again when another sender enqueued one of its jobs between its check and
#: its write.
_TRIES: Final = 5


class RQ(ThreadedSink):
    """Enqueues an RQ job for each message: the function of its kind, with the arguments of the
    job as keyword arguments.

    The id of the RQ job is that of the message; characters that RQ does not allow, and ``_``, are
    written as ``_`` and two or more hexadecimal digits. While RQ has a job with this id (it waits,
    runs, or its result is kept) a repetition is recognised and enqueues nothing. ``meta`` of the
    job has the headers, ``forebay-id``, ``forebay-kind`` and the like. All messages of a call are
    enqueued in one transaction.

    Args:
        url: redis://user:password@host:port/database, or rediss:// for TLS.
        queue: of RQ.
        tasks: the function of each kind, as ``module.function``. Other kinds are rejected. None: a
            kind is the name of its function, so each producer chooses what RQ's workers run.
        serializer: what the workers use, "pickle" (the default of RQ) or "json".
        job_timeout: seconds that a job may run; None: the default of RQ, 180.
        result_ttl: seconds that RQ keeps a job that succeeded; repetitions are recognised that
            long. None: the default of RQ, 500.
        failure_ttl: seconds that RQ keeps a job that failed. None: the default of RQ, a year.
        connect_timeout: seconds to connect and log in, 0.1 to 60.

    Raises:
        ConfigError: an argument is refused, or the library rq is missing.
    """

    type: ClassVar[str] = "rq"
    row_needs: ClassVar[Sequence[str]] = ("tasks",)
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "queue": FromRow.PLAIN,
        "serializer": FromRow.PLAIN,
        "job_timeout": FromRow.PLAIN,
        "result_ttl": FromRow.PLAIN,
        "failure_ttl": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str,
        queue: str = "default",
        *,
        tasks: dict[str, str] | None = None,
        serializer: Literal["pickle", "json"] = "pickle",
        job_timeout: int | None = None,
        result_ttl: int | None = None,
        failure_ttl: int | None = None,
        connect_timeout: float = 5.0,
    ) -> None:
        super().__init__()
        self._rq = library("rq", self.type)
        self._redis = library("redis", self.type)
        self._url = checked_url(self.type, url, "redis", "rediss", "unix")
        self._queue = checked_queue(self.type, queue)
        self._is_open = tasks is None
        self._tasks = checked_tasks(self.type, tasks)
        for function in self._tasks.values():
            if "." not in function.strip("."):
                raise ConfigError(
                    f"sink {self.type}: tasks",
                    f"has the function {shown(function)}, which names no module",
                    value=function,
                    hint="Write module.function.",
                )
        self._serializer = checked_choice(self.type, "serializer", serializer, "pickle", "json")
        self._options = {
            "timeout": _seconds("job_timeout", job_timeout, least=1),
            "result_ttl": _seconds("result_ttl", result_ttl, least=0),
            "failure_ttl": _seconds("failure_ttl", failure_ttl, least=0),
        }
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )

    @property
    def place(self) -> str:
        """The name of the queue, and the server."""
        return f"{self._queue} at {place_of(self._url)}"

    def _connect(self) -> Any:
        client = self._redis.Redis.from_url(
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
        return self._rq.Queue(self._queue, connection=client, serializer=self._serializer)

    def _disconnect(self, client: Any) -> None:
        client.connection.close()

    def _interrupt(self, client: Any) -> None:
        interrupt_redis(client.connection.connection_pool)

    def _as_unavailable(self, error: Exception) -> SinkUnavailable | None:
        if isinstance(error, self._redis.RedisError | OSError):
            return self._unavailable(error)
        return None

    def _deliver(self, client: Any, messages: Sequence[Message]) -> list[Answer]:
        for _ in range(_TRIES):
            with client.connection.pipeline() as pipeline:
                try:
                    return self._enqueue(client, pipeline, messages)
                except self._redis.WatchError:
                    continue  # One of the jobs was enqueued or ended meanwhile: look again.
        raise SinkUnavailable(f"{self.place}: the jobs of the call change all the time")

    def _enqueue(self, queue: Any, pipeline: Any, messages: Sequence[Message]) -> list[Answer]:
        """Enqueue in one transaction what is not there, unless one of the jobs changed since the
        check.
        """
        known = [one for one in messages if self._is_open or one.kind in self._tasks]
        if len(known) < len(messages):
            found = iter(self._enqueue(queue, pipeline, known) if known else [])
            return [
                next(found)
                if self._is_open or one.kind in self._tasks
                else Rejected(f"tasks names no function for the kind {shown(one.kind)}")
                for one in messages
            ]
        keys = [queue.job_class.key_for(job_id(message.id)) for message in messages]
        pipeline.watch(*keys)
        there: set[str] = set()
        if pipeline.exists(*keys):
            there = {key for key in keys if pipeline.exists(key)}
        pipeline.multi()
        new = [self._data(queue, message) for key, message in zip(keys, messages, strict=True)
               if key not in there]  # fmt: skip
        if new:
            queue.enqueue_many(new, pipeline=pipeline)
            pipeline.execute()
        return [
            Accepted(job_id(message.id), is_duplicate=key in there)
            for key, message in zip(keys, messages, strict=True)
        ]

    def _data(self, queue: Any, message: Message) -> Any:
        function = task_of(self._tasks, message)
        ttl = None
        if message.expires_at is not None:
            left = (message.expires_at - datetime.now(UTC)).total_seconds()
            ttl = max(1, math.ceil(left))
        return queue.prepare_data(
            function,
            kwargs=arguments_of(message),
            job_id=job_id(message.id),
            meta=message.metadata(),
            ttl=ttl,
            # RQ would write all arguments once more.
            description=f"{function} {message.id}",
            **self._options,
        )


def job_id(message_id: str) -> str:
    """Return the id of the RQ job of a message: of letters, digits, ``-`` and ``_``.

    >>> job_id("7-6475efd0fe000-default~1")
    '7-6475efd0fe000-default_7e1'
    """
    return "".join(
        char if char == "-" or (char.isascii() and char.isalnum()) else f"_{ord(char):02x}"
        for char in message_id
    )


def _seconds(field: str, value: object, *, least: int) -> int | None:
    if value is None:
        return None
    return checked_integer(RQ.type, field, value, least=least, most=10 * 366 * 86_400)

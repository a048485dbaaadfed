"""Celery: tasks for its workers, through Redis, RabbitMQ or another broker that Celery supports.

Needs the extra ``celery``. What the broker acknowledged it can lose: see the pages about Redis and
RabbitMQ.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.sinks._contract import Accepted, Answer, FromRow, Message
from forebay.sinks._support import checked_number, checked_url, library, place_of
from forebay.sinks._threaded import (
    ANSWER_SECONDS,
    ThreadedSink,
    arguments_of,
    checked_queue,
    checked_tasks,
    interrupt_redis,
    shut,
    task_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Options of brokers, by the transport of kombu: how a call gives up, and what an acknowledgement
#: has to mean.
_TRANSPORT_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "redis": {"socket_timeout": ANSWER_SECONDS},
    "sentinel": {"socket_timeout": ANSWER_SECONDS},
    "amqp": {
        "confirm_publish": True,
        "read_timeout": ANSWER_SECONDS,
        "write_timeout": ANSWER_SECONDS,
    },
}
_SAME_TRANSPORT: Final = {"rediss": "redis", "amqps": "amqp", "pyamqp": "amqp"}

#: Headers of Celery's protocol. A header of a job must not replace one.
_OF_CELERY: Final = frozenset(
    {
        "argsrepr", "compression", "eta", "expires", "group", "group_index", "headers", "id",
        "ignore_result", "kwargsrepr", "lang",
        "method", "origin", "parent_id", "properties", "replaced_task_nesting", "retries",
        "root_id", "shadow", "stack",
        "stamped_headers", "stamps", "task", "timelimit",
    }
)  # fmt: skip
_RENAMED: Final = "forebay-header-"


class Celery(ThreadedSink):
    """Sends a Celery task for each message: the task of its kind, with the arguments of the job
    as keyword arguments.

    The id of the task is that of the message, so a repetition has the same task id; Celery itself
    runs both. Headers of the job, ``forebay-id``, ``forebay-kind`` and the like are headers of the
    task message. A header with the name of one of Celery's own gets the prefix ``forebay-header-``.
    A job that expires is a task that expires.

    Args:
        url: of the broker, as in ``broker_url``: redis://user:password@host:port/database,
            amqp://user:password@host:port/vhost and so on. Leave it out with ``app``.
        queue: of Celery; None: as the routes of the app say, without any the queue "celery".
        tasks: the name of the task of each kind. A kind that is not there is the name of its task
            itself.
        app: a Celery app in place of the address: its broker, routes, queues and serializer are
            used. Its settings are copied when the sink is made; its connections and its result
            backend are not used.
        connect_timeout: seconds to connect and log in, 0.1 to 60.

    Raises:
        ConfigError: an argument is refused, or the library celery is missing.
    """

    type: ClassVar[str] = "celery"
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "queue": FromRow.PLAIN,
        "tasks": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str | None = None,
        tasks: dict[str, str] | None = None,
        app: Any = None,
        connect_timeout: float = 5.0,
    ) -> None:
        super().__init__()
        celery = library("celery", self.type)
        self._kombu_errors = library("kombu.exceptions", self.type)
        if (url is None) == (app is None):
            raise ConfigError(f"sink {self.type}", "needs either url or app")
        if app is not None and not isinstance(app, celery.Celery):
            raise ConfigError(f"sink {self.type}: app", f"is {shown(app)}, not a Celery app")
        if url is not None:
            given: object = url
            scheme, has_one, _ = given.partition("://") if isinstance(given, str) else ("", "", "")
            checked_url(self.type, given, scheme if has_one else "redis")
        self._queue = None if queue is None else checked_queue(self.type, queue)
        self._tasks = checked_tasks(self.type, tasks)
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        # A new app sends, not the given one: send_task() of an app with a result backend connects
        # to that too, for every task.
        self._app = celery.Celery("forebay", set_as_current=False, fixups=[])
        if app is not None:
            self._app.conf.update(app.conf.table(with_defaults=False, censored=False))
        else:
            self._app.conf.broker_url = url
        self._app.conf.update(result_backend=None, task_always_eager=False)
        written = self._app.conf.broker_write_url
        first = (written[0] if isinstance(written, list | tuple) else written) or "amqp://"
        scheme = urlsplit(first).scheme.partition("+")[0]
        self._scheme = _SAME_TRANSPORT.get(scheme, scheme)
        self._server = place_of(first.partition(";")[0]) or self._scheme

    @property
    def place(self) -> str:
        """The queue, if the sink names one, and the broker."""
        return f"{self._queue} at {self._server}" if self._queue else f"celery at {self._server}"

    def _connect(self) -> Any:
        options = dict(_TRANSPORT_OPTIONS.get(self._scheme, {}))
        if self._scheme in {"redis", "sentinel"}:
            options["socket_connect_timeout"] = self._connect_seconds
        # kombu would try to connect for minutes, also in the middle of a call. The drain decides
        # when to try again.
        options |= {"max_retries": 0, "interval_start": 0, "interval_step": 0, "interval_max": 0}
        connection = self._app.connection_for_write(
            connect_timeout=self._connect_seconds, transport_options=options
        )
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            # A transport such as that of Redis connects with its first channel.
            producer = self._app.amqp.Producer(connection.default_channel, auto_declare=False)
            if self._scheme == "redis":
                connection.default_channel.client.ping()
        except BaseException:
            with contextlib.suppress(Exception):
                self._disconnect((connection, None))
            raise
        return connection, producer

    def _disconnect(self, client: Any) -> None:
        connection, _ = client
        connection.release()

    def _interrupt(self, client: Any) -> None:
        connection, _ = client
        if self._scheme == "redis":
            # Not through the property, which would connect again.
            interrupt_redis(connection._default_channel.pool)  # noqa: SLF001
        elif connection.connected:
            shut(getattr(connection.connection, "sock", None))

    def _as_unavailable(self, error: Exception) -> SinkUnavailable | None:
        known = (OSError, TimeoutError, self._kombu_errors.KombuError)
        if isinstance(error, known):
            return self._unavailable(error)
        # Of the broker's own client, which need not be imported here.
        modules = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
        return self._unavailable(error) if modules & {"amqp", "redis"} else None

    def _deliver(self, client: Any, messages: Sequence[Message]) -> list[Answer]:
        _, producer = client
        if getattr(producer, "supports_batch_publish", False):
            with producer.batch(max_size=len(messages) + 1):
                for message in messages:
                    self._publish(producer, message)
            return [Accepted()] * len(messages)
        answers: list[Answer] = []
        unavailable: SinkUnavailable | None = None
        for message in messages:
            if unavailable is None:
                try:
                    self._publish(producer, message)
                except Exception as error:
                    unavailable = self._as_unavailable(error)
                    if unavailable is None:
                        raise
            answers.append(Accepted() if unavailable is None else unavailable)
        return answers

    def _publish(self, producer: Any, message: Message) -> None:
        options: dict[str, Any] = {} if self._queue is None else {"queue": self._queue}
        self._app.send_task(
            task_of(self._tasks, message),
            kwargs=arguments_of(message),
            task_id=message.id,
            producer=producer,
            headers={
                _RENAMED + name if name.lower() in _OF_CELERY else name: value
                for name, value in message.metadata().items()
            },
            expires=message.expires_at,
            retry=False,
            # RabbitMQ would drop a task whose queue was deleted after it had been declared.
            mandatory=True,
            confirm_timeout=ANSWER_SECONDS,
            add_to_parent=False,
            **options,
        )

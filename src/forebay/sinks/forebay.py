"""Another Forebay database: messages become jobs there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from forebay._family import PARENT_HEADER
from forebay.config import masked_dsn
from forebay.db.session import Session
from forebay.errors import (
    ConfigError,
    DatabaseUnavailable,
    EnqueueError,
    ForebayError,
    InvalidJob,
    QueueFull,
    SinkUnavailable,
    shown,
)
from forebay.model import checks
from forebay.model.unique import Throttle
from forebay.ops.flows import CALLBACK_HEADER
from forebay.ops.operation import Operation
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected, Sent, Sink
from forebay.sinks._support import checked_number, checked_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Headers that name jobs of this database.
_OF_HERE: Final = (PARENT_HEADER, CALLBACK_HEADER)

_ENQUEUE: Final = "select job_id, is_new from forebay.enqueue_each(%(jobs)s::jsonb)"
_SEEN: Final = "select key, job_id from forebay.throttled(%(queue)s, %(keys)s)"

_DAY: Final = 86_400.0
_REMEMBER_DAYS: Final = 31.0

#: A database that syncs later could lose a job after this sink said that it is there.
_SETTINGS: Final = {"synchronous_commit": "on"}


class ForebayDatabase(Sink):
    """Enqueues a job in another Forebay database for each message.

    The proof is the id of the job there.

    Kind, arguments, headers, priority, ordering key, correlation id, tag and expiry are those of
    the job here. The header ``forebay-id`` has the id of the message; it is left out where the
    headers of the job use up the limits. The messages of a call are enqueued in one transaction,
    each with a ``Throttle`` key made of the id of the message. A repetition within
    ``remember_days`` enqueues nothing, whatever became of the job, and is answered with the id of
    that job.

    Args:
        url: postgresql://user:password@host:port/database; the user needs the role of producers
            there.
        queue: the queue there; None: the same as here. Another queue after a change does not
            recognise earlier messages.
        kinds: the kind there of each kind here. A kind that is not there stays as it is.
        remember_days: how long a repetition is recognised, 1 to 3650. The default is longer than
            the 30 days after which a job expires here that sets no expiry.
        connect_timeout: seconds to connect and log in, 0.1 to 60.

    Raises:
        ConfigError: an argument is refused.
    """

    type: ClassVar[str] = "forebay"
    can_verify: ClassVar[bool] = True
    messages_max: ClassVar[int] = 5_000
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "queue": FromRow.PLAIN,
        "kinds": FromRow.PLAIN,
        "remember_days": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str,
        *,
        queue: str | None = None,
        kinds: dict[str, str] | None = None,
        remember_days: float = _REMEMBER_DAYS,
        connect_timeout: float = 5.0,
    ) -> None:
        self._url = checked_url(self.type, url, "postgresql", "postgres")
        self._queue = None if queue is None else _checked_name("queue", queue)
        if kinds is not None and not isinstance(kinds, dict):
            raise ConfigError(f"sink {self.type}: kinds", f"is {shown(kinds)}, not a mapping")
        self._kinds = {
            _checked_name("kinds", here): _checked_name("kinds", there)
            for here, there in (kinds or {}).items()
        }
        self._remember_seconds = _DAY * checked_number(
            self.type, "remember_days", remember_days, least=1, most=3650
        )
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        #: Sessions that no call uses. Those of calls end themselves if the call fails.
        self._idle: list[Session] = []
        self._closings = 0

    @property
    def place(self) -> str:
        """The database, and the queue if the sink names one."""
        address = masked_dsn(self._url)
        return address if self._queue is None else f"{self._queue} at {address}"

    async def open(self) -> None:
        """Connect, and check that the schema is there and may be used."""
        await self.close()
        await self._run(Operation(_SEEN, list, {"queue": self._queue or "default", "keys": []}))

    async def close(self) -> None:
        """Close the connections that no call uses; the others are closed after their calls."""
        self._closings += 1
        sessions, self._idle = self._idle, []
        for session in sessions:
            await session.close()

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Enqueue the messages in one transaction.

        Several transactions are used if some are refused, or if their ids do not ascend.
        """
        answers: list[Answer] = []
        start = 0
        for end in range(1, len(messages) + 1):
            if end == len(messages) or self._key(messages[end]) <= self._key(messages[end - 1]):
                answers += await self._send(messages[start:end])
                start = end
        return answers

    def _key(self, message: Message) -> tuple[str, str]:
        """Return queue and key of a message. An enqueue numbers its jobs in the order of these."""
        # With the number of digits first, keys have the order of the job ids.
        return self._queue or message.queue, f"{len(str(message.job_id)):02}:{message.id}"

    async def _send(self, messages: Sequence[Message]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        places = list(range(len(messages)))
        while places:
            try:
                found = await self._enqueue([messages[place] for place in places])
            except QueueFull as error:
                unavailable = self._unavailable(error)
                if len(places) == 1:
                    return [answers.get(place, unavailable) for place in range(len(messages))]
                half = [messages[place] for place in places[: len(places) // 2]]
                first = await self._send(half)
                answers.update(zip(places, first, strict=False))
                if any(isinstance(answer, SinkUnavailable) for answer in first):
                    return [answers.get(place, unavailable) for place in range(len(messages))]
                places = places[len(half) :]
            except EnqueueError as error:
                if error.index is None:
                    raise self._unavailable(error) from error
                # The call wrote nothing. The others are enqueued without this one.
                answers[places.pop(error.index)] = Rejected(error.message)
            else:
                answers.update(zip(places, found, strict=True))
                places = []
        return [answers[place] for place in range(len(messages))]

    async def seen(self, sent: Sequence[Sent]) -> list[bool | None]:
        """Look for the keys of the messages, which are there longer than their jobs."""
        keys = [self._key(one.message) for one in sent]
        found: set[tuple[str, str]] = set()
        for queue in sorted({queue for queue, _ in keys}):
            mine = [key for its_queue, key in keys if its_queue == queue]
            rows = await self._run(Operation(_SEEN, list, {"queue": queue, "keys": mine}))
            found.update((queue, key) for key, _ in rows)
        return [key in found for key in keys]

    async def _enqueue(self, messages: Sequence[Message]) -> list[Answer]:
        jobs = msgspec.json.encode([self._job(message) for message in messages]).decode()
        rows = await self._run(Operation(_ENQUEUE, list, {"jobs": jobs}))
        return [Accepted(str(job_id), is_duplicate=not is_new) for job_id, is_new in rows]

    def _job(self, message: Message) -> dict[str, Any]:
        # What these name is in the other database.
        given = {key: text for key, text in message.headers.items() if key not in _OF_HERE}
        headers = {**given, "forebay-id": message.id}
        try:
            checks.checked_headers(headers)
        except InvalidJob:
            headers = given
        queue, key = self._key(message)
        return {
            "kind": self._kinds.get(message.kind, message.kind),
            "args": msgspec.Raw(message.body),
            "queue": queue,
            "priority": message.priority,
            "expires_at": message.expires_at,
            "tag": message.tag,
            "correlation_id": message.correlation_id,
            "headers": headers,
            "ordering_key": message.ordering_key,
            "unique_as": Throttle(key, period=self._remember_seconds).as_json(),
        }

    async def _run(self, operation: Operation[list[Any]]) -> list[Any]:
        closings = self._closings
        session = self._idle.pop() if self._idle else self._session()
        try:
            rows = await session.run(operation)
        except EnqueueError:
            await self._put_back(session, closings)
            raise
        except Exception as error:
            await session.close()
            is_known = isinstance(error, ForebayError | OSError) or hasattr(error, "sqlstate")
            if not is_known:
                raise
            raise self._unavailable(error) from error
        except BaseException:
            await session.close()
            raise
        await self._put_back(session, closings)
        return rows

    def _session(self) -> Session:
        return Session(
            self._url,
            name="forebay sink",
            connect_seconds=self._connect_seconds,
            settings=_SETTINGS,
        )

    async def _put_back(self, session: Session, closings: int) -> None:
        if closings == self._closings:
            self._idle.append(session)
        else:
            await session.close()

    def _unavailable(self, problem: str | BaseException) -> SinkUnavailable:
        if isinstance(problem, DatabaseUnavailable):
            problem = problem.message or type(problem).__name__
        return super()._unavailable(problem)


def _checked_name(field: str, value: object) -> str:
    try:
        return checks.checked_name(value, field)
    except InvalidJob as error:
        raise ConfigError(
            f"sink {ForebayDatabase.type}: {field}", error.message, hint=error.hint
        ) from None

"""BullMQ: jobs for its workers, in Node.js or Python.

Needs the extra ``bullmq``. Redis can lose what it acknowledged unless it syncs every write
(``appendfsync always``).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from forebay.errors import ConfigError, shown
from forebay.sinks._contract import Accepted, Answer, FromRow, Message
from forebay.sinks._support import checked_integer, checked_number, library
from forebay.sinks._threaded import arguments_of, checked_queue, checked_tasks, task_of
from forebay.sinks.redis import _Redis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: BullMQ separates the parts of its keys with colons.
_COLON: Final = ":"
#: Ten years, in seconds.
_SECONDS_MAX: Final = 10 * 366 * 86_400


class BullMQ(_Redis):
    """Adds a BullMQ job for each message: with the name of its kind, and the arguments of the job
    as its data.

    The id of the BullMQ job is that of the message, with ``%`` and ``:`` as ``%25`` and ``%3A``.
    While BullMQ has a job with this id (it waits, runs, or is kept) a repetition adds nothing. The
    option ``forebay`` of the job has the headers, ``forebay-id``, ``forebay-kind`` and the like.
    All messages of a call are added in one transaction, by the scripts of BullMQ itself.

    Args:
        url: redis://user:password@host:port/database, or rediss:// for TLS.
        queue: of BullMQ.
        tasks: the name of the job of each kind. A kind that is not there is the name itself.
        prefix: of the keys in Redis, as in the workers.
        attempts: how often BullMQ runs a job at most, 1 to 1,000.
        backoff: seconds between two attempts, 0 to ten years.
        keep_completed: seconds that BullMQ keeps a job that succeeded; repetitions are recognised
            that long. None: the workers decide, which keep all by default.
        keep_failed: seconds that BullMQ keeps a job that failed. None: the workers decide.
        connect_timeout: seconds to connect and log in, 0.1 to 60.

    Raises:
        ConfigError: an argument is refused, or the library bullmq is missing.
    """

    type: ClassVar[str] = "bullmq"
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "queue": FromRow.PLAIN,
        "tasks": FromRow.PLAIN,
        "prefix": FromRow.PLAIN,
        "attempts": FromRow.PLAIN,
        "backoff": FromRow.PLAIN,
        "keep_completed": FromRow.PLAIN,
        "keep_failed": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }
    _options_of_client: ClassVar[Mapping[str, Any]] = {"decode_responses": True}

    def __init__(
        self,
        url: str,
        queue: str = "default",
        *,
        tasks: dict[str, str] | None = None,
        prefix: str = "bull",
        attempts: int = 1,
        backoff: float = 0,
        keep_completed: int | None = None,
        keep_failed: int | None = None,
        connect_timeout: float = 5.0,
    ) -> None:
        self._bullmq = library("bullmq", self.type)
        super().__init__(url, checked_queue(self.type, queue), connect_timeout=connect_timeout)
        self._tasks = checked_tasks(self.type, tasks)
        self._prefix = checked_queue(self.type, prefix, field="prefix")
        for field, name in (("queue", queue), ("prefix", prefix)):
            if _COLON in name:
                raise ConfigError(
                    f"sink {self.type}: {field}", f"is {shown(name)}, which has a colon", value=name
                )
        self._options: dict[str, Any] = {
            "attempts": checked_integer(self.type, "attempts", attempts, least=1, most=1000)
        }
        checked_number(self.type, "backoff", backoff, least=0, most=_SECONDS_MAX)
        if backoff:
            self._options["backoff"] = {"type": "fixed", "delay": math.ceil(backoff * 1000)}
        for field, option, seconds in (
            ("keep_completed", "removeOnComplete", keep_completed),
            ("keep_failed", "removeOnFail", keep_failed),
        ):
            if seconds is not None:
                self._options[option] = {
                    "age": checked_integer(self.type, field, seconds, least=0, most=_SECONDS_MAX)
                }
        self._adder: Any = None

    async def open(self) -> None:
        """Connect and log in."""
        await super().open()
        self._adder = self._bullmq.Queue(
            self._name, {"connection": self._client, "prefix": self._prefix}
        )

    async def close(self) -> None:
        """Close the connections."""
        self._adder = None
        await super().close()

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Add the messages, in one transaction."""
        if not messages:
            return []
        if self._adder is None:
            await self.open()
        jobs = [self._job(message) for message in messages]
        try:
            await self._adder.addBulk(jobs)
        except (self._errors.RedisError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error
        return [Accepted(job["opts"]["jobId"]) for job in jobs]

    def _job(self, message: Message) -> dict[str, Any]:
        return {
            "name": task_of(self._tasks, message),
            "data": arguments_of(message),
            "opts": {
                **self._options,
                "jobId": job_id(message.id),
                "timestamp": round(message.enqueued_at.timestamp() * 1000),
                "forebay": message.metadata(),
            },
        }


def job_id(message_id: str) -> str:
    """Return the id of the BullMQ job of a message, without a colon.

    >>> job_id("7-6475efd0fe000-a:b%")
    '7-6475efd0fe000-a%3Ab%25'
    """
    return re.sub("[%:]", lambda found: f"%{ord(found[0]):02X}", message_id)

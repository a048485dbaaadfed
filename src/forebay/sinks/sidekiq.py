"""Sidekiq: jobs for its workers, in Ruby.

Needs the extra ``redis``. Redis can lose what it acknowledged unless it syncs every write
(``appendfsync always``).
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from forebay.errors import ConfigError, shown
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected
from forebay.sinks._support import checked_integer
from forebay.sinks._threaded import checked_queue, checked_tasks
from forebay.sinks.redis import _Redis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The name of a class in Ruby, in its modules.
_CLASS: Final = re.compile(r"[A-Z]\w*(?:::[A-Z]\w*)*", re.ASCII)
#: How many hexadecimal digits the id of a job has.
_ID_LENGTH: Final = 24


class Sidekiq(_Redis):
    """Enqueues a Sidekiq job for each message, in the form that Sidekiq documents: the class of its
    kind, with the arguments of the job as one hash.

    ``jid`` is made of the id of the message, so a repetition has the same one; Sidekiq itself runs
    both. The field ``forebay`` of the job has the headers, ``forebay-id``, ``forebay-kind`` and the
    like: server middleware sees it. Times are seconds with a fraction, as Sidekiq before version 8
    writes them; version 8 reads them too. All messages of a call are enqueued in one transaction.

    Args:
        url: redis://user:password@host:port/database, or rediss:// for TLS.
        queue: of Sidekiq.
        tasks: the class of each kind, such as ``Shop::ShipJob``. Other kinds are rejected. None: a
            kind is the name of its class, so each producer chooses what Sidekiq's workers run.
        retry: whether Sidekiq tries a job that failed again, by its own rules; or how often. 0 to
            1,000.
        connect_timeout: seconds to connect and log in, 0.1 to 60.

    Raises:
        ConfigError: an argument is refused, or the library redis is missing.
    """

    type: ClassVar[str] = "sidekiq"
    row_needs: ClassVar[Sequence[str]] = ("tasks",)
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "queue": FromRow.PLAIN,
        "retry": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str,
        queue: str = "default",
        *,
        tasks: dict[str, str] | None = None,
        retry: bool | int = True,
        connect_timeout: float = 5.0,
    ) -> None:
        super().__init__(url, checked_queue(self.type, queue), connect_timeout=connect_timeout)
        self._tasks = None if tasks is None else checked_tasks(self.type, tasks)
        for name in (self._tasks or {}).values():
            if not _CLASS.fullmatch(name):
                raise ConfigError(
                    f"sink {self.type}: tasks",
                    f"has {shown(name)}, which is not the name of a class",
                    value=name,
                    hint="Write it as in Ruby: Shop::ShipJob.",
                )
        if not isinstance(retry, bool):
            checked_integer(self.type, "retry", retry, least=0, most=1000)
        self._retry = retry

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Enqueue the messages, in one transaction."""
        now = time.time()
        answers: list[Answer] = []
        jobs: list[bytes] = []
        for message in messages:
            name = message.kind if self._tasks is None else self._tasks.get(message.kind)
            if name is None:
                answers.append(Rejected(f"tasks names no class for the kind {shown(message.kind)}"))
            elif not _CLASS.fullmatch(name):
                answers.append(Rejected(f"{shown(name)} is not the name of a class in Ruby"))
            else:
                jobs.append(self._job(name, message, now))
                answers.append(Accepted(job_id(message.id)))
        if jobs:
            await self._push(jobs)
        return answers

    async def _push(self, jobs: Sequence[bytes]) -> None:
        """Raise ``SinkUnavailable`` unless the jobs are in the queue."""
        *before, found = await self._run(
            [
                ("MULTI",),
                ("SADD", "queues", self._name),
                ("LPUSH", f"queue:{self._name}", *jobs),  # Workers take from the right.
                ("EXEC",),
            ]
        )
        # An error of the first command, such as that of a full memory, says more than that of EXEC.
        problems = [one for one in before if isinstance(one, Exception)]
        pushed = found if isinstance(found, Exception) else found[-1]
        if isinstance(pushed, Exception):
            raise self._unavailable(problems[0] if problems else pushed)

    def _job(self, name: str, message: Message, now: float) -> bytes:
        job: dict[str, Any] = {
            "class": name,
            "args": [msgspec.Raw(message.body)],
            "jid": job_id(message.id),
            "queue": self._name,
            "retry": self._retry,
            "created_at": message.enqueued_at.timestamp(),
            "enqueued_at": now,
            "forebay": message.metadata(),
        }
        return msgspec.json.encode(job)


def job_id(message_id: str) -> str:
    """Return the id of the Sidekiq job of a message: 24 hexadecimal digits.

    >>> job_id("7-6475efd0fe000-default")
    'e5abb5735f76618797976cac'
    """
    return hashlib.sha256(message_id.encode()).hexdigest()[:_ID_LENGTH]

"""Redis and Valkey: streams and lists.

Needs the extra ``redis``. A server that keeps its data in memory only, or syncs once a second, can
lose what it acknowledged: verify streams, or set ``appendfsync always``.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected, Sent, Sink
from forebay.sinks._support import (
    checked_integer,
    checked_name,
    checked_number,
    checked_url,
    envelope,
    library,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCHEMES: Final = ("redis", "rediss", "unix")
#: Ten years, in seconds.
_AGE_MAX: Final = 10 * 366 * 86_400

#: What a server answers when it does not take a command of this form, whatever its own state.
_OF_THE_MESSAGE: Final = ("invalid bulk length", "string exceeds maximum allowed size")


class _Redis(Sink):
    """A connection to a server.

    Each call is one pipeline of plain commands, so an error of one is not an error of the others.
    """

    _options_of_client: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, url: str, name: str, *, connect_timeout: float) -> None:
        self._library = library("redis.asyncio", "redis")
        self._errors = library("redis.exceptions", "redis")
        self._url = checked_url(self.type, url, *_SCHEMES)
        self._name = name
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        self._client: Any = None

    @property
    def place(self) -> str:
        """The name of the stream or list, and the server."""
        return f"{self._name} at {place_of(self._url)}"

    async def open(self) -> None:
        """Connect and log in."""
        await self.close()
        self._client = self._library.from_url(
            self._url,
            socket_connect_timeout=self._connect_seconds,
            socket_timeout=None,  # The drain bounds a call.
            retry=None,  # The drain decides when to try again.
            **self._options_of_client,
        )
        try:
            await self._client.ping()
        except (self._errors.RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise self._unavailable(error) from error

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _run(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one pipeline; return the answer or the error of each."""
        if self._client is None:
            await self.open()
        pool = self._client.connection_pool
        answers: list[Any] = []
        try:
            connection = await pool.get_connection()
            try:
                # The pipeline of the library packs commands too; that took two fifths of the time
                # of a call.
                await connection.send_packed_command(_packed(commands), check_health=False)
                for _ in commands:
                    try:
                        answers.append(await connection.read_response())
                    except self._errors.ResponseError as error:
                        answers.append(error)
            except BaseException:
                # The answers that are still to come belong to no later command.
                await connection.disconnect(nowait=True)
                raise
            finally:
                await pool.release(connection)
        except (self._errors.RedisError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error
        return answers

    def _answer(self, answer: Any, *, has_proof: bool) -> Answer:
        if not isinstance(answer, Exception):
            return Accepted(answer.decode() if has_proof else None)
        if any(text in str(answer).lower() for text in _OF_THE_MESSAGE):
            return Rejected(str(answer))
        # Out of memory, read only, the wrong type of the key: an operator can mend it, and the
        # message is not at fault.
        return self._unavailable(answer)


class RedisStream(_Redis):
    """Appends each message to a stream. The proof is the id of the entry.

    An entry has the fields ``body``, the arguments of the job as JSON, ``forebay-id``,
    ``forebay-kind`` and the like, and one field for each header of the job. A repeated message is
    another entry with the same ``forebay-id``.

    Args:
        url: redis://user:password@host:port/database, or rediss:// for TLS.
        stream: the key of the stream.
        maxlen: about how many entries to keep; None keeps all. Trimmed entries cannot be verified.
        max_age: about how many seconds to keep entries, 1 to ten years, by the clock of the server;
            None keeps all. Each call removes what is older than its newest entry by that much.
            Not with ``maxlen``: Redis trims by one of both.
        create: whether to create a missing stream. Otherwise messages wait until it exists.
        connect_timeout: seconds to connect and log in, 0.1 to 60.

    Raises:
        ConfigError: an argument is refused, or the library redis is missing.
    """

    type: ClassVar[str] = "redis-stream"
    can_verify: ClassVar[bool] = True
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "stream": FromRow.PLAIN,
        "create": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        maxlen: int | None = None,
        max_age: float | None = None,
        create: bool = True,
        connect_timeout: float = 5.0,
    ) -> None:
        super().__init__(
            url, checked_name(self.type, "stream", stream), connect_timeout=connect_timeout
        )
        if maxlen is not None:
            checked_integer(self.type, "maxlen", maxlen, least=1)
        if max_age is not None:
            checked_number(self.type, "max_age", max_age, least=1, most=_AGE_MAX)
            if maxlen is not None:
                raise ConfigError(
                    f"sink {self.type}: max_age",
                    "and maxlen exclude each other",
                    hint="Redis trims a stream by its length or by the age of its entries.",
                )
        self._maxlen = maxlen
        self._max_age_millis = None if max_age is None else round(max_age * 1000)
        options: list[Any] = [] if create else ["NOMKSTREAM"]
        self._options = [*options, *([] if maxlen is None else ["MAXLEN", "~", maxlen])]

    async def open(self) -> None:
        """Connect, log in, and check that the stream can be trimmed if entries have an age.

        The check trims nothing; it meets a right that is missing, and a server before 6.2.
        """
        await super().open()
        if self._max_age_millis is not None:
            (found,) = await self._run([self._trim(0)])
            if isinstance(found, Exception):
                await self.close()
                raise self._unavailable(found)

    def _trim(self, millis: int) -> tuple[Any, ...]:
        return ("XTRIM", self._name, "MINID", "~", max(millis, 0))

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Append the messages, in one pipeline."""
        commands: list[tuple[Any, ...]] = []
        for message in messages:
            fields: list[Any] = ["body", message.body]
            for name, value in message.metadata().items():
                fields += (name, value)
            commands.append(("XADD", self._name, *self._options, "*", *fields))
        answers = [
            SinkUnavailable(f"{self.place}: the stream does not exist")
            if answer is None
            else self._answer(answer, has_proof=True)
            for answer in await self._run(commands)
        ]
        await self._trim_after(answers)
        return answers

    async def _trim_after(self, answers: Sequence[Answer]) -> None:
        """Remove what is too old beside the newest entry of a call.

        Its id has the time of the server. By the clock of this machine a wrong time would remove
        what is new.
        """
        proofs = [one.proof for one in answers if isinstance(one, Accepted) and one.proof]
        if self._max_age_millis is None or not proofs:
            return
        newest, _ = _order(proofs[-1])
        # The stream has the messages, whatever becomes of this; the next call tries again.
        with contextlib.suppress(SinkUnavailable):
            await self._run([self._trim(newest - self._max_age_millis)])

    async def seen(self, sent: Sequence[Sent]) -> list[bool | None]:
        """Read the entries by their ids.

        An entry that was deleted or trimmed is unknown, not lost.
        """
        commands: list[tuple[Any, ...]] = [
            ("XRANGE", self._name, one.proof or "-", one.proof or "-") for one in sent
        ]
        # Last: another call may remove entries between two commands, and then says so here.
        *answers, info = await self._run([*commands, ("XINFO", "STREAM", self._name)])
        deleted = _id_in(info, "max-deleted-entry-id")
        if self._max_age_millis is not None:
            # A stream that is away shows no time.
            newest = _id_in(info, "last-generated-id")[0] or round(time.time() * 1000)
            deleted = max(deleted, (newest - self._max_age_millis, 0))
        results: list[bool | None] = []
        for one, answer in zip(sent, answers, strict=True):
            if isinstance(answer, Exception):
                raise self._unavailable(answer)
            if answer:
                results.append(True)
            elif one.proof is None or self._maxlen is not None or _order(one.proof) <= deleted:
                results.append(None)
            else:
                results.append(False)
        return results


class RedisList(_Redis):
    """Appends each message to the right end of a list, as JSON: ``{"id": ..., "kind": ...,
    "body": ..., "headers": ...}``.

    Consumers take messages from the left end, so nothing can be read back. Prefer a stream.

    Args:
        url: redis://user:password@host:port/database, or rediss:// for TLS.
        key: of the list.
        connect_timeout: seconds to connect and log in, 0.1 to 60.

    Raises:
        ConfigError: an argument is refused, or the library redis is missing.
    """

    type: ClassVar[str] = "redis-list"
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "key": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
    }

    def __init__(self, url: str, key: str, *, connect_timeout: float = 5.0) -> None:
        super().__init__(url, checked_name(self.type, "key", key), connect_timeout=connect_timeout)

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Append the messages, in one pipeline."""
        commands = [("RPUSH", self._name, envelope(message)) for message in messages]
        return [self._answer(answer, has_proof=False) for answer in await self._run(commands)]


def _packed(commands: Sequence[tuple[Any, ...]]) -> bytes:
    r"""Return commands in the form of the Redis protocol: arrays of bulk strings.

    >>> _packed([("XADD", "s", "*", "body", b"{}")])
    b'*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$4\r\nbody\r\n$2\r\n{}\r\n'
    """
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for argument in command:
            value = argument if isinstance(argument, bytes) else str(argument).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


def _id_in(info: Any, name: str) -> tuple[int, int]:
    """Return an id from the answer of XINFO STREAM, which depends on the version of the protocol;
    zeros if it is not there.
    """
    if isinstance(info, list):
        info = dict(zip(info[::2], info[1::2], strict=True))
    if not isinstance(info, dict):
        return (0, 0)
    found = info.get(name.encode()) or info.get(name) or "0-0"
    return _order(found.decode() if isinstance(found, bytes) else found)


def _order(entry_id: str) -> tuple[int, int]:
    millis, _, number = entry_id.partition("-")
    return int(millis), int(number or 0)

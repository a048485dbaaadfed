"""NATS JetStream: a subject of a stream.

Needs the extra ``nats``. A server syncs streams to disk every two minutes by default, so one that
loses its power can lose what it acknowledged: verify, use several replicas, or set ``sync_interval:
always``.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected, Sent, Sink
from forebay.sinks._nats_login import Login
from forebay.sinks._support import checked_name, checked_number, checked_url, library, place_of
from forebay.sinks._template import Template, UnfitMessageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.sinks._secrets import Secret

#: Parts of letters with points between them; no blanks, no wildcards, and nothing that begins like
#: the server's own subjects.
_SUBJECT: Final = re.compile(r"(?!\$)[^\s.*>]+(?:\.[^\s.*>]+)*")
_STREAM: Final = re.compile(r"[^\s.*>/\\]+")
_MESSAGE_ID: Final = "Nats-Msg-Id"

#: The most messages of a call without an acknowledgement: a server refuses more than 10,000 of all
#: its clients.
_WINDOW: Final = 1_000
#: How often to look whether the connection still stands: the client does not report each way to
#: lose it.
_LOOK_SECONDS: Final = 0.1
#: How long a connection may take to close.
_CLOSE_SECONDS: Final = 1.0

#: Codes of the server: the message exceeds what the stream takes, its headers do.
_TOO_LARGE: Final = {10054, 10097}
#: There is no such message; there is no such stream.
_NO_MESSAGE: Final = 10037


class JetStream(Sink):
    """Publishes each message to a subject and waits until a stream has stored it.

    The proof is ``STREAM:SEQUENCE``.

    The payload of a message is the arguments of the job as JSON. Its headers are those of the job,
    ``forebay-id``, ``forebay-kind`` and the like, and ``Nats-Msg-Id``, by which the stream
    recognises a repetition within its duplicate window.

    A message for whose subject there is no stream waits; so does one that a full stream refuses.

    Args:
        url: nats://user:password@host:port, or tls:// for TLS; several servers of a cluster with
            commas between them.
        subject: a text, or a template with {kind}, {queue}, {ordering_key}, {tag}, {header:NAME}. A
            job that lacks such a value, or whose value makes the subject invalid, becomes a dead
            letter.
        stream: the stream that must take the messages; None: whichever has the subject.
        ack_timeout: seconds to wait for the acknowledgements of a call, 0.1 to 3600; below the
            timeout of the drain.
        connect_timeout: seconds to connect and log in, 0.1 to 60.
        credentials: a reference to a credentials file, with the JWT of a user and its seed;
            ``env:NAME`` for a variable with its text.
        nkey: a reference to the seed of a user.
        token: a reference to a token. At most one of these three, and then no user in ``url``. They
            are read whenever the sink connects.

    Raises:
        ConfigError: an argument is refused, or the library nats-py or nkeys is missing.
    """

    type: ClassVar[str] = "nats"
    can_verify: ClassVar[bool] = True
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.ADDRESS,
        "subject": FromRow.PLAIN,
        "stream": FromRow.PLAIN,
        "ack_timeout": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
        "credentials": FromRow.SECRETS,
        "nkey": FromRow.SECRETS,
        "token": FromRow.SECRETS,
    }

    def __init__(
        self,
        url: str,
        subject: str,
        *,
        stream: str | None = None,
        ack_timeout: float = 10.0,
        connect_timeout: float = 5.0,
        credentials: str | Secret | None = None,
        nkey: str | Secret | None = None,
        token: str | Secret | None = None,
    ) -> None:
        self._library = library("nats", "nats")
        self._errors = library("nats.errors", "nats")
        self._urls = [checked_url(self.type, one, "nats", "tls") for one in str(url).split(",")]
        self._subject = Template(self.type, "subject", subject)
        example = re.sub(r"\{[^}]*\}", "x", subject)
        if not _SUBJECT.fullmatch(example):
            raise ConfigError(
                f"sink {self.type}: subject",
                f"is {shown(subject)}, not a subject to publish to",
                value=subject,
            )
        if stream is not None and not _STREAM.fullmatch(checked_name(self.type, "stream", stream)):
            raise ConfigError(
                f"sink {self.type}: stream", f"is {shown(stream)}, not a name", value=stream
            )
        self._stream = stream
        self._ack_seconds = checked_number(
            self.type, "ack_timeout", ack_timeout, least=0.1, most=3600
        )
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        has_user = any("@" in urlsplit(one).netloc for one in self._urls)
        self._login = Login(self.type, credentials, nkey, token, has_user=has_user)
        self._link: _Link | None = None
        #: The streams that answer direct reads, since the connection was made.
        self._direct: dict[str, bool] = {}

    @property
    def place(self) -> str:
        """The subject and the servers."""
        return f"{self._subject.text} at {','.join(map(place_of, self._urls))}"

    async def open(self) -> None:
        """Connect, log in, and check that the stream exists if one is named."""
        await self.close()
        login = self._login.options(self.place)
        link = _Link(self._library, self._errors)
        try:
            async with asyncio.timeout(self._connect_seconds):
                await link.open(self._urls, self._connect_seconds, login)
            self._link = link
            if self._stream is not None:
                await self._state(self._stream)
        except SinkUnavailable:
            await self._drop(link)
            raise
        except Exception as error:
            await self._drop(link)
            raise self._unavailable(link.problem or error) from error
        except asyncio.CancelledError:
            await self._drop(link)
            raise

    async def close(self) -> None:
        """Close the connection."""
        await self._drop(self._link)

    async def _drop(self, link: _Link | None) -> None:
        self._link = None
        self._direct.clear()
        if link is not None:
            await link.close()

    async def _linked(self) -> _Link:
        if self._link is None:
            await self.open()
        assert self._link is not None
        return self._link

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Publish the messages in windows; wait for the acknowledgements of each."""
        link = await self._linked()
        answers: list[Answer] = []
        for start in range(0, len(messages), _WINDOW):
            answers += await self._send(link, messages[start : start + _WINDOW])
        return answers

    async def _send(self, link: _Link, messages: Sequence[Message]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        requests: list[_Request] = []
        places: list[int] = []
        for place, message in enumerate(messages):
            try:
                requests.append(self._request(link, message))
                places.append(place)
            except UnfitMessageError as error:
                answers[place] = Rejected(str(error))
        for place, found in zip(places, await link.call(requests, self._ack_seconds), strict=True):
            answers[place] = self._answer(found)
        return [answers[place] for place in range(len(messages))]

    def _request(self, link: _Link, message: Message) -> _Request:
        subject = self._subject.fill(message)
        if not _SUBJECT.fullmatch(subject):
            raise UnfitMessageError(f"{shown(subject)} is not a subject to publish to")
        headers = message.metadata()
        for name in headers:
            if name.lower().startswith("nats-"):
                raise UnfitMessageError(f"the header {name} has a meaning for the server")
            if not _HEADER_NAME.fullmatch(name):
                raise UnfitMessageError(f"the name of a header is {shown(name)}")
        headers[_MESSAGE_ID] = message.id
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        size = len(message.body) + _HEADERS_BYTES
        size += sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
        # The server would end the connection, and with it the other messages of the call, each time
        # again.
        if size > link.payload_bytes_max:
            raise UnfitMessageError(f"{size} bytes, and the server takes {link.payload_bytes_max}")
        return subject, message.body, headers

    def _answer(self, found: Any) -> Answer:
        if isinstance(found, Exception):
            return self._unavailable(found)
        if _status(found) == "503":
            return SinkUnavailable(f"{self.place}: no stream has the subject {found.sent_to}")
        try:
            ack = _ACKS.decode(found.data)
        except msgspec.MsgspecError:
            ack = _Ack()
        if ack.error is not None:
            if ack.error.err_code in _TOO_LARGE:
                return Rejected(ack.error.description)
            # No space, no leader, another stream, a sealed stream: an operator can mend it.
            return SinkUnavailable(f"{self.place}: {ack.error.description}")
        if not ack.stream or not ack.seq:
            return SinkUnavailable(f"{self.place}: the answer is not of a stream")
        return Accepted(f"{ack.stream}:{ack.seq}", is_duplicate=ack.duplicate)

    async def seen(self, sent: Sequence[Sent]) -> list[bool | None]:
        """Read the messages by their sequence numbers.

        True: the stream has it. False, lost: its number is above the last of the stream, which was
        rolled back or made again; or another message has the number; or the server counts it among
        its lost ones; or it is missing although nothing may be removed from inside of the stream.
        None: it may have been consumed, trimmed, expired or deleted.
        """
        link = await self._linked()
        results: list[bool | None] = [None] * len(sent)
        by_stream: dict[str, list[int]] = {}
        for place, one in enumerate(sent):
            if one.proof is not None:
                by_stream.setdefault(one.proof.rpartition(":")[0], []).append(place)
        for stream, places in by_stream.items():
            for start in range(0, len(places), _WINDOW):
                window = places[start : start + _WINDOW]
                wanted = [(_number(sent[place]), sent[place].message.id) for place in window]
                found = await self._seen(link, stream, wanted)
                for place, is_there in zip(window, found, strict=True):
                    results[place] = is_there
        return results

    async def _seen(
        self, link: _Link, stream: str, wanted: list[tuple[int, str]]
    ) -> list[bool | None]:
        ids: dict[int, str | None] = {}  # what the stream has, by number
        numbers = [number for number, _ in wanted]
        if self._direct.get(stream, True):
            subject = f"$JS.API.DIRECT.GET.{stream}"
            for number, found in zip(
                numbers, await self._read(link, subject, numbers), strict=True
            ):
                status = _status(found)
                if status == "503":
                    self._direct[stream] = False  # The stream does not allow them.
                elif status is None:
                    ids[number] = (found.headers or {}).get(_MESSAGE_ID)
        # A replica may answer a direct read before it has the message. Only the leader can say that
        # it is missing.
        doubtful = [number for number, wanted_id in wanted if ids.get(number) != wanted_id]
        subject = f"$JS.API.STREAM.MSG.GET.{stream}"
        for number, found in zip(doubtful, await self._read(link, subject, doubtful), strict=True):
            ids.pop(number, None)
            answer = self._decoded(found)
            if "message" in answer:
                ids[number] = _message_id(answer["message"].get("hdrs", ""))
            elif answer.get("error", {}).get("err_code") != _NO_MESSAGE:
                raise self._refused(answer)
        if all(number in ids for number in numbers):
            state: dict[str, Any] = {}
        else:
            state = await self._state(
                stream
            )  # after the reads: it says why a message was not there
        return [
            ids[number] == wanted_id if number in ids else _is_lost(number, state)
            for number, wanted_id in wanted
        ]

    async def _read(self, link: _Link, subject: str, numbers: Sequence[int]) -> list[Any]:
        requests = [(subject, b'{"seq":%d}' % number, None) for number in numbers]
        answers = await link.call(requests, self._ack_seconds)
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._unavailable(answer)
        return answers

    async def _state(self, stream: str) -> dict[str, Any]:
        """Return the configuration and the state of a stream."""
        link = await self._linked()
        request = (f"$JS.API.STREAM.INFO.{stream}", b"", None)
        (found,) = await link.call([request], self._ack_seconds)
        if isinstance(found, Exception):
            raise self._unavailable(found)
        answer = self._decoded(found)
        if "state" not in answer:
            raise self._refused(answer)
        return answer

    def _decoded(self, found: Any) -> dict[str, Any]:
        if _status(found) == "503":
            raise SinkUnavailable(f"{self.place}: JetStream does not answer; is it enabled?")
        answer: dict[str, Any] = json.loads(found.data)
        return answer

    def _refused(self, answer: Mapping[str, Any]) -> SinkUnavailable:
        problem = answer.get("error", {}).get("description", "an unknown answer")
        return SinkUnavailable(f"{self.place}: {problem}")

    def _unavailable(self, problem: str | BaseException) -> SinkUnavailable:
        if isinstance(problem, TimeoutError):
            problem = f"no answer within {self._connect_seconds:g} s"
        return super()._unavailable(problem)


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = "refused"


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


_ACKS: Final = msgspec.json.Decoder(_Ack)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: What headers take beside their lines.
_HEADERS_BYTES: Final = len("NATS/1.0\r\n\r\n")

_Request = tuple[str, bytes, "dict[str, str] | None"]


class _Link:
    """A connection with an inbox.

    Each request has its own reply subject, so an answer never belongs to another request.

    Owns the connection of the client and the requests that wait. The client forgets requests when
    it loses the connection, and its buffer for a slow server swallows cancellations; so requests
    are kept here, and the buffer is off.
    """

    def __init__(self, client: Any, errors: Any) -> None:
        self._client = client.NATS()
        self._errors = errors
        self._inbox = ""
        self._subscription: Any = None
        self._numbers = itertools.count(1)
        self._waiting: dict[str, tuple[str, asyncio.Future[Any]]] = {}
        #: The last error that the client reported.
        self.problem: Exception | None = None

    @property
    def payload_bytes_max(self) -> int:
        """The most bytes of a message that the server takes, with its headers."""
        return int(self._client.max_payload)

    async def open(self, urls: Sequence[str], seconds: float, login: Mapping[str, Any]) -> None:
        """Connect to one of the servers, with some options of the client to log in."""
        await self._client.connect(
            list(urls),
            name="forebay",
            error_cb=self._report,
            allow_reconnect=False,  # The drain decides when to connect again.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=seconds,
            pending_size=0,
            **login,
        )
        if any(url.startswith("tls:") for url in urls) and not _is_encrypted(self._client):
            raise ConnectionError("the server does not use TLS")  # The client accepts that.
        self.problem = None  # Of the servers that did not answer.
        self._inbox = self._client.new_inbox()
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._receive)

    async def close(self) -> None:
        """Close the connection, at once if the server does not read."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self._subscription is not None:
                    await (
                        self._subscription.unsubscribe()
                    )  # Ends its task, which closing may forget.
                await self._client.close()
        except Exception as error:
            self.problem = error
        finally:
            _abort(self._client)

    async def call(self, requests: Sequence[_Request], seconds: float) -> list[Any]:
        """Send some requests at once and return the answer of each, or the error."""
        if not requests:
            return []
        loop = asyncio.get_running_loop()
        tokens = [str(next(self._numbers)) for _ in requests]
        futures = [loop.create_future() for _ in requests]
        answers = asyncio.gather(*futures, return_exceptions=True)
        deadline = loop.time() + seconds
        try:
            for token, future, (subject, payload, headers) in zip(
                tokens, futures, requests, strict=True
            ):
                self._waiting[token] = (subject, future)
                try:
                    await self._client.publish(
                        subject, payload, reply=f"{self._inbox}.{token}", headers=headers
                    )
                except self._errors.Error as error:
                    self._fail(error, [future])
            while not answers.done():
                rest = deadline - loop.time()
                await asyncio.wait({answers}, timeout=min(max(rest, 0), _LOOK_SECONDS))
                if not self._client.is_connected:
                    last = self.problem or self._client.last_error
                    self._fail(ConnectionError(f"the connection was lost: {last}"), futures)
                elif rest <= 0:
                    self._fail(ConnectionError(f"no answer within {seconds:g} s"), futures)
            return await answers
        finally:
            for token, future in zip(tokens, futures, strict=True):
                future.cancel()
                self._waiting.pop(token, None)

    def _fail(self, error: Exception, futures: Sequence[asyncio.Future[Any]]) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(error)

    async def _receive(self, message: Any) -> None:
        found = self._waiting.get(message.subject.rpartition(".")[2])
        if found is not None and not found[1].done():
            found[1].set_result(_Found(found[0], message.data, message.headers))

    async def _report(self, error: Exception) -> None:
        """Keep an error of the client.

        If it is about a subject that is forbidden, end its requests.
        """
        self.problem = error
        text = str(error)
        if "permissions violation" in text.lower():
            refused = [
                future
                for subject, future in self._waiting.values()
                if f'"{subject}"'.lower() in text.lower()
            ]
            if refused:
                self._fail(PermissionError(text), refused)


class _Found:
    """An answer of the server."""

    __slots__ = ("data", "headers", "sent_to")

    def __init__(self, sent_to: str, data: bytes, headers: dict[str, str] | None) -> None:
        self.sent_to = sent_to
        self.data = data
        self.headers = headers


def _status(found: _Found) -> str | None:
    """Return the code of an answer without a message: 404 for none found, 503 if no service
    answers.
    """
    return found.headers.get("Status") if found.headers and not found.data else None


def _number(sent: Sent) -> int:
    assert sent.proof is not None
    return int(sent.proof.rpartition(":")[2])


def _message_id(headers: str) -> str | None:
    """Return the message id from the headers of a stored message."""
    for line in base64.b64decode(headers).decode(errors="replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name == _MESSAGE_ID:
            return value.strip()
    return None


def _is_lost(number: int, info: Mapping[str, Any]) -> bool | None:
    """Return whether a message that a stream does not have is lost: False if so, None if it may
    have been removed.

    The result is that of ``Sink.seen``.
    """
    state, config = info["state"], info["config"]
    if number > state["last_seq"]:
        return False  # Numbers only grow, unless the stream was rolled back or made again.
    if number in (state.get("lost") or {}).get("msgs", ()):
        return False
    if number < state["first_seq"]:
        return None  # trimmed, expired, purged or consumed
    keeps_all = (
        config.get("retention", "limits") == "limits"
        and config.get("deny_delete")
        and config.get("deny_purge")
        and config.get("max_msgs_per_subject", -1) <= 0
        and not config.get("allow_msg_ttl")
        and not config.get("allow_rollup_hdrs")
    )
    return False if keeps_all else None


def _writers(client: Any) -> list[asyncio.StreamWriter]:
    """Return what a client writes to: with TLS, the encrypted stream first.

    It has no public name for them.
    """
    transport = getattr(client, "_transport", None)
    found = [getattr(transport, name, None) for name in ("_io_writer", "_bare_io_writer")]
    return [writer for writer in found if writer is not None]


def _is_encrypted(client: Any) -> bool:
    return any(writer.get_extra_info("ssl_object") is not None for writer in _writers(client))


def _abort(client: Any) -> None:
    """End the TCP connection of a client at once.

    It has no other way when the server does not read.
    """
    for writer in _writers(client):
        writer.transport.abort()

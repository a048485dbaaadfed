"""Queues of Amazon SQS, and of servers that speak its protocol.

Needs the extra ``sqs``. SQS tells no offset that could be read back, so nothing is verified.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from forebay.errors import ConfigError
from forebay.sinks._contract import Accepted, Answer, FromRow, Message, Rejected, Sink
from forebay.sinks._support import (
    call_in_thread,
    checked_integer,
    checked_name,
    checked_number,
    checked_url,
    library,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What one request takes. A larger message is sent alone, and the server decides about it.
_ENTRIES_MAX: Final = 10
_REQUEST_BYTES_MAX: Final = 262_144

#: What ids of groups and of repetitions may contain.
_ID: Final = re.compile(r"[!-~]{1,128}")

#: The region in the address of a queue at AWS.
_REGION: Final = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")

#: Parts of codes and reasons that mean the message, whatever the state of the server.
_OF_THE_MESSAGE: Final = ("BatchRequestTooLong", "InvalidMessageContents", "must be shorter than")

#: Parts of codes that an operator can mend, although they count as faults of the sender.
_OF_THE_ACCOUNT: Final = (
    "AccessDenied", "KMS", "Kms", "OverLimit", "QueueDoesNotExist", "NonExistentQueue", "Throttl",
)  # fmt: skip


class Sqs(Sink):
    """Sends each message to a queue.

    The proof is the sequence number of a FIFO queue, else the message id that SQS gave.

    The body is the arguments of the job as JSON. SQS takes ten attributes, so there are three:
    ``forebay-id``, ``forebay-kind``, and ``forebay-headers``, a JSON object with the headers of the
    job, ``forebay-enqueued-at`` and the like.

    A queue whose name ends with ``.fifo`` keeps the order of messages with an ordering key, their
    MessageGroupId, and drops repetitions within five minutes by MessageDeduplicationId, the id. Ids
    of other than 1 to 128 printable ASCII characters are replaced by their SHA-256.

    Credentials are found as boto3 finds them: environment, profile, container or machine role.

    Args:
        queue_url: the address of the queue.
        region: of the queue; None: as in the address, else as boto3 finds it.
        endpoint_url: another server than that of AWS.
        profile: of the shared configuration of AWS; None: the default.
        requests: how many requests of ten messages run at once, 1 to 50. With more than one, a
            queue without ``.fifo`` gets the messages of a call in any order.
        connect_timeout: seconds to connect, 0.1 to 60.
        read_timeout: seconds to wait for an answer, 0.1 to 300.

    Raises:
        ConfigError: an argument is refused, or the library boto3 is missing.
    """

    type: ClassVar[str] = "sqs"
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "queue_url": FromRow.ADDRESS,
        "region": FromRow.PLAIN,
        "endpoint_url": FromRow.ADDRESS,
        "requests": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
        "read_timeout": FromRow.PLAIN,
    }

    def __init__(
        self,
        queue_url: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        requests: int = 8,
        connect_timeout: float = 5.0,
        read_timeout: float = 20.0,
    ) -> None:
        self._boto3 = library("boto3", "sqs")
        self._config = library("botocore.config", "sqs").Config
        self._errors = library("botocore.exceptions", "sqs")
        self._queue_url = self._checked_address("queue_url", queue_url)
        parts = urlsplit(self._queue_url)
        self._host = parts.netloc
        self._name = parts.path.rpartition("/")[2]
        if not self._name:
            raise ConfigError(f"sink {self.type}: queue_url", "names no queue")
        self._is_fifo = self._name.endswith(".fifo")
        found = _REGION.fullmatch(parts.hostname or "")
        if region is not None:
            checked_name(self.type, "region", region)
        self._region = region or (found[1] if found else None)
        self._endpoint_url = (
            None if endpoint_url is None else self._checked_address("endpoint_url", endpoint_url)
        )
        self._profile = None if profile is None else checked_name(self.type, "profile", profile)
        self._requests = checked_integer(self.type, "requests", requests, least=1, most=50)
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        self._read_seconds = checked_number(
            self.type, "read_timeout", read_timeout, least=0.1, most=300
        )
        self._client: Any = None
        self._slots = asyncio.Semaphore(requests)

    def _checked_address(self, field: str, url: object) -> str:
        try:
            address = checked_url(self.type, url, "https", "http")
        except ConfigError as error:
            raise ConfigError(f"sink {self.type}: {field}", error.problem) from None
        if "@" in urlsplit(address).netloc:
            raise ConfigError(
                f"sink {self.type}: {field}",
                "contains a user",
                hint="Give credentials to boto3 by its environment variables, a profile or a role.",
            )
        return address

    @property
    def place(self) -> str:
        """The name of the queue, and the server."""
        return f"{self._name} at {self._host}"

    async def open(self) -> None:
        """Connect, and check that the queue exists."""
        await self.close()
        self._slots = asyncio.Semaphore(self._requests)
        self._client = await self._call(self._connect)

    def _connect(self) -> Any:
        session = self._boto3.session.Session(profile_name=self._profile)
        client = session.client(
            "sqs",
            region_name=self._region,
            endpoint_url=self._endpoint_url,
            config=self._config(
                connect_timeout=self._connect_seconds,
                read_timeout=self._read_seconds,
                max_pool_connections=self._requests,
                # The drain decides when to try again.
                retries={"total_max_attempts": 1, "mode": "standard"},
            ),
        )
        try:
            client.get_queue_attributes(QueueUrl=self._queue_url, AttributeNames=["QueueArn"])
        except self._errors.ClientError as error:
            # Who may only send may not ask.
            if "AccessDenied" not in _code(error):
                client.close()
                raise
        except BaseException:
            client.close()
            raise
        return client

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _call(self, function: Any) -> Any:
        try:
            return await call_in_thread(function, name="forebay-sqs")
        except (self._errors.BotoCoreError, self._errors.ClientError, OSError) as error:
            raise self._unavailable(str(error)) from error

    # --- messages ---

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Send the messages, ten in a request, several requests at once."""
        if self._client is None:
            await self.open()
        client, slots = self._client, self._slots
        answers: list[Answer] = [self._unavailable("no answer")] * len(messages)

        async def request(entries: list[dict[str, Any]]) -> None:
            async with slots:
                found = await self._request(client, entries)
            for entry, answer in zip(entries, found, strict=True):
                answers[int(entry["Id"])] = answer

        try:
            await asyncio.gather(*[request(entries) for entries in self._split(messages)])
        except BaseException:
            # A request that is under way keeps its thread; no later call gets its connection.
            if self._client is client:
                await self.close()
            raise
        return answers

    async def _request(self, client: Any, entries: list[dict[str, Any]]) -> list[Answer]:
        """Send one request; return the answer about each entry."""
        try:
            result = await call_in_thread(
                partial(client.send_message_batch, QueueUrl=self._queue_url, Entries=entries),
                name="forebay-sqs",
            )
        except self._errors.ClientError as error:
            if not any(part in str(error) for part in _OF_THE_MESSAGE):
                return [self._unavailable(str(error))] * len(entries)
            if len(entries) == 1:
                return [Rejected(str(error))]
            # Which of them it means, the server does not say.
            return [(await self._request(client, [entry]))[0] for entry in entries]
        except (self._errors.BotoCoreError, OSError) as error:
            return [self._unavailable(str(error))] * len(entries)
        answers: dict[str, Answer] = {
            one["Id"]: Accepted(one.get("SequenceNumber") or one.get("MessageId"))
            for one in result.get("Successful", ())
        }
        for one in result.get("Failed", ()):
            reason = f"{one['Code']}: {one.get('Message', '')}"
            is_ours = one["SenderFault"] and not any(part in reason for part in _OF_THE_ACCOUNT)
            answers[one["Id"]] = Rejected(reason) if is_ours else self._unavailable(reason)
        silent = self._unavailable("the answer leaves this message out")
        return [answers.get(entry["Id"], silent) for entry in entries]

    def _split(self, messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
        entries: list[dict[str, Any]] = []
        size = 0
        for place, message in enumerate(messages):
            entry = self._entry(str(place), message)
            bytes_ = _size(entry)
            if entries and (len(entries) == _ENTRIES_MAX or size + bytes_ > _REQUEST_BYTES_MAX):
                yield entries
                entries, size = [], 0
            entries.append(entry)
            size += bytes_
        if entries:
            yield entries

    def _entry(self, number: str, message: Message) -> dict[str, Any]:
        attributes = {
            "forebay-id": message.id,
            "forebay-kind": message.kind,
            "forebay-headers": json.dumps(
                message.metadata()
            ),  # ASCII: SQS takes the characters of XML
        }
        entry: dict[str, Any] = {
            "Id": number,
            "MessageBody": _body(message.body),
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value}
                for name, value in attributes.items()
            },
        }
        if self._is_fifo:
            entry["MessageGroupId"] = _fitting(message.ordering_key or message.id)
            entry["MessageDeduplicationId"] = _fitting(message.id)
        return entry


def _body(body: bytes) -> str:
    # The only two characters of JSON texts that SQS refuses. They are inside strings, where an
    # escape means the same.
    return body.decode().replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")


def _size(entry: dict[str, Any]) -> int:
    """Return the bytes of an entry as SQS counts them: the body, and names, types and values of
    attributes.
    """
    attributes = entry["MessageAttributes"].items()
    return len(entry["MessageBody"].encode()) + sum(
        len(name) + len("String") + len(value["StringValue"].encode()) for name, value in attributes
    )


def _fitting(text: str) -> str:
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))

"""``Sender``: the calls of one sink, for drains and endpoints alike."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from forebay.errors import SinkUnavailable
from forebay.model.spans import sending
from forebay.sinks import Message, message_id
from forebay.sinks.answer_checks import check_answers, check_count

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from forebay.model import Job
    from forebay.sinks import Answer, Sent, Sink

#: How long a sink may take to close.
_CLOSE_SECONDS: Final = 5.0


class Sender:
    """Calls a sink.

    Owns the sink's connection in this process. It guarantees that ``send`` is called on an open
    sink, that a call ends in time with as many answers as it had messages, or with one error for
    all of them, and that after a call that failed or was interrupted the sink is opened again:
    answers of that call may still arrive.

    A crash leaves messages whose fate is unknown. They come back with their leases and are sent
    again under the same ids.

    Args:
        name: of the drain or endpoint, for logs.
        sink: where to send.
        log: of drains or of endpoints.
        call_seconds: how long a call may take; None: as long as the sink says.

    Attributes:
        sink: where it sends.
        calls: how many calls are under way, as far as the caller counts them.
    """

    def __init__(
        self, name: str, sink: Sink, log: logging.Logger, *, call_seconds: float | None = None
    ) -> None:
        self.sink = sink
        self.calls = 0
        self._name = name
        self._log = log
        self._call_seconds = sink.call_seconds if call_seconds is None else call_seconds
        self._is_open = False
        self._opening = asyncio.Lock()

    async def send(self, messages: Sequence[Message]) -> Sequence[Answer] | SinkUnavailable:
        """Send messages in one call; return an answer for each, or why the fate of all is
        unknown: close the sink then.
        """
        try:
            async with asyncio.timeout(self._call_seconds):
                if not self._is_open:
                    await self._open()
                with sending(self.sink, messages):
                    answers = await self.sink.send(messages)
            check_count("send", answers, messages)
            check_answers(answers)
        except BaseException as error:
            return self._failed(error)
        return answers

    async def seen(self, sent: Sequence[Sent]) -> Sequence[bool | None] | SinkUnavailable:
        """Read messages back; see ``Sink.seen``. An error is returned: close the sink then."""
        try:
            async with asyncio.timeout(self._call_seconds):
                found = await self.sink.seen(sent)
            check_count("seen", found, sent)
        except BaseException as error:
            return self._failed(error)
        return found

    async def close(self) -> None:
        """Close the sink. The next call opens it again."""
        self._is_open = False
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.sink.close()
        except Exception as trouble:
            self._log.debug("%s: closing the sink: %s", self._name, trouble)

    async def _open(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self.sink.open()
                self._is_open = True

    def _failed(self, error: BaseException) -> SinkUnavailable:
        """Let the next call open the sink; return why this one failed. A cancellation is raised."""
        self._is_open = False
        if isinstance(error, SinkUnavailable):
            return error
        if isinstance(error, TimeoutError):
            return SinkUnavailable(f"{self.sink.place}: no answer within {self._call_seconds:g} s")
        if not isinstance(error, Exception):
            raise error
        # A defect of the sink. The messages are not at fault as far as anybody knows.
        self._log.error("%s: %s", self._name, error, exc_info=error)
        return SinkUnavailable(f"{self.sink.place}: {type(error).__name__}: {error}")


class Load:
    """The messages of one call: bounded in number and in bytes of bodies, except for a single
    larger message.

    Args:
        most: messages.
        bytes_max: bytes of their bodies.
    """

    def __init__(self, most: int, bytes_max: int) -> None:
        self.messages: list[Message] = []
        self._most = most
        self._left = bytes_max

    def add(self, message: Message) -> bool:
        """Add a message; return whether it fits."""
        self._left -= len(message.body)
        if self.messages and (self._left < 0 or len(self.messages) >= self._most):
            return False
        self.messages.append(message)
        return True


def loads_of(messages: list[Message], most: int, bytes_max: int) -> Iterator[list[Message]]:
    """Yield messages, at least one, in the loads of calls, in their order."""
    if len(messages) <= most and sum([len(message.body) for message in messages]) <= bytes_max:
        yield messages
        return
    load = Load(most, bytes_max)
    for message in messages:
        if not load.add(message):
            yield load.messages
            load = Load(most, bytes_max)
            load.add(message)
    yield load.messages


def message_of(
    job: Job,
    name: str,
    body: bytes,
    headers: dict[str, str],
    ordering_key: str | None,
    *,
    event: tuple[int, datetime] | None = None,
    url_suffix: str | None = None,
    timeout: float | None = None,
) -> Message:
    """Return the message that a job is sent as.

    Args:
        job: the job.
        name: of the consumer group or endpoint: the same job has another id for each.
        body: what is sent.
        headers: those of the message.
        ordering_key: that of the message; None: it has no order.
        event: id and time of publication of the event that is sent; None: the job itself is.
        url_suffix: a path below the address of the endpoint; None: none.
        timeout: seconds for the request; None: those of the endpoint.
    """
    number, at = event or (job.job_id, job.enqueued_at)
    return Message(
        id=message_id(number, at, name),
        job_id=job.job_id,
        kind=job.kind,
        queue=job.queue,
        body=body,
        headers=headers,
        ordering_key=ordering_key,
        correlation_id=job.correlation_id,
        tag=job.tag,
        priority=job.priority,
        enqueued_at=at,
        expires_at=job.expires_at,
        attempt=job.attempt,
        url_suffix=url_suffix,
        timeout=timeout,
    )

"""``EndpointCalls``: which messages of an endpoint are sent together, and when none is sent."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from forebay._dataclass import dataclass
from forebay.errors import SinkUnavailable
from forebay.model.text import logger
from forebay.sending._sender import Load, Sender
from forebay.sinks import Accepted, EndpointGone, Refused, Rejected, TryLater

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from datetime import datetime

    from forebay.sending._reports import Counters, Reports
    from forebay.sinks import Answer, Message, Sink

log = logger("forebay.endpoints")

#: The most calls at once of a sink that sends several messages together.
_CALLS_MAX: Final = 4

#: The longest pause for which an endpoint can ask. A longer one delays only the message that was
#: refused.
PAUSE_SECONDS_MAX: Final = 3600.0

#: After the breaker opened, deliveries that were claimed before still arrive for about this long. A
#: probe comes later.
_LATE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class NotSent:
    """The message was not sent, since its endpoint is to be left alone now. It uses no attempt.

    Attributes:
        reason: for logs.
    """

    reason: str


SendResult: TypeAlias = "Answer | NotSent"


class EndpointCalls:
    """The calls of one endpoint in this process.

    Owns the sender, the messages that wait for a call, and the calls. It guarantees that each
    message gets one answer, that what a call found is counted once, whether or not the caller still
    waits, and that nothing is sent between the failure that should open the breaker and the answer
    of the database to its report. For one event loop.

    A sink that sends each message by itself is called once for each; another one gets the messages
    that came during its last call.

    After a crash the messages in hand come back with their leases.

    Args:
        endpoint_id: of the endpoint.
        name: of the endpoint, for logs.
        sink: where to send.
        reports: where to count.
        threshold: failures in a row that open the breaker.
        clock: a monotonic clock in seconds.
        wall: the time as seconds since 1970, for latencies.
    """

    def __init__(
        self,
        endpoint_id: int,
        name: str,
        sink: Sink,
        reports: Reports,
        *,
        threshold: int,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.threshold = threshold
        #: Whether an answer that the endpoint wants no messages any more ends it.
        self.ends_on_gone = True
        self._endpoint_id = endpoint_id
        self._reports = reports
        self._clock = clock
        self._wall = wall
        self._sender = self._sender_of(sink)
        self._waiting: deque[tuple[Message, asyncio.Future[SendResult]]] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        #: Failures in a row that this process saw.
        self._failures = 0
        #: Whether a failure was seen since the last answer of the endpoint.
        self._is_failing = False
        #: No call begins until the database answered a report.
        self._is_held = False
        self._opened_at: datetime | None = None
        self._quiet_until = 0.0

    @property
    def waiting(self) -> int:
        """How many messages wait for a call."""
        return len(self._waiting)

    def refusal_of(self, message: Message) -> str | None:
        """Return why a message that has a suffix or a timeout is never sent; None: it is."""
        return self._sender.sink.refusal_of(message)

    def send(self, message: Message) -> asyncio.Future[SendResult]:
        """Send a message; the future gets the answer.

        If it is cancelled before the call, the message is not sent.
        """
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if self._clock() < self._quiet_until:
            future.set_result(NotSent("the endpoint is left alone now"))
            return future
        self._waiting.append((message, future))
        self._pump()
        return future

    def replace(self, sink: Sink) -> None:
        """Use another sink from the next call on."""
        before, self._sender = self._sender, self._sender_of(sink)
        if not before.calls:
            self._start(before.close())

    def begin_with(self, opened_at: datetime | None) -> None:
        """Take the state from before the first message."""
        self._opened_at = opened_at

    def set_state(self, opened_at: datetime | None, *, is_newest: bool = True) -> None:
        """Take the answer of the database to a report.

        Args:
            opened_at: since when the breaker is open; None: it is closed.
            is_newest: whether nothing that changes the state was counted since that report.
        """
        if opened_at is not None:
            if opened_at != self._opened_at:
                self._quiet_until = max(self._quiet_until, self._clock() + _LATE_SECONDS)
            self._return_waiting()
        elif self._opened_at is not None:
            self._quiet_until = 0.0
        self._opened_at = opened_at
        if is_newest:
            self._failures = 0
            self._is_held = False
            self._pump()

    def be_quiet(self, seconds: float) -> None:
        """Return the messages that wait for a call, and those that come within this time: they
        were claimed before the limits of the endpoint changed.
        """
        self._quiet_until = max(self._quiet_until, self._clock() + seconds)
        self._return_waiting()

    def _return_waiting(self) -> None:
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(NotSent("the endpoint is left alone now"))

    async def close(self) -> None:
        """End the calls, return what waits, and close the sink."""
        self.be_quiet(math.inf)
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._sender.close()

    # --- calls ---

    def _pump(self) -> None:
        while self._waiting and not self._is_held and self._may_call():
            messages, futures = self._next_call()
            if messages:
                self._sender.calls += 1
                self._start(self._call(self._sender, messages, futures))

    def _start(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _may_call(self) -> bool:
        sender = self._sender
        if sender.sink.is_single or not sender.calls:
            return True
        # Another call for a full load only: else the messages that come meanwhile make the next
        # call fuller.
        return sender.calls < _CALLS_MAX and len(self._waiting) >= sender.sink.messages_max

    def _next_call(self) -> tuple[list[Message], list[asyncio.Future[SendResult]]]:
        sink, waiting = self._sender.sink, self._waiting
        load = Load(1 if sink.is_single else sink.messages_max, sink.bytes_max)
        futures: list[asyncio.Future[SendResult]] = []
        while waiting:
            message, future = waiting[0]
            if not future.done():
                if not load.add(message):
                    break
                futures.append(future)
            waiting.popleft()
        return load.messages, futures

    async def _call(
        self, sender: Sender, messages: list[Message], futures: list[asyncio.Future[SendResult]]
    ) -> None:
        answers: Sequence[SendResult] | None = None
        try:
            found = await sender.send(messages)
            if isinstance(found, SinkUnavailable):
                await sender.close()
                found = [found] * len(messages)
            self._count(messages, found)
            answers = found
        finally:
            sender.calls -= 1
            for place, future in enumerate(futures):
                if not future.done():
                    future.set_result(answers[place] if answers else NotSent("the call was ended"))
            if answers is not None:
                self._pump()
                if sender is not self._sender and not sender.calls:
                    await sender.close()

    def _sender_of(self, sink: Sink) -> Sender:
        return Sender(f"endpoint {self.name}", sink, log)

    def _count(self, messages: Sequence[Message], answers: Sequence[Answer]) -> None:
        """Count the answers, and report at once what changes the state of the endpoint."""
        counters = self._reports.of(self._endpoint_id)
        now = self._wall()
        changes = False
        for message, answer in zip(messages, answers, strict=True):
            if isinstance(answer, Accepted):
                counters.accept(now - message.enqueued_at.timestamp())
            else:
                changes = self._count_failure(counters, answer) or changes
                if self._failures:
                    continue
            if self._is_failing:
                changes = True
            self._is_failing = False
            self._failures = 0
        if changes:
            self._reports.hurry(self._endpoint_id)

    def _count_failure(self, counters: Counters, answer: Answer) -> bool:
        """Count what was not accepted; return whether it changes the state of the endpoint."""
        if isinstance(answer, TryLater) and answer.throttles:
            seconds = min(answer.after or 0.0, PAUSE_SECONDS_MAX)
            counters.throttle(answer.reason, seconds)
            self.be_quiet(min(seconds, _LATE_SECONDS))
            self._failures = 0
            return True
        if isinstance(answer, Rejected | EndpointGone):
            is_gone = isinstance(answer, EndpointGone) and self.ends_on_gone
            counters.reject(answer.reason, gone=is_gone)
            if is_gone:
                self.be_quiet(_LATE_SECONDS)
            self._failures = 0
            return is_gone
        if isinstance(answer, Refused):
            counters.refuse(f"refused by a deliverer: {answer}", self.threshold)
            self._failures = max(self._failures, self.threshold - 1)
        else:
            counters.fail(answer.reason if isinstance(answer, TryLater) else str(answer))
        self._failures += 1
        self._is_failing = True
        if self._failures >= self.threshold or self._opened_at is not None:
            self._is_held = True
        return True

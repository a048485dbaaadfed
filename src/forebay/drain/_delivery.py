"""Delivery of one batch: send, verify, and decide how each job ends.

Invariant "sent means accepted": a job is done only after the sink accepted its message, and, with ``verify``, after a later read
found it. Invariant "an outage uses no attempt": while the sink is unavailable, jobs are released as if they had not started.
After a crash at any point the jobs are sent again under the same ids.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.errors import SinkUnavailable
from forebay.model import Dead, Retry, Snooze
from forebay.model.outcome import Endings, Release
from forebay.model.spans import sending
from forebay.model.text import logger
from forebay.policy.breaker import Breaker
from forebay.sinks import (
    Accepted,
    EndpointGone,
    Message,
    Rejected,
    Sent,
    Sink,
    TryLater,
    message_id,
)
from forebay.sinks.answer_checks import check_answers, check_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from forebay.model import Job, Outcome
    from forebay.sinks import Answer

log = logger("forebay.drain")

#: The pause after the first failed call, and the longest one.
_PAUSE_SECONDS: Final = 0.25
_PAUSE_SECONDS_MAX: Final = 15.0

#: How long a message waits that the sink cannot take now while it takes others, as one for a missing topic.
_SNOOZE_SECONDS: Final = 5.0

#: How much longer than the pause a released message waits: the next trial is another message, if there is one. A message that
#: can never be sent would else be each trial.
_BEHIND_SECONDS: Final = 0.5

#: A drain that could have made its trial for this long has no message. It counts as ready.
_IDLE_SECONDS: Final = 5.0

#: How often a message that was accepted and is missing is sent again before the sink counts as unavailable.
_LOSSES_MAX: Final = 5

#: How long a sink may take to close.
_CLOSE_SECONDS: Final = 5.0


class Delivery:
    """Sends the messages of a drain in this process.

    Owns the sink and whether it can be used. It guarantees that ``send`` is called only on an open sink, that a failed call closes
    it for a growing time, and that then one message alone is the trial.

    A crash loses only the counters of calls that were not settled.

    Args:
        name: of the drain.
        sink: where to send.
        batch_size: the most messages in a call.
        batch_bytes: the most bytes of bodies in a call.
        call_seconds: how long a call may take.
        verify_seconds: the time between sending and reading back; None: nothing is read back.
        keeps_proofs: whether the proof of a message is the result of its job.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        *,
        batch_size: int,
        batch_bytes: int,
        call_seconds: float,
        verify_seconds: float | None,
        keeps_proofs: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._sink = sink
        self._batch_size = batch_size
        self._batch_bytes = batch_bytes
        self._call_seconds = call_seconds
        self._verify_seconds = verify_seconds
        self._keeps_proofs = keeps_proofs
        self._clock = clock
        self._breaker = Breaker(
            clock, failures=1, seconds=_PAUSE_SECONDS, seconds_max=_PAUSE_SECONDS_MAX
        )
        self._opening = asyncio.Lock()
        self._is_open = False
        self._failed_since: float | None = None
        self._problem: str | None = None
        #: What became of messages in this process: accepted, duplicate, lost, rejected, refused, unavailable.
        self.counts: Counter[str] = Counter()

    # --- for the claims of the worker ---

    def pause_seconds(self) -> float:
        """Return how long to claim nothing; 0: jobs may be claimed."""
        return self._breaker.wait_seconds

    def rows_max(self) -> int | None:
        """Return how many jobs may be in hand: one for a trial; None: any number."""
        return None if self._breaker.is_closed else 1

    def problem(self) -> str | None:
        """Return why no message is sent; None if messages are sent, or would be if there were any."""
        if self._failed_since is None or self._breaker.unused_seconds > _IDLE_SECONDS:
            return None
        seconds = self._clock() - self._failed_since
        return f"drain {self._name}: the sink is unavailable for {seconds:.0f} s"

    # --- the handler ---

    async def deliver(self, jobs: Sequence[Job]) -> Endings:
        """Send the messages of some jobs; return how each job ends."""
        endings: list[Any] = []
        counts: Counter[str] = Counter()
        for call in self._calls([_message(job) for job in jobs]):
            if self._breaker.allows():
                answers = await self._send_and_verify(call, counts)
            else:
                answers = [SinkUnavailable("waits for the sink")] * len(call)
            endings += [
                self._ending(answer, message) for answer, message in zip(answers, call, strict=True)
            ]
            counts.update(_name(answer) for answer in answers)
        self.counts += counts
        durable = [
            [name, None, None, count] for name, count in counts.items() if name != "unavailable"
        ]
        return Endings(
            endings,
            counters={"mirror": f"drain.{self._name}", "counts": durable} if durable else None,
        )

    def _calls(self, messages: list[Message]) -> Iterator[list[Message]]:
        call: list[Message] = []
        size = 0
        for message in messages:
            full = len(call) >= self._batch_size or size + len(message.body) > self._batch_bytes
            if call and full:
                yield call
                call, size = [], 0
            call.append(message)
            size += len(message.body)
        if call:
            yield call

    async def _send_and_verify(
        self, messages: list[Message], counts: Counter[str]
    ) -> Sequence[Answer]:
        answers = list(await self._send(messages))
        if self._verify_seconds is None:
            return answers
        places = [place for place, one in enumerate(answers) if isinstance(one, Accepted)]
        for _ in range(_LOSSES_MAX):
            missing = await self._missing(messages, answers, places)
            if not missing:
                return answers
            counts["lost"] += len(missing)
            log.warning(
                "drain %s: %s accepted %d messages and does not have them; sending them again",
                self._name, self._sink.place, len(missing),
            )  # fmt: skip
            for place in missing:
                messages[place] = messages[place].after_loss()
            again = await self._send([messages[place] for place in missing])
            for place, answer in zip(missing, again, strict=True):
                answers[place] = answer
            places = [place for place in missing if isinstance(answers[place], Accepted)]
        missing = await self._missing(messages, answers, places)
        if missing:
            problem = f"accepts messages and does not keep them, {_LOSSES_MAX + 1} times in a row"
            unavailable = await self._fail(SinkUnavailable(f"{self._sink.place} {problem}"))
            for place in missing:
                answers[place] = unavailable
        return answers

    async def _missing(
        self, messages: list[Message], answers: list[Answer], places: list[int]
    ) -> list[int]:
        """Return the places of accepted messages that the far side lost; answers that cannot be verified now become unavailable."""
        if not places:
            return []
        assert self._verify_seconds is not None
        await asyncio.sleep(self._verify_seconds)
        sent = []
        for place in places:
            answer = answers[place]
            assert isinstance(answer, Accepted)
            sent.append(Sent(messages[place], answer.proof))
        try:
            async with asyncio.timeout(self._call_seconds):
                found = await self._sink.seen(sent)
            check_count("seen", found, sent)
        except Exception as error:
            unavailable = await self._fail(error)
            for place in places:
                answers[place] = unavailable
            return []
        return [place for place, is_there in zip(places, found, strict=True) if is_there is False]

    async def _send(self, messages: list[Message]) -> Sequence[Answer]:
        try:
            async with asyncio.timeout(self._call_seconds):
                await self._open()
                with sending(self._sink, messages):
                    answers = await self._sink.send(messages)
            check_count("send", answers, messages)
            check_answers(answers)
        except asyncio.CancelledError:
            self._is_open = False  # Answers of the interrupted call may still arrive.
            raise
        except Exception as error:
            return [await self._fail(error)] * len(messages)
        unavailable = next((one for one in answers if isinstance(one, SinkUnavailable)), None)
        if unavailable is None:
            self._succeed()
        elif all(isinstance(one, SinkUnavailable) for one in answers):
            await self._fail(unavailable)
        else:
            self._succeed()
            if str(unavailable) != self._problem:
                log.warning("drain %s: some messages wait: %s", self._name, unavailable)
            self._problem = str(unavailable)
        return answers

    async def _open(self) -> None:
        if not self._is_open:
            async with self._opening:
                if not self._is_open:
                    await self._sink.open()
                    self._is_open = True

    def _succeed(self) -> None:
        self._breaker.succeeded()
        if self._failed_since is not None:
            seconds = self._clock() - self._failed_since
            log.info(
                "drain %s: %s answers again after %.1f s", self._name, self._sink.place, seconds
            )
            self._problem = None
        self._failed_since = None

    async def _fail(self, error: Exception) -> SinkUnavailable:
        """Close the sink for some time; return the answer for messages whose fate is unknown."""
        self._breaker.failed()
        self._is_open = False
        if isinstance(error, TimeoutError):
            error = SinkUnavailable(
                f"{self._sink.place}: no answer within {self._call_seconds:g} s"
            )
        if not isinstance(error, SinkUnavailable):
            # A defect of the sink. The messages are not at fault as far as anybody knows.
            log.error("drain %s: %s", self._name, error, exc_info=error)
            error = SinkUnavailable(f"{self._sink.place}: {type(error).__name__}: {error}")
        if self._failed_since is None:
            self._failed_since = self._clock()
            log.warning("drain %s: %s", self._name, error)
        elif str(error) != self._problem:
            log.info("drain %s: %s", self._name, error)
        self._problem = str(error)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._sink.close()
        except Exception as trouble:
            log.debug("drain %s: closing the sink: %s", self._name, trouble)
        return error

    def _ending(
        self, answer: Answer, message: Message
    ) -> Outcome | Release | dict[str, Any] | None:
        match answer:
            case Accepted(proof):
                return _proof(proof, message) if self._keeps_proofs else None
            case TryLater(reason, after):
                return Retry(after, str(reason))
            case Rejected(reason) | EndpointGone(reason):
                return Dead(str(reason))
            case SinkUnavailable():
                if self._breaker.is_closed:
                    return Snooze(_SNOOZE_SECONDS * random.uniform(0.5, 1.5), reason=str(answer))
                return Release(self._breaker.wait_seconds + _BEHIND_SECONDS)


def _proof(proof: str | None, message: Message) -> dict[str, Any]:
    """Return what an audit needs to know of a message."""
    if message.generation:
        return {"proof": proof, "generation": message.generation}
    return {"proof": proof}


#: The counters of the answers.
_NAMES: Final[dict[type[Any], str]] = {
    Accepted: "accepted",
    TryLater: "refused",
    Rejected: "rejected",
    EndpointGone: "rejected",
    SinkUnavailable: "unavailable",
}


def _name(answer: Answer) -> str:
    name = _NAMES.get(type(answer))
    if name is None:  # of a subclass
        name = next(name for each, name in _NAMES.items() if isinstance(answer, each))
    return name


def _message(job: Job) -> Message:
    return Message(
        id=message_id(job.job_id, job.enqueued_at, job.group),
        job_id=job.job_id,
        kind=job.kind,
        queue=job.queue,
        body=msgspec.json.encode(job.args),
        headers=job.headers,
        ordering_key=job.ordering_key,
        correlation_id=job.correlation_id,
        tag=job.tag,
        priority=job.priority,
        enqueued_at=job.enqueued_at,
        expires_at=job.expires_at,
        attempt=job.attempt,
    )

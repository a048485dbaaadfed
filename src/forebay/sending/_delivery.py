"""Delivery of one batch: send, verify, and decide how each job ends.

Invariant "sent means accepted": a job is done only after the sink accepted its message, and, with
``verify``, after a later read found it. Invariant "an outage uses no attempt": while the sink is
unavailable, jobs are released as if they had not started. After a crash at any point the jobs are
sent again under the same ids.
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
from forebay.model.text import logger
from forebay.policy.breaker import Breaker
from forebay.sending._sender import Sender, loads_of, message_of
from forebay.sinks import Accepted, EndpointGone, Rejected, Sent, TryLater

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.model import Job, Outcome
    from forebay.sinks import Answer, Message, Sink

log = logger("forebay.drain")

#: The pause after the first failed call, and the longest one.
_PAUSE_SECONDS: Final = 0.25
_PAUSE_SECONDS_MAX: Final = 15.0

#: How long a message waits that the sink cannot take now while it takes others, as one for a
#: missing topic.
_SNOOZE_SECONDS: Final = 5.0

#: How much longer than the pause a released message waits: the next trial is another message, if
#: there is one. A message that can never be sent would else be each trial.
_BEHIND_SECONDS: Final = 0.5

#: A drain that could have made its trial for this long has no message. It counts as ready.
_IDLE_SECONDS: Final = 5.0

#: How often a message that was accepted and is missing is sent again before the sink counts as
#: unavailable.
_LOSSES_MAX: Final = 5


class Delivery:
    """Sends the messages of a drain in this process.

    Owns the sink and whether it can be used. It guarantees that ``send`` is called only on an open
    sink, that a failed call closes it for a growing time, and that then one message alone is the
    trial.

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
        self._sender = Sender(f"drain {name}", sink, log, call_seconds=call_seconds)
        self._batch_size = batch_size
        self._batch_bytes = batch_bytes
        self._verify_seconds = verify_seconds
        self._keeps_proofs = keeps_proofs
        self._clock = clock
        self._breaker = Breaker(
            clock, failures=1, seconds=_PAUSE_SECONDS, seconds_max=_PAUSE_SECONDS_MAX
        )
        self._failed_since: float | None = None
        self._problem: str | None = None
        #: What became of messages in this process: accepted, duplicate, lost, rejected, refused,
        #: unavailable.
        self.counts: Counter[str] = Counter()

    # --- for the claims of the worker ---

    def pause_seconds(self) -> float:
        """Return how long to claim nothing; 0: jobs may be claimed."""
        return self._breaker.wait_seconds

    def rows_max(self) -> int | None:
        """Return how many jobs may be in hand: one for a trial; None: any number."""
        return None if self._breaker.is_closed else 1

    def problem(self) -> str | None:
        """Return why no message is sent.

        The result is None if messages are sent, or would be if there were any.
        """
        if self._failed_since is None or self._breaker.unused_seconds > _IDLE_SECONDS:
            return None
        seconds = self._clock() - self._failed_since
        return (
            f"drain {self._name}: the sink is unavailable for {seconds:.0f} s,"
            f" next trial in {self._breaker.wait_seconds:.0f} s: {self._problem}"
        )

    # --- the handler ---

    async def deliver(self, jobs: Sequence[Job]) -> Endings:
        """Send the messages of some jobs; return how each job ends."""
        endings: list[Any] = []
        counts: Counter[str] = Counter()
        body = msgspec.json.encode
        messages = [
            message_of(job, job.group, body(job.args), job.headers, job.ordering_key)
            for job in jobs
        ]
        for call in loads_of(messages, self._batch_size, self._batch_bytes):
            if self._breaker.allows():
                answers = await self._send_and_verify(call, counts)
            else:
                answers = [SinkUnavailable("waits for the sink")] * len(call)
            endings += [
                self._ending(answer, message) for answer, message in zip(answers, call, strict=True)
            ]
            for answer, count in Counter(map(type, answers)).items():
                counts[_name(answer)] += count
        self.counts += counts
        durable = [
            [name, None, None, count] for name, count in counts.items() if name != "unavailable"
        ]
        return Endings(
            endings,
            counters={"mirror": f"drain.{self._name}", "counts": durable} if durable else None,
        )

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
                self._name, self._sender.sink.place, len(missing),
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
            unavailable = SinkUnavailable(f"{self._sender.sink.place} {problem}")
            await self._fail(unavailable)
            for place in missing:
                answers[place] = unavailable
        return answers

    async def _missing(
        self, messages: list[Message], answers: list[Answer], places: list[int]
    ) -> list[int]:
        """Return the places of accepted messages that the far side lost.

        Answers that cannot be verified now become unavailable.
        """
        if not places:
            return []
        assert self._verify_seconds is not None
        await asyncio.sleep(self._verify_seconds)
        sent = []
        for place in places:
            answer = answers[place]
            assert isinstance(answer, Accepted)
            sent.append(Sent(messages[place], answer.proof))
        found = await self._sender.seen(sent)
        if isinstance(found, SinkUnavailable):
            await self._fail(found)
            for place in places:
                answers[place] = found
            return []
        return [place for place, is_there in zip(places, found, strict=True) if is_there is False]

    async def _send(self, messages: list[Message]) -> Sequence[Answer]:
        answers = await self._sender.send(messages)
        if isinstance(answers, SinkUnavailable):
            await self._fail(answers)
            return [answers] * len(messages)
        unavailable = next((one for one in answers if isinstance(one, SinkUnavailable)), None)
        if unavailable is None:
            self._succeed()
        elif all(isinstance(one, SinkUnavailable) for one in answers):
            await self._fail(unavailable)
        else:
            self._succeed()
            if unavailable.problem != self._problem:
                log.warning("drain %s: some messages wait: %s", self._name, unavailable)
            self._problem = unavailable.problem
        return answers

    def _succeed(self) -> None:
        self._breaker.succeeded()
        if self._failed_since is not None:
            seconds = self._clock() - self._failed_since
            log.info(
                "drain %s: %s answers again after %.1f s",
                self._name,
                self._sender.sink.place,
                seconds,
            )
            self._problem = None
        self._failed_since = None

    async def _fail(self, error: SinkUnavailable) -> None:
        """Close the sink for some time."""
        self._breaker.failed()
        if self._failed_since is None:
            self._failed_since = self._clock()
            log.warning("drain %s: %s", self._name, error)
        elif error.problem != self._problem:
            log.info("drain %s: %s", self._name, error)
        self._problem = error.problem
        await self._sender.close()

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


def _name(answer: type[Any]) -> str:
    return next(name for each, name in _NAMES.items() if issubclass(answer, each))

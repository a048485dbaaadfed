"""The contract of every sink as tests, and a sink that misbehaves, for tests of a drain."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from forebay._dataclass import dataclass
from forebay.errors import ConfigError
from forebay.in_threads import in_thread
from forebay.model.checks import hint_for
from forebay.model.doors import declaring_door
from forebay.sinks import Accepted, Answer, Message, Sent, Sink, SinkUnavailable, message_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

#: Nothing listens there: the discard service has not been installed anywhere for decades.
_UNREACHABLE = "127.0.0.1:9"


@dataclass(frozen=True, slots=True)
class Received:
    """A message as the far side of a sink has it.

    Attributes:
        id: its id.
        kind: its kind.
        body: its body.
        headers: what came with it beside the body.
    """

    id: str
    kind: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class SinkContract:
    """The contract of a sink, as tests for pytest.

    Make a subclass whose name begins with ``Test``, with ``make_sink`` and ``received``; with
    ``lose`` too if the sink can verify. Each test gets a new instance: use an empty far side for
    each.

        class TestMySink(SinkContract):
            def make_sink(self, address=None):
                return MySink(f"mine://{address or server}/{self.name}")

            def received(self):
                return read_all(self.name)

    Attributes:
        has_headers: whether headers of jobs arrive.
        large_bytes: the size of a large body that the far side takes.
        bulk: the number of messages in a large call.
    """

    has_headers: ClassVar[bool] = True
    large_bytes: ClassVar[int] = 200_000
    bulk: ClassVar[int] = 1_000

    def make_sink(self, address: str | None = None) -> Sink:
        """Return a sink to the empty far side of this test; ``address``: host:port where no
        server is. A sink without addresses then leads to a place where it cannot send.
        """
        raise NotImplementedError(address)

    def received(self) -> Sequence[Received]:
        """Return all that the far side of this test has, oldest first."""
        raise NotImplementedError

    def lose(self, sent: Sent) -> None:
        """Make the far side lose a message, without a trace that a consumer removed it."""
        raise NotImplementedError(sent)

    def test_a_message_arrives_whole(self) -> None:
        """Id, kind, body and headers are the same on the far side."""
        message = make_message(
            1, body='{"title":"Wehr \\"Süd\\" \u2192 \U0001f30a"}', headers={"tenant": "7"}
        )
        assert self._send([message]) == [True]
        (found,) = self.received()
        assert (found.id, found.kind, found.body) == (message.id, message.kind, message.body)
        if self.has_headers:
            assert found.headers["tenant"] == "7"
            assert found.headers["forebay-id"] == message.id

    def test_an_empty_call_is_no_error(self) -> None:
        """A call without messages returns no answers."""
        assert self._send([]) == []
        assert not self.received()

    def test_many_arrive_in_order(self) -> None:
        """A large call arrives whole, once, in its order."""
        messages = [make_message(number) for number in range(1, self.bulk + 1)]
        size = min(self.bulk, type(self.make_sink()).messages_max)
        calls = [messages[start : start + size] for start in range(0, self.bulk, size)]
        assert self._send(*calls) == [True] * self.bulk
        assert [found.id for found in self.received()] == [message.id for message in messages]

    def test_a_large_message_arrives(self) -> None:
        """A large body is not cut."""
        message = make_message(1, body='{"text":"%s"}' % ("x" * self.large_bytes))
        assert self._send([message]) == [True]
        assert [found.body for found in self.received()] == [message.body]

    def test_a_repetition_has_the_same_id(self) -> None:
        """A repeated message is accepted; the far side recognises it, or can do so by its id."""
        message = make_message(1)
        assert self._send([message], [message]) == [True, True]
        assert {found.id for found in self.received()} == {message.id}

    def test_a_message_after_a_loss_has_another_id(self) -> None:
        """The next generation of a message is not taken for a repetition."""
        message = make_message(1)
        assert self._send([message], [message.after_loss()]) == [True, True]
        assert [found.id for found in self.received()] == [message.id, message.after_loss().id]

    def test_a_closed_sink_opens_again(self) -> None:
        """A sink may be closed and opened any number of times, and opened while it is open."""

        async def use() -> list[Answer]:
            sink = self.make_sink()
            await sink.close()
            await sink.open()
            await sink.open()
            answers = [*await sink.send([make_message(1)])]
            await sink.close()
            await sink.close()
            await sink.open()
            answers += await sink.send([make_message(2)])
            await sink.close()
            return answers

        assert all(isinstance(answer, Accepted) for answer in asyncio.run(use()))
        assert len(self.received()) == 2

    def test_a_server_that_is_away_is_unavailable(self) -> None:
        """Without a server ``open`` or ``send`` raises ``SinkUnavailable``, without much ado."""

        async def use() -> str:
            sink = self.make_sink(_UNREACHABLE)
            try:
                async with asyncio.timeout(20):
                    await sink.open()
                    answers = await sink.send([make_message(1)])
            except SinkUnavailable as error:
                return str(error)
            finally:
                await sink.close()
            assert isinstance(answers[0], SinkUnavailable), (
                f"make_sink({_UNREACHABLE!r}) must lead to where nothing can be sent: {answers}"
            )
            return str(answers[0])

        assert asyncio.run(use())

    def test_what_was_sent_is_seen(self) -> None:
        """If the sink can verify, what it accepted is seen, and only what was lost is not."""

        async def use() -> tuple[list[bool | None], list[bool | None]]:
            async with _opened(self.make_sink()) as sink:
                messages = [make_message(number) for number in (1, 2, 3)]
                sent = []
                for message, answer in zip(messages, await sink.send(messages), strict=True):
                    assert isinstance(answer, Accepted)
                    sent.append(Sent(message, answer.proof))
                before = list(await sink.seen(sent))
                if not sink.can_verify:
                    return before, before
                await in_thread(self.lose, sent[1])
                return before, list(await sink.seen(sent))

        before, after = asyncio.run(use())
        if type(self.make_sink()).can_verify:
            assert before == [True, True, True]
            assert after == [True, False, True]
        else:
            assert before == [None, None, None]

    def _send(self, *calls: Sequence[Message]) -> list[bool]:
        """Send some calls and return which messages were accepted.

        Another answer fails the test with its text.
        """

        async def use() -> list[bool]:
            results = []
            async with _opened(self.make_sink()) as sink:
                for call in calls:
                    answers = await sink.send(call)
                    assert len(answers) == len(call)
                    others = [answer for answer in answers if not isinstance(answer, Accepted)]
                    assert not others, others[0]
                    results += [True] * len(answers)
            return results

        return asyncio.run(use())


@declaring_door
def make_message(
    number: int, *, body: str | None = None, headers: dict[str, str] | None = None, **more: Any
) -> Message:
    """Return a message as a drain would make it from job ``number``, for tests of a sink."""
    at = datetime(2026, 1, 2, 3, 4, 5, number % 1_000_000, tzinfo=UTC)
    for name in more:
        if name not in Message.__struct_fields__:
            raise ConfigError(
                name, "is not a field of Message", hint=hint_for(name, Message.__struct_fields__)
            )
    return Message(
        id=message_id(number, at, "default"),
        job_id=number,
        kind=more.pop("kind", "order.created"),
        queue="orders",
        body=(body if body is not None else f'{{"n":{number}}}').encode(),
        headers=headers or {},
        enqueued_at=at,
        **more,
    )


@contextlib.asynccontextmanager
async def _opened(sink: Sink) -> AsyncIterator[Sink]:
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


#: What a ``LyingSink`` may do to a call.
Lie = Literal["drop", "late", "twice", "hang", "reset", "refuse", "half"]


class LyingSink(Sink):
    """A sink in front of a real one that misbehaves, for tests of a drain.

    Args:
        sink: the real sink.
        lies: what it does, each to a share of the calls or messages: ``drop`` accepts a message and
            does not send it; ``late`` answers after 0.05 s; ``twice`` sends a message twice;
            ``hang`` sends and does not answer; ``reset`` sends and then raises; ``refuse`` refuses
            a message and sends the others; ``half`` sends the first half of a call and raises.
        seed: of the random choices.

    Attributes:
        done: how often it did each.
        hangs: set it to end the calls that hang.
    """

    type: ClassVar[str] = "lying"

    @declaring_door
    def __init__(self, sink: Sink, lies: dict[Lie, float], *, seed: int = 0) -> None:
        self._sink = sink
        self._lies = dict(lies)
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.can_verify = sink.can_verify  # type: ignore[misc]  # of this object
        self.messages_max, self.bytes_max = sink.messages_max, sink.bytes_max  # type: ignore[misc]
        self.hangs = asyncio.Event()

    @property
    def place(self) -> str:
        """That of the real sink."""
        return self._sink.place

    async def open(self) -> None:
        """Open the real sink."""
        await self._sink.open()

    async def close(self) -> None:
        """Close the real sink."""
        await self._sink.close()

    async def seen(self, sent: Sequence[Sent]) -> Sequence[bool | None]:
        """Read back from the real sink; what was dropped was never there."""
        real = [one for one in sent if one.proof != "dropped"]
        found = iter(await self._sink.seen(real))
        return [False if one.proof == "dropped" else next(found) for one in sent]

    async def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """Send some of the messages, and lie."""
        if self._misbehaves("half"):
            await self._sink.send(messages[: len(messages) // 2])
            raise SinkUnavailable("the connection ended in the middle of the call")
        answers: dict[int, Answer] = {}
        passed: list[int] = []
        for place in range(len(messages)):
            if self._misbehaves("drop"):
                answers[place] = Accepted("dropped")
            elif self._misbehaves("refuse"):
                answers[place] = SinkUnavailable("refused this one")
            else:
                passed.append(place)
        sent = await self._sink.send([messages[place] for place in passed])
        answers.update(zip(passed, sent, strict=True))
        again = [messages[place] for place in passed if self._misbehaves("twice")]
        if again:
            await self._sink.send(again)
        if self._misbehaves("late"):
            await asyncio.sleep(0.05)
        if self._misbehaves("hang"):
            await self.hangs.wait()
        if self._misbehaves("reset"):
            raise SinkUnavailable("the connection was reset before the answer")
        return [answers[place] for place in range(len(messages))]

    def _misbehaves(self, lie: Lie) -> bool:
        does = self._random.random() < self._lies.get(lie, 0.0)
        self.done[lie] += does
        return does

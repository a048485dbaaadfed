"""The calls of a sink, which drains and endpoints share: what a call answers, when the sink is
opened, and what fits.
"""

import asyncio
import contextlib
import logging

import pytest

from forebay.errors import SinkUnavailable
from forebay.sending._sender import Sender, loads_of
from forebay.sinks import Accepted, Sent
from forebay.testing import make_message
from tests.support.drains import ListSink

pytestmark = pytest.mark.anyio

MESSAGES = [make_message(1), make_message(2)]


class Sink(ListSink):
    """Opens and closes visibly; ``fault`` is raised by the next call, or awaited."""

    fault = None
    closed = 0

    async def send(self, messages):
        fault, self.fault = self.fault, None
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            await fault.wait()
        return await super().send(messages)

    seen = send

    async def close(self):
        self.closed += 1


def sender_of(sink, seconds=30.0):
    return Sender("drain orders", sink, logging.getLogger("test"), call_seconds=seconds)


async def test_a_sink_is_opened_once_for_calls_that_begin_together():
    sink = Sink()
    sender = sender_of(sink)
    assert (
        await asyncio.gather(*(sender.send(MESSAGES) for _ in range(3))) == [[Accepted()] * 2] * 3
    )
    assert sink.opened == 1


async def test_after_a_call_that_failed_was_interrupted_or_took_too_long_the_sink_is_opened_again():
    """
    Answers of that call may still arrive on the connection: the next call must not take them for
    its own.
    """
    sink = Sink()
    sender = sender_of(sink, seconds=0.01)
    for opened, fault in enumerate(
        (SinkUnavailable("away"), ValueError("a defect"), asyncio.Event()), 1
    ):
        sink.fault = fault
        assert isinstance(await sender.send(MESSAGES), SinkUnavailable)
        assert sink.opened == opened
    assert await sender.send(MESSAGES) == [Accepted()] * 2
    sink.fault = asyncio.Event()
    call = asyncio.create_task(sender.send(MESSAGES))
    await asyncio.sleep(0)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert await sender.send(MESSAGES) == [Accepted()] * 2
    assert sink.opened == 5


async def test_reading_back_that_fails_is_an_error_and_no_loss():
    """
    As is an answer for fewer messages than were asked for.
    """
    sink = Sink()
    sender = sender_of(sink)
    sent = [Sent(message, None) for message in MESSAGES]
    sink.fault = SinkUnavailable("away")
    assert isinstance(await sender.seen(sent), SinkUnavailable)
    sink.seen = lambda sent: asyncio.sleep(0, [True])
    assert "seen" in str(await sender.seen(sent))


async def test_a_sink_that_cannot_be_closed_is_opened_again():
    sink = Sink()
    sender = sender_of(sink)
    await sender.send(MESSAGES)
    sink.close = lambda: asyncio.sleep(0, 1 / 0)
    await sender.close()
    await sender.send(MESSAGES)
    assert sink.opened == 2


def test_a_load_is_bounded_in_messages_and_bytes_except_for_one_larger_message():
    bodies = ["1234", "1234", "x" * 100, "1234", "12", "1", "1", "1", "1"]
    messages = [make_message(number, body=body) for number, body in enumerate(bodies, 1)]
    found = list(loads_of(messages, 3, 8))
    assert [len(load) for load in found] == [2, 1, 3, 3]
    assert [message for load in found for message in load] == messages

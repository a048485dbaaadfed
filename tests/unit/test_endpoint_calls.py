"""The calls of one endpoint in one process: natural batches, what is counted, and when nothing
is sent.
"""

import asyncio
from datetime import UTC, datetime

import pytest

from forebay.errors import DatabaseUnavailable, SinkUnavailable
from forebay.ops.deliveries import EndpointState
from forebay.sending._endpoint_calls import EndpointCalls, NotSent
from forebay.sending._reports import Counters, Reports
from forebay.sinks import Accepted, EndpointGone, Rejected, TryLater
from forebay.testing import make_message
from tests.support.drains import ListSink
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Slow(ListSink):
    """Each call waits until ``go`` is set."""

    def __init__(self, *args):
        super().__init__(*args)
        self.go = asyncio.Event()
        self.running = 0

    async def send(self, messages):
        self.running += 1
        await self.go.wait()
        return await super().send(messages)


class Far:
    """The database: keeps the reports, and answers that the breaker is open since ``opened_at``."""

    def __init__(self):
        self.reports = []
        self.opened_at = None
        self.is_away = False

    async def __call__(self, reports):
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.reports += reports
        return [EndpointState(each["endpoint_id"], self.opened_at, None, 1) for each in reports]


@pytest.fixture
def far():
    return Far()


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def sender(far, now):
    senders = {}

    def on_state(endpoint_id, state, is_newest):
        senders[endpoint_id].set_state(state and state.opened_at, is_newest=is_newest)

    reports = Reports(far, on_state)

    def make(sink, threshold=10):
        senders[1] = EndpointCalls(
            1, "shop", sink, reports, threshold=threshold, clock=lambda: now[0]
        )
        senders[1].reports = reports
        return senders[1]

    return make


def messages(count):
    return [make_message(number) for number in range(1, count + 1)]


def counters_of(sender):
    return sender.reports.of(1)


async def test_what_comes_during_a_call_is_sent_together(sender):
    sink = Slow()
    sink.messages_max = 4
    one = sender(sink)
    first = one.send(make_message(1))
    rest = [one.send(message) for message in messages(3)]
    sink.go.set()
    assert await first == Accepted()
    assert await asyncio.gather(*rest) == [Accepted()] * 3
    assert [len(call) for call in sink.calls] == [1, 3]


async def test_full_loads_are_sent_beside_a_running_call(sender):
    sink = Slow()
    sink.messages_max = 2
    one = sender(sink)
    sent = [one.send(message) for message in messages(20)]
    await wait_for_async(lambda: sink.running == 4)
    await asyncio.sleep(0)
    assert (sink.running, one.waiting) == (4, 13)  # the first call has one message
    sink.go.set()
    assert set(await asyncio.gather(*sent)) == {Accepted()}
    assert max(len(call) for call in sink.calls) == 2


async def test_a_sink_that_sends_singly_is_called_for_each_message(sender):
    sink = Slow()
    sink.is_single = True
    one = sender(sink)
    sent = [one.send(message) for message in messages(30)]
    await wait_for_async(lambda: sink.running == 30)
    sink.go.set()
    await asyncio.gather(*sent)
    assert [len(call) for call in sink.calls] == [1] * 30


async def test_a_call_is_bounded_in_bytes(sender):
    sink = Slow()
    sink.bytes_max = 25
    one = sender(sink)
    sent = [one.send(make_message(n, body="0123456789")) for n in range(1, 6)]
    sent.append(one.send(make_message(9, body="x" * 100)))
    sink.go.set()
    await asyncio.gather(*sent)
    assert [len(call) for call in sink.calls] == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SinkUnavailable("away"), "away"),
        (ValueError("a defect"), "ValueError: a defect"),
    ],
)
async def test_a_call_that_fails_is_a_failure_of_each_message(sender, error, reason, caplog):
    sink = ListSink(lambda message: (_ for _ in ()).throw(error))
    one = sender(sink)
    answer = await one.send(make_message(1))
    assert isinstance(answer, SinkUnavailable)
    assert reason in str(answer)
    counters = counters_of(one)
    assert (counters.failed, counters.failures, counters.answered) == (1, 1, False)
    assert reason in counters.error


async def test_a_sink_that_does_not_open_fails_and_is_opened_again(sender):
    class Shut(ListSink):
        async def open(self):
            await super().open()
            if self.opened == 1:
                raise SinkUnavailable("the stream is missing")

    sink = Shut()
    one = sender(sink)
    assert isinstance(await one.send(make_message(1)), SinkUnavailable)
    assert await one.send(make_message(2)) == Accepted()
    assert sink.opened == 2


async def test_a_call_that_hangs_ends_at_its_timeout(sender):
    sink = Slow()
    sink.call_seconds = 0.05
    one = sender(sink)
    answer = await one.send(make_message(1))
    assert "no answer within 0.05 s" in str(answer)
    sink.go.set()
    assert await one.send(make_message(2)) == Accepted()


async def test_what_is_no_answer_is_a_failure(sender, caplog):
    one = sender(ListSink(lambda message: "yes"))
    assert "not an answer" in str(await one.send(make_message(1)))


async def test_each_answer_is_counted_once(sender, far):
    answers = iter([None, Rejected("no"), TryLater("busy"), TryLater("again"), None, TryLater("x")])
    one = sender(ListSink(lambda message: next(answers)))
    for message in messages(6):
        await one.send(message)
    await one.reports.flush()
    (report,) = far.reports
    assert {name: report[name] for name in ("accepted", "failed", "rejected", "failures")} == {
        "accepted": 2,
        "failed": 3,
        "rejected": 1,
        "failures": 1,
    }
    assert (report["answered"], report["error"], sum(report["latencies"])) == (True, "x", 2)
    await one.reports.flush()
    assert len(far.reports) == 1


async def test_a_caller_that_left_before_the_call_sends_nothing(sender):
    sink = Slow()
    one = sender(sink)
    first, second, third = (one.send(message) for message in messages(3))
    second.cancel()
    sink.go.set()
    await asyncio.gather(first, third)
    assert [message.job_id for message in sink.messages] == [1, 3]
    assert counters_of(one).accepted == 2


async def test_a_caller_that_left_during_the_call_is_counted(sender):
    sink = Slow()
    one = sender(sink)
    first = one.send(make_message(1))
    await wait_for_async(lambda: sink.running == 1)
    first.cancel()
    sink.go.set()
    await wait_for_async(lambda: counters_of(one).accepted == 1)


async def test_the_threshold_holds_all_calls_until_the_database_answered(sender, far):
    is_away = True
    sink = ListSink(lambda message: TryLater("down") if is_away else None)
    sink.is_single = True
    one = sender(sink, threshold=3)
    for message in messages(3):
        await one.send(message)
    waits = one.send(make_message(4))
    assert not waits.done()
    assert len(sink.calls) == 3
    is_away = False
    await one.reports.flush()  # the breaker did not open
    assert await waits == Accepted()


async def test_when_the_breaker_opens_what_was_not_sent_is_returned(sender, far, now):
    sink = ListSink(lambda message: TryLater("down"))
    one = sender(sink, threshold=3)
    for message in messages(3):
        await one.send(message)
    waits = one.send(make_message(4))
    far.opened_at = NOW
    await one.reports.flush()
    assert isinstance(await waits, NotSent)
    assert isinstance(await one.send(make_message(5)), NotSent)  # claimed before it opened
    assert len(sink.calls) == 3
    now[0] += 5
    assert isinstance(await one.send(make_message(6)), TryLater)  # the probe
    behind = one.send(make_message(7))
    assert not behind.done()
    await one.reports.flush()
    assert isinstance(await behind, NotSent)
    assert len(sink.calls) == 4
    assert isinstance(await one.send(make_message(8)), TryLater)  # the next probe


async def test_an_older_report_does_not_end_the_hold(sender, far):
    sink = ListSink(lambda message: TryLater("down"))
    one = sender(sink, threshold=2)
    entered, go = asyncio.Event(), asyncio.Event()
    report = one.reports._report

    async def slowly(reports):
        entered.set()
        await go.wait()
        return await report(reports)

    one.reports._report = slowly
    await one.send(make_message(1))
    flush = asyncio.create_task(one.reports.flush())
    await entered.wait()
    await one.send(make_message(2))
    waits = one.send(make_message(3))
    go.set()
    await flush
    assert not waits.done()
    await one.reports.flush()
    assert isinstance(await waits, TryLater)


async def test_while_the_database_is_away_counts_stay(sender, far):
    one = sender(ListSink(lambda message: TryLater("down")))
    await one.send(make_message(1))
    far.is_away = True
    with pytest.raises(DatabaseUnavailable):
        await one.reports.flush()
    await one.send(make_message(2))
    far.is_away = False
    await one.reports.flush()
    (report,) = far.reports
    assert (report["failed"], report["failures"]) == (2, 2)


async def test_an_endpoint_that_throttles_is_left_alone(sender, far):
    sink = Slow(lambda message: TryLater("HTTP status 429", after=7200.0, throttles=True))
    one = sender(sink, threshold=2)
    first, second = (one.send(message) for message in messages(2))
    sink.go.set()
    assert (await first).after == 7200.0
    assert isinstance(await second, NotSent)
    await one.reports.flush()
    (report,) = far.reports
    assert (report["pause_seconds"], report["failures"], report["answered"]) == (3600.0, 0, True)


async def test_an_endpoint_that_is_gone_is_reported_at_once(sender, far):
    sink = ListSink(lambda message: EndpointGone("HTTP status 410"))
    one = sender(sink)
    await one.send(make_message(1))
    running = asyncio.create_task(one.reports.run())
    await wait_for_async(lambda: far.reports, deadline_seconds=1)
    running.cancel()
    assert (far.reports[0]["gone"], far.reports[0]["rejected"]) == (True, 1)


async def test_a_replaced_sink_ends_its_calls_and_is_closed(sender):
    class Closing(Slow):
        is_closed = False

        async def close(self):
            self.is_closed = True

    old, new = Closing(), ListSink()
    one = sender(old)
    first = one.send(make_message(1))
    await wait_for_async(lambda: old.running == 1)
    one.replace(new)
    assert await one.send(make_message(2)) == Accepted()
    assert not old.is_closed
    old.go.set()
    assert await first == Accepted()
    await wait_for_async(lambda: old.is_closed)
    assert [len(sink.messages) for sink in (old, new)] == [1, 1]


async def test_closing_ends_calls_without_counting(sender):
    sink = Slow()
    one = sender(sink)
    first, second = (one.send(message) for message in messages(2))
    await wait_for_async(lambda: sink.running == 1)
    await one.close()
    assert isinstance(await first, NotSent)
    assert isinstance(await second, NotSent)
    assert counters_of(one) == Counters()


def test_a_latency_is_counted_below_the_next_power_of_two():
    counters = Counters()
    for millis in (0, 1, 3, 4, 1000):
        counters.accept(millis / 1000)
    counters.accept(-5)
    counters.accept(1e9)
    assert [place for place, count in enumerate(counters.latencies) for _ in range(count)] == [
        0, 0, 1, 2, 3, 10, 24,
    ]  # fmt: skip


def test_counts_of_two_reports_add_up():
    first, later = Counters(), Counters()
    first.accept(0.001)
    first.fail("down")
    later.accept(1.0)
    later.fail("again")
    first.add(later)
    assert (first.accepted, first.failed, first.failures, first.error) == (2, 2, 1, "again")
    assert sum(first.latencies) == 2

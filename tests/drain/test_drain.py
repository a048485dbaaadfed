"""A drain sends the jobs of its queue to its sink: at least once, in order, and at no attempt
while the sink is away.
"""

import asyncio

import pytest
import redis

import forebay
from forebay.errors import ConfigError, SinkUnavailable
from forebay.sending import Drain
from forebay.sending._delivery import Delivery
from forebay.sinks import EndpointGone, Rejected, TryLater
from forebay.sinks.redis import RedisList, RedisStream
from forebay.testing import LyingSink, make_message
from tests.support.drains import ListSink, draining, enqueue
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


def bodies(sink):
    return [message.body for message in sink.messages]


async def test_committed_jobs_of_all_kinds_are_sent_and_done(app, database, conn):
    sink = ListSink()
    drain = Drain(app, "orders", sink=sink, queue="orders")
    with conn.transaction():
        enqueue(conn, 3, headers={"tenant": "7"}, correlation_id="c1", tag="t")
    with conn.transaction(force_rollback=True):
        enqueue(conn, 3)
    enqueue(conn, 1, kind="order.paid")
    enqueue(conn, 1, queue="other")
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 4)
        (listed,) = forebay.Client(database).workers()
        assert (listed.app, listed.queues) == ("drain orders to list (list)", ["orders"])
    assert bodies(sink) == [b'{"n":0}', b'{"n":1}', b'{"n":2}', b'{"n":0}']
    first = sink.messages[0]
    assert [message.kind for message in sink.messages] == ["order.created"] * 3 + ["order.paid"]
    assert (first.headers, first.correlation_id, first.tag) == ({"tenant": "7"}, "c1", "t")
    assert first.queue == "orders"
    assert first.metadata()["forebay-id"] == first.id
    assert worker.stats.claimed == 4


async def test_the_id_is_the_same_on_every_try(app, database, conn):
    tries = []

    def refuse_twice(message):
        tries.append((message.id, message.attempt))
        return TryLater("busy", after=0) if len(tries) < 3 else None

    sink = ListSink(refuse_twice)
    drain = Drain(app, "orders", sink=sink, queue="orders")
    enqueue(conn, 1)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
    assert {one for one, _ in tries} == {sink.messages[0].id}
    assert [attempt for _, attempt in tries] == [1, 2, 3]


@pytest.mark.parametrize("answer", [Rejected("too large"), EndpointGone("gone")])
async def test_a_rejected_message_is_a_dead_letter_and_holds_up_nobody(app, database, conn, answer):
    sink = ListSink(lambda message: answer if message.body == b'{"n":1}' else None)
    drain = Drain(app, "orders", sink=sink, queue="orders")
    enqueue(conn, 3)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: (worker.stats.done, worker.stats.dead) == (2, 1))
        await wait_for_async(forebay.Client(database).dead_letters)
    (letter,) = forebay.Client(database).dead_letters()
    assert letter.reason == "permanent"
    assert answer.reason in letter.errors[-1].message


@pytest.mark.slow
async def test_while_the_sink_is_away_no_attempt_is_used_and_little_is_claimed(app, database, conn):
    is_away = True

    def away(message):
        return SinkUnavailable("the broker is away") if is_away else None

    sink = ListSink(away)
    drain = Drain(app, "orders", sink=sink, queue="orders", batch_size=100)
    enqueue(conn, 1000)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: len(sink.calls) >= 4)
        claimed, calls = worker.stats.claimed, len(sink.calls)
        # The first claims are large; each one after a pause is one message.
        assert [len(call) for call in sink.calls[1:]] == [1] * (calls - 1)
        assert "is unavailable" in worker.health.read().reasons[0]
        assert not worker.health.read().is_ready
        is_away = False
        await wait_for_async(lambda: worker.stats.done == 1000)
        await wait_for_async(lambda: worker.health.read().is_ready)
    accepted = sink.messages[sum(len(call) for call in sink.calls[:calls]) :]
    assert len(accepted) == 1000
    assert {message.attempt for message in sink.messages} == {1}
    assert claimed <= 600
    assert forebay.Client(database).dead_letters() == []


async def test_a_message_that_the_sink_cannot_take_now_holds_up_no_other(app, database, conn):
    is_missing = True

    def missing(message):
        is_bad = message.kind == "moved" and is_missing
        return SinkUnavailable("the topic is missing") if is_bad else None

    sink = ListSink(missing)
    drain = Drain(app, "orders", sink=sink, queue="orders")
    enqueue(
        conn, 1, kind="moved"
    )  # It is alone first, and each trial, unless it waits behind others.
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.released == 1)
        enqueue(conn, 50)
        await wait_for_async(lambda: worker.stats.done == 50)
        await wait_for_async(lambda: worker.health.read().is_ready)
        is_missing = False
        await wait_for_async(lambda: worker.stats.done == 51)
    assert worker.stats.retried == worker.stats.dead == 0
    assert {message.attempt for message in sink.messages} == {1}


@pytest.mark.slow
async def test_a_sink_that_cannot_start_is_tried_again(app, database, conn):
    class Stubborn(ListSink):
        async def open(self):
            await super().open()
            if self.opened < 3:
                raise SinkUnavailable("the exchange is missing")

    sink = Stubborn()
    drain = Drain(app, "orders", sink=sink, queue="orders")
    enqueue(conn, 5)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 5)
    assert sink.opened == 3
    assert len(sink.messages) == 5


async def test_a_defect_of_a_sink_uses_no_attempt_either(app, database, conn, caplog):
    failures = iter([ValueError("a defect")])

    def fail(message):
        error = next(failures, None)
        if error is not None:
            raise error

    sink = ListSink(fail)
    drain = Drain(app, "orders", sink=sink, queue="orders")
    enqueue(conn, 2)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 2)
    assert "a defect" in caplog.text
    assert {message.attempt for message in sink.messages} == {1}


@pytest.mark.parametrize("answer", ["yes", True, TryLater("busy", after=-1.0)])
async def test_what_is_no_answer_is_a_defect_of_the_sink(app, database, conn, caplog, answer):
    answers = iter([answer])
    sink = ListSink(lambda message: next(answers, None))
    drain = Drain(app, "orders", sink=sink, queue="orders")
    enqueue(conn, 1)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
    assert worker.stats.retried == worker.stats.dead == 0
    assert "orders" in caplog.text


async def test_a_drain_without_messages_is_ready_after_an_outage():
    now = [100.0]
    sink = ListSink(lambda message: SinkUnavailable("away"))
    delivery = Delivery(
        "orders", sink, batch_size=1, batch_bytes=1, call_seconds=1, verify_seconds=None,
        clock=lambda: now[0],
    )  # fmt: skip
    await delivery._send([make_message(1)])
    assert "unavailable for 0 s, next trial in 0 s: away" in delivery.problem()
    now[0] += 4
    assert "unavailable for 4 s" in delivery.problem()
    now[0] += 3
    assert delivery.problem() is None
    assert delivery.rows_max() == 1


async def test_a_sink_that_hangs_is_left_after_the_timeout(app, database, conn):
    hangs = asyncio.Event()

    class Hanging(ListSink):
        async def send(self, messages):
            if len(self.calls) < 1:
                self.calls.append([])
                await hangs.wait()
            return await super().send(messages)

    sink = Hanging()
    drain = Drain(app, "orders", sink=sink, queue="orders", timeout=0.2)
    enqueue(conn, 2)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 2)
    assert sink.opened == 2


async def test_a_call_is_bounded_in_messages_and_bytes(app, database, conn):
    sink = ListSink()
    drain = Drain(app, "orders", sink=sink, queue="orders", batch_size=7, batch_bytes=30)
    enqueue(conn, 20)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 20)
    sizes = [(len(call), sum(len(message.body) for message in call)) for call in sink.calls]
    assert max(count for count, _ in sizes) <= 7
    assert max(size for _, size in sizes) <= 30


async def test_messages_without_a_key_are_sent_in_the_order_of_their_commits(app, database, conn):
    sink = ListSink()
    drain = Drain(app, "orders", sink=sink, queue="orders", batch_size=10)
    enqueue(conn, 300)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 300)
    assert bodies(sink) == [b'{"n":%d}' % number for number in range(300)]


async def test_several_drains_send_the_same_jobs_and_wait_for_none(app, database, conn):
    hangs = asyncio.Event()

    class Hanging(ListSink):
        async def send(self, messages):
            await hangs.wait()
            return await super().send(messages)

    client = forebay.Client(database)
    client.open_group("orders", "default")
    client.open_group("orders", "second")
    quick, slow = ListSink(), Hanging()
    first = Drain(app, "first", sink=slow, queue="orders")
    second = Drain(app, "second", sink=quick, queue="orders", group="second")
    enqueue(conn, 20)
    async with draining(first, database) as waiting, draining(second, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 20)
        assert waiting.stats.done == 0
        hangs.set()
        await wait_for_async(lambda: waiting.stats.done == 20)
    assert bodies(quick) == bodies(slow)
    assert quick.messages[0].id != slow.messages[0].id


@pytest.mark.parametrize("holds_key", [True, False])
async def test_a_rejected_message_holds_its_key_if_wanted_and_is_redriven_in_its_place(
    app, database, conn, holds_key
):
    rejects = True
    sink = ListSink(
        lambda message: Rejected("no") if rejects and message.body == b'{"n":1}' else None
    )
    drain = Drain(app, "orders", sink=sink, queue="orders", holds_key=holds_key)
    enqueue(conn, 4, keys=1)
    client = forebay.Client(database)
    async with draining(drain, database) as worker:
        await wait_for_async(client.dead_letters)
        if not holds_key:
            await wait_for_async(lambda: worker.stats.done == 3)
        rejects = False
        (letter,) = client.dead_letters()
        assert letter.holds_key == holds_key
        client.redrive(letter.dead_id)
        await wait_for_async(lambda: worker.stats.done == 4)
    accepted = [0, 1, 2, 3] if holds_key else [0, 2, 3, 1]
    refused_once = [0, 1, *accepted[1:]]
    assert bodies(sink) == [b'{"n":%d}' % number for number in refused_once]
    ids = [message.id for message in sink.messages if message.body == b'{"n":1}']
    assert ids[0] != ids[1]


# --- a real server, and lies ---


@pytest.fixture
def stream(redis_server, far_name):
    client = redis.Redis.from_url(f"redis://{redis_server}")
    yield client, RedisStream(f"redis://{redis_server}", far_name), far_name
    client.close()


def entries(client, name):
    return [fields for _, fields in client.xrange(name)]


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["reset", "half", "refuse", "late", "twice"])
async def test_whatever_the_sink_does_all_arrive_and_each_key_in_order(
    app, database, conn, stream, lie, monkeypatch
):
    client, sink, name = stream
    lying = LyingSink(sink, {lie: 0.2 if lie != "refuse" else 0.02})
    drain = Drain(app, "orders", sink=lying, queue="orders", batch_size=20)
    drain.delivery._breaker._first = drain.delivery._breaker._seconds = 0.01
    monkeypatch.setattr("forebay.sending._delivery._SNOOZE_SECONDS", 0.05)
    enqueue(conn, 200, keys=20)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 200)
    assert lying.done[lie] > 0
    found = entries(client, name)
    assert len({fields[b"forebay-id"] for fields in found}) == 200
    for key in {fields[b"forebay-ordering-key"] for fields in found}:
        numbers = [
            int(fields[b"body"][5:-1]) for fields in found if fields[b"forebay-ordering-key"] == key
        ]
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)
    assert worker.stats.retried == 0


@pytest.mark.slow
async def test_without_the_answers_of_the_sink_messages_are_lost(
    app, database, conn, stream, monkeypatch
):
    client, sink, name = stream
    lying = LyingSink(sink, {"half": 0.2})
    drain = Drain(app, "orders", sink=lying, queue="orders", batch_size=20)
    drain.delivery._breaker._first = drain.delivery._breaker._seconds = 0.01
    monkeypatch.setattr(drain.delivery, "_ending", lambda answer, message: None)
    enqueue(conn, 200)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 200)
    assert len(entries(client, name)) < 200


@pytest.mark.slow
@pytest.mark.parametrize("verify", [True, False])
async def test_what_was_accepted_and_dropped_is_sent_again_if_verified(
    app, database, conn, stream, verify
):
    client, sink, name = stream
    lying = LyingSink(sink, {"drop": 0.1}, seed=3)
    drain = Drain(app, "orders", sink=lying, queue="orders", verify=verify)
    enqueue(conn, 500)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 500)
    ids = [fields[b"forebay-id"].decode() for fields in entries(client, name)]
    dropped = lying.done["drop"]
    assert dropped > 20
    assert len(ids) == len(set(ids)) == (500 if verify else 500 - dropped)
    if verify:
        assert drain.delivery.counts["lost"] == dropped
        assert sum(one.endswith("~1") for one in ids) > 20
        (counted,) = conn.execute(
            "select sum(count)::integer from forebay.mirror_count"
            " where mirror = 'drain.orders' and outcome = 'lost'"
        ).fetchone()
        assert counted == dropped


async def test_a_sink_that_keeps_nothing_is_unavailable(app, database, conn, stream):
    client, sink, name = stream
    lying = LyingSink(sink, {"drop": 1.0})
    drain = Drain(app, "orders", sink=lying, queue="orders", verify=True)
    enqueue(conn, 1)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.released == 1)
        assert "is unavailable" in worker.health.read().reasons[0]
        lying._lies.clear()
        await wait_for_async(lambda: worker.stats.done == 1)
    assert worker.stats.retried == worker.stats.dead == 0
    assert len(entries(client, name)) == 1


# --- declarations ---


def test_a_declaration_is_checked(app):
    Drain(app, "orders", sink=ListSink(), queue="orders")
    for options, problem in [
        ({"name": "orders", "group": "g"}, "declared twice"),
        ({}, "only one of them"),
        ({"sink": "redis"}, "must be a Sink"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"concurrency": True}, "concurrency must be an integer"),
        ({"timeout": 0}, "timeout is 0"),
        ({"verify": True, "sink": RedisList("redis://h", "k")}, "cannot be read back"),
        ({"holds_key": "wait"}, "holds_key must be True or False"),
        ({"group": ""}, "group"),
    ]:
        given = {"name": "other", "sink": ListSink(), "queue": "orders"} | options
        with pytest.raises(ConfigError, match=problem):
            Drain(app, given.pop("name"), **given)

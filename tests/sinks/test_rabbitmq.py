"""An exchange of a real RabbitMQ."""

import asyncio
import contextlib
import json

import aiormq
import pytest

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sending import Drain
from forebay.sinks import Accepted, Rejected, Sink, make_sink
from forebay.sinks.rabbitmq import RabbitMQ
from forebay.testing import Received, SinkContract, make_message
from tests.support.drains import through_faults
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for_async


@contextlib.asynccontextmanager
async def channel_to(server):
    connection = aiormq.Connection(f"amqp://guest:guest@{server.address}/")
    await connection.connect()
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def taken(channel, queue):
    """Take all messages of a queue."""
    found = []
    while (one := await channel.basic_get(queue, no_ack=True)).delivery.name == "Basic.GetOk":
        found.append(one)
    return found


async def ended(sink, *calls):
    """Open a sink, send some calls, and close it; return the answers of the last one."""
    await sink.open()
    try:
        for call in calls:
            answers = await sink.send(call)
        return answers
    finally:
        await sink.close()


@pytest.mark.slow
class TestRabbitMQ(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, rabbitmq_server, far_name):
        self.server, self.name = rabbitmq_server, far_name

        async def declare():
            async with channel_to(self.server) as channel:
                await channel.queue_declare(self.name, durable=True)

        asyncio.run(declare())

    def make_sink(self, address=None) -> Sink:
        return self.sink(address)

    def sink(self, address=None, **settings):
        settings = {"routing_key": self.name, "connect_timeout": 10.0} | settings
        return RabbitMQ(f"amqp://guest:guest@{address or self.server.address}/", **settings)

    def taken(self):
        async def take():
            async with channel_to(self.server) as channel:
                return await taken(channel, self.name)

        return asyncio.run(take())

    def received(self):
        return [
            Received(
                one.header.properties.message_id,
                one.header.properties.message_type,
                one.body,
                one.header.properties.headers,
            )
            for one in self.taken()
        ]

    def run(self, act):
        """Run ``act(channel)`` with a channel of a client that is not the sink."""

        async def use():
            async with channel_to(self.server) as channel:
                return await act(channel)

        return asyncio.run(use())

    def test_properties_say_what_the_message_is(self):
        message = make_message(1, correlation_id="c-1", ordering_key="customer-7")
        asyncio.run(ended(self.make_sink(), [message]))
        properties = self.taken()[0].header.properties
        assert properties.message_id == message.id
        assert properties.message_type == "order.created"
        assert properties.correlation_id == "c-1"
        assert properties.timestamp == message.enqueued_at.replace(microsecond=0)
        assert properties.content_type == "application/json"
        assert properties.delivery_mode == 2
        assert properties.headers["forebay-ordering-key"] == "customer-7"

    def test_messages_that_need_not_survive_are_transient(self):
        asyncio.run(ended(self.sink(persistent=False), [make_message(1)]))
        assert self.taken()[0].header.properties.delivery_mode == 1

    def test_a_correlation_id_that_is_no_short_text_is_in_the_headers(self):
        asyncio.run(ended(self.make_sink(), [make_message(1, correlation_id="\u00fc" * 200)]))
        properties = self.taken()[0].header.properties
        assert not properties.correlation_id
        assert properties.headers["forebay-correlation-id"] == "\u00fc" * 200

    def test_an_exchange_and_a_routing_key_from_the_message(self):
        async def bind(channel):
            await channel.exchange_declare(f"{self.name}-x", exchange_type="topic")
            await channel.queue_bind(self.name, f"{self.name}-x", "orders.order.#")

        self.run(bind)
        sink = self.sink(exchange=f"{self.name}-x", routing_key="{queue}.{kind}.{header:to}")
        sent, other, lacking = asyncio.run(
            ended(
                sink,
                [
                    make_message(1, headers={"to": "eu"}),
                    make_message(2, kind="invoice.paid", headers={"to": "eu"}),
                    make_message(3),
                ],
            )
        )
        assert isinstance(sent, Accepted)
        assert isinstance(other, SinkUnavailable)
        assert "no queue takes messages with the routing key 'orders.invoice.paid.eu'" in str(other)
        assert isinstance(lacking, Rejected)
        assert [one.delivery.routing_key for one in self.taken()] == ["orders.order.created.eu"]

    def test_a_message_that_no_queue_takes_waits_for_one(self):
        async def use():
            sink = self.sink(routing_key=f"{self.name}-later")
            before = await ended(sink, [make_message(1)])
            async with channel_to(self.server) as channel:
                await channel.queue_declare(f"{self.name}-later")
                return before[0], (await ended(sink, [make_message(1)]))[0]

        before, after = asyncio.run(use())
        assert isinstance(before, SinkUnavailable)
        assert isinstance(after, Accepted)

    def test_a_full_queue_makes_its_messages_wait(self):
        async def limit(channel):
            await channel.queue_declare(
                f"{self.name}-full",
                arguments={"x-max-length": 2, "x-overflow": "reject-publish"},
            )

        self.run(limit)
        answers = asyncio.run(
            ended(
                self.sink(routing_key=f"{self.name}-full"),
                [make_message(1)], [make_message(2)], [make_message(3)],
            )
        )  # fmt: skip
        assert isinstance(answers[0], SinkUnavailable)
        assert "a queue may be full" in str(answers[0])

    @pytest.mark.parametrize("name", ["CC", "BCC", "n" * 129])
    def test_a_header_that_the_server_takes_for_its_own_blocks_nobody(self, name):
        # Such a header closes the channel, for all messages of the call and each time again; a long
        # name is cut.
        answers = asyncio.run(
            ended(self.make_sink(), [make_message(1, headers={name: "x"}), make_message(2)])
        )
        assert isinstance(answers[0], Rejected)
        assert isinstance(answers[1], Accepted)
        assert len(self.taken()) == 1

    def test_a_routing_key_that_is_too_long_blocks_nobody(self):
        # 200 characters and 400 bytes: the client counts characters.
        sink = self.sink(routing_key="{ordering_key}")
        answers = asyncio.run(
            ended(
                sink,
                [
                    make_message(1, ordering_key="\u00fc" * 200),
                    make_message(2, ordering_key=self.name),
                ],
            )
        )
        assert isinstance(answers[0], Rejected)
        assert isinstance(answers[1], Accepted)

    def test_a_missing_exchange_is_an_outage(self):
        with pytest.raises(SinkUnavailable, match="no exchange 'nowhere'"):
            asyncio.run(ended(self.sink(exchange="nowhere")))

    def test_an_exchange_that_is_deleted_is_an_outage(self):
        async def use():
            async with channel_to(self.server) as channel:
                await channel.exchange_declare(f"{self.name}-x", exchange_type="fanout")
                await channel.queue_bind(self.name, f"{self.name}-x")
                sink = self.sink(exchange=f"{self.name}-x")
                await sink.open()
                await channel.exchange_delete(f"{self.name}-x")
                try:
                    return await sink.send([make_message(1), make_message(2)])
                finally:
                    await sink.close()

        answers = asyncio.run(use())
        assert all(isinstance(answer, SinkUnavailable) for answer in answers)

    @pytest.mark.parametrize(
        ("login", "problem"),
        [("guest:s3cret@{}/", "Login was refused"), ("guest:guest@{}/nowhere", "vhost does not")],
    )
    def test_a_refused_login_is_an_outage_without_the_password(self, login, problem):
        url = f"amqp://{login.format(self.server.address)}"
        with pytest.raises(SinkUnavailable, match=problem) as caught:
            asyncio.run(ended(RabbitMQ(url, self.name)))
        assert "s3cret" not in str(caught.value)

    def test_a_message_that_is_too_large_is_rejected_alone(self):
        self.server.ctl("eval", "application:set_env(rabbit, max_message_size, 1000).")
        try:
            large, small = asyncio.run(
                ended(
                    self.make_sink(),
                    [make_message(1, body='"%s"' % ("x" * 2000)), make_message(2)],
                )
            )
        finally:
            self.server.ctl("eval", "application:set_env(rabbit, max_message_size, 134217728).")
        assert large == Rejected("2002 bytes, and the server takes 1000")
        # The server closed the channel for both.
        assert isinstance(small, SinkUnavailable)

    def test_an_alarm_of_the_server_is_an_outage_and_ends(self):
        async def use():
            sink = self.sink(confirm_timeout=1.0)
            await sink.open()
            self.server.ctl("set_vm_memory_high_watermark", "absolute", "1")
            try:
                during = await sink.send([make_message(1)])
                # A call that the drain gives up leaves nothing behind either.
                await sink.open()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await sink.send([make_message(2)])
                async with asyncio.timeout(5):
                    await sink.close()
            finally:
                self.server.ctl("set_vm_memory_high_watermark", "absolute", "4GB")
            await sink.open()
            after = await sink.send([make_message(3)])
            await sink.close()
            return during + after

        during, after = asyncio.run(use())
        assert isinstance(during, SinkUnavailable)
        assert "the server blocks publishers" in str(during)
        assert isinstance(after, Accepted)
        assert make_message(3).id in [found.id for found in self.received()]

    def test_a_cut_during_a_call_leaves_no_answer_open(self):
        async def use(proxy):
            sink = self.sink(proxy.address)
            await sink.open()
            proxy.swallow_answers()
            call = asyncio.create_task(sink.send([make_message(1), make_message(2)]))
            await self._arrived(2)
            proxy.cut()
            proxy.thaw()
            async with asyncio.timeout(5):
                during = await call
            await sink.open()
            after = await sink.send([make_message(1)])
            await sink.close()
            return during, after

        with TcpProxy(self.server.address) as proxy:
            during, after = asyncio.run(use(proxy))
        assert [type(answer) for answer in during] == [SinkUnavailable, SinkUnavailable]
        assert [type(answer) for answer in after] == [Accepted]
        # Both had arrived, and the repetition has the same id.
        assert [found.id for found in self.received()].count(make_message(1).id) == 2

    def test_answers_that_do_not_come_end_the_call(self):
        async def use(proxy):
            sink = self.sink(proxy.address, confirm_timeout=0.5)
            await sink.open()
            proxy.swallow_answers()
            during = await sink.send([make_message(1), make_message(2)])
            async with asyncio.timeout(5):
                await sink.close()
            proxy.thaw()
            await sink.open()
            after = await sink.send([make_message(1)])
            await sink.close()
            return during, after

        with TcpProxy(self.server.address) as proxy:
            during, after = asyncio.run(use(proxy))
        assert [type(answer) for answer in during] == [SinkUnavailable, SinkUnavailable]
        assert "no confirm within 0.5 s" in str(during[0])
        assert [type(answer) for answer in after] == [Accepted]

    def test_a_server_that_confirms_slowly_gets_no_message_twice(self):
        """The time counts anew from each confirm; what is open when none comes is not confirmed."""

        async def use():
            sink = self.sink(confirm_timeout=0.4)
            await sink.open()
            publish = sink._publish

            async def late(call, number):
                confirmed = await call
                await asyncio.sleep(0.25 * number if number < 5 else 3600)
                return confirmed

            sink._publish = lambda channel, message: late(
                publish(channel, message), json.loads(message.body)["n"]
            )
            messages = [make_message(n, body=json.dumps({"n": n})) for n in range(1, 6)]
            answers = await sink.send(messages)
            await sink.close()
            return answers

        answers = asyncio.run(use())
        assert [type(one) for one in answers] == [Accepted] * 4 + [SinkUnavailable]

    def test_a_frozen_server_holds_nobody(self):
        # More than the buffers of the sockets take: the client cannot even say goodbye.
        async def use(proxy):
            sink = self.sink(proxy.address)
            await sink.open()
            proxy.freeze()
            messages = [make_message(number, body='"%s"' % ("x" * 900_000)) for number in range(20)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await sink.send(messages)
            async with asyncio.timeout(5):
                await sink.close()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await sink.open()
            async with asyncio.timeout(5):
                await sink.close()
            await wait_for_async(lambda: len(asyncio.all_tasks()) == 1, 5, "no task is left")
            proxy.thaw()
            await sink.open()
            after = await sink.send([make_message(1)])
            await sink.close()
            return after

        with TcpProxy(self.server.address) as proxy:
            after = asyncio.run(use(proxy))
        assert [type(answer) for answer in after] == [Accepted]

    def test_closing_ends_other_calls_without_cancelling_them(self):
        async def use(proxy):
            sink = self.sink(proxy.address)
            await sink.open()
            proxy.swallow_answers()
            call = asyncio.create_task(sink.send([make_message(1)]))
            await self._arrived(1)
            await sink.close()
            proxy.thaw()
            return await call

        with TcpProxy(self.server.address) as proxy:
            assert isinstance(asyncio.run(use(proxy))[0], SinkUnavailable)

    def test_closing_does_not_wait_for_a_server_that_reads_nothing(self):
        async def use(proxy):
            sink = self.sink(proxy.address)
            await sink.open()
            proxy.freeze()
            messages = [make_message(number, body='"%s"' % ("x" * 900_000)) for number in range(20)]
            call = asyncio.create_task(sink.send(messages))
            writer = sink._wire._writer
            await wait_for_async(lambda: writer.transport.get_write_buffer_size() > 0)
            async with asyncio.timeout(5):
                await sink.close()
            return await call

        with TcpProxy(self.server.address) as proxy:
            answers = asyncio.run(use(proxy))
        assert all(isinstance(answer, SinkUnavailable) for answer in answers)

    async def _arrived(self, count):
        async with channel_to(self.server) as channel:

            async def have() -> bool:
                return (await channel.queue_declare(self.name, passive=True)).message_count >= count

            await wait_for_async(have, 10, "the queue has the messages")


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_drain_loses_nothing_while_its_connection_is_cut_and_answers_are_swallowed(
    app, database, conn, rabbitmq_server, far_name
):
    with TcpProxy(rabbitmq_server.address) as proxy:
        sink = RabbitMQ(f"amqp://guest:guest@{proxy.address}/", far_name, connect_timeout=10.0)
        drain = Drain(app, "orders", sink=sink, queue="orders", batch_size=50, timeout=1.0)
        async with channel_to(rabbitmq_server) as channel:
            await channel.queue_declare(far_name, durable=True)
            await through_faults(drain, database, conn, proxy)
            found = await taken(channel, far_name)
    assert len({one.header.properties.message_id for one in found}) == 300
    assert len(found) < 600  # Calls without an answer are repeated, and nothing else.


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"url": "amqp://h"}, "needs the setting routing_key"),
        ({"url": "http://h"}, "url is not an address that begins with amqp://"),
        ({"routing_key": ""}, "routing_key is ''"),
        ({"routing_key": "x" * 256}, "longer than 255 bytes"),
        ({"routing_key": "orders.{knd}"}, "unknown name {knd}"),
        ({"routing_key": "{kind!r}"}, "unknown name {kind}"),
        ({"routing_key": "{header}"}, "unknown name {header}"),
        ({"routing_key": "{kind:>10}"}, "unknown name {kind:>10}"),
        ({"routing_key": "a{"}, "routing_key is 'a{'"),
        ({"exchange": "a\nb"}, "exchange is"),
        ({"exchange": 7}, "exchange is 7"),
        ({"confirm_timeout": 0}, "confirm_timeout is 0"),
        ({"heartbeat": -1}, "heartbeat is -1"),
        ({"heartbeat": 0.5}, "heartbeat is 0.5"),
        ({"persistent": "no"}, "persistent is 'no'"),
        ({"queue": "q"}, "has no setting 'queue'"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    whole = {"url": "amqp://h", "routing_key": "q"} if "url" not in config else {}
    if config.get("url") == "http://h":
        whole = {"routing_key": "q"}
    with pytest.raises(ConfigError) as caught:
        make_sink("rabbitmq", whole | config)
    assert problem in str(caught.value)


def test_messages_show_no_password():
    sink = RabbitMQ("amqp://u:secret@h:5672/shop", "orders", exchange="events")
    assert sink.place == "events at h:5672/shop"
    assert RabbitMQ("amqp://u:secret@h/", "orders").place == "orders at h"

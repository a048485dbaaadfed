"""Topics of the broker Tansu, and of librdkafka's mock cluster where a broker must refuse
something. Not of Apache Kafka.
"""

import asyncio
import contextlib
import threading

import pytest

ck = pytest.importorskip("confluent_kafka")
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from examples.six_sinks.servers import free_port, served, tansu_command  # noqa: E402
from forebay.errors import ConfigError, SinkUnavailable  # noqa: E402
from forebay.sinks import Accepted, Rejected, Sent, Sink, make_sink  # noqa: E402
from forebay.sinks.kafka import Kafka  # noqa: E402
from forebay.testing import Received, SinkContract, make_message  # noqa: E402
from tests.support.kafka_mock import FETCH, PRODUCE, KafkaMock  # noqa: E402
from tests.support.tcp_proxy import TcpProxy  # noqa: E402
from tests.support.waiting import wait_for  # noqa: E402

KafkaError = ck.KafkaError


def create(server, topic, partitions=1):
    with AdminClient({"bootstrap.servers": server, "log_level": 0}) as admin:
        for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(10)


def delete(server, topic):
    with AdminClient({"bootstrap.servers": server, "log_level": 0}) as admin:
        for future in admin.delete_topics([topic]).values():
            future.result(10)


def read_all(server, topic, partitions=1):
    """Return all records of a topic, each partition in its order."""
    consumer = ck.Consumer({
        "bootstrap.servers": server, "group.id": "test", "enable.partition.eof": True,
        "log_level": 0,
        "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10,
    })  # fmt: skip
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ended = [], set()
    try:

        def is_read():
            for record in consumer.consume(10_000, 0.1):
                if record.error() is None:
                    found.append(record)
                elif record.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(record.partition())
            return len(ended) == partitions

        wait_for(is_read, 20, lambda: f"{len(found)} records, {ended}")
    finally:
        consumer.close()
    return found


@contextlib.asynccontextmanager
async def opened(sink):
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


async def send(sink, *messages):
    async with opened(sink):
        return await sink.send(messages)


def received(record):
    headers = {name: value.decode() for name, value in record.headers()}
    return Received(headers["forebay-id"], headers["forebay-kind"], record.value(), headers)


class TestKafka(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, kafka_server, far_name):
        self.server, self.name = kafka_server, far_name
        create(kafka_server, far_name)

    def make_sink(self, address=None) -> Sink:
        return Kafka(f"kafka://{address or self.server}", self.name)

    def received(self):
        return [received(record) for record in read_all(self.server, self.name)]

    def lose(self, sent):
        # As after an unclean election: at the offset is a record that somebody else sent.
        records = read_all(self.server, self.name)
        delete(self.server, self.name)
        create(self.server, self.name)
        producer = ck.Producer({"bootstrap.servers": self.server, "log_level": 0})
        for record in records:
            is_lost = sent.proof.endswith(f"/{record.offset()}")
            headers = [("forebay-id", b"another")] if is_lost else record.headers()
            producer.produce(self.name, record.value(), headers=headers, partition=0)
        assert producer.flush(10) == 0

    def test_the_proof_is_topic_partition_and_offset(self):
        answers = asyncio.run(send(self.make_sink(), *map(make_message, range(1, 4))))
        assert [answer.proof for answer in answers] == [f"{self.name}/0/{n}" for n in range(3)]

    def test_a_log_that_ends_before_the_offset_is_a_loss(self):
        """Both directly behind the last record, and further away."""

        async def use():
            async with opened(self.make_sink()) as sink:
                messages = [make_message(number) for number in range(1, 6)]
                sent = [
                    Sent(message, answer.proof)
                    for message, answer in zip(messages, await sink.send(messages), strict=True)
                ]
                await asyncio.to_thread(self._keep_first, 2)
                return await sink.seen(sent), await sink.seen(sent[3:])

        assert asyncio.run(use()) == ([True, True, False, False, False], [False, False])

    def _keep_first(self, count):
        records = read_all(self.server, self.name)[:count]
        delete(self.server, self.name)
        create(self.server, self.name)
        producer = ck.Producer({"bootstrap.servers": self.server, "log_level": 0})
        for record in records:
            producer.produce(self.name, record.value(), headers=record.headers(), partition=0)
        assert producer.flush(10) == 0

    def test_messages_of_a_key_stay_in_one_partition_in_order(self, far_name):
        topic = f"{far_name}-three"
        create(self.server, topic, 3)

        async def use():
            async with opened(Kafka(f"kafka://{self.server}", topic)) as sink:
                for turn in range(4):
                    answers = await sink.send([
                        make_message(10 * turn + key, ordering_key=f"k{key}") for key in range(8)
                    ])  # fmt: skip
                    assert all(isinstance(answer, Accepted) for answer in answers)
                    sent = [
                        Sent(make_message(10 * turn + key), a.proof)
                        for key, a in enumerate(answers)
                    ]
                    assert await sink.seen(sent) == [True] * 8

        asyncio.run(use())
        records = read_all(self.server, topic, 3)
        for key in range(8):
            own = [record for record in records if record.key() == f"k{key}".encode()]
            assert len({record.partition() for record in own}) == 1
            ids = [received(record).id for record in own]
            assert ids == [make_message(10 * turn + key).id for turn in range(4)]
        assert len({record.partition() for record in records}) > 1

    def test_a_topic_may_depend_on_the_job(self, far_name):
        create(self.server, f"{far_name}.order.created")
        sink = Kafka(f"kafka://{self.server}", far_name + ".{kind}")
        bad = make_message(2, kind="order/created")
        accepted, rejected = asyncio.run(send(sink, make_message(1), bad))
        assert accepted == Accepted(f"{far_name}.order.created/0/0")
        assert isinstance(rejected, Rejected)
        assert "cannot be the name of a topic" in rejected.reason

    def test_a_missing_topic_makes_messages_wait(self, far_name):
        with pytest.raises(SinkUnavailable, match="Unknown topic"):
            asyncio.run(send(Kafka(f"kafka://{self.server}", "missing"), make_message(1)))
        sink = Kafka(f"kafka://{self.server}", far_name + ".{queue}", delivery_timeout=0.5)
        (answer,) = asyncio.run(send(sink, make_message(1)))
        assert isinstance(answer, SinkUnavailable)
        assert "nknown topic" in str(answer)

    def test_a_missing_topic_is_created_if_wanted(self, far_name):
        sink = Kafka(f"kafka://{self.server}", f"{far_name}-new", create=True)
        (answer,) = asyncio.run(send(sink, make_message(1)))
        assert answer.proof.startswith(f"{far_name}-new/")

    def test_a_message_above_the_limit_of_the_client_is_rejected(self):
        large = make_message(1, body='"%s"' % ("x" * 1_000_000))
        rejected, accepted = asyncio.run(send(self.make_sink(), large, make_message(2)))
        assert isinstance(rejected, Rejected)
        assert "MSG_SIZE_TOO_LARGE" in rejected.reason
        assert isinstance(accepted, Accepted)

    def test_several_calls_at_once_get_their_own_answers(self):
        async def use():
            async with opened(self.make_sink()) as sink:
                calls = [
                    [make_message(100 * call + number) for number in range(50)]
                    for call in range(10)
                ]
                answers = await asyncio.gather(*map(sink.send, calls))
                sent = [
                    Sent(message, answer.proof)
                    for call, found in zip(calls, answers, strict=True)
                    for message, answer in zip(call, found, strict=True)
                ]
                assert len({one.proof for one in sent}) == 500
                return await sink.seen(sent)

        assert asyncio.run(use()) == [True] * 500


class TestThroughProxy:
    """A broker that clients reach through a proxy only."""

    @pytest.fixture
    def proxy(self, tmp_path, far_name):
        self.name = far_name
        port = free_port()
        self.server = f"127.0.0.1:{port}"
        with TcpProxy(self.server) as proxy:
            with served(tansu_command(port, proxy.address), port, tmp_path):
                create(proxy.address, far_name)
                yield proxy

    def sink(self, proxy, **more):
        return Kafka(f"kafka://{proxy.address}", self.name, **more)

    def test_a_cut_connection_is_made_again(self, proxy):
        async def use():
            async with opened(self.sink(proxy)) as sink:
                first = await sink.send([make_message(1)])
                proxy.cut()
                return first + await sink.send([make_message(2)])

        assert all(isinstance(answer, Accepted) for answer in asyncio.run(use()))
        ids = [received(record).id for record in read_all(proxy.address, self.name)]
        assert ids == [make_message(1).id, make_message(2).id]

    def test_no_answers_end_in_unavailable_and_nothing_is_sent_later(self, proxy):
        async def use():
            async with opened(self.sink(proxy, delivery_timeout=1.0)) as sink:
                await sink.send([make_message(1)])
                proxy.freeze()
                (answer,) = await sink.send([make_message(2)])
                return answer

        assert isinstance(asyncio.run(use()), SinkUnavailable)

    def test_swallowed_answers_end_in_unavailable(self, proxy):
        async def use():
            async with opened(self.sink(proxy, delivery_timeout=1.0)) as sink:
                await sink.send([make_message(1)])
                proxy.swallow_answers()
                (answer,) = await sink.send([make_message(2)])
                assert isinstance(answer, SinkUnavailable)
                proxy.thaw()
                await sink.open()
                return await sink.send([make_message(2), make_message(3)])

        assert all(isinstance(answer, Accepted) for answer in asyncio.run(use()))
        ids = [received(record).id for record in read_all(proxy.address, self.name)]
        assert ids[-2:] == [make_message(2).id, make_message(3).id]
        assert set(ids) == {make_message(number).id for number in (1, 2, 3)}

    def test_a_cancelled_call_leaves_nothing_that_is_sent_later(self, proxy):
        """Brokers that are away for a moment get nothing of a call that was given up."""

        async def use():
            async with opened(self.sink(proxy)) as sink:
                await sink.send([make_message(1)])
                proxy.refuse()
                producer = sink._client.producer
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await sink.send([make_message(2)])
                wait_for(lambda: len(producer) == 0, 5)  # purged, as there is no broker to take it
                proxy.refuse(False)
                return await sink.send([make_message(3)])

        assert isinstance(asyncio.run(use())[0], Accepted)
        ids = [received(record).id for record in read_all(proxy.address, self.name)]
        assert ids == [make_message(1).id, make_message(3).id]

    def test_a_frozen_server_cannot_be_opened_or_read(self, proxy):
        async def use():
            sink = self.sink(proxy, connect_timeout=0.5, delivery_timeout=1.0)
            (answer,) = await send(sink, make_message(1))
            proxy.freeze()
            with pytest.raises(SinkUnavailable):
                await sink.open()
            with pytest.raises(SinkUnavailable):
                await sink.seen([Sent(make_message(1), answer.proof)])

        asyncio.run(use())


class TestRestart:
    def test_a_broker_that_forgot_everything(self, tmp_path, far_name):
        """The loss is proved once the topic exists again, and the same sink can send again."""
        port = free_port()
        server = f"127.0.0.1:{port}"

        async def use():
            sink = Kafka(f"kafka://{server}", far_name, delivery_timeout=2.0)
            messages = [make_message(1), make_message(2)]
            with served(tansu_command(port), port, tmp_path):
                create(server, far_name)
                await sink.open()
                sent = [
                    Sent(message, answer.proof)
                    for message, answer in zip(messages, await sink.send(messages), strict=True)
                ]
            with served(tansu_command(port), port, tmp_path):
                with pytest.raises(SinkUnavailable):
                    await sink.seen(sent)
                create(server, far_name)
                assert await sink.seen(sent) == [False, False]
                await sink.open()
                (answer,) = await sink.send([messages[0].after_loss()])
                assert await sink.seen([Sent(messages[0].after_loss(), answer.proof)]) == [True]
                await sink.close()

        asyncio.run(use())


class TestInjectedErrors:
    @pytest.fixture
    def mock(self, far_name):
        self.name = far_name
        with KafkaMock() as mock:
            mock.create(far_name)
            yield mock

    def sink(self, mock, **more):
        return Kafka(f"kafka://{mock.address}", self.name, **more)

    @pytest.mark.parametrize(
        "code",
        ["NOT_LEADER_FOR_PARTITION", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT",
            "NOT_ENOUGH_REPLICAS_AFTER_APPEND"],
    )  # fmt: skip
    def test_what_passes_by_itself_is_tried_again(self, mock, code):
        mock.refuse(PRODUCE, getattr(KafkaError, code))
        assert isinstance(asyncio.run(send(self.sink(mock), make_message(1)))[0], Accepted)
        assert len(read_all(mock.address, self.name)) == 1

    @pytest.mark.parametrize(
        "code",
        ["TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "POLICY_VIOLATION",
            "INVALID_TIMESTAMP"],
    )  # fmt: skip
    def test_what_an_operator_can_mend_makes_messages_wait(self, mock, code):
        mock.refuse(PRODUCE, getattr(KafkaError, code))
        (answer,) = asyncio.run(send(self.sink(mock), make_message(1)))
        assert isinstance(answer, SinkUnavailable)

    @pytest.mark.parametrize("code", ["MSG_SIZE_TOO_LARGE", "INVALID_RECORD"])
    def test_a_message_that_is_refused_alone_is_rejected(self, mock, code):
        mock.refuse(PRODUCE, *[getattr(KafkaError, code)] * 2)
        (answer,) = asyncio.run(send(self.sink(mock), make_message(1)))
        assert isinstance(answer, Rejected)
        assert code in answer.reason

    def test_messages_are_not_rejected_for_another_one_of_their_batch(self, mock):
        mock.refuse(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.MSG_SIZE_TOO_LARGE)
        sink = self.sink(mock, options={"linger.ms": 50})
        answers = asyncio.run(send(sink, *map(make_message, range(1, 6))))
        assert [type(answer) for answer in answers].count(Rejected) == 1
        assert [type(answer) for answer in answers].count(Accepted) == 4

    def test_a_topic_that_may_not_be_described(self, mock):
        mock.fail_topic(self.name, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(SinkUnavailable, match="uthoriz"):
            asyncio.run(self.sink(mock).open())

    def test_what_retention_removed_is_no_loss(self, mock):
        async def use():
            async with opened(self.sink(mock)) as sink:
                messages = []
                answers = []
                # A batch is deleted as a whole.
                for number in range(1, 5):
                    messages.append(make_message(number))
                    answers += await sink.send(messages[-1:])
                sent = [Sent(m, answer.proof) for m, answer in zip(messages, answers, strict=True)]
                sent.append(Sent(make_message(9), f"{self.name}/0/9"))
                mock.delete_before(self.name, 0, 2)
                return await sink.seen(sent)

        assert asyncio.run(use()) == [None, None, True, True, False]

    def test_a_read_that_fails_for_a_moment_is_tried_again(self, mock):
        async def use():
            async with opened(self.sink(mock)) as sink:
                (answer,) = await sink.send([make_message(1)])
                mock.refuse(
                    FETCH, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.KAFKA_STORAGE_ERROR
                )
                return await sink.seen([Sent(make_message(1), answer.proof)])

        assert asyncio.run(use()) == [True]


def test_proofs_of_others_are_unknown():
    sink = Kafka("kafka://127.0.0.1:9", "t")
    proofs = [None, "", "t", "t/0", "t/x/1", "t/0/-1"]
    found = asyncio.run(sink.seen([Sent(make_message(1), proof) for proof in proofs]))
    assert found == [None] * len(proofs)


def test_a_closed_sink_leaves_no_threads(kafka_server, far_name):
    create(kafka_server, far_name)
    before = threading.active_count()
    asyncio.run(send(Kafka(f"kafka://{kafka_server}", far_name), make_message(1)))
    wait_for(lambda: threading.active_count() <= before, 10)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"topic": "t"}, "needs the setting url"),
        ({"url": "kafka://h", "topic": "t", "topics": 1}, "has no setting 'topics'"),
        ({"url": "http://h", "topic": "t"}, "url is not an address"),
        ({"url": "kafka://", "topic": "t"}, "url is not of the form"),
        ({"url": "kafka://h/t", "topic": "t"}, "url is not of the form"),
        ({"url": "kafka://h", "topic": ""}, "topic is ''"),
        ({"url": "kafka://h", "topic": "a/b"}, "topic is 'a/b'"),
        ({"url": "kafka://h", "topic": "x" * 250}, "topic is"),
        ({"url": "kafka://h", "topic": ".."}, "topic is"),
        ({"url": "kafka://h", "topic": "{job_id}"}, "use only {kind} and {queue}"),
        ({"url": "kafka://h", "topic": "{kind.__class__}"}, "use only {kind} and {queue}"),
        ({"url": "kafka://h", "topic": "{kind!r}"}, "use only {kind} and {queue}"),
        ({"url": "kafka://h", "topic": "{kind:>9}"}, "use only {kind} and {queue}"),
        ({"url": "kafka://h", "topic": "{}"}, "use only {kind} and {queue}"),
        ({"url": "kafka://h", "topic": "{kind"}, "topic is"),
        ({"url": "kafka://h", "topic": "t", "sasl_mechanism": "GSSAPI"}, "sasl_mechanism is"),
        ({"url": "kafka://h", "topic": "t", "delivery_timeout": 0}, "delivery_timeout is 0"),
        ({"url": "kafka://h", "topic": "t", "connect_timeout": 61}, "connect_timeout is 61"),
        ({"url": "kafka://h", "topic": "t", "options": {"acks": 1}}, "acks cannot be set"),
        ({"url": "kafka://h", "topic": "t", "options": {"enable.idempotence": False}}, (
                "idempotence "
                "cannot"
                )),
        ({"url": "kafka://h", "topic": "t", "options": {"partitioner": "random"}}, "order of keys"),
        ({"url": "kafka://h", "topic": "t", "options": {"lingr.ms": 1}}, (
                "No such configuration "
                "property"
                )),
        ({"url": "kafka://h", "topic": "t", "options": {"batch.size": "x"}}, "batch.size"),
        ({"url": "kafka://h", "topic": "t", "options": {"error_cb": print}}, "error_cb is a"),
        ({"url": "kafka://h", "topic": "t", "options": {"retries": 0}}, "retries"),
    ],
)  # fmt: skip
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("kafka", config)


def test_messages_show_no_password():
    sink = Kafka("kafkas://u:sec%2Fret@h:1,i:2", "t", connect_timeout=0.1)
    assert sink.place == "t at h:1,i:2"
    assert sink._connection["sasl.password"] == "sec/ret"
    assert sink._connection["security.protocol"] == "SASL_SSL"
    with pytest.raises(SinkUnavailable) as found:
        asyncio.run(Kafka("kafka://u:secret@127.0.0.1:9", "t", connect_timeout=0.5).open())
    assert "secret" not in str(found.value)

"""Queues of moto's server, which answers as SQS does. Not of AWS."""

import asyncio
import json

import pytest

boto3 = pytest.importorskip("boto3")
from botocore.exceptions import ClientError  # noqa: E402

from forebay.errors import ConfigError, SinkUnavailable  # noqa: E402
from forebay.sinks import Accepted, Rejected, Sink, make_sink  # noqa: E402
from forebay.sinks.sqs import Sqs  # noqa: E402
from forebay.testing import Received, SinkContract, make_message  # noqa: E402
from tests.support.tcp_proxy import TcpProxy  # noqa: E402


@pytest.fixture(autouse=True)
def _credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def client(sqs_server):
    made = boto3.client("sqs", endpoint_url=f"http://{sqs_server}", region_name="eu-central-1")
    yield made
    made.close()


class _Queue(SinkContract):
    large_bytes = 200_000
    attributes = {}  # noqa: RUF012
    suffix = ""
    requests = 1

    @pytest.fixture(autouse=True)
    def _server(self, sqs_server, far_name, client, _credentials):
        self.server, self.client = sqs_server, client
        made = client.create_queue(QueueName=far_name + self.suffix, Attributes=self.attributes)
        self.queue_url = made["QueueUrl"]

    def make_sink(self, address=None) -> Sink:
        return Sqs(
            self.queue_url,
            endpoint_url=f"http://{address or self.server}",
            region="eu-central-1",
            requests=self.requests,
        )

    def received(self):
        found = []
        while True:
            answer = self.client.receive_message(
                QueueUrl=self.queue_url, MaxNumberOfMessages=10, MessageAttributeNames=["All"],
                AttributeNames=["All"], WaitTimeSeconds=0,
            )  # fmt: skip
            messages = answer.get("Messages", [])
            if not messages:
                return found
            for one in messages:
                values = {k: v["StringValue"] for k, v in one["MessageAttributes"].items()}
                headers = json.loads(values["forebay-headers"])
                found.append(
                    Received(
                        values["forebay-id"], values["forebay-kind"], one["Body"].encode(), headers
                    )
                )
                self.client.delete_message(
                    QueueUrl=self.queue_url, ReceiptHandle=one["ReceiptHandle"]
                )

    async def answers(self, *messages, sink=None):
        sink = sink or self.make_sink()
        await sink.open()
        try:
            return await sink.send(messages)
        finally:
            await sink.close()


@pytest.mark.slow
class TestSqs(_Queue):
    bulk = 200

    @pytest.mark.slow
    def test_several_requests_at_once_bring_every_message(self):
        self.requests = 8
        messages = [make_message(number) for number in range(1, 201)]
        answers = asyncio.run(self.answers(*messages))
        assert len({answer.proof for answer in answers}) == 200
        assert sorted(one.id for one in self.received()) == sorted(one.id for one in messages)

    def test_requests_are_small_enough(self):
        """Ten messages that are too large for one request are sent in several."""
        messages = [make_message(n, body='"%s"' % ("x" * 100_000)) for n in range(1, 11)]
        sizes = [len(entries) for entries in self.make_sink()._split(messages)]
        assert sizes == [2] * 5
        assert all(isinstance(one, Accepted) for one in asyncio.run(self.answers(*messages)))
        assert len(self.received()) == 10

    def test_a_request_that_is_refused_for_its_size_is_sent_one_by_one(self):
        async def use():
            sink = self.make_sink()
            await sink.open()
            send = sink._client.send_message_batch

            def refuses_two(Entries, **more):  # noqa: N803 - as boto3 names it
                if any(entry["Id"] == "1" for entry in Entries):
                    code = "AWS.SimpleQueueService.BatchRequestTooLong"
                    raise ClientError({"Error": {"Code": code}}, "SendMessageBatch")
                return send(Entries=Entries, **more)

            sink._client.send_message_batch = refuses_two
            try:
                return await sink.send([make_message(number) for number in (1, 2, 3)])
            finally:
                await sink.close()

        found = [type(answer) for answer in asyncio.run(use())]
        assert found == [Accepted, Rejected, Accepted]

    def test_a_message_above_the_limit_is_rejected_alone(self):
        large = make_message(2, body='"%s"' % ("x" * 2_000_000))
        first, second, third = asyncio.run(self.answers(make_message(1), large, make_message(3)))
        assert isinstance(second, Rejected)
        assert isinstance(first, Accepted)
        assert isinstance(third, Accepted)

    @pytest.mark.slow
    def test_characters_that_are_not_of_xml(self):
        message = make_message(
            1, body='{"text":"\uffff\ufffe\\u0001"}', headers={"odd": "\x01\uffff"}
        )
        assert isinstance(asyncio.run(self.answers(message))[0], Accepted)
        (found,) = self.received()
        assert found.body == b'{"text":"\\uffff\\ufffe\\u0001"}'
        assert json.loads(found.body) == json.loads(message.body)
        assert found.headers["odd"] == "\x01\uffff"

    def test_many_headers_arrive(self):
        message = make_message(1, headers={f"h{number}": "v" for number in range(20)})
        assert isinstance(asyncio.run(self.answers(message))[0], Accepted)
        assert len(self.received()[0].headers) == 23

    def test_a_missing_queue_is_unavailable(self):
        sink = Sqs(
            self.queue_url + "-missing",
            endpoint_url=f"http://{self.server}",
            region="eu-central-1",
        )
        with pytest.raises(SinkUnavailable, match="does not exist"):
            asyncio.run(sink.open())

    def test_a_queue_that_was_deleted_makes_messages_wait(self):
        async def use():
            sink = self.make_sink()
            await sink.open()
            self.client.delete_queue(QueueUrl=self.queue_url)
            try:
                return await sink.send([make_message(1)])
            finally:
                await sink.close()

        assert isinstance(asyncio.run(use())[0], SinkUnavailable)

    @pytest.mark.parametrize(
        ("failure", "answer"),
        [
            ({"SenderFault": True, "Code": "InvalidMessageContents"}, Rejected),
            ({"SenderFault": True, "Code": "KMS.ThrottlingException"}, SinkUnavailable),
            ({"SenderFault": True, "Code": "AccessDenied"}, SinkUnavailable),
            ({"SenderFault": False, "Code": "InternalError", "Message": "later"}, SinkUnavailable),
        ],
    )
    def test_entries_fail_on_their_own(self, failure, answer):
        async def use():
            sink = self.make_sink()
            await sink.open()
            send = sink._client.send_message_batch

            def fails_one(Entries, **more):  # noqa: N803 - as boto3 names it
                kept = [entry for entry in Entries if entry["Id"] != "1"]
                return send(Entries=kept, **more) | {"Failed": [{"Id": "1", **failure}]}

            sink._client.send_message_batch = fails_one
            try:
                return await sink.send([make_message(number) for number in (1, 2, 3)])
            finally:
                await sink.close()

        first, second, third = asyncio.run(use())
        assert (type(first), type(second), type(third)) == (Accepted, answer, Accepted)

    def test_a_cut_connection_and_swallowed_answers(self):
        async def use(proxy):
            sink = Sqs(
                self.queue_url,
                endpoint_url=f"http://{proxy.address}",
                region="eu-central-1",
                read_timeout=0.5,
            )
            await sink.open()
            proxy.swallow_answers()
            (silent,) = await sink.send([make_message(1)])
            proxy.thaw()
            proxy.refuse()
            (cut,) = await sink.send([make_message(1)])
            proxy.refuse(False)
            await sink.open()
            (accepted,) = await sink.send([make_message(1)])
            await sink.close()
            return silent, cut, accepted

        with TcpProxy(self.server) as proxy:
            silent, cut, accepted = asyncio.run(use(proxy))
        assert isinstance(silent, SinkUnavailable)
        assert isinstance(cut, SinkUnavailable)
        assert isinstance(accepted, Accepted)
        assert {found.id for found in self.received()} == {make_message(1).id}

    def test_a_cancelled_call_starts_no_more_requests(self):
        async def use(proxy):
            sink = Sqs(
                self.queue_url,
                endpoint_url=f"http://{proxy.address}",
                region="eu-central-1",
                read_timeout=1,
                requests=1,
            )
            await sink.open()
            proxy.freeze()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await sink.send([make_message(number) for number in range(1, 31)])
            assert sink._client is None
            proxy.thaw()
            answers = await sink.send([make_message(99)])
            await sink.close()
            return answers

        with TcpProxy(self.server) as proxy:
            assert isinstance(asyncio.run(use(proxy))[0], Accepted)
        ids = {found.id for found in self.received()}
        assert make_message(99).id in ids
        assert not ids & {make_message(number).id for number in range(11, 31)}


@pytest.mark.slow
class TestFifo(_Queue):
    bulk = 100
    suffix = ".fifo"
    attributes = {"FifoQueue": "true"}  # noqa: RUF012

    @pytest.mark.slow
    def test_a_repetition_is_dropped(self):
        async def use():
            return await self.answers(make_message(1)), await self.answers(make_message(1))

        assert all(isinstance(one, Accepted) for (one,) in asyncio.run(use()))
        assert len(self.received()) == 1

    def test_keys_and_ids_that_do_not_fit_are_replaced(self):
        keys = ["k", "with space", "x" * 300, "Süd"]
        messages = [make_message(n, ordering_key=key) for n, key in enumerate(keys, 1)]
        assert all(isinstance(one, Accepted) for one in asyncio.run(self.answers(*messages)))
        found = self.client.receive_message(
            QueueUrl=self.queue_url, MaxNumberOfMessages=10, AttributeNames=["All"]
        )["Messages"]
        groups = [one["Attributes"]["MessageGroupId"] for one in found]
        assert groups[0] == "k"
        assert len(set(groups)) == 4
        assert all(len(group) == 64 for group in groups[1:])


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs the setting queue_url"),
        ({"queue_url": "sqs://h/q"}, "queue_url is not an address"),
        ({"queue_url": "https://sqs.eu-central-1.amazonaws.com/"}, "names no queue"),
        ({"queue_url": "https://u:secret@h/1/q"}, "contains a user"),
        ({"queue_url": "https://h/1/q", "endpoint_url": "ftp://h"}, "endpoint_url is not"),
        ({"queue_url": "https://h/1/q", "region": ""}, "region is ''"),
        ({"queue_url": "https://h/1/q", "profile": 1}, "profile is 1"),
        ({"queue_url": "https://h/1/q", "requests": 0}, "requests is 0"),
        ({"queue_url": "https://h/1/q", "requests": 1.5}, "requests is not"),
        ({"queue_url": "https://h/1/q", "read_timeout": 0}, "read_timeout is 0"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem) as found:
        make_sink("sqs", config)
    assert "secret" not in str(found.value)


def test_the_region_is_that_of_the_address():
    sink = Sqs("https://sqs.eu-west-3.amazonaws.com/123/orders")
    assert sink._region == "eu-west-3"
    assert sink.place == "orders at sqs.eu-west-3.amazonaws.com"


@pytest.mark.slow
def test_missing_credentials_are_unavailable(monkeypatch, sqs_server, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    sink = Sqs(
        f"http://{sqs_server}/1/q", endpoint_url=f"http://{sqs_server}", region="eu-central-1"
    )
    with pytest.raises(SinkUnavailable, match="redentials"):
        asyncio.run(sink.open())


def test_an_unknown_profile_is_unavailable(sqs_server):
    sink = Sqs(f"http://{sqs_server}/1/q", profile="missing", region="eu-central-1")
    with pytest.raises(SinkUnavailable, match="missing"):
        asyncio.run(sink.open())

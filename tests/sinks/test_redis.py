"""Streams and lists of a real Valkey."""

import asyncio
import json

import pytest
import redis

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Accepted, Sent, Sink, make_sink
from forebay.sinks.redis import RedisList, RedisStream
from forebay.testing import Received, SinkContract, make_message


class TestRedisStream(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, far_name):
        self.server, self.name = redis_server, far_name
        self.client = redis.Redis.from_url(f"redis://{redis_server}")
        yield
        self.client.close()

    def make_sink(self, address=None) -> Sink:
        return RedisStream(f"redis://{address or self.server}", self.name)

    def received(self):
        found = []
        for _, entry in self.client.xrange(self.name):
            fields = {name.decode(): value for name, value in entry.items()}
            headers = {name: value.decode() for name, value in fields.items() if name != "body"}
            found.append(
                Received(headers["forebay-id"], headers["forebay-kind"], fields["body"], headers)
            )
        return found

    def lose(self, sent):
        # As after a restart without the newest entries: XDEL would leave a trace.
        entries = self.client.xrange(self.name)
        self.client.delete(self.name)
        for entry_id, fields in entries:
            if entry_id.decode() != sent.proof:
                self.client.xadd(self.name, fields, id=entry_id)

    def test_an_entry_that_a_consumer_deleted_is_no_loss(self):
        async def use():
            sink = self.make_sink()
            await sink.open()
            message = make_message(1)
            (answer,) = await sink.send([message])
            assert isinstance(answer, Accepted)
            self.client.xdel(self.name, answer.proof)
            found = await sink.seen([Sent(message, answer.proof)])
            await sink.close()
            return found

        assert asyncio.run(use()) == [None]

    def test_a_key_of_another_type_makes_messages_wait(self):
        self.client.set(self.name, "not a stream")

        async def use():
            sink = self.make_sink()
            await sink.open()
            try:
                return await sink.send([make_message(1)])
            finally:
                await sink.close()

        (answer,) = asyncio.run(use())
        assert isinstance(answer, SinkUnavailable)
        assert "WRONGTYPE" in str(answer)

    def test_a_missing_stream_is_not_created_unless_wanted(self):
        async def use():
            sink = RedisStream(f"redis://{self.server}", self.name, create=False)
            await sink.open()
            try:
                return await sink.send([make_message(1)])
            finally:
                await sink.close()

        assert isinstance(asyncio.run(use())[0], SinkUnavailable)
        assert not self.client.exists(self.name)


class TestRedisList(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, far_name):
        self.server, self.name = redis_server, far_name
        self.client = redis.Redis.from_url(f"redis://{redis_server}")
        yield
        self.client.close()

    def make_sink(self, address=None) -> Sink:
        return RedisList(f"redis://{address or self.server}", self.name)

    def received(self):
        found = []
        for text in self.client.lrange(self.name, 0, -1):
            whole = json.loads(text)
            body = text.decode().partition('"body":')[2][:-1].encode()
            found.append(Received(whole["id"], whole["kind"], body, whole["headers"]))
        return found


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"stream": "s"}, "needs the setting url"),
        ({"url": "redis://h", "stream": "s", "strem": 1}, "has no setting 'strem'"),
        ({"url": "http://h", "stream": "s"}, "url is not an address"),
        ({"url": "redis://h", "stream": ""}, "stream is ''"),
        ({"url": "redis://h", "stream": "s", "maxlen": 0}, "maxlen is 0"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("redis-stream", config)


def test_messages_show_no_password():
    assert "secret" not in RedisStream("redis://u:secret@h:1/0", "s").place

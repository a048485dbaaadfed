"""Streams and lists of a real Valkey."""

import asyncio
import json
from datetime import UTC, datetime

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

    def test_entries_that_are_too_old_are_removed(self):
        """By the ids of the stream, so in the time of the server, and about, in whole nodes."""
        for number in range(250):
            self.client.xadd(self.name, {"body": "old"}, id=f"{1_000_000 + number}-0")
        young = self.client.xadd(self.name, {"body": "young"})
        sink = RedisStream(f"redis://{self.server}", self.name, max_age=3600)
        assert all(isinstance(one, Accepted) for one in use(sink, [make_message(1)]))
        left = [entry_id for entry_id, _ in self.client.xrange(self.name)]
        assert young in left
        assert len(left) < 110

    def test_ages_are_those_of_the_server(self, monkeypatch):
        """A machine whose clock is a year ahead removes nothing that is young."""
        monkeypatch.setattr("time.time", lambda: datetime.now(UTC).timestamp() + 366 * 86_400)
        for _ in range(250):
            self.client.xadd(self.name, {"body": "young"})
        sink = RedisStream(f"redis://{self.server}", self.name, max_age=60)
        use(sink, [make_message(1)])
        assert self.client.xlen(self.name) == 251

    def test_a_young_entry_that_is_missing_is_lost_and_an_old_one_is_not(self):
        """A stream with an age can be verified, as far as it keeps entries."""
        sink = RedisStream(f"redis://{self.server}", self.name, max_age=3600)
        message = make_message(1)
        (answer,) = use(sink, [message])
        millis = int(answer.proof.partition("-")[0])
        sent = [
            Sent(message, answer.proof),
            Sent(message, f"{millis - 1_000}-0"),
            Sent(message, f"{millis - 3_601_000}-0"),
        ]
        assert asyncio.run(seen(sink, sent)) == [True, False, None]
        self.client.delete(self.name)
        assert asyncio.run(seen(sink, sent)) == [False, False, None]

    def test_an_entry_that_another_call_removes_meanwhile_is_not_lost(self, monkeypatch):
        """Between any two commands of a verification: the entry was there, or its end is known."""
        options = {"max_age": 3600}
        for nth in range(3):
            name = f"{self.name}-{nth}"
            sink = RedisStream(f"redis://{self.server}", name, **options)
            (millis, _) = self.client.time()
            old = f"{(millis - 7200) * 1000}-1"
            self.client.xadd(name, {"body": "{}"}, id=old)
            run = sink._run

            async def cut(commands, *, run=run, nth=nth, name=name):
                if commands[0][0] == "XTRIM":  # The check of a new connection.
                    return await run(commands)
                before = await run(commands[:nth])
                self.client.xadd(name, {"body": "new"})
                self.client.xtrim(name, minid=millis * 1000 - 3_600_000, approximate=False)
                return [*before, *await run(commands[nth:])]

            monkeypatch.setattr(sink, "_run", cut)
            found = asyncio.run(seen(sink, [Sent(make_message(1), old)]))
            assert found in ([True], [None])

    @pytest.mark.parametrize("right", ["+xadd", "+xtrim"])
    def test_a_stream_that_cannot_be_trimmed_is_noticed_before_sending(self, right):
        """Otherwise it would grow without a word."""
        user = f"user-{self.name}"
        commands = ["+ping", "+hello", "+client|setinfo", "+xadd", right]
        self.client.acl_setuser(
            user, enabled=True, passwords=["+pw"], keys=["*"], commands=commands
        )
        sink = RedisStream(f"redis://{user}:pw@{self.server}", self.name, max_age=60)
        try:
            if right == "+xtrim":
                assert isinstance(use(sink, [make_message(1)])[0], Accepted)
            else:
                with pytest.raises(SinkUnavailable, match="xtrim"):
                    use(sink, [make_message(1)])
                assert not self.client.exists(self.name)
        finally:
            self.client.acl_deluser(user)


def use(sink, messages):
    async def send():
        await sink.open()
        try:
            return await sink.send(messages)
        finally:
            await sink.close()

    return asyncio.run(send())


async def seen(sink, sent):
    await sink.open()
    try:
        return await sink.seen(sent)
    finally:
        await sink.close()


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
        ({"url": "redis://h", "stream": "s", "max_age": 0.5}, "max_age is 0.5"),
        ({"url": "redis://h", "stream": "s", "max_age": "1d"}, "max_age is '1d'"),
        ({"url": "redis://h", "stream": "s", "max_age": 9, "maxlen": 9}, "exclude each other"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("redis-stream", config)


def test_messages_show_no_password():
    assert "secret" not in RedisStream("redis://u:secret@h:1/0", "s").place

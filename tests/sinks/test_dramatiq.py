"""Dramatiq: its keys in a real Valkey, and a real Dramatiq worker."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
import redis

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Sink, make_sink
from forebay.sinks.dramatiq import Dramatiq
from forebay.testing import Received, SinkContract, make_message
from tests.support.far_workers import ORDER, SHIP, BehindAProxy, ends_in_a_worker, sends

#: In Redis, of these tests alone.
DATABASE = 6


class TestDramatiq(BehindAProxy, SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, far_name):
        self.server, self.name = redis_server, far_name
        with redis.Redis.from_url(f"redis://{redis_server}/{DATABASE}") as self.client:
            yield

    def make_sink(self, address=None, **options) -> Sink:
        return Dramatiq(f"redis://{address or self.server}/{DATABASE}", self.name, **options)

    def received(self):
        return [read(one) for one in self.messages()]

    def messages(self, namespace="dramatiq"):
        key = f"{namespace}:{self.name}"
        return [
            json.loads(self.client.hget(f"{key}.msgs", one))
            for one in self.client.lrange(key, 0, -1)
        ]

    def test_a_full_memory_makes_messages_wait(self):
        self.client.config_set("maxmemory", 1)
        try:
            answers = sends(self.make_sink(), [make_message(1), make_message(2)])
        finally:
            self.client.config_set("maxmemory", 0)
        assert all(isinstance(answer, SinkUnavailable) for answer in answers)
        assert "maxmemory" in str(answers[0])
        assert not self.received()

    def test_options_are_those_of_the_message(self):
        expires = datetime.now(UTC) + timedelta(seconds=100)
        sink = self.make_sink(tasks={ORDER: SHIP}, namespace="shop")
        sends(sink, [make_message(1, expires_at=expires)])
        (found,) = self.messages("shop")
        assert (found["actor_name"], found["queue_name"]) == (SHIP, self.name)
        assert 90_000 < found["options"]["max_age"] <= 100_000


def read(message):
    assert not message["args"]
    body = json.dumps(message["kwargs"], ensure_ascii=False, separators=(",", ":")).encode()
    headers = message["options"]["forebay"]
    return Received(message["message_id"], message["actor_name"], body, headers)


@pytest.mark.slow
def test_a_worker_of_dramatiq_runs_what_was_committed(database, redis_server, far_name):
    url = f"redis://{redis_server}/{DATABASE}"
    found = ends_in_a_worker(
        ["-m", "dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "1"],
        Dramatiq(url, far_name, tasks={ORDER: SHIP}),
        database=database, records=redis_server,
        environment={"FAR_BROKER": url, "FAR_QUEUE": far_name},
    )  # fmt: skip
    assert [one["id"] for one in found] == [one["headers"]["forebay-id"] for one in found]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs the setting url"),
        ({"url": "http://h"}, "url is not an address"),
        ({"url": "redis://h", "queue": "a b"}, "queue is 'a b'"),
        ({"url": "redis://h", "tasks": 7}, "tasks is 7"),
        ({"url": "redis://h", "namespace": ""}, "namespace is ''"),
        ({"url": "amqp://h", "max_priority": 256}, "max_priority is 256"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("dramatiq", config)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_messages_show_no_password(scheme):
    sink = make_sink("dramatiq", {"url": f"{scheme}://u:secret@127.0.0.1:9/0"})
    assert sink.place == "default at 127.0.0.1:9"
    with pytest.raises(SinkUnavailable) as caught:
        asyncio.run(sink.open())
    assert "secret" not in str(caught.value)

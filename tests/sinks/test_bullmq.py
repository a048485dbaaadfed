"""BullMQ: its keys in a real Valkey, and a real BullMQ worker of Node.js."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import redis

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Accepted, Sink, make_sink
from forebay.sinks.bullmq import BullMQ, job_id
from forebay.testing import Received, SinkContract, make_message
from forebay_bench.peers import javascript
from tests.support import far_workers
from tests.support.far_workers import ORDER, SHIP, BehindAProxy, ends_in_a_worker, sends

#: In Redis, of these tests alone.
DATABASE = 8

NODE = Path(far_workers.__file__).parent / "far_tasks" / "node"


class TestBullMQ(BehindAProxy, SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, far_name):
        self.server, self.name = redis_server, far_name
        url = f"redis://{redis_server}/{DATABASE}"
        with redis.Redis.from_url(url, decode_responses=True) as self.client:
            yield

    def make_sink(self, address=None, **options) -> Sink:
        return BullMQ(f"redis://{address or self.server}/{DATABASE}", self.name, **options)

    def jobs(self, prefix="bull"):
        # Workers take from the right end.
        waiting = self.client.lrange(f"{prefix}:{self.name}:wait", 0, -1)[::-1]
        return {one: self.client.hgetall(f"{prefix}:{self.name}:{one}") for one in waiting}

    def received(self):
        found = []
        for number, job in self.jobs().items():
            headers = json.loads(job["opts"])["forebay"]
            assert number == job_id(headers["forebay-id"])
            body = json.dumps(json.loads(job["data"]), ensure_ascii=False, separators=(",", ":"))
            found.append(Received(headers["forebay-id"], job["name"], body.encode(), headers))
        return found

    def test_a_repetition_of_a_job_that_is_there_adds_nothing(self):
        """Also in a call with others, which are added."""
        one, two = map(make_message, (1, 2))
        answers = sends(self.make_sink(), [one], [one, two], [two])
        assert answers == [Accepted(job_id(each.id)) for each in (one, one, two, two)]
        assert [found.id for found in self.received()] == [one.id, two.id]
        # A job that ran and is kept.
        self.client.lrem(f"bull:{self.name}:wait", 1, job_id(one.id))
        self.client.zadd(f"bull:{self.name}:completed", {job_id(one.id): 1})
        sends(self.make_sink(), [one])
        assert [found.id for found in self.received()] == [two.id]

    def test_options_are_those_of_the_job(self):
        sink = self.make_sink(
            tasks={ORDER: SHIP}, prefix="shop", attempts=7, backoff=1.5, keep_completed=8,
            keep_failed=9,
        )  # fmt: skip
        message = make_message(1)
        sends(sink, [message])
        (job,) = self.jobs("shop").values()
        options = json.loads(job["opts"])
        assert job["name"] == SHIP
        assert int(job["timestamp"]) == round(message.enqueued_at.timestamp() * 1000)
        assert (options["attempts"], options["backoff"]) == (7, {"type": "fixed", "delay": 1500})
        assert (options["removeOnComplete"], options["removeOnFail"]) == ({"age": 8}, {"age": 9})

    def test_a_full_memory_makes_messages_wait(self):
        self.client.config_set("maxmemory", 1)
        try:
            with pytest.raises(SinkUnavailable, match="maxmemory"):
                sends(self.make_sink(), [make_message(1), make_message(2)])
        finally:
            self.client.config_set("maxmemory", 0)
        assert not self.received()


@pytest.mark.slow
def test_a_worker_of_bullmq_runs_what_was_committed(database, redis_server, far_name):
    """It gets name, data and headers of each job, and completes it."""
    try:
        libraries = javascript.installed_folder(NODE, "tests-node")
    except javascript.MissingPeerError as error:
        pytest.skip(str(error))
    url = f"redis://{redis_server}/{DATABASE}"
    sink = BullMQ(url, far_name, tasks={ORDER: SHIP}, prefix="shop")
    environment = {
        "FAR_BROKER": url, "FAR_QUEUE": far_name, "FAR_PREFIX": "shop",
        "NODE_PATH": str(libraries / "node_modules"),
    }  # fmt: skip
    found = ends_in_a_worker(
        [str(NODE / "bullmq_worker.cjs")],
        sink, database=database, records=redis_server, environment=environment,
        program=shutil.which("node"),
    )  # fmt: skip
    assert [one["id"] for one in found] == [job_id(one["headers"]["forebay-id"]) for one in found]
    assert {one["name"] for one in found} == {SHIP}
    with redis.Redis.from_url(url, decode_responses=True) as client:
        key = f"shop:{far_name}"
        assert set(client.zrange(f"{key}:completed", 0, -1)) == {one["id"] for one in found}
        assert not client.exists(f"{key}:failed", f"{key}:wait", f"{key}:active")


def test_ids_of_jobs_are_different_for_different_messages():
    """BullMQ takes no colon."""
    ids = ["1-a-x:y", "1-a-x%3Ay", "1-a-x%y", "1-a-x~1", "1-a-x-y"]
    mapped = [job_id(one) for one in ids]
    assert len(set(mapped)) == len(ids)
    assert not any(":" in one for one in mapped)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs the setting url"),
        ({"url": "http://h"}, "url is not an address"),
        ({"url": "redis://h", "queue": "a:b"}, "queue is 'a:b', which has a colon"),
        ({"url": "redis://h", "prefix": "a b"}, "prefix is 'a b', which has spaces"),
        ({"url": "redis://h", "prefix": ""}, "prefix is ''"),
        ({"url": "redis://h", "tasks": ["a"]}, "tasks is"),
        ({"url": "redis://h", "attempts": 0}, "attempts is 0"),
        ({"url": "redis://h", "attempts": 1.5}, "attempts is not a whole number"),
        ({"url": "redis://h", "backoff": -1}, "backoff is -1"),
        ({"url": "redis://h", "keep_completed": "1d"}, "keep_completed is '1d'"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("bullmq", config)


def test_messages_show_no_password():
    sink = make_sink("bullmq", {"url": "redis://u:secret@127.0.0.1:9/0"})
    assert sink.place == "default at 127.0.0.1:9"
    with pytest.raises(SinkUnavailable) as caught:
        asyncio.run(sink.open())
    assert "secret" not in str(caught.value)

"""Sidekiq: its keys in a real Valkey, and a real Sidekiq."""

import asyncio
import json
import shutil
from datetime import UTC, datetime

import msgspec
import pytest
import redis

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Accepted, Rejected, Sink, make_sink
from forebay.sinks.sidekiq import Sidekiq, job_id
from forebay.testing import Received, SinkContract, make_message
from tests.support.far_workers import ORDER, SHIP, ends_in_a_worker, sends

#: In Redis, of these tests alone.
DATABASE = 7


class TestSidekiq(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, far_name):
        self.server, self.name = redis_server, far_name
        with redis.Redis.from_url(f"redis://{redis_server}/{DATABASE}") as self.client:
            self.client.flushdb()
            yield

    def make_sink(self, address=None, **options) -> Sink:
        options = {"tasks": {ORDER: "Shop::Ship"}} | options
        return Sidekiq(f"redis://{address or self.server}/{DATABASE}", self.name, **options)

    def jobs(self):
        # Workers take from the right end.
        return [json.loads(one) for one in self.client.lrange(f"queue:{self.name}", 0, -1)[::-1]]

    def received(self):
        found = []
        for job in self.jobs():
            assert job["jid"] == job_id(job["forebay"]["forebay-id"])
            (arguments,) = job["args"]
            body = json.dumps(arguments, ensure_ascii=False, separators=(",", ":")).encode()
            headers = job["forebay"]
            found.append(Received(headers["forebay-id"], headers["forebay-kind"], body, headers))
        return found

    def test_a_job_has_the_documented_form(self):
        """Times are seconds with a fraction: a whole number would be milliseconds for Sidekiq 8."""
        before = datetime.now(UTC).timestamp()
        at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)  # a whole second
        message = msgspec.structs.replace(make_message(1), enqueued_at=at)
        (answer,) = sends(self.make_sink(retry=5), [message])
        text = self.client.lindex(f"queue:{self.name}", 0).decode()
        (job,) = self.jobs()
        assert answer == Accepted(job["jid"])
        assert len(job["jid"]) == 24
        assert '"created_at":1767323045.0' in text
        assert before <= job.pop("enqueued_at") <= datetime.now(UTC).timestamp()
        assert job.pop("forebay")["forebay-id"] == message.id
        assert job == {
            "class": "Shop::Ship", "args": [{"n": 1}], "jid": job["jid"], "queue": self.name,
            "retry": 5, "created_at": at.timestamp(),
        }  # fmt: skip
        # Nothing else was written: no retries, no schedule.
        keys = {one.decode() for one in self.client.scan_iter()}
        assert keys == {"queues", f"queue:{self.name}"}
        assert self.client.smembers("queues") == {self.name.encode()}

    def test_a_kind_that_is_not_among_the_tasks_runs_no_class(self):
        """Its name could be that of any class: a producer chooses kinds."""
        known, evil = make_message(1), make_message(2, kind="Shop::Ship")
        answers = sends(self.make_sink(), [evil, known], [evil])
        assert [type(answer) for answer in answers] == [Rejected, Accepted, Rejected]
        answers = sends(self.make_sink(tasks=None), [evil, known])
        assert [type(answer) for answer in answers] == [Accepted, Rejected]
        assert [found.id for found in self.received()] == [known.id, evil.id]

    def test_a_call_is_enqueued_as_a_whole_or_not_at_all(self):
        """A full memory, and a key of another type."""
        self.client.config_set("maxmemory", 1)
        try:
            with pytest.raises(SinkUnavailable, match="maxmemory"):
                sends(self.make_sink(), [make_message(1), make_message(2)])
        finally:
            self.client.config_set("maxmemory", 0)
        assert not self.client.keys()
        self.client.set(f"queue:{self.name}", "not a list")
        with pytest.raises(SinkUnavailable, match="WRONGTYPE"):
            sends(self.make_sink(), [make_message(1)])


@pytest.mark.slow
def test_a_worker_of_sidekiq_runs_what_was_committed(database, redis_server, far_name):
    """Its class gets the arguments as one hash, and middleware the headers."""
    program = shutil.which("sidekiq")
    if program is None:
        pytest.skip("sidekiq is not installed")
    url = f"redis://{redis_server}/{DATABASE}"
    found = ends_in_a_worker(
        ["--require", "./sidekiq_tasks.rb", "--queue", far_name, "--concurrency", "1"],
        Sidekiq(url, far_name, tasks={SHIP: "Shop::Ship", ORDER: "Shop::Ship"}),
        database=database, records=redis_server, environment={"REDIS_URL": url}, program=program,
    )  # fmt: skip
    assert [one["id"] for one in found] == [job_id(one["headers"]["forebay-id"]) for one in found]
    with redis.Redis.from_url(url) as client:
        assert not client.exists("retry", "dead")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs the setting url"),
        ({"url": "http://h"}, "url is not an address"),
        ({"url": "redis://h", "queue": "a b"}, "which has spaces"),
        ({"url": "redis://h", "tasks": ["a"]}, "tasks is"),
        ({"url": "redis://h", "tasks": {"a": "shop.ship"}}, "is not the name of a class"),
        ({"url": "redis://h", "tasks": {"a": "Shop::"}}, "is not the name of a class"),
        ({"url": "redis://h", "retry": -1}, "retry is -1"),
        ({"url": "redis://h", "retry": 1.5}, "retry is not a whole number"),
        ({"url": "redis://h", "retry": "yes"}, "retry is 'yes'"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("sidekiq", config)


def test_messages_show_no_password():
    sink = make_sink("sidekiq", {"url": "redis://u:secret@127.0.0.1:9/0"})
    assert sink.place == "default at 127.0.0.1:9"
    with pytest.raises(SinkUnavailable) as caught:
        asyncio.run(sink.open())
    assert "secret" not in str(caught.value)

"""RQ: its keys in a real Valkey, and a real RQ worker."""

import asyncio
import json
import pickle
import zlib
from datetime import UTC, datetime, timedelta

import pytest
import redis
import rq

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Accepted, Rejected, Sink, make_sink
from forebay.sinks.rq import RQ, job_id
from forebay.testing import Received, SinkContract, make_message
from tests.support.far_workers import ORDER, BehindAProxy, ends_in_a_worker, sends

#: In Redis, of these tests alone.
DATABASE = 3


@pytest.fixture
def far(redis_server):
    """The address of an empty database."""
    url = f"redis://{redis_server}/{DATABASE}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()  # Ids of jobs are common to all queues.
    return url


class TestRQ(BehindAProxy, SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, far, far_name):
        self.server, self.name = redis_server, far_name
        with redis.Redis.from_url(far) as self.client:
            yield

    def make_sink(self, address=None, **options) -> Sink:
        return RQ(f"redis://{address or self.server}/{DATABASE}", self.name, **options)

    def received(self):
        waiting = self.client.lrange(f"rq:queue:{self.name}", 0, -1)
        return [read(self.client, one) for one in waiting]

    def test_a_repetition_of_a_job_that_is_there_enqueues_nothing(self):
        """Also in a call with others, which are enqueued."""
        one, two, three = map(make_message, (1, 2, 3))
        answers = sends(self.make_sink(), [one, two], [two, three], [one])
        assert [answer.is_duplicate for answer in answers] == [False, False, True, False, True]
        assert [found.id for found in self.received()] == [one.id, two.id, three.id]
        assert answers[0].proof == job_id(one.id)

    def test_a_job_that_another_sender_enqueues_meanwhile_is_there_once(self):
        """Between the check of a call and its write."""
        one, two = make_message(1), make_message(2)
        sink, other = self.make_sink(), self.make_sink()
        prepare = sink._data
        calls = []

        def meanwhile(queue, message):
            if not calls:
                client = other._connect()
                other._deliver(client, [one])
                other._disconnect(client)
            calls.append(message.id)
            return prepare(queue, message)

        sink._data = meanwhile
        answers = sends(sink, [one, two])
        assert [answer.is_duplicate for answer in answers] == [True, False]
        assert sorted(found.id for found in self.received()) == [one.id, two.id]

    def test_a_payload_that_is_no_object_is_rejected_and_blocks_no_other(self):
        """A task takes arguments by name."""
        one, two, three = make_message(1), make_message(2, body="[1]"), make_message(3)
        (first, second, third) = sends(self.make_sink(), [one, two, three])
        assert isinstance(second, Rejected)
        assert "no JSON object" in second.reason
        assert isinstance(first, Accepted)
        assert isinstance(third, Accepted)
        assert [found.id for found in self.received()] == [one.id, three.id]

    def test_a_kind_that_is_not_among_the_tasks_runs_no_function(self):
        """Its name could be that of any function of RQ's workers: a producer chooses kinds."""
        known, evil = make_message(1), make_message(2, kind="os.system")
        answers = sends(self.make_sink(tasks={ORDER: "shop.ship"}), [evil, known], [evil])
        assert [type(answer) for answer in answers] == [Rejected, Accepted, Rejected]
        assert [found.kind for found in self.received()] == ["shop.ship"]

    def test_a_full_memory_makes_messages_wait(self):
        self.client.config_set("maxmemory", 1)
        try:
            with pytest.raises(SinkUnavailable, match="maxmemory"):
                sends(self.make_sink(), [make_message(1)])
        finally:
            self.client.config_set("maxmemory", 0)
        assert not self.received()

    def test_options_are_those_of_the_job(self):
        expires = datetime.now(UTC) + timedelta(seconds=100)
        sink = self.make_sink(
            tasks={ORDER: "shop.ship"},
            serializer="json",
            job_timeout=7,
            result_ttl=8,
            failure_ttl=9,
        )
        message = make_message(1, expires_at=expires)
        sends(sink, [message])
        job = rq.job.Job.fetch(job_id(message.id), connection=self.client, serializer="json")
        assert (job.func_name, job.kwargs, job.args) == ("shop.ship", {"n": 1}, [])
        assert (job.timeout, job.result_ttl, job.failure_ttl) == (7, 8, 9)
        assert 90 < job.ttl <= 100
        assert job.description == f"shop.ship {message.id}"


def read(client, name):
    fields = client.hgetall(b"rq:job:" + name)
    function, _, args, kwargs = pickle.loads(zlib.decompress(fields[b"data"]))
    assert not args
    meta = pickle.loads(fields[b"meta"])
    assert job_id(meta["forebay-id"]) == name.decode()
    body = json.dumps(kwargs, ensure_ascii=False, separators=(",", ":")).encode()
    return Received(meta["forebay-id"], function, body, meta)


@pytest.mark.slow
def test_a_worker_of_rq_runs_what_was_committed(database, redis_server, far, far_name):
    sink = RQ(far, far_name, tasks={"shop.ship": "rq_tasks.ship", ORDER: "rq_tasks.ship"})
    found = ends_in_a_worker(
        ["-m", "rq.cli", "worker", "-w", "rq.SimpleWorker", "--url", far, far_name],
        sink, database=database, records=redis_server, environment={},
    )  # fmt: skip
    assert [one["id"] for one in found] == [job_id(one["headers"]["forebay-id"]) for one in found]


def test_ids_of_jobs_are_different_for_different_messages():
    """RQ allows letters, digits, - and _ only."""
    ids = ["1-a-x_y", "1-a-x.y", "1-a-x:y", "1-a-x~1", "1-a-x-y", "1-a-x_2ey", "1-a-x_5fy"]
    mapped = [job_id(one) for one in ids]
    assert len(set(mapped)) == len(ids)
    for one in mapped:
        rq.job.validate_job_id(one)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs the setting url"),
        ({"url": "http://h"}, "url is not an address"),
        ({"url": "redis://h", "queue": ""}, "queue is ''"),
        ({"url": "redis://h", "tasks": ["a"]}, "tasks is"),
        ({"url": "redis://h", "tasks": {"a": 1}}, "tasks is"),
        ({"url": "redis://h", "tasks": {"a": "ship"}}, "names no module"),
        ({"url": "redis://h", "serializer": "yaml"}, "not one of pickle, json"),
        ({"url": "redis://h", "job_timeout": 0}, "job_timeout is 0"),
        ({"url": "redis://h", "result_ttl": 1.5}, "result_ttl is not a whole number"),
        ({"url": "redis://h", "retries": 1}, "has no setting 'retries'"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("rq", config)


def test_messages_show_no_password():
    sink = make_sink("rq", {"url": "redis://u:secret@127.0.0.1:9/0"})
    assert sink.place == "default at 127.0.0.1:9"
    with pytest.raises(SinkUnavailable) as caught:
        asyncio.run(sink.open())
    assert "secret" not in str(caught.value)

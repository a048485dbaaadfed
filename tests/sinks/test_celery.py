"""Celery: its keys in a real Valkey, and a real Celery worker."""

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta

import celery
import pytest
import redis

from forebay.errors import ConfigError, SinkUnavailable
from forebay.sinks import Accepted, Sink, make_sink
from forebay.sinks.celery import Celery
from forebay.testing import Received, SinkContract, make_message
from tests.support.far_workers import ORDER, SHIP, BehindAProxy, ends_in_a_worker, sends

#: In Redis, of these tests alone.
DATABASE = 5


class TestCelery(BehindAProxy, SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, far_name):
        self.server, self.name = redis_server, far_name
        with redis.Redis.from_url(f"redis://{redis_server}/{DATABASE}") as self.client:
            yield

    def make_sink(self, address=None, **options) -> Sink:
        return Celery(f"redis://{address or self.server}/{DATABASE}", queue=self.name, **options)

    def received(self):
        return [read(one) for one in self.tasks(self.name)]

    def tasks(self, queue):
        return [json.loads(one) for one in reversed(self.client.lrange(queue, 0, -1))]

    def test_a_call_is_all_or_nothing_while_memory_is_full(self):
        self.client.config_set("maxmemory", 1)
        try:
            with pytest.raises(SinkUnavailable, match="maxmemory"):
                sends(self.make_sink(), [make_message(1)])
        finally:
            self.client.config_set("maxmemory", 0)
        assert not self.received()

    def test_ids_expiry_and_names_are_those_of_the_task(self):
        expires = datetime.now(UTC) + timedelta(seconds=100)
        message = make_message(1, expires_at=expires)
        sends(self.make_sink(tasks={ORDER: SHIP}), [message])
        (task,) = self.tasks(self.name)
        assert task["headers"]["id"] == task["properties"]["correlation_id"] == message.id
        assert task["headers"]["task"] == SHIP
        assert task["headers"]["expires"] == expires.isoformat()

    def test_headers_of_jobs_replace_none_of_celery(self):
        headers = {"task": "os.remove", "ID": "7", "traceparent": "00-ab-cd-01"}
        message = make_message(1, headers=headers)
        sends(self.make_sink(), [message])
        found = self.tasks(self.name)[0]["headers"]
        assert (found["task"], found["id"]) == (message.kind, message.id)
        assert found["traceparent"] == "00-ab-cd-01"
        assert (found["forebay-header-task"], found["forebay-header-ID"]) == ("os.remove", "7")

    def test_an_app_brings_broker_routes_and_settings(self):
        """Its result backend is not needed: it may be away."""
        app = celery.Celery(
            "shop", broker=f"redis://{self.server}/{DATABASE}", set_as_current=False
        )
        app.conf.result_backend = "redis://127.0.0.1:9/0"
        app.conf.task_routes = {SHIP: {"queue": f"{self.name}-ships"}}
        app.conf.task_default_queue = f"{self.name}-others"
        sink = Celery(app=app, tasks={ORDER: SHIP})
        assert sends(sink, [make_message(1), make_message(2, kind="other")]) == [Accepted()] * 2
        assert [read(one).kind for one in self.tasks(f"{self.name}-ships")] == [SHIP]
        assert [read(one).kind for one in self.tasks(f"{self.name}-others")] == ["other"]


def read(task):
    assert task["properties"]["body_encoding"] == "base64"
    args, kwargs, _ = json.loads(base64.b64decode(task["body"]))
    assert not args
    body = json.dumps(kwargs, ensure_ascii=False, separators=(",", ":")).encode()
    headers = task["headers"]
    return Received(headers["id"], headers["task"], body, headers)


@pytest.mark.slow
def test_a_worker_of_celery_runs_what_was_committed(database, redis_server, far_name):
    url = f"redis://{redis_server}/{DATABASE}"
    found = ends_in_a_worker(
        ["-m", "celery", "-A", "celery_tasks", "worker", "--pool=solo", "-Q", far_name, "-l",
            "info"],
        Celery(url, queue=far_name, tasks={ORDER: SHIP}),
        database=database, records=redis_server, environment={"FAR_BROKER": url},
    )  # fmt: skip
    assert [one["id"] for one in found] == [one["headers"]["forebay-id"] for one in found]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs either url or app"),
        (
            {"url": "redis://h", "app": celery.Celery(set_as_current=False)},
            "needs either url or app",
        ),
        ({"app": "shop"}, "app is 'shop', not a Celery app"),
        ({"url": "h:6379"}, "url is not an address"),
        ({"url": 7}, "url is not an address"),
        ({"url": "redis://h", "queue": ""}, "queue is ''"),
        ({"url": "redis://h", "tasks": "a"}, "tasks is"),
        ({"url": "redis://h", "connect_timeout": 0}, "connect_timeout is 0"),
    ],
)
def test_a_configuration_is_checked_without_a_server(config, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sink("celery", config)


def test_messages_show_no_password():
    app = celery.Celery(broker="redis://u:secret@127.0.0.1:9/0", set_as_current=False)
    for sink in (Celery("redis://u:secret@127.0.0.1:9/0"), Celery(app=app)):
        assert sink.place == "celery at 127.0.0.1:9"
        with pytest.raises(SinkUnavailable) as caught:
            asyncio.run(sink.open())
        assert "secret" not in str(caught.value)

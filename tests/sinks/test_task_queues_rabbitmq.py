"""Celery and Dramatiq through a real RabbitMQ."""

import asyncio

import pika
import pytest

from forebay.errors import SinkUnavailable
from forebay.sinks import Accepted
from forebay.sinks.celery import Celery
from forebay.sinks.dramatiq import Dramatiq
from forebay.testing import make_message
from tests.support.far_workers import ORDER, SHIP, ends_in_a_worker


@pytest.fixture
def url(rabbitmq_server):
    return f"amqp://guest:guest@{rabbitmq_server.address}/%2F"


@pytest.fixture(params=["celery", "dramatiq"])
def sink(request, url, far_name):
    if request.param == "celery":
        return Celery(url.replace("%2F", "/"), queue=far_name, tasks={ORDER: SHIP})
    return Dramatiq(url, far_name, tasks={ORDER: SHIP})


@pytest.mark.slow
def test_a_worker_runs_what_was_committed(sink, url, far_name, database, redis_server):
    command = {
        "celery": ["-m", "celery", "-A", "celery_tasks", "worker", "--pool=solo", "-Q", far_name],
        "dramatiq": ["-m", "dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "1"],
    }[sink.type]
    found = ends_in_a_worker(
        command, sink, database=database, records=redis_server,
        environment={"FAR_BROKER": url, "FAR_QUEUE": far_name},
    )  # fmt: skip
    assert [one["id"] for one in found] == [one["headers"]["forebay-id"] for one in found]


def test_a_queue_that_was_deleted_loses_nothing(sink, url, far_name):
    """RabbitMQ would drop the message and confirm it."""

    async def use():
        await sink.open()
        try:
            answers = [*await sink.send([make_message(1)])]
            await asyncio.to_thread(delete_queue, url, far_name)
            answers += await sink.send([make_message(2)])
            if isinstance(answers[1], SinkUnavailable):  # A drain opens again then.
                await sink.open()
                answers[1:] = await sink.send([make_message(2)])
            return answers
        finally:
            await sink.close()

    assert asyncio.run(use()) == [Accepted(), Accepted()]
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        found, _, body = connection.channel().basic_get(far_name, auto_ack=True)
    assert found is not None
    assert b'"n"' in body


def delete_queue(url, name):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_delete(name)

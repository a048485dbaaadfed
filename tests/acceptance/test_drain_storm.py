"""Drains that share a group while they are killed: nothing is lost, each key keeps its order,
and repetitions are bounded.
"""

import json
import random
import threading
import time
from collections import Counter, defaultdict

import pika
import psycopg
import pytest
import redis

from forebay.testing import Received
from tests.support.engine import connect, depth, enqueue_many
from tests.support.waiting import wait_for
from tests.support.worker_process import Crew

pytestmark = pytest.mark.slow

KEYS = 50
BATCH = 100


def produce(dsn: str, until: float, per_second: int, written: list[int]) -> None:
    """Enqueue numbered messages, in transactions of ten; a fifth of these are rolled back."""
    rng = random.Random(7)
    number = 0
    began = time.monotonic()
    with psycopg.connect(dsn) as conn:
        while (now := time.monotonic()) < until:
            if number > (now - began) * per_second:
                wait_for(lambda at=now: time.monotonic() > at + 0.01)
                continue
            # A negative number is of a transaction that is rolled back.
            rolls_back = rng.random() < 0.2
            numbers = [number + place for place in range(10)]
            jobs = [
                {
                    "kind": "moved",
                    "queue": "storm",
                    "ordering_key": f"key {each % KEYS}" if each % 3 else None,
                    "args": {"n": -1 if rolls_back else each},
                }
                for each in numbers
            ]
            enqueue_many(conn, jobs)
            if rolls_back:
                conn.rollback()
            else:
                conn.commit()
                written += numbers
                number += 10


def storm(
    dsn: str, workers: Crew, sink: str, config: dict, *, size: int, seconds: float, kills: bool
) -> tuple[list[int], int]:
    """Produce and drain for some seconds, with a kill every two, until all is drained.

    Return the numbers and the kills.
    """
    workers.options = {
        "app": "tests.support.drain_storm_app:app",
        "environment": {"STORM_SINK": sink, "STORM_CONFIG": json.dumps(config)},
    }
    crew = [workers.start(wait=False) for _ in range(size)]
    rng = random.Random(1)
    written: list[int] = []
    killed = 0
    until = time.monotonic() + seconds
    producer = threading.Thread(target=produce, args=(dsn, until, 500, written))
    producer.start()
    next_kill = time.monotonic() + 2
    while time.monotonic() < until:
        now = time.monotonic()
        wait_for(lambda at=now: time.monotonic() >= at + 0.1)
        if kills and now >= next_kill:
            next_kill = now + 2
            victim = rng.randrange(size)
            wait_for(lambda at=victim: "has lease" in crew[at].log, 30)
            crew[victim].kill()
            killed += 1
            crew[victim] = workers.start(wait=False)
    producer.join()
    with connect(dsn) as conn:
        wait_for(
            lambda: not any(sum(numbers) for numbers in depth(conn).values()),
            120,
            lambda: f"{depth(conn)}\n{workers.logs[-5000:]}",
        )
    return written, killed


def check(written: list[int], received: list[Received], killed: int) -> None:
    """Nothing lost or invented, repetitions bounded, and the first arrivals of each key in
    order.
    """
    arrived = [json.loads(message.body)["n"] for message in received]
    assert set(arrived) == set(written)
    repeated = sum(count - 1 for count in Counter(arrived).values())
    print(f"{len(written)} messages, {killed} kills, {repeated} repeated")
    assert repeated <= killed * BATCH
    ids = {message.id for message in received}
    assert len(ids) == len(written)
    by_key = defaultdict(list)
    for number, message in zip(arrived, received, strict=True):
        if key := message.headers.get("forebay-ordering-key"):
            by_key[key].append(number)
    assert len(by_key) == KEYS
    for key, numbers in by_key.items():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first), key


@pytest.mark.parametrize(
    ("size", "seconds", "kills"),
    [
        pytest.param(2, 9, True, id="two"),
        pytest.param(2, 4, False, id="without kills", marks=pytest.mark.nightly),
        pytest.param(2, 60, True, id="two for a minute", marks=pytest.mark.nightly),
        pytest.param(10, 60, True, id="ten for a minute", marks=pytest.mark.nightly),
    ],
)
def test_drains_of_one_group_lose_nothing_while_they_are_killed(
    database, workers, redis_server, far_name, size, seconds, kills
):
    config = {"url": f"redis://{redis_server}", "stream": far_name}
    written, killed = storm(
        database, workers, "redis-stream", config, size=size, seconds=seconds, kills=kills
    )
    with redis.Redis.from_url(f"redis://{redis_server}") as far:
        received = [
            Received(
                fields[b"forebay-id"].decode(),
                fields[b"forebay-kind"].decode(),
                fields[b"body"],
                {name.decode(): value.decode() for name, value in fields.items()},
            )
            for _, fields in far.xrange(far_name)
        ]
    check(written, received, killed)


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        pytest.param(2, 6, id="two"),
        pytest.param(10, 60, id="ten for a minute", marks=pytest.mark.nightly),
    ],
)
def test_drains_to_rabbitmq_lose_nothing_while_they_are_killed(
    database, workers, rabbitmq_server, far_name, size, seconds
):
    url = f"amqp://guest:guest@{rabbitmq_server.address}/%2F"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(far_name, durable=True)
        config = {"url": url, "routing_key": far_name}
        written, killed = storm(
            database, workers, "rabbitmq", config, size=size, seconds=seconds, kills=True
        )
        received = []
        while (found := channel.basic_get(far_name, auto_ack=True))[0] is not None:
            _, properties, body = found
            headers = properties.headers
            received.append(Received(properties.message_id, properties.type, body, headers))
    check(written, received, killed)

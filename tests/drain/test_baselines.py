"""What teams do without a staging table, and how each way fails.

Beside each, the same with a drain.

The three ways are those of the staged drain's author: push before the commit, push after it, and
push before it and let the consumer fail until the row is there.
"""

import json
import os
import subprocess
import sys

import psycopg
import pytest
import redis

from forebay.sending import Drain
from forebay.sinks.redis import RedisList
from tests.support.drains import draining, enqueue
from tests.support.engine import one
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def far(redis_server):
    with redis.Redis.from_url(f"redis://{redis_server}") as client:
        yield client


@pytest.fixture(autouse=True)
def _orders(conn):
    conn.execute("create table orders (n int primary key)")


@pytest.fixture
def drain(app, redis_server, far_name):
    return Drain(app, "orders", sink=RedisList(f"redis://{redis_server}", far_name), queue="orders")


def consume(far, name, conn) -> tuple[int, int]:
    """Work each message of the list as a consumer does that needs the row.

    Return how many succeeded and how many failed.
    """
    succeeded = failed = 0
    for _ in range(far.llen(name)):
        message = far.lpop(name)
        n = json.loads(message)["body"]["n"]
        if one(conn, "select count(*) from orders where n = %s", n) == 1:
            succeeded += 1
        else:
            failed += 1
            far.rpush(name, message)
    return succeeded, failed


def push(far, name, n):
    far.rpush(name, json.dumps({"body": {"n": n}}))


def test_a_push_before_the_commit_acts_on_data_that_never_exists(conn, far, far_name):
    with conn.transaction(force_rollback=True):
        conn.execute("insert into orders values (1)")
        push(far, far_name, 1)
    assert consume(far, far_name, conn) == (0, 1)


async def test_a_drain_sends_nothing_of_a_transaction_that_rolled_back(
    conn, far, far_name, drain, database
):
    with conn.transaction(force_rollback=True):
        conn.execute("insert into orders values (1)")
        enqueue(conn, 1)
    conn.execute("insert into orders values (0)")
    enqueue(conn, 1)
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
    assert consume(far, far_name, conn) == (1, 0)


DIES_AFTER_COMMIT = """
import os, sys, psycopg
with psycopg.connect(sys.argv[1]) as conn:
    conn.execute("insert into orders values (0)")
    if sys.argv[2] == "staged":
        conn.execute("select forebay.enqueue('order.created', '{\\"n\\": 0}', queue => 'orders')")
    conn.commit()
    os._exit(9)  # before the push
"""


def die_after_commit(database: str, way: str) -> None:
    command = [sys.executable, "-c", DIES_AFTER_COMMIT, database, way]
    assert subprocess.run(command, env=os.environ, check=False).returncode == 9


def test_a_push_after_the_commit_is_lost_with_its_process(conn, database, far, far_name):
    die_after_commit(database, "pushed")
    assert one(conn, "select count(*) from orders") == 1
    assert far.llen(far_name) == 0


async def test_a_staged_message_survives_its_process(conn, database, far, far_name, drain):
    die_after_commit(database, "staged")
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
    assert consume(far, far_name, conn) == (1, 0)


def test_a_consumer_that_fails_until_the_row_is_there_works_for_nothing(
    conn, database, far, far_name
):
    failures = 0
    with psycopg.connect(database) as producer:
        producer.execute("insert into orders values (0)")
        push(far, far_name, 0)
        for _ in range(3):
            failures += consume(far, far_name, conn)[1]
        producer.commit()
    assert consume(far, far_name, conn) == (1, 0)
    assert failures == 3


async def test_a_drain_sends_nothing_before_the_commit(conn, database, far, far_name, drain):
    async with draining(drain, database) as worker:
        with psycopg.connect(database) as producer:
            producer.execute("insert into orders values (0)")
            enqueue(producer, 1)
            # Another message is enqueued later and sent meanwhile.
            conn.execute("insert into orders values (1)")
            conn.execute("select forebay.enqueue('order.created', '{\"n\": 1}', queue => 'orders')")
            await wait_for_async(lambda: worker.stats.done == 1)
            assert consume(far, far_name, conn) == (1, 0)
        await wait_for_async(lambda: worker.stats.done == 2)
    assert consume(far, far_name, conn) == (1, 0)

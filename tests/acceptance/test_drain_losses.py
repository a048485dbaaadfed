"""Brokers that lose what they accepted: with ``verify`` and an audit nothing is missing at the end, and every loss is counted."""

import asyncio
import contextlib
import json
import random
from datetime import timedelta

import nats
import pytest
import redis

import forebay
from forebay.drain import Drain
from forebay.sinks import Accepted, Message
from forebay.sinks.forebay import ForebayDatabase
from forebay.sinks.kafka import Kafka
from forebay.sinks.nats import JetStream
from forebay.sinks.redis import RedisStream
from forebay.testing import LyingSink
from forebay_bench import _servers
from tests.sinks.test_kafka import create, read_all
from tests.support.drains import draining
from tests.support.engine import connect, enqueue_many
from tests.support.fix_db import migrated_database
from tests.support.waiting import wait_for, wait_for_async

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

MANY = pytest.param(200_000, marks=pytest.mark.nightly)


@pytest.fixture
def other_database(server, template):
    """The address of a second database, to which the first one sends."""
    with migrated_database(server, template) as dsn:
        yield dsn


def stage(conn, count):
    """Enqueue numbered jobs, a tenth of them with ordering keys."""
    for start in range(0, count, 10_000):
        enqueue_many(
            conn,
            [
                {
                    "kind": "moved",
                    "queue": "orders",
                    "args": {"n": n},
                    "ordering_key": f"key {n % 1000}" if n % 10 == 0 else None,
                }
                for n in range(start, min(count, start + 10_000))
            ],
        )


async def drained(conn, drain, database, count):
    """Drain until this many jobs are done."""
    async with draining(drain, database) as worker:
        await wait_for_async(lambda: worker.stats.done >= count, 600)


def lost(conn):
    """Return how many losses the drain counted."""
    query = "select coalesce(sum(count), 0)::bigint from forebay.mirror_count where mirror = 'drain.orders' and outcome = 'lost'"
    return conn.execute(query).fetchone()[0]


@pytest.mark.parametrize("verify", [True, False], ids=["verify", "control"])
@pytest.mark.parametrize("count", [3_000, MANY])
async def test_a_stream_that_drops_what_it_accepted(
    database, conn, redis_server, far_name, count, verify
):
    lying = LyingSink(RedisStream(f"redis://{redis_server}", far_name), {"drop": 0.01}, seed=count)
    drain = Drain(forebay.App(database), "orders", sink=lying, queue="orders", verify=verify)
    stage(conn, count)
    await drained(conn, drain, database, count)
    with redis.Redis.from_url(f"redis://{redis_server}") as far:
        arrived = [json.loads(fields[b"body"])["n"] for _, fields in far.xrange(far_name)]
    assert lying.done["drop"] > 10
    if verify:
        assert sorted(arrived) == list(range(count))
        assert lost(conn) == lying.done["drop"]
    else:
        assert len(arrived) == count - lying.done["drop"]
        assert lost(conn) == 0


class ForgetfulStream(JetStream):
    """A stream that loses a hundredth of what it acknowledged, and still recognises repetitions of it.

    The messages are deleted by request, and the server must not say that they can be: else they count as removed on purpose.
    """

    def __init__(self, address: str, name: str, seed: int) -> None:
        super().__init__(f"nats://{address}", name, stream=name)
        self._address, self._name = address, name
        self._random = random.Random(seed)
        self.deleted: list[Message] = []

    async def send(self, messages):
        answers = await super().send(messages)
        lost = [
            (message, answer.proof)
            for message, answer in zip(messages, answers, strict=True)
            if isinstance(answer, Accepted) and self._random.random() < 0.01
        ]
        if lost:
            client = await nats.connect(f"nats://{self._address}")
            try:
                for _, proof in lost:
                    number = int(proof.rpartition(":")[2])
                    await client.jetstream().delete_msg(self._name, number)
            finally:
                await client.close()
        self.deleted += [message for message, _ in lost]
        return answers

    async def _state(self, stream):
        info = await super()._state(stream)
        info["config"] |= {"deny_delete": True, "deny_purge": True}
        return info


async def read_stream(address, name):
    """Return the messages of a stream as they are, by a consumer of it."""
    client = await nats.connect(f"nats://{address}")
    try:
        streams = client.jetstream()
        count = (await streams.stream_info(name)).state.messages
        reader = await streams.pull_subscribe(name, stream=name)
        found = []
        while len(found) < count:
            for one in await reader.fetch(min(500, count - len(found)), timeout=10):
                found.append(one)
                await one.ack()
        return found
    finally:
        await client.close()


@pytest.mark.parametrize("verify", [True, False], ids=["verify", "control"])
@pytest.mark.parametrize("count", [3_000, MANY])
async def test_a_jetstream_that_loses_what_it_acknowledged(
    database, conn, nats_server, far_name, count, verify
):
    """
    A repetition under the same id would be swallowed by the duplicate window: each loss raises the generation of the id.
    """
    client = await nats.connect(f"nats://{nats_server}")
    await client.jetstream().add_stream(name=far_name, subjects=[far_name], duplicate_window=7200)
    await client.close()
    sink = ForgetfulStream(nats_server, far_name, seed=count)
    drain = Drain(forebay.App(database), "orders", sink=sink, queue="orders", verify=verify)
    stage(conn, count)
    await drained(conn, drain, database, count)
    stored = await read_stream(nats_server, far_name)
    arrived = [json.loads(one.data)["n"] for one in stored]
    assert len(sink.deleted) > 10
    if not verify:
        assert len(arrived) == count - len(sink.deleted)
        assert lost(conn) == 0
        return
    assert sorted(arrived) == list(range(count))
    assert lost(conn) == len(sink.deleted)
    ids = {one.headers["Nats-Msg-Id"] for one in stored}
    assert {one.after_loss().id for one in sink.deleted} - {one.id for one in sink.deleted} <= ids
    assert {one.id for one in sink.deleted}.isdisjoint(ids)


@pytest.mark.parametrize("verify", [True, False], ids=["verify", "control"])
@pytest.mark.parametrize("count", [3_000, MANY])
async def test_another_forebay_that_drops_what_it_accepted(
    database, conn, other_database, count, verify
):
    lying = LyingSink(ForebayDatabase(other_database, queue="far"), {"drop": 0.01}, seed=count)
    drain = Drain(forebay.App(database), "orders", sink=lying, queue="orders", verify=verify)
    stage(conn, count)
    await drained(conn, drain, database, count)
    with connect(other_database) as far:
        query = "select (args->>'n')::integer from forebay.log"
        arrived = [number for (number,) in far.execute(query)]
    assert lying.done["drop"] > 10
    if verify:
        assert sorted(arrived) == list(range(count))
        assert lost(conn) == lying.done["drop"]
    else:
        assert len(arrived) == count - lying.done["drop"]
        assert lost(conn) == 0


@pytest.mark.parametrize("audit", [True, False], ids=["audit", "control"])
@pytest.mark.parametrize("count", [3_000, MANY])
async def test_a_broker_that_is_killed_and_forgets_everything(
    database, conn, tmp_path, far_name, count, audit
):
    port = _servers.free_port()
    server = f"127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(_servers.served(_servers.tansu_command(port), port, tmp_path))
        create(server, far_name)
        lying = LyingSink(
            Kafka(f"kafka://{server}", far_name, delivery_timeout=3.0), {"drop": 0.01}, seed=count
        )
        drain = Drain(
            forebay.App(database),
            "orders",
            sink=lying,
            queue="orders",
            verify=True,
            keep_proofs=timedelta(hours=1),
        )
        stage(conn, count)
        async with draining(drain, database) as worker:
            await wait_for_async(lambda: worker.stats.done >= count // 2, 300)
            process.kill()
            process.wait()
            stack.enter_context(_servers.served(_servers.tansu_command(port), port, tmp_path))
            create(server, far_name)
            await wait_for_async(lambda: worker.stats.done >= count, 600)
            in_calls = drain.delivery.counts["lost"]
        assert (
            in_calls > 10
        )  # A drop in the call that the kill ended is sent again without proof of its loss.
        proofs = "select count(*) = %s from forebay.result"
        wait_for(lambda: conn.execute(proofs, [count]).fetchone()[0])
        if not audit:
            arrived = {json.loads(one.value())["n"] for one in read_all(server, far_name)}
            assert len(arrived) < count
            return
        sink = Kafka(f"kafka://{server}", far_name)
        auditor = Drain(
            forebay.App(database), "orders", sink=sink, queue="orders", keep_proofs=3600.0
        )
        found = await auditor.audit(database)
        assert found.lost == found.resent > 0
        assert found.unknown == 0
        await drained(conn, auditor, database, found.resent)
        again = await asyncio.wait_for(auditor.audit(database), 300)
        assert (again.read, again.lost) == (count, 0)
        arrived = {json.loads(one.value())["n"] for one in read_all(server, far_name)}
        assert arrived == set(range(count))
        assert lost(conn) == in_calls + found.lost

"""Brokers that lose what they accepted: with ``verify`` and an audit nothing is missing at the
end, and every loss is counted.
"""

import asyncio
import contextlib
import json
import random
from datetime import timedelta

import nats
import psycopg
import pytest
import redis

import forebay
from examples.six_sinks import servers
from forebay.sending import Drain
from forebay.sinks import Accepted
from forebay.sinks.forebay import ForebayDatabase
from forebay.sinks.kafka import Kafka
from forebay.sinks.nats import JetStream
from forebay.sinks.redis import RedisStream
from forebay.testing import LyingSink
from tests.sinks.test_kafka import create, read_all
from tests.support.drains import draining
from tests.support.engine import enqueue_many
from tests.support.fix_db import migrated_database
from tests.support.waiting import wait_for, wait_for_async

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


def runs(many: int, *, has_control_in_ci: bool = False) -> list:
    """Return how many messages are sent, and whether the drain looks for a proof: few, many, and
    few without, which are lost. One control shows in CI that these tests see it.
    """
    control = () if has_control_in_ci else pytest.mark.nightly
    return [
        pytest.param(3_000, True, id="few"),
        pytest.param(many, True, id="many", marks=pytest.mark.nightly),
        pytest.param(3_000, False, id="control", marks=control),
    ]


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
    query = (
        "select coalesce(sum(count), 0)::bigint from forebay.mirror_count where mirror = "
        "'drain.orders' and outcome = 'lost'"
    )
    return conn.execute(query).fetchone()[0]


@pytest.mark.parametrize(("count", "verify"), runs(200_000, has_control_in_ci=True))
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


@pytest.mark.parametrize(("count", "verify"), runs(50_000))
async def test_another_database_behind_something_that_drops(
    database, conn, server, template, count, verify
):
    with migrated_database(server, template) as far:
        sink = ForebayDatabase(far, queue="there")
        lying = LyingSink(sink, {"drop": 0.01}, seed=count)
        drain = Drain(forebay.App(database), "orders", sink=lying, queue="orders", verify=verify)
        stage(conn, count)
        await drained(conn, drain, database, count)
        with contextlib.closing(psycopg.connect(far)) as there:
            query = "select (args ->> 'n')::integer from forebay.log"
            arrived = [number for (number,) in there.execute(query)]
    assert lying.done["drop"] > 10
    if verify:
        assert sorted(arrived) == list(range(count))
        assert lost(conn) == lying.done["drop"]
    else:
        assert len(arrived) == count - lying.done["drop"]
        assert lost(conn) == 0


class ForgetfulStream(JetStream):
    """A stream that stores a message, answers, and then has lost it, while it still knows its
    id: the duplicate window is longer.
    """

    def __init__(self, server: str, name: str, seed: int) -> None:
        super().__init__(f"nats://{server}", subject=name, stream=name)
        self.server, self.stream_name = server, name
        self.random = random.Random(seed)
        self.forgotten: set[str] = set()
        self.duplicates = 0

    async def send(self, messages):
        answers = await super().send(messages)
        self.duplicates += sum(answer.is_duplicate for answer in answers)
        gone = [
            answer.proof
            for answer in answers
            if isinstance(answer, Accepted) and self.random.random() < 0.01
        ]
        if gone:
            client = await nats.connect(f"nats://{self.server}")
            for proof in gone:
                number = int(proof.rpartition(":")[2])
                await client.jetstream().delete_msg(self.stream_name, number)
            await client.close()
            self.forgotten.update(gone)
        return answers

    async def seen(self, sent):
        found = await super().seen(sent)
        return [
            False if one.proof in self.forgotten else is_there
            for one, is_there in zip(sent, found, strict=True)
        ]


@pytest.mark.parametrize(("count", "verify"), runs(50_000))
async def test_a_stream_that_loses_messages_whose_ids_it_still_knows(
    database, conn, nats_server, far_name, count, verify
):
    client = await nats.connect(f"nats://{nats_server}")
    streams = client.jetstream()
    await streams.add_stream(name=far_name, subjects=[far_name], duplicate_window=3600)
    sink = ForgetfulStream(nats_server, far_name, count)
    drain = Drain(forebay.App(database), "orders", sink=sink, queue="orders", verify=verify)
    stage(conn, count)
    await drained(conn, drain, database, count)
    state = (await streams.stream_info(far_name)).state
    subscription = await streams.subscribe(far_name, ordered_consumer=True)
    arrived = [
        json.loads((await subscription.next_msg(10)).data)["n"] for _ in range(state.messages)
    ]
    await client.close()
    assert len(sink.forgotten) > 10
    if verify:
        # A second sending under the same id would have been swallowed.
        assert sink.duplicates == 0
        assert sorted(arrived) == list(range(count))
        assert lost(conn) == len(sink.forgotten)
    else:
        assert len(arrived) == count - len(sink.forgotten)
        assert lost(conn) == 0


@pytest.mark.parametrize(("count", "audit"), runs(30_000))
async def test_a_broker_that_is_killed_and_forgets_everything(
    database, conn, tmp_path, far_name, count, audit
):
    port = servers.free_port()
    server = f"127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(servers.served(servers.tansu_command(port), port, tmp_path))
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
            stack.enter_context(servers.served(servers.tansu_command(port), port, tmp_path))
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

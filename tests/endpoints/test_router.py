"""The router expands events, activates subscriptions and replays, and no job of its queue stops
it.
"""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import pytest

import forebay
from forebay.config import WorkerSettings
from forebay.sending import Router
from tests.support.engine import enqueue, one, shift_clock
from tests.support.waiting import wait_for_async
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def routing(dsn, **settings):
    """Run a router in this loop, and stop it at the end."""
    worker = Router().worker(dsn, WorkerSettings(**(FAST | {"grace_seconds": 5.0} | settings)))
    task = asyncio.create_task(worker.run())
    try:
        await worker.started.wait()
        yield worker
    finally:
        worker.stop()
        await task


def subscribed(conn, count=1, *, start="now", filtered=False):
    """Create an event type, and endpoints that subscribe to it."""
    one(conn, "select forebay.create_event_type('order.paid')")
    for number in range(count):
        name = f"e{number}"
        one(
            conn,
            """select forebay.create_endpoint(%s, 'http', '{"url": "https://a.example"}')""",
            name,
        )
        subscribe(conn, name, start=start, where=json.dumps({"c": number}) if filtered else None)


def subscribe(conn, name, *, start="now", where=None):
    one(conn, "select forebay.subscribe(%s, 'order.paid', %s, %s)", name, where, start)


def publish(conn, payload=None, **options):
    names = "".join(f", {name} => %s" for name in options)
    query = f"select event_id from forebay.publish('order.paid', %s{names})"
    return one(conn, query, json.dumps(payload or {}), *options.values())


def deliveries(conn):
    """Count the deliveries by endpoint and event."""
    rows = conn.execute(
        "select args -> 'endpoint', args -> 'event' -> 0 from forebay.log where kind = "
        "'order.paid' and args ? 'event'"
    )
    return Counter(rows.fetchall())


async def test_events_become_deliveries(database, conn):
    subscribed(conn, 3)
    async with routing(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 3)
        events = [publish(conn, {"n": n}, ordering_key=f"k{n % 3}") for n in range(50)]
        await wait_for_async(lambda: worker.stats.done == 53)
    found = deliveries(conn)
    assert len(found) == 150
    assert set(found.values()) == {1}
    assert {event for _, event in found} == set(events)


async def test_jobs_that_are_no_events_are_dead_letters_and_stop_nothing(database, conn):
    subscribed(conn)
    bad = [
        enqueue(conn, kind="no.event", queue="forebay.publish"),
        *(
            enqueue(conn, kind=kind, queue="forebay.publish", args=args)
            for kind in ("forebay.activate", "forebay.replay")
            for args in ({}, {"subscription": "1", "replay": "1"},
                {"subscription": True, "replay": 10**30})
        ),
    ]  # fmt: skip
    gone = enqueue(
        conn, kind="forebay.activate", queue="forebay.publish", args={"subscription": 999}
    )
    event = publish(conn)
    async with routing(database) as worker:
        await wait_for_async(lambda: (worker.stats.dead, worker.stats.done) == (len(bad), 3))
    letters = forebay.Client(database).dead_letters()
    assert {letter.job_id for letter in letters} == set(bad)
    assert gone not in bad
    assert "'no.event' does not exist" in next(
        one.errors[-1].message for one in letters if one.job_id == bad[0]
    )
    assert [event for _, event in deliveries(conn)] == [event]


@pytest.mark.slow
async def test_an_event_that_cannot_be_expanded_holds_up_no_other(database, conn):
    subscribed(conn)
    conn.execute(
        "alter table forebay.published add constraint broken check (payload <> '{\"n\": 3}')"
    )
    async with routing(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
        with conn.transaction():
            events = [publish(conn, {"n": n}) for n in range(10)]
        await wait_for_async(lambda: worker.stats.done == 10)
        assert worker.stats.retried >= 1
        conn.execute("alter table forebay.published drop constraint broken")
        shift_clock(conn, 3600)
        await wait_for_async(lambda: worker.stats.done == 11)
    assert {event for _, event in deliveries(conn)} == set(events)


@pytest.mark.slow
async def test_a_long_backfill_is_done_in_steps_while_events_are_expanded(database, conn):
    subscribed(conn)
    events = [{"event_type": "order.paid", "payload": {"n": n}} for n in range(3500)]
    one(conn, "select forebay.publish_many(%s)", json.dumps(events))
    one(conn, """select forebay.create_endpoint('late', 'http', '{"url": "https://a.example"}')""")
    async with routing(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 3501)
        subscribe(conn, "late", start="beginning")
        publish(conn)
        await wait_for_async(lambda: worker.stats.done == 3503)
        await wait_for_async(lambda: len(deliveries(conn)) == 2 * 3501)
        one(conn, "select forebay.replay_endpoint('late', now() - interval '1 hour')")
        await wait_for_async(lambda: worker.stats.done == 3504)
    found = deliveries(conn)
    assert Counter(found.values()) == {1: 3501, 2: 3501}


async def test_a_disabled_endpoint_gets_nothing_new(database, conn):
    subscribed(conn, 2)
    async with routing(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 2)
        one(conn, "select forebay.disable_endpoint('e0')")
        publish(conn)
        await wait_for_async(lambda: worker.stats.done == 3)
    assert len(deliveries(conn)) == 1


@pytest.mark.slow
async def test_a_call_writes_a_bounded_number_of_deliveries(database, conn):
    subscribed(conn, 300)
    async with routing(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 300)
        events = [{"event_type": "order.paid", "payload": {"n": n}} for n in range(100)]
        one(conn, "select forebay.publish_many(%s)", json.dumps(events))
        await wait_for_async(lambda: worker.stats.done == 400, 60)
    sizes = conn.execute(
        "select sum(deliveries) from forebay.published group by xmin::text order by 1"
    ).fetchall()
    assert sum(size for (size,) in sizes) == 30_000
    assert max(size for (size,) in sizes) <= 15_000

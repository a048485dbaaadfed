"""The audit of a drain finds what the far side lost after it was accepted and verified, and
sends it again, once.
"""

import asyncio
from datetime import timedelta

import pytest
import redis

import forebay
from forebay.errors import ConfigError, GroupNotFound
from forebay.sending import Drain
from forebay.sinks.redis import RedisList, RedisStream
from forebay.testing import LyingSink
from tests.support.drains import draining, enqueue
from tests.support.engine import enqueue_many
from tests.support.mutant import break_function
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def stream(redis_server, far_name):
    return RedisStream(f"redis://{redis_server}", far_name)


async def kept(conn, count):
    """Wait until so many proofs were written; a worker counts a job as done before."""
    query = "select count(*) = %s from forebay.result"
    await wait_for_async(lambda: conn.execute(query, [count]).fetchone()[0])


def numbers(redis_server, name):
    with redis.Redis.from_url(f"redis://{redis_server}") as far:
        return [fields[b"body"] for _, fields in far.xrange(name)]


def ids(redis_server, name):
    with redis.Redis.from_url(f"redis://{redis_server}") as far:
        return [fields[b"forebay-id"].decode() for _, fields in far.xrange(name)]


def declared(app, sink, **options):
    return Drain(
        app, "orders", sink=sink, queue="orders", keep_proofs=timedelta(hours=1), **options
    )


async def audited(app, database, stream, **options):
    """Audit as another process does: with a separate sink."""
    sink = RedisStream(stream._url, stream._name)
    drain = Drain(forebay.App(database), "orders", sink=sink, queue="orders", keep_proofs=3600.0)
    return await drain.audit(database, **options)


async def test_what_is_lost_after_the_settlement_is_sent_again_once(
    app, database, conn, stream, redis_server, far_name
):
    enqueue(conn, 30, keys=3, headers={"tenant": "7"}, tag="t")
    enqueue(conn, 30)
    async with draining(declared(app, stream), database):
        await kept(conn, 60)
        before = ids(redis_server, far_name)
        with redis.Redis.from_url(f"redis://{redis_server}") as far:
            far.delete(far_name)  # As a server that starts without its data.
        enqueue(conn, 5, kind="later")
        await kept(conn, 65)
        counted = await audited(app, database, stream, repair=False)
        assert (counted.read, counted.there, counted.lost, counted.resent) == (65, 5, 60, 0)
        found = await audited(app, database, stream)
        assert (found.lost, found.resent, found.unknown) == (60, 60, 0)
        await kept(conn, 65)
        again = await audited(app, database, stream)
        assert (again.read, again.there, again.lost) == (65, 65, 0)
    assert sorted(numbers(redis_server, far_name)) == sorted(
        [b'{"n":%d}' % n for n in range(30)] * 2 + [b'{"n":%d}' % n for n in range(5)]
    )
    assert not set(before) & set(ids(redis_server, far_name))
    with redis.Redis.from_url(f"redis://{redis_server}") as far:
        entries = [fields for _, fields in far.xrange(far_name)]
    keyed = [one for one in entries if b"forebay-ordering-key" in one]
    assert len(keyed) == 30
    for key in {one[b"forebay-ordering-key"] for one in keyed}:
        of_key = [int(one[b"body"][5:-1]) for one in keyed if one[b"forebay-ordering-key"] == key]
        assert of_key == sorted(of_key)
    ((lost,),) = conn.execute(
        "select sum(count) from forebay.mirror_count where mirror = 'drain.orders' and "
        "outcome = 'lost'"
    ).fetchall()
    assert lost == 60
    (event,) = forebay.Client(database).events(act="drains.resend")
    assert (event.queue, event.count, event.detail) == ("orders", 60, "orders")


async def test_two_audits_at_once_send_each_message_again_once(
    app, database, conn, stream, redis_server, far_name
):
    enqueue(conn, 50)
    async with draining(declared(app, stream), database):
        await kept(conn, 50)
        with redis.Redis.from_url(f"redis://{redis_server}") as far:
            far.delete(far_name)
        found = await asyncio.gather(*(audited(app, database, stream) for _ in range(2)))
        assert sum(one.resent for one in found) == 50
        await kept(conn, 50)
    assert sorted(numbers(redis_server, far_name)) == sorted(b'{"n":%d}' % n for n in range(50))


async def test_a_message_of_a_later_generation_and_a_delayed_one_are_found(
    app, database, conn, stream, redis_server, far_name
):
    lying = LyingSink(stream, {"drop": 0.3})
    enqueue(conn, 50)
    enqueue(conn, 10, delay=0.1)
    async with draining(declared(app, lying, verify=True), database):
        await kept(conn, 60)
        assert any("~" in one for one in ids(redis_server, far_name))
        found = await audited(app, database, stream)
        assert (found.read, found.there, found.lost) == (60, 60, 0)
        with redis.Redis.from_url(f"redis://{redis_server}") as far:
            far.delete(far_name)
        found = await audited(app, database, stream)
        assert (found.lost, found.resent) == (60, 60)


async def test_what_the_log_has_no_longer_is_lost_and_said_to_be(
    app, database, conn, stream, redis_server, far_name
):
    enqueue(conn, 3)
    async with draining(declared(app, stream), database):
        await kept(conn, 3)
        with redis.Redis.from_url(f"redis://{redis_server}") as far:
            far.delete(far_name)
        # As a row that retention removed: nothing in the log has this id and time.
        conn.execute(
            "update forebay.result set enqueued_at = enqueued_at - interval '1 day'"
            " where job_id = (select min(job_id) from forebay.result)"
        )
        found = await audited(app, database, stream)
        assert (found.lost, found.resent) == (3, 2)


async def erased_and_lost(app, database, conn, stream, redis_server, far_name) -> list[bytes]:
    """Let the far side lose three messages, one of which was erased here, and audit; return what
    was sent again.
    """
    enqueue(conn, 3)
    async with draining(declared(app, stream), database):
        await kept(conn, 3)
        before = "select enqueued_at from forebay.result order by job_id limit 1 offset 1"
        erase = f"select redacted from forebay.redact_queue('orders', before => ({before}))"
        assert conn.execute(erase).fetchone() == (1,)
        with redis.Redis.from_url(f"redis://{redis_server}") as far:
            far.delete(far_name)
        await audited(app, database, stream)
        await kept(conn, 3)
    return sorted(numbers(redis_server, far_name))


async def test_what_was_erased_is_not_sent_again(
    app, database, conn, stream, redis_server, far_name
):
    """The erased message would have no contents."""
    sent = await erased_and_lost(app, database, conn, stream, redis_server, far_name)
    assert sent == [b'{"n":1}', b'{"n":2}']


async def test_without_the_mark_it_would_be_sent_with_no_contents(
    app, database, conn, stream, redis_server, far_name
):
    """The guard of the test above."""
    break_function(
        database, "resend_v1", ("not coalesce(j.headers ? ''forebay-redacted'', false)", "true")
    )
    sent = await erased_and_lost(app, database, conn, stream, redis_server, far_name)
    assert b"{}" in sent


@pytest.mark.slow
async def test_many_pages(app, database, conn, stream, redis_server, far_name):
    enqueue_many(conn, [{"kind": "many", "queue": "orders", "args": {}} for _ in range(2_500)])
    async with draining(declared(app, stream), database):
        await kept(conn, 2_500)
        found = await audited(app, database, stream)
    assert (found.read, found.there) == (2_500, 2_500)


async def test_refusals(app, database, conn, stream):
    with pytest.raises(ConfigError, match="keeps no proofs"):
        await Drain(app, "orders", sink=stream, queue="orders").audit(database)
    with pytest.raises(ConfigError, match="cannot be read back"):
        Drain(app, "list", sink=RedisList("redis://h", "k"), queue="q", keep_proofs=1.0)
    with pytest.raises(ConfigError, match="keep_result"):
        Drain(app, "long", sink=stream, queue="q", keep_proofs=timedelta(days=10_000))
    with pytest.raises(GroupNotFound):
        await declared(forebay.App(database), stream).audit(database)

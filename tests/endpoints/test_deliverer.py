"""A deliverer sends what waits for its endpoints: each message until it is accepted, and no
endpoint holds up another.
"""

import asyncio
import contextlib
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib.metadata import EntryPoint, EntryPoints
from typing import ClassVar

import psycopg
import pytest
import redis
from aiohttp import web

import forebay
from forebay.config import DeliverySettings, WorkerSettings
from forebay.sending import Deliverer
from forebay.sinks import ENTRY_POINTS, Accepted, FromRow, Message, Sink
from tests.support.delivering import (
    LOCAL,
    PlainRouter,
    alter_endpoint,
    create_endpoint,
    delivering,
    http_config,
    send,
)
from tests.support.engine import connect, one
from tests.support.waiting import wait_for_async
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@pytest.fixture
def shop(conn, http_endpoint, far_name):
    """Make the endpoint shop at the test's HTTP server.

    Called with options of the endpoint and of the sink.
    """

    def make(config=None, *, name="shop", path=None, **options):
        options = {"retry": [0.05] * 9} | options
        config = http_config(http_endpoint, path or far_name, **(config or {}))
        return create_endpoint(conn, name, "http", config, **options)

    return make


@pytest.fixture
def requests(http_endpoint, far_name):
    return http_endpoint.requests[far_name]


def health(conn, name="shop"):
    """Return the row of the endpoint and its state."""
    query = (
        "select e.disabled_at, e.disabled_why, coalesce(b.failures, 0) as failures, b.opened_at,"
        " s.last_error from forebay.endpoint e join forebay.endpoint_state s using (endpoint_id)"
        " left join forebay.breaker b on b.queue = 'forebay.deliver' and b.key = e.name"
        " where e.name = %s"
    )
    with conn.cursor() as cursor:
        row = cursor.execute(query, [name]).fetchone()
        return dict(zip([column.name for column in cursor.description], row, strict=True))


def letters(database):
    return forebay.Client(database).dead_letters(queue="forebay.deliver")


# --- from publish to the endpoint ---


async def test_a_published_event_arrives_at_each_subscriber_with_its_headers(
    database, conn, shop, requests, redis_server, far_name
):
    shop()
    stream = {"url": f"redis://{redis_server}", "stream": far_name}
    create_endpoint(conn, "log", "redis-stream", stream)
    one(conn, "select forebay.create_event_type('order.paid')")
    for name in ("shop", "log"):
        one(conn, "select forebay.subscribe(%s, 'order.paid')", name)
    payload = '{"n": 12345678901234567890.1230, "a": "\\u00e9"}'
    with PlainRouter(database, "forebay.publish") as router:
        router.route()
        event_id = one(
            conn,
            "select event_id from forebay.publish('order.paid', %s,"
            " headers => '{\"tenant\": \"7\"}', ordering_key => 'k1', correlation_id => 'c1')",
            payload,
        )
        router.route()
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 2)
    (request,) = requests
    # As PostgreSQL shows it: nothing was decoded on the way.
    assert request.body.decode() == one(conn, "select %s::jsonb::text", payload)
    assert request.headers["forebay-kind"] == "order.paid"
    assert (request.headers["tenant"], request.headers["forebay-ordering-key"]) == ("7", "k1")
    assert request.headers["forebay-correlation-id"] == "c1"
    message_id = request.headers["forebay-id"]
    assert message_id.startswith(f"{event_id}-")
    assert message_id.endswith("-shop")
    with redis.Redis.from_url(f"redis://{redis_server}") as far:
        ((_, fields),) = far.xrange(far_name)
    assert fields[b"body"] == request.body
    assert fields[b"forebay-id"].decode() == message_id.removesuffix("shop") + "log"


async def test_a_message_sent_to_one_endpoint_arrives(database, conn, shop, requests):
    shop()
    (job_id,) = send(conn, "shop", ordering_key="k", tag="t")
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
    (request,) = requests
    assert json.loads(request.body) == {"n": 0}
    assert request.headers["forebay-kind"] == "message"
    assert request.headers["forebay-ordering-key"] == "k"
    assert request.headers["forebay-id"].startswith(f"{job_id}-")


async def test_any_json_value_arrives_as_it_was_sent(database, conn, shop, requests):
    shop()
    values = [[1, {"a": None}], "text", 7, True, None, {}]
    for value in values:
        one(conn, "select forebay.send('shop', %s)", json.dumps(value))
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == len(values))
    assert sorted(json.loads(request.body).__repr__() for request in requests) == sorted(
        repr(value) for value in values
    )


class OtherSink(Sink):
    """A sink of another distribution."""

    type = "other"
    arrived: ClassVar[list[Message]] = []
    row_rules: ClassVar = {"place": FromRow.PLAIN, "colour": FromRow.PLAIN}

    def __init__(self, place, *, colour="red"):
        self.arrived.clear()

    async def send(self, messages):
        self.arrived.extend(messages)
        return [Accepted() for _ in messages]


@pytest.fixture
def other_sinks(monkeypatch):
    """Entry points of another distribution: a sink, and one whose module is missing."""
    found = EntryPoints(
        [
            EntryPoint("other", "other_sinks:OtherSink", ENTRY_POINTS),
            EntryPoint("absent", "module_that_is_missing:Absent", ENTRY_POINTS),
        ]
    )
    monkeypatch.setitem(sys.modules, "other_sinks", sys.modules[__name__])
    monkeypatch.setattr("importlib.metadata.entry_points", found.select)


@pytest.mark.usefixtures("other_sinks")
async def test_an_endpoint_can_have_a_sink_of_another_distribution_once_a_deliverer_has_it(
    database, conn
):
    """
    As a drain can. A distribution that cannot be imported keeps no other one from being used.
    """
    known = "select count(*) from forebay.sink_type where name = 'other'"
    with pytest.raises(psycopg.Error, match="other"):
        create_endpoint(conn, "shop", "other", {"place": "here"})
    async with delivering(database) as worker:
        await wait_for_async(lambda: one(conn, known) == 1)
        with pytest.raises(psycopg.Error, match="place"):
            create_endpoint(conn, "shop", "other", {"colour": "blue"})
        create_endpoint(conn, "shop", "other", {"place": "here", "colour": "blue"})
        send(conn, "shop")
        await wait_for_async(lambda: worker.stats.done == 1)
    assert len(OtherSink.arrived) == 1


# --- answers ---


async def test_three_failures_and_a_success_are_four_attempts(
    database, conn, shop, requests, http_endpoint, far_name
):
    shop()
    http_endpoint.statuses(far_name, 500, 500, 500, 200)
    send(conn, "shop")
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
    assert len(requests) == 4
    assert len({request.headers["forebay-id"] for request in requests}) == 1
    assert (worker.stats.retried, worker.stats.dead) == (3, 0)
    assert health(conn)["failures"] == 0


async def test_after_the_last_delay_a_delivery_is_dead(
    database, conn, shop, requests, http_endpoint, far_name
):
    shop(retry=[0, 0])
    http_endpoint.statuses(far_name, 500)
    send(conn, "shop")
    async with delivering(database):
        await wait_for_async(lambda: letters(database))
    (letter,) = letters(database)
    assert letter.reason == "exhausted"
    assert len(requests) == 3
    assert [error.message for error in letter.errors] == ["HTTP status 500"] * 3


async def test_a_permanent_error_is_dead_at_once_and_no_failure(
    database, conn, shop, requests, http_endpoint, far_name
):
    shop(breaker_threshold=2)
    http_endpoint.statuses(far_name, 404)
    send(conn, "shop", 5)
    async with delivering(database):
        await wait_for_async(lambda: len(letters(database)) == 5)
    assert len(requests) == 5
    assert {letter.reason for letter in letters(database)} == {"permanent"}
    assert (health(conn)["failures"], health(conn)["opened_at"]) == (0, None)


async def test_an_endpoint_that_is_gone_is_disabled(
    database, conn, shop, requests, http_endpoint, far_name
):
    shop(concurrency=1)
    http_endpoint.statuses(far_name, 410)
    send(conn, "shop", 3)
    async with delivering(database):
        await wait_for_async(lambda: health(conn)["disabled_at"])
        await wait_for_async(lambda: letters(database))
    assert "410" in health(conn)["disabled_why"]
    assert len(requests) == len(letters(database)) < 3
    http_endpoint.statuses(far_name, 200)
    one(conn, "select forebay.enable_endpoint('shop')")
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done >= 1)


async def test_an_endpoint_can_stay_enabled_when_a_message_is_gone(
    database, conn, shop, requests, http_endpoint, far_name
):
    """410 is then a permanent failure of that message. The setting is live."""
    shop(concurrency=1, disable_on_gone=False)
    http_endpoint.statuses(far_name, 410, 200, 410)
    send(conn, "shop", 2)
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1 and letters(database))
        assert [letter.reason for letter in letters(database)] == ["permanent"]
        assert health(conn)["disabled_at"] is None
        alter_endpoint(conn, "shop", disable_on_gone=True)
        http_endpoint.statuses(far_name, 410)

        def is_disabled():
            with contextlib.suppress(psycopg.Error):
                send(conn, "shop")
            return health(conn)["disabled_at"]

        await wait_for_async(is_disabled)


async def test_a_deliverer_tells_the_database_which_hosts_it_may_call(database, conn):
    """So an endpoint with such an address can be saved; the list of the last one counts."""
    hosts = "select array_agg(host order by host) from forebay.endpoint_host"
    conn.execute("truncate forebay.endpoint_host")
    async with delivering(database):
        await wait_for_async(lambda: one(conn, hosts) == ["127.0.0.1", "localhost"])
    async with delivering(database, permissions={}):
        await wait_for_async(lambda: one(conn, hosts) is None)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_retry_after_pauses_the_endpoint(
    database, conn, shop, requests, http_endpoint, far_name, form
):
    shop(concurrency=1)
    until = datetime.now(UTC) + timedelta(seconds=4)
    answers = iter([429])

    async def answer(_):
        after = "3" if form == "seconds" else format_datetime(until, usegmt=True)
        return web.Response(status=next(answers, 200), headers={"Retry-After": after})

    http_endpoint.answers[far_name] = answer
    send(conn, "shop", 5)
    async with delivering(database) as worker:
        await wait_for_async(lambda: one(conn, "select count(*) from forebay.key_pause") == 1)
        assert len(requests) == 1
        await wait_for_async(lambda: worker.stats.done == 5)
    assert worker.stats.retried == 1
    assert len(requests) == 6
    assert health(conn)["opened_at"] is None


async def test_an_endpoint_that_throttles_is_one_event(
    database, conn, shop, requests, http_endpoint, far_name
):
    """Each 429 pauses it anew; that it is throttled is told once."""
    shop(concurrency=1, retry=[0.05] * 50)
    statuses = iter([429] * 4)

    async def answer(_):
        return web.Response(status=next(statuses, 200), headers={"Retry-After": "1"})

    http_endpoint.answers[far_name] = answer
    send(conn, "shop", 2)
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 2, 30)
    assert worker.stats.retried == 4
    acts = "select act from forebay.event where act in ('keys.pause', 'endpoints.throttled')"
    assert conn.execute(acts).fetchall() == [("endpoints.throttled",)]


async def test_the_number_of_tries_is_that_of_the_endpoint(
    database, conn, shop, requests, http_endpoint, far_name, caplog
):
    """In the error of each attempt and in the log; not that of the deliverer's own kind."""
    shop(retry=[0.01, 0.01])
    http_endpoint.statuses(far_name, 500)
    (job,) = send(conn, "shop")
    async with delivering(database):
        await wait_for_async(lambda: letters(database))
    errors = "select distinct error ->> 'max_attempts' from forebay.failure where job_id = %s"
    assert one(conn, errors.replace("error ->> 'max_attempts'", "max_attempts"), job) == 3
    assert "(message), endpoint shop, attempt 1 of 3, failed" in caplog.text
    assert "of 10000" not in caplog.text
    assert {record.endpoint for record in caplog.records if hasattr(record, "job_id")} == {"shop"}


async def test_a_refused_message_has_the_number_of_tries_of_the_endpoint(
    database, conn, shop, http_endpoint, far_name, caplog
):
    """Also one that is dead at its first attempt, in its letter and in the log."""
    shop(retry=[1, 1])
    http_endpoint.statuses(far_name, 422)
    send(conn, "shop")
    async with delivering(database):
        await wait_for_async(lambda: letters(database))
    (letter,) = letters(database)
    assert (letter.reason, letter.attempt, letter.max_attempts) == ("permanent", 1, 3)
    assert letter.endpoint == "shop"
    assert letter.errors[0].type == "Dead"
    assert "endpoint shop, attempt 1 of 3, failed" in caplog.text


async def test_a_delivery_to_an_endpoint_that_was_dropped_says_so(database, conn, shop):
    shop()
    send(conn, "shop")
    one(conn, "select forebay.drop_endpoint('shop', discard => true)")
    async with delivering(database):
        await wait_for_async(lambda: letters(database))
    (letter,) = letters(database)
    assert letter.errors[0].message == "its endpoint was dropped"
    assert letter.endpoint == "shop"


@pytest.mark.parametrize("closes", [True, False])
async def test_one_at_a_time_goes_on_at_once_after_a_breaker_has_closed(
    database, conn, shop, requests, http_endpoint, far_name, closes
):
    """The settlement of a delivery gives its turn to the next one; no timer does."""
    shop(concurrency=1, breaker_threshold=2, breaker_cooldown=5)
    if closes:
        http_endpoint.statuses(far_name, 500)
    send(conn, "shop", 40)
    async with delivering(database) as worker:
        if closes:
            await wait_for_async(lambda: health(conn)["opened_at"], 30)
            http_endpoint.statuses(far_name, 200)
            await wait_for_async(lambda: health(conn)["opened_at"] is None, 30)
        await wait_for_async(lambda: worker.stats.done >= 40, 30)
    promotions = one(conn, "select count(*) from forebay.promotion where promoted > 0")
    assert promotions < 20


async def test_an_endpoint_that_keeps_responses_has_them_as_results(database, conn, shop, requests):
    shop(keeps_response=True)
    (job_id,) = send(conn, "shop")
    client = forebay.Client(database)
    shown = LOCAL | {"endpoint_settings": '{"http": {"show_response": true}}'}
    async with delivering(database, permissions=shown) as worker:
        await wait_for_async(lambda: worker.stats.done == 1)
    assert client.result(job_id)["response"] == "HTTP status 200: ok"


async def test_a_deliverer_that_ends_when_idle_waits_for_what_the_rate_holds_back(
    database, conn, shop, requests
):
    """Not for an open breaker or a pause, which nothing ends in time."""
    shop(rate=20.0, burst=1)
    shop(name="paused", rate=1.0)
    send(conn, "shop", 10)
    send(conn, "paused", 2)
    one(conn, "select forebay.pause_key('forebay.deliver', limit_key => 'paused')")
    deliverer = Deliverer(permissions=DeliverySettings(**LOCAL))
    async with asyncio.timeout(30):
        await deliverer.worker(database, WorkerSettings(**FAST)).run(until_idle=True)
    assert len(requests) == 10


# --- endpoints side by side ---


async def test_an_endpoint_that_hangs_delays_no_other(
    database, conn, shop, requests, http_endpoint, far_name
):
    never = asyncio.Event()

    async def hang(_):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                await never.wait()
        return web.Response()

    slow = far_name + "slow"
    http_endpoint.answers[slow] = hang
    shop()
    shop({"timeout": 30}, name="slow", path=slow, concurrency=10)
    send(conn, "slow", 30)
    async with delivering(database, slots=50) as worker:
        await wait_for_async(lambda: len(http_endpoint.requests[slow]) == 10)
        send(conn, "shop", 30)
        await wait_for_async(lambda: worker.stats.done == 30, deadline_seconds=10)
    assert len(requests) == 30
    assert len(http_endpoint.requests[slow]) == 10


async def test_a_bad_configuration_opens_the_breaker_and_uses_no_attempt(
    database, conn, shop, requests
):
    shop()
    create_endpoint(conn, "bad", "http", {"url": "https://x"}, retry=[], breaker_threshold=2)
    conn.execute(
        "update forebay.endpoint set config = '{\"url\": \"gopher://x\"}' where name = 'bad'"
    )
    send(conn, "bad", 2)
    send(conn, "shop", 2)
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 2)
        await wait_for_async(lambda: health(conn, "bad")["opened_at"])
        assert "url is not an address" in health(conn, "bad")["last_error"]
        assert (worker.stats.retried, worker.stats.dead) == (0, 0)
    assert health(conn)["failures"] == 0


async def test_what_a_deliverer_refuses_waits_for_one_that_allows_it(
    database, conn, shop, requests, monkeypatch
):
    """The endpoint shows the setting to change; no message is lost, and none uses an attempt."""
    monkeypatch.setenv("DELIVERERS_OWN", "canary")
    shop({"headers": {"x-a": "env:DELIVERERS_OWN"}}, retry=[], breaker_cooldown=5)
    send(conn, "shop", 3)
    async with delivering(database) as worker:
        await wait_for_async(lambda: health(conn)["opened_at"])
        error = health(conn)["last_error"]
        assert (worker.stats.retried, worker.stats.dead) == (0, 0)
    assert "endpoint_variables" in error
    assert "DELIVERERS_OWN" in error
    assert "refused by a deliverer" in error
    assert requests == []
    one(conn, "select forebay.reset_endpoint('shop')")
    async with delivering(
        database, permissions=LOCAL | {"endpoint_variables": "DELIVERERS_OWN"}
    ) as worker:
        await wait_for_async(lambda: worker.stats.done == 3)
    assert {request.headers["x-a"] for request in requests} == {"canary"}
    assert letters(database) == []


@pytest.mark.slow
async def test_a_delivery_of_a_dropped_endpoint_is_dead(database, conn, shop):
    shop()
    send(conn, "shop")
    conn.execute("delete from forebay.endpoint")
    async with delivering(database):
        await wait_for_async(lambda: letters(database))
    assert "was dropped" in letters(database)[0].errors[-1].message


# --- the breaker ---


@pytest.mark.slow
async def test_the_breaker_opens_over_all_deliverers_and_one_probe_closes_it(
    database, conn, shop, requests, http_endpoint, far_name
):
    shop(breaker_threshold=10, breaker_cooldown=5, concurrency=8, retry=[0.05] * 30)
    http_endpoint.statuses(far_name, 503)
    send(conn, "shop", 200)
    async with delivering(database) as one_worker, delivering(database) as other:
        await wait_for_async(lambda: health(conn)["opened_at"])
        # What was claimed before still arrives. The pause is longer than this second without a
        # request.
        seen, changed_at = 0, time.monotonic()

        def is_quiet() -> bool:
            nonlocal seen, changed_at
            if len(requests) > seen:
                seen, changed_at = len(requests), time.monotonic()
            return time.monotonic() - changed_at > 1

        await wait_for_async(is_quiet)
        assert one_worker.stats.retried + other.stats.retried == len(requests)
        sent = len(requests)
        assert 10 <= sent <= 2 * (10 + 8)
        await wait_for_async(lambda: len(requests) > sent)
        assert len(requests) == sent + 1
        http_endpoint.statuses(far_name, 200)
        await wait_for_async(lambda: one_worker.stats.done + other.stats.done == 200)
    assert health(conn)["opened_at"] is None
    accepted = [request.headers["forebay-id"] for request in requests[sent + 1 :]]
    assert len(accepted) == len(set(accepted)) == 200
    acts = conn.execute(
        "select act from forebay.event where act like 'circuit.%' order by event_id"
    ).fetchall()
    assert acts == [("circuit.opened",), ("circuit.closed",)]


# --- changes ---


async def test_changed_settings_are_live_within_seconds(
    database, conn, shop, requests, http_endpoint, far_name
):
    # An open breaker would hide what this test looks at.
    shop(retry=[600], breaker_threshold=1000)
    http_endpoint.statuses(far_name, 500)
    async with delivering(database) as worker:
        send(conn, "shop")
        await wait_for_async(lambda: worker.stats.retried == 1)
        new = far_name + "new"
        alter_endpoint(conn, "shop", config=http_config(http_endpoint, new), retry=[])
        http_endpoint.statuses(new, 500)

        async def arrives():
            send(conn, "shop")
            await asyncio.sleep(0.1)
            return http_endpoint.requests[new]

        await wait_for_async(arrives, deadline_seconds=30)
        await wait_for_async(lambda: worker.stats.dead >= 1)


async def test_a_rotated_secret_signs_beside_the_new_one(
    database, conn, shop, requests, monkeypatch
):
    for name, letter in (("OLD_SECRET", "a"), ("NEW_SECRET", "b")):
        monkeypatch.setenv(name, "whsec_" + letter * 44)
    shop({"secrets": ["env:OLD_SECRET"]})
    named = LOCAL | {"endpoint_variables": "OLD_SECRET,NEW_*"}
    async with delivering(database, permissions=named) as worker:
        send(conn, "shop")
        await wait_for_async(lambda: worker.stats.done == 1)
        one(conn, "select forebay.rotate_secret('shop', 'env:NEW_SECRET')")

        async def has_both():
            send(conn, "shop")
            await asyncio.sleep(0.1)
            return len(requests[-1].headers["webhook-signature"].split()) == 2

        await wait_for_async(has_both, deadline_seconds=30)
    assert len(requests[0].headers["webhook-signature"].split()) == 1


# --- the end of a process ---


async def test_a_deliverer_that_stops_returns_what_it_has_in_hand(
    database, conn, shop, requests, http_endpoint, far_name
):
    never = asyncio.Event()

    async def hang(_):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await never.wait()
        return web.Response()

    http_endpoint.answers[far_name] = hang
    shop({"timeout": 30}, concurrency=3)
    send(conn, "shop", 5)
    async with delivering(database) as worker:
        await wait_for_async(lambda: len(requests) == 3)
    assert (worker.stats.released, worker.stats.done) == (3, 0)
    assert health(conn)["failures"] == 0
    del http_endpoint.answers[far_name]
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 5)
    assert {len([r for r in requests if r.headers["forebay-id"] == one.headers["forebay-id"]])
            for one in requests[:3]} == {2}  # fmt: skip

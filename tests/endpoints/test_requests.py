"""What a message says about its own request, at the deliverer: it is sent below the address of its
endpoint, or never.
"""

import asyncio
import json
import threading

import pytest
from aiohttp import web

import forebay
from tests.sql.test_send_request import BAD
from tests.support.delivering import (
    alter_endpoint,
    create_endpoint,
    delivering,
    http_config,
    send,
)
from tests.support.engine import connect, one
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@pytest.fixture
def config(http_endpoint, far_name):
    """Make the settings of a sink at the test's HTTP server."""

    def make(*, path="", **settings):
        return http_config(http_endpoint, far_name + path, **settings)

    return make


@pytest.fixture
def shop(conn, config):
    """Make the endpoint shop there, whose messages are tried once."""

    def make(**settings):
        return create_endpoint(conn, "shop", "http", config(**settings), retry=[])

    return make


@pytest.fixture
def requests(http_endpoint, far_name):
    return http_endpoint.requests[far_name]


def letters(database):
    return forebay.Client(database).dead_letters(queue="forebay.deliver", limit=1000)


def reasons(database):
    return [letter.errors[-1].message for letter in letters(database)]


def write(conn, **args):
    """Write a delivery as somebody might who may enqueue, past forebay.send()."""
    endpoint = one(conn, "select endpoint_id from forebay.endpoint where name = 'shop'")
    args = {"payload": 1, "endpoint": endpoint} | args
    return one(
        conn,
        "select forebay.enqueue('message', %s, 'forebay.deliver', limit_key => 'shop')",
        json.dumps(args),
    )


async def test_a_suffix_is_put_between_the_path_and_the_query(
    database, conn, shop, requests, far_name
):
    """The place, the path and the query of the endpoint stay, and so do the other messages."""
    shop(path="/hooks/?key=1&b=%2F", url_suffixes=True)
    send(conn, "shop", url_suffix="/orders/7:cancel")
    send(conn, "shop")
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 2)
    assert {one.path for one in requests} == {
        f"/{far_name}/hooks/orders/7:cancel?key=1&b=%2F",
        f"/{far_name}/hooks/?key=1&b=%2F",
    }


async def test_a_row_that_bypassed_send_is_a_dead_letter_and_no_request(
    database, conn, shop, requests, http_endpoint
):
    """Whatever it has as suffix or timeout; it counts neither as a failure nor as an answer."""
    shop(url_suffixes=True, timeout_max=5)
    values = [
        *({"url_suffix": suffix} for suffix in (*BAD, 7, ["/a"], {"a": 1})),
        *({"timeout": timeout} for timeout in ("5", 0, -1, 1e9, True)),
    ]
    for value in values:
        write(conn, **value)
    async with delivering(database) as worker:
        await wait_for_async(lambda: len(letters(database)) == len(values), 30)
        assert worker.stats.done == 0
    assert not requests
    assert not any(key.startswith("evil") for key in http_endpoint.requests)
    assert {letter.reason for letter in letters(database)} == {"permanent"}
    assert one(conn, "select failures from forebay.endpoints('shop')") == 0
    assert one(conn, "select count(*) from forebay.endpoint_activity") == 0


@pytest.mark.parametrize("args", [{"url_suffix": "/a"}, {"timeout": 5}])
async def test_an_endpoint_that_no_longer_lets_it_sends_no_such_message(
    database, conn, shop, config, requests, args
):
    """And one that never did. Once it lets it again, the dead letter can be redriven."""
    shop()
    write(conn, **args)
    async with delivering(database) as worker:
        await wait_for_async(lambda: len(letters(database)) == 1)
        assert not requests
        alter_endpoint(conn, "shop", config=config(url_suffixes=True, timeout_max=5))
        forebay.Client(database).redrive_endpoint("shop")
        await wait_for_async(lambda: worker.stats.done == 1)
    assert len(requests) == 1


async def test_another_sink_sends_no_message_with_a_suffix(database, conn, redis_server, far_name):
    """Rather than to send it to a place that its sender did not mean."""
    stream = {"url": f"redis://{redis_server}", "stream": far_name}
    create_endpoint(conn, "shop", "redis-stream", stream)
    write(conn, url_suffix="/a")
    async with delivering(database):
        await wait_for_async(lambda: len(letters(database)) == 1)
    assert "takes no suffix" in reasons(database)[0]


async def test_the_timeout_of_a_message_is_that_of_its_request_up_to_the_most(
    database, conn, shop, config, http_endpoint, far_name
):
    """A lower bound holds for what waits, too."""
    released = threading.Event()

    async def hang(_):
        await asyncio.to_thread(released.wait, 60)
        return web.Response()

    http_endpoint.answers[far_name] = hang
    shop(timeout=120, timeout_max=300)
    send(conn, "shop", timeout="0.2 s")
    try:
        async with delivering(database):
            await wait_for_async(lambda: len(letters(database)) == 1)
            assert "within 0.2 s" in reasons(database)[0]
        send(conn, "shop", timeout="200 s")
        alter_endpoint(conn, "shop", config=config(timeout=120, timeout_max=0.3))
        async with delivering(database):
            await wait_for_async(lambda: len(letters(database)) == 2)
            assert any("within 0.3 s" in reason for reason in reasons(database))
    finally:
        released.set()


async def test_a_message_may_wait_longer_than_its_endpoint(
    database, conn, shop, http_endpoint, far_name
):
    """While the others have the timeout of the endpoint."""

    async def late(_):
        await asyncio.sleep(0.5)
        return web.Response()

    http_endpoint.answers[far_name] = late
    shop(timeout=0.2, timeout_max=60)
    send(conn, "shop")
    send(conn, "shop", timeout="60 s")
    async with delivering(database) as worker:
        await wait_for_async(lambda: worker.stats.done == 1 and len(letters(database)) == 1)
    assert "within 0.2 s" in reasons(database)[0]

"""Twenty deliverers, ten thousand waiting deliveries, and an endpoint that is down: one probe
for each cooldown.
"""

import contextlib
import json
import time

import pytest
from aiohttp import web

from tests.support.delivering import create_endpoint, delivering, http_config
from tests.support.engine import one
from tests.support.waiting import wait_for_async

pytestmark = [pytest.mark.anyio, pytest.mark.nightly]

DELIVERERS = 20
WAITING = 10_000
THRESHOLD = 10
CONCURRENCY = 50


async def test_an_endpoint_that_is_down_gets_one_probe_for_each_cooldown(
    database, conn, http_endpoint, far_name
):
    is_up = False
    times = []
    accepted = []

    async def answer(request):
        times.append(time.monotonic())
        if is_up:
            accepted.append(json.loads(request.body)["n"])
        return web.Response(status=200 if is_up else 500)

    http_endpoint.answers[far_name] = answer
    options = {"breaker_threshold": THRESHOLD, "breaker_cooldown": 5, "concurrency": CONCURRENCY}
    config = http_config(http_endpoint, far_name)
    create_endpoint(conn, "shop", "http", config, retry=[1] * 50, **options)
    conn.execute(
        "select count(forebay.send('shop', jsonb_build_object('n', n)))"
        f" from generate_series(1, {WAITING}) n"
    )
    opened = "select max(opened_at) from forebay.breaker"
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                delivering(database, poll_seconds=0.1, heartbeat_seconds=2.0)
            )
            for _ in range(DELIVERERS)
        ]
        await wait_for_async(lambda: one(conn, opened))
        await wait_for_async(lambda: time.monotonic() - times[-1] > 1)
        before = len(times)
        attempts = sum(worker.stats.retried for worker in workers)
        assert attempts == before <= DELIVERERS * THRESHOLD + CONCURRENCY
        await wait_for_async(lambda: len(times) == before + 3, deadline_seconds=30)
        probes = [
            later - at for at, later in zip(times[before:], times[before + 1 :], strict=False)
        ]
        assert all(4.9 < pause < 8 for pause in probes), probes
        assert sum(worker.stats.claimed for worker in workers) < before + 3 * CONCURRENCY
        is_up = True
        await wait_for_async(
            lambda: sum(worker.stats.done for worker in workers) == WAITING, deadline_seconds=120
        )
    assert sorted(accepted) == list(range(1, WAITING + 1))
    assert len(times) == before + 3 + WAITING
    assert one(conn, opened) is None

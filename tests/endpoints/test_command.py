"""forebay deliver, and forebay worker --endpoints, as processes."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.support.delivering import LOCAL_ENVIRON, create_endpoint, http_config
from tests.support.engine import one
from tests.support.waiting import wait_for
from tests.support.worker_process import ROOT

APP = """
import forebay

app = forebay.App()

@app.job(transaction=True)
def greet(ctx: forebay.Context, n: int) -> None:
    for number in range(n):
        ctx.conn.execute(
            "select forebay.publish('order.paid', jsonb_build_object('n', %s::integer))", [number]
        )
"""


@contextmanager
def running(database, folder, *arguments):
    (folder / "shop.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments],
        cwd=folder,
        env=os.environ
        | LOCAL_ENVIRON
        | {"FOREBAY_DATABASE_URL": database, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["deliver", "--concurrency", "20"], ["worker", "shop:app", "--endpoints"]]
)
def test_published_events_arrive(database, conn, http_endpoint, far_name, tmp_path, arguments):
    create_endpoint(conn, "shop", "http", http_config(http_endpoint, far_name))
    one(conn, "select forebay.create_event_type('order.paid')")
    one(conn, "select forebay.subscribe('shop', 'order.paid', start => 'beginning')")
    with running(database, tmp_path, *arguments) as process:
        one(conn, "select event_id from forebay.publish('order.paid', '{\"n\": 1}')")
        wait_for(lambda: http_endpoint.requests[far_name])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "sending" in process.stderr.read()
    (request,) = http_endpoint.requests[far_name]
    assert request.body == b'{"n": 1}'


@pytest.mark.slow
def test_a_bad_number_of_deliveries_is_refused(database, tmp_path):
    with running(database, tmp_path, "deliver", "--concurrency", "0") as process:
        assert process.wait(20) == 2
        assert "not within 1 to 10,000" in process.stderr.read()


@pytest.mark.slow
def test_until_idle_ends_when_what_handlers_published_is_delivered(
    database, conn, http_endpoint, far_name, tmp_path
):
    """
    Handlers, router and deliverer end in this order: each makes work for the next.
    """
    create_endpoint(conn, "shop", "http", http_config(http_endpoint, far_name))
    one(conn, "select forebay.create_event_type('order.paid')")
    one(conn, "select forebay.subscribe('shop', 'order.paid', start => 'beginning')")
    one(conn, "select forebay.enqueue('greet', '{\"n\": 300}')")
    with running(
        database, tmp_path, "worker", "shop:app", "--endpoints", "--until-idle"
    ) as process:
        assert process.wait(60) == 0, process.stderr.read()
    assert len(http_endpoint.requests[far_name]) == 300
    one(conn, "select event_id from forebay.publish('order.paid', '{\"n\": 1}')")
    with running(database, tmp_path, "deliver", "--until-idle") as process:
        assert process.wait(60) == 0, process.stderr.read()
    assert len(http_endpoint.requests[far_name]) == 301

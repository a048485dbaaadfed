"""forebay drain and forebay worker with drains, as processes."""

import json
import os
import subprocess
import sys

import pytest
import redis

from tests.support.drains import enqueue
from tests.support.waiting import wait_for
from tests.support.worker_process import ROOT

APP = """
import os
import forebay
from forebay.sinks.redis import RedisStream

app = forebay.App()

@app.job(queue="mail")
def send(n: int) -> None:
    print(f"sent {n}\\n", end="")

sink = RedisStream(os.environ["REDIS"], stream=os.environ["STREAM"])
orders = forebay.Drain(app, "orders", sink=sink, queue="orders")
{more}
"""


@pytest.fixture
def run(database, redis_server, far_name, tmp_path):
    def run(*arguments, more="", code=0):
        (tmp_path / "shop.py").write_text(APP.replace("{more}", more))
        environment = {
            "FOREBAY_DATABASE_URL": database,
            "REDIS": f"redis://{redis_server}",
            "STREAM": far_name,
        }
        done = subprocess.run(
            [sys.executable, "-m", "forebay", *arguments],
            cwd=tmp_path,
            env=os.environ | environment | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    return run


@pytest.fixture
def far(redis_server):
    with redis.Redis.from_url(f"redis://{redis_server}") as client:
        yield client


@pytest.mark.slow
def test_drain_runs_the_drains_of_an_application(run, conn, far, far_name):
    enqueue(conn, 3)
    enqueue(conn, 1, queue="mail", kind="send")
    done = run("drain", "shop:app", "--until-idle")
    assert far.xlen(far_name) == 3
    assert f"sending queue orders to {far_name} at" in done.stderr
    assert "3 done" in done.stderr


@pytest.mark.slow
def test_worker_runs_handlers_and_drains(run, conn, far, far_name):
    enqueue(conn, 3)
    enqueue(conn, 2, queue="mail", kind="send")
    done = run("worker", "shop:app", "--until-idle")
    assert far.xlen(far_name) == 3
    assert sorted(done.stdout.split("\n")) == ["", "sent 0", "sent 1"]


@pytest.mark.slow
def test_worker_of_one_queue_runs_no_drains(run, conn, far, far_name):
    enqueue(conn, 3)
    run("worker", "shop:app", "--until-idle", "--queue", "mail")
    assert far.xlen(far_name) == 0


@pytest.mark.slow
def test_a_drain_without_an_application(run, conn, far, far_name, redis_server):
    enqueue(conn, 3)
    settings = ["--set", f"url=redis://{redis_server}", "--set", f"stream={far_name}"]
    settings += ["--set", "maxlen=1000"]
    run("drain", "--queue", "orders", "--sink", "redis-stream", *settings, "--until-idle")
    assert far.xlen(far_name) == 3


@pytest.mark.slow
def test_a_drain_without_an_application_takes_settings_as_json(
    run, conn, far, far_name, redis_server
):
    """A mapping, which only JSON can give: without it RQ's workers would run any function."""
    enqueue(conn, 1, kind="order.created")
    enqueue(conn, 1, kind="os.system")
    settings = ["--set", f"url=redis://{redis_server}", "--set", f"queue={far_name}"]
    settings += ["--set", 'tasks={"order.created": "shop.ship"}']
    done = run("drain", "--queue", "orders", "--sink", "rq", *settings, "--until-idle")
    assert "1 done, 0 retried, 1 dead" in done.stderr
    assert far.llen(f"rq:queue:{far_name}") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["drain", "--queue", "orders"], "--sink is missing"),
        (["drain", "--sink", "redis-stream"], "--queue is missing"),
        (["drain", "--queue", "q", "--sink", "redis-streem"], "Did you mean redis-stream?"),
        (["drain", "--queue", "q", "--sink", "redis-stream"], "needs the setting url"),
        (["drain", "--queue", "q", "--sink", "redis-list", "--set", "url"], "not NAME=VALUE"),
        (["drain", "shop:app", "order"], "Its drains: orders."),
        (["drain", "shop:app", "--queue", "q"], "name one of both"),
    ],
)
def test_mistakes_are_refused(run, arguments, problem):
    assert problem in " ".join(run(*arguments, code=2).stderr.split())


@pytest.mark.slow
def test_handlers_and_a_drain_must_not_share_a_group(run):
    more = """
@app.job(queue="orders")
def ship(n: int) -> None: ...
"""
    done = run("worker", "shop:app", "--until-idle", more=more, code=2)
    assert "reads queue orders in group default, as the handlers do" in done.stderr


@pytest.mark.slow
def test_a_process_stops_at_a_signal(database, redis_server, far_name, conn, far):
    command = [sys.executable, "-m", "forebay", "drain", "--queue", "orders", "--sink"]
    command += ["redis-list", "--set", f"url=redis://{redis_server}", "--set", f"key={far_name}"]
    environment = os.environ | {"FOREBAY_DATABASE_URL": database}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            enqueue(conn, 5)
            wait_for(lambda: far.llen(far_name) == 5)
            process.terminate()
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "5 done" in errors


@pytest.mark.slow
def test_an_audit_sends_again_what_is_lost(run, conn, far, far_name):
    more = """
kept = forebay.Drain(app, "kept", sink=sink, queue="kept", keep_proofs=3600.0)
"""
    enqueue(conn, 20, queue="kept")
    run("drain", "shop:app", "kept", "--until-idle", more=more)
    far.delete(far_name)
    done = run("drain", "shop:app", "kept", "--audit", more=more)
    assert done.stdout.split()[-6:] == ["kept", "20", "0", "0", "20", "20"]
    run("drain", "shop:app", "kept", "--until-idle", more=more)
    assert far.xlen(far_name) == 20
    conn.execute("update forebay.result set enqueued_at = enqueued_at - interval '1 day'")
    far.delete(far_name)
    done = run("drain", "shop:app", "--audit", "--json", more=more, code=1)
    assert json.loads(done.stdout)["kept"]["lost"] == 20
    assert "keeps no proofs" in run("drain", "shop:app", "orders", "--audit", code=2).stderr

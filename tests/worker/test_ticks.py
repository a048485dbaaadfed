"""Ticks: runs of bounded length that do all that is due, and leave no session."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from forebay import App, Snooze
from forebay.doctor.examine import examine, examine_job
from forebay.doctor.status import current_problems
from forebay.errors import ConfigError
from forebay.tick import Tick, arun, asgi
from forebay.worker import Maintenance
from tests.support.effects import PATH_VARIABLE
from tests.support.engine import depth, enqueue, one, shift_clock, state
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import ROOT

pytestmark = pytest.mark.anyio

SECRET = "correct horse battery staple"


@pytest.fixture
def app(database):
    return App(database, name="shop")


async def test_a_tick_does_what_is_due_and_leaves_no_session(app, conn, sessions):
    """
    Scheduled jobs that are due, instants of schedules, ready jobs and their drains; then it says
    that nothing is left, and when more is due.
    """
    ran = []

    @app.job
    def work(n: int) -> None:
        ran.append(n)

    @app.cron(every=3600, starts_at=datetime(2020, 1, 1, tzinfo=UTC))
    @app.job
    def hourly() -> None:
        ran.append("hourly")

    work.enqueue(conn, 1)
    work.using(delay=0.001).enqueue(conn, 2)
    work.using(delay=900).enqueue(conn, 3)
    found = await arun(app, budget=20)
    assert (found.done, found.is_left, found.dead, found.released) == (2, False, 0, 0)
    assert sorted(ran) == [1, 2]
    left = found.next_at - datetime.now(UTC)
    assert timedelta(0) < left <= timedelta(seconds=901)
    await wait_for_async(lambda: sessions() == [], 10, sessions)
    assert [each.name for each in app.client().schedules()] == ["hourly"]


async def test_ticks_are_known_where_a_worker_is_missed(app, conn, database, sessions):
    """
    What waits for the next tick is no problem: neither a schedule whose instant has passed, nor a
    ready job, nor alerts that were not checked meanwhile. When no tick came for too long, all are.
    """

    @app.cron("* * * * *")
    @app.job
    def report() -> None: ...

    conn.execute("update forebay.schema_migration set applied_at = applied_at - interval '2 days'")
    for _ in range(2):
        await arun(app, budget=20)
    # As if a tick came every 20 minutes.
    conn.execute(
        "update forebay.lease set closed_at = closed_at - interval '20 minutes'"
        " where lease_id = (select lease_id from forebay.lease order by closed_at limit 1)"
    )
    job_id = report.enqueue(conn)
    report.using(delay=60).enqueue(conn)
    shift_clock(conn, 15 * 60)
    assert one(conn, "select count(*) from forebay.alerts()") == 0
    assert await current_problems(database) == []
    (explained,) = await examine_job(database, job_id)
    assert (explained.cause, "no worker stays" in explained.answer) == ("not served", True)
    named = {"workers", "queues", "unserved", "scheduled", "overdue", "schedules"}
    findings = [each for each in await examine(database) if each.check in named]
    assert {each.level for each in findings} <= {"ok", "notice"}, findings
    shift_clock(conn, 26 * 3600)
    assert one(conn, "select min(code) from forebay.alerts()") == "unchecked"
    found = {found.code for found in await current_problems(database)}
    assert found >= {"schedule", "unserved", "overdue"}


async def test_instants_are_decided_by_ticks(app, conn):
    """
    One job for each instant, however many ticks there are.
    """
    ran = []

    @app.cron("* * * * * *", overlap="allow")
    @app.job
    def second() -> None:
        ran.append(1)

    total = 0
    for _ in range(3):
        total += (await arun(app, budget=20)).scheduled
        await asyncio.sleep(0.4)
    counted = "select count(*), count(distinct j.job_id) from forebay.jobs(most => 1000) j"
    assert conn.execute(counted).fetchone() == (total, total)


async def test_the_budget_ends_a_tick(app, conn, sessions):
    """
    No further job starts after three quarters of it; what runs on is released without using an
    attempt, and work is left.
    """
    stopped = []

    @app.job
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(1)
            raise

    for _ in range(30):
        slow.enqueue(conn)
    began = time.monotonic()
    found = await arun(app, budget=3)
    assert found.is_left
    assert found.released
    assert found.done == 0
    assert time.monotonic() - began < 30
    assert depth(conn) == {"default": (30, 0, 0)}
    assert one(conn, "select max(j.attempt) from forebay.jobs() j") == 1
    await wait_for_async(lambda: sessions() == [], 10, sessions)


async def test_a_job_that_is_due_later_is_left_for_later(app, conn):
    """
    The answer says when: a retry, a snooze.
    """

    @app.job
    def later() -> Snooze:
        return Snooze(600)

    later.enqueue(conn)
    found = await arun(app, budget=10)
    assert not found.is_left
    assert timedelta(minutes=9) < found.next_at - datetime.now(UTC) < timedelta(minutes=11)


async def test_a_tick_maintains_the_log(app, conn, monkeypatch):
    """
    Each duty has a pass, also if no job is there.
    """
    app.job(name="work")(lambda: None)
    began = []
    before = Maintenance.run_all

    async def run_all(self, seconds):
        self._schedule.run_step = recorded(self._schedule.run_step)
        await before(self, seconds)

    def recorded(run_step):
        async def run(duty):
            began.append(duty.name)
            await run_step(duty)

        return run

    monkeypatch.setattr(Maintenance, "run_all", run_all)
    await arun(app, budget=60)
    assert {"promote", "seal", "extend", "retain", "fold", "trim batches"} <= set(began)


@pytest.mark.parametrize("budget", [0, 0.5, 3601, -1, "1m", None, True])
async def test_a_budget_out_of_range_is_refused(app, budget):
    """
    By its name and value, before anything runs.
    """
    with pytest.raises(ConfigError, match="budget"):
        await arun(app, budget=budget)


# --- the route ---


async def ask(route, *, method="POST", secret=SECRET, query=b"", header=None):
    """Send a request as an ASGI server does; return status, answer and headers."""
    sent = []
    value = header if header is not None else f"Bearer {secret}".encode()
    scope = {
        "type": "http",
        "method": method,
        "headers": [(b"authorization", value)] if secret or header else [],
        "query_string": query,
        "path": "/",
    }

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await route(scope, receive, send)
    start, body = sent
    return start["status"], json.loads(body["body"]), dict(start["headers"])


async def test_the_route_runs_a_tick(app, conn, sessions):
    """
    A POST with the secret; the answer is that of a tick.
    """

    @app.job
    def work() -> None: ...

    job_id = work.enqueue(conn)
    status, answer, headers = await ask(asgi(app, secret=SECRET), query=b"budget=15")
    assert (status, answer["done"], answer["is_left"]) == (200, 1, False)
    assert set(answer) == set(Tick.__dataclass_fields__)
    assert headers[b"cache-control"] == b"no-store"
    assert state(conn, job_id) == "done"
    await wait_for_async(lambda: sessions() == [], 10, sessions)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"method": "GET"}, 405),
        ({"method": "HEAD"}, 405),
        ({"secret": ""}, 401),
        ({"secret": "wrong"}, 401),
        ({"secret": SECRET[:-1]}, 401),
        ({"header": SECRET.encode()}, 401),
        ({"header": b"\xff\xfe"}, 401),
        ({"query": b"budget=soon"}, 400),
        ({"query": b"budget=nan"}, 400),
        ({"query": b"budget=-1"}, 400),
    ],
    ids=str,
)
async def test_the_route_refuses_others_without_asking_the_database(asked, status):
    """
    Another method, no or a wrong secret, a budget that is none.
    """
    route = asgi(App("host=/nonexistent dbname=x"), secret=SECRET)
    assert (await ask(route, **asked))[0] == status


async def test_a_longer_budget_than_that_of_the_route_is_cut(app):
    """
    The host of the route decides.
    """
    assert asgi(app, secret=SECRET, budget=2)._asked(b"budget=50") == 2
    assert asgi(app, secret=SECRET, budget=20)._asked(b"budget=5&x=1") == 5
    assert asgi(app, secret=SECRET, budget=20)._asked(b"") == 20


async def test_one_request_at_a_time_runs_a_tick(app, conn, sessions):
    """
    The other one is told that it is busy, in any process: the lock is in the database. Another app
    has another lock, and a request that is over leaves none.
    """
    running = asyncio.Event()
    goes_on = asyncio.Event()

    @app.job
    async def work() -> None:
        running.set()
        await goes_on.wait()

    work.enqueue(conn)
    route = asgi(app, secret=SECRET)
    first = asyncio.create_task(ask(route))
    await asyncio.wait_for(running.wait(), 30)
    status, answer, _ = await ask(asgi(app, secret=SECRET))
    assert (status, answer) == (409, {"status": "busy"})
    other = App(app.dsn, name="other")
    other.job(name="other", queue="other")(lambda: None)
    assert (await ask(asgi(other, secret=SECRET), query=b"budget=2"))[0] == 200
    goes_on.set()
    assert (await first)[0] == 200
    assert (await ask(route, query=b"budget=5"))[0] == 200
    assert one(conn, "select count(*) from pg_locks where locktype = 'advisory'") == 0
    await wait_for_async(lambda: sessions() == [], 10, sessions)


async def test_a_client_that_goes_away_leaves_no_lease(app, conn, sessions):
    """
    The server cancels the request: the job is released at once, not when its lease is revoked.
    """
    running = asyncio.Event()

    @app.job
    async def work() -> None:
        running.set()
        await asyncio.sleep(60)

    work.enqueue(conn)
    request = asyncio.create_task(ask(asgi(app, secret=SECRET), query=b"budget=4"))
    await asyncio.wait_for(running.wait(), 30)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert depth(conn) == {"default": (1, 0, 0)}
    assert one(conn, "select count(*) from forebay.lease where closed_at is null") == 0
    await wait_for_async(lambda: sessions() == [], 10, sessions)


async def test_a_database_that_is_away_is_an_answer():
    """
    503, so that whoever calls tries again.
    """
    status, answer, _ = await ask(asgi(App("host=/nonexistent dbname=x"), secret=SECRET))
    assert status == 503
    assert "unavailable" in answer["error"]


async def test_an_app_without_jobs_is_refused_before_anything_runs(app, conn):
    """
    As a worker refuses it.
    """
    with pytest.raises(ConfigError, match="has no handler"):
        await arun(app, budget=5)


async def test_a_secret_that_is_short_is_refused(app):
    """
    Who can guess it can run jobs at will.
    """
    with pytest.raises(ConfigError, match="fewer than 16"):
        asgi(app, secret="short")
    with pytest.raises(ConfigError, match="secret"):
        asgi(app, secret=None)


# --- the command, and kills ---


def command(database, effects, *arguments, **environment):
    """Start ``forebay tick``."""
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", "tick", "tests.support.tick_app:app", *arguments],
        cwd=ROOT,
        env=os.environ
        | {
            "FOREBAY_DATABASE_URL": database,
            PATH_VARIABLE: str(effects.path),
            "FOREBAY_SUSPECT_SECONDS": "1",
            "FOREBAY_LEASE_SECONDS": "3",
            "FOREBAY_LEASE_MARGIN_SECONDS": "1",
            "FOREBAY_HEARTBEAT_SECONDS": "0.2",
        }
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_the_exit_code_says_whether_work_is_left(database, conn, effects, sessions):
    """
    0: nothing could run now; 1: call again. ``--look`` runs nothing.
    """
    options = ("--json", "--schedules", "off", "--log-level", "warning")
    look = command(database, effects, "--look", *options)
    out, err = look.communicate(timeout=60)
    assert (look.returncode, json.loads(out)["is_left"]) == (0, False), err
    for entry in range(3):
        enqueue(conn, kind="work", args={"entry": entry})
    look = command(database, effects, "--look", *options)
    out, err = look.communicate(timeout=60)
    assert (look.returncode, json.loads(out)["done"]) == (1, 0), err
    done = command(database, effects, "--budget", "20s", *options)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, json.loads(out)["done"]) == (0, 3), err
    for entry in range(200):
        enqueue(conn, kind="work", args={"entry": 10 + entry, "seconds": 0.5})
    cut = command(database, effects, "--budget", "3", *options)
    out, err = cut.communicate(timeout=60)
    assert (cut.returncode, json.loads(out)["is_left"]) == (1, True), err
    refused = command(database, effects, "--budget", "2h")
    _, err = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert "budget" in err
    wait_for(lambda: sessions() == [], 10, sessions)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(25, id="short"),
        pytest.param(600, id="ten minutes", marks=pytest.mark.nightly),
    ],
)
def test_ticks_that_are_killed_lose_nothing(database, conn, effects, seed, seconds, sessions):
    """
    Each tick is a clean process, and some are killed: every job ends done, each instant of the
    schedule has one job, and no session is open between two ticks.
    """
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    entry = kills = 0
    while time.monotonic() < until:
        for _ in range(rng.randint(1, 20)):
            entry += 1
            enqueue(conn, kind="work", args={"entry": entry})
        process = command(database, effects, "--budget", "12", "--log-level", "warning")
        if rng.random() < 0.4:
            time.sleep(rng.uniform(0.5, 3.0))
            process.kill()
            kills += 1
        _, err = process.communicate(timeout=60)
        assert "Traceback" not in err, err
        wait_for(lambda: sessions() == [], 10, sessions)
    for _ in range(20):
        process = command(database, effects, "--budget", "30", "--log-level", "warning")
        process.communicate(timeout=90)
        if effects.entries("end") == set(range(1, entry + 1)) and state_of_all(conn) == {"done"}:
            break
    assert effects.entries("end") == set(range(1, entry + 1))
    instants = conn.execute(
        "select count(*), count(distinct o.job_id) from forebay.occurrence o "
        "where o.status = 'enqueued'"
    ).fetchone()
    assert instants[0] == instants[1] > 0
    wait_for(lambda: sessions() == [], 10, sessions)
    assert kills or seconds < 60


def state_of_all(conn):
    """Return the states of the jobs of ``work``."""
    found = "select distinct j.state from forebay.jobs(only_kind => 'work', most => 1000) j"
    return {name for (name,) in conn.execute(found).fetchall()}

"""How a worker process ends: by signal, in time, and without losing or spending anything."""

import random
import signal
import threading
import time

import anyio
import pytest

from forebay.ops.protocol import HeartbeatAnswer
from forebay.worker import Worker
from tests.support.engine import depth, one, state
from tests.support.fix_worker import running
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for, wait_for_async


def beyond_grace(worker) -> float:
    """Return what the promise allows beyond the grace time: five seconds, and on a machine that is
    busy as much more as it needs for twice the start of a worker.
    """
    return 5.0 + 2 * worker.start_seconds


def enqueue(conn, kind: str, entry: int, **args) -> int:
    """Enqueue one job for the handlers of the worker processes; return its id."""
    pairs = "".join(f", '{key}', %s::text::json" for key in args)
    return one(
        conn,
        f"select forebay.enqueue(%s, json_build_object('entry', %s::bigint{pairs})::jsonb)",
        kind,
        entry,
        *(str(v) if isinstance(v, int | float) else f'"{v}"' for v in args.values()),
    )


@pytest.mark.slow
def test_at_sigterm_running_jobs_finish_and_the_others_go_back_at_no_attempt(
    conn, workers, effects
):
    """
    What runs is finished within the grace time; what was only claimed is released, and its attempt
    is still its first when another worker runs it. The process then ends with code 0.
    """
    worker = workers.start(concurrency=2, ahead_seconds=60)
    enqueue(conn, "work", 0)
    wait_for(lambda: effects.all("end"))  # A short job: now it claims far ahead.
    running = [enqueue(conn, "work", n, seconds=1.0) for n in (1, 2)]
    waiting = [enqueue(conn, "work", n) for n in range(3, 40)]
    wait_for(lambda: effects.entries("start") >= {1, 2})
    worker.terminate()
    worker.wait(5 + beyond_grace(worker))
    assert worker.process.returncode == 0, worker.log
    assert [state(conn, job) for job in running] == ["done", "done"]
    assert effects.entries("start") == effects.entries("end")

    workers.start()
    wait_for(lambda: depth(conn)["default"] == (0, 0, 0))
    assert all(state(conn, job) == "done" for job in waiting)
    starts = effects.all("start")
    assert len(starts) == 40
    assert {start.attempt for start in starts} == {1}


@pytest.mark.slow
def test_what_outlasts_the_grace_time_is_released(conn, workers, effects):
    """
    A handler that does not finish in time is interrupted, and its job goes back at no attempt.
    """
    worker = workers.start(grace_seconds=0.5)
    jobs = [enqueue(conn, kind, n, seconds=60) for n, kind in enumerate(("work", "write"))]
    wait_for(lambda: len(effects.all("start")) == 2)
    worker.terminate()
    took = worker.wait(0.5 + beyond_grace(worker))
    assert [state(conn, job) for job in jobs] == ["ready", "ready"]
    assert one(conn, "select count(*) from forebay.log where coalesce(attempt, 0) > 0") == 0
    assert one(conn, "select count(*) from effect") == 0
    print(f"ended after {took:.2f} s")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(conn, workers, effects, number):
    """
    Whoever asks twice does not wait for the grace time.
    """
    worker = workers.start(grace_seconds=600)
    job = enqueue(conn, "work", 1, seconds=60)
    wait_for(lambda: effects.all("start"))
    worker.process.send_signal(number)
    worker.wait_for_log(number.name)
    worker.process.send_signal(number)
    took = worker.wait(beyond_grace(worker))
    assert state(conn, job) == "ready"
    print(f"ended after {took:.2f} s")


@pytest.fixture
def hang_up():
    """Let processes that are started do this on SIGHUP."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda action: signal.signal(signal.SIGHUP, action)
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_stops_it_as_sigterm_does(conn, workers, effects, hang_up):
    """
    The kernel and the shell each send a SIGHUP: the second one does not skip the wait.
    """
    hang_up(signal.SIG_DFL)
    worker = workers.start(grace_seconds=600)
    job = enqueue(conn, "work", 1, seconds=2)
    wait_for(lambda: effects.all("start"))
    worker.process.send_signal(signal.SIGHUP)
    worker.wait_for_log("SIGHUP")
    worker.process.send_signal(signal.SIGHUP)
    worker.wait(2 + beyond_grace(worker))
    assert worker.process.returncode == 0, worker.log
    assert state(conn, job) == "done"
    assert one(conn, "select array_agg(how) from forebay.ended_workers()") == ["stopped"]


def test_a_worker_under_nohup_goes_on(conn, workers, effects, hang_up):
    """SIGHUP is ignored, as before it."""
    hang_up(signal.SIG_IGN)
    worker = workers.start()
    worker.process.send_signal(signal.SIGHUP)
    enqueue(conn, "work", 1)
    wait_for(lambda: effects.all("end"))
    assert worker.process.poll() is None
    assert "SIGHUP" not in worker.log


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_it_ends_in_time_though_the_database_does_not_answer(
    conn, database, workers, effects, times
):
    """
    With every connection swallowing what is sent, the process ends within grace and five seconds;
    its jobs come back when the lease is revoked, and run elsewhere.
    """
    with Proxy(database) as proxy:
        worker = workers.start(dsn=proxy.dsn, grace_seconds=1 if times == 1 else 600)
        jobs = [
            enqueue(conn, kind, n, seconds=60)
            for n, kind in enumerate(("work", "write", "work_in_thread", "write_in_thread"))
        ]
        wait_for(lambda: len(effects.all("start")) == 4)
        with proxy.black_hole():
            worker.terminate()
            worker.wait_for_log("SIGTERM")
            if times == 2:
                worker.terminate()
            took = worker.wait((1 if times == 1 else 0) + beyond_grace(worker))
            print(f"ended after {took:.2f} s")
    workers.start()
    wait_for(lambda: len(effects.all("start")) == 8, 20)
    assert all(state(conn, job) in {"claimed", "running"} for job in jobs)


@pytest.mark.slow
def test_it_ends_in_time_though_handlers_ignore_everything(conn, workers, effects):
    """
    A coroutine that swallows its cancellation and a thread that sleeps for ever do not keep the
    process.
    """
    worker = workers.start(grace_seconds=0.5)
    for n, kind in enumerate(("ignore_cancellation", "sleep_in_thread", "sleep_in_an_executor")):
        enqueue(conn, kind, n)
    wait_for(lambda: len(effects.all("start")) == 3)
    worker.terminate()
    took = worker.wait(0.5 + beyond_grace(worker))
    assert worker.process.returncode == 0, worker.log
    assert depth(conn)["default"] == (3, 0, 0)
    print(f"ended after {took:.2f} s")


@pytest.mark.slow
def test_it_ends_while_it_waits_for_a_database_that_is_not_there(database, workers, tmp_path):
    """
    A worker that never got a lease obeys too.
    """
    worker = workers.start(dsn=f"host={tmp_path} dbname=none user=postgres", wait=False)
    worker.wait_for_log("database unavailable")
    worker.terminate()
    worker.wait(beyond_grace(worker))
    assert worker.process.returncode == 0, worker.log


@pytest.mark.slow
def test_rolling_restarts_under_load_lose_nothing_and_spend_nothing(conn, workers, effects, seed):
    """
    Workers replaced one after the other, by one signal, two, or SIGINT: every job runs to its end
    exactly once, unless it was interrupted, and no attempt is spent.
    """
    rng = random.Random(seed)
    count = 400
    conn.execute(
        "select forebay.enqueue_many('work', array(select jsonb_build_object('entry', g,"
        " 'seconds', 0.02) from generate_series(1, %s) g))",
        [count],
    )
    current = workers.start(concurrency=4, grace_seconds=2)
    for _ in range(4):
        following = workers.start(concurrency=4, grace_seconds=2)
        for number in rng.choice(
            [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]]
        ):
            current.process.send_signal(number)
        current.wait(2 + beyond_grace(current))
        assert current.process.returncode == 0, current.log
        current = following
    wait_for(lambda: depth(conn)["default"] == (0, 0, 0), 30)
    assert effects.entries("end") == set(range(1, count + 1))
    assert set(effects.count("end").values()) == {1}
    assert {start.attempt for start in effects.all("start")} == {1}
    assert one(conn, "select count(*) from forebay.lease where closed_as = 'revoked'") == 0


@pytest.mark.anyio
async def test_a_lease_that_is_closed_at_the_end_is_not_called_lost(app, caplog):
    """
    A heartbeat that is answered between the closing and the end does not know of the lease any
    more.
    """
    app.job(name="work")(lambda: None)
    async with running(app) as worker:
        await wait_for_async(lambda: worker._leases.open_leases)
        leases = list(worker._leases.open_leases)
        run, closed = worker._claims.run, []

        async def and_then_a_heartbeat(operation, **options):
            answer = await run(operation, **options)
            if "close_lease" in operation.sql:
                closed.append(operation)
                worker._on_heartbeat(
                    HeartbeatAnswer(frozenset(), frozenset()), leases, time.monotonic()
                )
            return answer

        worker._claims.run = and_then_a_heartbeat
    assert closed
    assert worker.stats.leases_lost == 0
    assert "LeaseLost" not in caplog.text


@pytest.mark.anyio
@pytest.mark.direct  # A pooler keeps sessions for others.
async def test_a_worker_that_is_cancelled_at_every_await_closes_what_it_opened(app, conn):
    """As in a task group of anyio, which cancels again while the worker closes: no session and
    no thread is left.
    """
    app.job(name="work")(lambda: None)
    stopped: list[Worker] = []
    with anyio.CancelScope() as scope:
        async with running(app) as worker:
            stopped.append(worker)
            scope.cancel()
            await anyio.sleep(10)
    assert scope.cancelled_caught
    (worker,) = stopped  # which keeps its sessions from the garbage collector
    assert not [thread for thread in threading.enumerate() if thread.name == "forebay-heartbeat"]
    mine = f"forebay {worker.name}"[:63]
    wait_for(
        lambda: (
            one(conn, "select count(*) from pg_stat_activity where application_name = %s", mine)
            == 0
        )
    )

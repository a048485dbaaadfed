"""Workers that an operator asks to stop: they end as at SIGTERM, and it is told who asked."""

import json
import os
import subprocess
import sys
import threading

import anyio
import pytest

import forebay
from forebay.cli.exit import ExitCode
from forebay.config import Settings, WorkerSettings
from forebay.errors import JobsChanged
from forebay.worker import Worker, run_workers
from tests.support.engine import connect, enqueue, one, sqlstate, state
from tests.support.fix_worker import running
from tests.support.waiting import wait_for
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio


def command(database, *arguments) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forebay", "workers", *arguments, "--dsn", database],
        env=os.environ | {"COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def lease(conn, worker: str, version: str | None = None) -> int:
    """Open the lease of a worker that reports itself as the library does."""
    host, pid, _ = worker.split(":")
    details = {"host": host, "pid": int(pid), "group": "default", "app_version": version}
    return one(conn, "select forebay.open_lease_v1(%s, 60, 60, 1, %s)", worker, json.dumps(details))


def asked(conn, lease_id: int) -> str | None:
    return one(conn, "select stop_by from forebay.heartbeat_v1(array[%s::bigint])", lease_id)


@pytest.mark.slow
def test_what_runs_is_finished_nothing_is_taken_and_it_is_told_who_asked(workers, conn, database):
    """
    The job that runs ends in the grace time, the next one waits, the process ends with code 0. The
    list of workers, the list of ended ones, its log and the event log name the operator.
    """
    worker = workers.start(concurrency=1, grace_seconds=120)
    client = forebay.Client(database)
    with connect(database) as gate, gate.transaction():
        gate.execute("lock table effect")  # which the job writes to
        runs = enqueue(conn, kind="write", args={"entry": 1})
        found = wait_for(lambda: next((w for w in client.workers() if w.running), None), 20)
        planned = command(database, "stop", found.worker, "--dry-run")
        assert planned.returncode == 0, planned.stderr
        assert "1 worker" in planned.stdout
        assert "1 job" in planned.stdout
        # Nobody is there to agree.
        assert command(database, "stop", found.worker).returncode != 0
        assert client.workers()[0].stop_at is None

        done = command(database, "stop", found.worker, "--yes")
        assert done.returncode == 0, done.stderr
        assert "asked 1 worker to stop" in done.stdout
        waits = enqueue(conn, kind="work", args={"entry": 2})
        worker.wait_for_log("asked to stop by cli ")
        (stopping,) = client.workers()
        assert stopping.stop_by.startswith("cli ")
        assert "asked to stop" in command(database, "list").stdout
    worker.wait(20)
    assert worker.process.returncode == 0, worker.log
    assert [state(conn, job) for job in (runs, waits)] == ["done", "ready"]
    (ended,) = client.ended_workers()
    assert (ended.how, ended.stop_by, ended.jobs) == ("stopped", stopping.stop_by, 0)
    assert "asked to stop by cli" in command(database, "list", "--ended").stdout
    (event,) = client.events(act="workers.stop")
    assert (event.count, event.detail, event.actor) == (1, found.worker, stopping.stop_by)
    assert event.new == {"workers": [found.worker]}
    assert command(database, "stop", found.worker, "--yes").returncode == ExitCode.FAILED


@pytest.mark.slow
def test_a_worker_that_dies_before_it_reads_the_request_leaves_nothing_to_its_successor(
    workers, conn, database
):
    """
    It is frozen, asked by its host and process, and killed. What replaces it works on, though it
    was asked for by host before; the request is cleared by the next one.
    """
    first = workers.start(concurrency=1)
    client = forebay.Client(database)
    (found,) = client.workers()
    first.freeze()
    # One heartbeat may be under way.
    held = one(conn, "select lease_id from forebay.lease where closed_at is null")
    assert client.stop_workers(worker=found.host) == 1
    first.kill()
    second = workers.start(concurrency=1)
    job = enqueue(conn, kind="work", args={"entry": 1})
    wait_for(lambda: state(conn, job) == "done", 20, lambda: second.log)
    wait_for(
        lambda: one(
            conn, "select closed_at is not null from forebay.lease where lease_id = %s", held
        ),
        30,
    )
    assert second.is_running
    (alive,) = client.workers()
    assert alive.stop_at is None
    (ended,) = client.ended_workers()
    assert (ended.how, ended.stop_by is not None) == ("lost", True)
    assert client.set_concurrency(2) == 1
    assert one(conn, "select array_agg(worker) from forebay.worker_setting") == [alive.worker]


def test_only_those_that_were_chosen_are_asked(conn, database):
    """
    By name, host, process or version; a beginning that does not end at a colon chooses nobody, nor
    does the name of a worker in another language, which cannot know.
    """
    client = forebay.Client(database)
    conn.execute("select forebay.open_group('default', 'default')")
    old = [lease(conn, "web-1:7:aa", "1.0"), lease(conn, "web-1:8:bb", "2.0")]
    new = [lease(conn, "web-10:7:cc", "2.0")]
    conn.execute("select forebay.enter('web-1:9:sql', array['default'], app_version => '2.0')")

    def chosen(**which: str) -> set[str]:
        return {name[-2:] for name in client.plan_stop(**which).workers}

    assert chosen(worker="web-1") == {"aa", "bb"}
    assert chosen(app_version="2.0") == {"bb", "cc"}
    assert chosen() == {"aa", "bb", "cc"}
    for nobody in ("web", "web-1:", "web-1:7:", "", "web-1:9:sql", "%", "web-1\n"):
        assert client.plan_stop(worker=nobody).workers == [], nobody
        assert client.stop_workers(worker=nobody) == 0
    assert client.stop_workers(worker="web-1", app_version="2.0") == 1
    with forebay.acting_as("ada"):
        assert client.stop_workers(worker="web-1:7") == 1
        assert client.stop_workers(worker="web-1:7") == 0
    assert [asked(conn, one_) for one_ in (*old, *new)] == ["ada", "postgres", None]
    assert [(e.count, e.detail, e.new) for e in client.events(act="workers.stop")] == [
        (1, "web-1:7", {"workers": ["web-1:7:aa"]}),
        (1, "web-1", {"workers": ["web-1:8:bb"], "app_version": "2.0"}),
    ]


def test_a_token_asks_exactly_those_of_its_preview(conn, database):
    """
    Once another worker matches, or one of them has ended or was asked, or for another choice, it is
    refused and nobody is asked.
    """
    client = forebay.Client(database)
    first = lease(conn, "web-1:7:aa", "1.0")
    plan = client.plan_stop(worker="web-1")
    assert (plan.workers, plan.jobs) == (["web-1:7:aa"], 0)
    with pytest.raises(JobsChanged, match="other workers match"):
        client.stop_workers(token=plan.token)
    second = lease(conn, "web-1:8:bb", "1.0")
    with pytest.raises(JobsChanged):
        client.stop_workers(worker="web-1", token=plan.token)
    assert sqlstate(conn, "select forebay.stop_workers('web-1', token => 'x')") == "JQ042"
    assert [asked(conn, one_) for one_ in (first, second)] == [None, None]
    assert client.events(act="workers.stop") == []
    both = client.plan_stop(worker="web-1")
    one(conn, "select forebay.close_lease_v1(%s)", second)
    with pytest.raises(JobsChanged):
        client.stop_workers(worker="web-1", token=both.token)
    assert client.stop_workers(worker="web-1", token=plan.token) == 1
    with pytest.raises(JobsChanged):
        client.stop_workers(worker="web-1", token=plan.token)
    refused = command(database, "stop", "web-1", "--token", plan.token)
    assert refused.returncode == ExitCode.FAILED
    assert "other workers match by now" in " ".join(refused.stderr.split())


def test_two_at_once_ask_each_worker_once(conn, database):
    """
    The counts of all requests together are the number of workers, and so are those of the events.
    """
    for number in range(20):
        lease(conn, f"web-1:{number}:aa")
    counts: list[int] = []
    start = threading.Barrier(4)

    def ask() -> None:
        with connect(database) as own:
            start.wait()
            counts.append(one(own, "select forebay.stop_workers('web-1')"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 20
    assert one(conn, "select sum(count) from forebay.event where act = 'workers.stop'") == 20


def test_a_concurrency_and_a_request_do_not_replace_each_other(conn, database):
    """
    Whatever order they come in: also if the concurrency is removed again.
    """
    client = forebay.Client(database)
    first, second = lease(conn, "web-1:7:aa"), lease(conn, "web-1:8:bb")
    client.set_concurrency(3, worker="web-1:7")
    client.stop_workers()
    client.set_concurrency(4, worker="web-1:8")
    followed = "select concurrency, stop_by from forebay.heartbeat_v1(array[%s::bigint])"
    assert [conn.execute(followed, [each]).fetchone() for each in (first, second)] == [
        (3, "postgres"),
        (4, "postgres"),
    ]
    client.set_concurrency(None)
    assert [conn.execute(followed, [each]).fetchone() for each in (first, second)] == [
        (None, "postgres"),
        (None, "postgres"),
    ]
    assert one(conn, "select count(*) from forebay.worker_setting where concurrency is null") == 2


async def test_the_other_workers_of_its_process_stop_too(database):
    """
    A process with the workers of several drains would else go on with a part of them, and not be
    ready.
    """
    settings = WorkerSettings(**FAST | {"grace_seconds": 0.0})
    made = []
    for queue in ("one", "two"):
        app = forebay.App(database, settings=Settings(worker=settings))
        made.append(Worker(app._internals, database, queues=queue, settings=settings))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_workers, made, settings)
            for worker in made:
                await worker.started.wait()
            assert await forebay.AsyncClient(database).stop_workers(worker=made[0].name) == 1
    ended = await forebay.AsyncClient(database).ended_workers()
    assert {one_.worker: one_.stop_by for one_ in ended} == {
        made[0].name: "postgres",
        made[1].name: None,
    }
    assert [worker.asked_by for worker in made] == ["postgres", None]


async def test_a_request_outlives_the_lease(app, conn):
    """
    A worker that opens another lease before it has read the request, after an outage for example,
    stops too.
    """

    @app.job
    async def work() -> None: ...

    async with running(app) as worker:
        client = forebay.AsyncClient(app.dsn)
        assert await client.stop_workers(worker=worker.name) == 1
        with anyio.fail_after(20):
            await worker._signals.stop_event.wait()


def test_wrong_words_of_the_command_are_refused_and_nobody_is_asked(conn, database):
    """
    Without a choice, with two choices, and if nobody matches.
    """
    only = lease(conn, "web-1:7:aa")
    for arguments in (["stop"], ["stop", "x", "--all"], ["stop", "--yes"]):
        assert command(database, *arguments).returncode == ExitCode.USAGE, arguments
    nobody = command(database, "stop", "x", "--yes")
    assert nobody.returncode == ExitCode.FAILED
    assert "no worker x runs that was not asked before" in nobody.stderr
    assert command(database, "stop", "--app-version", "9", "--yes").returncode == ExitCode.FAILED
    assert asked(conn, only) is None

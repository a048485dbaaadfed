"""What operators see of running workers, and the change of their concurrency."""

import json
import os
import subprocess
import sys

import pytest

import forebay
from forebay.cli.exit import ExitCode
from forebay.errors import InvalidJob
from tests.support.engine import enqueue, one
from tests.support.fix_worker import running
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio


def command(database, *arguments, columns=80) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forebay", "workers", *arguments, "--dsn", database],
        env=os.environ | {"COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_worker_is_listed_with_what_it_is_and_what_it_runs(workers, conn, database):
    """
    From its first heartbeat until it stops; retried jobs too, whose rows do not have the number of
    the job.
    """
    worker = workers.start(concurrency=3, app_version="1.2.3", queue="default,mail")
    first = enqueue(conn, kind="work", args={"entry": 1, "seconds": 60})
    again = enqueue(conn, kind="step", args={"entry": 2, "seconds": 6, "failures": 1})
    client = forebay.Client(database)

    def listed():
        (found,) = client.workers()
        return found

    wait_for(lambda: {j.job_id for j in listed().running_jobs} >= {first}, 20)
    wait_for(lambda: conn.execute("select 1 from forebay.failure").fetchone(), 20)

    def with_both():
        found = listed()
        return found if {j.job_id for j in found.running_jobs} == {first, again} else None

    found = wait_for(with_both, 20, lambda: f"{listed()}")
    assert found.pid == worker.pid
    assert found.worker.startswith(f"{found.host}:{found.pid}:")
    assert (found.group, list(found.queues)) == ("default", ["default", "mail"])
    assert (found.app, found.app_version) == ("tests.support.worker_app:app", "1.2.3")
    assert found.forebay_version
    assert found.concurrency == 3
    assert found.running == 2
    assert {j.job_id: j.kind for j in found.running_jobs} == {first: "work", again: "step"}
    assert all(j.claimed_at for j in found.running_jobs)
    assert 10_000_000 < found.memory_bytes < 1_000_000_000
    assert found.started_at < found.heartbeat_at
    assert [len(w.running_jobs) for w in client.workers(jobs=1)] == [1]
    assert client.workers(jobs=0)[0].running_jobs == []

    shown = command(database, "list")
    assert shown.returncode == 0, shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert f"{first} work" in shown.stdout
    assert "2/3 slots" in shown.stdout or "1/3 slots" in shown.stdout
    assert "default, mail; tests.support.worker_app:app 1.2.3; forebay " in shown.stdout
    (read,) = json.loads(command(database, "list", "--json").stdout)
    assert read["pid"] == worker.pid

    worker.terminate()
    worker.wait(20)
    assert client.workers() == []
    assert "No workers." in command(database, "list").stdout


@pytest.mark.slow
def test_concurrency_is_changed_while_the_worker_runs(workers, conn, database):
    """
    Up and down, for one worker and for all; a restarted worker begins as it was started, and the
    event log tells.
    """
    worker = workers.start(concurrency=2)
    other = workers.start(concurrency=2, queue="other")
    for entry in range(8):
        enqueue(conn, kind="work_in_thread", args={"entry": entry, "seconds": 60})
    client = forebay.Client(database)

    def runs() -> int:
        return max(w.running for w in client.workers(jobs=0))

    def slots() -> dict[int, int]:
        return {w.pid: w.concurrency for w in client.workers(jobs=0)}

    wait_for(lambda: runs() == 2, 20)
    name = next(w.worker for w in client.workers() if w.pid == worker.pid)
    answer = command(database, "set", name, "--concurrency", "6")
    assert answer.returncode == 0, answer.stderr
    assert "concurrency 6 for 1 worker" in answer.stdout
    wait_for(lambda: runs() == 6, 20, lambda: worker.log)
    worker.wait_for_log("concurrency: 6 instead of 2")
    assert slots() == {worker.pid: 6, other.pid: 2}

    assert client.set_concurrency(1) == 2
    worker.wait_for_log("concurrency: 1 instead of 6")
    other.wait_for_log("concurrency: 1 instead of 2")
    # By the beginning of the name.
    assert client.set_concurrency(None, worker=name.rpartition(":")[0]) == 1
    worker.wait_for_log("concurrency: 2 instead of 1")
    assert slots() == {worker.pid: 2, other.pid: 1}
    assert client.set_concurrency(5, worker="nobody") == 0
    assert client.set_concurrency(5, worker=name[:3]) == 0
    acts = client.events(act="workers.set")
    assert [(e.count, e.new, e.detail) for e in acts][-1] == (1, {"concurrency": 6}, name)

    other.kill()
    third = workers.start(concurrency=2, queue="other")
    wait_for(lambda: slots().get(third.pid) == 2, 20)
    wait_for(lambda: other.pid not in slots(), 30)
    client.set_concurrency(2)
    assert one(conn, "select count(*) from forebay.worker_setting") == 2


@pytest.mark.slow
def test_bad_numbers_are_refused_and_nothing_is_set(conn, database):
    """
    At the command line, in Python and in SQL.
    """
    client = forebay.Client(database)
    for number in (0, -1, 10_001):
        with pytest.raises(InvalidJob):
            client.set_concurrency(number)
        with pytest.raises(Exception, match="not within 1 to 10000"):
            conn.execute("select forebay.set_concurrency(%s)", [number])
    with pytest.raises(InvalidJob):
        client.workers(jobs=101)
    with pytest.raises(Exception, match="not within 0 to 100"):
        conn.execute("select * from forebay.workers(101)")
    for arguments in (
        ["set", "--concurrency", "3"],
        ["set", "x", "--all", "--concurrency", "3"],
        ["set", "--all", "--concurrency", "many"],
    ):
        assert command(database, *arguments).returncode == ExitCode.USAGE, arguments
    assert command(database, "set", "x", "--concurrency", "3").returncode == ExitCode.FAILED
    assert one(conn, "select count(*) from forebay.worker_setting") == 0
    assert one(conn, "select count(*) from forebay.event where act = 'workers.set'") == 0


async def test_a_set_concurrency_outlives_the_lease(app, conn):
    """
    A worker that opens another lease, after an outage for example, keeps it.
    """

    @app.job
    async def work() -> None: ...

    async with running(app, concurrency=2) as worker:
        await forebay.AsyncClient(app.dsn).set_concurrency(7)
        await wait_for_async(lambda: worker._executor.slots.concurrency == 7, 10)
        lease = worker._leases.current
        worker._leases.retire()
        worker._signals.wake.set()
        await wait_for_async(
            lambda: (
                worker._leases.current not in (None, lease)
                and lease.lease_id not in worker._leases.open_leases
            ),
            20,
        )
        before = one(conn, "select count(*) from forebay.heartbeat")
        await wait_for_async(
            lambda: one(conn, "select count(*) from forebay.heartbeat") > before + 1, 10
        )
        assert worker._executor.slots.concurrency == 7
        (found,) = await forebay.AsyncClient(app.dsn).workers()
        assert found.concurrency == 7

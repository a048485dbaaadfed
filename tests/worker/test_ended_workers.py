"""How each worker ended, what it held, and what became of it, is recorded for a day."""

import json
import os
import re
import signal
import subprocess
import sys

import psycopg
import pytest

from forebay.cli._reload import Watch, _until_change
from forebay.client import Client
from forebay.watch.metrics import acheck
from tests.support.engine import Reader, enqueue, one, shift_clock, trim
from tests.support.mutant import break_function
from tests.support.waiting import wait_for

pytestmark = pytest.mark.anyio

DAY = 86_400


def reader_of(database, conn, pid: int, jobs: dict[str, int]) -> Reader:
    """Return a worker that says who it is and holds some jobs."""
    reader = Reader(database, suspect_seconds=0.001)
    one(conn, "select forebay.close_lease_v1(%s, true)", reader.lease_id)
    reader.open_lease()
    details = json.dumps({"host": "web-1", "pid": pid, "group": "default", "queues": ["default"]})
    conn.execute(
        "update forebay.lease set worker = %s, details = %s where lease_id = %s",
        [f"web-1:{pid}:ab", details, reader.lease_id],
    )
    for kind, count in jobs.items():
        for _ in range(count):
            enqueue(conn, kind=kind)
    if jobs:
        reader.claim(100)
    return reader


def revoke(conn) -> None:
    """Let a minute pass, and revoke the leases that are silent by then."""
    shift_clock(conn, 60)
    while conn.execute("select 1 from forebay.revoke_lost_v1(100)").fetchone():
        pass


def lost_events(conn):
    return conn.execute(
        "select detail, count, new -> 'held' -> 'kinds' from forebay.events() "
        "where act = 'workers.lost' order by event_id"
    ).fetchall()


def test_each_way_to_end_is_told_with_what_was_held(database, conn):
    """A retired lease is none: its worker goes on."""
    client = Client(database)
    assert client.ended_workers() == []
    stopped = reader_of(database, conn, 1, {})
    one(conn, "select forebay.close_lease_v1(%s)", stopped.lease_id)
    crashed = reader_of(database, conn, 2, {"load": 3, "mail": 1})
    assert one(conn, "select forebay.report_crash_v1('web-1', 2, 11)") == 1
    assert one(conn, "select forebay.report_crash_v1('web-1', 2, 11)") == 0
    lost = reader_of(database, conn, 3, {"import": 30})
    running = [one(conn, "select max(job_id) from forebay.jobs(only_state => 'claimed')")]
    one(conn, "select forebay.heartbeat_v1(%s, %s)", [lost.lease_id], running)
    revoke(conn)
    for reader in (stopped, crashed, lost):
        reader.conn.close()

    found = {worker.how: worker for worker in client.ended_workers()}
    assert set(found) == {"stopped", "crashed", "lost"}
    assert (found["stopped"].jobs, found["stopped"].kinds) == (0, {})
    worker = found["crashed"]
    assert (worker.worker, worker.host, worker.pid, worker.signal) == ("web-1:2:ab", "web-1", 2, 11)
    assert (worker.jobs, worker.kinds, worker.used_attempt) == (4, {"load": 3, "mail": 1}, 0)
    worker = found["lost"]
    assert (worker.jobs, worker.kinds, worker.signal) == (30, {"import": 30}, None)
    assert len(worker.job_ids) == 20
    assert worker.job_ids[0] == running[0], "what ran is first"
    assert worker.heartbeat_at < worker.ended_at
    assert lost_events(conn) == [
        ("web-1:2:ab", 4, {"load": 3, "mail": 1}),
        ("web-1:3:ab", 30, {"import": 30}),
    ]
    assert one(conn, "select sum(ready + retrying)::int from forebay.depth()") == 34


def test_what_used_an_attempt_is_counted_and_a_worker_that_is_back_is_marked(database, conn):
    """A suspect that had begun has used an attempt; the name has a lease again."""
    enqueue(conn, kind="poison")
    with Reader(database, suspect_seconds=0.001) as first:
        first.claim()
        revoke(conn)
    with Reader(database, suspect_seconds=0.001) as second:
        (lane,) = second.ready()
        second.claim(1, lane["lane"])
        one(
            second.conn, "select forebay.start_suspect_v1(%s, %s)", second.lease_id, second.claim_no
        )
        shift_clock(conn, 120)
        conn.execute("select forebay.revoke_lost_v1(100)")
        second.open_lease()
        newest = Client(database).ended_workers()[0]
    assert (newest.how, newest.is_back, newest.jobs, newest.used_attempt) == ("lost", True, 1, 1)


def test_the_lease_its_row_and_its_jobs_end_in_one_transaction(database, conn):
    """A crash in between leaves an open lease, which the next call revokes."""
    with reader_of(database, conn, 4, {"load": 2}) as reader:
        restore = one(
            conn, "select pg_get_functiondef(oid) from pg_proc where proname = '_record_end'"
        )
        break_function(database, "_record_end", ("v_lease.closed_as = 'revoked'", "1 / 0 = 1"))
        with pytest.raises(psycopg.Error):
            conn.execute("select forebay.report_crash_v1('web-1', 4, 9)")
        assert Client(database).ended_workers() == []
        assert one(conn, "select claimed + running from forebay.depth()") == 2
        conn.execute(restore)
        assert one(conn, "select forebay.report_crash_v1('web-1', 4, 9)") == 1
        (ended,) = Client(database).ended_workers()
        assert (ended.jobs, ended.signal) == (2, 9)
        assert one(conn, "select claimed + running from forebay.depth()") == 0
        assert reader.lease_id


def test_an_ended_worker_is_kept_for_a_day(database, conn):
    """Also where segments are emptied at once."""
    one(conn, "select forebay.configure('retention_days', 0)")
    with reader_of(database, conn, 5, {}) as reader:
        one(conn, "select forebay.close_lease_v1(%s)", reader.lease_id)
    shift_clock(conn, DAY - 60)
    trim(conn, "leases")
    assert [worker.pid for worker in Client(database).ended_workers()] == [5]
    shift_clock(conn, DAY + 60)
    assert Client(database).ended_workers() == []
    trim(conn, "leases")
    assert one(conn, "select count(*) from forebay.lease where closed_at is not null") == 0


async def test_lost_workers_are_an_alert_for_ten_minutes(database, conn):
    """With their number and what they held."""
    for pid in (6, 7):
        reader_of(database, conn, pid, {"load": 5}).conn.close()
    revoke(conn)
    (alert,) = [a for a in (await acheck(database)).alerts if a.code == "lost-workers"]
    said = r"2 workers lost (at|from [0-9:]+ to) [0-9:]+ UTC; they held 10 load"
    assert re.fullmatch(said, alert.cause), "times that stay true while the alert is shown"
    assert alert.severity == "error"
    shift_clock(conn, 60 + 590)
    assert [a for a in (await acheck(database)).alerts if a.code == "lost-workers"]
    for later in (670, 800):
        shift_clock(conn, later)
        found = await acheck(database)
    assert not [a for a in found.alerts if a.code == "lost-workers"]


def test_the_parent_of_a_worker_learns_by_which_signal_it_ended(tmp_path):
    """``forebay dev`` reports it, so that the jobs return at once."""
    crashes = []
    lines = []

    class Signals:
        received = 0

        def wait(self, seconds):
            process.wait(20)
            if crashes:
                self.received = 1

    process = subprocess.Popen(["sh", "-c", "kill -SEGV $$"])
    _until_change(process, Watch(tmp_path), Signals(), lines.append, lambda *c: crashes.append(c))
    assert crashes == [(process.pid, signal.SIGSEGV)]
    assert "ended by SIGSEGV" in lines[0]


@pytest.mark.slow
def test_a_killed_worker_is_listed_at_80_columns(workers, conn, database):
    """With the fact that the worker that took over has logged, and one that stops beside it."""
    killed = workers.start(concurrency=3)
    jobs = [enqueue(conn, kind="work", args={"entry": n, "seconds": 60}) for n in range(3)]
    client = Client(database)
    wait_for(lambda: sum(w.running for w in client.workers()) == 3, 20)
    killed.kill()
    stopped = workers.start(concurrency=1, queue="mail")
    wait_for(lambda: client.ended_workers(), 30, lambda: client.workers())
    stopped.terminate()
    stopped.wait(20)
    by_pid = {worker.pid: worker for worker in client.ended_workers()}
    assert by_pid[stopped.pid].how == "stopped"
    assert (by_pid[killed.pid].how, by_pid[killed.pid].kinds) == ("lost", {"work": 3})
    assert sorted(by_pid[killed.pid].job_ids) == jobs

    def listed(*options):
        return subprocess.run(
            [sys.executable, "-m", "forebay", "workers", "list", "--ended", *options],
            env=os.environ | {"COLUMNS": "80", "FOREBAY_DATABASE_URL": database},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    shown = listed()
    assert max(map(len, shown.splitlines())) <= 80
    assert f":{killed.pid}:" in shown
    assert "held 3 work: 3 returned" in shown
    assert {worker["how"] for worker in json.loads(listed("--json"))} == {"lost", "stopped"}

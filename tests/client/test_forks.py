"""Processes that fork after they have enqueued, as web servers do."""

import subprocess
import sys

import pytest

from tests.support.engine import one

#: A server that loads the application, enqueues, and forks its workers.
PROGRAM = """
import os, sys
import forebay

app = forebay.App(sys.argv[1])
ran = []

@app.job
def work(n: int) -> None:
    ran.append(n)
    os.write(1, f"{n}\\n".encode())

def produce(first: int) -> None:
    for n in range(first, first + 5):
        work.enqueue_now(n)

produce(0)
app.run_worker(until_idle=True)
children = []
for number in range(1, 5):
    if (pid := os.fork()) == 0:
        produce(10 * number)
        app.run_worker(until_idle=True)
        os._exit(0)
    children.append(pid)
produce(50)
app.run_worker(until_idle=True)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
app.run_worker(until_idle=True)
"""


@pytest.mark.slow
def test_forked_processes_share_no_connection(conn, database):
    """
    Enqueued and worked before the fork and after it, in parent and children at once: every job is
    there, runs once, and no process receives another's answers.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, database],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    expected = [n for first in range(0, 60, 10) for n in range(first, first + 5)]
    assert sorted(map(int, done.stdout.split())) == expected
    assert one(conn, "select count(*) from forebay.lease where closed_at is null") == 0
    assert one(conn, "select count(distinct worker) from forebay.lease") >= 6

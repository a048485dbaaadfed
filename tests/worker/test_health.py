"""Probes of a worker: right at each stage of its life, and reports to systemd."""

import contextlib
import gc
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.cli.exit import ExitCode
from forebay.upgrade.migrate import migrate
from tests.support.engine import connect, enqueue, state
from tests.support.fix_worker import run_until_idle
from tests.support.probe import ANYWHERE, address_of, is_ready, probe
from tests.support.waiting import wait_for
from tests.support.worker_process import crew

pytestmark = pytest.mark.slow


def test_a_worker_without_a_schema_is_live_waits_and_becomes_ready(empty_database, effects):
    """
    It logs that once, and works as soon as the schema is there: nobody has to start it again.
    """
    with crew(empty_database, effects.path) as workers:
        worker = workers.start(wait=False, health=ANYWHERE)
        wait_for(
            lambda: probe(worker, "/ready").reasons == ["waiting for the schema"],
            20,
            lambda: worker.log,
        )
        answer = probe(worker, "/ready")
        assert (answer.status, answer.body["state"]) == (503, "starting")
        assert probe(worker, "/live").status == 200
        migrate(empty_database)
        wait_for(lambda: is_ready(worker), 20, lambda: f"{probe(worker, '/ready')}\n{worker.log}")

        assert probe(worker, "/ready").body["state"] == "running"
        assert worker.log.count("the worker waits for it") == 1
        with connect(empty_database) as conn:
            job = enqueue(conn, kind="work", args={"entry": 1})
            wait_for(lambda: state(conn, job) == "done", 20, lambda: worker.log)


def test_a_worker_that_must_not_wait_for_the_schema_ends_with_code_3(empty_database, effects):
    """
    As every command without a schema does.
    """
    with crew(empty_database, effects.path) as workers:
        worker = workers.start(wait=False, without_schema="fail")
        worker.wait(20)
        assert worker.process.returncode == ExitCode.DATABASE
        assert "schema forebay is not installed" in worker.log


def test_readiness_follows_the_server(own_server, own_database, effects):
    """
    A worker without a server at its start, one that loses it, and one that is connected again.
    """
    own_server.stop()
    with crew(own_database, effects.path) as workers:
        worker = workers.start(wait=False, health=ANYWHERE)
        wait_for(lambda: "waiting for the database" in probe(worker, "/ready").reasons, 20)
        assert probe(worker, "/live").status == 200

        own_server.start()
        wait_for(lambda: is_ready(worker), 20, lambda: worker.log)

        own_server.kill()
        wait_for(lambda: not is_ready(worker), 10, lambda: worker.log)
        assert "waiting for the database" in probe(worker, "/ready").reasons
        assert probe(worker, "/live").status == 200

        own_server.start()
        wait_for(lambda: is_ready(worker), 20, lambda: worker.log)


def test_a_draining_worker_is_live_and_not_ready(workers, conn):
    """
    From SIGTERM until its last job has ended.
    """
    worker = workers.start(health=ANYWHERE, grace_seconds=30)
    job = enqueue(conn, kind="work", args={"entry": 1, "seconds": 3})
    wait_for(lambda: "start" in workers.effects.read_text(), 20)
    assert is_ready(worker)

    worker.terminate()
    wait_for(lambda: probe(worker, "/ready").reasons == ["stopping"], 5, lambda: worker.log)

    assert probe(worker, "/ready").body["state"] == "stopping"
    assert probe(worker, "/live").status == 200
    worker.wait(20)
    assert state(conn, job) == "done"
    assert probe(worker, "/live").status == 0


def test_a_blocked_loop_is_not_ready_then_not_live_and_recovers(workers, conn):
    """
    The answers come while the loop is blocked. A worker is not live from the moment it gives its
    lease up.
    """
    worker = workers.start(health=ANYWHERE)
    assert probe(worker, "/live").status == 200
    enqueue(conn, kind="block_the_loop", args={"entry": 1, "seconds": 5})

    wait_for(lambda: probe(worker, "/ready").status == 503, 20, lambda: worker.log)
    wait_for(lambda: probe(worker, "/live").status == 503, 20, lambda: worker.log)
    assert "the event loop is blocked" in probe(worker, "/live").reasons[0]

    wait_for(lambda: probe(worker, "/live").status == 200, 20, lambda: worker.log)
    wait_for(lambda: is_ready(worker), 20, lambda: worker.log)


def test_a_worker_whose_polls_are_refused_is_not_ready(workers, conn):
    """
    It is connected and its lease is kept, but it makes no progress.
    """
    worker = workers.start(health=ANYWHERE)
    wait_for(lambda: is_ready(worker), 10)
    conn.execute("alter function forebay.ready_v1 rename to ready_v1_hidden")

    wait_for(lambda: probe(worker, "/ready").status == 503, 20, lambda: worker.log)
    assert probe(worker, "/live").status == 200

    conn.execute("alter function forebay.ready_v1_hidden rename to ready_v1")
    wait_for(lambda: is_ready(worker), 20, lambda: worker.log)


def test_odd_requests_harm_nobody(workers):
    """
    Another path, another method, and more clients that say nothing than it serves: the next probe
    is answered.
    """
    worker = workers.start(health=ANYWHERE)
    wait_for(lambda: is_ready(worker), 10)
    silent = [socket.create_connection(address_of(worker)) for _ in range(40)]
    with socket.create_connection(address_of(worker)) as conn:
        conn.sendall(b"\xff" * 100_000)
    with socket.create_connection(address_of(worker)) as conn:
        conn.sendall(b"POST /ready HTTP/1.1\r\n\r\n")
        assert conn.recv(1000).startswith(b"HTTP/1.1 405 ")
    assert probe(worker, "/").status == 404
    assert is_ready(worker)
    for other in silent:
        other.close()


def test_an_address_in_use_is_refused_at_the_start(workers):
    """
    Otherwise the probes of one worker would be answered by another.
    """
    first = workers.start(health=ANYWHERE)
    host, port = address_of(first)
    second = workers.start(wait=False, health=f"{host}:{port}")
    second.wait(20)
    assert second.process.returncode == ExitCode.USAGE
    assert "cannot listen" in second.log


def test_a_unix_socket_is_replaced_after_a_kill_and_not_taken_from_the_living(
    workers, tmp_path_factory
):
    """
    The file that a killed worker left is no obstacle.
    """
    path = tmp_path_factory.mktemp("h") / "s"

    def answers() -> bool:
        with socket.socket(socket.AF_UNIX) as conn:
            conn.settimeout(5)
            conn.connect(str(path))
            conn.sendall(b"GET /live HTTP/1.0\r\n\r\n")
            return conn.recv(100).startswith(b"HTTP/1.1 200")

    first = workers.start(health=f"unix:{path}")
    assert answers()
    second = workers.start(wait=False, health=f"unix:{path}")
    second.wait(20)
    assert second.process.returncode == ExitCode.USAGE
    first.kill()
    third = workers.start(health=f"unix:{path}")
    assert answers()
    third.terminate()
    third.wait(20)
    assert not path.exists()


class Systemd:
    """The socket that systemd listens at."""

    def __init__(self, path: Path, *, is_abstract: bool = False) -> None:
        self.variable = f"@{path}" if is_abstract else str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{path}" if is_abstract else str(path))
        self.socket.setblocking(False)
        self.lines: list[str] = []

    def read(self) -> list[str]:
        """Return every line until now."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.lines += self.socket.recv(4096).decode().splitlines()
        return self.lines


@pytest.fixture(params=["file", "abstract"])
def systemd(request, tmp_path_factory) -> Iterator[Systemd]:
    path = tmp_path_factory.mktemp("n") / "s"
    found = Systemd(path, is_abstract=request.param == "abstract")
    yield found
    found.socket.close()


@pytest.mark.anyio
async def test_a_worker_closes_the_socket_of_its_reports(app, conn, systemd, monkeypatch):
    """
    A process may run one worker after another.
    """
    app.job(name="work")(lambda: None)
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.variable)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await run_until_idle(app)
        gc.collect()
    assert "STOPPING=1" in systemd.read()
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == []


def test_systemd_hears_ready_signs_of_life_and_stopping(workers, conn, systemd):
    """
    READY=1 once it is ready, WATCHDOG=1 as long as its loop turns, STOPPING=1 at SIGTERM.
    """
    worker = workers.start(
        environment={"NOTIFY_SOCKET": systemd.variable, "WATCHDOG_USEC": "3000000"}
    )
    wait_for(lambda: "READY=1" in systemd.read(), 10, lambda: systemd.lines)
    assert "STATUS=running" in systemd.lines
    wait_for(lambda: systemd.read().count("WATCHDOG=1") > 3, 20)

    enqueue(conn, kind="block_the_loop", args={"entry": 1, "seconds": 6})
    wait_for(
        lambda: any("event loop is blocked for 3" in line for line in systemd.read()),
        20,
        lambda: systemd.lines,
    )
    signs = systemd.lines.count("WATCHDOG=1")
    wait_for(lambda: any("is blocked for 5" in line for line in systemd.read()), 20)
    assert systemd.lines.count("WATCHDOG=1") == signs
    wait_for(lambda: systemd.read().count("WATCHDOG=1") > signs, 20)

    worker.terminate()
    worker.wait(20)
    assert systemd.read().count("STOPPING=1") == 1
    assert systemd.lines.count("READY=1") == 1


def test_a_watchdog_of_another_process_is_not_answered(workers, systemd):
    """
    systemd names the process that it watches.
    """
    worker = workers.start(
        environment={
            "NOTIFY_SOCKET": systemd.variable,
            "WATCHDOG_USEC": "300000",
            "WATCHDOG_PID": "1",
        }
    )
    wait_for(lambda: "READY=1" in systemd.read(), 10)
    worker.terminate()
    worker.wait(20)
    assert "WATCHDOG=1" not in systemd.read()


def test_a_bad_address_is_refused_before_anything_starts():
    """
    2: what is wrong is the configuration.
    """
    for text in ("8080", "localhost", "localhost:http", "a b:1", "127.0.0.1:70000", "unix:x"):
        answer = subprocess.run(
            [sys.executable, "-m", "forebay", "worker", "forebay.demo.app:app", "--health", text],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == ExitCode.USAGE, (text, answer)
        assert "not an address to listen at" in answer.stderr

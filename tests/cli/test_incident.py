"""An incident as one that happened: `forebay status` names each trouble soon after its threshold is
passed, and soon after its end no longer.
"""

import json
from contextlib import contextmanager

import pytest

from tests.support.delivering import create_endpoint, send
from tests.support.engine import connect, enqueue, enqueue_many, one
from tests.support.waiting import wait_for
from tests.support.worker_process import Crew

pytestmark = [pytest.mark.slow, pytest.mark.usual("a tablespace of the test's own")]

#: From the moment when a threshold is passed, and from the end of a trouble.
_SECONDS = 10
#: The threshold of everything that must last.
_LASTS = 1
#: A lease that is lost this long after the last sign of its worker: FAST with SHORT_LEASE.
_LEASE = 3


@pytest.fixture
def workers(small_disk, effects):
    """Real workers of that database."""
    crew = Crew(small_disk.dsn, effects.path)
    yield crew
    for member in crew.members:
        member.discard()


class Status:
    """What `forebay status` says."""

    def __init__(self, command, dsn: str) -> None:
        self._command = command
        self._dsn = dsn

    def names(self) -> list[str]:
        """Return what holds; after a full disk even a session may need room once."""
        answer = self._command("status", "--json", "--dsn", self._dsn)
        assert answer.code in (0, 1), answer
        found = [one["name"] for one in answer.json["problems"] if one["state"] == "holds"]
        assert answer.code == bool(found)
        return found

    @contextmanager
    def names_it(self, *names: str, after: float = 0.0):
        """Name each within the time after the block began it, and none after the block."""
        yield
        wait_for(
            lambda: set(names) <= set(self.names()), after + _SECONDS, lambda: str(self.names())
        )

    def clears(self, *names: str) -> None:
        """Wait until none of them is named."""
        wait_for(lambda: not set(names) & set(self.names()), _SECONDS, lambda: str(self.names()))

    def screen(self) -> str:
        """Return the screen, which has 80 columns."""
        out = self._command("status", "--dsn", self._dsn).out
        assert all(len(line) <= 80 for line in out.splitlines()), out
        assert out.count("\n") <= 24, out
        return out


def test_each_trouble_of_an_incident_is_named_and_then_not(
    small_disk, command, workers, monkeypatch
):
    """
    A backlog without a worker, a frozen worker, a job that kills its workers, an endpoint whose
    breaker is open, a long transaction, a full disk.
    """
    monkeypatch.setenv("COLUMNS", "80")
    dsn = small_disk.dsn
    status = Status(command, dsn)
    for name, value in (
        ("unserved_for", _LASTS),
        ("oldest_ready", _LASTS),
        ("waiting_most", 50),
        ("waiting_for", _LASTS),
        ("breaker_for", _LASTS),
        ("snapshot_for", _LASTS),
    ):
        assert command("thresholds", "set", name, value, "--dsn", dsn).code == 0
    with connect(dsn) as conn:
        first = workers.start()
        enqueue(conn, kind="work", args={"entry": 0})
        wait_for(lambda: is_empty(conn), 30, lambda: first.log)
        first.terminate()
        first.wait(30)
        assert status.names() == []

        backlog = ("unserved default", "A2 default", "oldest default")
        with status.names_it(*backlog, after=_LASTS):
            enqueue_many(conn, [{"kind": "work", "args": {"entry": n}} for n in range(1, 101)])
        assert "100 jobs ready, and no worker serves the queue" in status.screen()
        worker = workers.start()
        status.clears(*backlog)

        with status.names_it("unserved default", after=_LEASE + _LASTS):
            worker.freeze()
            enqueue(conn, kind="work", args={"entry": 101})
        assert "forebay worker tests.support.worker_app:app --queue default" in status.screen()
        worker.thaw()
        status.clears("unserved default")

        with status.names_it("lost-workers", after=_LEASE):
            poison = enqueue(conn, kind="kill_process", args={"entry": 102, "how": "kill"})
            wait_for(lambda: not worker.is_running, 30, lambda: worker.log)
            workers.start()
        wait_for(lambda: "1 kill_process" in status.screen(), _SECONDS, status.screen)
        assert command("jobs", "cancel", poison, "--yes", "--dsn", dsn).code == 0
        # Workers that were lost are told of for ten minutes. From here on they are expected.
        assert command("thresholds", "set", "lost_most", 1000, "--dsn", dsn).code == 0
        status.clears("lost-workers")

        with status.names_it("breaker shop", after=_LASTS):
            endpoint = create_endpoint(conn, "shop", "http", {"url": "https://example.com/"})
            send(conn, "shop", 2)
            report = {
                "endpoint_id": endpoint, "failures": 10, "answered": False, "error": "HTTP 500",
            }  # fmt: skip
            one(conn, "select forebay.report_deliveries_v1('w', %s::jsonb)", json.dumps([report]))
        assert "forebay endpoints show shop" in status.screen()
        assert command("endpoints", "drop", "shop", "--discard", "--dsn", dsn).code == 0
        status.clears("breaker shop")

        with connect(dsn) as other:
            with status.names_it("snapshot", after=_LASTS):
                other.execute("begin isolation level repeatable read")
                other.execute("select 1")
            assert "forebay guard" in status.screen()
            other.execute("rollback")
        status.clears("snapshot")

        with status.names_it("writes"):
            small_disk.fill()
        assert "Free room on the disk" in " ".join(status.screen().split())
        small_disk.free()
        status.clears("writes")
        wait_for(lambda: status.names() == [], 30, lambda: f"{status.names()}\n{workers.logs}")


def is_empty(conn) -> bool:
    """Whether no job waits or runs."""
    return one(
        conn,
        "select coalesce(sum(ready + claimed + running + scheduled + retrying), 0) = 0"
        " from forebay.depth()",
    )

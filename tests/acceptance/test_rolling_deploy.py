"""Four workers are replaced one by one, by another version of the application, under load."""

import random
import threading
from collections import Counter

import pytest

import forebay
from tests.support.engine import connect, enqueue, one
from tests.support.probe import ANYWHERE, is_ready, probe
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

_WORKERS = 4


class Load(threading.Thread):
    """Enqueues jobs until it is stopped.

    From some moment on also of the kind that only the new version knows.
    """

    def __init__(self, dsn: str, seed: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._rng = random.Random(seed)
        self._stopped = threading.Event()
        self.kinds = ["work", "work_in_thread"]
        self.entries: dict[int, int] = {}

    def run(self) -> None:
        with connect(self._dsn) as conn:
            while not self._stopped.wait(0.04):
                entry = len(self.entries) + 1
                # Some are longer than the time that draining workers have.
                seconds = self._rng.choice([0, 0, 0.01, 0.1, 0.5, 2])
                self.entries[entry] = enqueue(
                    conn,
                    kind=self._rng.choice(self.kinds),
                    args={"entry": entry, "seconds": seconds},
                )

    def stop(self) -> None:
        self._stopped.set()
        self.join(20)


def test_a_rolling_deploy_loses_nothing_and_uses_no_attempt(workers, conn, database, effects, seed):
    """
    Each new worker is ready before an old one gets SIGTERM. From then on that one is not ready, and
    live until it ends. Jobs of a kind that old workers do not know wait for the new ones. Every job
    ends done, at its first attempt.
    """
    load = Load(database, seed)
    workers.options = {
        "app": "tests.support.versioned_app:app",
        "health": ANYWHERE,
        "grace_seconds": 1.0,
        "concurrency": 4,
    }
    client = forebay.Client(database)

    def start(version: str):
        return workers.start(app_version=version, environment={"SHOP_VERSION": version})

    def versions() -> Counter[str | None]:
        return Counter(w.app_version for w in client.workers(jobs=0))

    old = [start("1") for _ in range(_WORKERS)]
    load.start()
    wait_for(lambda: all(is_ready(worker) for worker in old), 30, lambda: workers.logs)
    assert versions() == {"1": _WORKERS}
    new = []
    for number, leaving in enumerate(old, 1):
        arriving = start("2")
        wait_for(lambda worker=arriving: is_ready(worker), 30, lambda: workers.logs)
        new.append(arriving)
        load.kinds = ["work", "work_in_thread", "work_of_version_2"]
        # It leaves in the middle of something.
        wait_for(
            lambda pid=leaving.pid: any(w.pid == pid and w.running for w in client.workers(jobs=0)),
            30,
        )

        leaving.terminate()
        seen = []
        while leaving.is_running:
            answer = probe(leaving, "/ready")
            seen.append((answer.status, tuple(answer.reasons)))
            alive = probe(leaving, "/live").status
            assert alive in {200, 0}
        first_stopping = next((n for n, (status, _) in enumerate(seen) if status != 200), len(seen))
        # Once it is not ready it stays so and says why, until its port is closed.
        assert all(
            (status, reasons) in {(503, ("stopping",)), (0, ())}
            for status, reasons in seen[first_stopping:]
        ), seen
        assert leaving.process.returncode == 0, leaving.log
        assert all(is_ready(w) for w in [*new, *old[number:]]), workers.logs
        wait_for(lambda n=number: versions() == +Counter({"1": _WORKERS - n, "2": n}), 10)
    load.stop()

    ids = list(load.entries.values())

    def unfinished() -> int:
        return one(
            conn,
            "select count(*) from unnest(%s::bigint[]) i"
            " where not exists (select from forebay.job(i) j where j.state = 'done')",
            ids,
        )

    assert len(ids) > 100
    wait_for(lambda: unfinished() == 0, 60, lambda: f"{unfinished()} left\n{workers.logs}")
    attempts = one(
        conn,
        "select array_agg(distinct j.attempt) from unnest(%s::bigint[]) i, forebay.job(i) j",
        ids,
    )
    assert attempts == [1]
    outcomes = one(conn, "select array_agg(distinct f.outcome) from forebay.failure f")
    assert set(outcomes or ()) <= {"unknown kind", "released"}
    assert one(conn, "select count(*) from forebay.dead_letter") == 0
    assert one(conn, "select count(*) from forebay.lease where closed_as = 'revoked'") == 0
    assert effects.entries("end") == set(load.entries)
    assert one(
        conn,
        (
            "select count(*) from unnest(%s::bigint[]) i, forebay.job(i) j where j.kind = "
            "'work_of_version_2'"
        ),
        ids,
    )

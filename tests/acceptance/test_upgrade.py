"""What is promised when the schema is upgraded under load, with workers and producers of the
version before.
"""

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.engine import one
from tests.support.ledger import Ledger
from tests.support.next_release import ROOT, copy_library, make_next_release, next_migrations
from tests.support.producer_process import ProducerProcess
from tests.support.waiting import wait_for
from tests.support.writers import read_run, record_committed, wait_until_drained


class Fleet:
    """Workers and producers of two versions, and the migrator of the newer one."""

    def __init__(self, dsn: str, workers, effects, folder: Path) -> None:
        self.dsn = dsn
        self.workers = workers
        self.effects = effects
        self.folder = folder
        self.before = copy_library(folder / "before")
        self.after = make_next_release(folder / "after")
        self.producers: list[ProducerProcess] = []

    def start_worker(self, library: Path):
        # A lease of the usual length: nothing here is about losing one.
        return self.workers.start(
            environment={"PYTHONPATH": str(library)},
            lease_seconds=30.0,
            lease_margin_seconds=5.0,
            suspect_seconds=10.0,
            concurrency=8,
        )

    def start_producer(self, library: Path) -> ProducerProcess:
        number = len(self.producers)
        path = self.folder / f"producer-{number}"
        made = ProducerProcess(self.dsn, path, number * 1_000_000, library)
        self.producers.append(made)
        wait_for(lambda: made.read().committed, 30)
        return made

    def migrate(self, *arguments: str) -> subprocess.Popen[str]:
        with (self.folder / "migrate.log").open("a") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "forebay", "migrate", "--dsn", self.dsn, *arguments],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(self.after)},
                stdout=file,
                stderr=file,
                text=True,
            )

    @property
    def said(self) -> str:
        return (self.folder / "migrate.log").read_text()

    def ended(self) -> int:
        return len(self.effects.entries("end"))

    def wait_for_jobs(self, count: int) -> None:
        enough = self.ended() + count
        wait_for(lambda: self.ended() >= enough, 60, lambda: self.workers.logs[-5000:])


@pytest.fixture
def fleet(database, workers, effects, tmp_path):
    made = Fleet(database, workers, effects, tmp_path)
    yield made
    for producer in made.producers:
        producer.kill()


def slowest(took: list[tuple[float, float]], begin: float, end: float) -> str:
    found = sorted(length for at, length in took if begin <= at < end)
    p50, p99 = (found[int(len(found) * share)] for share in (0.5, 0.99))
    return (
        f"{len(found)} calls, p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, max "
        f"{found[-1] * 1000:.0f} ms"
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_an_upgrade_under_load_loses_nothing_and_fails_nobody(
    conn, database, fleet, workers, effects, seed, is_long
):
    """
    Workers and producers of the version before run through columns, indexes, new bodies, a
    protocol's next version, a new parameter and a table that is split, while the migrator is killed
    twice; then new ones work beside them; then they end, and what only they called is taken away.
    No error anywhere, nothing lost, nothing double.
    """
    rng = random.Random(seed)
    old = [fleet.start_worker(fleet.before) for _ in range(2)]
    old_producers = [fleet.start_producer(fleet.before) for _ in range(2)]
    began = time.monotonic()
    fleet.wait_for_jobs(400)

    migrating_from = time.monotonic()
    for _ in range(5 if is_long else 2):
        cut_off = fleet.migrate()
        until = time.monotonic() + 0.8 + rng.random() * 1.5
        wait_for(lambda until=until: time.monotonic() > until)
        cut_off.kill()
        cut_off.wait()
    pre = fleet.migrate()
    assert pre.wait(120) == 0, fleet.said
    assert "held back" in fleet.said
    assert "2 workers of an older version still run" in fleet.said
    migrated_at = time.monotonic()
    steps = next_migrations()
    applied = one(conn, "select forebay.schema_version()")
    posts = [name for name, _ in steps if name.startswith("post_")]
    assert applied == one(conn, "select max(version) from forebay.schema_migration")

    new = [fleet.start_worker(fleet.after) for _ in range(2)]
    new_producer = fleet.start_producer(fleet.after)
    fleet.wait_for_jobs(400)
    claims = (
            "select count(distinct b.lease_id) from forebay.batch b join forebay.lease l using "
            "(lease_id) where l.version %s %s"
            )  # fmt: skip
    wait_for(lambda: one(conn, claims % (">", applied)) == 2, 20)

    post = fleet.migrate("--wait", "60")
    for producer in old_producers:
        producer.stop()
    for worker in old:
        worker.process.send_signal(signal.SIGTERM)
        worker.wait(20)
    assert post.wait(90) == 0, fleet.said
    ended_at = time.monotonic()
    assert one(conn, "select forebay.schema_version()") == applied + len(posts)
    assert one(conn, (
            "select to_regprocedure('forebay.claim_v1(bigint, bigint, bigint, bigint, bigint, "
            "integer)')"
            )) is None  # fmt: skip
    fleet.wait_for_jobs(400)
    new_producer.stop()

    produced = [producer.read() for producer in fleet.producers]
    ledger = Ledger()
    for each in produced:
        record_committed(ledger, each.committed)
        ledger.record_rolled_back([*each.rolled_back])
    wait_until_drained(database, 90, lambda: workers.logs[-20_000:])
    took = [pair for each in produced for pair in each.took]
    print("before:   ", slowest(took, began, migrating_from))
    print("pre:      ", slowest(took, migrating_from, migrated_at))
    print("both:     ", slowest(took, migrated_at, ended_at))
    print("new only: ", slowest(took, ended_at, float("inf")))
    assert not list(itertools.chain.from_iterable(each.errors for each in produced))
    complaints = [
        line
        for line in workers.logs.splitlines()
        if re.search(r"\b(ERROR|WARNING|CRITICAL|Traceback)\b|cannot|failed", line)
        and ": ValueError: " not in line  # what the handler is asked to do
    ]
    assert not complaints, complaints[:10]
    read_run(ledger, conn, effects)
    ledger.assert_clean()
    assert len({worker.pid for worker in (*old, *new)}) == 4
    # What was written to the old column and what was written to the new table is all there.
    (failures, traced) = conn.execute(
        "select count(*), count(*) filter (where exists (select from forebay.failure_trace t where"
        " (t.job_id, t.group_id, t.failed_at) = (f.job_id, f.group_id, f.failed_at)"
        " and t.traceback like '%ValueError%')) from forebay.failure f"
    ).fetchone()
    assert failures == traced > 0

"""Ended jobs are erased while everything runs: no job that a reader gets has lost its arguments."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

from tests.concurrency.test_stress import short_history
from tests.support.engine import connect
from tests.support.mutant import break_function, violation
from tests.support.stress import QUEUE, StressRun

STEP = (
    "select redacted, next::text, event from forebay.redact_queue("
    "%s, after => %s::jsonb, most => %s, event_id => %s)"
)


@dataclass
class RedactRun(StressRun):
    """A stress run with sessions that redact the queue. Readers fail on a job without arguments.

    Attributes:
        redacted: how many rows were erased.
    """

    redacted: int = 0

    def _further_duties(self) -> list[tuple[str, Callable[[random.Random], None]]]:
        return [("redactor 1", self._redact), ("redactor 2", self._redact)]

    def _redact(self, rng: random.Random) -> None:
        after, event = None, None
        with connect(self.dsn) as conn:
            while self._running.is_set() and not self.errors:
                most = rng.choice((1, 30, 1000))
                try:
                    row = conn.execute(STEP, [QUEUE, after, most, event]).fetchone()
                except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                    continue
                redacted, after, event = row
                with self._lock:
                    self.redacted += redacted


def jobs_are_redacted_under_stress(dsn: str, seed: int, keyed_share: float) -> None:
    short_history(dsn)
    run = RedactRun(
        dsn, seed, 5, writers=4, claimers=4, keyed_share=keyed_share, deferred_share=0.2,
        jobs_per_second=500, abandoned_share=0.05,
    )  # fmt: skip
    ledger = run.run()
    print(f"redacted {run.redacted}, committed {len(ledger.committed)}, {run.maintenance_done}")
    assert ledger.problems() == {}
    assert run.redacted > 100


@pytest.mark.slow
@pytest.mark.parametrize("keyed_share", [0, 0.4], ids=["plain", "with ordering keys"])
def test_redaction_erases_nothing_that_a_reader_still_gets(database, seed, keyed_share):
    """
    Two groups of readers that retry, give back and lose their leases, promotion and retention with
    small segments, while two sessions redact. Each committed job ends exactly once in each group,
    with its arguments.
    """
    jobs_are_redacted_under_stress(database, seed, keyed_share)


@pytest.mark.slow
def test_stress_finds_erased_arguments(database, seed):
    """Without the look at what workers have, a job that comes back has none."""
    break_function(database, "_redact_log", ("and not r.seq <@ $6", "and $6 is not null"))
    with violation(Exception):
        for turn in range(12):  # A run may meet no such job: of four, none met one in a night.
            jobs_are_redacted_under_stress(database, seed + turn, 0)

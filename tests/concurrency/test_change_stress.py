"""Operators move jobs while everything runs, with a ledger kept outside the engine."""

import pytest

from tests.concurrency.test_stress import short_history
from tests.support.changing import ChangeRun
from tests.support.mutant import break_function, violation


def jobs_are_moved_under_stress(dsn: str, seed: int, seconds: float, keyed_share: float) -> None:
    short_history(dsn)
    run = ChangeRun(
        dsn, seed, seconds, writers=4, claimers=4, keyed_share=keyed_share, deferred_share=0.3,
        jobs_per_second=500, abandoned_share=0.05,
    )  # fmt: skip
    ledger = run.run()
    print(f"moved {dict(run.changed)}, committed {len(ledger.committed)}, {run.maintenance_done}")
    assert ledger.problems() == {}
    assert run.changed["retry"] > 0
    assert run.changed["reprioritise"] > 0
    assert run.changed["reschedule"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("keyed_share", [0, 0.4], ids=["plain", "with ordering keys"])
def test_moving_jobs_loses_and_doubles_nothing_under_stress(database, seed, keyed_share):
    """
    Writers, two groups of readers that retry, give back and lose their leases, promotion and
    retention with small segments, while three operators start waiting jobs now, give them another
    time and another priority. Each committed job ends exactly once in each group.
    """
    jobs_are_moved_under_stress(database, seed, 5, keyed_share)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "guard", "without"),
    [
        ("_move_ready", "perform forebay._lock_lane(v_row.group_id, v_row.lane);", "null;"),
        ("_take", "when t.reason = 'm' then 'm'", "when false then 'm'"),
    ],
)
def test_stress_finds_jobs_that_run_twice(database, seed, function, guard, without):
    """Without the lock of the lane, or with claims that do not skip old rows, some job ends
    twice.
    """
    break_function(database, function, (guard, without))
    with violation():
        jobs_are_moved_under_stress(database, seed, 5, 0)

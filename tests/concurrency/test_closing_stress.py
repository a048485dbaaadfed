"""Groups are closed while everything runs, with a ledger kept outside the engine."""

import psycopg
import pytest

from tests.concurrency.test_stress import short_history
from tests.support.closing import ClosingRun, left_of_closed_groups
from tests.support.engine import connect, one, trim
from tests.support.mutant import break_function, violation


def groups_are_closed_under_stress(
    dsn: str, seed: int, seconds: float, groups: tuple[str, ...], keyed_share: float
) -> None:
    """Groups of a queue are opened and closed one after another, beside ``groups``."""
    short_history(dsn)
    with connect(dsn) as conn:
        one(conn, "select forebay.limit_queue('stress', max_waiting => 1000000)")
    run = ClosingRun(
        dsn, seed, seconds, writers=4, claimers=2 * len(groups), groups=groups,
        keyed_share=keyed_share,
        jobs_per_second=600, abandoned_share=0.05,
    )  # fmt: skip
    run.run()
    print(
        f"closed {len(run.closed)}, rolled back {run.rolled_back}, given up {run.given_up},"
        f" committed {len(run.ledger.committed)}, {run.maintenance_done}"
    )
    assert run.problems() == {}
    assert len(run.closed) > seconds / 3
    with connect(dsn) as conn:
        while one(conn, "select emptied from forebay.retain_v1()") is not None:
            pass
        emptied = (
            "select count(*) from forebay.segment where removed_at is not null and hi - lo < 1000"
        )
        assert one(conn, emptied) > 2
        while one(conn, "select forebay.close_groups()"):
            pass
        trim(conn, "waiting")
    assert left_of_closed_groups(dsn) == {}


CASES = pytest.mark.parametrize(
    ("groups", "keyed_share"),
    [(("stays",), 0), (("stays",), 0.5), ((), 0.3)],
    ids=["beside another group", "with ordering keys", "the only group"],
)


@pytest.mark.slow
@CASES
def test_closing_loses_and_doubles_nothing_under_stress(database, seed, groups, keyed_share):
    """
    Writers, readers, revocations and retention with small segments, while groups with running jobs,
    retries, parked and unique jobs are closed. Other groups get each job once; a group gets nothing
    after its closing; nothing of it is left, and it keeps no segment. Where the group was the only
    one, each job that is enqueued after its closing runs, once, in the next one.
    """
    groups_are_closed_under_stress(database, seed, 4, groups, keyed_share)


@pytest.mark.slow
@pytest.mark.nightly
@CASES
def test_closing_loses_and_doubles_nothing_in_a_long_run(database, seed, groups, keyed_share):
    """The same for a minute."""
    groups_are_closed_under_stress(database, seed, 60, groups, keyed_share)


@pytest.mark.slow
def test_the_run_sees_a_group_that_ends_under_its_running_jobs(database, seed):
    """The control: without the wait for open batches, settlements write rows for a group that is
    gone.
    """
    break_function(
        database,
        "close_groups",
        (
            (
                "continue when exists (select from forebay._open_jobs() o where o.group_id = "
                "v_group.group_id);"
            ),
            "",
        ),
    )
    with violation(psycopg.Error):
        for attempt in range(4):  # A busy machine closes few groups in one.
            groups_are_closed_under_stress(database, seed + attempt, 4, ("stays",), 0)

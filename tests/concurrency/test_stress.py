"""Stress runs over the whole engine, with a ledger kept outside it."""

import pytest

from tests.support.engine import connect, one, small_segments
from tests.support.ledger import Ledger
from tests.support.mutant import break_function
from tests.support.stress import StressRun, as_json, handed_in_order


def short_history(dsn: str) -> None:
    """Let the log go on in segments of a hundred rows, emptied as soon as nothing of them is
    needed.
    """
    with connect(dsn) as conn:
        small_segments(conn, rows=100, reserve=6000)
        conn.execute("update forebay.segment set removed_at = now() where hi - lo > 1000")
        conn.execute("select forebay.configure('retention_days', 0)")


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_under_stress(database, seed, stress_seconds):
    """
    Writers commit, roll back, take savepoints and prepare in random order; readers of two groups
    settle in parts, give back and lose their leases; segments are made, sealed and emptied on the
    way. Each committed job ends exactly once in each group, no other is ever handed out, none runs
    more often than it was given back, and the counters equal a count in the same snapshot.

    Guards "commit decides", "nothing lost", "once per lease", "single holder", "bounded
    duplicates" and "counters agree".
    """
    short_history(database)
    run = StressRun(database, seed, stress_seconds)
    ledger = run.run()
    print(as_json(run))

    assert ledger.problems() == {}
    assert len(ledger.committed) > 100 * stress_seconds
    assert not ledger.committed & ledger.rolled_back
    assert run.depth_checks > 0
    with connect(database) as conn:
        sealed = (
            "select count(*) from forebay.seal join forebay.segment using (segment_id)"
            " where hi - lo < 1000"
        )
        assert one(conn, sealed) > 6
        while one(conn, "select emptied from forebay.retain_v1()") is not None:
            pass
        removed = (
            "select count(*) from forebay.segment where removed_at is not null and hi - lo < 1000"
        )
        assert one(conn, removed) > 3


def keyed_run(dsn: str, seed: int, seconds: float, **options) -> Ledger:
    """A stress run mostly of jobs with few ordering keys, whose readers often close their leases
    with jobs in them.
    """
    short_history(dsn)
    run = StressRun(
        dsn,
        seed,
        seconds,
        keyed_share=0.7,
        abandoned_share=0.1,
        has_other_sessions=True,
        jobs_per_second=600,
        **options,
    )
    ledger = run.run()
    print(as_json(run))
    return ledger


@pytest.mark.slow
@pytest.mark.parametrize("claim_bytes", [2_097_152, 60])
def test_no_job_with_an_ordering_key_is_lost_or_doubled_under_stress(
    database, seed, stress_seconds, claim_bytes
):
    """
    The same with ordering keys: readers close their leases with jobs in them, writers have unusual
    settings and all isolation levels, other sessions hold snapshots, vacuum, cluster and reindex.
    Then with claims of a few small jobs, as if each were large.

    Guards "nothing lost", "once per lease", "bounded duplicates" and "commit decides".
    """
    break_function(database, "_claim_bytes", ("2097152", str(claim_bytes)))
    ledger = keyed_run(database, seed, stress_seconds)

    assert ledger.problems() == {}
    assert len(ledger.committed) > 50 * stress_seconds
    with connect(database) as conn:
        assert one(conn, "select last_value from forebay.parked_seq") > 1
        # On a busy machine the run is over before a segment is old enough.
        while one(conn, "select emptied from forebay.retain_v1()") is not None:
            pass
        emptied = (
            "select count(*) from forebay.segment where removed_at is not null and hi - lo < 1000"
        )
        assert one(conn, emptied) > 0


@pytest.mark.slow
def test_the_stress_run_sees_jobs_of_a_segment_that_no_claim_reads(database, seed):
    """
    The same where a claim chooses the segments that it reads some time before the snapshot at which
    its window ends: jobs of a segment that is begun in between are lost, and the ledger misses
    them.
    """
    read = "v_low := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);"
    break_function(
        database,
        "_take_keyed",
        (read, f"{read} perform pg_sleep(0.3);"),
        ("s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)", "s.lo <= v_low"),
    )
    # A run of five seconds begins few segments on a busy machine.
    assert any(
        name.startswith("lost by")
        for attempt in range(6)
        for name in keyed_run(database, seed + attempt, 5, revocations_per_second=0).problems()
    )


@pytest.mark.slow
def test_transactions_that_did_not_overlap_are_handed_out_in_commit_order(database, seed):
    """
    In a stress run of writers and competing claimers, no job is handed out after one whose
    transaction began only when its own had already committed.

    Guards "order".
    """
    with connect(database) as conn:
        small_segments(conn, rows=300, reserve=10_000)
    run = StressRun(database, seed, 3, revocations_per_second=0, deferred_share=0)
    run.outcomes = {"done": 1}
    ledger = run.run()

    assert ledger.problems() == {}
    with connect(database) as conn:
        for group in run.groups:
            handed = handed_in_order(conn, "stress", group)
            assert set(handed) == ledger.committed
            assert ledger.order_violations(handed) == []

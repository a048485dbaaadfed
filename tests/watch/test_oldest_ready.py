"""The oldest ready job is the one that could be claimed for the longest, whatever it was before."""

import pytest

from forebay.watch.metrics import acheck
from tests.support.engine import Reader, connect, enqueue, one, shift_clock

pytestmark = pytest.mark.anyio

LONG = 3 * 3600


def oldest(conn) -> float | None:
    """Return the age of the oldest ready job of the queue mail."""
    (found,) = [
        queue
        for queue in one(conn, "select forebay.measurements() -> 'queues'")
        if queue["queue"] == "mail"
    ]
    at = one(conn, "select extract(epoch from forebay._now())::double precision")
    return None if found["oldest_ready_at"] is None else at - found["oldest_ready_at"]


def end(database, outcome: str, **ended) -> None:
    """Claim the only job and end it so."""
    with Reader(database, "mail") as reader:
        (batch,) = reader.claim_all()
        ended |= {"offset": 1, "outcome": outcome}
        assert reader.settle(batch.claim_no, ended=[ended]) == "settled"
        one(reader.conn, "select forebay.close_lease_v1(%s)", reader.lease_id)


def delayed(database, conn) -> None:
    enqueue(conn, queue="mail", delay="1 hour")


def retried(database, conn) -> None:
    enqueue(conn, queue="mail")
    shift_clock(conn, LONG - 3600)
    end(database, "retried", attempt=1, after=3600)


def retried_at_once(database, conn) -> None:
    enqueue(conn, queue="mail")
    shift_clock(conn, LONG)
    end(database, "retried", attempt=1)


def released(database, conn) -> None:
    enqueue(conn, queue="mail")
    shift_clock(conn, LONG)
    end(database, "released")


def lost(database, conn) -> None:
    enqueue(conn, queue="mail")
    with Reader(database, "mail", suspect_seconds=0.001) as reader:
        reader.claim_all()
    shift_clock(conn, LONG)
    assert one(conn, "select jobs from forebay.revoke_lost_v1(100)") == 1


def moved(database, conn) -> None:
    job = enqueue(conn, queue="mail", delay="30 days")
    shift_clock(conn, LONG)
    filter_ = "jsonb_build_object('ids', jsonb_build_array(%s::bigint))"
    assert (
        one(conn, f"select answer from forebay.change_jobs('retry', {filter_}, most => 9)", job)
        == "changed"
    )


@pytest.mark.parametrize("how", [delayed, retried, retried_at_once, released, lost, moved])
async def test_a_job_that_is_due_again_is_ready_since_then(database, conn, how):
    """Not since its enqueue, and not since never: its alert fires."""
    with connect(database) as other:
        Reader(database, "mail").conn.close()
        how(database, other)
    shift_clock(conn, LONG)
    start = LONG if how is not delayed else 3600
    shift_clock(conn, start + 60)
    one(conn, "select forebay.promote_v1()")
    assert oldest(conn) == pytest.approx(60, abs=30)
    shift_clock(conn, start + 1200)
    fired = {alert.code for alert in (await acheck(database)).alerts}
    assert "oldest" in fired, fired


def test_the_oldest_of_all_sorts_counts(database, conn):
    """A new job beside a retried one hides it not."""
    enqueue(conn, queue="mail")
    end(database, "retried", attempt=1)
    shift_clock(conn, 600)
    enqueue(conn, queue="mail")
    assert oldest(conn) == pytest.approx(600, abs=30)


def test_each_queue_and_group_has_its_own_oldest_job(database, conn):
    """
    One query looks for all of them: in queues with and without a group, and with a job less in
    one of two groups.
    """
    for hours, queue in enumerate(("unserved", "shared", "shared", "mail"), start=1):
        enqueue(conn, queue=queue)
        shift_clock(conn, 3600 * hours)
    with Reader(database, "shared") as first, Reader(database, "mail"):
        conn.execute("select forebay.open_group('shared', 'audit', 'beginning')")
        assert len(first.claim(1).jobs) == 1
    rows = one(conn, "select forebay.measurements() -> 'queues'")
    at = one(conn, "select extract(epoch from forebay._now())::double precision")
    ages = {
        (each["queue"], each["group"]): round((at - each["oldest_ready_at"]) / 3600)
        for each in rows
        if each["oldest_ready_at"]
    }
    assert ages == {
        ("unserved", "default"): 4, ("shared", "default"): 2, ("shared", "audit"): 3,
        ("mail", "default"): 1,
    }  # fmt: skip


def test_the_counters_of_a_kind_are_the_sums_of_its_cells(database, conn):
    """
    Also of a kind with several tags, beside one with a single cell, which is not added up.
    """
    for kind, tag in (("many", "a"), ("many", "b"), ("many", None), ("one", None), ("one", None)):
        enqueue(conn, kind=kind, tag=tag, queue="mail")
    with Reader(database, "mail") as reader:
        reader.claim_all()
    conn.execute("select forebay.fold_v1(p_is_forced => true)")
    cells = one(conn, "select forebay.measurements() -> 'counters' -> 'cells'")
    assert {each["kind"]: each["enqueued"] for each in cells} == {"many": 3, "one": 2}
    assert [each["kind"] for each in cells] == ["many", "one"]
    assert {sum(each["waits"]) for each in cells} == {2, 3}

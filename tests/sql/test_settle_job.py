"""Settling one job of a batch in its handler's transaction: the same row, and the same refusals,
as by settle_v1.
"""

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, one, state
from tests.support.mutant import break_function, violation

ROW = (
    "select claim_no, flush_no, offsets, outcomes, millis from forebay.settlement where "
    "lease_id = %s"
)


def settle_job(reader: Reader, claim_no: int, offset: int, *, conn=None, clear: bool = False):
    """Settle a job as its handler's transaction does."""
    (conn or reader.conn).execute(
        "select forebay.settle_job_v1(%s, %s, %s, 7, %s)",
        [reader.lease_id, claim_no, offset, clear],
    )


def refusal(reader: Reader, claim_no: int, offset: int) -> str:
    """Return the SQLSTATE with which a settlement is refused."""
    with pytest.raises(psycopg.Error) as refused:
        settle_job(reader, claim_no, offset)
    return refused.value.sqlstate


def test_it_writes_the_row_that_settle_v1_writes(database):
    """Both name the settlement by the offset of the job; the other jobs of the batch stay open."""
    with connect(database) as conn, Reader(database) as reader:
        jobs = [enqueue(conn) for _ in range(3)]
        batch = reader.claim()
        settle_job(reader, batch.claim_no, 1)
        assert reader.settle(batch.claim_no, [2], flush_no=-2) == "settled"
        rows = conn.execute(ROW + " order by flush_no desc", [reader.lease_id]).fetchall()
        assert rows == [(1, -1, [1], None, [7]), (1, -2, [2], None, None)]
        assert [state(conn, job) for job in jobs] == ["done", "done", "claimed"]


def a_job_is_settled_once(dsn: str) -> None:
    """Whichever form is first, and also as part of a flush or of the whole batch."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        for _ in range(8):
            enqueue(conn)
        batch = reader.claim(4)
        settle_job(reader, batch.claim_no, 1)
        assert refusal(reader, batch.claim_no, 1) == "JQ019"
        assert reader.settle(batch.claim_no, [1], flush_no=-1) == "repeated"
        assert reader.settle(batch.claim_no, [1, 2], flush_no=1) == "refused"
        assert reader.settle(batch.claim_no, [2], flush_no=-2) == "settled"
        assert refusal(reader, batch.claim_no, 2) == "JQ019"
        assert reader.settle(batch.claim_no, [3], flush_no=1) == "settled"
        assert refusal(reader, batch.claim_no, 3) == "JQ019"
        whole = reader.claim(4)
        assert reader.settle(whole.claim_no) == "settled"
        assert refusal(reader, whole.claim_no, 1) == "JQ019"
        assert one(conn, "select count(*) from forebay.settlement") == 4


def test_a_job_is_settled_once_by_either_form(database):
    """A second settlement changes nothing."""
    a_job_is_settled_once(database)


def test_a_job_is_settled_twice_if_flushes_are_not_read(database):
    """The primary key finds only those that are named by their offset."""
    break_function(database, "settle_job_v1", ("s.flush_no >= 0", "false"))
    with violation():
        a_job_is_settled_once(database)


def a_name_is_that_of_its_offset(dsn: str) -> None:
    """Otherwise the primary key would not find the settlement of a job that was settled under
    another name.
    """
    with connect(dsn) as conn, Reader(dsn) as reader:
        for _ in range(3):
            enqueue(conn)
        batch = reader.claim()
        for done in ([2], [1, 2], None):
            assert reader.settle(batch.claim_no, done, flush_no=-1) == "refused"
        assert one(conn, "select count(*) from forebay.settlement") == 0


def test_a_negative_name_is_that_of_its_offset(database):
    """A flush of another job, of several, or of the whole batch is refused."""
    a_name_is_that_of_its_offset(database)


def test_a_negative_name_may_be_any_without_the_check(database):
    """The guard that the short form relies on."""
    break_function(database, "settle_v1", ("v_offsets[1] <> -flush_no", "false"))
    with violation():
        a_name_is_that_of_its_offset(database)


@pytest.mark.parametrize("offset", [-1, 0, 4, 40_000])
def test_an_offset_that_is_not_in_the_batch_is_refused(database, offset):
    """Nothing is written."""
    with connect(database) as conn, Reader(database) as reader:
        for _ in range(3):
            enqueue(conn)
        batch = reader.claim()
        assert refusal(reader, batch.claim_no, offset) in {"JQ019", "22003"}
        assert one(conn, "select count(*) from forebay.settlement") == 0


def test_an_unknown_batch_and_a_closed_lease_are_refused(database):
    """A server crash undid the claim; or the jobs are with another worker."""
    with connect(database) as conn, Reader(database) as reader:
        enqueue(conn)
        batch = reader.claim()
        assert refusal(reader, batch.claim_no + 1, 1) == "JQ019"
        assert reader.revoked_by(conn) == 1
        assert refusal(reader, batch.claim_no, 1) == "JQ010"


@pytest.mark.parametrize("key", ["ordering_key", "limit_key"])
def test_jobs_with_keys_release_them(database, key):
    """They go through the general part: the next job of the key can be claimed."""
    with connect(database) as conn, Reader(database) as reader:
        one(conn, "select forebay.limit_queue('default', key_concurrency => 1)::text")
        jobs = [enqueue(conn, **{key: "k"}) for _ in range(2)]
        for job in jobs:
            (batch,) = reader.claim_all()
            offset = batch.job_ids.index(job) + 1
            settle_job(reader, batch.claim_no, offset)
            assert state(conn, job) == "done"
            if len(batch.job_ids) == 2:
                break


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_a_transaction_older_than_the_revocation_cannot_settle(database, level):
    """Its effect goes with the settlement, at whatever isolation level."""
    with connect(database) as conn, psycopg.connect(database) as handler, Reader(database) as r:
        enqueue(conn)
        batch = r.claim()
        handler.execute(f"set transaction isolation level {level}")
        handler.execute("select 1")
        assert r.revoked_by(conn) == 1
        with pytest.raises(psycopg.Error) as refused:
            settle_job(r, batch.claim_no, 1, conn=handler)
        assert refused.value.sqlstate in ("JQ010", "40001")


def test_its_transaction_may_be_idle_for_five_seconds_only(database):
    """As with settle_v1: a worker that freezes before its commit does not hold up a revocation."""
    with connect(database) as conn, psycopg.connect(database) as handler, Reader(database) as r:
        enqueue(conn)
        batch = r.claim()
        settle_job(r, batch.claim_no, 1, conn=handler)
        assert one(handler, "show idle_in_transaction_session_timeout") == "5s"

"""The ledger that long runs are judged by finds each kind of error by its name."""

import pytest

from tests.support.effects import Effects, note
from tests.support.engine import Reader, enqueue
from tests.support.ledger import Ledger
from tests.support.writers import read_run, record_committed


def finished() -> Ledger:
    """Return the ledger of a run in which nothing is wrong: 0 to 2 committed, 3 rolled back."""
    ledger = Ledger()
    ledger.record_committed(ledger.draw(3), 0)
    ledger.record_rolled_back(ledger.draw(1))
    for note_it in (ledger.record_handed, ledger.record_ended):
        note_it("default", [0, 1, 2])
    return ledger


def test_each_kind_of_error_has_its_name():
    """
    Lost, phantom, ended twice and run too often; a run that was allowed is none of them.
    """
    ledger = finished()
    ledger.assert_clean()
    ledger.record_rerun("default", [1])
    ledger.record_handed("default", [1])
    ledger.assert_clean()

    ledger.record_committed([4], 0)
    ledger.record_handed("default", [3, 2])
    ledger.record_ended("default", [0])
    assert ledger.problems() == {
        "lost by default": [4],
        "phantom in default": [3],
        "ended twice in default": [0],
        "run too often in default": [2],
    }
    with pytest.raises(AssertionError, match="lost by default"):
        ledger.assert_clean()


@pytest.fixture
def run(database, conn, effects: Effects):
    """A run of one job in a transaction and one outside; what is wrong with it afterwards."""
    conn.execute("create table effect (entry bigint, job_id bigint)")
    jobs = [enqueue(conn, kind=kind) for kind in ("work", "write")]
    ledger = Ledger()
    record_committed(ledger, {0: "work", 1: "write"})
    with Reader(database) as reader:
        reader.finish(reader.claim_ready())
    for entry, job in enumerate(jobs):
        note("start", entry, job)
        note("end", entry, job)
    conn.execute("insert into effect values (1, %s)", [jobs[1]])

    def problems() -> dict[str, list[int]]:
        read_run(ledger, conn, effects)
        return ledger.problems()

    return problems


def test_a_clean_run_has_no_problems(run):
    """
    Each job started, ended and was settled once.
    """
    assert run() == {}


def test_a_row_that_is_missing_is_a_lost_job(run, conn):
    """
    A handler that ended, and whose transaction wrote nothing.
    """
    conn.execute("truncate effect")
    assert run() == {"lost by default": [1]}


def test_a_row_that_is_there_twice_is_an_end_too_many(run, conn):
    """
    Two transactions of one job were committed.
    """
    conn.execute("insert into effect select * from effect")
    assert run() == {"ended twice in default": [1]}


def test_a_second_settlement_is_an_end_too_many(run, conn):
    """
    The database took two settlements of one job that both end it.
    """
    conn.execute(
        "insert into forebay.settlement select (jsonb_populate_record(s, '{\"flush_no\": 99}')).*"
        " from forebay.settlement s"
    )
    assert run() == {"ended twice in default": [0, 1]}


def test_a_start_without_a_reason_is_a_run_too_many(run):
    """
    Nothing was sent back, and a handler started again; or for a job that was never committed.
    """
    note("start", 0, 1)
    note("start", 7, 7)
    assert run() == {"phantom in default": [7], "run too often in default": [0]}

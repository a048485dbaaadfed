"""The crash scenario: its audit finds what it looks for, and a run with a kill comes out clean."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from forebay_bench import Options, Place, open_place
from forebay_bench._audit import SCHEMA, draw_up
from forebay_bench.scenarios import crash
from tests.support.engine import Reader, connect, one


@pytest.fixture
def ledger(database: str) -> Iterator[psycopg.Connection]:
    """A connection to a database with the audit's tables."""
    with connect(database) as conn:
        conn.execute(SCHEMA)
        yield conn


def committed(conn: psycopg.Connection, entry: int, *, in_transaction: bool) -> int:
    """Write an entry and enqueue its job; return the job's id."""
    conn.execute("insert into ledger.entry values (%s, %s)", [entry, in_transaction])
    return one(conn, "select forebay.enqueue('record_effect', '{}', 'crash')")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_with_a_killed_worker_loses_and_doubles_nothing(server):
    """
    Every committed job is counted, none is lost, phantom or double, and the line has the promised names.
    """
    place = Place(server.dsn(), is_own=False)
    report = crash.run(place, Options(scale=0.1), lambda _: None)
    figures = report.figures
    assert list(figures)[:4] == ["counted", "lost", "phantom", "double"]
    assert figures["counted"] > 0
    assert figures["lost"] == figures["phantom"] == figures["double"] == 0
    assert figures["worker_kills"] >= 1
    assert figures["server_kills"] == 0
    assert all(bar.holds for bar in report.bars)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.crash
def test_a_run_with_a_killed_server_loses_and_doubles_nothing(pg_bin):
    """
    With the server of its own killed under load too, every confirmed commit is there and done once.
    """
    with open_place(None, pg_bin) as place:
        figures = crash.run(place, Options(full=True, scale=0.15), lambda _: None).figures
    assert figures["server_kills"] >= 1
    assert figures["counted"] > 0
    assert figures["lost"] == figures["phantom"] == figures["double"] == 0


def test_the_audit_counts_what_went_wrong(ledger):
    """
    A commit that is gone, an effect that is missing, one of what was rolled back, one that is there twice.
    """
    for entry in (1, 2, 3):
        committed(ledger, entry, in_transaction=True)
    ledger.execute("insert into ledger.effect values (1, 1), (3, 3), (3, 3), (4, 4)")
    account = {"committed": [1, 2, 3, 5], "rolled back": [4], "in doubt": []}
    found = draw_up(ledger, account, [])
    assert found["counted"] == 4
    assert found["lost"] == 2  # 2 without its effect, 5 gone
    assert found["phantom"] == 1
    assert found["applied_twice"] == 1


def test_a_commit_in_doubt_is_decided_by_its_witness(ledger):
    """
    An entry whose commit was not answered counts if it is there, and is not missed if it is not.
    """
    committed(ledger, 1, in_transaction=False)
    found = draw_up(ledger, {"committed": [], "rolled back": [], "in doubt": [1, 2]}, [1, 1])
    assert (found["counted"], found["lost"], found["phantom"]) == (1, 0, 0)
    assert found["run_again"] == 1


def test_a_job_that_is_settled_twice_is_found(ledger, database):
    """
    Two settlements of the same job as done, which the database itself refuses, show up in the audit.
    """
    committed(ledger, 1, in_transaction=False)
    with Reader(database, "crash") as reader:
        batch = reader.claim_ready()
        reader.settle(batch.claim_no)
        account = {"committed": [1], "rolled back": [], "in doubt": []}
        assert draw_up(ledger, account, [1])["settled_twice"] == 0
        ledger.execute(
            "insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at)"
            " values (%s, %s, 2, now())",
            [reader.lease_id, batch.claim_no],
        )
    assert (
        draw_up(ledger, {"committed": [], "rolled back": [], "in doubt": []}, [])["settled_twice"]
        == 1
    )


def test_notes_are_read_from_where_one_left_off(tmp_path: Path, monkeypatch):
    """
    What handlers note is there at once, in order, with the time of the monotonic clock.
    """
    from forebay_bench._journal import VARIABLE, Journal, JournalWriter

    notes = Journal(tmp_path / "notes")
    monkeypatch.setenv(VARIABLE, notes.environment[VARIABLE])
    journal = JournalWriter()
    for number in (7, -1, 9):
        journal.note(number)
    assert notes.count == 3
    assert [number for number, _ in notes.read(1)] == [-1, 9]
    times = [at for _, at in notes.read()]
    assert times == sorted(times)

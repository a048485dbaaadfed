"""How long dead letters are kept: forever unless set, by queue, deleted in steps and counted."""

import pytest

from tests.support.engine import Reader, connect, enqueue, one, shift_clock, sqlstate, trim

DAY = 86_400


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def die(database, conn, queue, jobs=1, error="ValueError"):
    with Reader(database, queue) as reader:
        for _ in range(jobs):
            enqueue(conn, queue=queue)
        for batch in reader.claim_all():
            ended = [
                {
                    "offset": job["batch_offset"], "outcome": "dead", "attempt": 1,
                    "reason": "permanent",
                    "error": {"type": error, "message": "m"},
                }
                for job in batch.jobs
            ]  # fmt: skip
            assert reader.settle(batch.claim_no, ended=ended) == "settled"


def step(conn, most):
    """Make one step of trimming dead letters."""
    conn.execute("select forebay.trim_v1('dead_letters', null, %s)", [most])


def kept(conn):
    return dict(
        conn.execute("select queue, count(*) from forebay.dead_letter group by 1").fetchall()
    )


def summary(conn):
    rows = conn.execute(
        "select queue, error_type, kept, not_redriven, deleted, keep_days from "
        "forebay.dead_summary() order by 1, 2"
    )
    return rows.fetchall()


def test_without_a_setting_no_dead_letter_is_ever_deleted(database, conn):
    die(database, conn, "mail", 2)
    shift_clock(conn, 20_000 * DAY)
    trim(conn)
    assert kept(conn) == {"mail": 2}


def test_each_queue_keeps_its_dead_letters_for_its_time(database, conn):
    """And what was deleted is counted by queue and error."""
    assert one(conn, "select forebay.keep_dead(days => 10)") is None
    assert one(conn, "select forebay.keep_dead('mail', 30)") == 10
    one(conn, "select forebay.keep_dead('audit')")
    for queue in ("mail", "audit", "other"):
        die(database, conn, queue, 2)
    die(database, conn, "other", 1, "KeyError")
    shift_clock(conn, 9 * DAY)
    trim(conn)
    assert kept(conn) == {"mail": 2, "audit": 2, "other": 3}
    shift_clock(conn, 11 * DAY)
    trim(conn)
    assert kept(conn) == {"mail": 2, "audit": 2}
    assert summary(conn) == [
        ("audit", "ValueError", 2, 2, 0, None),
        ("mail", "ValueError", 2, 2, 0, 30),
        ("other", "KeyError", 0, 0, 1, 10),
        ("other", "ValueError", 0, 0, 2, 10),
    ]
    shift_clock(conn, 31 * DAY)
    trim(conn)
    assert kept(conn) == {"audit": 2}
    assert one(conn, "select forebay.keep_dead('audit', inherit => true)") is None
    trim(conn)
    assert kept(conn) == {}
    assert sum(row[4] for row in summary(conn)) == 7


def test_dead_letters_are_deleted_in_bounded_steps(database, conn):
    """A pass that reaches its limit is followed by another."""
    die(database, conn, "mail", 25)
    one(conn, "select forebay.keep_dead(days => 1)")
    shift_clock(conn, 2 * DAY)
    step(conn, 10)
    assert kept(conn) == {"mail": 15}
    step(conn, 10)
    assert kept(conn) == {"mail": 5}
    step(conn, 10)
    assert kept(conn) == {}
    assert summary(conn) == [("mail", "ValueError", 0, 0, 25, 1)]


def test_purging_counts_too(database, conn):
    die(database, conn, "mail", 3)
    die(database, conn, "other", 1)
    assert one(conn, "select forebay.purge_dead('0 s', 'mail')") == 3
    assert [row[4] for row in summary(conn)] == [3, 0]


def test_bad_times_are_refused(conn):
    for arguments in ("days => 0", "days => -1", "days => 36501", "queue => 'a b'", "queue => ''",
                      "inherit => true", "'mail', 3, true", "inherit => null"):  # fmt: skip
        assert sqlstate(conn, f"select forebay.keep_dead({arguments})") == "JQ001", arguments

"""A redrive takes exactly the dead letters of its dry run, for their group or another one."""

import json

import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    open_group,
    sqlstate,
)

REDRIVE = "select forebay.redrive_matching(queue => 'mail', token => %s)"
PLAN = "select token, jobs from forebay.plan_redrive(queue => 'mail')"


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def die(database, conn, number: int, **options) -> list[int]:
    """Let jobs die; return them."""
    with Reader(database, "mail") as reader:
        jobs = [enqueue(conn, queue="mail", **options) for _ in range(number)]
        for batch in reader.claim_all():
            dead = [
                {"offset": at + 1, "outcome": "dead", "reason": "permanent"}
                for at in range(len(batch.jobs))
            ]
            reader.settle(batch.claim_no, ended=dead)
    return jobs


def test_a_token_redrives_exactly_the_counted_dead_letters(database, conn):
    """
    Newer ones are left; if one of them is gone, nothing is redriven; a repeated call does nothing.
    """
    die(database, conn, 3)
    token, jobs = conn.execute(PLAN).fetchone()
    assert jobs == 3
    die(database, conn, 2)
    other = REDRIVE.replace("'mail'", "'mail', kind => 'work'")
    assert sqlstate(conn, other, token) == "JQ042"
    with conn.transaction(force_rollback=True):
        conn.execute("select forebay.redrive((select min(dead_id) from forebay.dead_letter))")
        assert sqlstate(conn, f"savepoint s; {REDRIVE}".replace("%s", f"'{token}'")) == "JQ042"
    assert one(conn, REDRIVE, token) == 3
    assert sqlstate(conn, REDRIVE, token) == "JQ042"
    redriven = "select count(*) from forebay.dead_letter where redriven_at is not null"
    assert one(conn, redriven) == 3


def test_dead_letters_go_to_another_group(database, conn):
    """
    No other group gets the jobs. A group that is not there is refused, and what belongs to its own.
    """
    jobs = die(database, conn, 2)
    to = "select forebay.redrive_matching(queue => 'mail', to_group => %s)"
    assert sqlstate(conn, to, "repair") == "JQ014"
    open_group(conn, "mail", "repair", "now")
    assert one(conn, to, "repair") == 2
    with Reader(database, "mail") as reader:
        assert reader.claim_all() == []
    with Reader(database, "mail", group="repair") as reader:
        assert sum(len(batch.jobs) for batch in reader.claim_all()) == 2
    new = "select new ->> 'to_group' from forebay.event where act = 'dead.redrive'"
    assert one(conn, new) == "repair"
    conn.execute(
        "update forebay.dead_letter set redriven_at = null, redriven_as = null, holds_key = true"
    )
    assert sqlstate(conn, to, "repair") == "JQ001"
    assert len(jobs) == 2


def test_a_replay_of_dead_jobs_reads_the_dead_letters(database, conn):
    """
    It asks for the states of jobs that have one, not for those of all.
    """
    enqueue_many(conn, [{"kind": "work", "queue": "mail"}] * 500)
    with Reader(database, "mail") as reader:
        for batch in reader.claim_all():
            reader.finish(batch)
    jobs = die(database, conn, 3)
    conn.execute("set track_functions = 'all'")
    calls = "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = 'job'"
    options = json.dumps({"state": "dead"})
    with conn.transaction():
        plan = 'select jobs from forebay.plan_replay(\'{"queue": "mail"}\', %s)'
        assert one(conn, plan, options) == len(jobs)
        assert one(conn, calls) <= 10

"""A redrive takes exactly the dead letters of its dry run, for their group or another one."""

import json

import pytest

from forebay import Client
from forebay.errors import InvalidJob, JobsChanged
from forebay.ops import dead
from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    open_group,
    shift_clock,
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
            letters = [
                {"offset": at + 1, "outcome": "dead", "reason": "permanent"}
                for at in range(len(batch.jobs))
            ]
            reader.settle(batch.claim_no, ended=letters)
    return jobs


def test_a_token_redrives_exactly_the_counted_dead_letters(database, conn):
    """
    Newer ones are left, and what was redriven since; if one was deleted, nothing is redriven.

    A repeated call does nothing.
    """
    die(database, conn, 3)
    token, jobs = conn.execute(PLAN).fetchone()
    assert jobs == 3
    die(database, conn, 2)
    other = REDRIVE.replace("'mail'", "'mail', kind => 'work'")
    assert sqlstate(conn, other, token) == "JQ042"
    with conn.transaction(force_rollback=True):
        conn.execute(
            "delete from forebay.dead_letter "
            "where dead_id = (select min(dead_id) from forebay.dead_letter)"
        )
        assert sqlstate(conn, f"savepoint s; {REDRIVE}".replace("%s", f"'{token}'")) == "JQ042"
    conn.execute("select forebay.redrive((select min(dead_id) from forebay.dead_letter))")
    assert one(conn, REDRIVE, token) == 2
    assert one(conn, REDRIVE, token) == 0
    redriven = "select count(*) from forebay.dead_letter where redriven_at is not null"
    assert one(conn, redriven) == 3


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_jumps_changes_nothing_for_a_token(database, conn, hours):
    """
    Between an earlier redrive and the dry run, between the dry run and the act, and then again.
    """
    die(database, conn, 5)
    shift_clock(conn, 3600 * -hours)
    conn.execute("select forebay.redrive((select min(dead_id) from forebay.dead_letter))")
    shift_clock(conn)
    token, jobs = conn.execute(PLAN).fetchone()
    assert jobs == 4
    shift_clock(conn, 3600 * hours)
    step = REDRIVE.replace("token", "step => 2, token")
    assert [one(conn, step, token) for _ in range(3)] == [2, 2, 0]
    counts = "select array_agg(count order by event_id) from forebay.event"
    assert one(conn, f"{counts} where act = 'dead.redrive'") == [1, 4]


def test_a_redrive_without_a_token_plans_again(database, conn, monkeypatch):
    """
    Others redrive or delete dead letters between its dry run and its steps, and it has no token of
    the caller's that they could spoil.
    """
    die(database, conn, 5)
    client = Client(database)
    run = dead.RedriveSteps.operations
    others = iter(["redrive", "delete", "redrive"])

    def meanwhile(steps):
        letters = "from forebay.dead_letter where redriven_at is null"
        match next(others, None):
            case "delete":
                last = f"(select max(dead_id) {letters})"
                conn.execute(f"delete from forebay.dead_letter where dead_id = {last}")
            case "redrive":
                # It had drawn its number before the dry run.
                conn.execute(
                    "update forebay.dead_letter set redriven_at = now(), redriven_as = 1"
                    f" where dead_id = (select max(dead_id) {letters})"
                )
        yield from run(steps)

    monkeypatch.setattr(dead.RedriveSteps, "operations", meanwhile)
    assert client.redrive_matching(queue="mail", limit=9) == 2
    assert next(others, None) is None
    with pytest.raises(JobsChanged):
        others = iter(["delete"] * 99)
        die(database, conn, 20)
        client.redrive_matching(queue="mail")


def test_an_interrupted_redrive_is_finished_by_the_same_call(database, conn, monkeypatch):
    """
    It works in steps, each committed, that are one event. A repeated token takes what is left.
    """
    monkeypatch.setattr(dead, "_STEP", 2)
    die(database, conn, 5)
    client = Client(database)

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    token = client.plan_redrive(queue="mail").token
    with pytest.raises(KeyboardInterrupt):
        client.redrive_matching(queue="mail", token=token, progress=stop)
    seen: list[int] = []
    assert client.redrive_matching(queue="mail", token=token, progress=seen.append) == 3
    assert seen == [2, 3]
    assert one(conn, "select count from forebay.event where act = 'dead.redrive'") == 5
    assert client.redrive_matching(queue="mail") == 0
    die(database, conn, 2)
    die(database, conn, 1)
    late = client.dead_letters(queue="mail")[0]
    assert client.redrive_matching(died_before=late.died_at, limit=1) == 1
    assert client.redrive_matching(died_after=late.died_at) == 1
    assert [x.dead_id for x in client.dead_letters(died_after=late.died_at, redriven=True)] == [
        late.dead_id
    ]
    with pytest.raises(InvalidJob, match="tags"):
        client.dead_letters(tags="a")


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


def test_a_replay_of_dead_jobs_reads_around_them_only(database, conn):
    """
    It looks at the rows of jobs with a dead letter; by the time of death at those of that time.
    """
    enqueue_many(conn, [{"kind": "work", "queue": "mail"}] * 9000)
    with Reader(database, "mail") as reader:
        while batches := reader.claim_all():
            for batch in batches:
                reader.finish(batch)
    jobs = die(database, conn, 1) + die(database, conn, 1)
    enqueue_many(conn, [{"kind": "work", "queue": "mail"}] * 9000)
    pieces = "select sum(hi - lo) from forebay._archive_pieces(%s, %s, 1, 9223372036854775807)"
    queue = json.dumps({"queue": "mail"})
    assert one(conn, pieces, queue, json.dumps({"state": "dead"})) == jobs[1] - jobs[0] + 1
    assert one(conn, pieces, json.dumps({"ids": [jobs[0], jobs[0] + 9000]}), "{}") == 2
    died = one(conn, "select max(died_at)::text from forebay.dead_letter")
    plan = "select jobs from forebay.plan_replay(%s, %s)"
    for option, found in (("died_after", 1), ("died_before", 1)):
        options = json.dumps({"state": "dead", option: died})
        assert one(conn, plan, queue, options) == found
    assert sqlstate(conn, plan, queue, json.dumps({"died_after": died})) == "JQ001"
    assert sqlstate(conn, plan, queue, json.dumps({"state": "dead", "died_after": "x"})) == "JQ001"

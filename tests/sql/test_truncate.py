"""Truncation of a queue: it cancels exactly the jobs that wait at its first call, in one step or
in many.
"""

import json

import pytest

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
from tests.support.mutant import break_function, violation

MAIL = json.dumps({"queue": "mail"})


def step(conn, event: int | None = None, most: int | None = None) -> tuple[int, int | None]:
    """Run one step; return the number of jobs, and the event for the next one."""
    rows = conn.execute(
        "select jobs, event from forebay.change_jobs('truncate', %s, most => %s, event_id => %s)",
        [MAIL, most, event],
    ).fetchall()
    return (rows[0][0], rows[0][1]) if rows else (0, event)


def fates(conn, job_ids) -> list[str]:
    """Return the state of each job; cancelled also if the claim that skips it is still to come."""
    query = "select case when cancel_requested then 'cancelled' else state end from forebay.job(%s)"
    return [one(conn, query, job_id) for job_id in job_ids]


def truncate(conn) -> int:
    """Truncate the queue in one call."""
    return one(conn, "select forebay.truncate_queue('mail')")


def test_what_waits_is_cancelled_and_what_runs_is_left_alone(database, conn):
    """Ready, scheduled, retrying and parked jobs are cancelled.

    Running ones and those of other queues are not.
    """
    with Reader(database, "mail") as reader:
        running, retrying = (enqueue(conn, queue="mail") for _ in range(2))
        batch = reader.claim()
        late = {"offset": 2, "outcome": "retried", "after": 3600}
        assert reader.settle(batch.claim_no, ended=[late]) == "settled"
        keyed = [enqueue(conn, queue="mail", ordering_key="k") for _ in range(3)]
        conn.execute("select forebay.limit_queue('mail', key_concurrency => 1)")
        limited = [enqueue(conn, queue="mail", limit_key="k") for _ in range(3)]
        for lane in reader.ready():
            reader.claim(1, lane["lane"])
        ready, scheduled = enqueue(conn, queue="mail"), enqueue(conn, queue="mail", delay="1 hour")
        other = enqueue(conn, queue="other")
        waiting = [retrying, ready, scheduled, *keyed[1:], *limited[1:]]
        token = one(conn, "select token from forebay.plan_change('truncate', %s) limit 1", MAIL)
        assert one(conn, "select forebay.truncate_queue('mail', %s)", token) == len(waiting)
        assert set(fates(conn, waiting)) == {"cancelled"}
        assert set(fates(conn, (running, keyed[0], limited[0]))) == {"claimed"}
        assert fates(conn, [other, running]) == ["ready", "claimed"]
        # The running job may fail and run again: it did not wait.
        again = {"offset": 1, "outcome": "retried"}
        assert reader.settle(batch.claim_no, ended=[again], flush_no=2) == "settled"
        assert fates(conn, [running]) == ["ready"]
        assert one(conn, "select count(*) from forebay.event where act = 'queues.truncate'") == 1


def test_a_token_is_of_this_act_and_its_jobs(conn):
    """That of a purge is refused; jobs that came later stay."""
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(5)])
    tokens = {
        act: one(conn, "select token from forebay.plan_change(%s, %s) limit 1", act, MAIL)
        for act in ("truncate", "purge")
    }
    query = "select forebay.truncate_queue('mail', %s)"
    assert sqlstate(conn, query, tokens["purge"]) == "JQ042"
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(20)])
    assert one(conn, "select count(*) from forebay.tombstone") == 0
    assert one(conn, query, tokens["truncate"]) == 5


def test_a_call_without_a_queue_is_refused(conn):
    """A truncation of all queues does not exist."""
    enqueue(conn)
    assert sqlstate(conn, "select forebay.truncate_queue(null)") == "JQ001"
    query = 'select forebay.change_jobs(\'truncate\', \'{"queue": "mail", "kind": "work"}\')'
    assert sqlstate(conn, query) == "JQ001"
    options = "select forebay.change_jobs('truncate', %s, '{\"snapshot\": \"1:1:\"}')"
    assert sqlstate(conn, options, MAIL) == "JQ001"


def in_steps(database: str) -> None:
    """What is enqueued or committed between two steps stays."""
    with connect(database) as conn, connect(database) as open_one:
        first = enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(10)])
        open_one.execute("begin")
        uncommitted = enqueue(open_one, queue="mail")
        jobs, event = step(conn, most=4)
        assert jobs == 4
        open_one.execute("commit")
        newer = [enqueue(conn, queue="mail"), enqueue(conn, queue="mail", delay="1 hour")]
        taken = jobs
        while jobs:
            jobs, event = step(conn, event, 4)
            taken += jobs
        assert taken == 10
        assert set(fates(conn, first)) == {"cancelled"}
        assert fates(conn, (uncommitted, *newer)) == ["ready", "ready", "scheduled"]
        assert one(conn, "select count from forebay.event where act = 'queues.truncate'") == 10


def test_steps_take_what_waited_at_the_first_one(database):
    """A snapshot tells it, which the event of the first step keeps."""
    in_steps(database)


def test_without_the_snapshot_a_step_takes_newer_jobs(database):
    """The condition on the rows is what keeps them."""
    break_function(database, "_matching", ("if p_options ? 'snapshot' then", "if false then"))
    with violation():
        in_steps(database)


def promoted_between(database: str) -> None:
    """Scheduled jobs that become due between two steps have a newer row then, and are cancelled
    all the same.
    """
    with connect(database) as conn:
        jobs = [enqueue(conn, queue="mail", delay=f"{9 + n} seconds") for n in range(5)]
        ready = [enqueue(conn, queue="mail") for _ in range(3)]
        taken, event = step(conn, most=1)
        assert taken == 6
        shift_clock(conn, 20)
        try:
            conn.execute("select forebay.promote_v1()")
            while taken:
                taken, event = step(conn, event, 1)
        finally:
            shift_clock(conn)
        assert set(fates(conn, (*jobs, *ready))) == {"cancelled"}


def test_a_promotion_between_two_steps_lets_no_job_escape(database):
    """The first step takes all deferred jobs."""
    promoted_between(database)


def test_with_a_first_step_that_leaves_deferred_jobs_some_escape(database):
    """Their new rows are not in the snapshot."""
    limit = "case when p_act <> 'truncate' then v_limit end"
    break_function(database, "_matching", (limit, "v_limit"))
    with violation():
        promoted_between(database)


def test_the_jobs_of_the_callers_transaction_are_among_them(conn):
    """They wait as far as the caller sees."""
    with conn.transaction():
        job_id = enqueue(conn, queue="mail")
        assert truncate(conn) == 1
    assert fates(conn, [job_id]) == ["cancelled"]


def other_groups(database: str) -> None:
    """A job that one group runs and another waits for is cancelled for the second only."""
    with connect(database) as conn:
        open_group(conn, "mail", "a", "beginning")
        open_group(conn, "mail", "b", "beginning")
        with Reader(database, "mail", "a") as reader:
            job_id, other = (enqueue(conn, queue="mail") for _ in range(2))
            batch = reader.claim(1)
            assert truncate(conn) == 2
            assert reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "retried"}])
            with Reader(database, "mail", "b") as second:
                assert second.claim_all() == []
            assert [batch.job_ids for batch in reader.claim_all()] == [[job_id]]
            assert fates(conn, [other]) == ["cancelled"]


def test_another_group_keeps_what_it_runs(database):
    """Its run is no waiting job."""
    other_groups(database)


def test_without_a_look_at_the_other_groups_their_runs_are_cancelled(database):
    """A tombstone without a group is for all."""
    break_function(
        database, "change_jobs", ("select count(*) > 1 from", "select count(*) > 9 from")
    )
    with violation():
        other_groups(database)


@pytest.mark.parametrize("what", ["other queue", "another act", "unknown"])
def test_a_step_does_not_go_by_the_event_of_another_act(conn, what):
    """Then it is a first step: it takes what waits now."""
    enqueue(conn, queue="mail")
    query = "select event from forebay.change_jobs(%s, %s)"
    event = {
        "other queue": lambda: one(conn, query, "truncate", json.dumps({"queue": "q"})),
        "another act": lambda: one(conn, query, "purge", MAIL),
        "unknown": lambda: 999,
    }[what]
    enqueue(conn, queue="q")
    number = event()
    job_id = enqueue(conn, queue="mail")
    assert step(conn, number)[0] >= 1
    assert fates(conn, [job_id]) == ["cancelled"]

"""The event log: every act of an operator, in the transaction of the act, and nothing on the
path of a job.
"""

import pytest

from tests.sql.test_roles import acting_as
from tests.support.engine import Reader, connect, enqueue, one, shift_clock, trim

DAY = 86_400


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        conn.execute("delete from forebay.event")  # The fixture of the database configures it.
        yield conn


def events(conn, **where):
    """Return (act, queue, group, old, new, count), oldest first."""
    given = ", ".join(f"{name} => %({name})s" for name in where)
    rows = conn.execute(
        (
            f"select act, queue, group_name, old, new, count from forebay.events({given}) "
            f"order by event_id"
        ),
        where,
    )
    return rows.fetchall()


def die(database, conn, jobs=1):
    with Reader(database, "mail") as reader:
        for _ in range(jobs):
            enqueue(conn, queue="mail")
        for batch in reader.claim_all():
            ended = [
                {
                    "offset": job["batch_offset"],
                    "outcome": "dead",
                    "attempt": 1,
                    "reason": "permanent",
                }
                for job in batch.jobs
            ]
            assert reader.settle(batch.claim_no, ended=ended) == "settled"


def test_every_act_leaves_one_event_with_the_old_and_the_new_value(database, conn):
    """An act that changes nothing leaves none."""
    die(database, conn, 3)
    assert events(conn) == []
    for _ in range(2):
        one(conn, "select forebay.pause_queue('mail')")
        one(conn, "select forebay.resume_queue('mail')")
        one(conn, "select forebay.resume_queue('mail')")
        one(conn, "select forebay.limit_queue('mail', rate => 5)")
        one(conn, "select forebay.shard_queue('mail', 4)")
        one(conn, "select forebay.configure('retention_days', 7)")
        one(conn, "select forebay.keep_dead('mail', 30)")
        one(conn, "select forebay.open_group('mail', 'audit')")
    assert events(conn) == [
        ("queues.pause", "mail", None, None, None, 1),
        ("queues.resume", "mail", None, None, None, 1),
        ("queues.limit", "mail", None, {}, {"rate": 5}, None),
        ("queues.shard", "mail", None, 1, 4, None),
        ("configure", None, None, {"retention_days": 30}, {"retention_days": 7}, None),
        ("dead.keep", "mail", None, {"days": None}, {"days": 30}, None),
        ("groups.open", "mail", "audit", None, {"start": None}, None),
        ("queues.pause", "mail", None, None, None, 2),
        ("queues.resume", "mail", None, None, None, 2),
    ]  # fmt: skip
    conn.execute("select forebay.close_group('mail', 'audit')")
    assert events(conn, only_act="groups.close") == [
        ("groups.close", "mail", "audit", None, {"force": False, "running": 0}, 0)
    ]
    first = one(conn, "select min(dead_id) from forebay.dead_letter")
    job = one(conn, "select forebay.redrive(%s)", first)
    assert one(conn, "select forebay.cancel(%s)", job) == "cancelled"
    assert one(conn, "select forebay.cancel(%s)", job) == "cancelled"
    assert one(conn, "select forebay.redrive_matching(queue => 'mail')") == 2
    one(conn, "select forebay.purge_dead('0', 'mail')")
    found = events(conn, only_act="dead") + events(conn, only_act="jobs")
    assert [(act, count) for act, _queue, _group, _old, _new, count in found] == [
        ("dead.keep", None), ("dead.redrive", 1), ("dead.redrive", 2), ("dead.purge", 3),
        ("jobs.cancel", 1),
    ]  # fmt: skip
    one(conn, "select forebay.limit_queue('mail', rate => 2)")
    assert events(conn, only_act="queues.limit")[-1][3:5] == ({"rate": 5}, {"rate": 2})


def test_an_act_that_is_rolled_back_leaves_no_event(conn):
    enqueue(conn, queue="mail")
    with conn.transaction(force_rollback=True):
        one(conn, "select forebay.pause_queue('mail')")
        assert len(events(conn)) == 1
    assert events(conn) == []


def test_an_event_says_who(conn):
    enqueue(conn, queue="mail")
    with conn.transaction():
        conn.execute("set local forebay.actor = 'alice'")
        one(conn, "select forebay.pause_queue('mail')")
    one(conn, "select forebay.resume_queue('mail')")
    found = conn.execute("select actor, role = session_user from forebay.events()").fetchall()
    assert found == [(None, True), ("alice", True)]


def test_an_event_names_the_login_role_and_not_the_owner_of_the_function(database, conn):
    """
    The functions run with the rights of the schema's owner.
    """
    enqueue(conn, queue="mail")
    with acting_as(database, "forebay_operator") as operator:
        one(operator, "select forebay.pause_queue('mail')")
        assert one(operator, "select role from forebay.events()") == one(
            operator, "select session_user::text"
        )
        assert one(operator, "select session_user::text") != one(conn, "select session_user::text")


def test_events_are_chosen_by_act_and_time(conn):
    """
    An act is chosen by its name or by the part before the dot; the end of a time is excluded, its
    begin is not.
    """
    enqueue(conn, queue="mail")
    one(conn, "select forebay.pause_queue('mail')")
    at = one(conn, "select at from forebay.events()")
    for act, count in (
        ("queues", 1),
        ("queues.pause", 1),
        ("queue", 0),
        ("queues.p", 0),
        ("guard", 0),
    ):
        assert len(events(conn, only_act=act)) == count, act
    assert len(events(conn, since=at)) == 1
    assert events(conn, until=at) == []


def test_jobs_leave_no_events(database, conn):
    with Reader(database, "mail") as reader:
        for _ in range(5):
            enqueue(conn, queue="mail")
        for batch in reader.claim_all():
            reader.finish(batch)
    assert events(conn) == []


def test_acts_of_the_guard_are_events(conn):
    number = one(
        conn,
        (
            "select forebay.record_act('primary', 'rollback prepared', 'prepared transaction', "
            "'x', 'older than 1 min')"
        ),
    )
    assert events(conn, only_act="guard") == [
        ("guard.rollback-prepared", None, None, {"server": "primary"}, {"outcome": None}, None)
    ]
    conn.execute("select forebay.record_outcome(%s, 'ended')", [number])
    assert events(conn)[0][4] == {"outcome": "ended"}
    assert events(conn, only_queue="mail") == []


def test_a_backfill_leaves_its_begin_and_its_end(conn):
    one(conn, "select forebay.backfill('k', 'select i as x from generate_series(1, 5) i')")
    number = one(
        conn,
        "select forebay.backfill_begin('k', 'select i as x from generate_series(1, 5) i', 'x', 3)",
    )
    for _ in range(3):
        conn.execute("select * from forebay.backfill_next(%s)", [number])
    found = conn.execute(
        "select act, queue, kind, count, subject_id from forebay.events() order by event_id"
    )
    assert found.fetchall() == [
        ("backfill", "default", "k", 5, None), ("backfill.begin", "default", "k", None, number),
        ("backfill.end", "default", "k", 5, number),
    ]  # fmt: skip


def test_events_are_kept_as_long_as_errors_of_jobs(conn):
    enqueue(conn, queue="mail")
    one(conn, "select forebay.pause_queue('mail')")
    shift_clock(conn, 59 * DAY)
    trim(conn)
    assert len(events(conn)) == 1
    shift_clock(conn, 61 * DAY)
    trim(conn)
    assert events(conn) == []

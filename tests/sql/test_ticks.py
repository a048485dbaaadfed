"""``forebay.ticks()``: where no worker stays, the runs that ended by themselves, and when the next
one is late.
"""

from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb


@pytest.fixture
def ended(conn):
    """Insert a lease that ended so many minutes ago."""
    numbers = iter(range(1, 1000))

    def insert(minutes, details, closed_as="closed"):
        conn.execute(
            "insert into forebay.lease (lease_id, worker, lease_seconds, suspect_seconds,"
            " opened_at, closed_at, closed_as, details) select %s, 'w', 30, 5, i.at, i.at, %s, %s"
            " from (select forebay._now() - make_interval(mins => %s) as at) i",
            [next(numbers), closed_as, Jsonb(details), minutes],
        )

    return insert


def ticks(conn):
    return conn.execute(
        "select group_name, queues, schedules,"
        " make_interval(secs => round(extract(epoch from expected_by - ended_at)))"
        " from forebay.ticks() order by 1, 2, 3"
    ).fetchall()


def tick(*queues, **details):
    return {"group": "default", "queues": list(queues), "until_idle": True} | details


def test_the_longest_time_between_two_runs_says_when_the_next_one_is_late(conn, ended):
    """
    Twice that time, between two minutes and 25 hours; runs with other queues or another group are
    others. A worker that stays is none, and what is older than 25 hours is over.
    """
    for minutes in (1, 2, 12, 13):
        ended(minutes, tick("mail", schedules=False))
    ended(3, tick("pages"))
    ended(1, tick("pages", group="index"))
    ended(4, tick("days"))
    ended(20 * 60, tick("days"))
    ended(1, tick("stays", until_idle=False, schedules=False))
    ended(1, tick("retired"), closed_as="retired")
    ended(26 * 60, tick("old"))
    assert ticks(conn) == [
        ("default", ["days"], True, timedelta(hours=25)),
        ("default", ["mail"], False, timedelta(minutes=20)),
        ("default", ["pages"], True, timedelta(minutes=2)),
        ("index", ["pages"], True, timedelta(minutes=2)),
    ]


@pytest.mark.parametrize(
    "details",
    [
        None,
        [],
        "tick",
        {"until_idle": "true", "queues": ["mail"]},
        {"until_idle": 1, "queues": ["mail"]},
        {"until_idle": True, "queues": "mail"},
        {"until_idle": True, "queues": {"mail": 1}},
        {"until_idle": True},
    ],
    ids=str,
)
def test_details_that_say_something_else_are_no_tick(conn, ended, details):
    """
    Workers write them: whatever they say, the ticks of others are found.
    """
    ended(1, details)
    ended(1, tick("mail"))
    assert ticks(conn) == [("default", ["mail"], True, timedelta(minutes=2))]


def stays(*queues, **details):
    return tick(*queues, until_idle=False, **details)


@pytest.mark.parametrize("last", [5, None])
def test_a_run_before_a_worker_that_stayed_says_nothing_of_the_next_one(conn, ended, last):
    """
    Two runs by hand, ten hours apart, do not excuse that the worker of their queue is gone; nor
    that of other queues, for what any worker does.
    """
    ended(600, tick("mail", "other"))
    ended(60, tick("mail", "other"))
    if last is None:
        conn.execute(
            "insert into forebay.lease (lease_id, worker, lease_seconds, suspect_seconds,"
            " opened_at, details) values (-1, 'w', 30, 5, now(), %s)",
            [Jsonb(stays("mail"))],
        )
    else:
        ended(last, stays("mail"))
    found = conn.execute("select queues, schedules, alone from forebay.ticks()").fetchall()
    assert found == [(["other"], False, False)]
    if last is not None:
        ended(4, tick("mail"))
        ended(3, tick("mail"))
        assert ("default", ["mail"], True, timedelta(minutes=2)) in ticks(conn)


def test_a_worker_of_another_group_or_queue_leaves_a_run_its_queues(conn, ended):
    """
    Schedules stay its own, if that worker decides none.
    """
    ended(60, tick("mail"))
    ended(5, stays("mail", group="index", schedules=False))
    ended(5, stays("pages", schedules=False))
    found = conn.execute("select queues, schedules, alone from forebay.ticks()").fetchall()
    assert found == [(["mail"], True, False)]

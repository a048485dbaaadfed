"""Counters are exact: stats() is the sum over job(), and over a full count, whatever happened
and whatever was folded.
"""

import contextlib
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    shift_clock,
    small_segments,
    sqlstate,
    trim,
)
from tests.support.job_life import STATES, Life, by_job, by_state
from tests.support.mutant import break_function, violation
from tests.support.plans import pages
from tests.support.waiting import wait_for

_PLACE = ("queue", "priority", "group_name", "kind", "tag")

#: What a session does beside others.
_ACTS = (
    *("enqueue", "enqueue", "schedule", "claim", "claim", "settle", "settle"),
    *("fold", "fold", "promote", "count", "empty"),
)


def by_stats(conn) -> Counter:
    """Return the waiting and running jobs that stats() shows, by queue, priority, group, kind,
    tag and state.
    """
    states = ", ".join(STATES).replace("claimed", "claimed - running")
    return by_state(conn, f"select {', '.join(_PLACE)}, {states} from forebay.stats()")


def agree(conn, jobs) -> None:
    """Compare stats() with the states of all jobs and with a full count, in one snapshot."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        assert by_stats(conn) == by_job(conn, jobs, _PLACE)
        equal, _, differences = conn.execute("select * from forebay.audit_stats()").fetchone()
        assert equal, json.dumps(differences, indent=1)


class Watched(Life):
    """The same with kinds and tags, folds at any moment, and segments that are emptied."""

    def options(self, **more):
        return super().options(
            kind=self.draw.choice(["work", "mail"]), tag=self.draw.choice([None, "x"]), **more
        )

    def do_fold(self):
        one(self.conn, "select forebay.fold_v1(%s)", self.draw.choice([1, 2, 2000]))

    do_fold_again = do_fold


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(2, 12))]
)
def test_stats_are_the_sum_over_the_states_of_all_jobs(database, conn, seed, keyed):
    """After every random act, for two groups, kinds, tags, priorities and keys: stats() agrees
    with job() and with a full count.
    """
    small_segments(conn)
    life = Watched(database, conn, seed, keyed=keyed)
    life.go(120, agree)


class Session:
    """A session that does random acts until it is terminated, the server dies, or it is told to
    stop.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        self.dsn = dsn
        self.draw = random.Random(seed)
        self.pid: int | None = None
        self.acts = 0
        self.is_over = False

    def run(self) -> None:
        with contextlib.suppress(psycopg.OperationalError), connect(self.dsn) as conn:
            conn.execute("set lock_timeout = '5s'")
            reader = Reader(self.dsn, conn=conn)
            self.pid = conn.info.backend_pid
            while not self.is_over:
                self.act(conn, reader)
                self.acts += 1

    def act(self, conn, reader) -> None:
        act = self.draw.choice(_ACTS)
        if act == "enqueue":
            jobs = [{"kind": self.draw.choice("ab"), "tag": "x"} for _ in range(20)]
            enqueue_many(conn, jobs)
        elif act == "schedule":
            enqueue(conn, kind="b", delay=self.draw.choice(["10 ms", "1 h"]))
        elif act == "claim":
            reader.claim_ready(self.draw.choice([7, 40]))
        elif act == "settle" and reader.open_claims:
            self.settle(reader, reader.open_claims.pop())
        elif act == "promote":
            one(conn, "select forebay.promote_v1()")
        elif act == "count":
            one(conn, "select forebay.renew_counters_v1(0)")
        elif act == "empty":
            one(conn, "select forebay.extend_v1()")
            one(conn, "select forebay.seal_v1()")
            conn.execute("select forebay.retain_v1()")
            trim(conn, self.draw.choice(["deferred", "waiting", "counters"]))
        else:
            one(conn, "select forebay.fold_v1(%s)", self.draw.choice([1, 2, 10_000]))

    def settle(self, reader, claim_no) -> None:
        if self.draw.random() < 0.7:
            reader.settle(claim_no)
            return
        outcome = self.draw.choice(["retried", "released", "dead"])
        more = {"retried": {"after": 0}, "released": {}, "dead": {"reason": "permanent"}}[outcome]
        reader.settle(claim_no, [], ended=[{"offset": 1, "outcome": outcome, **more}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("points", "of_server"),
    [(6, 3), pytest.param(200, 2, marks=[pytest.mark.slow, pytest.mark.nightly])],
)
def test_a_crash_leaves_the_counters_exact(own_database, own_server, seed, points, of_server):
    """
    Sessions enqueue, claim, settle, promote, fold and empty segments side by side. At each point
    the server, or one of the sessions, is killed wherever it is; a crash takes back claims that
    were committed asynchronously, too. The counters agree with a full count.
    """
    draw = random.Random(seed)
    with connect(own_database) as conn:
        small_segments(conn)
        one(conn, "select forebay.configure('retention_bytes', 0)")
    counted = 0
    for point in range(points):
        sessions = [Session(own_database, draw.randrange(2**32)) for _ in range(3)]
        after = draw.randint(3, 40)
        with ThreadPoolExecutor(len(sessions)) as pool:
            ran = [pool.submit(session.run) for session in sessions]
            try:
                wait_for(
                    lambda: (
                        sum(session.acts for session in sessions) >= after
                        or any(each.done() for each in ran)
                    )
                )
                if point % of_server == 0:
                    own_server.kill()
                else:
                    with connect(own_database) as conn:
                        one(conn, "select pg_terminate_backend(%s)", draw.choice(sessions).pid)
                        counted = exact(conn)
            finally:
                for session in sessions:
                    session.is_over = True
            for each in ran:
                each.result()
        own_server.start()
        with connect(own_database) as conn:
            exact(conn)
            one(conn, "select forebay.fold_v1()")
            counted = exact(conn)
    print(f"--seed {seed}: {points} points, {counted} counted")


def exact(conn) -> int:
    """Return how much a full count, with which the counters agree, has counted."""
    equal, counted, differences = conn.execute("select * from forebay.audit_stats()").fetchone()
    assert equal, json.dumps(differences, indent=1)
    return counted


@pytest.mark.slow
def test_the_rows_of_emptied_segments_stay_counted(conn, database):
    """The totals of a segment are kept when it is emptied, and the audit adds them."""
    small_segments(conn, rows=100)
    with Reader(database) as reader:
        enqueue_many(conn, [{"kind": "work", "tag": "x"} for _ in range(350)])
        reader.claim_all()
        for claim_no in list(reader.open_claims):
            reader.settle(claim_no)
        enqueue(conn)
        one(conn, "select forebay.seal_v1()")
        one(conn, "select forebay.configure('retention_bytes', 0)")
        emptied = 0
        while conn.execute("select emptied from forebay.retain_v1()").fetchone()[0] is not None:
            emptied += 1
        assert emptied >= 2
        trim(conn)
        assert one(conn, "select sum(done) from forebay.stats()") == 350
        assert conn.execute("select equal, differences from forebay.audit_stats()").fetchone() == (
            True,
            None,
        )


def test_a_read_visits_no_job_that_just_waits_or_has_ended(conn, database):
    """The pages of a read do not depend on the number of jobs."""
    with Reader(database) as reader:

        def pages_of_a_read():
            one(conn, "select forebay.fold_v1()")
            one(conn, "select forebay.fold_v1()")
            conn.execute("select count(*) from forebay.stats()")
            return pages(conn, "select count(*) from forebay.stats()", [])

        enqueue_many(conn, [{"kind": "work"} for _ in range(100)])
        reader.claim_ready(50)
        before = pages_of_a_read()
        for _ in range(5):
            enqueue_many(conn, [{"kind": "work"} for _ in range(2000)])
            reader.claim_ready(1000)
        assert pages_of_a_read() <= before + 100


def test_the_series_adds_up_to_the_counters(conn, database):
    """The increments of all seconds are the present totals."""
    with Reader(database) as reader:
        for step in range(3):
            shift_clock(conn, step * 61)
            enqueue_many(conn, [{"kind": "work"} for _ in range(10)])
            reader.claim_ready(4)
            one(conn, "select forebay.fold_v1()")
        for step in ("second", "minute"):
            assert one(conn, "select sum(handed) from forebay.stats_series(%s)", step) == 12
        assert sqlstate(conn, "select * from forebay.stats_series('day')") == "JQ001"


@pytest.mark.parametrize(
    ("function", "guard", "mutant"),
    [
        (
            "_counter_read",
            "i.no > l.no and i.no <= l.last_no",
            "i.no >= l.no and i.no <= l.last_no",
        ),
        ("_counter_read", "and i.flush_no <> all (n.flushes) offset 0", "offset 0"),
        ("_counter_changed", "and pg_visible_in_snapshot(u.row_xid, b.snap)", ""),
    ],
)
def test_each_guard_of_the_counters_is_needed(database, conn, function, guard, mutant):
    """Without it a row is counted twice, or not at all."""
    break_function(database, function, (guard, mutant))
    with violation(), Reader(database) as reader:
        jobs = enqueue_many(conn, [{"kind": "work"} for _ in range(9)])
        first = reader.claim_ready(4)
        reader.settle(first.claim_no, [1, 2])
        one(conn, "select forebay.fold_v1()")
        enqueue(conn, delay="1 s")
        shift_clock(conn, 5)
        one(conn, "select forebay.promote_v1()")
        reader.settle(first.claim_no, [3])
        reader.claim_ready(3)
        one(conn, "select forebay.fold_v1()")
        one(conn, "select forebay.fold_v1()")
        assert jobs
        equal, _, differences = conn.execute("select * from forebay.audit_stats()").fetchone()
        assert equal, differences

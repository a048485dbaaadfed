"""A cancellation and a new row of its job whose transactions do not see each other: the job is
cancelled, and counts so in every snapshot.
"""

import itertools
import json
from contextlib import ExitStack

import psycopg
import pytest

from tests.sql.test_stats import agree as stats_agree
from tests.support.engine import (
    Reader,
    enqueue,
    enqueue_many,
    one,
    shift_clock,
    trim,
)
from tests.support.job_life import STATES, by_job, by_state
from tests.support.mutant import break_function, violation
from tests.support.plans import pages

_PLACE = ("queue", "priority", "group_name")


def agree(conn, jobs) -> None:
    """Compare depth(), stats() and a full count with the states of all jobs."""
    stats_agree(conn, jobs)
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        found = by_state(conn, f"select {', '.join((*_PLACE, *STATES))} from forebay.depth()")
        assert found == by_job(conn, jobs, _PLACE)


def change(act, options=None, **where):
    """Return what changes jobs by a filter."""

    def run(conn, _):
        query = "select count(*) from forebay.change_jobs(%s, %s, %s)"
        one(conn, query, act, json.dumps({"queue": "default", **where}), json.dumps(options or {}))

    return run


def ends(outcome, **more):
    """Return what settles the only job of the reader's batch."""

    def run(conn, reader):
        assert (
            reader.settle(
                reader.claim_no, [], ended=[{"offset": 1, "outcome": outcome, **more}], conn=conn
            )
            == "settled"
        )

    return run


#: What gives a claimed job a new row.
OF_CLAIMED = {
    "release": ends("released"),
    "snooze": ends("snoozed", after=0),
    "snooze until later": ends("snoozed", after=60),
    "retry": ends("retried", after=0),
    "retry later": ends("retried", after=60),
    "unknown kind": ends("unknown", after=60),
    "lost": ends("lost"),
    "revoke": lambda conn, reader: reader.revoked_by(conn),
    "close the lease": lambda conn, reader: one(
        conn, "select forebay.close_lease_v1(%s)", reader.lease_id
    ),
}

#: The same for a job that waits.
OF_WAITING = {
    "promote": ("scheduled", lambda conn, _: one(conn, "select forebay.promote_v1()")),
    "retry at once": ("scheduled", change("retry", state="scheduled")),
    "reschedule": ("scheduled", change("reschedule", {"run_at": "2099-01-01T00:00:00Z"})),
    "reprioritise": ("ready", change("reprioritise", {"priority": 5})),
    "expire": ("ready", lambda conn, _: conn.execute("select expired from forebay.sweep_v1()")),
    "postpone": ("ready", change("reschedule", {"run_at": "2099-01-01T00:00:00Z"})),
}

#: What ends a job before its next claim.
ENDING = {
    "cancel": lambda conn, job: one(conn, "select forebay.cancel(%s)", job),
    "cancel for the group": lambda conn, job: one(
        conn, "select forebay.cancel(%s, 'default')", job
    ),
    "cancel by id": lambda conn, job: one(
        conn,
        "select count(*) from forebay.change_jobs('cancel', %s)",
        json.dumps({"ids": [job]}),
    ),
    "truncate": change("truncate"),
    "purge": change("purge"),
    "replace": lambda conn, job: enqueue(conn, unique_as='{"replace": "key"}'),
    "replace many": lambda conn, job: enqueue_many(
        conn, [{"kind": "work", "unique_as": {"replace": "key"}}] * 2
    ),
}


class Crossings:
    """Pairs of acts on one database, whose clock only goes on."""

    def __init__(self, database, conn) -> None:
        self.database = database
        self.conn = conn
        self.clock = 0

    def wait(self, seconds: int) -> None:
        self.clock += seconds
        shift_clock(self.conn, self.clock)

    def fold(self) -> None:
        one(self.conn, "select forebay.fold_v1()")

    def agree(self) -> None:
        agree(self.conn, everything(self.conn))

    def cross(self, how, ending, first="row", last="row", isolation=None, due=False):
        """Let both acts happen in transactions that do not see each other, and compare after each
        commit, after a count, and after the claim that passes the row.

        Args:
            first: whose act is first, "row" or "end".
            last: whose commit is last.
            isolation: of the transaction that writes the row; it writes it when the other one is
                over, and its snapshot is older.
            due: promote what the acts left in ``deferred`` before any fold has seen it.
        """
        conn = self.conn
        with ExitStack() as stack:
            reader = stack.enter_context(Reader(self.database))
            rows, end = (stack.enter_context(psycopg.connect(self.database)) for _ in range(2))
            rows.isolation_level = isolation
            for each in (rows, end):
                each.execute("set lock_timeout = '2s'")
                each.commit()
            waits, act = OF_WAITING.get(how) or ("claimed", OF_CLAIMED.get(how))
            delay = {"delay": "10 s"} if waits == "scheduled" else {}
            if how == "expire":
                delay = {"expires_at": one(conn, "select forebay._now() + interval '10 s'")}
            unique = {"unique_as": '{"replace": "key"}'} if "replace" in ending else {}
            job = enqueue(conn, **delay, **unique)
            if waits == "claimed":
                assert reader.claim(1).job_ids == [job]
            if how in ("promote", "expire"):
                self.wait(20)
            self.fold()
            one(conn, "select forebay.renew_counters_v1(0)")
            if isolation is not None:
                rows.execute("select 1")  # Its snapshot.
            steps = [lambda: act(rows, reader), lambda: ENDING[ending](end, job)]
            if isolation is not None:
                ENDING[ending](end, job)
                end.commit()
                self.fold()
                self.fold()
                act(rows, reader)
                rows.commit()
            else:
                for step in steps if first == "row" else reversed(steps):
                    step()
                for each in (rows, end):  # A settlement limits it to five seconds.
                    each.execute("set local idle_in_transaction_session_timeout = 0")
                early, late = (end, rows) if last == "row" else (rows, end)
                early.commit()
                self.agree()
                for _ in range(3):
                    self.fold()
                self.agree()
                late.commit()
            if due:
                self.wait(100)
                one(conn, "select forebay.promote_v1()")
            self.agree()
            one(conn, "select forebay.renew_counters_v1(0)")
            self.fold()
            self.agree()
            self.fold()
            self.fold()
            trim(conn, "waiting")
            self.agree()
            assert one(conn, "select count(*) from forebay.counter_crossing") == 0
            self.wait(100)
            one(conn, "select forebay.promote_v1()")
            self.agree()
            again = stack.enter_context(Reader(self.database))
            for batch in again.claim_all():
                again.finish(batch)
            self.agree()


def everything(conn) -> list[int]:
    """Return the ids of all jobs."""
    query = (
        "select coalesce(job_id, seq) from forebay.log union select job_id from forebay.deferred"
    )
    return [job for (job,) in conn.execute(query)]


#: Whose act is first, and whose commit is last.
ORDERS = list(itertools.product(("row", "end"), repeat=2))


@pytest.mark.parametrize("how", ["release", "promote"])
def test_a_job_that_is_cancelled_while_it_gets_a_new_row_does_not_count_as_ready(
    database, conn, how
):
    """In each order of the acts and of the commits, before any fold and after it."""
    crossings = Crossings(database, conn)
    for first, last in ORDERS:
        crossings.cross(how, "cancel", first, last)


@pytest.mark.slow
@pytest.mark.parametrize("how", [*OF_CLAIMED, *OF_WAITING])
def test_no_pair_of_an_end_and_a_new_row_is_miscounted(database, conn, how):
    """Whatever gives the job a row, and whatever ends it."""
    crossings = Crossings(database, conn)
    wrong = []
    for ending, (first, last) in itertools.product(ENDING, ORDERS):
        try:
            crossings.cross(how, ending, first, last)
        except AssertionError as error:
            wrong.append((ending, first, last, str(error).splitlines()[0]))
            one(conn, "select count(*) from forebay.counter_waiting")
    assert not wrong, "\n".join(map(str, wrong))


def test_a_job_that_a_transaction_with_an_old_snapshot_releases_is_cancelled(database, conn):
    """The cancellation is committed and folded before that transaction has an id."""
    for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
        Crossings(database, conn).cross("release", "cancel", isolation=level)


def test_a_job_that_becomes_due_before_a_fold_is_cancelled(database, conn):
    """What promotes its row sees the cancellation, which nothing has noted for that row."""
    Crossings(database, conn).cross("retry later", "cancel", "row", "row", due=True)


@pytest.mark.parametrize(
    ("function", "guard", "mutant", "how", "options"),
    [
        ("_crossing_ranges", "n.seen, v_now", "v_now, v_now", "release", {"last": "end"}),
        ("_crossing_ranges", "unnest(v_last.queues)", "unnest('{}'::text[])", "release", {}),
        (
            "_note_crossed",
            "pg_snapshot_xmin(v_found.snap) >= v_last.until",
            "v_last.until is not null",
            "release",
            {},
        ),
        ("_crossed_deferred", "cardinality(p_ranges) = 0", "true", "retry later", {}),
        ("_promote", "or forebay._has_crossings()", "", "retry later", {"due": True}),
        (
            "_record_old_snapshot",
            "<> 'read committed'",
            "= ''",
            "release",
            {"isolation": psycopg.IsolationLevel.REPEATABLE_READ},
        ),
    ],
)
def test_each_guard_of_the_crossings_is_needed(
    database, conn, function, guard, mutant, how, options
):
    """Without it a cancelled job counts as ready, or as one that retries."""
    break_function(database, function, (guard, mutant))
    with violation():
        Crossings(database, conn).cross(how, "cancel", **options)


def test_a_comparison_is_made_once(database, conn):
    """A transaction that stays open does not make later reads visit what came since."""
    with Reader(database) as reader, psycopg.connect(database) as late:
        one(late, "select pg_current_xact_id()::text")
        query = "select * from forebay._crossed_rows(forebay._crossing_ranges(null))"
        read = []
        for _ in range(3):
            one(conn, "select forebay.cancel(%s)", enqueue(conn))
            enqueue_many(conn, [{"kind": "work"}] * 500)
            ended = [{"offset": n, "outcome": "released"} for n in range(1, 501)]
            reader.settle(reader.claim(500).claim_no, [], ended=ended)
            one(conn, "select forebay.fold_v1()")
            conn.execute(query)  # The plan.
            read.append(pages(conn, query, []))
        assert max(read) < min(read) + 20, read

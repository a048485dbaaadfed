"""Named races, each in every order of its steps.

``tests/support/interleave.py`` runs them; a failure names the order.
"""

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    claimed,
    connect,
    enqueue,
    lane_of,
    one,
    small_segments,
    sqlstate,
    state,
)
from tests.support.interleave import Outcome, Race, Step
from tests.support.mutant import break_function, violation

Action = Callable[[psycopg.Connection[Any], SimpleNamespace], Any]


def in_block(action: Action, level: str = "read committed") -> Action:
    """Open a transaction and act in it, in one step."""

    def act(conn: psycopg.Connection[Any], context: SimpleNamespace) -> Any:
        conn.execute(f"begin isolation level {level}")
        return action(conn, context)

    return act


def run(query: str) -> Action:
    """Run a statement."""
    return lambda conn, _: conn.execute(query)


BEGIN = ("begin", run("begin"))
COMMIT = ("commit", run("commit"))
ROLLBACK = ("rollback", run("rollback"))


class Stage:
    """A database in which each order of a race gets a queue of its own."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.conn = connect(dsn)
        self.reader_conns = [connect(dsn), connect(dsn)]
        self.number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for conn in (*self.reader_conns, self.conn):
            conn.close()

    def new_queue(self) -> SimpleNamespace:
        """Return the state of a new order: its queue, a reader of it, its public lane."""
        self.number += 1
        queue = f"race_{self.number}"
        reader, other = (Reader(self.dsn, queue, conn=conn) for conn in self.reader_conns)
        return SimpleNamespace(
            queue=queue,
            reader=reader,
            other=other,
            lane=lane_of(queue, self.conn),
        )

    def remaining(self, context: SimpleNamespace) -> list[int]:
        """Return the jobs that can still be claimed, claimed here."""
        return [i for b in context.other.claim_all() for i in b.job_ids]

    def race(
        self,
        sessions: dict[str, Sequence[Step]],
        setup: Callable[[], SimpleNamespace],
        check: Callable[[SimpleNamespace, Outcome], None],
    ) -> list[Outcome]:
        """Run every order of a race."""
        with Race(self.dsn, setup=setup, sessions=sessions, check=check) as race:
            return race.run_all()


@pytest.fixture
def stage(database):
    with Stage(database) as stage:
        yield stage


def enqueue_here(conn: psycopg.Connection[Any], context: SimpleNamespace) -> int:
    job_id = enqueue(conn, queue=context.queue)
    context.jobs.append(job_id)
    return job_id


def claim_on(conn: psycopg.Connection[Any], context: SimpleNamespace, limit: int = 10) -> list[int]:
    """Claim for the race's reader on the session's own connection; return the jobs."""
    context.reader.claim_no += 1
    number = context.reader.claim_no
    text = one(
        conn,
        "select forebay.claim_v1(%s, %s, %s, %s, %s, %s)",
        *[context.reader.lease_id, number, 1, context.reader.group_id, context.lane, limit],
    )
    jobs = [job["job_id"] for job in claimed(text)]
    context.claimed += jobs
    return jobs


def revoke(conn: psycopg.Connection[Any], context: SimpleNamespace) -> int | None:
    return context.reader.revoked_by(conn)


# -- settlements and revocations -----------------------------------------------------------------


def late_settle_and_revoke(stage: Stage, level: str) -> None:
    def setup() -> SimpleNamespace:
        context = stage.new_queue()
        context.job = enqueue(stage.conn, queue=context.queue)
        context.batch = context.reader.claim()
        return context

    def settle(conn, context):
        return context.reader.settle(context.batch.claim_no, [1], flush_no=-1, conn=conn)

    def check(context, outcome):
        settled = outcome.returned.get("settler.settle") == "settled"
        sent_back = outcome.returned.get("revoker.revoke")
        assert settled + (sent_back or 0) == 1, "settled and sent back, or neither"
        assert state(stage.conn, context.job) == ("done" if settled else "ready")
        assert stage.remaining(context) == ([] if settled else [context.job])
        if not settled:
            assert outcome.sqlstate("settler.settle") in ("JQ010", "40001")

    begin = ("begin", run(f"begin isolation level {level}; select 1"))
    stage.race(
        {
            "settler": [begin, ("settle", settle), COMMIT],
            "revoker": [BEGIN, ("revoke", revoke), COMMIT],
        },
        setup,
        check,
    )


@pytest.mark.slow
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_late_settle_and_revoke(stage, level):
    """Of a settlement and the revocation of its lease exactly one counts, in whatever order."""
    late_settle_and_revoke(stage, level)


@pytest.mark.parametrize(
    ("function", "guard", "without"),
    [
        ("settle_v1", "l.closed_at is null for key share", "l.closed_at is null"),
        ("_revoke", "l.closed_at is null for update;", "l.closed_at is null;"),
    ],
)
def test_late_settle_and_revoke_breaks_without(stage, function, guard, without):
    """Without either side's lock some order settles the job and sends it back as well."""
    break_function(stage.dsn, function, (guard, without))
    with violation():
        late_settle_and_revoke(stage, "read committed")


def test_claim_and_revoke(stage):
    """What is claimed while the lease is revoked is in a live lease or can be claimed, once."""

    def setup():
        context = stage.new_queue()
        context.claimed = []
        context.job = enqueue(stage.conn, queue=context.queue)
        return context

    def check(context, outcome):
        remaining = stage.remaining(context)
        assert remaining == [context.job]
        assert state(stage.conn, context.job) == "claimed"

    stage.race(
        {
            "claimer": [("claim", in_block(claim_on)), COMMIT],
            "revoker": [BEGIN, ("revoke", revoke), COMMIT],
        },
        setup,
        check,
    )


def two_flushes_of_one_name(stage: Stage, name: int, outcomes: tuple[str, str]) -> None:
    def setup():
        context = stage.new_queue()
        context.job = enqueue(stage.conn, queue=context.queue)
        context.batch = context.reader.claim()
        return context

    def settle(outcome):
        def act(conn, context):
            if outcome == "done":
                return context.reader.settle(context.batch.claim_no, [1], flush_no=name, conn=conn)
            ended = [{"offset": 1, "outcome": outcome}]
            return context.reader.settle(
                context.batch.claim_no, ended=ended, flush_no=name, conn=conn
            )

        return act

    def check(context, outcome):
        answers = [outcome.returned.get(f"{who}.settle") for who in ("handler", "loop")]
        assert sorted(answers) == ["repeated", "settled"]
        winner = outcomes[answers.index("settled")]
        assert state(stage.conn, context.job) == ("done" if winner == "done" else "ready")
        assert len(stage.remaining(context)) == (0 if winner == "done" else 1)

    stage.race(
        {
            "handler": [BEGIN, ("settle", settle(outcomes[0])), COMMIT],
            "loop": [BEGIN, ("settle", settle(outcomes[1])), COMMIT],
        },
        setup,
        check,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        pytest.param(7, ("retried", "retried"), id="a flush repeated while the first is under way"),
        pytest.param(-1, ("done", "retried"), id="a handler's transaction and the main loop"),
    ],
)
def test_two_flushes_of_one_name(stage, name, outcomes):
    """One of them settles; the other waits for it and is told that the flush was repeated."""
    two_flushes_of_one_name(stage, name, outcomes)


def test_two_flushes_of_one_name_break_without_it(stage):
    """Without the unique name both settle: the job is retried twice over."""
    stage.conn.execute("alter table forebay.settlement drop constraint settlement_pkey")
    with violation():
        two_flushes_of_one_name(stage, 7, ("retried", "retried"))


def test_cancel_and_claim_and_settle(stage):
    """
    A cancellation that commits before a job ends keeps it from ever being handed out again; one
    that comes later changes nothing. In every order the job has one end.
    """

    def setup():
        context = stage.new_queue()
        context.claimed = []
        context.job = enqueue(stage.conn, queue=context.queue)
        return context

    def cancel(conn, context):
        return one(conn, "select forebay.cancel(%s)", context.job)

    def settle(conn, context):
        if context.claimed:
            context.reader.settle(1, ended=[{"offset": 1, "outcome": "retried"}], conn=conn)

    def check(context, outcome):
        assert outcome.returned["canceller.cancel"] in {"cancelled", "requested"}
        assert outcome.blocked == set()
        assert stage.remaining(context) == []
        assert state(stage.conn, context.job) == "cancelled"

    stage.race(
        {
            "canceller": [BEGIN, ("cancel", cancel), COMMIT],
            "worker": [("claim", claim_on), ("settle", settle)],
        },
        setup,
        check,
    )


# -- writers and readers -------------------------------------------------------------------------


def claim_and_late_commit(stage: Stage) -> None:
    def setup():
        context = stage.new_queue()
        context.jobs, context.claimed = [], []
        return context

    def check(context, outcome):
        assert outcome.blocked == set()
        assert sorted(context.claimed + stage.remaining(context)) == sorted(context.jobs)

    stage.race(
        {
            "slow": [("enqueue", in_block(enqueue_here)), COMMIT],
            "fast": [("enqueue", enqueue_here)],
            "claimer": [("claim", claim_on), ("again", claim_on)],
        },
        setup,
        check,
    )


@pytest.mark.slow
def test_claim_and_late_commit(stage):
    """Whatever commits before, between and after two claims is handed out once."""
    claim_and_late_commit(stage)


def test_claim_and_late_commit_breaks_without_the_late_part(stage):
    """Some order loses the slow writer's job when windows have no late part."""
    break_function(
        stage.dsn,
        "_xid_ranges",
        ("if pg_snapshot_xmin(p_from) <> pg_snapshot_xmax(p_from) then", "if false then"),
    )
    with violation():
        claim_and_late_commit(stage)


@pytest.mark.slow
def test_two_claims_and_two_late_commits(stage):
    """Two claimers that hold their turn while writers commit around them share the jobs."""

    def setup():
        context = stage.new_queue()
        context.jobs, context.claimed = [], []
        for _ in range(3):
            enqueue_here(stage.conn, context)
        return context

    def check(context, outcome):
        assert sorted(context.claimed + stage.remaining(context)) == sorted(context.jobs)

    def claim_two(conn, context):
        return claim_on(conn, context, limit=2)

    stage.race(
        {
            "slow": [("enqueue", in_block(enqueue_here)), COMMIT],
            "one": [("claim", in_block(claim_two)), COMMIT],
            "two": [("claim", in_block(claim_two)), COMMIT],
        },
        setup,
        check,
    )


def test_first_users_of_a_lane(stage):
    """Producers that are the first of a lane at once wait for nobody, and neither do claims."""

    def setup():
        context = stage.new_queue()
        context.jobs, context.claimed = [], []
        return context

    def check(context, outcome):
        assert outcome.blocked == set()
        assert outcome.raised == {}
        assert sorted(context.claimed + stage.remaining(context)) == sorted(context.jobs)

    stage.race(
        {
            "one": [("enqueue", in_block(enqueue_here)), COMMIT],
            "two": [("enqueue", in_block(enqueue_here)), COMMIT],
            "claimer": [("claim", claim_on)],
        },
        setup,
        check,
    )


def test_first_users_of_a_lane_break_with_a_unique_registry(stage):
    """With a unique key in the registry of lanes the second producer waits for the first."""
    stage.conn.execute("create unique index on forebay.lane (lane)")
    with violation():
        test_first_users_of_a_lane(stage)


@pytest.mark.slow
def test_promote_and_late_deferred_commit(stage):
    """A deferred job that commits before, between or after promotions is promoted once."""

    def defer(conn, context):
        context.jobs.append(enqueue(conn, queue=context.queue, delay="1 microsecond"))

    def promote(conn, context):
        return one(conn, "select forebay.promote_v1(%s)", 1)

    def setup():
        context = stage.new_queue()
        context.jobs = []
        one(stage.conn, "select forebay.promote_v1()")
        return context

    def check(context, outcome):
        assert outcome.blocked == set()
        while one(stage.conn, "select forebay.promote_v1()"):
            pass
        assert sorted(stage.remaining(context)) == sorted(context.jobs)

    stage.race(
        {
            "slow": [("defer", in_block(defer)), COMMIT],
            "fast": [("defer", defer)],
            "promoter": [("promote", promote), ("again", promote)],
        },
        setup,
        check,
    )


# -- maintenance
# --------------------------------------------------------------------------------------


def sweep_and_claim(stage: Stage) -> None:
    def setup():
        context = stage.new_queue()
        context.claimed = []
        context.job = enqueue(stage.conn, queue=context.queue)
        stage.conn.execute(
            "update forebay.log set expires_at = clock_timestamp() - interval '1 minute'"
            " where seq = %s",
            [context.job],
        )
        return context

    def expire(conn, context):
        return one(
            conn,
            "select sum(forebay._expire_one(row(l.*)::forebay.log, %s, %s, 100, 0, '1:1:'))"
            " from forebay.log l where l.lane = %s",
            context.reader.group_id,
            context.queue,
            context.lane,
        )

    def check(context, outcome):
        letters = one(
            stage.conn, "select count(*) from forebay.dead_letter where job_id = %s", context.job
        )
        assert context.claimed == []
        assert stage.remaining(context) == []
        assert letters == 1, f"{letters} dead letters of one job"
        assert state(stage.conn, context.job) == "expired"

    stage.race(
        {
            "sweeper": [("expire", in_block(expire)), COMMIT],
            "claimer": [("claim", in_block(claim_on)), COMMIT],
        },
        setup,
        check,
    )


def test_sweep_and_claim(stage):
    """An expired job is decided once, by the sweep or by the claim: one dead letter."""
    sweep_and_claim(stage)


def test_sweep_and_claim_breaks_without_the_lanes_lock(stage):
    """A sweep that does not take its turn expires what a claim is just expiring."""
    break_function(
        stage.dsn,
        "_expire_one",
        ("perform forebay._lock_lane(p_group_id, p_row.lane);", ""),
    )
    with violation():
        sweep_and_claim(stage)


def test_sweep_and_cancel(stage):
    """A job that is cancelled while the sweep expires it has one end, and says the same of it."""

    def setup():
        context = stage.new_queue()
        context.job = enqueue(stage.conn, queue=context.queue)
        stage.conn.execute(
            "update forebay.log set expires_at = clock_timestamp() - interval '1 minute'"
            " where seq = %s",
            [context.job],
        )
        return context

    def cancel(conn, context):
        return one(conn, "select forebay.cancel(%s)", context.job)

    def sweep(conn, context):
        return one(conn, "select expired from forebay.sweep_v1()")

    def check(context, outcome):
        assert stage.remaining(context) == []
        letters = one(
            stage.conn, "select count(*) from forebay.dead_letter where job_id = %s", context.job
        )
        assert state(stage.conn, context.job) == ("expired" if letters else "cancelled")

    stage.race(
        {
            "canceller": [("cancel", in_block(cancel)), COMMIT],
            "sweeper": [("sweep", sweep)],
        },
        setup,
        check,
    )


def test_redrive_twice(stage):
    """A dead letter is redriven once, whoever asks and in whatever order."""

    def setup():
        context = stage.new_queue()
        enqueue(stage.conn, queue=context.queue)
        batch = context.reader.claim()
        context.reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "dead"}])
        context.dead = one(stage.conn, "select max(dead_id) from forebay.dead_letter")
        return context

    def redrive(conn, context):
        return one(conn, "select forebay.redrive(%s)", context.dead)

    def check(context, outcome):
        assert len(outcome.raised) == 1
        (error,) = outcome.raised.values()
        assert error.sqlstate == "JQ016"
        assert len(stage.remaining(context)) == 1

    def end(conn, context):
        conn.execute("commit")

    stage.race(
        {
            "one": [("redrive", in_block(redrive)), ("end", end)],
            "two": [("redrive", in_block(redrive)), ("end", end)],
        },
        setup,
        check,
    )


def next_segment(conn: psycopg.Connection[Any]) -> int:
    """Let the log go on at the beginning of a new segment; return it."""
    one(conn, "select forebay.extend_v1()")
    segment, lo = conn.execute(
        "select segment_id, lo from forebay.segment"
        " where lo > (select last_value from forebay.log_seq) order by lo limit 1"
    ).fetchone()
    one(conn, "select setval('forebay.log_seq', %s, false)", lo)
    return segment


def fill_segment(conn: psycopg.Connection[Any]) -> None:
    """Use up the numbers of the current segment and the first one of the next."""
    conn.execute(
        "select setval('forebay.log_seq', (select hi from forebay.segment"
        " where lo <= s.last_value and hi > s.last_value)) from forebay.log_seq s"
    )


def seal_and_slow_writer(stage: Stage) -> None:
    small_segments(stage.conn, rows=100, reserve=2000)

    def setup():
        context = stage.new_queue()
        context.jobs, context.claimed = [], []
        next_segment(stage.conn)
        return context

    def fill(conn, context):
        fill_segment(conn)
        enqueue_here(conn, context)

    def seal(conn, context):
        return one(conn, "select forebay.seal_v1()")

    def check(context, outcome):
        assert outcome.blocked == set()
        assert sorted(context.claimed + stage.remaining(context)) == sorted(context.jobs)

    stage.race(
        {
            "slow": [("enqueue", in_block(enqueue_here)), COMMIT],
            "filler": [("fill", fill)],
            "sealer": [("seal", seal)],
            "claimer": [("claim", claim_on)],
        },
        setup,
        check,
    )


@pytest.mark.slow
def test_seal_and_slow_writer(stage):
    """Whether a writer commits before or after its segment is sealed, its job is handed out."""
    seal_and_slow_writer(stage)


@pytest.mark.slow
def test_seal_and_slow_writer_breaks_when_sealed_with_a_snapshots_xmin(stage):
    """Some order loses the slow writer's job when the seal is the oldest running xid."""
    break_function(
        stage.dsn,
        "seal_v1",
        (
            "select s.segment_id, pg_current_xact_id()",
            "select s.segment_id, pg_snapshot_xmin(pg_current_snapshot())",
        ),
    )
    with violation():
        seal_and_slow_writer(stage)


@pytest.mark.slow
def test_retain_and_open_batch(stage):
    """A segment is emptied only when no batch has an unsettled job of it; then it is."""
    small_segments(stage.conn, rows=100, reserve=2000)
    stage.conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(stage.conn, "select forebay.configure('retention_days', 0)")

    def setup():
        context = stage.new_queue()
        context.claimed = []
        context.segment = next_segment(stage.conn)
        context.job = enqueue(stage.conn, queue=context.queue)
        fill_segment(stage.conn)
        return context

    def settle(conn, context):
        ended = [{"offset": 1, "outcome": "retried"}]
        return context.reader.settle(1, ended=ended, flush_no=1, conn=conn)

    def maintenance(conn, context):
        conn.execute("set lock_timeout = '1s'")
        one(conn, "select forebay.seal_v1()")
        return sqlstate(conn, "select emptied from forebay.retain_v1()")

    def check(context, outcome):
        assert outcome.returned["worker.settle"] == "settled"
        (batch,) = context.other.claim_all()
        assert batch.job_ids == [context.job]
        context.other.finish(batch)
        for _ in range(30):
            one(stage.conn, "select forebay.seal_v1()")
            if one(stage.conn, "select emptied from forebay.retain_v1()") is None:
                break

    stage.race(
        {
            "worker": [("claim", claim_on), ("settle", in_block(settle)), COMMIT],
            "maintenance": [("first", maintenance), ("second", maintenance)],
        },
        setup,
        check,
    )
    removed = one(
        stage.conn,
        "select count(*) from forebay.segment where removed_at is not null and hi - lo = 100",
    )
    assert removed > 3


@pytest.mark.slow
def test_retain_and_a_writer_that_commits_during_the_look(stage):
    """
    A segment whose last writer commits between retention's look at it and its emptying keeps the
    writer's job.
    """
    small_segments(stage.conn, rows=100, reserve=2000)
    stage.conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(stage.conn, "select forebay.configure('retention_days', 0)")
    # Retention stops after its look for as long as somebody holds this lock.
    break_function(
        stage.dsn,
        "_segment_holders",
        (
            "s.segment_id = any (p_segments);\nend",
            "s.segment_id = any (p_segments);\n    perform pg_advisory_xact_lock(1, 1);\nend",
        ),
    )

    def setup():
        context = stage.new_queue()
        context.jobs = []
        next_segment(stage.conn)
        return context

    def maintenance(conn, context):
        fill_segment(conn)
        one(conn, "select forebay.seal_v1()")
        context.other.claim_all()
        conn.execute("set lock_timeout = '10s'")
        return sqlstate(conn, "select emptied from forebay.retain_v1()")

    def check(context, outcome):
        assert outcome.returned["maintenance.retain"] in (None, "55P03")
        assert stage.remaining(context) == context.jobs

    with Race(
        stage.dsn,
        setup=setup,
        check=check,
        sessions={
            "pause": [("hold", in_block(run("select pg_advisory_xact_lock(1, 1)"))), COMMIT],
            "slow": [("enqueue", in_block(enqueue_here)), COMMIT],
            "maintenance": [("retain", maintenance)],
        },
    ) as race:
        race.run(["pause", "slow", "maintenance", "slow", "pause"])


# -- operators and the others --------------------------------------------------------------------


def change_here(act: str, **options: object) -> Action:
    """Change all jobs of the race's queue; return how many were."""

    def act_on(conn: psycopg.Connection[Any], context: SimpleNamespace) -> int:
        rows = conn.execute(
            "select jobs from forebay.change_jobs(%s, %s, %s, most => 100)",
            [act, json.dumps({"queue": context.queue}), json.dumps(options)],
        ).fetchall()
        return sum(jobs for (jobs,) in rows)

    return act_on


def claim_and_move(stage: Stage) -> None:
    def setup():
        context = stage.new_queue()
        context.claimed = []
        context.jobs = [enqueue(stage.conn, queue=context.queue) for _ in range(3)]
        return context

    def check(context, outcome):
        moved = outcome.returned["operator.move"]
        again = outcome.returned["other.move"]
        assert moved + again + len(context.claimed) in (3, 5, 6)
        remaining = stage.remaining(context)
        assert sorted(context.claimed + remaining) == context.jobs
        for job in context.jobs:
            assert state(stage.conn, job) == "claimed"

    stage.race(
        {
            "operator": [("move", in_block(change_here("reprioritise", priority=5))), COMMIT],
            "other": [("move", in_block(change_here("reprioritise", priority=7))), COMMIT],
            "claimer": [
                ("claim", in_block(lambda conn, context: claim_on(conn, context, 1))),
                COMMIT,
            ],
        },
        setup,
        check,
    )


@pytest.mark.slow
def test_claim_and_move(stage):
    """Of a claim and two operators that move the same ready jobs each job is claimed once, in
    every order.
    """
    claim_and_move(stage)


@pytest.mark.slow
def test_claim_and_move_breaks_without_the_lock_of_the_lane(stage):
    break_function(
        stage.dsn,
        "_move_ready",
        ("perform forebay._lock_lane(v_row.group_id, v_row.lane);", "null;"),
    )
    with violation():
        claim_and_move(stage)


def cancel_with_one_token(stage: Stage) -> None:
    def setup():
        context = stage.new_queue()
        for _ in range(3):
            enqueue(stage.conn, queue=context.queue)
        context.filter = json.dumps({"queue": context.queue})
        context.token = one(
            stage.conn,
            "select distinct token from forebay.plan_change('cancel', %s::jsonb)",
            context.filter,
        )
        return context

    def cancel(conn, context):
        rows = conn.execute(
            "select jobs from forebay.change_jobs('cancel', %s, token => %s)",
            [context.filter, context.token],
        ).fetchall()
        return sum(jobs for (jobs,) in rows)

    def check(context, outcome):
        counted = one(
            stage.conn,
            "select sum(count) from forebay.event where act = 'jobs.cancel' and queue = %s",
            context.queue,
        )
        assert counted == 3

    people = {name: [("cancel", in_block(cancel)), COMMIT] for name in ("ada", "ben")}
    stage.race(people, setup, check)


def test_two_people_cancel_with_one_token(stage):
    """Each job has one answer, and the event log counts it once, in every order."""
    cancel_with_one_token(stage)


def test_two_people_cancel_twice_without_the_lock(stage):
    break_function(
        stage.dsn, "change_jobs",
        ("lock table only forebay.lock_cancellation in share update exclusive mode;", "null;"),
    )  # fmt: skip
    with violation():
        cancel_with_one_token(stage)


def promote_and_move(stage: Stage) -> None:
    def setup():
        context = stage.new_queue()
        context.job = enqueue(stage.conn, queue=context.queue, delay="1 microsecond")
        return context

    def promote(conn, context):
        return one(conn, "select forebay.promote_v1()")

    def check(context, outcome):
        one(stage.conn, "select forebay.promote_v1()")
        assert stage.remaining(context) == [context.job]
        (rows,) = stage.conn.execute(
            "select count(*) from forebay.log where job_id = %s", [context.job]
        ).fetchone()
        assert rows == 1

    stage.race(
        {
            "operator": [("retry", in_block(change_here("retry"))), COMMIT],
            "promoter": [("promote", in_block(promote)), COMMIT],
        },
        setup,
        check,
    )


def test_promote_and_move(stage):
    """A job that is due while an operator starts it now is written to the log once."""
    promote_and_move(stage)


def test_promote_and_move_breaks_without_the_lock(stage):
    break_function(
        stage.dsn, "_move_deferred",
        ("lock table only forebay.lock_promotion in share update exclusive mode;", "null;"),
    )  # fmt: skip
    with violation():
        promote_and_move(stage)

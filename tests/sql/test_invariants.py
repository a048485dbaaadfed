"""One test for each thing that must always hold, and a mutant of each.

A promise is a function that takes a database and asserts. It runs once as it is, and once for each
of its guards with that guard taken out of the SQL: there the promise has to be seen broken.
"""

import threading
from collections.abc import Callable

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    one,
    shift_clock,
    small_segments,
    sqlstate,
    state,
    states,
    trim,
)
from tests.support.mutant import (
    break_function,
    break_shortcut,
    violation,
    without_shortcut,
)
from tests.support.stress import count_independently
from tests.support.waiting import wait_for

Substitution = tuple[str, str]


def in_background(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run something in a thread; return it and where its result or error will be."""
    results: list[object] = []

    def work() -> None:
        try:
            results.append(action())
        except psycopg.Error as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, results


def is_blocked(watcher: psycopg.Connection, pid: int) -> bool:
    return one(watcher, "select cardinality(pg_blocking_pids(%s)) > 0", pid)


def wait_until_blocked_or_done(watcher, reader: Reader, thread: threading.Thread) -> bool:
    """Wait until a reader's call waits for a lock (true) or has come back (false)."""
    pid = reader.conn.info.backend_pid
    wait_for(lambda: not thread.is_alive() or is_blocked(watcher, pid))
    return thread.is_alive()


# -- commit decides --------------------------------------------------------------------------


def every_committed_job_is_handed_out_and_no_other(dsn: str) -> None:
    with (
        connect(dsn) as conn,
        psycopg.connect(dsn) as slow,
        psycopg.connect(dsn) as undone,
        Reader(dsn) as reader,
    ):
        first = enqueue(slow)
        never = enqueue(undone)
        second = enqueue(conn)
        assert reader.claim().job_ids == [second]
        slow.execute("savepoint s")
        dropped = enqueue(slow)
        slow.execute("rollback to savepoint s")
        assert reader.claim().job_ids == []
        slow.commit()
        undone.rollback()
        third = enqueue(conn)
        assert sorted(reader.claim().job_ids) == sorted([first, third])
        assert reader.claim().job_ids == []
        assert state(conn, never) is None
        assert state(conn, dropped) is None


def test_commit_is_the_gate(database):
    """
    A job is handed out when its transaction has committed and not before, whatever was handed out
    meanwhile; a job of a transaction or savepoint that was rolled back never is.
    """
    every_committed_job_is_handed_out_and_no_other(database)


@pytest.mark.parametrize(
    ("function", "substitution"),
    [
        pytest.param(
            "_xid_ranges",
            ("if pg_snapshot_xmin(p_from) <> pg_snapshot_xmax(p_from) then", "if false then"),
            id="window without its late part",
        ),
        pytest.param(
            "_take",
            (
                "from forebay.batch i\n                       where i.group_id = p_group_id",
                (
                    "from (select j.group_id, j.lane, j.no, j.snap_to, j.pos_segment, "
                    "j.pos_xid, j.pos_seq,"
                    " j.high_seq, j.handed_total, j.skipped_total, j.claimed_at,"
                    " format('%1$s:%1$s:', pg_snapshot_xmax(j.snap_from))::pg_snapshot as snap_from"
                    " from forebay.batch j) i where i.group_id = p_group_id"
                ),
            ),
            id="window by a number instead of a snapshot",
        ),
    ],
)
def test_commit_is_the_gate_breaks_without(database, function, substitution):
    """The promise is seen broken where a cursor is a position instead of a snapshot."""
    break_function(database, function, substitution)
    with violation():
        every_committed_job_is_handed_out_and_no_other(database)


# -- nothing lost --------------------------------------------------------------------------------


def slow_writer_of_a_sealed_segment_is_served(dsn: str) -> None:
    """A writer holds rows of a segment while it is sealed and cursors move far ahead."""
    with connect(dsn) as conn, psycopg.connect(dsn) as slow, Reader(dsn) as reader:
        small_segments(conn, rows=100, reserve=1000)
        late = enqueue(slow)
        taken = []
        for _ in range(6):
            for _ in range(60):
                enqueue(conn)
            one(conn, "select forebay.seal_v1()")
            taken += reader.claim(1000).job_ids
        assert len(taken) == 360
        slow.commit()
        assert reader.claim(1000).job_ids == [late]


def test_nothing_is_lost_when_a_segment_is_sealed_under_a_slow_writer(database):
    """A job that becomes visible when its segment is long sealed is handed out all the same."""
    slow_writer_of_a_sealed_segment_is_served(database)


def test_nothing_lost_breaks_when_sealing_with_the_xmin_of_a_snapshot(database):
    """Sealed with the oldest running xid, a segment seems to be used up by its slow writer."""
    break_function(
        database,
        "seal_v1",
        (
            "select s.segment_id, pg_current_xact_id()",
            "select s.segment_id, pg_snapshot_xmin(pg_current_snapshot())",
        ),
    )
    with violation():
        slow_writer_of_a_sealed_segment_is_served(database)


def late_deferred_job_is_promoted(dsn: str) -> None:
    """A deferred job is committed when the promoter has long passed its time."""
    with connect(dsn) as conn, psycopg.connect(dsn) as slow, Reader(dsn) as reader:
        late = enqueue(slow, delay="0.01 seconds")
        soon = enqueue(conn, delay="0.02 seconds")
        far = enqueue(conn, delay="1 hour")
        wait_for(lambda: one(conn, "select forebay.promote_v1()") == 1)
        assert reader.claim().job_ids == [soon]
        slow.commit()
        assert one(conn, "select forebay.promote_v1()") == 1
        assert one(conn, "select forebay.promote_v1()") == 0
        assert [b.job_ids for b in reader.claim_all()] == [[late]]
        assert state(conn, far) == "scheduled"


def test_nothing_is_lost_when_a_deferred_job_commits_after_its_time(database):
    """A deferred job whose transaction commits late is promoted once, and no other twice."""
    late_deferred_job_is_promoted(database)


def test_nothing_lost_breaks_without_the_late_part_of_promotion(database):
    """A promoter that looks only ahead of its mark forgets late committers."""
    break_function(
        database,
        "_promote",
        (
            (
                "where (d.run_at, d.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)\n"
                "    ), written as"
            ),
            "where false ), written as",
        ),
    )
    with violation():
        late_deferred_job_is_promoted(database)


def claim_under_revocation_takes_nothing(dsn: str) -> None:
    """A lease is being revoked while its worker claims."""
    with connect(dsn) as conn, psycopg.connect(dsn) as revoker, Reader(dsn) as reader:
        first, second = enqueue(conn), enqueue(conn)
        batch = reader.claim(1)
        assert batch.job_ids == [first]
        assert reader.revoked_by(revoker) == 1
        thread, results = in_background(lambda: reader.claim(1))
        wait_until_blocked_or_done(conn, reader, thread)
        revoker.commit()
        thread.join(10)
        with Reader(dsn) as other:
            again = [job for b in other.claim_all() for job in b.job_ids]
        assert sorted(again) == [first, second], (again, results)
        assert getattr(results[0], "sqlstate", None) == "JQ010"


def test_nothing_is_lost_when_a_lease_is_revoked_during_its_claim(database):
    """A claim that meets its lease's revocation is refused, and all its jobs go elsewhere."""
    claim_under_revocation_takes_nothing(database)


def test_nothing_lost_breaks_when_claims_do_not_lock_the_lease(database):
    """A claim that only reads the lease puts jobs where no revocation looks any more."""
    without_shortcut(database)
    break_function(database, "_take", ("for key share) held", ") held"))
    with violation():
        claim_under_revocation_takes_nothing(database)


def test_nothing_lost_breaks_when_the_shortcut_does_not_lock_the_lease(database):
    """The same of the claim in one statement."""
    break_shortcut(database, ("for key share) held", ") held"))
    with violation():
        claim_under_revocation_takes_nothing(database)


def sending_back_and_closing_is_one_commit(dsn: str) -> None:
    """Retry, snooze, release, unknown, lost: whatever goes on is settled and written at once."""
    outcomes = ["retried", "snoozed", "released", "unknown", "lost"]
    with connect(dsn) as conn, Reader(dsn) as reader:
        ids = [enqueue(conn) for _ in outcomes]
        batch = reader.claim()
        ended = [{"offset": n, "outcome": o} for n, o in enumerate(outcomes, 1)]
        with conn.transaction(force_rollback=True):
            assert reader.settle(batch.claim_no, ended=ended, conn=conn) == "settled"
        assert [state(conn, i) for i in ids] == ["claimed"] * 5
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        assert [state(conn, i) for i in ids] == ["ready"] * 5
        assert sorted(i for b in reader.claim_all() for i in b.job_ids) == ids


def test_nothing_is_lost_when_a_job_goes_on_in_a_new_row(database):
    """A job that is retried or put back is in exactly one place before and after the commit."""
    sending_back_and_closing_is_one_commit(database)


# -- once per lease ------------------------------------------------------------------------------


def competing_claims_take_turns(dsn: str) -> None:
    """Two claimers of one lane at the same moment."""
    with connect(dsn) as conn, Reader(dsn) as first, Reader(dsn) as second:
        ids = [enqueue(conn) for _ in range(10)]
        with first.conn.transaction():
            mine = first.claim(5)
            thread, results = in_background(lambda: second.claim(10))
            wait_until_blocked_or_done(conn, second, thread)
        thread.join(10)
        (theirs,) = results
        assert not isinstance(theirs, psycopg.Error), theirs
        assert sorted(mine.job_ids + theirs.job_ids) == ids


def test_once_per_lease(database):
    """Claims of one lane take turns: no job is in two live leases of a group."""
    competing_claims_take_turns(database)


@pytest.mark.parametrize("also_without_the_key", [False, True])
def test_once_per_lease_breaks_when_claims_do_not_take_turns(database, also_without_the_key):
    """Without the lane's lock claims collide in the key; without that too, jobs go out twice."""
    for name in ("_take", "_wait_for_lane"):
        break_function(
            database,
            name,
            ("execute 'lock table only forebay.lock_lane_'", "execute 'select '"),
            (" || ' in share update exclusive mode'", ""),
        )
    if also_without_the_key:
        with connect(database) as conn:
            conn.execute("alter table forebay.batch drop constraint batch_pkey")
    with violation():
        competing_claims_take_turns(database)


def a_window_reads_each_segment_once(dsn: str) -> None:
    """A segment is sealed between the two statements of a claim that reads over two seals."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        small_segments(conn, rows=100, reserve=1000)
        for _ in range(150):
            enqueue(conn)
        assert one(conn, "select forebay.seal_v1()") > 0
        lane = lane_of_default(conn)
        last_seal, unsealed = conn.execute(
            "select max(f.xid), array(select s.segment_id from forebay.segment s"
            " where s.segment_id > max(f.segment_id)"
            " and s.lo <= (select last_value from forebay.log_seq) order by 1)"
            " from forebay.seal f"
        ).fetchone()
        for _ in range(60):
            enqueue(conn)
        assert one(conn, "select forebay.seal_v1()") == 1
        rows = conn.execute(
            "select (unnest(rows)).seq from forebay._window(%s, "
            "forebay._xid_ranges('1:1:', pg_current_snapshot()),"
            " 0, '0', 0, 1000, %s::bigint[], %s::text::xid8, 1000000)",
            [lane, unsealed, last_seal],
        ).fetchall()
        assert len(rows) == len(set(rows))
        assert len(set(reader.claim(1000).seqs)) == 210


def lane_of_default(conn) -> int:
    return one(conn, "select forebay._lane_id('default', 100, 0)")


def test_once_per_lease_when_a_segment_is_sealed_during_a_claim(database):
    """A segment that is sealed while a claim chooses its segments is read once, not twice."""
    a_window_reads_each_segment_once(database)


def overlapping_settlements_are_refused(dsn: str) -> None:
    """The same job settled under two names."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        ids = [enqueue(conn) for _ in range(4)]
        batch = reader.claim()
        assert reader.settle(batch.claim_no, [1, 2], flush_no=1) == "settled"
        assert reader.settle(batch.claim_no, [2, 3], flush_no=2) == "refused"
        assert reader.settle(batch.claim_no, flush_no=3) == "refused"
        retry = [{"offset": 1, "outcome": "retried"}]
        assert reader.settle(batch.claim_no, ended=retry, flush_no=4) == "refused"
        assert reader.settle(batch.claim_no, [5], flush_no=5) == "refused"
        assert reader.settle(batch.claim_no, [0], flush_no=6) == "refused"
        assert reader.settle(batch.claim_no, [3, 3], flush_no=7) == "refused"
        assert [state(conn, i) for i in ids] == ["done", "done", "claimed", "claimed"]
        assert reader.settle(batch.claim_no, [3, 4], flush_no=8) == "settled"
        assert reader.claim_all() == []


def test_a_job_is_settled_once_under_whatever_name(database):
    """An offset that was settled, is not in the batch or is named twice refuses the whole flush."""
    overlapping_settlements_are_refused(database)


def test_settling_once_breaks_without_the_comparison_of_offsets(database):
    """Without it a second flush settles a job that was settled before."""
    break_function(database, "settle_v1", ("or s.offsets && v_offsets", ""))
    with violation():
        overlapping_settlements_are_refused(database)


def test_settling_once_breaks_when_a_whole_batch_is_not_compared(database):
    """Without the look at earlier settlements a whole batch is settled beside its parts."""
    break_function(
        database,
        "settle_v1",
        (
            "and not exists (select from forebay.settlement s",
            "and (true or not exists (select from forebay.settlement s",
        ),
        (
            "s.claim_no = settle_v1.claim_no)\n            on conflict",
            "s.claim_no = settle_v1.claim_no))\n            on conflict",
        ),
    )
    with violation():
        overlapping_settlements_are_refused(database)


# -- single holder -------------------------------------------------------------------------------


def late_settlement_changes_nothing(dsn: str) -> None:
    """A worker settles while, and after, its lease is revoked."""
    with connect(dsn) as conn, psycopg.connect(dsn) as revoker, Reader(dsn) as reader:
        job = enqueue(conn)
        batch = reader.claim()
        assert reader.revoked_by(revoker) == 1
        thread, results = in_background(lambda: reader.settle(batch.claim_no))
        wait_until_blocked_or_done(conn, reader, thread)
        revoker.commit()
        thread.join(10)
        assert getattr(results[0], "sqlstate", None) == "JQ010", results
        assert (
            sqlstate(reader.conn, "select forebay.settle_v1(%s, '[]')", reader.lease_id) == "JQ010"
        )
        assert state(conn, job) == "ready"
        with Reader(dsn) as other:
            (again,) = other.claim_all()
            assert again.job_ids == [job]
            other.finish(again)
        assert state(conn, job) == "done"


def test_single_holder(database):
    """A settlement that meets or follows the revocation of its lease is refused and told so."""
    late_settlement_changes_nothing(database)


def test_single_holder_breaks_without_the_settlement_fence(database):
    """A settlement that only reads the lease is accepted beside its revocation."""
    break_function(
        database, "settle_v1", ("l.closed_at is null for key share", "l.closed_at is null")
    )
    with violation():
        late_settlement_changes_nothing(database)


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_single_holder_in_a_handlers_own_transaction(database, level):
    """
    A handler's transaction that is older than the revocation of its lease cannot settle, at
    whatever isolation level: its effect and its completion vanish together.
    """
    with connect(database) as conn, psycopg.connect(database) as handler, Reader(database) as r:
        conn.execute("create table effect (job_id bigint)")
        job = enqueue(conn)
        batch = r.claim()
        handler.execute(f"set transaction isolation level {level}")
        handler.execute("insert into effect values (%s)", [job])
        assert r.revoked_by(conn) == 1
        with pytest.raises(psycopg.Error) as refused:
            r.settle(batch.claim_no, [1], flush_no=-1, conn=handler)
        assert refused.value.sqlstate in ("JQ010", "40001")
        handler.rollback()
        assert one(conn, "select count(*) from effect") == 0


def revocation_waits_for_settlements(dsn: str) -> None:
    """A handler has settled in its transaction, not yet committed, when its lease is revoked."""
    with connect(dsn) as conn, psycopg.connect(dsn) as handler, Reader(dsn) as reader:
        jobs = [enqueue(conn), enqueue(conn)]
        batch = reader.claim()
        assert reader.settle(batch.claim_no, [1], flush_no=-1, conn=handler) == "settled"
        with Reader(dsn) as other:
            thread, results = in_background(lambda: reader.revoked_by(other.conn))
            wait_until_blocked_or_done(conn, other, thread)
            handler.commit()
            thread.join(10)
            assert results == [1]
            assert [i for b in other.claim_all() for i in b.job_ids] == [jobs[1]]
        assert state(conn, jobs[0]) == "done"


def test_revocation_waits_for_the_settlements_under_way(database):
    """What a handler settled before the revocation stays settled and is not sent back."""
    revocation_waits_for_settlements(database)


def test_single_holder_breaks_when_revocation_is_a_plain_update(database):
    """An update of a column that is no key does not wait for KEY SHARE: a settled job runs
    again.
    """
    break_function(database, "_revoke", ("l.closed_at is null for update;", "l.closed_at is null;"))
    with violation():
        revocation_waits_for_settlements(database)


def repeated_flush_is_recognised(dsn: str) -> None:
    """The answer to a flush was lost; the worker sends it again."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        jobs = [enqueue(conn), enqueue(conn)]
        batch = reader.claim()
        retry = [{"offset": 2, "outcome": "retried"}]
        assert reader.settle(batch.claim_no, [1], flush_no=1, ended=retry) == "settled"
        assert reader.settle(batch.claim_no, [1], flush_no=1, ended=retry) == "repeated"
        assert [i for b in reader.claim_all() for i in b.job_ids] == [jobs[1]]
        assert reader.settle(99, flush_no=1) == "unknown_batch"


def test_a_repeated_flush_is_recognised_by_its_name(database):
    """The same flush sent twice counts once and is told from one that was refused."""
    repeated_flush_is_recognised(database)


def test_a_repeated_flush_is_not_recognised_without_its_name(database):
    """Without the name a worker cannot tell its own settlement from somebody else's."""
    break_function(
        database, "settle_v1", ("and s.flush_no = settle_v1.flush_no)", "and s.flush_no is null)")
    )
    with violation():
        repeated_flush_is_recognised(database)


def a_batch_name_is_never_reused(dsn: str) -> None:
    """A worker that miscounts its claims: the second batch of one name would share settlements."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        first, second = enqueue(conn), enqueue(conn)
        batch = reader.claim(1)
        assert reader.settle(batch.claim_no) == "settled"
        reader.claim_no = 0
        lane = lane_of_default(conn)
        claim = f"select forebay.claim_v1(%s, 1, 1, {reader.group_id}, {lane}, 1)"
        assert sqlstate(reader.conn, claim, reader.lease_id) == "23505"
        assert (state(conn, first), state(conn, second)) == ("done", "ready")


def test_a_batch_name_is_never_reused(database):
    """A claim under a name that was used before fails and takes nothing."""
    a_batch_name_is_never_reused(database)


def test_single_holder_breaks_when_batch_names_are_reused(database):
    """With the name used twice, a job counts as done that nobody has run."""
    with connect(database) as conn:
        conn.execute("drop index forebay.batch_by_name")
    with violation():
        a_batch_name_is_never_reused(database)


# -- bounded duplicates --------------------------------------------------------------------------


def test_bounded_duplicates(database):
    """
    After the loss of a lease exactly those jobs run again that were unsettled: not the settled ones
    of the same batch, not finished batches, not the jobs of other leases.
    """
    with connect(database) as conn, Reader(database) as lost, Reader(database) as living:
        ids = [enqueue(conn) for _ in range(40)]
        whole, part, untouched = lost.claim(10), lost.claim(10), lost.claim(10)
        held = living.claim(10)
        lost.finish(whole)
        retry = [{"offset": 4, "outcome": "retried"}]
        dead = [{"offset": 5, "outcome": "dead", "reason": "permanent"}]
        assert lost.settle(part.claim_no, [1, 2, 3], ended=retry + dead) == "settled"
        unsettled = part.job_ids[5:] + untouched.job_ids
        assert lost.revoked_by(conn) == len(unsettled)

        again = [i for b in living.claim_all() for i in b.job_ids]
        assert sorted(again) == sorted([*unsettled, part.job_ids[3]])
        assert {state(conn, i) for i in held.job_ids} == {"claimed"}
        assert {state(conn, i) for i in whole.job_ids} == {"done"}
        assert state(conn, part.job_ids[4]) == "dead"
        assert len(ids) == 40


def test_jobs_of_a_lost_lease_come_back_without_losing_an_attempt(database):
    """A job that was merely claimed by a worker that died keeps its attempts."""
    with connect(database) as conn, Reader(database) as lost, Reader(database) as living:
        enqueue(conn, max_attempts=1)
        for _ in range(3):
            lost.claim_ready()
            lost.revoked_by(conn)
            lost.open_lease()
        (again,) = living.claim_all()
        assert (again.jobs[0]["attempt"], again.jobs[0]["max_attempts"]) == (0, 1)


def test_only_a_suspect_that_was_started_pays_for_the_death_of_its_worker(database):
    """A suspect is handed out alone.

    Dying with it costs it an attempt, and the last one is dead.
    """
    with connect(database) as conn, Reader(database) as lost:
        killer, bystander = enqueue(conn, max_attempts=1), enqueue(conn, max_attempts=1)
        lost.claim()
        assert lost.revoked_by(conn) == 2
        lost.open_lease()
        alone = lost.claim_ready(100)
        assert alone.job_ids == [killer]
        for _ in range(2):
            lost.conn.execute(
                "select forebay.start_suspect_v1(%s, %s)", [lost.lease_id, alone.claim_no]
            )
        assert lost.revoked_by(conn) == 1
        assert state(conn, killer) == "dead"
        assert one(conn, "select reason from forebay.dead_letter") == "worker lost"
        lost.open_lease()
        (alone,) = lost.claim_all()
        assert alone.job_ids == [bystander]
        assert alone.jobs[0]["attempt"] == 0
        lost.finish(alone)
        assert state(conn, bystander) == "done"


# -- order ---------------------------------------------------------------------------------------


def test_order(database):
    """Within a transaction by number; between transactions that do not overlap, by commit."""
    with psycopg.connect(database) as conn, Reader(database) as reader:
        ids = []
        for size in (3, 1, 4):
            ids += [enqueue(conn) for _ in range(size)]
            conn.commit()
        handed = [i for _ in range(4) for i in reader.claim(2).job_ids]
        assert handed == ids


def test_a_group_sees_a_job_once_however_often_another_group_fails_it(database):
    """What one group retries, snoozes or loses is private to it."""
    with (
        connect(database) as conn,
        Reader(database, group="good") as good,
        Reader(database, group="bad") as bad,
    ):
        conn.execute("update forebay.queue_group set start_after = '1:1:'")
        ids = [enqueue(conn) for _ in range(10)]
        seen = []
        for _ in range(4):
            batch = bad.claim_ready(10)
            ended = [
                {"offset": n, "outcome": o}
                for n, o in enumerate(["retried", "snoozed", "unknown", "lost"], 1)
            ]
            if len(batch.jobs) > 4:
                bad.settle(batch.claim_no, [5], ended=ended)
            bad.revoked_by(conn)
            bad.open_lease()
            for other in good.claim_all():
                seen += other.job_ids
                good.finish(other)
        assert seen == ids
        assert {states(conn, i)["good"] for i in ids} == {"done"}
        assert "done" in {states(conn, i)["bad"] for i in ids}


# -- counters agree ------------------------------------------------------------------------------


@pytest.mark.slow
def test_counters_agree(database):
    """In every state a job can be in, forebay.depth() equals a count of the rows."""
    with connect(database) as conn, Reader(database, "q", "one") as reader:
        Reader(database, "q", "two").conn.close()
        conn.execute("update forebay.queue_group set start_after = '1:1:'")

        def agree() -> dict[str, tuple[int, ...]]:
            told = depth(conn, "q")
            assert told == count_independently(conn, "q")
            return told

        ids = [enqueue(conn, queue="q", delay="1 hour" if n % 5 == 0 else None) for n in range(20)]
        assert agree() == {"one": (16, 0, 4), "two": (16, 0, 4)}
        batch = reader.claim(8)
        assert agree() == {"one": (8, 8, 4), "two": (16, 0, 4)}
        ended = [
            {"offset": 3, "outcome": "retried"},
            {"offset": 4, "outcome": "retried", "after": 60},
            {"offset": 5, "outcome": "dead"},
            {"offset": 6, "outcome": "cancelled"},
        ]
        reader.settle(batch.claim_no, [1, 2], ended=ended)
        assert agree()["one"] == (9, 2, 5)
        conn.execute("select forebay.cancel(%s)", [ids[-1]])
        assert agree()["one"] == (8, 2, 5)
        reader.revoked_by(conn)
        assert agree()["one"] == (10, 0, 5)
        reader.open_lease()
        taken = sum(len(b.jobs) for b in reader.claim_all())
        assert taken == 10
        assert agree()["one"] == (0, 10, 5)
        shift_clock(conn, 7200)
        one(conn, "select forebay.promote_v1()")
        assert agree() == {"one": (5, 10, 0), "two": (19, 0, 0)}
        trim(conn)
        assert agree() == {"one": (5, 10, 0), "two": (19, 0, 0)}

"""Promotion, sweep, retention, trimming and revocation at their edges."""

from datetime import timedelta

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    one,
    shift_clock,
    small_segments,
    sqlstate,
    state,
    trim,
)
from tests.support.restore import create_database, drop_database
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@pytest.mark.parametrize("limit", [0, -1, None, 2**31 - 1])
def test_promotion_with_a_limit_that_makes_no_sense_is_refused(conn, limit):
    """A promotion of nothing must not move the mark past jobs that it did not promote."""
    job = enqueue(conn, delay="0.01 seconds")
    wait_for(lambda: one(conn, "select forebay._now() > max(run_at) from forebay.deferred"))
    assert sqlstate(conn, "select forebay.promote_v1(%s)", limit) == "JQ001"
    assert one(conn, "select forebay.promote_v1()") == 1
    assert state(conn, job) == "ready"


@pytest.mark.parametrize(
    ("claim_no", "floor"), [(None, 1), (1, None), (0, 0), (-1, -1), (1, 2), (2, -5)]
)
def test_a_claim_without_a_proper_name_or_floor_is_refused(database, conn, claim_no, floor):
    """
    A batch needs a number, and a floor not above it: what lies below the floor is neither
    revoked with its lease nor kept from being emptied.
    """
    enqueue(conn)
    with Reader(database) as reader:
        lane = one(conn, "select forebay._lane_id('default', 100, 0)")
        claim = "select forebay.claim_v1(%s, %s, %s, %s, %s, 1)"
        args = (reader.lease_id, claim_no, floor, reader.group_id, lane)
        assert sqlstate(reader.conn, claim, *args) == "JQ001"


def revoked_by_maintenance(conn) -> tuple | None:
    """Return the lease that was revoked and how many jobs went back."""
    return conn.execute("select lease_id, jobs from forebay.revoke_lost_v1()").fetchone()


@pytest.mark.slow
def test_a_lease_that_cannot_be_revoked_does_not_keep_others_from_it(database, conn):
    """
    A forgotten prepared transaction with a settlement in it holds its own lease only: another lost
    lease is revoked meanwhile, and the held one as soon as it can be.
    """
    with (
        Reader(database, lease_seconds=0.2, suspect_seconds=0.1) as held,
        Reader(database, lease_seconds=0.2, suspect_seconds=0.1) as lost,
        psycopg.connect(database) as forgetful,
    ):
        first, second = enqueue(conn), enqueue(conn)
        batch = held.claim(1)
        lost.claim(1)
        assert held.settle(batch.claim_no, [1], flush_no=-1, conn=forgetful) == "settled"
        forgetful.execute("prepare transaction 'forgotten'")
        try:
            wait_for(lambda: revoked_by_maintenance(conn) == (lost.lease_id, 1))
            assert state(conn, second) == "ready"
            assert revoked_by_maintenance(conn) is None
        finally:
            conn.execute("commit prepared 'forgotten'")
        assert revoked_by_maintenance(conn) == (held.lease_id, 0)
        assert state(conn, first) == "done"


def test_a_living_worker_is_not_revoked_and_a_silent_one_is(database, conn):
    """A heartbeat keeps a lease; without one it is lost when its time is over, not before."""
    with (
        Reader(database, lease_seconds=0.3, suspect_seconds=0.3) as silent,
        Reader(database, lease_seconds=30, suspect_seconds=0.1) as living,
    ):
        enqueue(conn)
        silent.claim()
        assert wait_for(lambda: revoked_by_maintenance(conn)) == (silent.lease_id, 1)
        living.claim_ready()
        assert revoked_by_maintenance(conn) is None
        living.conn.close()
        assert wait_for(lambda: revoked_by_maintenance(conn)) == (living.lease_id, 1)


def age_heartbeats(conn, reader: Reader, seconds: float) -> None:
    """Let a lease's heartbeats be older than they are."""
    conn.execute(
        (
            "update forebay.heartbeat set heartbeat_at = heartbeat_at - make_interval(secs => "
            "%s) where lease_id = %s"
        ),
        [seconds, reader.lease_id],
    )


def old_enough(conn, seconds: float = 0.2) -> None:
    """Wait until the session may judge others' silence, also where the owner of the schema
    cannot see its age.
    """
    # Revokes nothing, since the clock is wrong.
    conn.execute("select forebay.revoke_lost_v1(0, now() - interval '1 hour')")
    since = one(conn, "select clock_timestamp()")
    wait_for(
        lambda: one(
            conn, "select clock_timestamp() - %s > make_interval(secs => %s)", since, seconds
        )
    )


def test_a_lease_without_jobs_is_not_revoked_on_suspicion(database, conn):
    """
    Its heartbeat may beat seldom then, and its connection be a pooler's: it is lost when its time
    is over. With a job in hand it is lost as soon as it is silent and gone.
    """
    old_enough(conn)
    reader = Reader(database, lease_seconds=30, suspect_seconds=0.1)
    other = Reader(database, lease_seconds=30, suspect_seconds=0.1)
    for _ in range(2):
        enqueue(conn)
    reader.finish(reader.claim(1))
    other.claim(1)
    for each in (reader, other):
        conn.execute("update forebay.batch set claimed_at = claimed_at - interval '20 seconds'")
        age_heartbeats(conn, each, 20)
        each.conn.close()
    assert wait_for(lambda: revoked_by_maintenance(conn)) == (other.lease_id, 1)
    assert revoked_by_maintenance(conn) is None
    age_heartbeats(conn, reader, 11)
    conn.execute("update forebay.batch set claimed_at = claimed_at - interval '11 seconds'")
    assert revoked_by_maintenance(conn) == (reader.lease_id, 0)


@pytest.mark.slow
def test_a_claim_is_a_sign_of_life(database, conn):
    """
    Who has been idle for long, and silent, keeps what it claims now, though the connection of its
    heartbeat is gone.
    """
    old_enough(conn, 2.1)
    enqueue(conn)
    with Reader(database, lease_seconds=30, suspect_seconds=2) as reader:
        age_heartbeats(conn, reader, 20)
        conn.execute("update forebay.heartbeat set backend_pid = 0")
        reader.claim(1)
        assert revoked_by_maintenance(conn) is None
        conn.execute("update forebay.batch set claimed_at = claimed_at - interval '2 seconds'")
        assert revoked_by_maintenance(conn) == (reader.lease_id, 1)


@pytest.mark.parametrize(
    ("observed", "is_lost"), [(0.0, False), (0.05, False), (20.0, True), (None, True)]
)
def test_only_observed_silence_counts(database, conn, observed, is_lost):
    """
    The clock says that a lease is silent for a minute. It is revoked only by a caller that has seen
    the clock run evenly for long enough.
    """
    old_enough(conn)
    with Reader(database, lease_seconds=30, suspect_seconds=0.1) as silent:
        enqueue(conn)
        silent.claim(1)
        conn.execute("update forebay.batch set claimed_at = claimed_at - interval '1 minute'")
        age_heartbeats(conn, silent, 60)
    # A session ends a moment after its connection was closed; until then the lease counts as
    # connected.
    session = (
        "select from pg_stat_activity a join forebay.heartbeat h on h.backend_pid = a.pid"
        " where h.lease_id = %s"
    )
    wait_for(lambda: conn.execute(session, [silent.lease_id]).fetchall() == [])
    call = "select lease_id from forebay.revoke_lost_v1(%s, %s)"
    now = one(conn, "select clock_timestamp()")
    hour = timedelta(hours=1)
    if observed is not None:
        for clock in (now - hour, now + hour):
            assert conn.execute(call, [observed, clock]).fetchall() == [], "the clock was set since"
    now = one(conn, "select clock_timestamp()")
    found = conn.execute(call, [observed, None if observed is None else now]).fetchall()
    assert found == ([(silent.lease_id,)] if is_lost else [])


def test_without_observation_a_connected_lease_is_not_revoked_by_the_clock(database, conn):
    """
    Its connection lives, and the caller has watched for longer than suspect_seconds, but not for
    lease_seconds.
    """
    old_enough(conn)
    with Reader(database, lease_seconds=30, suspect_seconds=0.1) as living:
        enqueue(conn)
        living.claim(1)
        conn.execute("update forebay.batch set claimed_at = claimed_at - interval '1 minute'")
        age_heartbeats(conn, living, 60)
        call = "select lease_id from forebay.revoke_lost_v1(%s)"
        assert conn.execute(call, [20.0]).fetchall() == []
        assert conn.execute(call, [31.0]).fetchall() == [(living.lease_id,)]


@pytest.mark.parametrize("observed", [None, 0.05, 20.0])
def test_signs_of_life_from_the_future_prove_nothing(database, conn, observed):
    """
    After the clock was set back a dead worker's last heartbeats and claims are in the future; a
    living worker's newer heartbeats are not.
    """
    old_enough(conn)
    dead, living = (Reader(database, lease_seconds=30, suspect_seconds=0.1) for _ in range(2))
    for reader in (dead, living):
        enqueue(conn)
        reader.claim(1)
        reader.conn.close()
    conn.execute("update forebay.batch set claimed_at = claimed_at + interval '1 hour'")
    for reader in (dead, living):
        age_heartbeats(conn, reader, -3600)
    conn.execute("select forebay.heartbeat_v1(array[%s::bigint])", [living.lease_id])
    call = "select lease_id from forebay.revoke_lost_v1(%s)"
    expected = [(dead.lease_id,)] if observed == 20.0 else []
    assert conn.execute(call, [observed]).fetchall() == expected
    trim(conn)
    assert (
        one(
            conn,
            (
                "select count(*) from forebay.heartbeat where heartbeat_at > now() + interval "
                "'1 minute'"
            ),
        )
        == 0
    )


def test_jobs_expire_where_nobody_claims(conn):
    """The sweep ends expired jobs of a queue without workers, wherever they stand in the lane."""
    stays = enqueue(conn, queue="forlorn", kind="stays")
    goes = enqueue(conn, queue="forlorn", expires_at="2126-01-01")
    conn.execute(
        "update forebay.log set expires_at = clock_timestamp() - interval '1 s' where seq = %s",
        [goes],
    )
    assert one(conn, "select expired from forebay.sweep_v1()") == 1
    assert one(conn, "select expired from forebay.sweep_v1()") == 0
    assert (state(conn, stays), state(conn, goes)) == ("ready", "expired")
    shift_clock(conn, 31 * 86400)
    assert one(conn, "select expired from forebay.sweep_v1()") > 0
    assert state(conn, stays) == "expired"
    assert one(conn, "select count(*) from forebay.dead_letter where reason = 'expired'") == 2


def expire_now(conn, job_ids) -> None:
    """Let jobs have expired, as if an hour had passed for them."""
    conn.execute(
        "update forebay.log set expires_at = clock_timestamp() - interval '1 hour'"
        " where coalesce(job_id, seq) = any (%s)",
        [list(job_ids)],
    )


def sweep(conn, most, since=None) -> list[int]:
    """Make one pass of the sweep; return how many jobs each step expired."""
    expired, after = [], None
    while not expired or after is not None:
        count, after = conn.execute(
            "select expired, next from forebay.sweep_v1(%s, %s, %s, %s)", [since, after, most, most]
        ).fetchone()
        expired.append(count)
    return expired


def test_the_sweep_is_not_blinded_by_jobs_that_were_done_in_time(database, conn):
    """
    However many jobs with an expiry were finished long ago, and however few one pass takes, every
    expired job that still waits is found, also behind one that does not expire.
    """
    done = [enqueue(conn) for _ in range(30)]
    with Reader(database) as reader:
        for batch in reader.claim_all():
            reader.finish(batch)
    head = enqueue(conn)
    waiting = [enqueue(conn) for _ in range(25)]
    expire_now(conn, done + waiting)
    assert sum(sweep(conn, 10)) == 25
    assert {state(conn, i) for i in waiting} == {"expired"}
    assert {state(conn, i) for i in done} == {"done"}
    assert state(conn, head) == "ready"
    assert one(conn, "select count(*) from forebay.dead_letter") == 25
    assert sqlstate(conn, "select expired from forebay.sweep_v1(null, null, 0)") == "JQ001"


def test_a_sweep_without_lanes_expires_explicit_expiries_alone(conn):
    """
    With no lanes a pass costs what expired: it opens a group for a queue that was never served only
    when a job expires, and leaves the head of the lane to a pass that visits the lanes.
    """
    stays = enqueue(conn, queue="forlorn", kind="stays")
    call = "select expired, next from forebay.sweep_v1(null, null, 1000, 0)"
    assert conn.execute(call).fetchone() == (0, None)
    assert one(conn, "select count(*) from forebay.queue_group where queue = 'forlorn'") == 0
    goes = enqueue(conn, queue="forlorn")
    expire_now(conn, [goes])
    assert conn.execute(call).fetchone() == (1, None)
    assert (state(conn, stays), state(conn, goes)) == ("ready", "expired")
    shift_clock(conn, 31 * 86400)
    assert conn.execute(call).fetchone() == (0, None)
    assert one(conn, "select expired from forebay.sweep_v1()") > 0
    assert state(conn, stays) == "expired"
    assert sqlstate(conn, "select expired from forebay.sweep_v1(null, null, 1, -1)") == "JQ001"


@pytest.mark.parametrize(
    ("act", "expired"),
    [
        (None, 0),
        ("select forebay.resign_v1(1, array[{group}])", 1),
        ("select forebay.pause_queue('served')", 1),
        ("select forebay.limit_queue('served', rate => 1)::text", 1),
    ],
    ids=["polled", "not polled", "paused", "limited"],
)
def test_the_sweep_leaves_the_head_of_a_polled_lane_to_claims(conn, act, expired):
    """
    A worker that polls for a group and finds nothing ready has claimed what expired. While jobs
    stay ready beside it, since the group is paused or the queue has limits, or when no worker
    polls, the sweep expires them.
    """
    group = one(conn, "select forebay.open_group('served')")
    job = enqueue(conn, queue="served")
    shift_clock(conn, 31 * 86400)
    one(conn, "select forebay.lead_v1(1, array[%s]::bigint[], 100)", group)
    if act is not None:
        conn.execute(act.format(group=group))
    assert one(conn, "select expired from forebay.sweep_v1()") == expired
    assert state(conn, job) == ("expired" if expired else "ready")


def test_a_cancellation_is_remembered_for_as_long_as_its_job_waits(database, conn):
    """Trimming forgets a request to cancel only when nothing can ask for it any more."""
    one(conn, "select forebay.configure('retention_days', 0)")
    waiting, deferred, running, over = (
        enqueue(conn, queue="w"),
        enqueue(conn, delay="1 day"),
        enqueue(conn, queue="r"),
        enqueue(conn, queue="o"),
    )
    with Reader(database, "r") as reader, Reader(database, "o") as other:
        batch = reader.claim()
        assert batch.job_ids == [running]
        for job in (waiting, deferred, running, over):
            conn.execute("select forebay.cancel(%s)", [job])
        assert other.claim_all() == []
        assert state(conn, over) == "cancelled"
        trim(conn)
        kept = conn.execute("select job_id from forebay.tombstone order by 1").fetchall()
        assert kept == [(waiting,), (deferred,), (running,), (over,)]
        # Once the first segment of the jobs is emptied, only those that have another row are
        # remembered.
        conn.execute("update forebay.segment set removed_at = now() where segment_id = 0")
        trim(conn)
        kept = conn.execute("select job_id from forebay.tombstone order by 1").fetchall()
        assert kept == [(deferred,)]
        conn.execute("update forebay.segment set removed_at = null where segment_id = 0")
        for job in (waiting, running):
            conn.execute("select forebay.cancel(%s)", [job])
        assert reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "retried"}])
        assert reader.claim_all() == []
    with Reader(database, "w") as reader:
        assert reader.claim_all() == []


def test_promotion_survives_a_clock_that_is_set_back(database, conn):
    """No deferred job is forgotten or promoted twice when the clock jumps ahead and back."""
    ids = [enqueue(conn, delay=f"{minutes} minutes") for minutes in (1, 30, 90)]
    shift_clock(conn, 3600)
    assert one(conn, "select forebay.promote_v1()") == 2
    shift_clock(conn, 0)
    ids.append(enqueue(conn, delay="2 minutes"))
    assert one(conn, "select forebay.promote_v1()") == 0
    shift_clock(conn, 300)
    assert one(conn, "select forebay.promote_v1()") == 1
    shift_clock(conn, 7200)
    assert one(conn, "select forebay.promote_v1()") == 1
    with Reader(database) as reader:
        assert sorted(i for b in reader.claim_all() for i in b.job_ids) == sorted(ids)


@pytest.mark.slow
def test_retention_frees_what_is_settled_and_job_history_goes_with_it(database, conn):
    """
    Settled segments older than the limit are emptied, oldest first; trimming then takes their
    batches and settlements, never the newest row of a cursor.
    """
    small_segments(conn, rows=100, reserve=1000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(conn, "select forebay.configure('retention_days', 0)")
    with Reader(database) as reader:
        ids = []
        for _ in range(25):
            ids += [enqueue(conn) for _ in range(20)]
            for batch in reader.claim_all():
                reader.finish(batch)
        running = enqueue(conn)
        held = reader.claim()
        one(conn, "select forebay.seal_v1()")
        reader.claim_all()
        emptied = 0
        while one(conn, "select emptied from forebay.retain_v1()") is not None:
            emptied += 1
        assert emptied == 5
        trim(conn)
        assert one(conn, "select count(*) from forebay.batch where seqs is not null") < 10
        assert state(conn, ids[0]) is None
        assert state(conn, running) == "claimed"
        reader.finish(held)
        later = enqueue(conn)
        assert [b.job_ids for b in reader.claim_all()] == [[later]]


@pytest.mark.direct  # A database that is copied may have no sessions, nor may a pooler.
def test_a_copy_of_a_database_is_foreign_though_its_original_knows_its_cluster(server, database):
    """
    The flag sequence in which the original remembers it until the server starts again is copied
    with it.
    """
    with Reader(database) as reader:
        assert one(reader.conn, "select forebay._is_same_cluster()")
        original = reader.conn.info.dbname
    with connect(create_database(server, f"copy_of_{original}", template=original)) as copy:
        value = "select pg_sequence_last_value('forebay.same_cluster_seq')"
        assert one(copy, value) is not None
        assert not one(copy, "select forebay._is_same_cluster()")
        assert sqlstate(copy, "select forebay.open_lease_v1('w')") == "JQ030"
        assert sqlstate(copy, "select * from forebay.ready_v1('{1}', 1000)") == "JQ030"
        assert not one(copy, "select forebay._is_same_cluster()")
    drop_database(server, f"copy_of_{original}")


def test_a_foreign_log_is_left_alone_by_every_maintenance(conn):
    """
    In a schema that was restored from elsewhere no maintenance touches anything before it is
    adopted: the transaction ids that it would compare belong to another cluster.
    """
    enqueue(conn)
    conn.execute("update forebay.cluster set system_identifier = system_identifier + 1")
    for call in (
        "seal_v1()",
        "promote_v1()",
        "sweep_v1()",
        "retain_v1()",
        "trim_v1('batches')",
        "revoke_lost_v1()",
    ):
        assert sqlstate(conn, f"select * from forebay.{call}") == "JQ030", call
    assert sqlstate(conn, "select forebay.open_lease_v1('w')") == "JQ030"
    assert sqlstate(conn, "select forebay.extend_v1()") is None
    enqueue(conn)


def test_a_settlement_with_offsets_out_of_range_is_refused_whatever_else_happened(database, conn):
    """Also when a cancellation was requested somewhere, which settlements then look up."""
    job = enqueue(conn)
    enqueue(conn)
    conn.execute("select forebay.cancel(%s)", [job + 1])
    with Reader(database) as reader:
        batch = reader.claim(1)
        for offset in (0, -1, 2, 32767, None):
            ended = [{"offset": offset, "outcome": "retried"}]
            assert reader.settle(batch.claim_no, ended=ended) == "refused"
        assert state(conn, job) == "claimed"
        assert reader.settle(batch.claim_no, [1], flush_no=2) == "settled"


def test_a_pass_of_one_row_a_step_comes_to_its_end(database, conn):
    """A slow step is followed by smaller ones.

    The smallest still moves on where it finds nothing to delete.
    """
    with Reader(database, "one") as first, Reader(database, "two") as second:
        for reader in (first, second):
            enqueue(conn, queue=reader.queue, ordering_key="k")
            one(
                conn,
                "select forebay.limit_queue(%s, max_waiting => 10, rate => 5)::text",
                reader.queue,
            )
            one(conn, "select 1 from forebay.heartbeat_v1(array[%s]::bigint[])", reader.lease_id)
        one(conn, "select forebay.renew_counters_v1(1)")
    for part in one(conn, "select forebay._trim_parts()"):
        after, steps = None, 0
        while steps == 0 or after is not None:
            steps += 1
            assert steps < 100, part
            after = one(conn, "select next from forebay.trim_v1(%s, %s, 1)", part, after)

"""A log that was dumped, and restored elsewhere: nothing runs until somebody decides."""

import threading
from itertools import count

import pytest

from tests.support.engine import (
    STEPS,
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    open_group,
    shift_clock,
    sqlstate,
    state,
    states,
)
from tests.support.fix_db import make_migrated
from tests.support.restore import create_database, drop_database, dump, move_xids_ahead, restore
from tests.support.stress import QUEUE, StressRun
from tests.support.waiting import wait_for

pytestmark = pytest.mark.crash

GROUPS = ("first", "second")

_numbers = count(1)


@pytest.fixture
def place(server):
    """The server of the session, and a name for a database on it that is dropped afterwards."""
    name = f"restored_{next(_numbers)}"
    yield server, name
    drop_database(server, name)


def some_of_everything(dsn: str) -> None:
    """Bring jobs of two groups into every state there is, and leave leases open."""
    with connect(dsn) as conn:
        for group in GROUPS:
            open_group(conn, QUEUE, group, "beginning")
        enqueue_many(
            conn,
            [
                {"kind": "work", "queue": QUEUE, "args": {"entry": n}, "priority": 100 + n % 2}
                | ({"delay": 3600} if n % 10 == 0 else {})
                | ({"expires_at": "2126-01-01T00:00:00Z"} if n % 10 == 1 else {})
                for n in range(200)
            ],
        )
        for group, limit in zip(GROUPS, (30, 60), strict=True):
            with Reader(dsn, QUEUE, group) as reader:
                for priority in (100, 101):
                    batch = reader.claim(limit, priority=priority)
                    half = list(range(1, limit // 2))
                    ended = [
                        {"offset": limit // 2, "outcome": "retried"},
                        {"offset": limit // 2 + 1, "outcome": "retried", "after": 600},
                        {"offset": limit // 2 + 2, "outcome": "dead"},
                        {"offset": limit // 2 + 3, "outcome": "cancelled"},
                    ]
                    assert reader.settle(batch.claim_no, half, ended=ended) == "settled"
                if group == "second":
                    assert reader.revoked_by(conn) > 0
                    reader.open_lease()
                    (suspects,) = [r["lane"] for r in reader.ready() if r["is_suspect"]][:1]
                    assert len(reader.claim(10, suspects).jobs) == 1


def unfinished(conn, group: str) -> list[int]:
    """Return the entries that have not ended in a group, from its rows alone."""
    rows = conn.execute(
        """
        with groups as (select group_id from forebay.queue_group where name = %(group)s),
        entries as (
            select (args ->> 'entry')::bigint as entry from forebay.log
            union select (args ->> 'entry')::bigint from forebay.deferred),
        ended as (
            select (l.args ->> 'entry')::bigint
            from forebay.batch b
            join groups using (group_id)
            cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
            join forebay.log l on l.seq = u.seq
            join forebay.settlement s on s.lease_id = b.lease_id and s.claim_no = b.claim_no
            where s.offsets is null
               or coalesce(s.outcomes[array_position(s.offsets, u.nr::smallint)],
                           case when u.nr = any (s.offsets) then 'd'::"char" end)
                  in ('d', 'x', 'c')
            union all
            select (l.args ->> 'entry')::bigint
            from forebay.batch b join groups using (group_id)
            cross join lateral unnest(b.skipped) u (seq) join forebay.log l on l.seq = u.seq)
        select entry from entries where entry not in (table ended) order by entry
        """,
        {"group": group},
    ).fetchall()
    return [entry for (entry,) in rows]


def enqueue_natively(conn) -> list[int]:
    """Enqueue where the log was restored to and not adopted: old lanes, new ones, deferred."""
    many = [
        {"kind": "work", "queue": QUEUE, "args": {"entry": n}, "priority": 100 + n % 3}
        | ({"delay": 3600} if n % 4 == 0 else {})
        for n in range(1000, 1020)
    ]
    enqueue_many(conn, many)
    enqueue(conn, queue=QUEUE, args={"entry": 1020})
    return list(range(1000, 1021))


def nothing_runs(dsn: str) -> None:
    """Before adoption: no lease, no claim on an old lease, no promotion, no maintenance."""
    with connect(dsn) as conn:
        assert sqlstate(conn, "select forebay.open_lease_v1('w')") == "JQ030"
        groups = one(conn, "select array_agg(group_id) from forebay.queue_group")
        assert sqlstate(conn, "select * from forebay.ready_v1(%s::bigint[])", groups) == "JQ030"
        for call in (
            "promote_v1()",
            "sweep_v1()",
            "seal_v1()",
            "retain_v1()",
            "trim_v1('batches')",
            "revoke_lost_v1()",
        ):
            assert sqlstate(conn, f"select * from forebay.{call}") == "JQ030", call


def run_everything(dsn: str, group: str) -> list[int]:
    """Claim and finish all that a group is handed, deferred jobs included; return the entries."""
    entries = []
    with connect(dsn) as conn, Reader(dsn, QUEUE, group) as reader:
        while one(conn, "select forebay.promote_v1(7)"):
            pass
        for batch in reader.claim_all():
            entries += [job["args"]["entry"] for job in batch.jobs]
            reader.finish(batch)
    return sorted(entries)


def adopted_once(dsn: str, *, resume: bool) -> None:
    """Restore, refuse, enqueue, adopt, run: each job that has to run runs once in each group."""
    nothing_runs(dsn)
    with connect(dsn) as conn:
        open_jobs = {group: unfinished(conn, group) for group in GROUPS}
        finished = sorted(set(range(200)) - set(open_jobs["first"]))
        ids = dict(
            conn.execute(
                "select (args ->> 'entry')::bigint, coalesce(job_id, seq) from forebay.log"
            ).fetchall()
        )
        before = {e: states(conn, ids[e])["first"] for e in finished if e in ids}
        native = enqueue_natively(conn)
        resumed, discarded = conn.execute("select * from forebay.adopt_v1(%s)", [resume]).fetchone()
        assert sqlstate(conn, "select forebay.adopt_v1(true)") == "JQ031"

        waiting = sum(len(e) for e in open_jobs.values())
        ready, held, deferred = zip(*depth(conn, QUEUE).values(), strict=True)
        # A deferred job that no group has had yet is one row for both of them.
        assert sum(held) == 0
        assert sum(ready) + sum(deferred) == (waiting if resume else 0) + 2 * len(native)
        if resume:
            assert discarded == 0
        else:
            assert discarded > 0
            assert resumed == 2 * sum(n % 4 != 0 or n == 1020 for n in native)
        assert {e: states(conn, ids[e])["first"] for e in before} == before
        late = enqueue(conn, queue=QUEUE, args={"entry": 2000})
        letters = one(conn, "select count(*) from forebay.dead_letter")
        shift_clock(conn, 2 * 3600)
    for group in GROUPS:
        expected = (open_jobs[group] if resume else []) + native + [2000]
        assert run_everything(dsn, group) == sorted(expected)
    with connect(dsn) as conn:
        assert set(states(conn, late).values()) == {"done"}
        assert not any(sum(n) for n in depth(conn, QUEUE).values())
        shift_clock(conn, 200 * 365 * 86400)
        one(conn, "select expired from forebay.sweep_v1()")
        assert one(conn, "select count(*) from forebay.dead_letter") == letters
        for call in ("seal", "promote", "retain", "trim"):
            one(conn, STEPS[call])


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_a_restored_log_runs_nothing_until_it_is_adopted(
    server, database, own_server, tmp_path, resume
):
    """
    Restored into a fresh cluster, whose transaction ids are behind those of the dump, a log takes
    enqueues and hands out nothing; adopted, what had not ended runs once for each group, or never
    if it is discarded, and what was enqueued meanwhile runs once in either case.
    """
    some_of_everything(database)
    dump(server, database, tmp_path / "dump")
    adopted_once(restore(own_server, tmp_path / "dump", "restored"), resume=resume)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "resume"),
    [pytest.param("ahead", True, marks=pytest.mark.nightly), ("behind", False)],
)
def test_a_restored_log_in_a_cluster_of_quite_other_xids(
    server, database, own_server, tmp_path, place, direction, resume
):
    """The same where the cluster's transaction ids are twenty thousand million ahead or behind."""
    move_xids_ahead(own_server)
    if direction == "ahead":
        some_of_everything(database)
        dump(server, database, tmp_path / "dump")
        dsn = restore(own_server, tmp_path / "dump", "restored", "--single-transaction")
    else:
        own = own_server.dsn(make_migrated(own_server, "source"))
        some_of_everything(own)
        dump(own_server, own, tmp_path / "dump")
        dsn = restore(place[0], tmp_path / "dump", place[1], "--jobs=2")
    adopted_once(dsn, resume=resume)


@pytest.mark.slow
def test_a_copy_of_a_database_is_foreign_too(own_server):
    """A database cloned within its cluster, as for a rehearsal, runs nothing until it is
    adopted.
    """
    source = own_server.dsn(make_migrated(own_server, "original"))
    some_of_everything(source)
    adopted_once(create_database(own_server, "clone", "original"), resume=False)
    assert run_everything(source, "first")  # The original is at home and goes on.


def test_an_enqueue_that_drew_its_number_before_the_adoption_is_not_lost_in_silence(database):
    """
    A producer has drawn a number and not yet written its row when the log is adopted. Its row would
    land in the archive, where nobody reads: it is refused instead, and its transaction with it.
    """
    with connect(database) as conn, connect(database) as blocker, connect(database) as producer:
        conn.execute("update forebay.cluster set system_identifier = system_identifier + 1")
        conn.execute(
            "create function public.draw_slowly() returns bigint language plpgsql as $$"
            " declare v bigint := nextval('forebay.log_seq');"
            " begin perform pg_advisory_xact_lock(1, 1); return v; end $$"
        )
        conn.execute("alter table forebay.log alter column seq set default public.draw_slowly()")
        blocker.execute("begin")
        blocker.execute("select pg_advisory_xact_lock(1, 1)")
        results = []
        thread = threading.Thread(
            target=lambda: results.append(sqlstate(producer, "select forebay.enqueue('work')"))
        )
        thread.start()
        pid = producer.info.backend_pid
        wait_for(lambda: one(conn, "select cardinality(pg_blocking_pids(%s)) > 0", pid))
        conn.execute("select forebay.adopt_v1(false)")
        blocker.execute("commit")
        thread.join()
        with Reader(database) as reader:
            handed = [i for b in reader.claim_all() for i in b.job_ids]
        assert results == ["23514"] or handed, "the job was committed and nobody is handed it"


def test_adopting_in_the_same_cluster_is_refused(database):
    """There is nothing to adopt where the log has always been."""
    with connect(database) as conn:
        job = enqueue(conn)
        assert sqlstate(conn, "select * from forebay.adopt_v1(true)") == "JQ031"
        assert sqlstate(conn, "select * from forebay.adopt_v1(false)") == "JQ031"
        assert state(conn, job) == "ready"


@pytest.mark.slow
def test_a_dump_under_load_holds_each_job_in_one_state(
    server, database, own_server, tmp_path, seed
):
    """
    A dump taken while writers, readers, promoter and segments are at work, restored and adopted:
    every committed job that it holds unfinished runs once for each group, and no finished one.
    """
    run = StressRun(database, seed, 4, jobs_per_second=800, revocations_per_second=1)
    run.outcomes = {"done": 90, "retried": 10}
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        wait_for(lambda: len(run.ledger.committed) > 600)
        dump(server, database, tmp_path / "dump")
    finally:
        thread.join()
    assert run.ledger.problems() == {}
    dsn = restore(own_server, tmp_path / "dump", "restored")
    nothing_runs(dsn)
    with connect(dsn) as conn:
        open_jobs = {group: unfinished(conn, group) for group in GROUPS}
        conn.execute("select * from forebay.adopt_v1(true)")
        shift_clock(conn, 3600)
    for group in GROUPS:
        assert run_everything(dsn, group) == open_jobs[group]
        assert set(open_jobs[group]) <= run.ledger.committed
        assert len(open_jobs[group]) < len(run.ledger.committed)
    with connect(dsn) as conn:
        assert one(conn, "select count(distinct args) from forebay.log") > 500


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_what_waits_for_an_ordering_key_keeps_its_order_when_a_log_is_adopted(
    server, database, place, resume
):
    """
    Held by several claims, parked, requeued behind a retry and not yet read: each key's jobs run in
    their order, a retry that waits for its time behind them, and what was enqueued before the
    adoption last; or only that, if they are discarded.
    """
    numbers = {"a": 9, "b": 9, "c": 3}

    def put(conn, key: str, entries: range) -> None:
        for entry in entries:
            enqueue(conn, queue=QUEUE, ordering_key=key, args={"entry": entry})

    with (
        connect(database) as conn,
        Reader(database, QUEUE) as holder,
        Reader(database, QUEUE) as other,
    ):
        batches = []
        for first in (0, 3):
            put(conn, "a", range(first, first + 3))
            put(conn, "b", range(first, first + 3))
            batches.append(holder.claim_ready(6))
        put(conn, "a", range(6, 9))
        put(conn, "b", range(6, 9))
        assert other.claim_ready(6).jobs == []
        retried = [{"offset": 4, "outcome": "retried", "after": 600}]
        back = [{"offset": offset, "outcome": "released"} for offset in (4, 5, 6)]
        assert holder.settle(batches[0].claim_no, [1], ended=retried + back[1:]) == "settled"
        assert holder.settle(batches[1].claim_no, [], ended=back) == "settled"
        put(conn, "c", range(3))
        name = conn.info.dbname
    create_database(server, place[1], name)
    dsn = server.dsn(place[1])
    with connect(dsn) as conn:
        for key, count_ in numbers.items():
            put(conn, key, range(count_, count_ + 1))
        resumed, discarded = conn.execute("select * from forebay.adopt_v1(%s)", [resume]).fetchone()
        assert (resumed, discarded) == ((8 + 9 + 3 + 3, 0) if resume else (3, 8 + 9 + 3))
        expected = {"a": [9], "b": [9], "c": [3]}
        if resume:
            expected = {"a": [*range(1, 10)], "b": [*range(1, 10), 0], "c": [*range(4)]}
        ran: dict[str, list[int]] = {}
        with Reader(dsn, QUEUE) as reader:
            for seconds in (0, 3600):
                shift_clock(conn, seconds)
                one(conn, "select forebay.promote_v1()")
                while (batch := reader.claim_ready(4)).jobs:
                    for job in batch.jobs:
                        ran.setdefault(job["ordering_key"], []).append(job["args"]["entry"])
                    reader.finish(batch)
        assert ran == expected
        assert depth(conn, QUEUE) == {"default": (0, 0, 0)}

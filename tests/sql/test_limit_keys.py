"""Jobs that wait for their limit key: parked, they are never forgotten, and they are seen,
cancelled and kept like others.
"""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.engine import (
    Batch,
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    open_group,
    shift_clock,
    small_segments,
    state,
    trim,
)
from tests.support.mutant import break_function, violation
from tests.support.plans import pages
from tests.support.restore import create_database, drop_database
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def limit(conn: psycopg.Connection, **given: object) -> None:
    """Set limits of the queue."""
    named = "".join(f", {name} => %s" for name in given)
    one(conn, f"select forebay.limit_queue('q'{named})", *given.values())


def settled_limits(database: str, conn: psycopg.Connection, **limits: object) -> None:
    """Set limits, and let the second pass in which jobs in flight are counted from the leases."""
    limit(conn, **limits)
    enqueue(conn, queue="q", limit_key="first")
    with Reader(database, "q") as reader:
        reader.finish(reader.claim_ready(1))
    shift_clock(conn, 5)


def put(conn: psycopg.Connection, key: str, count: int = 1, **options: object) -> list[int]:
    """Enqueue so many jobs of a key, in bulk; return their ids."""
    job = {"kind": "work", "queue": "q", "limit_key": key, "args": {"key": key}} | options
    return enqueue_many(conn, [job] * count)


def take(reader: Reader, limit: int = 100) -> list:
    """Claim until nothing is ready; return the batches.

    It continues after a claim that only moves jobs or announces keys.
    """
    batches = []
    for _ in range(1000):
        if not reader.ready():
            break
        batch = reader.claim_ready(limit)
        if batch.jobs:
            batches.append(batch)
    return batches


def ids(batches: list) -> list[int]:
    return [job_id for batch in batches for job_id in batch.job_ids]


def drained(reader: Reader, limit: int = 100) -> list[int]:
    """Claim and finish until nothing is ready; return the ids in the order they were handed out."""
    got = []
    for _ in range(1000):
        if not reader.ready():
            break
        batch = reader.claim_ready(limit)
        if batch.jobs:
            got += batch.job_ids
            reader.finish(batch)
    return got


def keys_of(batches: list) -> Counter:
    return Counter(job["args"]["key"] for batch in batches for job in batch.jobs)


def parked(conn: psycopg.Connection) -> int:
    return one(conn, "select coalesce(sum(jobs), 0)::int from forebay._all_limit_parked()")


def running(reader: Reader) -> Batch:
    """Return the batch with the first job that the reader has not finished, by its number only."""
    return Batch(min(reader.open_claims), [])


def unread_recheck_rows(conn: psycopg.Connection) -> Counter:
    """Count the recheck rows that no cursor has passed, by key."""
    rows = conn.execute(
        "select l.limit_key from forebay.log l"
        " join (select distinct i.lane, abs(i.audience) as group_id from forebay.lane i "
        "where i.audience <> 0) i using (lane)"
        " left join lateral (select b.* from forebay.batch b where b.group_id = i.group_id "
        "and b.lane = i.lane"
        "   order by b.no desc limit 1) b on true"
        " left join forebay.segment s on s.segment_id = b.pos_segment"
        " where l.kind = '' and (b.no is null or not forebay._is_consumed(l.xid, l.seq, "
        "b.snap_from, b.snap_to, s.lo, s.hi,"
        "   b.pos_xid, b.pos_seq))"
    ).fetchall()
    return Counter(key for (key,) in rows)


# --- nothing is forgotten ---


def parked_while_settled(database: str) -> None:
    """A claim that parks a job is held up between its look at the key and its commit.

    The key's job is settled then.
    """
    with (
        connect(database) as conn,
        Reader(database, "q") as first,
        Reader(database, "q") as second,
        psycopg.connect(database) as brake,
        ThreadPoolExecutor(2) as threads,
    ):
        settled_limits(database, conn, key_concurrency=1)
        conn.execute(
            "create function public.brake() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock(4711); return new; end $$"
        )
        conn.execute(
            "create trigger brake before insert on forebay.limit_parked for each row "
            "execute function public.brake()"
        )
        put(conn, "a")
        batch = first.claim_ready(10)
        (job,) = put(conn, "a")
        brake.execute("select pg_advisory_xact_lock(4711)")

        def is_blocked(reader: Reader) -> bool:
            query = "select cardinality(pg_blocking_pids(%s)) > 0"
            return one(conn, query, reader.conn.info.backend_pid)

        claim = threads.submit(second.claim_ready, 10)
        wait_for(lambda: is_blocked(second), 20)
        settlement = threads.submit(first.finish, batch)
        wait_for(lambda: settlement.done() or is_blocked(first), 20)
        brake.commit()
        assert claim.result(20).jobs == []
        settlement.result(20)
        assert ids(take(second)) == [job]


def test_a_job_that_is_parked_while_its_key_becomes_free_is_not_forgotten(database):
    """The settlement waits for the claim, and sees what it parked."""
    parked_while_settled(database)


def test_without_their_common_lock_the_job_would_be_forgotten(database):
    """The same with a settlement that looks without waiting."""
    break_function(
        database,
        "_release_limits",
        ("perform forebay._lock_limiter(p_group_id, true);", ""),
    )
    with violation():
        parked_while_settled(database)


def settled_in_a_handler(database: str) -> None:
    """A handler has settled its job in its own transaction, which is open while a claim parks
    the next one.
    """
    with (
        connect(database) as conn,
        Reader(database, "q") as first,
        Reader(database, "q") as second,
        psycopg.connect(database) as handler,
    ):
        settled_limits(database, conn, key_concurrency=1)
        put(conn, "a")
        batch = first.claim_ready(10)
        assert first.settle(batch.claim_no, [1], flush_no=-1, conn=handler) == "settled"
        (job,) = put(conn, "a")
        second.conn.execute("set statement_timeout = '2s'")
        assert take(second) == []
        assert parked(conn) == 1
        handler.commit()
        assert ids(take(second)) == [job]


def test_a_handlers_transaction_gives_the_key_its_turn_when_it_commits(database):
    """It holds up no claim, and announces the key though it sees nothing that waits."""
    settled_in_a_handler(database)


@pytest.mark.slow
@pytest.mark.parametrize(
    "guards",
    [
        {"settle_v1": [("forebay._may_look(settle_v1.flush_no));", "true);")]},
        {
            "_release_limits": [
                ("and p_looks then", "then"),
                ("perform forebay._lock_limiter(p_group_id, true);", ""),
            ]
        },
    ],
    ids=["it would hold up claims", "it would leave the job parked"],
)
def test_a_handlers_transaction_must_not_look(database, guards):
    """The same with a settlement that decides in the handler's transaction whether something
    waits.
    """
    for function, substitutions in guards.items():
        break_function(database, function, *substitutions)
    with violation(psycopg.Error):
        settled_in_a_handler(database)


def lease_is_lost(database: str, *, suspects: bool) -> None:
    """A lease with jobs of two keys is revoked while more of both are parked."""
    with (
        connect(database) as conn,
        Reader(database, "q") as first,
        Reader(database, "q") as second,
    ):
        settled_limits(database, conn, key_concurrency=2)
        held = put(conn, "a", 2) + put(conn, "b", 2)
        assert sorted(ids(take(first))) == held
        waits = put(conn, "a", 5) + put(conn, "b", 5)
        assert take(second) == []
        assert parked(conn) == 10
        one(conn, "select forebay.cancel(%s)", held[0])
        assert first.revoked_by(conn, suspects=suspects) == 4
        got = drained(second)
        for seconds in range(10, 60, 5):  # A suspect whose key is full comes again in a second.
            shift_clock(conn, seconds)
            one(conn, "select forebay.promote_v1()")
            got += drained(second)
        assert sorted(got) == held[1:] + waits
        assert unread_recheck_rows(conn) == {}


@pytest.mark.parametrize("suspects", [True, False])
def test_a_lost_lease_gives_the_keys_of_its_jobs_their_turn(database, suspects):
    """Those that were parked, and those that come back, of every key."""
    lease_is_lost(database, suspects=suspects)


def test_without_their_turn_the_jobs_would_stay_parked(database):
    """The same with a revocation that only brings back its jobs."""
    break_function(
        database,
        "_revoke",
        ("if v_batch.limit_keys is not null then", "if false then"),
    )
    with violation():
        lease_is_lost(database, suspects=False)


def suspects_of_one_key(database: str) -> None:
    """A lease with several jobs of one key is lost; nothing else is in the lane of suspects."""
    with (
        connect(database) as conn,
        Reader(database, "q") as first,
        Reader(database, "q") as second,
    ):
        jobs = put(conn, "a", 5)
        assert ids(take(first)) == jobs
        assert first.revoked_by(conn) == 5
        batches = take(second)
        assert [batch.job_ids for batch in batches] == [[job] for job in jobs]


def test_suspects_of_one_key_all_come_back_each_alone(database):
    """A claim takes the first of their run, and its cursor stays before the others."""
    suspects_of_one_key(database)


def test_suspects_would_be_lost_if_the_cursor_passed_the_run(database):
    """The same where a claim of one of them leaves the whole run behind."""
    break_function(database, "_take_limited", ("or v_items[1].jobs > 1;", ";"))
    with violation():
        suspects_of_one_key(database)


# --- turns ---


def announced_too_often(database: str) -> None:
    """One of five keys is announced between the turns of the others, again and again."""
    keys = "abcde"
    with connect(database) as conn, Reader(database, "q") as reader:
        for key in keys:
            put(conn, key, 60)
        held = reader.claim_ready(50)
        assert set(keys_of([held]).values()) == {10}
        offsets = [job["batch_offset"] for job in held.jobs if job["args"]["key"] == "a"]
        for offset in offsets:
            assert reader.settle(held.claim_no, [offset], flush_no=-offset) == "settled"
            reader.finish(reader.claim_ready(1))
        assert unread_recheck_rows(conn)["a"] > 1
        for _ in range(15):
            reader.finish(reader.claim_ready(1))
        counts = Counter()
        for _ in range(50):
            batch = reader.claim_ready(1)
            counts += keys_of([batch])
            reader.finish(batch)
        assert counts == dict.fromkeys(keys, 10)
        assert unread_recheck_rows(conn) == dict.fromkeys(keys, 1)
        drained(reader)
        assert parked(conn) == 0


@pytest.mark.slow
def test_a_key_that_is_announced_more_often_gets_no_more_turns(database):
    """A recheck row counts for one turn: those that others made superfluous are passed over."""
    announced_too_often(database)


@pytest.mark.slow
def test_without_the_number_of_the_turn_it_would(database):
    """The same where every recheck row gives a turn."""
    break_function(
        database,
        "_plan_limited",
        ("and (i.turn is null or i.turn = s.turn & 2147483647)", ""),
    )
    with violation():
        announced_too_often(database)


@pytest.mark.slow
def test_settlements_of_full_keys_do_not_pile_up_recheck_rows(database, conn):
    """Each job is settled separately.

    A claim passes all the rows of a key at once, and both keys keep even turns.
    """
    settled_limits(database, conn, key_concurrency=5)
    put(conn, "a", 60)
    put(conn, "b", 60)
    with Reader(database, "q") as reader:
        for number in range(12):
            batches = take(reader)
            assert keys_of(batches) == {"a": 5, "b": 5}, number
            assert unread_recheck_rows(conn) == {}
            for batch in batches:
                for offset in range(1, len(batch.jobs) + 1):
                    reader.settle(batch.claim_no, [offset], flush_no=offset)
                reader.open_claims.discard(batch.claim_no)
        assert take(reader) == []
        assert unread_recheck_rows(conn) == {}
        written = one(conn, "select count(*) from forebay.log where kind = ''")
        assert written <= 12 * 14


# --- limits that change ---


def parked_behind_one(database: str, conn: psycopg.Connection, reader: Reader) -> list[int]:
    """Let one job run and seven wait for each of two keys; return the ids of those that wait."""
    settled_limits(database, conn, key_concurrency=1)
    put(conn, "a")
    put(conn, "b")
    assert len(ids(take(reader))) == 2
    waits = put(conn, "a", 7) + put(conn, "b", 7)
    assert take(reader) == []
    assert parked(conn) == 14
    return waits


def test_a_raised_limit_lets_parked_jobs_through_at_once(database, conn):
    """Without any settlement, as many of each key as there is room for.

    And lowered again it holds.
    """
    with Reader(database, "q") as reader:
        waits = parked_behind_one(database, conn, reader)
        limit(conn, key_concurrency=4)
        batches = take(reader)
        assert keys_of(batches) == {"a": 3, "b": 3}
        limit(conn, key_concurrency=2)
        assert take(reader) == []
        shift_clock(conn, 20)
        one(conn, "select forebay.promote_v1()")
        assert take(reader) == []
        got = ids(batches)
        for batch in batches:
            reader.finish(batch)
        batches = take(reader)
        assert keys_of(batches) == {"a": 1, "b": 1}
        got += ids(batches)
        for batch in batches:
            reader.finish(batch)
        got += drained(reader)
        assert sorted(got) == waits


def changed_limits_announce_once(database: str) -> None:
    """Limits change while all keys are full; the claims of the next moment follow one another."""
    with connect(database) as conn, Reader(database, "q") as reader:
        parked_behind_one(database, conn, reader)
        limit(conn, key_concurrency=1, key_rate=100.0)
        written = "select count(*) from forebay.log where kind = ''"
        before = one(conn, written)
        for _ in range(5):
            reader.claim_ready(10)
        assert one(conn, written) - before == 2


def test_changed_limits_announce_each_key_once(database):
    """Not at each claim of the second in which jobs in flight are counted from the leases."""
    changed_limits_announce_once(database)


def test_otherwise_claims_would_follow_one_another_for_a_second(database):
    """The same where each of these claims announces all keys."""
    break_function(database, "_seed_limit_keys", ("if v.has_new_limits then", "if true then"))
    with violation():
        changed_limits_announce_once(database)


def test_without_limits_parked_jobs_go_on(database, conn):
    """All limits are removed, and no job is settled."""
    with Reader(database, "q") as reader:
        waits = parked_behind_one(database, conn, reader)
        limit(conn, remove=["all"])
        assert sorted(ids(take(reader))) == waits
        assert parked(conn) == 0


def test_a_rate_instead_lets_parked_jobs_through_in_time(database, conn):
    """The limit on how many at once gives way to one on how many per second."""
    with Reader(database, "q") as reader:
        waits = parked_behind_one(database, conn, reader)
        limit(conn, remove=["key_concurrency"], key_rate=1.0, key_burst=1)
        got = []
        for second in range(30):
            shift_clock(conn, 10 + 1.1 * second)
            one(conn, "select forebay.promote_v1()")
            batches = take(reader)
            assert max(keys_of(batches).values(), default=0) <= 1
            got += ids(batches)
        assert sorted(got) == waits
        assert parked(conn) == 0


def test_without_announcements_a_raised_limit_would_leave_them(database, conn):
    """The mutant: the first claim under new limits gives no key its turn."""
    break_function(database, "_seed_limit_keys", ("if v.has_new_limits then", "if false then"))
    with violation():
        test_a_raised_limit_lets_parked_jobs_through_at_once(database, conn)


def test_without_a_claim_a_raised_limit_would_leave_them(database, conn):
    """The mutant: nothing is written that a poll finds."""
    break_function(database, "limit_queue", ("where g.queue = v_given.queue;", "where false;"))
    with violation():
        test_a_raised_limit_lets_parked_jobs_through_at_once(database, conn)


# --- a parked job is seen and changed like others ---


def test_a_parked_job_counts_as_ready(database, conn):
    """For everybody who asks: about the job, the queue, its groups, or the key."""
    with Reader(database, "q") as reader:
        settled_limits(database, conn, key_concurrency=1)
        (runs,) = put(conn, "a")
        take(reader)
        waits = put(conn, "a", 4)
        enqueue(conn, queue="q", limit_key="b", delay="1 hour")
        assert take(reader) == []
        assert parked(conn) == 4
        assert [state(conn, job) for job in [runs, *waits]] == ["claimed"] + ["ready"] * 4
        assert depth(conn, "q") == {"default": (4, 1, 1)}
        assert one(conn, "select unread from forebay.groups('q')") == 4
        query = (
            'select job_id from forebay.jobs(only_state => %s, filter => \'{"limit_key": '
            '"a"}\') order by 1'
        )
        assert [job for (job,) in conn.execute(query, ["ready"]).fetchall()] == waits
        assert [job for (job,) in conn.execute(query, ["claimed"]).fetchall()] == [runs]


def test_a_cancelled_parked_job_never_runs(database, conn):
    """Singly by its id, or all of a key: then no other key's."""
    with Reader(database, "q") as reader:
        waits = parked_behind_one(database, conn, reader)
        a, b = waits[:7], waits[7:]
        one(conn, "select forebay.cancel(%s)", b[2])
        query = "select answer, jobs from forebay.change_jobs('cancel', %s, '{}')"
        found = dict(
            conn.execute(
                query, [json.dumps({"limit_key": "a", "queue": "q", "state": "ready"})]
            ).fetchall()
        )
        assert found == {"cancelled": 7}
        reader.finish(running(reader))
        got = drained(reader)
        assert got == [job for job in b if job != b[2]]
        assert {state(conn, job) for job in [*a, b[2]]} == {"cancelled"}
        assert parked(conn) == 0
        assert depth(conn, "q") == {"default": (0, 0, 0)}
        new = put(conn, "a")
        assert drained(reader) == new


def test_an_expired_parked_job_becomes_a_dead_letter(database, conn):
    """When its key has a turn; those behind it run."""
    with Reader(database, "q") as reader:
        settled_limits(database, conn, key_concurrency=1)
        put(conn, "a")
        (batch,) = take(reader)
        (old,) = put(conn, "a", expires_at="2035-01-01T00:00:00+00:00")
        (new,) = put(conn, "a", expires_at="2095-01-01T00:00:00+00:00")
        assert take(reader) == []
        shift_clock(conn, 86400 * 365 * 20)
        reader.finish(batch)
        assert drained(reader) == [new]
        assert state(conn, old) == "expired"
        letters = conn.execute("select job_id, limit_key from forebay.dead_letter").fetchall()
        assert letters == [(old, "a")]
        assert parked(conn) == 0


@pytest.mark.parametrize("mode", ["once", "coalesce", "replace"])
def test_a_parked_job_keeps_its_unique_key(database, conn, mode):
    """It waits: others join it or replace it. When it is done the key is free."""

    def ask() -> tuple:
        query = (
            "select job_id, is_new, replaced from forebay.enqueue_unique('work', '{}', %s, "
            "'q', limit_key => 'a')"
        )
        return conn.execute(query, [json.dumps({mode: "k"})]).fetchone()

    with Reader(database, "q") as reader:
        settled_limits(database, conn, key_concurrency=1)
        put(conn, "a")
        (batch,) = take(reader)
        first, is_new, _ = ask()
        assert is_new
        assert take(reader) == []
        assert parked(conn) == 1
        again, is_new, replaced = ask()
        if mode == "replace":
            assert is_new
            assert replaced == first
        else:
            assert (again, is_new) == (first, False)
        assert take(reader) == []
        reader.finish(batch)
        assert drained(reader) == [again]
        assert state(conn, first) == ("cancelled" if mode == "replace" else "done")
        assert parked(conn) == 0
        free, is_new, replaced = ask()
        assert (is_new, replaced) == (True, None)
        assert drained(reader) == [free]


# --- what is kept, and what is deleted ---


def later_segments(conn: psycopg.Connection, reader: Reader) -> None:
    """Fill some more segments, and empty and trim what is not needed."""
    for _ in range(2):
        one(conn, "select forebay.extend_v1()")
        enqueue_many(conn, [{"kind": "work", "queue": "q"}] * 100)
        drained(reader)
    one(conn, "select forebay.seal_v1()")
    enqueue(conn, queue="q")
    drained(reader)
    for _ in range(20):
        if one(conn, "select emptied from forebay.retain_v1()") is None:
            break
    trim(conn)


@pytest.fixture
def short_history(conn):
    """Segments of a hundred rows, emptied as soon as nothing of them is needed."""
    small_segments(conn, rows=100, reserve=1000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(conn, "select forebay.configure('retention_days', 0)")


def kept_while_parked(database: str, conn: psycopg.Connection) -> None:
    """Jobs wait for their key's bucket, and no worker has any, while some more segments are
    filled.
    """
    kept = "select removed_at is null from forebay.segment where lo <= %s and hi > %s"
    rows = "select count(*) from forebay.{} where limit_key = 'a'"
    with Reader(database, "q") as reader:
        settled_limits(database, conn, key_rate=0.001, key_burst=1)
        put(conn, "a")
        assert len(drained(reader)) == 1
        later_segments(conn, reader)
        waits = put(conn, "a", 2)
        assert take(reader) == []
        assert parked(conn) == 2
        shift_clock(conn, 2000)
        later_segments(conn, reader)
        assert one(conn, kept, waits[0], waits[0])
        assert state(conn, waits[0]) == "ready"
        one(conn, "select forebay.promote_v1()")
        assert drained(reader) == waits[:1]
        shift_clock(conn, 4000)
        one(conn, "select forebay.promote_v1()")
        assert drained(reader) == waits[1:]
        shift_clock(conn, 6000)
        for _ in range(2):
            later_segments(conn, reader)
        assert not one(conn, kept, waits[0], waits[0])
        assert one(conn, rows.format("limit_parked")) == 0
        assert one(conn, rows.format("limit_run")) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("short_history")
def test_a_segment_with_parked_jobs_is_kept_with_the_state_of_their_key(database, conn):
    """As long as they wait; afterwards nothing of the key is left."""
    kept_while_parked(database, conn)


@pytest.mark.slow
@pytest.mark.usefixtures("short_history")
@pytest.mark.parametrize(
    ("function", "guard", "instead"),
    [
        ("_segment_holders", "and s.segment_id = any (p_segments);", "and false;"),
        ("_trim_limit_runs", "coalesce(t.waiting, 0) = 0 and", ""),
    ],
    ids=["the segment", "the state"],
)
def test_without_its_guard_they_would_not_be_kept(database, conn, function, guard, instead):
    """The mutants: retention and trimming do not ask whether jobs are parked."""
    break_function(database, function, (guard, instead))
    with violation(psycopg.Error):
        kept_while_parked(database, conn)


@pytest.mark.slow
@pytest.mark.usefixtures("short_history")
def test_a_key_with_jobs_in_flight_keeps_its_state(database, conn):
    """However long they run: no more of it start."""
    with Reader(database, "q") as first, Reader(database, "q") as reader:
        settled_limits(database, conn, key_concurrency=2)
        put(conn, "a", 2)
        (batch,) = take(first)
        later_segments(conn, reader)
        waits = put(conn, "a", 1)
        assert take(reader) == []
        first.settle(batch.claim_no, [1], flush_no=1)
        assert ids(take(reader)) == waits


def test_a_closed_group_leaves_no_state_of_keys(database, conn):
    """Its jobs are given up, parked or not; another group keeps its own."""
    count = "select count(*) from forebay.{} where group_id = %s"
    open_group(conn, "q")
    gone = open_group(conn, "q", "gone")
    settled_limits(database, conn, key_concurrency=1)
    with Reader(database, "q", "gone") as reader:
        drained(reader)
        put(conn, "a", 5)
        (batch,) = take(reader)
        assert parked(conn) == 4
        reader.finish(batch)
        conn.execute("select forebay.close_lease_v1(%s)", [reader.lease_id])
    with Reader(database, "q") as other:
        (batch,) = take(other)
        assert parked(conn) == 8
        conn.execute("select * from forebay.close_group('q', 'gone', true)")
        while one(conn, "select forebay.close_groups()"):
            pass
        for table in ("limit_run", "limit_parked", "limiter"):
            assert one(conn, count.format(table), gone) == 0, table
        other.finish(batch)
        assert len(drained(other)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_an_adopted_log_has_its_parked_jobs_once_or_not_at_all(server, database, conn, resume):
    """In a copy of the database, with a job that runs and jobs that are parked."""
    with Reader(database, "q") as reader:
        waits = parked_behind_one(database, conn, reader)
    name = f"{conn.info.dbname}_copy"
    source = conn.info.dbname
    conn.close()
    dsn = create_database(server, name, source)
    try:
        with connect(dsn) as copy:
            adoption = copy.execute("select * from forebay.adopt_v1(%s)", [resume]).fetchone()
        with connect(dsn) as copy, Reader(dsn, "q") as reader:
            assert adoption == ((16, 0) if resume else (0, 16))
            assert parked(copy) == 0
            got = drained(reader)
            assert len(got) == (16 if resume else 0)
            assert set(got) >= (set(waits) if resume else set())
            new = put(copy, "a", 2)
            assert drained(reader) == new
    finally:
        drop_database(server, name)


# --- jobs in flight without a row of their key ---


def counted_without_rows(database: str) -> None:
    """Keys have one job each: few open batches need no row of a key, and further ones do.

    The keys of all of them are full.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        settled_limits(database, conn, key_concurrency=1)
        batches = []
        for number in range(20):
            put(conn, f"key {number}")
            batches += take(reader)
        assert len(batches) == 20
        assert one(conn, "select count(*) from forebay.limit_run where limit_key like 'key %'") == 4
        waits = [job for number in range(20) for job in put(conn, f"key {number}")]
        assert take(reader) == []
        for batch in batches:
            reader.finish(batch)
        assert sorted(drained(reader)) == waits


def test_jobs_in_flight_need_a_row_of_their_key_only_behind_many_open_batches(database):
    """Most claims write nothing for a key of which no job waits."""
    counted_without_rows(database)


@pytest.mark.parametrize(
    ("function", "guard", "instead"),
    [
        (
            "_limit_states",
            "i.bare_leases, i.bare_claims",
            "i.bare_leases, null::bigint[] as bare_claims",
        ),
        ("_read_limiter", "k.batches < 16", "true"),
        ("_record_limiter", "v.bare_leases || p_lease_id", "array[p_lease_id]"),
    ],
    ids=["states that leave them out", "no bound", "a list of one"],
)
def test_without_its_guard_a_job_in_flight_is_missed(database, function, guard, instead):
    """The mutants: a key looks free, or the number of batches that each claim reads grows."""
    break_function(database, function, (guard, instead))
    with violation():
        counted_without_rows(database)


def counted_once(database: str) -> None:
    """A claim that parks a job writes the row of its key.

    A job in flight is then in the row and in its batch.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        settled_limits(database, conn, key_concurrency=2)
        put(conn, "a")
        put(conn, "b")
        (first,) = take(reader)
        assert first.job_ids != []
        waits = put(conn, "a", 3)
        (second,) = take(reader)
        assert second.job_ids == waits[:1]
        assert parked(conn) == 2
        reader.settle(first.claim_no, [1], flush_no=1)
        assert ids(take(reader)) == waits[1:2]
        reader.finish(second)
        assert ids(take(reader)) == waits[2:]
        put(conn, "b", 2)
        assert len(ids(take(reader))) == 1


def test_a_job_in_flight_that_is_in_a_row_and_in_its_batch_counts_once(database):
    """Otherwise slots of the key would stay empty."""
    counted_once(database)


def test_counted_twice_it_would_leave_a_slot_empty(database):
    """The mutant: each mention of a job in flight counts."""
    break_function(
        database,
        "_limit_states",
        (
            "group by u.nr, u.lease_id, u.claim_no, u.place",
            "group by u.nr, u.lease_id, u.claim_no, u.place, u.job",
        ),
    )
    with violation():
        counted_once(database)


# --- what it costs ---


def pages_with(database: str, conn: psycopg.Connection, keys: int) -> tuple[int, int]:
    """Return the pages that a poll and a claim of a hundred jobs read with so many keys of which
    jobs are parked.
    """
    with Reader(database, f"q{keys}") as reader:
        jobs = [
            {"kind": "work", "queue": reader.queue, "limit_key": f"{number}"}
            for number in range(keys)
            for _ in range(max(2, 4000 // keys))
        ]
        enqueue_many(conn, jobs)
        for _ in range(2):  # From now on each key has parked jobs.
            reader.finish(reader.claim_ready(1000))
        lane = reader.ready()[0]["lane"]
        poll = pages(
            reader.conn, "select * from forebay.ready_v1(%s::bigint[])", [[reader.group_id]]
        )
        reader.claim_no += 1
        claim = pages(
            reader.conn,
            "select forebay.claim_v1(%s, %s, %s, %s, %s, 100)",
            [reader.lease_id, reader.claim_no, reader.claim_no, reader.group_id, lane],
        )
        return poll, claim


@pytest.mark.slow
def test_a_claim_reads_the_same_with_many_keys_as_with_few(database, conn):
    """It looks at as many keys as it hands out jobs, not at those that wait."""
    few = pages_with(database, conn, 100)
    many = pages_with(database, conn, 2000)
    assert many[0] <= 2 * few[0], (few, many)
    assert many[1] <= 2 * few[1], (few, many)


def test_many_jobs_of_one_key_do_not_hold_up_others(database, conn):
    """Twenty keys of a few jobs come behind five thousand of another one."""
    put(conn, "greedy", 5000)
    for number in range(20):
        put(conn, f"small {number}", 5)
    with Reader(database, "q") as reader:
        batches = [reader.claim_ready(25) for _ in range(3)]
        counts = keys_of(batches)
        assert len(counts) == 21, counts


def trimmed_after_a_cancellation(database: str) -> list[int]:
    """The last decision about a key took no job: those that waited were cancelled.

    Return what runs of the next job.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        small_segments(conn, rows=100, reserve=1000)
        one(conn, "select forebay.configure('retention_days', 0)")
        one(conn, "select setval('forebay.log_seq', nextval('forebay.log_seq') + 350)")
        one(conn, "select forebay.seal_v1()")
        while one(conn, "select emptied from forebay.retain_v1()") is not None:
            pass
        settled_limits(database, conn, key_concurrency=1)
        _, waits = put(conn, "a", 2)
        (batch,) = take(reader)
        assert parked(conn) == 1
        reader.finish(batch)
        one(conn, "select forebay.cancel(%s)", waits)
        assert ids(take(reader)) == []
        assert parked(conn) == 0
        trim(conn)
        put(conn, "a")
        return drained(reader)


@pytest.mark.slow
def test_trimming_leaves_the_newest_state_of_a_key(database):
    """It has no numbers of jobs, unlike the one before, by which the key would still wait."""
    assert len(trimmed_after_a_cancellation(database)) == 1


def test_without_the_guard_a_trimmed_key_would_wait_for_ever(database):
    """The control: the newest state goes before an older one."""
    break_function(database, "_trim_limit_runs", ("and not v_key.has_older", ""))
    assert trimmed_after_a_cancellation(database) == []

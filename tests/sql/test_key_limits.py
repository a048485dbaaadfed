"""Limits of one limit key: they replace those that the queue has for each key, live, and are
never exceeded.
"""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from tests.support.engine import (
    Batch,
    Reader,
    connect,
    enqueue_many,
    one,
    shift_clock,
    sqlstate,
)
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for

INTERVAL = 60  # seconds between two starts of the rate that the tests use


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def limit(conn: psycopg.Connection, key: str, **given: object) -> dict | None:
    """Set limits of a key of the queue; return the ones before."""
    named = "".join(f", {name} => %s" for name in given)
    return one(conn, f"select forebay.limit_key('q', %s{named})", key, *given.values())


def limit_queue(conn: psycopg.Connection, **given: object) -> dict | None:
    named = "".join(f", {name} => %s" for name in given)
    return one(conn, f"select forebay.limit_queue('q'{named})", *given.values())


def probes(conn: psycopg.Connection, key: str, seconds: float) -> None:
    """Let one job of a key start after so many seconds, by the clock of the database, then one
    per interval.
    """
    call = "select forebay._set_key_probes('q', %s, %s, forebay._now() + make_interval(secs => %s))"
    one(conn, call, key, INTERVAL, seconds)


def put(
    conn: psycopg.Connection, key: str | None, count: int = 1, ordering: bool = False
) -> list[int]:
    """Enqueue so many jobs of a key, each with an ordering key that no other one has, or without
    one.
    """
    jobs = [
        {"kind": "work", "queue": "q", "limit_key": key, "args": {"key": key}}
        | ({"ordering_key": f"o{conn.info.backend_pid} {key} {nr}"} if ordering else {})
        for nr in range(count)
    ]
    return enqueue_many(conn, jobs)


def take(reader: Reader, limit: int = 100) -> list[Batch]:
    """Claim until nothing is ready; return the batches."""
    batches = []
    for _ in range(1000):
        lanes = reader.ready()
        if not lanes:
            return batches
        for lane in lanes:
            batch = reader.claim(limit, lane["lane"])
            if batch.jobs:
                batches.append(batch)
    raise AssertionError("the queue is always ready")


def taken(reader: Reader, limit: int = 100) -> Counter:
    """Claim until nothing is ready; return how many jobs each key got."""
    return Counter(job["args"]["key"] for batch in take(reader, limit) for job in batch.jobs)


def finish_all(reader: Reader) -> None:
    for claim_no in sorted(reader.open_claims):
        reader.finish(Batch(claim_no, []))


def advance(conn: psycopg.Connection, seconds: float) -> None:
    """Set the clock of the database so far ahead of the true time, and promote what is due."""
    shift_clock(conn, seconds)
    while one(conn, "select forebay.promote_v1()"):
        pass


both_sorts = pytest.mark.parametrize("ordering", [False, True], ids=["limit key", "both keys"])


# --- they replace the limits of the queue ---


@both_sorts
def test_a_key_may_have_more_or_less_than_the_others(database, conn, ordering):
    limit_queue(conn, key_concurrency=3)
    limit(conn, "big", concurrency=7)
    limit(conn, "small", concurrency=1)
    with Reader(database, "q") as reader:
        for key in ("big", "small", "other"):
            put(conn, key, 10, ordering)
        assert taken(reader) == {"big": 7, "small": 1, "other": 3}
        finish_all(reader)
        assert taken(reader) == {"big": 3, "small": 1, "other": 3}


@both_sorts
def test_a_key_has_limits_where_the_queue_has_none(database, conn, ordering):
    limit(conn, "small", concurrency=2)
    with Reader(database, "q") as reader:
        put(conn, "small", 5, ordering)
        put(conn, "other", 5, ordering)
        assert taken(reader) == {"small": 2, "other": 5}
        finish_all(reader)
        assert taken(reader) == {"small": 2}
        finish_all(reader)
        assert taken(reader) == {"small": 1}
        assert taken(reader) == {}


@both_sorts
def test_a_key_may_have_another_rate(database, conn, ordering):
    limit_queue(conn, key_rate=1 / INTERVAL, key_burst=2)
    limit(conn, "fast", rate=100.0, burst=5)
    limit(conn, "slow", rate=1 / INTERVAL)
    with Reader(database, "q") as reader:
        for key in ("fast", "slow", "other"):
            put(conn, key, 20, ordering)
        got = Counter()
        got.update(taken(reader))
        assert got["slow"] == 1
        assert got["other"] == 2
        assert got["fast"] >= 5
        for nr in range(1, 4):
            finish_all(reader)
            advance(conn, nr * (INTERVAL + 1))
            got.update(taken(reader))
            assert got["slow"] == 1 + nr
            assert got["other"] == 2 + nr
        assert got["fast"] == 20


def test_a_key_keeps_the_limits_of_the_queue_that_it_does_not_replace(database, conn):
    limit_queue(conn, key_concurrency=2)
    limit(conn, "a", rate=1000.0, burst=1000)
    with Reader(database, "q") as reader:
        put(conn, "a", 5)
        assert taken(reader) == {"a": 2}


@both_sorts
def test_jobs_of_several_workers_count_for_the_key(database, conn, ordering):
    limit_queue(conn, key_concurrency=1)
    limit(conn, "a", concurrency=4)
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(database, "q")) for _ in range(3)]
        put(conn, "a", 9, ordering)
        got = Counter()
        for reader in readers:
            got.update(taken(reader, 2))
        assert got == {"a": 4}


# --- changed while jobs wait or run ---


@both_sorts
@pytest.mark.parametrize("of_queue", [None, 6])
def test_jobs_that_run_already_count(database, conn, ordering, of_queue):
    """They were claimed when the key had no limit of its own, and were not recorded for the key
    if the queue had none.
    """
    if of_queue is not None:
        limit_queue(conn, key_concurrency=of_queue)
    limit(conn, "other", concurrency=1)
    with Reader(database, "q") as reader:
        put(conn, "a", 3, ordering)
        assert taken(reader) == {"a": 3}
        advance(conn, 5)
        limit(conn, "a", concurrency=4)
        put(conn, "a", 4, ordering)
        assert taken(reader) == {"a": 1}
        finish_all(reader)
        assert taken(reader) == {"a": 3}


def count_from_leases(database: str, ordering: bool) -> None:
    """Jobs run, of a key without any limit, when it gets its first one, in a queue where another
    key has limits.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        limit(conn, "other", concurrency=1)
        put(conn, "other", 1, ordering)
        taken(reader)
        finish_all(reader)
        advance(conn, 5)
        put(conn, "a", 3, ordering)
        assert taken(reader) == {"a": 3}
        limit(conn, "a", concurrency=4)
        put(conn, "a", 4, ordering)
        assert taken(reader) == {"a": 1}
        advance(conn, 10)
        assert taken(reader) == {}
        finish_all(reader)
        assert taken(reader) == {"a": 3}


@both_sorts
def test_the_first_limit_of_a_key_counts_the_jobs_from_the_leases(database, ordering):
    count_from_leases(database, ordering)


def test_else_they_would_not_count(database):
    break_function(database, "_limit_states", ("t.limits_no is distinct from o.no as", "false as"))
    with violation():
        count_from_leases(database, False)


@both_sorts
def test_a_higher_limit_frees_waiting_jobs(database, conn, ordering):
    limit(conn, "a", concurrency=1)
    with Reader(database, "q") as reader:
        put(conn, "a", 9, ordering)
        assert taken(reader) == {"a": 1}
        limit(conn, "a", concurrency=4)
        assert taken(reader) == {"a": 3}
        limit(conn, "a", concurrency=2)
        assert taken(reader) == {}
        finish_all(reader)
        assert taken(reader) == {"a": 2}


@both_sorts
def test_a_removed_limit_frees_all_that_waits(database, conn, ordering):
    limit(conn, "a", rate=1 / INTERVAL, concurrency=1)
    with Reader(database, "q") as reader:
        put(conn, "a", 9, ordering)
        assert taken(reader) == {"a": 1}
        finish_all(reader)
        assert taken(reader) == {}
        assert limit(conn, "a", remove=True) == {
            "rate": pytest.approx(1 / INTERVAL),
            "concurrency": 1,
        }
        assert taken(reader) == {"a": 8}
        assert one(conn, "select count(*) from forebay.queue_limits") == 0


@both_sorts
def test_without_its_look_the_key_would_wait(database, ordering):
    break_function(
        database,
        "_write_key_limits",
        ("perform forebay._announce_key(n.queue, 'limit', n.key);", ""),
    )
    with connect(database) as conn, violation():
        test_a_removed_limit_frees_all_that_waits(database, conn, ordering)


@both_sorts
def test_the_limits_of_the_queue_apply_again(database, conn, ordering):
    limit_queue(conn, key_concurrency=3)
    limit(conn, "a", concurrency=1)
    with Reader(database, "q") as reader:
        put(conn, "a", 9, ordering)
        assert taken(reader) == {"a": 1}
        limit(conn, "a", remove=True)
        assert taken(reader) == {"a": 2}


def claimed_meanwhile(database: str, ordering: bool) -> None:
    """A claim is held up before its commit, and the key gets the first limits of the queue.

    Then another worker claims.
    """
    with (
        connect(database) as conn,
        Reader(database, "q") as first,
        Reader(database, "q") as second,
        psycopg.connect(database) as brake,
        ThreadPoolExecutor(1) as thread,
    ):
        conn.execute(
            "create function public.brake() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock(4711); return new; end $$"
        )
        conn.execute(
            "create trigger brake before insert on forebay.batch for each row when "
            "(new.seqs is not null)"
            " execute function public.brake()"
        )
        put(conn, "a", 2, ordering)
        brake.execute("select pg_advisory_xact_lock(4711)")
        claim = thread.submit(first.claim_ready, 10)
        pid = first.conn.info.backend_pid
        wait_for(lambda: one(conn, "select cardinality(pg_blocking_pids(%s)) > 0", pid), 20)
        limit(conn, "a", concurrency=3)
        brake.commit()
        assert len(claim.result(20).jobs) == 2
        put(conn, "a", 5, ordering)
        assert taken(second) == {"a": 1}
        advance(conn, 5)
        assert taken(second) == {}
        finish_all(second)
        assert taken(second) == {"a": 1}
        finish_all(first)
        assert taken(second) == {"a": 2}


@both_sorts
def test_a_claim_in_progress_counts(database, ordering):
    claimed_meanwhile(database, ordering)


def test_else_a_claim_that_did_not_pass_the_limiter_would_not_count(database):
    """The same without the count from the leases, of all keys and of the key with the new
    limits.
    """
    seeds = "v_seeds := v.has_new_limits or v.seed_until >= v.at;"
    break_function(database, "_claim_limited", (seeds, "v_seeds := false;"))
    break_function(database, "_decide_keyed", ("v.seed_until >= v.at", "false"))
    break_function(database, "_limit_states", ("t.limits_no is distinct from o.no as", "false as"))
    with violation():
        claimed_meanwhile(database, True)


# --- a bucket that is empty until a time ---


@both_sorts
@pytest.mark.parametrize("of_queue", [None, 5])
def test_one_job_starts_at_the_time_and_one_per_interval_after(database, conn, ordering, of_queue):
    if of_queue is not None:
        limit_queue(conn, key_concurrency=of_queue)
    with Reader(database, "q") as reader:
        put(conn, "a", 2, ordering)
        assert taken(reader) == {"a": 2}
        probes(conn, "a", 30)
        put(conn, "a", 9, ordering)
        put(conn, "b", 2, ordering)
        assert taken(reader) == {"b": 2}
        finish_all(reader)
        assert taken(reader) == {}
        advance(conn, 29)
        assert taken(reader) == {}
        advance(conn, 31)
        assert taken(reader) == {"a": 1}
        advance(conn, 32 + INTERVAL)
        assert taken(reader) == {}, "the first one runs"
        finish_all(reader)
        assert taken(reader) == {"a": 1}
        finish_all(reader)
        advance(conn, 31 + 2 * INTERVAL - 2)
        assert taken(reader) == {}
        advance(conn, 32 + 3 * INTERVAL)
        assert taken(reader) == {"a": 1}
        finish_all(reader)
        # The endpoint has answered.
        one(conn, "select forebay._set_key_probes('q', 'a', null, null)")
        assert taken(reader)["a"] == (of_queue or 6)


def test_the_time_counts_from_the_change_whatever_a_claim_decided_meanwhile(database, conn):
    """A claim that was in progress when the limits were set records a bucket of the earlier
    rate, later than they were set.
    """
    limit_queue(conn, key_rate=10.0)
    with Reader(database, "q") as reader:
        put(conn, "a", 30)
        with psycopg.connect(database) as setter:
            probes(setter, "a", 30)
            assert taken(reader)["a"] >= 10
            setter.commit()
        finish_all(reader)
        advance(conn, 25)
        assert taken(reader) == {}
        advance(conn, 31)
        assert taken(reader) == {"a": 1}


def test_else_the_claim_would_open_the_bucket(database):
    """The same with a state that compares times, instead of the number of the change."""
    break_function(
        database,
        "_limit_states",
        (
            "t.limits_no is distinct from o.no as",
            "coalesce(t.decided_at < o.set_at, o.no is not null) as",
        ),
    )
    with connect(database) as conn, violation():
        test_the_time_counts_from_the_change_whatever_a_claim_decided_meanwhile(database, conn)


@both_sorts
def test_a_key_without_jobs_waits_for_the_time_too(database, conn, ordering):
    probes(conn, "a", 30)
    with Reader(database, "q") as reader:
        put(conn, "a", 3, ordering)
        assert taken(reader) == {}
        advance(conn, 31)
        assert taken(reader) == {"a": 1}


def test_a_key_that_is_paused_too_waits_for_both(database, conn):
    probes(conn, "a", 30)
    one(conn, "select forebay.pause_key('q', limit_key => 'a')")
    with Reader(database, "q") as reader:
        put(conn, "a", 3)
        advance(conn, 40)
        assert taken(reader) == {}
        one(conn, "select forebay.resume_key('q', limit_key => 'a')")
        assert taken(reader) == {"a": 1}
        finish_all(reader)
        one(conn, "select forebay.pause_key('q', limit_key => 'a')")
        one(conn, "select forebay._set_key_probes('q', 'a', null, null)")
        assert taken(reader) == {}
        one(conn, "select forebay.resume_key('q', limit_key => 'a')")
        assert taken(reader) == {"a": 2}


def claimed_bare(database: str) -> None:
    """The queue has a limit on concurrency only, so that claims need not record each key.

    One key has a rate.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        limit_queue(conn, key_concurrency=5)
        limit(conn, "a", rate=1 / INTERVAL, burst=1)
        assert taken(reader) == {}
        for nr in range(3):
            put(conn, "a")
            put(conn, "b")
            assert taken(reader) == {"b": 1} | ({} if nr else {"a": 1})
            finish_all(reader)
            advance(conn, 2 * nr)


def test_a_rate_holds_where_claims_do_not_record_each_key(database):
    claimed_bare(database)


def test_else_its_bucket_would_stay_full(database):
    break_function(
        database,
        "_take_limited",
        (
            (
                "where s.rate is not null or s.has_new_limits or s.concurrency is not null and "
                "not v.is_bare"
            ),
            "where not v.is_bare and num_nonnulls(s.concurrency, s.rate) > 0",
        ),
    )
    with violation():
        claimed_bare(database)


@both_sorts
def test_a_revoked_lease_gives_the_slot_back(database, conn, ordering):
    """The probe's worker is lost: its job returns as a suspect, which counts as the next probe."""
    probes(conn, "a", 0)
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        put(conn, "a", 3, ordering)
        assert taken(reader) == {"a": 1}
        advance(conn, INTERVAL + 1)
        assert taken(other) == {}
        reader.revoked_by(conn)
        assert taken(other) == {"a": 1}
        advance(conn, 2 * INTERVAL + 2)
        assert taken(other) == {}
        finish_all(other)
        assert taken(other) == {"a": 1}


def test_two_calls_for_one_key_both_count(database, conn):
    """The later one waits for the earlier one, and keeps what that one has set."""
    with (
        psycopg.connect(database) as first,
        psycopg.connect(database) as second,
        ThreadPoolExecutor(1) as thread,
    ):
        limit(first, "a", rate=2.0)
        later = thread.submit(limit, second, "a", concurrency=3)
        pid = second.info.backend_pid
        wait_for(lambda: one(conn, "select cardinality(pg_blocking_pids(%s)) > 0", pid), 20)
        first.commit()
        assert later.result(20) == {"rate": 2}
        second.commit()
    assert limit(conn, "a", remove=True) == {"rate": 2, "concurrency": 3}


def removed_beside_another(database: str) -> None:
    """A key gets its limits in an open transaction, while the only other key loses them."""
    with (
        connect(database) as conn,
        psycopg.connect(database) as setter,
        connect(database) as remover,
        Reader(database, "q") as reader,
        ThreadPoolExecutor(1) as thread,
    ):
        limit(conn, "b", concurrency=1)
        limit(setter, "a", concurrency=1)
        removal = thread.submit(limit, remover, "b", remove=True)
        pid = remover.info.backend_pid
        wait_for(
            lambda: (
                removal.done() or one(conn, "select cardinality(pg_blocking_pids(%s)) > 0", pid)
            ),
            20,
        )
        setter.commit()
        removal.result(20)
        put(conn, "a", 3, ordering=True)
        assert taken(reader) == {"a": 1}


def test_a_removal_does_not_open_the_limiter_of_another_key(database):
    removed_beside_another(database)


def test_without_the_lock_it_would(database):
    break_function(
        database,
        "limit_key",
        (
            "perform from forebay.queue_limits l where l.queue = limit_key.queue for update;",
            "",
        ),
        ("perform forebay._lock_settings();", ""),
        (
            "update forebay.queue_limits l set",
            "perform pg_sleep(0); update forebay.queue_limits l set",
        ),
    )
    with violation():
        removed_beside_another(database)


def test_a_claim_does_not_read_the_table_before_it_was_used(database, conn):
    """So never used, it costs nothing."""
    scans = (
        "select seq_scan + idx_scan from pg_stat_all_tables where relid = "
        "'forebay.key_limits'::regclass"
    )

    def read(reader: Reader) -> bool:
        one(conn, "select pg_stat_force_next_flush()::text")
        before = one(conn, scans)
        put(conn, "a")
        put(conn, "b", ordering=True)
        assert taken(reader) == {"a": 1, "b": 1}
        finish_all(reader)
        one(reader.conn, "select pg_stat_force_next_flush()::text")
        one(reader.conn, "select 1")
        return one(conn, scans) != before

    limit_queue(conn, key_concurrency=5)
    with Reader(database, "q") as reader:
        assert not read(reader)
        limit(conn, "a", concurrency=2)
        assert read(reader)


# --- the settings ---


def test_only_the_given_limits_change(conn):
    assert limit(conn, "a", rate=2.0, burst=5) is None
    assert limit(conn, "a", concurrency=3) == {"rate": 2, "burst": 5}
    assert limit(conn, "a", rate=4.0) == {"rate": 2, "burst": 5, "concurrency": 3}
    assert limit(conn, "a", remove=True, concurrency=1) == {"rate": 4, "burst": 5, "concurrency": 3}
    assert limit(conn, "a", remove=True) == {"concurrency": 1}
    assert limit(conn, "a", remove=True) is None


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"remove": False},
        {"rate": 0.0},
        {"rate": 1e9},
        {"burst": 3},
        {"burst": 0, "rate": 1.0},
        {"concurrency": 0},
    ],
)
def test_a_bad_limit_is_refused(conn, given):
    named = "".join(f", {name} => %s" for name in given)
    query = f"select forebay.limit_key('q', 'a'{named})"
    assert sqlstate(conn, query, *given.values()) == "JQ001"
    assert one(conn, "select count(*) from forebay.key_limits") == 0


@pytest.mark.parametrize(
    ("queue", "key"), [("no queue", "a"), ("q", ""), ("q", "x" * 201), (None, "a"), ("q", None)]
)
def test_a_bad_key_is_refused(conn, queue, key):
    assert sqlstate(conn, "select forebay.limit_key(%s, %s, 1)", queue, key) == "JQ001"


def test_a_change_is_an_event(conn):
    limit(conn, "a", rate=2.0)
    limit(conn, "a", rate=2.0)
    limit(conn, "a", remove=True)
    found = conn.execute(
        "select act, queue, old, new from forebay.events() where act like 'keys.%' order "
        "by event_id"
    ).fetchall()
    assert found == [
        ("keys.limit", "q", {"limit_key": "a"}, {"limit_key": "a", "rate": 2}),
        ("keys.limit", "q", {"limit_key": "a", "rate": 2}, {"limit_key": "a"}),
    ]


def test_the_queue_keeps_its_limiter_while_a_key_has_limits(database, conn):
    limit(conn, "a", concurrency=1)
    limit_queue(conn, concurrency=5)
    limit_queue(conn, remove=["all"])
    with Reader(database, "q") as reader:
        put(conn, "a", 3, ordering=True)
        assert taken(reader) == {"a": 1}
    limit(conn, "a", remove=True)
    assert one(conn, "select count(*) from forebay.queue_limits") == 0


def test_the_limits_are_shown(database, conn):
    limit_queue(conn, key_concurrency=5)
    limit(conn, "a", rate=2.0, concurrency=1)
    with Reader(database, "q") as reader:
        put(conn, "a", 3)
        taken(reader)
    query = "select reason, running, waiting, limits from forebay.{}"
    assert conn.execute(query.format("key('q', limit_key => 'a')")).fetchall() == [
        ("concurrency", 1, 2, {"rate": 2, "concurrency": 1})
    ]
    assert one(conn, "select limits from forebay.keys('q')") == {"rate": 2, "concurrency": 1}
    assert one(conn, "select limits from forebay.key('q', limit_key => 'b')") is None
    (job,) = put(conn, "a")
    facts = one(conn, "select facts from forebay.explain_job(%s)", job)
    assert facts["limits"]["key_concurrency"] == 1
    assert facts["limits"]["key_rate"] == 2
    json.dumps(facts)

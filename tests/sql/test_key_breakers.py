"""Breakers of limit keys: after failures in a row the jobs of the key wait, one probe runs at a
time, and a success lets the others run.
"""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

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
    trim,
)
from tests.support.mutant import break_function, violation

#: Failures in a row, seconds to the first probe, most seconds between two.
THRESHOLD, COOLDOWN, COOLDOWN_MAX = 3, 30, 100
DAY = 86_400


def put(conn: psycopg.Connection, key: str | None, count: int = 1) -> None:
    job = {"kind": "work", "queue": "q", "limit_key": key, "args": {"key": key}}
    enqueue_many(conn, [job] * count)


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


def keys_of(batches: list[Batch]) -> Counter:
    return Counter(job["args"]["key"] for batch in batches for job in batch.jobs)


def taken(reader: Reader) -> Counter:
    """Claim until nothing is ready; return how many jobs each key got."""
    return keys_of(take(reader))


def advance(conn: psycopg.Connection, seconds: float) -> None:
    """Set the clock of the database so far ahead of the true time, and promote what is due."""
    shift_clock(conn, seconds)
    while one(conn, "select forebay.promote_v1()"):
        pass


def attempt(reader: Reader, batch: Batch, offset: int = 1, **facts) -> dict:
    return {
        "lease_id": reader.lease_id,
        "claim_no": batch.claim_no,
        "offset": offset,
        "ended_ago": 0,
        "claimed_ago": 0,
        **facts,
    }


def failed(reader: Reader, batch: Batch, offset: int = 1, **facts) -> dict:
    options = {"threshold": THRESHOLD, "cooldown": COOLDOWN, "cooldown_max": COOLDOWN_MAX}
    told = {"failed": True, "error": "OSError: refused", **options, **facts}
    return attempt(reader, batch, offset, **told)


def worked(reader: Reader, batch: Batch, offset: int = 1, **facts) -> dict:
    return attempt(reader, batch, offset, **{"failed": False, **facts})


def report(conn: psycopg.Connection, *ended: dict) -> list[str | None]:
    """Report; return ``*`` if a key of the queue has failed lately, and the open ones of those that
    failed.
    """
    query = "select limit_key from forebay.report_breakers_v1('w', '{q}', %s::jsonb)"
    return [key or "*" for (key,) in conn.execute(query, [json.dumps(ended)])]


def settle(reader: Reader, batch: Batch, after: float | None = None) -> None:
    """All jobs of a batch failed, and run again."""
    ended = [
        {"offset": job["batch_offset"], "outcome": "retried", "after": after} for job in batch.jobs
    ]
    assert reader.settle(batch.claim_no, ended=ended) == "settled"
    reader.open_claims.discard(batch.claim_no)


def breaker(conn: psycopg.Connection, key: str = "a") -> dict:
    """Return the breaker of a key as it is shown; an empty one for none."""
    query = "select breaker from forebay.key('q', limit_key => %s)"
    return one(conn, query, key) or {}


def is_open(conn: psycopg.Connection, key: str = "a") -> bool:
    return "opened_at" in breaker(conn, key)


def acts(conn: psycopg.Connection) -> list[str]:
    rows = conn.execute("select act from forebay.event where act ~ 'circuit' order by event_id")
    return [act for (act,) in rows]


def opened(conn: psycopg.Connection, reader: Reader, waiting: int = 10) -> None:
    """Let a breaker open: a claim of some jobs fails, and others of its key wait."""
    put(conn, "a", THRESHOLD)
    (batch,) = take(reader)
    assert report(conn, *[failed(reader, batch, nr + 1) for nr in range(THRESHOLD)]) == ["*", "a"]
    settle(reader, batch)
    put(conn, "a", waiting)
    assert is_open(conn)


def probe(conn: psycopg.Connection, reader: Reader, **facts) -> None:
    """A probe runs, and fails."""
    (batch,) = take(reader)
    assert len(batch.jobs) == 1
    report(conn, failed(reader, batch, **facts))
    settle(reader, batch)


# --- it opens ---


def test_failures_in_a_row_open_it_and_the_jobs_of_the_key_wait(database, conn):
    with Reader(database, "q") as reader:
        opened(conn, reader)
        put(conn, "b", 4)
        assert taken(reader) == {"b": 4}
    assert acts(conn) == ["circuit.opened"]
    (queue, new) = conn.execute(
        "select queue, new from forebay.event where act = 'circuit.opened'"
    ).fetchone()
    assert queue == "q"
    assert (new["limit_key"], new["failures"]) == ("a", 3)
    assert new["error"] == "OSError: refused"


def test_a_success_between_ends_the_row(database, conn):
    with Reader(database, "q") as reader:
        put(conn, "a", 6)
        (batch,) = take(reader)
        report(conn, failed(reader, batch, 1), failed(reader, batch, 2))
        assert breaker(conn)["failures"] == 2
        report(conn, worked(reader, batch, 3))
        assert breaker(conn) == {}
        report(conn, failed(reader, batch, 4), worked(reader, batch, 5), failed(reader, batch, 6))
        assert breaker(conn)["failures"] == 1


def test_only_a_key_that_failed_lately_has_a_row(database, conn):
    """So a success writes nothing: the answer tells whether successes matter."""
    with Reader(database, "q") as reader:
        put(conn, "a", 2)
        put(conn, "b", 2)
        (batch,) = take(reader)
        assert report(conn, *[worked(reader, batch, nr + 1) for nr in range(4)]) == []
        assert one(conn, "select count(*) from forebay.breaker") == 0
        assert report(conn, failed(reader, batch, 1)) == ["*"]
        before = one(conn, "select xmin::text from forebay.breaker")
        assert report(conn, worked(reader, batch, 3)) == ["*"]
        assert one(conn, "select xmin::text from forebay.breaker") == before
        assert report(conn, worked(reader, batch, 2)) == []
        assert one(conn, "select count(*) from forebay.breaker") == 0


def test_jobs_without_a_key_and_batches_that_are_gone_are_ignored(database, conn):
    with Reader(database, "q") as reader:
        put(conn, None, 2)
        (batch,) = take(reader)
        assert report(conn, failed(reader, batch, 1), failed(reader, batch, 9)) == []
        assert report(conn, failed(reader, Batch(77, []))) == []


def test_a_bad_report_is_refused(database, conn):
    with Reader(database, "q") as reader:
        put(conn, "a")
        (batch,) = take(reader)
        for bad in ({"threshold": 0}, {"cooldown": 0.5}, {"cooldown_max": 1}, {"threshold": 1001}):
            call = "select forebay.report_breakers_v1('w', '{}', %s::jsonb)"
            ended = json.dumps([failed(reader, batch, **bad)])
            assert sqlstate(conn, call, ended) == "JQ001", bad
        assert sqlstate(conn, "select forebay.report_breakers_v1('w', '{}', '{}')") == "JQ001"


def test_workers_that_report_at_once_lose_no_failure_and_open_it_once(database, conn):
    """Of two keys, in both orders."""
    with Reader(database, "q") as reader:
        put(conn, "a")
        put(conn, "b")
        (batch,) = take(reader)
        offsets = [job["batch_offset"] for job in batch.jobs]
        start = threading.Barrier(8)

        def work(nr):
            with connect(database) as mine:
                start.wait()
                for _ in range(6):
                    order = offsets if nr % 2 else offsets[::-1]
                    report(mine, *[failed(reader, batch, each, threshold=40) for each in order])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    assert [breaker(conn, key)["failures"] for key in "ab"] == [48, 48]
    assert acts(conn) == ["circuit.opened"] * 2


def test_failures_of_two_workers_are_lost_without_the_lock(database, conn):
    break_function(
        database,
        "report_breakers_v1",
        ("order by b.queue, b.key for update of b;", "order by b.queue, b.key;"),
    )
    break_function(
        database,
        "_step_breaker",
        ("b.key = r.key for update;", "b.key = r.key; perform pg_sleep(0.005);"),
    )
    with violation():
        test_workers_that_report_at_once_lose_no_failure_and_open_it_once(database, conn)


# --- probes ---


def test_one_probe_runs_at_a_time_and_each_that_fails_doubles_the_wait(database, conn):
    """Over all workers: 30, 60, then at most 100 seconds."""
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        opened(conn, reader)
        now = 0.0
        for wait in (30, 60, 100, 100):
            advance(conn, now + wait * 0.75)
            assert taken(reader) == taken(other) == {}
            now += wait + 1
            advance(conn, now)
            probe(conn, reader)
            assert taken(other) == {}
        found = breaker(conn)
        assert (found["probes"], found["failures"]) == (4, 7)
        assert acts(conn) == ["circuit.opened"]


def test_the_wait_does_not_grow_without_its_interval(database, conn):
    break_function(
        database, "_probe_interval", ("power(2::double precision, least(b.probes, 40))", "1")
    )
    with violation():
        test_one_probe_runs_at_a_time_and_each_that_fails_doubles_the_wait(database, conn)


def test_a_success_closes_it_and_all_jobs_of_the_key_run(database, conn):
    with Reader(database, "q") as reader:
        opened(conn, reader)
        advance(conn, 31)
        (batch,) = take(reader)
        assert len(batch.jobs) == 1
        reader.finish(batch)
        assert taken(reader) == {}
        assert report(conn, worked(reader, batch)) == []
        assert taken(reader) == {"a": 12}
    assert acts(conn) == ["circuit.opened", "circuit.closed"]
    assert one(conn, "select count(*) from forebay.key_limits") == 0


def test_jobs_of_a_closed_breaker_wait_on_without_its_look(database, conn):
    break_function(
        database,
        "_write_key_limits",
        ("perform forebay._announce_key(n.queue, 'limit', n.key);", ""),
    )
    with violation():
        test_a_success_closes_it_and_all_jobs_of_the_key_run(database, conn)


def test_late_failures_of_jobs_claimed_before_are_no_probes(database, conn):
    """A job that runs into its timeout a minute after the breaker opened tells nothing new."""
    with Reader(database, "q") as reader:
        put(conn, "a", 5)
        (late,) = take(reader)
        opened(conn, reader)
        advance(conn, 40)
        report(conn, failed(reader, late, 1, claimed_ago=41))
        assert breaker(conn)["probes"] == 0
        reader.finish(late)
        assert taken(reader) == {"a": 1}


def test_late_failures_would_move_the_probe_without_the_comparison(database, conn):
    break_function(
        database, "_step_breaker", ("coalesce(r.claimed_at, p_at) >= before.probe_at", "true")
    )
    with violation():
        test_late_failures_of_jobs_claimed_before_are_no_probes(database, conn)


def test_a_success_from_before_it_opened_does_not_close_it(database, conn):
    with Reader(database, "q") as reader:
        put(conn, "a", 2)
        (early,) = take(reader)
        opened(conn, reader)
        shift_clock(conn, 20)
        report(conn, worked(reader, early, 1, ended_ago=40))
        assert is_open(conn)
        report(conn, worked(reader, early, 2, ended_ago=1))
        assert not is_open(conn)


def test_an_early_success_would_close_it_without_the_comparison(database, conn):
    break_function(
        database, "_step_breaker", ("before.opened_at <= coalesce(r.answered_at, p_at)", "true")
    )
    with violation():
        test_a_success_from_before_it_opened_does_not_close_it(database, conn)


def test_a_probe_whose_worker_dies_leaves_it_open_and_another_one_follows(database, conn):
    """The slot is free once the lease is revoked, and the next start comes an interval later."""
    with Reader(database, "q") as reader, Reader(database, "q") as other:
        opened(conn, reader)
        advance(conn, 31)
        assert taken(reader) == {"a": 1}
        advance(conn, 62)
        assert taken(other) == {}, "the probe runs"
        assert reader.revoked_by(conn) == 1
        assert is_open(conn)
        assert breaker(conn)["probes"] == 0
        assert taken(other) == {"a": 1}
        assert taken(other) == {}
        advance(conn, 80)
        assert taken(other) == {}


def test_a_probe_that_says_nothing_leaves_it_open(database, conn):
    """Its handler snoozed, for instance; another one follows an interval after its start."""
    with Reader(database, "q") as reader:
        opened(conn, reader)
        advance(conn, 31)
        (batch,) = take(reader)
        reader.finish(batch)
        assert taken(reader) == {}
        advance(conn, 62)
        assert taken(reader) == {"a": 1}


# --- beside limits, pauses and other acts ---


def test_limits_that_change_while_it_is_open_hold_when_it_closes(database, conn):
    """The limits of the key and of the queue; neither lets more than a probe run before."""
    with Reader(database, "q") as reader:
        opened(conn, reader)
        one(conn, "select forebay.limit_key('q', 'a', concurrency => 4)")
        one(conn, "select forebay.limit_queue('q', key_concurrency => 9)")
        assert taken(reader) == {}
        advance(conn, 31)
        (batch,) = take(reader)
        assert keys_of([batch]) == {"a": 1}
        one(conn, "select forebay.limit_key('q', 'a', concurrency => 2)")
        assert taken(reader) == {}
        assert one(conn, "select limits from forebay.key('q', limit_key => 'a')") == {
            "concurrency": 2
        }
        report(conn, worked(reader, batch))
        reader.finish(batch)
        assert taken(reader) == {"a": 2}


def test_a_change_of_its_limits_would_give_a_probe_without_the_comparison(database, conn):
    """A new number of the row makes a claim fill the bucket anew."""
    break_function(
        database,
        "_write_key_limits",
        (
            "(n.probe_seconds, n.empty_until) end;",
            "(n.probe_seconds, n.empty_until) or true end;",
        ),
    )
    with Reader(database, "q") as reader:
        opened(conn, reader)
        advance(conn, 31)
        (batch,) = take(reader)
        one(conn, "select forebay.limit_key('q', 'a', concurrency => 2)")
        reader.finish(batch)
        with violation():
            assert taken(reader) == {}


def test_removing_limits_does_not_close_it(database, conn):
    with Reader(database, "q") as reader:
        opened(conn, reader)
        one(conn, "select forebay.limit_key('q', 'a', concurrency => 4)")
        one(conn, "select forebay.limit_key('q', 'a', remove => true)")
        one(conn, "select forebay.limit_queue('q', remove => '{all}')")
        assert taken(reader) == {}
        advance(conn, 31)
        assert taken(reader) == {"a": 1}


def test_a_kind_that_declares_other_numbers_meanwhile_decides_from_then_on(database, conn):
    with Reader(database, "q") as reader:
        opened(conn, reader)
        advance(conn, 31)
        probe(conn, reader, cooldown=5, cooldown_max=5)
        advance(conn, 37)
        assert taken(reader) == {"a": 1}


def test_a_paused_key_has_no_probe(database, conn):
    with Reader(database, "q") as reader:
        opened(conn, reader)
        one(conn, "select forebay.pause_key('q', limit_key => 'a')")
        advance(conn, 31)
        assert taken(reader) == {}
        one(conn, "select forebay.resume_key('q', limit_key => 'a')")
        assert taken(reader) == {"a": 1}


def test_an_operator_closes_it_by_hand(database, conn):
    with Reader(database, "q") as reader:
        opened(conn, reader)
        assert one(conn, "select forebay.reset_key('q', 'a')")
        assert taken(reader) == {"a": 13}
        assert not one(conn, "select forebay.reset_key('q', 'a')")
    assert acts(conn) == ["circuit.opened", "circuit.reset"]
    assert sqlstate(conn, "select forebay.reset_key('forebay.deliver', 'a')") == "JQ001"


def test_a_report_and_calls_of_limits_wait_for_each_other_without_a_deadlock(database, conn):
    """A report holds the breakers of all its keys before the limits of the first one."""
    with Reader(database, "q") as reader:
        keys = [f"k{nr}" for nr in range(6)]
        for key in keys:
            put(conn, key)
        (batch,) = take(reader)
        start = threading.Barrier(4)

        def reports(nr):
            with connect(database) as mine:
                start.wait()
                for turn in range(8):
                    order = range(1, 7) if nr else range(6, 0, -1)
                    made = failed if turn % 2 else worked
                    ended = [
                        made(reader, batch, each, **({"threshold": 1} if turn % 2 else {}))
                        for each in order
                    ]
                    report(mine, *ended)

        def limits(nr):
            with connect(database) as mine:
                start.wait()
                for turn in range(12):
                    key = keys[(turn + nr) % 6]
                    one(mine, "select forebay.limit_key('q', %s, concurrency => 3)", key)
                    one(mine, "select forebay.limit_key('q', %s, remove => true)", key)

        with ThreadPoolExecutor(4) as pool:
            for work in [pool.submit(reports, 0), pool.submit(reports, 1)] + [
                pool.submit(limits, nr) for nr in range(2)
            ]:
                work.result()


def test_a_dropped_queue_has_no_breaker(database, conn):
    with Reader(database, "q") as reader:
        opened(conn, reader)
        one(conn, "select forebay.drop_queue('q', force => true)")
    assert one(conn, "select count(*) from forebay.breaker") == 0
    assert one(conn, "select count(*) from forebay.key_limits") == 0


def test_what_nobody_needs_any_more_is_trimmed(database, conn):
    """Failures of a day ago, and an open breaker that no job has probed for a day."""
    with Reader(database, "q") as reader:
        opened(conn, reader, 0)
        put(conn, "b")
        (batch,) = take(reader)
        report(conn, failed(reader, batch))
        assert trim(conn, "breakers") == 0
        shift_clock(conn, DAY + 60)
        put(conn, "c")
        (newer,) = [each for each in take(reader) if each.jobs[0]["args"]["key"] == "c"]
        report(conn, failed(reader, newer))
        assert trim(conn, "breakers") == 2
    assert one(conn, "select array_agg(key) from forebay.breaker") == ["c"]
    assert one(conn, "select count(*) from forebay.key_limits") == 0


# --- what people see ---


@pytest.mark.parametrize("runs", [False, True])
def test_its_key_shows_it_with_the_next_probe(database, conn, runs):
    with Reader(database, "q") as reader:
        opened(conn, reader)
        assert taken(reader) == {}
        if runs:
            advance(conn, 31)
            assert taken(reader) == {"a": 1}
        reason, until, shown = conn.execute(
            "select reason, until, breaker from forebay.keys()"
        ).fetchone()
        assert reason == "breaker"
        assert (until is None) == runs
        assert shown["threshold"] == THRESHOLD
        assert shown["error"] == "OSError: refused"

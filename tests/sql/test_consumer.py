"""Workers in other languages: what the public functions promise, each with its guard taken out."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.support.consumer import Consumer
from tests.support.engine import (
    Reader,
    StillClock,
    connect,
    depth,
    enqueue,
    one,
    open_group,
    shift_clock,
    sqlstate,
    state,
)
from tests.support.mutant import alter_function, break_function, violation
from tests.support.plans import Call, pages, stated_pages, without_autovacuum
from tests.support.waiting import wait_for


def errors_of(conn, job_id: int) -> list[tuple]:
    """Return what is known of the failed attempts of a job."""
    return conn.execute(
        "select attempt, outcome, error_type, message, traceback, max_attempts from forebay.failure"
        " where job_id = %s order by failed_at",
        [job_id],
    ).fetchall()


def letter_of(conn, job_id: int) -> tuple | None:
    """Return reason, attempts and errors of a dead letter."""
    return conn.execute(
        "select reason, attempt, holds_key, jsonb_array_length(errors) from forebay.dead_letter"
        " where job_id = %s",
        [job_id],
    ).fetchone()


def took_soon(consumer: Consumer) -> list:
    """Take until there are jobs: a call may only promote them, or move a cursor."""
    return wait_for(consumer.take, 10)


# --- a job and its ends ---


def test_a_job_comes_with_all_that_its_enqueue_said(conn, database):
    """Each field; and what follows from the enqueue: attempt, maximum, expiry, end of the lease."""
    long_ago = datetime(2001, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
    expires = datetime.now(UTC).replace(microsecond=123_457) + timedelta(days=3)
    options = {"max_attempts": 7, "tag": "t", "correlation_id": "c", "expires_at": expires}
    with Consumer(database) as consumer:
        rich = enqueue(conn, args={"a": [1, "é", None]}, headers='{"h": "v"}', **options)
        plain = enqueue(conn)
        jobs = consumer.take()
    assert [job["id"] for job in jobs] == [rich, plain]
    first, second = jobs
    assert (first["kind"], first["args"], first["headers"]) == (
        "work", {"a": [1, "é", None]}, {"h": "v"},
    )  # fmt: skip
    assert {name: first[name] for name in options} == options
    assert (first["attempt"], second["attempt"], second["max_attempts"]) == (1, 1, 20)
    assert second["args"] == {}
    assert second["headers"] is None
    assert second["ordering_key"] is second["limit_key"] is second["tag"] is None
    enqueued = one(conn, "select enqueued_at from forebay.job(%s)", plain)
    assert second["enqueued_at"] == enqueued
    assert second["expires_at"] == enqueued + timedelta(days=30)
    assert second["lease_until"] - enqueued > timedelta(seconds=29)
    instant = "select forebay._instant((extract(epoch from %s::timestamptz) * 1000000)::bigint)"
    assert one(conn, instant, long_ago) == long_ago


def test_jobs_end_or_run_again(conn, database):
    """Each of the five settlements, for several jobs in one call; each answers for each job."""
    with Consumer(database) as consumer:
        ids = [enqueue(conn, max_attempts=2) for _ in range(10)]
        jobs = consumer.take()
        hows = [("done",), ("failed", "no"), ("snooze", "2 hours"), ("dead", "why"), ("release",)]
        for nr, (how, *more) in enumerate(hows):
            pair = jobs[2 * nr : 2 * nr + 2]
            options = {"retry_at": datetime.now(UTC) + timedelta(hours=1)} if nr == 1 else {}
            assert consumer.settle(how, pair, *more, **options) == ["settled", "settled"]
        found = [state(conn, job_id) for job_id in ids[::2]]
        assert found == ["done", "retrying", "scheduled", "dead", "ready"]
        assert found == [state(conn, job_id) for job_id in ids[1::2]]
        assert letter_of(conn, ids[6]) == ("permanent", 1, False, 1)
        assert errors_of(conn, ids[2]) == [(1, "retried", "Error", "no", None, 2)]
        released = consumer.take()
        assert [(job["id"], job["attempt"]) for job in released] == [(ids[8], 1), (ids[9], 1)]
        shift_clock(conn, 4000)
        failed = took_soon(consumer)
        assert [(job["id"], job["attempt"]) for job in failed] == [(ids[2], 2), (ids[3], 2)]
        consumer.settle("failed", failed, "again", type="E", traceback="here")
        assert [letter_of(conn, job_id) for job_id in ids[2:4]] == [("exhausted", 2, False, 2)] * 2
        assert errors_of(conn, ids[2])[1] == (2, "dead", "E", "again", "here", 2)
        shift_clock(conn, 8000)
        snoozed = took_soon(consumer)
        assert [(job["id"], job["attempt"]) for job in snoozed] == [(ids[4], 1), (ids[5], 1)]


@pytest.mark.parametrize(
    ("of_job", "of_queue", "most"), [(None, None, 20), (None, 3, 3), (5, 3, 5)]
)
def test_the_maximum_is_that_of_the_job_then_of_the_queue(conn, database, of_job, of_queue, most):
    """The last attempt ends the job, at once also if the caller names a time."""
    with Consumer(database) as consumer:
        if of_queue is not None:
            one(conn, "select forebay.set_max_attempts('default', %s)::text", of_queue)
        job_id = enqueue(conn, **({} if of_job is None else {"max_attempts": of_job}))
        for attempt in range(1, most + 1):
            (job,) = consumer.take()
            assert (job["attempt"], job["max_attempts"]) == (attempt, most)
            when = datetime.now(UTC) - timedelta(days=1)
            assert consumer.settle("failed", [job], "no", retry_at=when) == ["settled"]
            assert state(conn, job_id) == ("dead" if attempt == most else "ready")
        assert letter_of(conn, job_id)[:2] == ("exhausted", most)


def test_what_nobody_else_has_set_is_that_of_the_database(conn, database):
    """The number of attempts, and how long a retry waits."""
    settings = {
        "max_attempts": "3",
        "retry_strategy": "fixed",
        "retry_base_seconds": "7",
        "retry_jitter": "false",
    }
    for name, value in settings.items():
        conn.execute("select forebay.configure(%s, %s)", [name, value])
    due = (
        "select extract(epoch from run_at - forebay._now()) from forebay.deferred order by xid desc"
    )
    with Consumer(database) as consumer:
        job_id = enqueue(conn)
        for attempt in (1, 2):
            (job,) = consumer.take()
            assert job["max_attempts"] == 3
            assert consumer.settle("failed", [job], "no") == ["settled"]
            assert 6 < one(conn, due) <= 7
            shift_clock(conn, 10 * attempt)
            consumer.take()
        (job,) = consumer.take()
        consumer.settle("failed", [job], "no")
        assert letter_of(conn, job_id)[:2] == ("exhausted", 3)


def test_retries_wait_as_those_of_python(conn, database):
    """5 s, doubled, up to an hour, of which up to half is left out; or until the caller's time."""
    with Consumer(database) as consumer:
        enqueue(conn)
        waits, due = [], "select run_at - forebay._now() from forebay.deferred order by xid desc"
        for attempt in range(1, 13):
            (job,) = consumer.take()
            consumer.settle("failed", [job], "no")
            waits.append(one(conn, due).total_seconds() / min(3600, 5 * 2 ** (attempt - 1)))
            shift_clock(conn, attempt * 4000)
            consumer.take()
        assert all(0.49 < wait <= 1 for wait in waits)
        assert len({round(w, 3) for w in waits}) > 3
        (job,) = consumer.take()
        when = datetime(2100, 1, 1, tzinfo=UTC)
        assert consumer.settle("failed", [job], "no", retry_at=when) == ["settled"]
        at = one(conn, "select run_at from forebay.deferred order by xid desc")
        assert abs(at - when) < timedelta(seconds=1)


def test_done_passes_on_what_only_the_code_knows(conn, database):
    """Results, follow-ups, and when a subject is due again."""
    with Consumer(database) as consumer:
        ids = [enqueue(conn, tag="t") for _ in range(3)]
        jobs = consumer.take()
        follow = [None, {"kind": "next", "queue": "other", "priority": 5}, {"kind": "next"}]
        statuses = consumer.settle(
            "done", jobs, results=json.dumps([{"n": 1}, 2, None]), follow_ups=json.dumps(follow)
        )
        assert statuses == ["settled"] * 3
        assert one(conn, "select value from forebay.result(%s)", ids[0]) == {"n": 1}
        rows = conn.execute(
            "select kind, args ->> 'job_id', args -> 'result', tag from forebay.log"
            " where kind = 'next' order by seq"
        ).fetchall()
        assert rows == [("next", str(ids[1]), 2, "t"), ("next", str(ids[2]), None, "t")]
        assert consumer.settle("done", jobs, follow_ups=json.dumps(follow)) == ["already"] * 3
        assert one(conn, "select count(*) from forebay.log where kind = 'next'") == 2


def test_a_dead_job_has_the_follow_up_that_its_kind_recorded(conn, database):
    """As one that dies in a Python worker."""
    with Consumer(database) as consumer:
        conn.execute(
            "select * from forebay.record_kinds_v1('w', '{work}', '{default}',"
            """ p_on_dead => '{"work": {"kind": "mourn"}}')"""
        )
        first, second = enqueue(conn), enqueue(conn, max_attempts=1)
        jobs = consumer.take()
        consumer.settle("dead", jobs[:1], "why")
        consumer.settle("failed", jobs[1:], "no")
        query = "select (args ->> 'job_id')::bigint from forebay.log where kind = 'mourn'"
        assert [row[0] for row in conn.execute(f"{query} order by seq")] == [first, second]


def test_runs_of_subjects(conn, database):
    """A run says when its subject is due again; without a word the subject is completed."""
    with Consumer(database, ["s"]) as consumer:
        for name in ("again", "plain", "gone"):
            conn.execute("select forebay.push_subject('crawl', %s, queue => 's')", [name])
        jobs = consumer.take()
        assert len(jobs) == 3
        assert all(job["token"].endswith("s") for job in jobs)
        by_name = {json.loads(job["headers"]["forebay-subject"])["subject"]: job for job in jobs}
        ordered = [by_name[name] for name in ("again", "plain", "gone")]
        ends = [{"then": "again", "after": 3600, "data": {"n": 1}}, None, {"then": "drop"}]
        assert consumer.settle("done", ordered, subjects=json.dumps(ends)) == ["settled"] * 3
        found = conn.execute("select subject, state from forebay.subjects('s') order by 1")
        assert found.fetchall() == [("again", "scheduled"), ("plain", "completed")]
        shift_clock(conn, 4000)
        consumer.take()
        (job,) = consumer.take()
        assert json.loads(job["headers"]["forebay-subject"])["state"] == {"n": 1}


# --- one settlement for each token ---


def test_a_settlement_is_repeated_without_harm(conn, database):
    """The same call again, another one, and a token twice in one call change nothing."""
    with Consumer(database) as consumer:
        ids = [enqueue(conn) for _ in range(3)]
        jobs = consumer.take()
        assert consumer.settle("done", [jobs[0], jobs[0]]) == ["settled", "already"]
        assert consumer.settle("failed", jobs[1:2], "no") == ["settled"]
        for how, *more in (("done",), ("failed", "no"), ("dead", "no"), ("release",)):
            assert consumer.settle(how, jobs[:2], *more) == ["already"] * 2
        assert [state(conn, job_id) for job_id in ids] == ["done", "retrying", "claimed"]
        assert consumer.leave() == 1
        assert consumer.settle("done", jobs) == ["already", "already", "lost"]
        assert consumer.leave() is None


def two_at_once_settle_once(dsn: str) -> None:
    """Two calls for one token, the first of which has not committed when the second begins."""
    with connect(dsn) as conn, Consumer(dsn) as consumer, connect(dsn) as other:
        job_id = enqueue(conn)
        (job,) = consumer.take()
        other.autocommit = False
        first = other.execute("select status from forebay.done(%s)", [[job["token"]]]).fetchone()
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(consumer.settle, "failed", [job], "no")
            waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            wait_for(lambda: second.done() or one(conn, waits))
            other.commit()
            assert (first, second.result()) == (("settled",), ["already"])
        assert state(conn, job_id) == "done"
        assert depth(conn)["default"] == (0, 0, 0)


def test_of_two_calls_at_once_one_settles(database):
    """Whatever they say."""
    two_at_once_settle_once(database)


def test_of_two_calls_at_once_both_settle_without_the_name(database):
    """The name of a settlement is the place of its job."""
    break_function(
        database, "_settle_held", ("'flush_no', -u.place", "'flush_no', 1 + (random() * 1e6)::int")
    )
    with violation():
        two_at_once_settle_once(database)


def test_effect_and_end_are_one_commit(conn, database):
    """In the caller's transaction: rolled back together, committed together."""
    with Consumer(database) as consumer, connect(database) as own:
        job_id = enqueue(conn)
        (job,) = consumer.take()
        conn.execute("create table effect (n int)")
        own.autocommit = False
        for commit in (False, True):
            own.execute("insert into effect values (1)")
            rows = own.execute("select status from forebay.done(%s)", [[job["token"]]]).fetchall()
            assert rows == [("settled",)]
            (own.commit if commit else own.rollback)()
            assert one(conn, "select count(*) from effect") == int(commit)
            assert state(conn, job_id) == ("done" if commit else "claimed")


def a_claim_that_is_undone_is_lost(dsn: str) -> None:
    """As a crash of the server does, which takes back a claim that committed asynchronously."""
    with connect(dsn) as conn, Consumer(dsn) as consumer:
        first, second = enqueue(conn), enqueue(conn)
        with consumer.conn.transaction(force_rollback=True):
            undone = consumer.take(1)
        assert consumer.settle("done", undone) == ["lost"]
        conn.execute("select forebay.cancel(%s)", [first])
        assert consumer.take_ids() == [second]
        assert consumer.settle("done", undone) == ["lost"]
        assert state(conn, second) == "claimed"


def test_the_token_of_an_undone_claim_names_no_other_job(database):
    """Its number is never given out again."""
    a_claim_that_is_undone_is_lost(database)


def test_the_token_of_an_undone_claim_names_another_job_without_the_time(database):
    """With numbers that are only counted."""
    break_function(
        database, "take", ("((extract(epoch from clock_timestamp()) * 1000000)::bigint << 8)", "0")
    )
    break_function(database, "take", ("floor(random() * 256)::bigint", "0"))
    with violation():
        a_claim_that_is_undone_is_lost(database)


# --- leases ---


def pass_time(clock: StillClock, consumers, seconds: int, *, at: int = 0) -> list:
    """Let consumers take once a second, for so many seconds; return what they got."""
    got = []
    for second in range(at + 1, at + seconds + 1):
        clock.set(second)
        for consumer in consumers:
            got += consumer.take()
    return got


def a_dead_consumer_is_noticed(dsn: str) -> None:
    """Another consumer gets its jobs, alone, when the lease has ended, and not before."""
    with connect(dsn) as conn, Consumer(dsn, lease="10 seconds") as first:
        clock = StillClock(conn)
        with Consumer(dsn, name="other", lease="10 seconds") as second:
            ids = [enqueue(conn) for _ in range(3)]
            lost = first.take(2)
            kept = second.take()
            assert pass_time(clock, [second], 9) == []
            got = pass_time(clock, [second], 9, at=9)
            assert [job["id"] for job in got] == ids[:2]
            assert [job["attempt"] for job in got] == [1, 1]
            assert [job["token"].split("-")[2] for job in got] == ["1", "1"]  # Each alone.
            assert second.settle("done", [*kept, got[0]]) == ["settled", "settled"]
            assert first.settle("done", lost) == ["lost", "lost"]
            assert first.settle("release", lost) == ["lost", "lost"]
            assert sqlstate(first.conn, "select forebay.extend(%s)", first.worker) == "JQ010"
            take = "select forebay.take('default', %s)"
            assert sqlstate(first.conn, take, first.worker) == "JQ010"
            found = [state(conn, job_id) for job_id in ids]
            assert found[0] == found[2] == "done"
            assert found[1] in ("claimed", "running")
            ended = conn.execute(
                "select worker, how, jobs, used_attempt from forebay.ended_workers()"
            )
            assert ended.fetchall() == [("consumer", "lost", 2, 0)]


def test_a_dead_consumer_is_noticed_by_another(database):
    """No Python worker runs."""
    a_dead_consumer_is_noticed(database)


@pytest.mark.parametrize(
    ("name", "guard", "instead"),
    [
        ("take", "perform forebay._look_after_claims(v_lease);", "null;"),
        ("_settle_held", "and l.closed_at is null for key share;", ";"),
    ],
)
def test_a_dead_consumer_is_not_noticed_without(database, name, guard, instead):
    """Each guard."""
    break_function(database, name, (guard, instead))
    with violation(psycopg.Error):
        a_dead_consumer_is_noticed(database)


def a_python_worker_keeps_its_lease(dsn: str) -> None:
    """Also where its connection is gone: that is for Python workers to judge, who see it."""
    with connect(dsn) as conn, Consumer(dsn) as consumer, Reader(dsn) as reader:
        clock = StillClock(conn)
        enqueue(conn)
        batch = reader.claim()
        for second in range(40):
            clock.set(second)
            reader.conn.execute("select forebay.heartbeat_v1(array[%s::bigint])", [reader.lease_id])
            consumer.take()
        assert pass_time(clock, [consumer], 20, at=40) == []
        assert reader.settle(batch.claim_no) == "settled"


def test_a_python_worker_keeps_its_lease(database):
    """For as long as its lease, not only until it is suspected."""
    a_python_worker_keeps_its_lease(database)


def test_a_python_worker_loses_its_lease_without_the_rule(database):
    """The guard of the test above."""
    break_function(database, "_revoke_silent", ("l.silent > l.lease_seconds and ", ""))
    with violation(psycopg.Error):
        a_python_worker_keeps_its_lease(database)


def a_jump_of_the_clock_ends_no_lease(dsn: str) -> None:
    """All leases look silent then; and after a minute without anybody, too."""
    with connect(dsn) as conn, ExitStack() as stack:
        first, second = (
            stack.enter_context(Consumer(dsn, name=name, lease="10 seconds")) for name in "ab"
        )
        clock = StillClock(conn)
        for _ in range(2):
            enqueue(conn)
        held = first.take(1)
        pass_time(clock, [first, second], 5)
        for jump in (60, 1000, 5000):
            clock.set(jump)
            second.take()
            pass_time(clock, [second], 4, at=jump)
            assert first.extend()["cancelled"] == []
            pass_time(clock, [first, second], 3, at=jump + 4)
        assert first.settle("done", held) == ["settled"]


def test_a_jump_of_the_clock_ends_no_lease(database):
    """Others must have been heard while one was silent."""
    a_jump_of_the_clock_ends_no_lease(database)


def test_a_jump_of_the_clock_ends_a_lease_without_observation(database):
    """The guard of the test above."""
    guard = "if forebay._is_observed(v_at, v_lost.lease_seconds) then"
    break_function(database, "_revoke_silent", (guard, "if true then"))
    with violation(psycopg.Error):
        a_jump_of_the_clock_ends_no_lease(database)


def test_a_python_worker_notices_a_dead_consumer(conn, database):
    """By its own maintenance; while it leads, consumers leave that to it."""
    with Consumer(database, lease="10 seconds") as dead, Consumer(database) as alive:
        clock = StillClock(conn)
        job_id = enqueue(conn)
        dead.take()
        conn.execute("select forebay.lead_v1(1, '{0}', 130)")
        enqueue(conn, delay="5 seconds")
        assert pass_time(clock, [alive], 20) == []
        assert depth(conn)["default"] == (0, 1, 1)
        revoked = "select worker, jobs from forebay.revoke_lost_v1(60, clock_timestamp())"
        with connect(database) as python:
            alter_function(
                database, "revoke_lost_v1", ("v_session <= v_lost.suspect_seconds", "false")
            )
            assert python.execute(revoked).fetchall() == [("consumer", 1)]
        assert alive.take_ids() == [job_id]


def test_a_job_that_kills_its_consumers_becomes_a_dead_letter(conn, database):
    """First it comes back without a used attempt; from then on it comes alone, and uses one."""
    with Consumer(database, lease="2 seconds") as observer:
        job_id, at = enqueue(conn, max_attempts=2), 0
        clock = StillClock(conn)
        attempts = []
        observer.queues = ["idle"]
        open_group(conn, "idle")
        for _ in range(3):
            with Consumer(database, lease="2 seconds") as victim:
                for _ in range(3):
                    clock.set(at := at + 4000)
                    observer.take()
                    if jobs := victim.take():
                        break
                attempts += [job["attempt"] for job in jobs]
            for _ in range(30):
                clock.set(at := at + 0.5)
                observer.take()
        assert attempts == [1, 1, 2]
        assert letter_of(conn, job_id)[:2] == ("worker lost", 2)


def test_a_suspect_that_is_given_back_has_used_no_attempt(conn, database):
    """Also where its start was recorded."""
    with Consumer(database) as consumer, Consumer(database) as other:
        job_id = enqueue(conn)
        with Reader(database) as reader:
            reader.claim()
            one(conn, "select forebay._revoke(%s, 'revoked', true)", reader.lease_id)
        assert consumer.take_ids() == [job_id]
        assert one(conn, "select count(*) from forebay.suspect_start") == 1
        assert consumer.leave() == 1
        ((attempt, token),) = [(job["attempt"], job["token"]) for job in other.take()]
        assert attempt == 1
        assert other.settle_tokens("done", [token]) == ["settled"]


def test_processes_with_one_name_do_not_meet(conn, database):
    """Each has its own lease: one lives, and the jobs of the dead one come back all the same."""
    with Consumer(database, lease="10 seconds") as first:
        with Consumer(database, lease="10 seconds") as second:
            clock = StillClock(conn)
            assert first.worker != second.worker
            ids = [enqueue(conn) for _ in range(2)]
            (lost,) = first.take(1)
            (kept,) = second.take(1)
            for at in range(20):
                clock.set(at)
                second.extend()
                assert second.take_ids() in ([], [ids[0]])
            assert second.settle("done", [kept]) == ["settled"]
            assert first.settle("done", [lost]) == ["lost"]
            assert state(conn, ids[0]) in ("claimed", "running")


def no_batch_is_left_out(dsn: str) -> None:
    """Two takes of one worker at once: what it has of both comes back."""
    with connect(dsn) as conn, Consumer(dsn, ["a", "b"]) as consumer, connect(dsn) as other:
        ids = [enqueue(conn, queue=queue) for queue in "ab"]
        take = "select id from forebay.take(%s, %s)"
        other.autocommit = False
        assert other.execute(take, ["a", consumer.worker]).fetchall() == [(ids[0],)]
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(consumer.take_ids, 1, "b")
            waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            wait_for(lambda: second.done() or one(conn, waits))
            other.commit()
            assert second.result() == [ids[1]]
        assert consumer.leave() == 2
        assert depth(conn)["default"] == (2, 0, 0)


def test_no_batch_of_a_worker_is_left_out(database):
    """The takes of a worker run one after another."""
    no_batch_is_left_out(database)


def test_a_batch_of_a_worker_is_left_out_without_the_lock(database):
    """The guard of the test above."""
    break_function(database, "take", ("'lock table only forebay.lock_worker_' ||", "'select ' ||"))
    alter_function(database, "take", ("|| ' in share update exclusive mode'", ""))
    with violation():
        no_batch_is_left_out(database)


def test_the_first_open_batch_is_found_again(conn, database):
    """Many batches that have ended cost the next call nothing, and one that is open keeps its
    place.
    """
    with Consumer(database) as consumer:
        ids = [enqueue(conn) for _ in range(12)]
        held = consumer.take(1)
        for _ in range(10):
            assert consumer.settle("done", consumer.take(1)) == ["settled"]
        floors = conn.execute("select distinct floor from forebay.batch").fetchall()
        assert floors == [(int(held[0]["token"].split("-")[1]),)]
        consumer.settle("done", held)
        last = consumer.take(1)
        assert one(conn, "select max(floor) from forebay.batch") == int(
            last[0]["token"].split("-")[1]
        )
        assert consumer.leave() == 1
        assert state(conn, ids[-1]) == "ready"


# --- what holds for every worker ---


def keys_in_order(dsn: str) -> None:
    """A consumer that runs all that it gets at once, and fails now and then."""
    with connect(dsn) as conn, ExitStack() as stack:
        consumers = [stack.enter_context(Consumer(dsn, ["q"])) for _ in range(2)]
        keyed = {
            key: [enqueue(conn, queue="q", ordering_key=key) for _ in range(4)] for key in "abc"
        }
        ended: dict[str, list[int]] = {key: [] for key in "abc"}
        held: list[tuple[Consumer, dict]] = []
        failed = set()
        for step in range(60):
            consumer = consumers[step % 2]
            for job in consumer.take(5, "q"):
                assert job["ordering_key"] not in [other["ordering_key"] for _, other in held]
                held.append((consumer, job))
            if step % 3 == 2:
                for consumer, job in held:
                    if job["id"] % 4 == 2 and job["id"] not in failed:
                        failed.add(job["id"])
                        consumer.settle("failed", [job], "no", retry_at=datetime.now(UTC))
                    else:
                        assert job["attempt"] == 1 + (job["id"] in failed)
                        assert consumer.settle("done", [job]) == ["settled"]
                        ended[job["ordering_key"]].append(job["id"])
                held.clear()
        assert ended == keyed
        assert len(failed) == 3


def test_jobs_of_a_key_come_one_at_a_time_in_order(database):
    """Also where the one before fails, and the consumer takes many at once."""
    keys_in_order(database)


@pytest.mark.parametrize("guard", ["u.nth > 1 or", "or u.key = any (b.before)"])
def test_jobs_of_a_key_come_at_once_without_giving_back(database, guard):
    """What waits in the claim, and what waits for an earlier claim."""
    break_function(database, "_give_back_later", (guard, ""))
    with violation():
        keys_in_order(database)


def test_limits_of_a_key_hold(conn, database):
    """No more of a limit key at once than its limit, over consumers and Python workers."""
    one(conn, "select forebay.limit_queue('q', key_concurrency => 2)::text")
    with Consumer(database, ["q"]) as consumer, Reader(database, "q") as reader:
        ids = [enqueue(conn, queue="q", limit_key="k") for _ in range(6)]
        first = consumer.take(1)
        batch = reader.claim_ready(5)
        assert [job["id"] for job in first] + batch.job_ids == ids[:2]
        assert consumer.take() == []
        consumer.settle("done", first)
        assert consumer.take_ids() == [ids[2]]
        reader.finish(batch)
        assert consumer.take_ids() == [ids[3]]


def test_a_held_key_stands_still(conn, database):
    """A dead letter holds its key if the kind says so."""
    conn.execute(
        "select * from forebay.record_kinds_v1('w', '{work}', '{q}', p_holding => '{work}')"
    )
    with Consumer(database, ["q"]) as consumer:
        first, second = (enqueue(conn, queue="q", ordering_key="k") for _ in range(2))
        consumer.settle("dead", consumer.take(), "why")
        assert letter_of(conn, first) == ("permanent", 1, True, 1)
        assert consumer.take() == []
        one(
            conn,
            "select forebay.skip_dead(%s)::text",
            one(conn, "select dead_id from forebay.dead_letter"),
        )
        assert consumer.take_ids() == [second]


def test_pauses_expiries_and_priorities(conn, database):
    """A paused queue gives nothing, an expired job is dead, and lower numbers come first."""
    with Consumer(database) as consumer:
        late = enqueue(conn, expires_at=datetime.now(UTC) + timedelta(hours=1))
        low, high = enqueue(conn, priority=200), enqueue(conn, priority=1)
        shift_clock(conn, 7200)
        one(conn, "select forebay.pause_queue('default')::text")
        assert consumer.take() == []
        one(conn, "select forebay.resume_queue('default')::text")
        got = []
        for _ in range(4):
            got += consumer.take_ids()
        assert sorted(got) == [low, high]
        assert letter_of(conn, late)[0] == "expired"


def test_lower_priorities_do_not_starve(conn, database):
    """One of ten calls serves one of them first; without that chance they wait."""
    with Consumer(database) as consumer:
        for _ in range(300):
            enqueue(conn, priority=1)
        for _ in range(50):
            enqueue(conn, priority=200)
        got = [job["id"] for _ in range(150) for job in consumer.take(1)]
        assert len(got) == 150
        assert 0 < sum(job_id > 300 for job_id in got) < 40


def test_a_cancellation_reaches_the_consumer(conn, database):
    """With its next extension; what would run again is cancelled then."""
    with Consumer(database) as consumer:
        ids = [enqueue(conn) for _ in range(3)]
        jobs = consumer.take()
        assert consumer.extend()["cancelled"] == []
        for job_id in ids[:2]:
            assert one(conn, "select forebay.cancel(%s)", job_id) == "requested"
        assert consumer.extend()["cancelled"] == [job["token"] for job in jobs[:2]]
        assert consumer.settle("failed", jobs[:1], "stopped") == ["settled"]
        assert consumer.settle("done", jobs[1:]) == ["settled"] * 2
        assert [state(conn, job_id) for job_id in ids] == ["cancelled", "done", "done"]


def test_a_cancelled_job_that_fails_is_no_dead_letter(conn, database):
    """Also at its last attempt: of the job, and of its queue."""
    with Consumer(database) as consumer:
        one(conn, "select forebay.set_max_attempts('default', 1)::text")
        ids = [enqueue(conn, max_attempts=1), enqueue(conn)]
        jobs = consumer.take()
        for job_id in ids:
            conn.execute("select forebay.cancel(%s)", [job_id])
        assert consumer.settle("failed", jobs, "stopped") == ["settled"] * 2
        assert [state(conn, job_id) for job_id in ids] == ["cancelled"] * 2
        assert [errors_of(conn, job_id)[0][:2] for job_id in ids] == [(1, "cancelled")] * 2


def test_a_cancellation_for_one_group_leaves_the_others_alone(conn, database):
    """Only its own consumer is asked to stop: by `extend`, and by the heartbeat of Python."""
    with Consumer(database, group="a") as first, Consumer(database, group="b") as second:
        job_id = enqueue(conn)
        tokens = [[job["token"] for job in consumer.take()] for consumer in (first, second)]
        conn.execute("select forebay.cancel(%s, group_name => 'b')", [job_id])
        assert (first.extend()["cancelled"], second.extend()["cancelled"]) == ([], tokens[1])
        asked = "select cancelled_jobs from forebay.heartbeat_v1(array[%s]::bigint[], array[%s])"
        leases = [int(consumer.worker.removeprefix("w")) for consumer in (first, second)]
        assert [one(conn, asked, lease, job_id) for lease in leases] == [[], [job_id]]


def test_groups_are_apart(conn, database):
    """Each group has its own state of a job."""
    with Consumer(database, group="a") as first, Consumer(database, group="b") as second:
        job_id = enqueue(conn)
        first.settle("done", first.take())
        assert (state(conn, job_id, "a"), state(conn, job_id, "b")) == ("done", "ready")
        assert second.take_ids() == [job_id]


def test_counters_stay_exact(conn, database):
    """After all sorts of ends."""
    with Consumer(database) as consumer:
        for number in range(20):
            enqueue(
                conn,
                ordering_key="k" if number % 3 else None,
                limit_key="l" if number % 2 else None,
            )
        for how, *more in [
            ("done",),
            ("failed", "no"),
            ("snooze", "0"),
            ("release",),
            ("dead", "x"),
        ] * 4:
            consumer.settle(how, consumer.take(2), *more)
        assert conn.execute("select * from forebay.audit_stats()").fetchone()[-1] is None


# --- maintenance ---


def test_a_failed_promotion_leaves_the_claim(conn, database):
    """It is a warning."""
    alter_function(
        database,
        "_promote",
        ("if not forebay._try_lock('promotion') then", "raise 'no'; if true then"),
    )
    with Consumer(database) as consumer:
        notices = []
        consumer.conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        job_id = enqueue(conn)
        assert consumer.take_ids() == [job_id]
        assert notices == ["forebay.take(): due jobs were not promoted: no (P0001)"]


def a_promotion_behind_a_claim_passes_nothing(dsn: str) -> None:
    """The same transaction adds a job that is due, by a clock that was set back; a later
    transaction ends before the promotion, so the server shows the own one as ended.
    """
    added = """perform pg_sleep(0.2);
        perform forebay._promote(1000);
        if not exists (select from forebay.promotion_marker) then
            insert into forebay.promotion_marker values (1);
            insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args)
            select forebay._now() - interval '1 hour', l.lane, forebay._now(),
                   nextval('forebay.log_seq'), 'second', '{}' from forebay.lane l where queue = 'm';
        end if;"""
    with connect(dsn) as conn, connect(dsn) as other, Consumer(dsn, ["default", "m"]) as consumer:
        conn.execute("create table forebay.promotion_marker (n int)")
        alter_function(dsn, "_look_after_claims", ("perform forebay._promote(1000);", added))
        enqueue(conn)
        enqueue(conn, queue="m", kind="first")
        enqueue(conn, delay="0.000001 s")
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(consumer.take, 1)
            while not taken.done():
                one(other, "select pg_current_xact_id()::text")
        assert len(taken.result()) == 1
        kinds = [job["kind"] for _ in range(4) for job in consumer.take(1, "m")]
        assert kinds == ["first", "second"]


def test_a_promotion_behind_a_claim_passes_nothing(database):
    """Its cursor leaves out what its own transaction adds."""
    a_promotion_behind_a_claim_passes_nothing(database)


def test_a_promotion_behind_a_claim_passes_a_job_without_the_rule(database):
    """The guard of the test above."""
    guard = "forebay._snapshot_of_others(), forebay._now() into"
    break_function(database, "_promote", (guard, "pg_current_snapshot(), forebay._now() into"))
    with violation(psycopg.Error):
        a_promotion_behind_a_claim_passes_nothing(database)


def test_maintain_does_what_maintenance_does(conn, database):
    """One round ends; a Python worker that leads maintenance makes it superfluous."""
    expires = datetime.now(UTC) + timedelta(hours=1)
    for _ in range(3):
        enqueue(conn, queue="unserved", expires_at=expires)
    shift_clock(conn, 7200)
    steps, step = [], None
    while (step := one(conn, "select forebay.maintain(%s)", step)) is not None:
        steps.append(step)
        assert len(steps) < 200
    assert {"extend", "sweep", "retain", "forget", "fold", "trim_batches"} <= set(steps)
    assert one(conn, "select count(*) from forebay.dead_letter") == 3
    conn.execute("select forebay.lead_v1(1, '{0}', 130)")
    assert one(conn, "select forebay.maintain()") is None


def test_maintain_seals_and_makes_segments(conn, database):
    """And goes on beside a session that holds a lock."""
    with connect(database) as other:
        last = one(conn, "select max(hi) - 1 from forebay.segment")
        one(conn, "select setval('forebay.log_seq', %s)", last)
        other.autocommit = False
        other.execute("lock table forebay.lock_maintenance in share update exclusive mode")
        assert one(conn, "select forebay.maintain()") == "extend"
        assert one(conn, "select count(*) from forebay.seal") == 0
        other.rollback()
        assert one(conn, "select forebay.maintain()") == "extend"
        assert one(conn, "select count(*) from forebay.seal") > 0
        before = one(conn, "select count(*) from forebay.segment")
        assert one(conn, "select forebay.maintain('extend')") == "extend"
        assert one(conn, "select count(*) from forebay.segment") == before + 4


# --- what is seen ---


def test_a_consumer_is_seen_as_any_worker(conn, database):
    """Its name, queues and program, what it runs, and that it serves its queue while idle."""
    with Consumer(database, ["q"], name="mailer-1") as consumer:
        explain = "select facts from forebay.explain_job(%s)"
        job_id = enqueue(conn, queue="q")
        assert one(conn, explain, job_id)["is_served"]
        consumer.take()
        consumer.extend()
        assert state(conn, job_id) == "running"
        (row,) = conn.execute(
            "select worker, group_name, queues, app, running, running_jobs -> 0 ->> 'kind',"
            " forebay_version, concurrency from forebay.workers()"
        ).fetchall()
        assert row == ("mailer-1", "default", ["q"], "test (plain)", 1, "work", None, None)
        measured = one(conn, "select forebay.measurements()")
        (worker,) = measured["workers"]
        assert worker["is_alive"]
        assert not worker["schedules"]
        assert [queue["is_served"] for queue in measured["queues"]] == [True]
        consumer.leave()
        ended = conn.execute("select worker, how, jobs from forebay.ended_workers()").fetchall()
        assert ended == [("mailer-1", "stopped", 1)]


# --- bad input ---

TOKEN = "4611686018427387904-459768815856348293-1"

BAD = [
    ("enter(null, array['q'])", "JQ001"),
    ("enter('', array['q'])", "JQ001"),
    ("enter(repeat('x', 201), array['q'])", "JQ001"),
    ("enter(E'w\\nanother', array['q'])", "JQ001"),
    ("enter('w', array['q'], app => E'\\x1b[2J')", "JQ001"),
    ("enter('w', array['q'], host => E'h\\n')", "JQ001"),
    ("enter('w', null)", "JQ001"),
    ("enter('w', '{}')", "JQ001"),
    ("enter('w', array['not a name'])", "JQ001"),
    ("enter('w', array[null])", "JQ001"),
    ("enter('w', array[['a', 'b']])", "JQ001"),
    ("enter('w', array['forebay.deliver'])", "JQ001"),
    ("enter('w', array['q'], '0')", "JQ001"),
    ("enter('w', array['q'], '2 days')", "JQ001"),
    ("enter('w', array['q'], null)", "JQ001"),
    ("enter('w', array['q'], group_name => 'not a name')", "JQ001"),
    ("enter('w', array['q'], app => repeat('x', 201))", "JQ001"),
    ("take('q', null)", "JQ001"),
    ("take('q', '')", "JQ001"),
    ("take('q', 'w99999999999999999999')", "JQ001"),
    ("take('q', 'w9999999999999999999')", "JQ001"),
    ("take('q', 'w1')", "JQ010"),
    ("take('q', {worker}, 0)", "JQ001"),
    ("take('q', {worker}, null)", "JQ001"),
    ("take('q', {worker}, 1001)", "JQ001"),
    ("take('q', {worker}, sleep => '2 minutes')", "JQ001"),
    ("take('q', {worker}, sleep => '-1 s')", "JQ001"),
    ("take('q', {worker}, sleep => '1000000 years')", "JQ001"),
    ("take('unknown', {worker})", "JQ014"),
    ("take(null, {worker})", "JQ014"),
    ("take('q', {worker}, group_name => 'unknown')", "JQ014"),
    ("extend(null)", "JQ001"),
    ("extend('w1')", "JQ010"),
    ("leave('1')", "JQ001"),
    ("done(null)", "JQ001"),
    ("done(array[null])", "JQ001"),
    ("done(array['x'])", "JQ001"),
    ("done(array['1-1-0'])", "JQ001"),
    ("done(array['9999999999999999999-1-1'])", "JQ001"),
    ("done(array[{token}, 'x'])", "JQ001"),
    ("done(array[array[{token}]])", "JQ001"),
    ("done(array_fill({token}::text, array[1001]))", "JQ001"),
    ("done(array[{token}], '{}')", "JQ001"),
    ("done(array[{token}], '[]')", "JQ001"),
    ("done(array[{token}], '[1, 2]')", "JQ001"),
    ("done(array[{token}], '[1]', '0')", "JQ001"),
    ("done(array[{token}], '[1]', '11 years')", "JQ001"),
    ("done(array[{token}], follow_ups => '[1]')", "JQ001"),
    ("done(array[{token}], follow_ups => '[{}]')", "JQ001"),
    ("done(array[{token}], follow_ups => '[{\"kind\": \"x\", \"delay\": \"y\"}]')", "JQ001"),
    ("done(array[{token}], follow_ups => '[{\"kind\": \"x\", \"dealy\": 60}]')", "JQ001"),
    ("done(array[{token}], follow_ups => '[{\"kind\": \"x\", \"run_at\": \"y\"}]')", "JQ001"),
    ("done(array[{token}], follow_ups => '[{\"kind\": \"x\", \"expires_at\": \"y\"}]')", "JQ001"),
    ("done(array[{token}], subjects => '[1]')", "JQ001"),
    ("done(array[{token}], subjects => '[{\"then\": \"drop\", \"dat\": 1}]')", "JQ001"),
    ("done(array[{token}], subjects => '[{\"then\": \"again\", \"every\": 1e-300}]')", "JQ001"),
    ("maintain('seal x')", "JQ001"),
    ("done(array[{token}], subjects => '[{\"then\": \"x\"}]')", "JQ001"),
    ("done(array[{token}], subjects => '[{\"then\": \"again\"}]')", "JQ001"),
    ("done(array[{token}], subjects => '[{\"then\": \"again\", \"at\": \"x\"}]')", "JQ001"),
    ("done(array[{token}], subjects => '[{\"then\": \"again\", \"every\": 0}]')", "JQ001"),
    ("done(array[{token}], subjects => '[{\"then\": \"again\", \"after\": \"x\"}]')", "JQ001"),
    ("done(array[{token}], subjects => '[{\"then\": \"drop\", \"args\": 1}]')", "JQ001"),
    ("failed(array[{token}], null)", "JQ001"),
    ("failed(array[{token}], 'x', null)", "JQ001"),
    ("failed(array[{token}], 'x', retry_at => 'infinity')", "JQ001"),
    ("failed(array[{token}], 'x', retry_at => '2300-01-01')", "JQ001"),
    ("snooze(array[{token}], null)", "JQ001"),
    ("snooze(array[{token}], '-1 s')", "JQ001"),
    ("snooze(array[{token}], '101 years')", "JQ001"),
    ("dead(array[{token}], null)", "JQ001"),
    ("dead(array[{token}], 'x', '')", "JQ001"),
    ("snooze(array[{token}], '170000000 years')", "JQ001"),
    ("enter('w', array['q'], '170000000 years')", "JQ001"),
    ("done(array[{token}], '[1]', '170000000 years')", "JQ001"),
    ("failed(array[{token}], 'x', retry_at => '290000-01-01')", "JQ001"),
    ("failed(array[{token}], 'x', retry_at => '-infinity')", "JQ001"),
    ("release(null)", "JQ001"),
    ("maintain('x')", "JQ001"),
    ("maintain('sweep x')", "JQ001"),
    ("maintain('retain 99999999999999999999')", "JQ001"),
]  # fmt: skip


def test_bad_input_is_refused_and_changes_nothing(conn, database):
    """With an SQLSTATE of the schema; a good token beside a bad one is not settled."""
    with Consumer(database, ["q"]) as consumer:
        job_id = enqueue(conn, queue="q")
        (job,) = consumer.take()

        def filled(call: str) -> str:
            call = call.replace("{worker}", f"'{consumer.worker}'")
            return call.replace("{token}", f"'{job['token']}'")

        wrong = {
            call: found
            for call, expected in BAD
            if (found := sqlstate(conn, f"select forebay.{filled(call)}")) != expected
        }
        assert wrong == {}
        assert state(conn, job_id) == "claimed"
        assert one(conn, "select count(*) from forebay.lease where closed_at is null") == 1


def test_nothing_is_settled_by_no_token_or_a_strange_one(conn, database):
    """An empty list has an empty answer; a token that nobody has is lost."""
    with Consumer(database) as consumer:
        enqueue(conn)
        (job,) = consumer.take()
        for how, *more in (
            ("done",),
            ("failed", "x"),
            ("snooze", "0"),
            ("dead", "x"),
            ("release",),
        ):
            assert consumer.settle(how, [], *more) == []
            assert consumer.settle_tokens(how, [TOKEN], *more) == ["lost"]
            strange = job["token"].removesuffix("-1") + "-2"
            assert consumer.settle_tokens(how, [strange], *more) == ["lost"]
        assert consumer.settle("done", [job]) == ["settled"]


def test_take_must_be_alone(conn, database):
    """Not behind a write, and not at another isolation level."""
    with Consumer(database) as consumer, connect(database) as other:
        other.autocommit = False
        other.execute("create temporary table t ()")
        assert sqlstate(other, "select forebay.take('default', %s)", consumer.worker) == "JQ012"
        other.rollback()
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert sqlstate(other, "select forebay.take('default', %s)", consumer.worker) == "JQ012"


def test_calls_read_the_pages_that_they_state(database):
    """Take, extend and leave, beside ended batches and open leases."""
    without_autovacuum(database)
    stated = stated_pages()
    with connect(database) as conn, ExitStack() as stack:
        crowd = [stack.enter_context(Consumer(database)) for _ in range(5)]
        consumer = crowd[0]
        for _ in range(40):
            enqueue(conn)
            consumer.settle("done", consumer.take(1))
        for _ in range(30):
            enqueue(conn)
        units = {"job": 10, "lane": 3, "open lease": 5}
        take = Call(
            "take", "select * from forebay.take('default', %s, 10)", [consumer.worker], units
        )
        extend = Call("extend", "select * from forebay.extend(%s)", [consumer.worker], {"job": 20})
        leave = Call("leave", "select forebay.leave(%s)", [consumer.worker], {"job": 20})
        # A session's first call reads the catalogs too.
        for call in (take, extend):
            pages(consumer.conn, call.query, call.params)
        pages(consumer.conn, leave.query, [crowd[1].worker])
        for call in (take, extend, leave):
            assert pages(consumer.conn, call.query, call.params) <= call.allowed(stated), call


def test_a_migration_does_not_wait_for_it(conn, database):
    """It calls functions that keep their meaning: no release removes them while it runs."""
    with Consumer(database):
        conn.execute("select forebay._require_gone(1000)")
        with Reader(database):
            assert sqlstate(conn, "select forebay._require_gone(1000)") == "JQ020"


@pytest.mark.parametrize(
    "details",
    [
        {"queues": "mail"}, {"queues": [1]}, {"queues": {"mail": 1}}, {"queues": [["mail"]]},
        {"pid": "one"}, {"pid": -1}, {"pid": [1]}, {"pid": 1e300}, {"concurrency": {}},
        {"processes": True}, {"uptime_seconds": "1"}, {"uptime_seconds": 1e300}, [], "text", 7,
    ],
    ids=str,
)  # fmt: skip
def test_details_that_would_break_a_screen_are_refused(conn, details):
    """Nothing is written, and the screens of all workers work on."""
    query = "select forebay.open_lease_v1('w', p_details => %s::jsonb)"
    assert sqlstate(conn, query, json.dumps(details)) == "JQ001"
    assert one(conn, "select count(*) from forebay.lease") == 0


@pytest.mark.parametrize(
    "details",
    [{}, {"queues": None, "pid": None}, {"pid": 1.7, "concurrency": 0, "queues": []}, {"x": [1]}],
    ids=str,
)
def test_details_that_say_little_are_shown(conn, details):
    """Of what is missing, the screens show nothing."""
    lease = one(
        conn, "select forebay.open_lease_v1('w', p_details => %s::jsonb)", json.dumps(details)
    )
    assert one(conn, "select count(*) from forebay.workers()") == 1
    one(conn, "select forebay.close_lease_v1(%s)", lease)
    assert one(conn, "select count(*) from forebay.ended_workers()") == 1

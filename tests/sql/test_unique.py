"""Unique keys: the truth table, row by row, and what each guard is there for, with it taken out."""

import json
import threading
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.sql.test_flat_cost import pages
from tests.support.engine import (
    Reader,
    StillClock,
    connect,
    enqueue_many,
    lane_of,
    one,
    open_group,
    shift_clock,
    sqlstate,
    state,
    trim,
)
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for

MODES: dict[str, dict[str, Any]] = {
    "once": {"once": "k"},
    "idempotent": {"idempotent": "k"},
    "coalesce": {"coalesce": "k"},
    "replace": {"replace": "k"},
    "debounce": {"debounce": "k", "wait": 60},
    "throttle": {"throttle": "k", "period": 3600},
}


class Answer(NamedTuple):
    job_id: int
    is_new: bool
    replaced: int | None


def ask(conn, unique_as, args=None, **options) -> Answer:
    """Enqueue with a key on a connection, in whatever transaction it is in."""
    names = "".join(f", {name} => %s" for name in options)
    row = conn.execute(
        f"select * from forebay.enqueue_unique('work', %s::jsonb, %s::jsonb{names})",
        [json.dumps(args or {}), json.dumps(unique_as), *options.values()],
    ).fetchone()
    return Answer(*row)


def ended(outcome: str, **more: Any) -> list[dict[str, Any]]:
    return [{"offset": 1, "outcome": outcome, **more}]


# -- how a job comes into each state -------------------------------------------------------------


def waiting(conn, reader, unique_as):
    return ask(conn, unique_as).job_id


def scheduled(conn, reader, unique_as):
    return ask(conn, unique_as, delay="1 hour").job_id


def running(conn, reader, unique_as):
    job_id = ask(conn, unique_as).job_id
    assert reader.claim().job_ids == [job_id]
    return job_id


def failed(conn, reader, unique_as):
    job_id = running(conn, reader, unique_as)
    assert reader.settle(reader.claim_no, ended=ended("retried", after=3600)) == "settled"
    return job_id


def lost(conn, reader, unique_as):
    job_id = running(conn, reader, unique_as)
    assert reader.revoked_by(conn) == 1
    return job_id


def done(conn, reader, unique_as):
    job_id = running(conn, reader, unique_as)
    assert reader.settle(reader.claim_no) == "settled"
    return job_id


def dead(conn, reader, unique_as):
    job_id = running(conn, reader, unique_as)
    assert reader.settle(reader.claim_no, ended=ended("dead")) == "settled"
    return job_id


def cancelled(conn, reader, unique_as):
    job_id = ask(conn, unique_as).job_id
    one(conn, "select forebay.cancel(%s)", job_id)
    return job_id


def expired(conn, reader, unique_as):
    job_id = one(
        conn,
        "select forebay.enqueue('work', unique_as => %s::jsonb,"
        " expires_at => clock_timestamp() + interval '1 s')",
        json.dumps(unique_as),
    )
    wait_for(
        lambda: one(
            conn,
            "select expires_at <= clock_timestamp() from forebay.unique_key where job_id = %s",
            job_id,
        )
    )
    return job_id


#: What a second call does, by the uniqueness mode and the state of the first call's job:
#: same (its id again), new (a new job beside it or after it), replaced (a new job in its place).
TRUTH = {
    "once": {
        "same": [waiting, scheduled, running, failed, lost],
        "new": [done, dead, cancelled, expired],
    },
    "coalesce": {
        "same": [waiting, scheduled, failed, lost],
        "new": [running, done, dead, cancelled, expired],
    },
    "replace": {
        "replaced": [waiting, scheduled, failed, lost],
        "new": [running, done, dead, cancelled, expired],
    },
    "throttle": {
        "same": [waiting, scheduled, running, failed, lost, done, dead, cancelled, expired],
    },
}
TRUTH["idempotent"] = TRUTH["once"]
TRUTH["debounce"] = TRUTH["replace"]
ROWS = [
    (mode, answer, state)
    for mode, answers in TRUTH.items()
    for answer, states in answers.items()
    for state in states
    if not (mode == "debounce" and state is not waiting)  # It takes no other time than its own.
]


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@pytest.fixture
def reader(database):
    with Reader(database) as reader:
        yield reader


@pytest.mark.parametrize(
    ("mode", "answer", "prepare"), ROWS, ids=[f"{i} {s.__name__}" for i, _, s in ROWS]
)
def test_the_truth_table_holds(conn, reader, mode, answer, prepare):
    """
    What a second call of a key answers is what the table in the documentation says.
    """
    first = prepare(conn, reader, MODES[mode])
    second = ask(conn, MODES[mode])
    if answer == "same":
        assert second == (first, False, None)
    else:
        assert second.job_id != first
        assert second.is_new
        assert second.replaced == (first if answer == "replaced" else None)


def test_keys_of_other_queues_and_modes_are_other_keys(conn):
    """
    A key belongs to its queue and its uniqueness mode.
    """
    answers = [ask(conn, unique_as) for unique_as in MODES.values()]
    answers.append(ask(conn, MODES["once"], queue="other"))
    assert all(answer.is_new for answer in answers)


def test_a_replaced_job_never_starts_and_the_new_one_has_the_new_arguments_and_time(conn, reader):
    """
    What waits after a replacement is the new job alone.
    """
    ask(conn, MODES["replace"], {"n": 1}, delay="1 hour")
    ask(conn, MODES["replace"], {"n": 2})
    last = ask(conn, MODES["replace"], {"n": 3})
    assert [(job["job_id"], job["args"]) for job in reader.claim().jobs] == [
        (last.job_id, {"n": 3})
    ]
    assert state(conn, last.replaced) == "cancelled"


def test_a_running_job_that_has_a_successor_is_not_retried(conn, reader):
    """
    At most one waits: a failure of the running one leaves the work to its successor.
    """
    for mode in ("coalesce", "replace"):
        first = running(conn, reader, MODES[mode])
        second = ask(conn, MODES[mode])
        assert reader.settle(reader.claim_no, ended=ended("retried", after=0)) == "settled"
        assert state(conn, first) == "cancelled"
        assert reader.claim().job_ids == [second.job_id]
        reader.settle(reader.claim_no)
        assert reader.claim_all() == []


def test_a_debounced_job_starts_after_a_silence_and_at_most_so_long_after_the_first_call(conn):
    """
    Each call moves the start, up to max_wait after the first one.
    """
    unique_as = {"debounce": "k", "wait": 40, "max_wait": 60}

    def starts_in(job_id):
        query = "select extract(epoch from run_at - forebay._now())::float from forebay.job(%s)"
        return one(conn, query, job_id)

    clock = StillClock(conn)
    first = ask(conn, unique_as)
    assert starts_in(first.job_id) == 40
    clock.set(30)
    second = ask(conn, unique_as)
    assert second.replaced == first.job_id
    assert starts_in(second.job_id) == 30
    clock.set(59)
    third = ask(conn, unique_as)
    assert third.replaced == second.job_id
    assert starts_in(third.job_id) == 1


def test_a_throttled_key_is_free_when_its_period_is_over(conn):
    """
    A period counts from the enqueue of the last new job.
    """
    first = ask(conn, MODES["throttle"])
    shift_clock(conn, 3590)
    assert ask(conn, MODES["throttle"]) == (first.job_id, False, None)
    shift_clock(conn, 3601)
    assert ask(conn, MODES["throttle"]).is_new


def test_an_idempotency_key_refuses_another_request_while_its_job_lives(conn, reader):
    """
    The same kind and arguments give the existing job, others an error that names it.
    """
    first = ask(conn, MODES["idempotent"], {"sum": 10, "to": "a"})
    assert ask(conn, MODES["idempotent"], {"to": "a", "sum": 10}) == (first.job_id, False, None)
    with pytest.raises(psycopg.Error, match=f"belongs to job {first.job_id}") as caught:
        ask(conn, MODES["idempotent"], {"sum": 11, "to": "a"})
    assert caught.value.sqlstate == "JQ005"
    reader.finish(reader.claim())
    assert ask(conn, MODES["idempotent"], {"sum": 11, "to": "a"}).is_new


def test_a_key_is_held_until_every_group_is_done_with_its_job(database, conn):
    """
    Of several groups each has to end the job before the key is free, and one that has started it is
    enough to let the next wait.
    """
    with Reader(database, group="a") as a, Reader(database, group="b") as b:
        first, second = (ask(conn, MODES[mode]) for mode in ("once", "coalesce"))
        batch = a.claim()
        assert batch.job_ids == [first.job_id, second.job_id]
        later = ask(conn, MODES["coalesce"])
        assert later.is_new
        a.finish(batch)
        assert ask(conn, MODES["once"]) == (first.job_id, False, None)
        # For b the successor took the place of the one that it has not started.
        batch = b.claim()
        assert batch.job_ids == [first.job_id, later.job_id]
        assert ask(conn, MODES["once"]) == (first.job_id, False, None)
        b.finish(batch)
        assert ask(conn, MODES["once"]).is_new
    open_group(conn, "default", "late", "now")
    assert not ask(conn, MODES["once"]).is_new


def test_jobs_of_one_call_are_told_apart_and_bad_ones_named(conn):
    """
    A bulk call answers in input order, the existing id for a key that is held; it is all or none.
    """
    held = ask(conn, MODES["once"])
    jobs = [
        {"kind": "work"},
        {"kind": "work", "unique_as": {"once": "k"}},
        {"kind": "work", "unique_as": {"coalesce": "b"}},
        {"kind": "work", "unique_as": None},
        {"kind": "work", "unique_as": {"coalesce": "b"}, "delay": 60},
        {"kind": "work", "unique_as": {"replace": "a"}, "delay": 60},
    ]
    ids = enqueue_many(conn, jobs)
    assert ids[1] == held.job_id
    assert ids[2] == ids[4]
    assert len({*ids}) == 5
    assert state(conn, ids[5]) == "scheduled"
    before = one(conn, "select count(*) from forebay.log")
    for bad, code in (
        ({"once": ""}, "JQ001"),
        ({"once": "k", "replace": "k"}, "JQ001"),
        ({"debounce": "k"}, "JQ001"),
        ({"debounce": "k", "wait": 5, "max_wait": 1}, "JQ001"),
        ({"throttle": "k", "period": 0}, "JQ001"),
        ({"once": "k", "wait": 5}, "JQ001"),
        ({"once": "k", "on_busy": "skip"}, "JQ001"),
        ("once", "JQ001"),
    ):
        with pytest.raises(psycopg.Error, match=r"job 1: |unique") as caught:
            enqueue_many(conn, [{"kind": "work"}, {"kind": "work", "unique_as": bad}])
        assert caught.value.sqlstate == code, bad
    assert one(conn, "select count(*) from forebay.log") == before


# -- open transactions ---------------------------------------------------------------------------


def in_background(database: str, unique_as) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []

    def work() -> None:
        with connect(database) as conn:
            answers.append(ask(conn, unique_as))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, answers


def wait_until_one_waits(watcher) -> None:
    query = (
        "select exists (select from pg_stat_activity a where a.datname = current_database()"
        " and cardinality(pg_blocking_pids(a.pid)) > 0)"
    )
    wait_for(lambda: one(watcher, query))


@pytest.mark.parametrize("ending", ["commit", "rollback", "crash"])
@pytest.mark.parametrize("mode", list(MODES))
def test_the_second_of_two_producers_gets_it_right_however_the_first_ends(
    database, conn, mode, ending
):
    """
    It waits for the first one's end: after a commit it finds that job, else it makes its own. With
    on_busy raise it is refused meanwhile.
    """
    first = psycopg.connect(database)
    made = ask(first, MODES[mode])
    busy = json.dumps(MODES[mode] | {"on_busy": "raise"})
    query = "select forebay.enqueue('work', unique_as => %s::jsonb)"
    assert sqlstate(conn, query, busy) == "JQ004"
    thread, answers = in_background(database, MODES[mode])
    wait_until_one_waits(conn)
    if ending == "crash":
        one(conn, "select pg_terminate_backend(%s)", first.info.backend_pid)
    else:
        getattr(first, ending)()
    thread.join(10)
    (second,) = answers
    if ending != "commit":
        assert second.is_new
        assert second.replaced is None
    elif mode in ("replace", "debounce"):
        assert second.replaced == made.job_id
    else:
        assert second == (made.job_id, False, None)
    first.close()


def one_generation(database: str) -> None:
    """Two producers of a free key never both make its job."""
    with connect(database) as conn, psycopg.connect(database) as first:
        ask(first, MODES["once"])
        thread, answers = in_background(database, MODES["once"])
        wait_for(
            lambda: (
                not thread.is_alive()
                or one(conn, "select exists (select from pg_locks where not granted)")
            )
        )
        first.commit()
        thread.join(10)
        assert not answers[0].is_new


def test_one_generation(database):
    """
    Two producers of a free key never both make its job.
    """
    one_generation(database)


def test_one_generation_needs_its_primary_key(database):
    """
    Without the primary key both make one.
    """
    with connect(database) as conn:
        conn.execute("alter table forebay.unique_key drop constraint unique_key_pkey")
    with violation():
        one_generation(database)


def test_a_repeatable_read_transaction_that_cannot_see_the_newest_job_is_refused(database, conn):
    """
    It fails as serialization failures do, instead of making a second job.
    """
    with psycopg.connect(database) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select 1 from forebay.log")
        ask(conn, MODES["once"])
        with pytest.raises(psycopg.errors.SerializationFailure):
            ask(old, MODES["once"])


def whoever_joined_is_seen_by_a_later_run(database: str) -> None:
    """A call that joined a waiting job, and commits after it was claimed, is followed by a run."""
    with connect(database) as conn, psycopg.connect(database) as late, Reader(database) as reader:
        made = ask(conn, MODES["coalesce"])
        assert ask(late, MODES["coalesce"]) == (made.job_id, False, None)
        batch = reader.claim()
        assert batch.job_ids == [made.job_id]  # It waits for nobody.
        late.commit()
        reader.finish(batch)
        shift_clock(conn, 1)
        one(conn, "select forebay.promote_v1()")
        (job,) = reader.claim().jobs
        assert job["job_id"] != made.job_id
        assert ask(conn, MODES["coalesce"]).is_new  # The successor runs, too.


def test_whoever_joined_is_seen_by_a_later_run(database):
    """
    A call that joined a waiting job, and commits after it was claimed, is followed by a run.
    """
    whoever_joined_is_seen_by_a_later_run(database)


def test_whoever_joined_is_not_seen_when_claims_do_not_look(database):
    """
    Without the successor nothing runs after that commit.
    """
    break_function(
        database, "_take", ("perform forebay._append_successors(v_taken, p_group_id)", "null")
    )
    with violation(ValueError):
        whoever_joined_is_seen_by_a_later_run(database)


def whoever_joins_looks_again(database: str) -> None:
    """A call that waited for a claim of the job it would join does not join it any more."""
    with connect(database) as conn, psycopg.connect(database) as claim, Reader(database) as reader:
        made = ask(conn, MODES["coalesce"])
        claim.execute("select 1 from forebay.unique_key for update")  # As a claim does.
        thread, answers = in_background(database, MODES["coalesce"])
        wait_until_one_waits(conn)
        assert reader.claim().job_ids == [made.job_id]
        claim.commit()
        thread.join(10)
        assert answers[0].job_id != made.job_id


def test_whoever_joins_looks_again(database):
    """
    A call that waited for a claim of the job it would join does not join it any more.
    """
    whoever_joins_looks_again(database)


def test_whoever_joins_without_a_second_look_joins_a_running_job(database):
    """
    Without the second look it joins a job that cannot see what it wrote.
    """
    break_function(
        database,
        "_enqueue_unique",
        ("if forebay._key_state(v_last) = 'waiting' then", "if true then"),
    )
    with violation():
        whoever_joins_looks_again(database)


def test_a_successor_is_followed_up_for_as_long_as_somebody_is_open_and_later_each_time(
    database, conn, reader
):
    """
    An open transaction costs a run now and then, never a claim's time and never more than one job.
    """
    made = ask(conn, MODES["coalesce"])
    waits = []
    with psycopg.connect(database) as late:
        ask(late, MODES["coalesce"])
        for clock in range(0, 100, 20):
            shift_clock(conn, clock)
            one(conn, "select forebay.promote_v1()")
            (job,) = reader.claim().jobs
            reader.settle(reader.claim_no)
            rows = conn.execute(
                "select extract(epoch from d.run_at - d.enqueued_at)::float from forebay.deferred d"
                " where d.job_id > %s",
                [job["job_id"]],
            ).fetchall()
            waits += [seconds for (seconds,) in rows]
    assert made.job_id < job["job_id"]
    assert waits == pytest.approx([0.25, 0.5, 1, 2, 4], abs=0.1)
    shift_clock(conn, 120)
    one(conn, "select forebay.promote_v1()")
    assert len(reader.claim().jobs) == 1
    reader.settle(reader.claim_no)
    assert one(conn, "select count(*) from forebay.deferred where job_id > %s", job["job_id"]) == 1


def test_a_claim_passes_over_a_producer_that_makes_the_next_generation(database, conn, reader):
    """
    A claim of a job that comes back while its successor is not committed waits for nobody.
    """
    made = running(conn, reader, MODES["coalesce"])
    with psycopg.connect(database) as producer:
        successor = ask(producer, MODES["coalesce"])
        assert reader.settle(reader.claim_no, ended=ended("snoozed", after=0)) == "settled"
        conn.execute("set statement_timeout = '5s'")
        reader.conn.execute("set statement_timeout = '5s'")
        assert reader.claim_ready().job_ids == [made]
    assert reader.settle(reader.claim_no) == "settled"
    assert reader.claim().job_ids == [successor.job_id]


# -- maintenance
# --------------------------------------------------------------------------------------


def generations(conn) -> list[tuple[str, int]]:
    return conn.execute("select key, gen from forebay.unique_key order by 1, 2").fetchall()


def test_maintenance_forgets_keys_whose_jobs_have_ended_and_no_others(conn, reader):
    """
    Generations older than a day go when they are superseded or ended; a key that is held stays.
    """
    for _ in range(3):
        ask(conn, {"once": "ended"})
        reader.finish(reader.claim())
    ask(conn, {"once": "held"})
    ask(conn, {"throttle": "slow", "period": 10 * 86_400})
    trim(conn)
    assert len(generations(conn)) == 5
    shift_clock(conn, 2 * 86_400)
    kept = [("held", 1), ("slow", 1)]
    wait_for(lambda: trim(conn) == 0 and generations(conn) == kept)
    assert not ask(conn, {"once": "held"}).is_new
    assert ask(conn, {"once": "ended"}).is_new


def numbering_does_not_begin_anew(database: str) -> None:
    """A key's generations are not forgotten while an open transaction makes the next one."""
    with connect(database) as conn, psycopg.connect(database) as first, Reader(database) as reader:
        ask(conn, MODES["once"])
        reader.finish(reader.claim())
        shift_clock(conn, 2 * 86_400)
        assert ask(first, MODES["once"]).is_new
        for _ in range(40):  # each looks at the row with a chance of one half
            trim(conn)
        busy = json.dumps(MODES["once"] | {"on_busy": "raise"})
        query = "select forebay.enqueue('work', unique_as => %s::jsonb)"
        assert sqlstate(conn, query, busy) == "JQ004"


@pytest.mark.slow
def test_numbering_does_not_begin_anew(database):
    """
    A key's generations are not forgotten while an open transaction makes the next one.
    """
    numbering_does_not_begin_anew(database)


@pytest.mark.slow
def test_numbering_begins_anew_when_nobody_holds_the_predecessor(database):
    """
    Without the lock on the predecessor a second holder gets in.
    """
    break_function(database, "_hold_key", ("for key share", ""))
    with violation():
        numbering_does_not_begin_anew(database)


@pytest.mark.parametrize("mode", ["once", "coalesce", "replace"])
@pytest.mark.slow
def test_a_key_that_was_taken_hundreds_of_times_costs_what_it_did_at_first(
    database, conn, reader, mode
):
    """
    While somebody holds a snapshot, an enqueue, a claim and a settlement touch about as many pages
    after hundreds of generations as after a few.
    """
    conn.execute("analyze")
    unique_as = json.dumps(MODES[mode])
    call = "select forebay.enqueue_unique('work', '{}', %s::jsonb)"
    claim = "select forebay.claim_v1(%s, %s, %s, %s, %s, 10)"
    lane = lane_of("default", conn)
    touched = []
    ask(conn, {"once": "other"})
    reader.finish(reader.claim())
    with psycopg.connect(database) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select 1")
        for _ in range(400):
            reader.claim_no += 1
            number = reader.claim_no
            touched.append(
                pages(conn, call, unique_as)
                + pages(reader.conn, claim, reader.lease_id, number, number, reader.group_id, lane)
            )
            assert reader.settle(number) == "settled"
    assert one(conn, "select max(gen) from forebay.unique_key") == 400
    assert min(touched[-20:]) < 1.5 * min(touched[20:40]) + 20


# -- reading the state off the job ---------------------------------------------------------------


def test_the_state_of_a_key_is_the_state_of_its_job(database, conn, reader):
    """
    What a key goes by agrees with forebay.job, for jobs in all states and also when many batches
    and segments lie behind.
    """
    expected = {
        "scheduled": "waiting",
        "ready": "waiting",
        "retrying": "waiting",
        "claimed": "running",
    }
    lane = lane_of("default", conn)
    late = psycopg.connect(database)
    late_id = ask(late, {"once": "late"}).job_id
    for n in range(60):
        ask(conn, {"once": f"k{n}"}, **({"delay": "1 hour"} if n % 7 == 0 else {}))
        if n % 3 == 0:
            batch = reader.claim(2, lane)
            outcome = ("done", "retried", "dead", "snoozed", "lost")[n % 5]
            if batch.jobs and n % 4:
                reader.settle(batch.claim_no, ended=ended(outcome, after=(n % 2) * 600))
    late.commit()
    late.close()
    reader.claim(3, lane)
    rows = conn.execute(
        "select u.job_id, forebay._key_state(u), j.state from forebay.unique_key u,"
        " lateral forebay.job(u.job_id) j"
    ).fetchall()
    assert len(rows) == 61
    assert {stage for _, stage, _ in rows} == {"waiting", "running", "ended"}
    assert [row for row in rows if row[1] != expected.get(row[2], "ended")] == []
    assert state(conn, late_id) in expected

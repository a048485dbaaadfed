"""Paused keys: no claim takes their jobs, they spend no attempt, jobs of other keys run, and the
end of the pause forgets none.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    one,
    open_group,
    shift_clock,
    sqlstate,
    state,
)
from tests.support.mutant import break_function, violation
from tests.support.restore import create_database, drop_database
from tests.support.waiting import wait_for

SORTS = ["limit_key", "ordering_key"]


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def put(conn, sort: str, count: int, key: str = "k", **options) -> list[int]:
    """Enqueue jobs of one key; return their ids."""
    return [
        enqueue(conn, queue="q", **{sort: key}, args={"key": key}, **options) for _ in range(count)
    ]


def pause(conn, sort: str, key: str = "k", seconds: float | None = None) -> bool:
    return one(
        conn,
        f"select forebay.pause_key('q', {sort} => %s, resume_after => make_interval(secs => %s))",
        key,
        seconds,
    )


def resume(conn, sort: str, key: str = "k") -> bool:
    return one(conn, f"select forebay.resume_key('q', {sort} => %s)", key)


def at(conn, seconds: float) -> None:
    """Set the clock ahead, and promote what is due."""
    shift_clock(conn, seconds)
    while one(conn, "select forebay.promote_v1()"):
        pass


def take(reader: Reader, limit: int = 100) -> list:
    """Claim until no lane is ready; return the batches. Polls that do not end are a failure."""
    batches = []
    for _ in range(50):
        lanes = reader.ready()
        if not lanes:
            return batches
        for lane in lanes:
            batch = reader.claim(limit, lane["lane"])
            if batch.jobs:
                batches.append(batch)
    pytest.fail("a lane stays ready")


def drained(reader: Reader, limit: int = 100) -> list[int]:
    """Claim and finish until no lane is ready.

    Return the ids in the order in which they were handed out.
    """
    got = []
    for _ in range(50):
        batches = take(reader, limit)
        if not batches:
            return got
        for batch in batches:
            got += batch.job_ids
            reader.finish(batch)
    pytest.fail("jobs come without an end")


def ids(batches: list) -> list[int]:
    return [job_id for batch in batches for job_id in batch.job_ids]


# --- what a pause stops ---


def paused_before(database: str, sort: str) -> None:
    """The key is paused first; its jobs and those of another key come then."""
    with connect(database) as conn, Reader(database, "q") as reader:
        assert pause(conn, sort) is True
        jobs = put(conn, sort, 3)
        others = put(conn, sort, 2, "other")
        assert sorted(drained(reader)) == others
        jobs += put(conn, sort, 2)
        assert drained(reader) == []
        assert depth(conn, "q") == {"default": (5, 0, 0)}
        assert [state(conn, job) for job in jobs] == ["ready"] * 5
        assert resume(conn, sort) is True
        batches = take(reader)
        assert ids(batches) == jobs
        assert {job["attempt"] for batch in batches for job in batch.jobs} == {0}


@pytest.mark.parametrize("sort", SORTS)
def test_jobs_of_a_paused_key_wait_in_order_and_others_run(database, sort):
    """No attempt is used, and the counts have the jobs."""
    paused_before(database, sort)


@pytest.mark.parametrize(
    ("sort", "function", "guard"),
    [
        ("limit_key", "_limits_met", ("states[v_nr].permits := 0;", "")),
        ("ordering_key", "_decide_keyed", ((
                "if p_audience = 0 and v_paused = '{}' "
                "and"
                ), "if p_audience = 0 and")),
        ("ordering_key", "_keyed_candidates", ((
                "or s.waits or s.is_paused as "
                "is_taken"
                ), "or s.waits as is_taken")),
        ("limit_key", "_announce_key", ("for v_group in", "return; for v_group in")),
        ("ordering_key", "_announce_key", ("for v_group in", "return; for v_group in")),
    ],
    ids=["permits", "short way", "taken", "no turn", "no recheck row"],
)  # fmt: skip
def test_without_a_guard_they_would_not(database, sort, function, guard):
    """The same: jobs of a paused key would run, polls would not end, or the jobs would stay
    parked.
    """
    break_function(database, function, guard)
    with violation():
        paused_before(database, sort)


@pytest.mark.parametrize("sort", SORTS)
def test_claimed_jobs_of_a_paused_key_finish(database, conn, sort):
    """The holder gets no more of the key, and neither its settlement nor another reader brings
    any.
    """
    jobs = put(conn, sort, 5)
    with Reader(database, "q") as first, Reader(database, "q") as second:
        batch = first.claim_ready(2)
        assert batch.job_ids == jobs[:2]
        assert pause(conn, sort)
        assert take(first) == take(second) == []
        first.finish(batch)
        assert take(first) == take(second) == []
        assert depth(conn, "q") == {"default": (3, 0, 0)}
        assert resume(conn, sort)
        assert drained(second) == jobs[2:]


@pytest.mark.parametrize("sort", SORTS)
def test_jobs_that_were_parked_before_stay_parked(database, conn, sort):
    """They wait for their key when it is paused, and the end of its running job does not start
    them.
    """
    one(conn, "select forebay.limit_queue('q', key_concurrency => 1)")
    enqueue(conn, queue="q", limit_key="first")
    with Reader(database, "q") as first, Reader(database, "q") as second:
        drained(first)
        at(conn, 5)  # Jobs in flight are no longer counted from the leases.
        jobs = put(conn, sort, 4)
        batch = first.claim_ready(1)
        assert batch.job_ids == jobs[:1]
        assert take(second) == []
        assert pause(conn, sort)
        first.finish(batch)
        assert take(second) == []
        assert depth(conn, "q") == {"default": (3, 0, 0)}
        resume(conn, sort)
        assert drained(second) == jobs[1:]


def retried_while_paused(database: str, sort: str, outcome: str, after: int) -> None:
    """The first job of three comes back while its key is paused."""
    with connect(database) as conn, Reader(database, "q") as reader:
        jobs = put(conn, sort, 4)
        batch = reader.claim_ready(3)
        assert batch.job_ids == jobs[:3]
        assert pause(conn, sort)
        rest = [{"offset": offset, "outcome": "released"} for offset in (2, 3)]
        again = {"offset": 1, "outcome": outcome, "after": after}
        assert reader.settle(batch.claim_no, ended=[again, *rest]) == "settled"
        reader.open_claims.clear()
        assert take(reader) == []
        at(conn, 30)
        assert take(reader) == []
        rows = one(conn, "select count(*) from forebay.log where kind <> ''")
        at(conn, 60)
        assert take(reader) == []
        assert rows == one(conn, "select count(*) from forebay.log where kind <> ''")
        assert depth(conn, "q") == {"default": (4, 0, 0)}
        assert [state(conn, job) for job in jobs] == ["ready"] * 4
        assert resume(conn, sort)
        batches = take(reader)
        got = ids(batches)
        assert sorted(got) == jobs
        assert sort == "limit_key" or got == jobs
        attempts = {job["job_id"]: job["attempt"] for batch in batches for job in batch.jobs}
        assert attempts == dict.fromkeys(jobs, 0) | {jobs[0]: int(outcome == "retried")}
        for batch in batches:
            reader.finish(batch)
        assert drained(reader) == []
        assert depth(conn, "q") == {"default": (0, 0, 0)}


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("outcome", ["retried", "snoozed", "released"])
@pytest.mark.parametrize("after", [0, 20])
def test_a_job_that_comes_back_while_its_key_is_paused_waits(database, sort, outcome, after):
    """It is not appended again while it waits, and comes first of its ordering key."""
    retried_while_paused(database, sort, outcome, after)


@pytest.mark.parametrize(
    ("function", "guard"),
    [
        ("_keyed_candidates", ("where u.seq <> all (p_held)", "")),
        ("_hold_keys", ("v_key.lane || v_key.waiting_lanes", "v_key.waiting_lanes")),
        ("_hold_keys", ((
                "v_key.seq || v_key.waiting_seqs, "
                "min"
                ), "v_key.seq || '{}'::bigint[], min")),
    ],
    ids=["would run twice", "has no lane", "those behind are lost"],
)  # fmt: skip
def test_without_a_guard_it_would_not(database, function, guard):
    """The same with a claim that does not requeue it, or does not do it right."""
    break_function(database, function, guard)
    with violation(psycopg.Error):
        retried_while_paused(database, "ordering_key", "retried", 0)


def suspect_of_a_paused_key(database: str, sort: str) -> None:
    """The holder of the first of three jobs is lost while the key is paused."""
    with (
        connect(database) as conn,
        Reader(database, "q") as first,
        Reader(database, "q") as second,
    ):
        jobs = put(conn, sort, 3)
        batch = first.claim_ready(1)
        assert batch.job_ids == jobs[:1]
        assert pause(conn, sort)
        assert first.revoked_by(conn) == 1
        assert take(second) == []
        at(conn, 5)
        assert second.ready() == []
        at(conn, 15)
        assert second.ready() != []
        assert take(second) == []
        assert resume(conn, sort)
        got = drained(second)
        assert jobs[0] not in got
        at(conn, 30)
        alone = second.claim_ready(10)
        assert alone.job_ids == jobs[:1]
        second.finish(alone)
        assert sorted(got + drained(second) + alone.job_ids) == jobs


@pytest.mark.parametrize("sort", SORTS)
def test_a_suspect_of_a_paused_key_waits_and_comes_alone(database, sort):
    """It goes back to its lane, not more often than every ten seconds."""
    suspect_of_a_paused_key(database, sort)


@pytest.mark.parametrize(
    ("function", "guard"),
    [
        ("_keyed_candidates", ("not s.is_busy and not s.is_paused", "not s.is_busy")),
        ("_keyed_candidates", ("(s.is_busy or s.is_paused)", "s.is_busy")),
        ("_choose_keyed", ("interval '10 seconds'", "interval '0.2 seconds'")),
    ],
    ids=["would run", "would be lost", "would spin"],
)
def test_without_a_guard_a_suspect_would_not(database, function, guard):
    """The same without what a claim of ordering keys does for it."""
    break_function(database, function, guard)
    with violation():
        suspect_of_a_paused_key(database, "ordering_key")


def test_without_the_guard_a_suspect_of_a_limit_key_would_come_back_each_second(database):
    """The same for a limit key."""
    break_function(database, "_take_limited", ("interval '10 seconds'", "interval '1 second'"))
    with violation():
        suspect_of_a_paused_key(database, "limit_key")


def redriven_while_paused(database: str) -> None:
    """The dead letter of a job holds its ordering key.

    The job is redriven while the key is paused.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        jobs = put(conn, "ordering_key", 3)
        batch = reader.claim_ready(1)
        death = {"offset": 1, "outcome": "dead", "reason": "permanent", "holds_key": True}
        assert reader.settle(batch.claim_no, ended=[death]) == "settled"
        reader.open_claims.clear()
        assert take(reader) == []
        pause(conn, "ordering_key")
        again = one(
            conn,
            "select forebay.redrive(dead_id) from forebay.dead_letter where job_id = %s",
            jobs[0],
        )
        assert take(reader) == []
        resume(conn, "ordering_key")
        assert drained(reader) == [again, *jobs[1:]]


def test_a_redriven_job_of_a_held_and_paused_key_takes_its_place(database):
    """It is requeued like a job that came back, and the dead letter holds the key no longer."""
    redriven_while_paused(database)


def test_without_the_end_of_the_hold_its_key_would_wait_for_ever(database):
    """The same where the dead letter still holds the key after that."""
    break_function(
        database, "_hold_keys", ("and d.holds_key and d.redriven_as", "and false and d.redriven_as")
    )
    with violation():
        redriven_while_paused(database)


# --- a pause with an end ---


def paused_for_a_time(database: str, sort: str, when: str) -> None:
    """The pause ends, and no operator resumes the key."""
    with connect(database) as conn, Reader(database, "q") as reader:
        jobs = put(conn, sort, 3)
        behind = []
        if when == "running":
            batch = reader.claim_ready(1)
        elif when == "parked":
            assert pause(conn, sort)
            assert take(reader) == []
        assert pause(conn, sort, seconds=60)
        assert take(reader) == []
        if when == "running":
            again = {"offset": 1, "outcome": "retried"}
            assert reader.settle(batch.claim_no, ended=[again]) == "settled"
            reader.open_claims.clear()
            assert take(reader) == []
        behind = put(conn, sort, 2)
        assert take(reader) == []
        at(conn, 30)
        assert take(reader) == []
        at(conn, 61)
        assert sorted(drained(reader)) == jobs + behind
        assert one(conn, "select count(*) from forebay.events(only_act => 'keys.resume')") == 0


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("when", ["waiting", "parked", "running"])
def test_a_pause_with_an_end_ends_by_itself(database, sort, when):
    """Whether jobs waited, were parked, or came back."""
    paused_for_a_time(database, sort, when)


@pytest.mark.parametrize(
    ("sort", "function", "guard"),
    [
        ("limit_key", "_give_turns", ("else p.ends end as at", "end as at")),
        ("limit_key", "_limits_met", ("states[v_nr].tokens := 0;", "")),
        ("ordering_key", "_hold_keys", ("if v_key.ends is not null and", "if false and")),
    ],
)
def test_without_a_scheduled_recheck_row_it_would_not(database, sort, function, guard):
    """The same with a claim that only parks."""
    break_function(database, function, guard)
    with violation():
        paused_for_a_time(database, sort, "waiting")


@pytest.mark.parametrize(
    ("sort", "function", "guard"),
    [
        ("ordering_key", "_hold_keys", ("(v_key.is_recheck or", "(false or")),
        ("ordering_key", "_announce_key", ("for v_group in", "return; for v_group in")),
        ("limit_key", "_announce_key", ("for v_group in", "return; for v_group in")),
    ],
)
def test_without_a_look_at_parked_jobs_the_end_would_be_missed(database, sort, function, guard):
    """The key was paused without an end first, so nothing was scheduled for its parked jobs."""
    break_function(database, function, guard)
    with violation():
        paused_for_a_time(database, sort, "parked")


@pytest.mark.parametrize("sort", SORTS)
def test_a_key_that_is_paused_again_has_the_new_time(database, conn, sort):
    """A later one, none, and an earlier one; each time something changes."""
    jobs = put(conn, sort, 2)
    with Reader(database, "q") as reader:
        assert pause(conn, sort, seconds=60)
        assert take(reader) == []
        assert pause(conn, sort, seconds=120)
        assert take(reader) == []
        at(conn, 61)
        assert take(reader) == []
        assert pause(conn, sort)
        assert pause(conn, sort) is False
        at(conn, 200)
        assert take(reader) == []
        assert pause(conn, sort, seconds=30)
        assert take(reader) == []
        at(conn, 231)
        assert drained(reader) == jobs
        assert resume(conn, sort) is False
        assert drained(reader) == []


@pytest.mark.parametrize("sort", SORTS)
def test_recheck_rows_of_a_key_that_is_paused_again_and_again_do_not_pile_up(database, conn, sort):
    """Those of earlier ends become one for the last end."""
    put(conn, sort, 2)
    scheduled = "select count(*) from forebay.deferred where run_at > forebay._now() and kind = ''"
    with Reader(database, "q") as reader:
        for _ in range(10):
            assert pause(conn, sort, seconds=60)
            assert take(reader) == []
        pause(conn, sort, seconds=600)
        assert take(reader) == []
        at(conn, 90)
        assert take(reader) == []
        assert one(conn, scheduled) == 1


def clock_set_back(database: str, sort: str) -> None:
    """The recheck row of the end was promoted.

    Then the clock is set back, and the row is read before the end.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        jobs = put(conn, sort, 2)
        assert pause(conn, sort, seconds=60)
        assert take(reader) == []
        at(conn, 61)
        shift_clock(conn, 0)
        assert take(reader) == []
        at(conn, 62)
        assert drained(reader) == jobs


@pytest.mark.parametrize("sort", SORTS)
def test_the_end_of_a_pause_comes_also_after_the_clock_was_set_back(database, sort):
    """A row that was promoted does not count as scheduled."""
    clock_set_back(database, sort)


def test_it_would_not_if_a_promoted_row_counted(database):
    """The same without a look at the position of the promotions."""
    break_function(
        database,
        "_hold_keys",
        ("and d.run_at > coalesce((select", "and d.run_at <> coalesce((select"),
    )
    with violation():
        clock_set_back(database, "ordering_key")


# --- a planned pause ---


def plan(conn, sort: str, begins: float, seconds: float | None = None, key: str = "k") -> bool:
    """Plan a pause from so many seconds after now, by the clock of the tests, for a time or
    until the key is resumed.
    """
    return one(
        conn,
        f"select forebay.pause_key('q', {sort} => %s, resume_after => make_interval(secs => %s),"
        " pause_at => clock_timestamp() + make_interval(secs => %s))",
        key,
        seconds,
        begins,
    )


def paused_between(database: str, sort: str, *, has_end: bool) -> None:
    """Jobs run until the pause begins, and from its end.

    Some come before it, and some wait when it begins.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        assert plan(conn, sort, 100, 60 if has_end else None) is True
        early = put(conn, sort, 3)
        batch = reader.claim_ready(1)
        assert batch.job_ids == early[:1]
        at(conn, 101)
        assert take(reader) == []
        again = {"offset": 1, "outcome": "retried"}
        assert reader.settle(batch.claim_no, ended=[again]) == "settled"
        reader.open_claims.clear()
        assert take(reader) == []
        late = put(conn, sort, 2)
        others = put(conn, sort, 1, "other")
        assert drained(reader) == others
        if has_end:
            at(conn, 130)
            assert take(reader) == []
            at(conn, 161)
        else:
            at(conn, 10_000)
            assert take(reader) == []
            assert resume(conn, sort) is True
        got = drained(reader)
        assert sorted(got) == early + late
        assert sort == "limit_key" or got == early + late


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("has_end", [True, False])
def test_a_planned_pause_begins_and_ends_by_itself(database, sort, has_end):
    """No call comes at its begin."""
    paused_between(database, sort, has_end=has_end)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize(
    ("function", "guard"),
    [
        ("_paused_keys", ("coalesce(p.begins_at <= p_at, true) and", "")),
        ("_paused_keys", ("coalesce(p.begins_at <= p_at, true)", "p.begins_at is null")),
        ("pause_key", ("coalesce(pause_at, v_at) + resume_after", "v_at + resume_after")),
    ],
    ids=["would pause before", "would not pause", "would end too early"],
)
def test_without_its_guard_a_planned_pause_would_not(database, sort, function, guard):
    """The same with a claim that does not look at the begin, or a length that does not count
    from it.
    """
    break_function(database, function, guard)
    with violation():
        paused_between(database, sort, has_end=True)


def replaced(database: str, sort: str) -> None:
    """A key is paused, its jobs are parked, and a pause is planned instead: they run until it
    begins.
    """
    with connect(database) as conn, Reader(database, "q") as reader:
        assert pause(conn, sort, seconds=1000)
        jobs = put(conn, sort, 2)
        assert take(reader) == []
        assert plan(conn, sort, 100, 60)
        assert drained(reader) == jobs
        at(conn, 101)
        later = put(conn, sort, 1)
        assert take(reader) == []
        at(conn, 161)
        assert drained(reader) == later


def begun_while_replaced(database: str, sort: str) -> None:
    """A planned pause begins, and parks jobs, between the call that replaces it and its commit."""
    with (
        connect(database) as conn,
        Reader(database, "q") as reader,
        psycopg.connect(database) as operator,
    ):
        assert plan(conn, sort, 100)
        assert plan(operator, sort, 10_000)
        at(conn, 101)
        jobs = put(conn, sort, 2)
        assert take(reader) == []
        operator.commit()
        assert drained(reader) == jobs


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("course", [replaced, begun_while_replaced])
def test_a_call_replaces_the_pause_that_is_there(database, sort, course):
    """Jobs that the earlier one parked are not forgotten."""
    course(database, sort)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize(
    ("course", "guard"),
    [
        (replaced, ("if v_was_set then", "if v_was_set and p_begins is null then")),
        (begun_while_replaced, ("if v_was_set then", "if v_was_paused then")),
    ],
)  # fmt: skip
def test_without_a_recheck_row_they_would_be(database, sort, course, guard):
    """The same with a call that announces the key only where it is still paused, or was paused
    when it was made.
    """
    break_function(database, "_set_key_pause", guard)
    with violation():
        course(database, sort)


def test_what_a_call_that_plans_returns_and_records(database, conn):
    """Whether something changed; a begin that is past is now, and the length counts from it."""
    when = "clock_timestamp() + interval '1 hour'"
    (instant,) = conn.execute(f"select {when}").fetchone()
    call = "select forebay.pause_key('q', limit_key => 'k', resume_after => %s, pause_at => %s)"
    assert one(conn, call, "2 hours", instant) is True
    assert one(conn, call, "2 hours", instant) is False
    assert one(conn, call, "1 hour", instant) is True
    shift_clock(conn, 3601)
    assert one(conn, call, "1 hour", instant) is False  # It has begun, and is the same.
    paused_at = "select paused_at = %s from forebay.key_pause"
    assert one(conn, call, "2 hours", instant) is True
    assert one(conn, paused_at, instant) is True
    assert resume(conn, "limit_key") is True
    assert plan(conn, "limit_key", 10_000) is True
    assert resume(conn, "limit_key") is True
    events = conn.execute(
        "select old, new from forebay.events(only_act => 'keys') order by event_id"
    )
    (first, second, third, resumed, planned, removed) = events.fetchall()
    assert first[0] is None
    assert first[1].keys() == {"limit_key", "resume_at", "pause_at"}
    assert second[0] == first[1]
    assert third[1].keys() == {"limit_key", "resume_at"}  # Paused at once.
    assert resumed[0] == third[1]
    assert planned[1]["resume_at"] is None
    assert removed[0] == planned[1]


@pytest.mark.parametrize("sort", SORTS)
def test_a_planned_pause_is_shown_until_it_begins(database, conn, sort):
    """It is no reason before, and explains no waiting job.

    Then the reason is that the key is paused.
    """
    shown = (
        f"select reason, pause_at is not null, resume_at - pause_at, until - clock_timestamp() "
        f"> '0' from forebay.key('q', {sort} => 'k')"
    )
    explained = "select facts ? 'key_paused_at' from forebay.explain_job(%s)"
    with Reader(database, "q") as reader:
        _, second = put(conn, sort, 2)
        batch = reader.claim_ready(1)
        plan(conn, sort, 100, 60)
        reason, *planned, _ = conn.execute(shown).fetchone()
        assert reason != "paused"
        assert planned == [True, timedelta(seconds=60)]
        assert one(conn, explained, second) is False
        at(conn, 101)
        assert conn.execute(shown).fetchone() == ("paused", False, None, True)
        assert one(conn, explained, second) is True
        reader.finish(batch)


# --- groups, races ---


@pytest.mark.parametrize("sort", SORTS)
def test_a_pause_is_for_all_groups(database, conn, sort):
    """Also for one that is opened while the key is paused."""
    pause(conn, sort)
    with Reader(database, "q") as first, Reader(database, "q", "second") as second:
        jobs = put(conn, sort, 2)
        assert take(first) == take(second) == []
        open_group(conn, "q", "third", "beginning")
        with Reader(database, "q", "third") as third:
            assert take(third) == []
            resume(conn, sort)
            assert [drained(reader) for reader in (first, second, third)] == [jobs] * 3


def parked_while_resumed(database: str, sort: str) -> None:
    """A claim that parks a job is held up between its look at the pause and its commit.

    The key is resumed then.
    """
    table = "limit_parked" if sort == "limit_key" else "parked"
    with (
        connect(database) as conn,
        Reader(database, "q") as reader,
        connect(database) as operator,
        psycopg.connect(database) as brake,
        ThreadPoolExecutor(2) as threads,
    ):
        conn.execute(
            "create function public.brake() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock(4711); return new; end $$"
        )
        conn.execute(
            f"create trigger brake before insert on forebay.{table} for each row execute "
            f"function public.brake()"
        )
        pause(conn, sort)
        (job,) = put(conn, sort, 1)
        brake.execute("select pg_advisory_xact_lock(4711)")
        claim = threads.submit(reader.claim_ready)
        query = "select cardinality(pg_blocking_pids(%s)) > 0"
        wait_for(lambda: one(conn, query, reader.conn.info.backend_pid), 20)
        resumption = threads.submit(resume, operator, sort)
        pid = operator.info.backend_pid
        wait_for(lambda: resumption.done() or one(conn, query, pid), 20)
        brake.commit()
        assert claim.result(20).jobs == []
        assert resumption.result(20) is True
        assert drained(reader) == [job]


@pytest.mark.parametrize("sort", SORTS)
def test_a_job_that_is_parked_while_its_key_is_resumed_is_not_forgotten(database, sort):
    """The recheck row is there in any case, and the claim that parked the job has not read it."""
    parked_while_resumed(database, sort)


@pytest.mark.parametrize("sort", SORTS)
def test_a_resumption_that_looks_for_waiting_jobs_would_forget_it(database, sort):
    """The same with recheck rows only where something is parked: it is not visible yet."""
    table = "limit_parked" if sort == "limit_key" else "parked"
    break_function(
        database,
        "_announce_key",
        (
            "and g.closing_at is null",
            f"and exists (select from forebay.{table} p where p.group_id = g.group_id)",
        ),
    )
    with violation():
        parked_while_resumed(database, sort)


def first_job_while_resumed(database: str, sort: str) -> None:
    """The first job of the queue that has a key comes, and is parked, between the resumption and
    its commit.
    """
    with (
        connect(database) as conn,
        Reader(database, "q") as reader,
        psycopg.connect(database) as operator,
    ):
        pause(conn, sort)
        assert resume(operator, sort)
        jobs = put(conn, sort, 2)
        assert take(reader) == []
        operator.commit()
        assert drained(reader) == jobs


@pytest.mark.parametrize("sort", SORTS)
def test_the_first_job_with_a_key_that_comes_while_it_is_resumed_is_not_forgotten(database, sort):
    """The recheck row is written though no lane is known yet."""
    first_job_while_resumed(database, sort)


@pytest.mark.parametrize("sort", SORTS)
def test_it_would_be_if_the_recheck_row_needed_a_lane(database, sort):
    """The same where nothing is written without a lane."""
    break_function(
        database, "_announce_key", ("coalesce(min(i.priority), 100)", "min(i.priority)"),
        ("and g.closing_at is null", "and g.closing_at is null and l.priority is not null"),
    )  # fmt: skip
    with violation():
        first_job_while_resumed(database, sort)


def opened_while_resumed(database: str, sort: str) -> None:
    """A group is opened, and claims, between the resumption and its commit."""
    with (
        connect(database) as conn,
        Reader(database, "q") as reader,
        psycopg.connect(database) as operator,
        ThreadPoolExecutor(1) as threads,
    ):
        pause(conn, sort)
        jobs = put(conn, sort, 2)
        assert take(reader) == []
        assert resume(operator, sort)

        def late_group() -> tuple[Reader, list[int]]:
            with connect(database) as other:
                open_group(other, "q", "late", "beginning")
            late = Reader(database, "q", "late")
            return late, drained(late)

        opening = threads.submit(late_group)
        query = (
            "select exists (select from pg_stat_activity a where "
            "cardinality(pg_blocking_pids(a.pid)) > 0"
            " and a.datname = current_database())"
        )
        wait_for(lambda: opening.done() or one(conn, query), 20)
        operator.commit()
        late, got = opening.result(20)
        with late:
            assert got + drained(late) == jobs


@pytest.mark.parametrize("sort", SORTS)
def test_a_group_that_is_opened_while_a_key_is_resumed_does_not_miss_it(database, sort):
    """The opening waits for the end of the resumption."""
    opened_while_resumed(database, sort)


@pytest.mark.parametrize("sort", SORTS)
def test_without_the_lock_of_the_groups_it_would(database, sort):
    """The same where the opening does not wait."""
    break_function(
        database, "_announce_key", ("lock table forebay.queue_group in row exclusive mode;", "")
    )
    with violation():
        opened_while_resumed(database, sort)


def test_an_open_transaction_of_an_operator_holds_up_no_claim(database, conn):
    """Its pause applies to claims after its commit, and its resumption too."""
    with Reader(database, "q") as reader, psycopg.connect(database) as operator:
        reader.conn.execute("set statement_timeout = '2s'")
        for sort in SORTS:
            pause(operator, sort)
            jobs = put(conn, sort, 2)
            assert drained(reader) == jobs
            operator.commit()
            jobs = put(conn, sort, 2)
            resume(operator, sort)
            assert take(reader) == []
            operator.commit()
            assert drained(reader) == jobs


@pytest.mark.parametrize("sort", SORTS)
def test_a_key_stays_paused_in_an_adopted_log(server, database, conn, sort):
    """With a job that came back, and those behind it; then they run, once each."""
    with Reader(database, "q") as reader:
        jobs = put(conn, sort, 3)
        batch = reader.claim_ready(1)
        pause(conn, sort, seconds=60)
        again = {"offset": 1, "outcome": "retried"}
        assert reader.settle(batch.claim_no, ended=[again]) == "settled"
        assert take(reader) == []
    name = f"{conn.info.dbname}_copy"
    source = conn.info.dbname
    conn.close()
    dsn = create_database(server, name, source)
    try:
        with connect(dsn) as copy:
            copy.execute("select * from forebay.adopt_v1(true)")
        with connect(dsn) as copy, Reader(dsn, "q") as reader:
            assert take(reader) == []
            at(copy, 61)
            assert sorted(drained(reader)) == jobs
    finally:
        drop_database(server, name)


# --- the call ---


def test_what_a_call_returns_and_records(database, conn):
    """Whether something changed, and an event if so."""
    assert pause(conn, "limit_key", "acme") is True
    assert pause(conn, "limit_key", "acme") is False
    assert pause(conn, "limit_key", "acme", seconds=60) is True
    assert resume(conn, "limit_key", "acme") is True
    assert resume(conn, "limit_key", "acme") is False
    assert resume(conn, "ordering_key", "acme") is False
    assert pause(conn, "ordering_key", "acme", seconds=60) is True
    shift_clock(conn, 61)
    assert resume(conn, "ordering_key", "acme") is False
    events = conn.execute(
        "select act, queue, old, new from forebay.events(only_act => 'keys') order by event_id"
    ).fetchall()
    assert [(act, queue) for act, queue, *_ in events] == [
        ("keys.pause", "q"),
        ("keys.pause", "q"),
        ("keys.resume", "q"),
        ("keys.pause", "q"),
    ]
    assert events[0][2] is None
    assert events[0][3] == {"limit_key": "acme", "resume_at": None}
    assert events[1][2] == events[0][3]
    assert events[2][2].keys() == {"limit_key", "resume_at"}
    assert events[3][3]["ordering_key"] == "acme"


@pytest.mark.parametrize(
    "call",
    [
        "pause_key('q')",
        "pause_key('q', 'a', 'b')",
        "pause_key('q', '')",
        "pause_key('q', limit_key => repeat('x', 201))",
        "pause_key('not a name', 'a')",
        "pause_key(null, 'a')",
        "pause_key('q', 'a', resume_after => '0')",
        "pause_key('q', 'a', resume_after => '11 years')",
        "pause_key('q', 'a', pause_at => now() + interval '11 years')",
        "pause_key('q', 'a', pause_at => '-infinity')",
        "pause_key('q', 'a', pause_at => now() - interval '2 hours', resume_after => '1 hour')",
        "resume_key('q')",
        "resume_key('q', 'a', 'b')",
    ],
)
def test_a_bad_call_is_refused(conn, call):
    """With the code of bad arguments."""
    assert sqlstate(conn, f"select forebay.{call}") == "JQ001"


def test_rows_of_ended_pauses_go(database, conn):
    """A later pause deletes them."""
    for key in "abc":
        pause(conn, "limit_key", key, seconds=60)
    shift_clock(conn, 61)
    pause(conn, "limit_key", "d", seconds=60)
    assert one(conn, "select array_agg(key order by key) from forebay.key_pause") == ["d"]

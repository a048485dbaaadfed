"""Many unique keys in one call: what one call for each of them would have done, in the order of
the keys.
"""

import json
import random
import threading
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.sql.test_unique import MODES, ask, ended, wait_until_one_waits
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
from tests.support.mutant import alter_function, break_function, violation
from tests.support.waiting import wait_for

KEYS = 40
Job = dict[str, Any]


def job(unique_as: dict[str, Any] | None, **options: Any) -> Job:
    return {"kind": "work", "args": {}, "unique_as": unique_as} | options


def in_background(database: str, jobs: list[Job]) -> tuple[threading.Thread, list[list[int]]]:
    """Enqueue in one call, beside the test; the second value gets the answer."""
    answers: list[list[int]] = []

    def work() -> None:
        with connect(database) as conn:
            answers.append(enqueue_many(conn, jobs))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, answers


# -- one call is many ----------------------------------------------------------------------------


def random_job(rng: random.Random) -> Job:
    mode = rng.choice(list(MODES))
    unique_as = MODES[mode] | {mode: f"k{rng.randrange(KEYS)}"}
    if mode == "debounce" and rng.random() < 0.5:
        unique_as["max_wait"] = 90
    elif mode == "throttle":
        unique_as["period"] = 100
    options: Job = {}
    if rng.random() < 0.1:
        options["queue"] = "other"
    if mode != "debounce" and rng.random() < 0.15:
        options["delay"] = 600
    if rng.random() < 0.05:
        options["limit_key"] = f"l{rng.randrange(3)}"
    if mode == "idempotent" and rng.random() < 0.02:
        options["args"] = {"other": True}
    return job(unique_as if rng.random() < 0.95 else None, **options)


def live_a_little(conn, readers: list[Reader], rng: random.Random) -> None:
    """Bring the jobs there are a step further, each group by itself."""
    for reader in readers:
        if rng.random() < 0.3:
            continue
        batch = reader.claim(rng.choice((1, 5, 30)), lane_of("default", conn))
        outcomes = [rng.choice(("done", "dead", "retried", "snoozed", None)) for _ in batch.jobs]
        ends = [
            {"offset": at, "outcome": outcome, "after": rng.choice((0, 3600))}
            for at, outcome in enumerate(outcomes, 1)
            if outcome
        ]
        if batch.jobs and rng.random() < 0.3:
            reader.finish(batch)
        elif ends:
            assert reader.settle(batch.claim_no, ended=ends) == "settled"
    if rng.random() < 0.3:
        ids = one(conn, "select array_agg(job_id order by job_id) from forebay.unique_key")
        for job_id in rng.sample(ids, min(3, len(ids))) if ids else []:
            one(conn, "select forebay.cancel(%s)", job_id)


def each(conn, jobs: list[Job]) -> tuple[list[int], list[bool]]:
    """Enqueue in one call that tells which jobs are new."""
    rows = conn.execute(
        "select * from forebay.enqueue_each(%s::jsonb)", [json.dumps(jobs)]
    ).fetchall()
    return [row[0] for row in rows], [row[1] for row in rows]


def one_by_one(conn, jobs: list[Job]) -> tuple[list[int], list[bool]]:
    """Enqueue each by a call of its own, in the order of a bulk call."""
    places = [place for place, each in enumerate(jobs) if each["unique_as"]]

    def order(place: int) -> tuple[str, str, str, int]:
        unique_as = jobs[place]["unique_as"]
        mode = next(name for name in MODES if name in unique_as)
        return (jobs[place].get("queue", "default"), mode, unique_as[mode], place)

    ids, news = [0] * len(jobs), [True] * len(jobs)
    for place in sorted(places, key=order):
        options = {
            name: value
            for name, value in jobs[place].items()
            if name not in ("kind", "args", "unique_as")
        }
        if "delay" in options:
            options["delay"] = f"{options['delay']} s"
        answer = ask(conn, jobs[place]["unique_as"], jobs[place]["args"], **options)
        ids[place], news[place] = answer.job_id, answer.is_new
    return ids, news


def what_it_does(conn, call, jobs: list[Job]) -> Any:
    """Call, and tell what it answered and wrote, each job by its key and generation.

    Then take it back.
    """
    mark = one(conn, "select coalesce(max(tombstone_no), 0) from forebay.tombstone")
    with conn.transaction(force_rollback=True):
        try:
            with conn.transaction():
                ids, news = call(conn, jobs)
        except psycopg.Error as error:
            return error.sqlstate
        rows = conn.execute(
            "select job_id, queue, mode::text, key, gen, is_deferred, origin, lane,"
            " encode(payload, 'hex'), round(extract(epoch from expires_at - taken_at) / 10),"
            " round(extract(epoch from free_at - taken_at) / 10),"
            " round(extract(epoch from first_at - taken_at) / 10) from forebay.unique_key"
        ).fetchall()
        names = {row[0]: row[1:5] for row in rows}
        written = conn.execute(
            "select job_id, lane, 0, kind, args::text, unique_key from"
            " (select coalesce(job_id, seq) as job_id, lane, kind, args, unique_key from "
            "forebay.log) l"
            " union all select job_id, lane, round(extract(epoch from run_at - "
            "enqueued_at) / 10), kind,"
            " args::text, unique_key from forebay.deferred"
        ).fetchall()
        tombs = conn.execute(
            "select job_id, reason::text from forebay.tombstone where tombstone_no > %s", [mark]
        ).fetchall()
        return (
            [names.get(job_id) for job_id in ids],
            news,
            sorted(map(repr, (row[1:] for row in rows))),
            sorted(repr((names[row[0]], *row[1:])) for row in written if row[0] in names),
            sorted(repr((names[row[0]], *row[1:])) for row in tombs),
        )


def one_call_does_what_a_call_for_each_does(database, conn, seed, groups):
    """Compare them a dozen times, while the keys' jobs come to something in between.

    The clock stands still: however long a call takes, the other one meets the same ages.
    """
    rng = random.Random(seed)
    refused = 0
    clock = StillClock(conn)
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(database, group=name)) for name in groups]
        for n in range(12):
            clock.set(40 * n)
            jobs = [random_job(rng) for _ in range(rng.choice((5, 60, 120)))]
            single = what_it_does(conn, one_by_one, jobs)
            assert what_it_does(conn, each, jobs) == single
            refused += single == "JQ005"
            if single != "JQ005":
                enqueue_many(conn, jobs)
            live_a_little(conn, readers, rng)
    assert refused < 12


@pytest.mark.slow
@pytest.mark.parametrize("groups", [("a",), ("a", "b"), ()])
def test_one_call_for_many_keys_does_what_a_call_for_each_does(database, conn, seed, groups):
    """
    Whatever the keys' jobs have come to, for one group, two or none yet, and however often a key is
    in the call: the same ids, news, generations, jobs and tombstones, or the same error.
    """
    one_call_does_what_a_call_for_each_does(database, conn, seed, groups)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [("a",), ()])
def test_a_call_that_takes_long_does_what_a_call_for_each_does(database, conn, seed, groups):
    """
    On a machine so busy that the states a call has read are too old after each key, it reads them
    again: the same comes of it.
    """
    alter_function(database, "_take_keys", ("interval '250 ms'", "interval '0 ms'"))
    one_call_does_what_a_call_for_each_does(database, conn, seed, groups)


def test_further_jobs_of_a_key_in_one_call_meet_the_first(conn):
    """
    A key may be in a call more than once: what the uniqueness mode says of a waiting job holds for
    the call's own.
    """
    for mode in ("once", "idempotent", "coalesce", "throttle"):
        ids = enqueue_many(conn, [job(MODES[mode])] * 3)
        assert len({*ids}) == 1
        assert state(conn, ids[0]) == "ready"
    for mode, waits in (("replace", "ready"), ("debounce", "scheduled")):
        ids = enqueue_many(conn, [job(MODES[mode], args={"n": n}) for n in range(3)])
        assert ids == sorted({*ids})
        assert state(conn, ids[2]) == waits
        query = "select array_agg(job_id order by job_id) from forebay.tombstone where reason = 'r'"
        assert one(conn, query)[-2:] == ids[:2]
    differs = [job({"idempotent": "n"}, args={"n": n // 2}) for n in range(3)]
    with pytest.raises(psycopg.Error, match="job 2: key 'n' belongs to job") as caught:
        enqueue_many(conn, differs)
    assert caught.value.sqlstate == "JQ005"


def test_keys_that_are_taken_separately_are_told_apart_too(conn):
    """
    A caller that will not wait takes each key separately: the answer is the same.
    """
    jobs = [job({"once": key, "on_busy": "raise"}) for key in "aab"]
    ids, news = each(conn, [*jobs, job(None)])
    assert news == [True, False, True, True]
    assert each(conn, jobs) == (ids[:3], [False] * 3)
    assert each(conn, [job(None)] * 2)[1] == [True, True]
    assert each(conn, []) == ([], [])


# -- beside others -------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("mode", list(MODES))
def test_a_call_that_waits_for_a_key_in_its_midst_gets_all_of_them_right(
    database, conn, mode, ending
):
    """
    It takes what comes before that key, waits, finds out what became of it, and goes on with what
    comes after.
    """
    names = [f"k{n:02}" for n in range(20)]
    jobs = [job(MODES[mode] | {mode: name}) for name in names]
    with psycopg.connect(database) as other:
        made = ask(other, jobs[7]["unique_as"])
        thread, answers = in_background(database, jobs[::-1])
        wait_until_one_waits(conn)
        # Nothing behind the key it waits for is taken yet.
        late = [ask(conn, jobs[place]["unique_as"]).job_id for place in (8, 19)]
        getattr(other, ending)()
        thread.join(10)
    ids = answers[0][::-1]
    assert len({*ids}) == 20
    replaces = mode in ("replace", "debounce")
    assert (ids[7] == made.job_id) == (ending == "commit" and not replaces)
    assert [ids[8], ids[19]] == late or (replaces and ids[8] > late[0] and ids[19] > late[1])
    waits = [state(conn, job_id) in ("ready", "scheduled") for job_id in ids]
    assert all(waits)
    if replaces:
        query = "select count(*) from forebay.tombstone where reason = 'r'"
        assert one(conn, query) == 2 + (ending == "commit")


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_keys_behind_one_that_was_waited_for_are_looked_at_anew(database, conn, ending):
    """
    What ended while the call waited does not stand for a new job, and a period does not run out
    before its job is there.
    """
    with psycopg.connect(database) as other, Reader(database) as reader:
        (done,) = enqueue_many(conn, [job({"once": "b"})])
        (cancelled,) = enqueue_many(conn, [job({"once": "c"})])
        enqueue_many(other, [job({"once": "a"})])
        keys = [{"once": key} for key in "abcd"] + [{"throttle": "e", "period": 1}]
        thread, answers = in_background(database, [job(key) for key in keys])
        wait_until_one_waits(conn)
        one(conn, "select forebay.cancel(%s)", cancelled)
        reader.finish(reader.claim())
        began = one(conn, "select clock_timestamp()")
        wait_for(
            lambda: one(
                conn, "select clock_timestamp() > %s::timestamptz + interval '1.2 s'", began
            )
        )
        getattr(other, ending)()
        thread.join()
        (ids,) = answers
        assert not {done, cancelled} & set(ids)
        assert [state(conn, job_id) for job_id in ids] == ["ready"] * 5
        assert enqueue_many(conn, [job(keys[-1])]) == ids[-1:]


def test_a_repeatable_read_call_that_cannot_see_a_newest_job_is_refused(database, conn):
    """
    It fails as serialization failures do, instead of making a second job, and leaves none of its
    keys taken.
    """
    with psycopg.connect(database) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select 1 from forebay.log")
        ask(conn, {"once": "k5"})
        with pytest.raises(psycopg.errors.SerializationFailure):
            enqueue_many(old, [job({"once": f"k{n}"}) for n in range(10)])
    assert ask(conn, {"once": "k0"}).is_new


def test_generations_are_made_up_to_the_first_that_is_taken(conn):
    """
    Of a list of keys the call has always taken a beginning: that is what keeps two calls from
    waiting for each other. When the look at them is not good any more, that is the first.
    """
    make = (
        "select forebay._make_generations(array(select row(null, 'q', 'o', 'k' || n, 1, "
        "null, 1, false, now(),"
        " now(), null, null, null, 1)::forebay.unique_key from generate_series(%s::int, "
        "%s::int) n order by n),"
        " clock_timestamp() + %s * interval '1 minute')"
    )
    assert len(one(conn, make, 100, 199, 1)) == 100
    assert one(conn, make, 100, 199, 1) == []
    assert len(one(conn, make, 80, 120, 1)) == 20
    assert one(conn, "select max(key) from forebay.unique_key") == "k99"
    assert one(conn, "select count(*) from forebay.unique_key") == 120
    assert len(one(conn, make, 200, 220, -1)) == 1


def whoever_joins_in_bulk_looks_again(database: str) -> None:
    """A bulk call that waited for a claim of jobs that it would join does not join them any
    more.
    """
    keys = [{"coalesce": f"k{n}"} for n in range(10)]
    with connect(database) as conn, psycopg.connect(database) as claim, Reader(database) as reader:
        made = enqueue_many(conn, [job(key) for key in keys])
        claim.execute("select 1 from forebay.unique_key for update")  # As a claim does.
        thread, answers = in_background(database, [job(key) for key in keys])
        wait_until_one_waits(conn)
        assert sorted(reader.claim().job_ids) == sorted(made)
        claim.commit()
        thread.join(10)
        assert not {*answers[0]} & {*made}


def test_whoever_joins_in_bulk_looks_again(database):
    """
    A bulk call that waited for a claim of jobs that it would join does not join them any more.
    """
    whoever_joins_in_bulk_looks_again(database)


def test_whoever_joins_in_bulk_without_a_second_look_joins_running_jobs(database):
    """
    Without the second look it joins jobs that cannot see what it wrote.
    """
    break_function(database, "_take_keys", ("s.later <> 'waiting'", "false"))
    with violation():
        whoever_joins_in_bulk_looks_again(database)


def numbering_goes_on_in_bulk(database: str) -> None:
    """Generations are not forgotten while an open bulk call makes the next ones."""
    keys = [{"once": f"k{n}"} for n in range(10)]
    with connect(database) as conn, psycopg.connect(database) as first, Reader(database) as reader:
        enqueue_many(conn, [job(key) for key in keys])
        reader.finish(reader.claim())
        shift_clock(conn, 2 * 86_400)
        enqueue_many(first, [job(key) for key in keys])
        for _ in range(40):  # each looks at the rows with a chance of one half
            trim(conn)
        query = "select forebay.enqueue_many(%s::jsonb)"
        for key in keys:
            busy = json.dumps([job(key | {"on_busy": "raise"})])
            assert sqlstate(conn, query, busy) == "JQ004"


@pytest.mark.slow
def test_numbering_goes_on_in_bulk(database):
    """
    Generations are not forgotten while an open bulk call makes the next ones.
    """
    numbering_goes_on_in_bulk(database)


@pytest.mark.slow
def test_numbering_in_bulk_begins_anew_when_nobody_holds_the_predecessors(database):
    """
    Without the locks on the predecessors second holders get in.
    """
    break_function(database, "_take_keys", ("for key share", ""))
    with violation():
        numbering_goes_on_in_bulk(database)


# -- reading many states at once -----------------------------------------------------------------

AGREE = """
    with k as materialized (select array_agg(u order by u.job_id) as keys from forebay.unique_key u)
    select u.one, u.nr, u.stage, forebay._key_state(u.one)
    from k, lateral (select i as one, s.nr, s.stage
                     from unnest(forebay._key_states_of(k.keys)) with ordinality s (stage, nr),
                          lateral (select k.keys[s.nr] as i) i (i)) u
"""


@pytest.mark.slow
def test_many_key_states_are_those_of_each(database, conn, seed):
    """
    Read together or one by one, from a few batches or from many hundreds, also for late committers,
    the stages are the same.
    """
    rng = random.Random(seed)
    lane = lane_of("default", conn)
    with (
        Reader(database, group="a") as a,
        Reader(database, group="b") as b,
        psycopg.connect(database) as late,
    ):
        enqueue_many(late, [job({"once": f"late{n}"}) for n in range(20)])
        for n in range(700):
            ask(conn, {"once": f"k{n}"})
            if n == 350:
                open_group(conn, "default", "c", "now")
            for reader in (a, b):
                batch = reader.claim(rng.choice((1, 1, 2)), lane)
                if batch.jobs and rng.random() < 0.9:
                    outcome = rng.choice(("done", "done", "dead", "retried", "lost"))
                    reader.settle(batch.claim_no, ended=ended(outcome, after=0))
        late.commit()
        a.claim(5, lane)
        for job_id in (5, 600, 690):
            one(conn, "select forebay.cancel(%s)", job_id)
        rows = conn.execute(AGREE).fetchall()
    assert len(rows) == 720
    assert {row[2] for row in rows} == {"waiting", "running", "ended"}
    assert [row for row in rows if row[2] != row[3]] == []

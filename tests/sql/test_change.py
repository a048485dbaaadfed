"""Acts on many jobs at once: what a filter matches, what becomes of each job, and that nothing
else is touched.
"""

import json

import pytest

from tests.support.engine import (
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
from tests.support.mutant import break_function

DAY = 86_400


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def change(conn, act, filter_, **options):
    """Change jobs; return the numbers by answer, or with ids the answer of each."""
    extra = {name: options.pop(name) for name in ("token", "most", "event_id") if name in options}
    given = "".join(f", {name} => %s" for name in extra)
    rows = conn.execute(
        f"select job_id, answer, jobs from forebay.change_jobs(%s, %s, %s{given})",
        [act, json.dumps(filter_), json.dumps(options), *extra.values()],
    ).fetchall()
    if "ids" in filter_:
        return {job_id: answer for job_id, answer, _jobs in rows}
    return {answer: jobs for _job_id, answer, jobs in rows}


def plan(conn, act, filter_, **options):
    """Return the token of a change, and the numbers by answer."""
    rows = conn.execute(
        "select token, answer, jobs from forebay.plan_change(%s, %s, %s)",
        [act, json.dumps(filter_), json.dumps(options)],
    ).fetchall()
    found = {}
    for _token, answer, jobs in rows:
        if answer:
            found[answer] = found.get(answer, 0) + jobs
    return rows[0][0], found


def retrying(reader, conn, **options):
    """Enqueue a job and let its first attempt fail; return it. It waits an hour."""
    job = enqueue(conn, queue=reader.queue, **options)
    for batch in reader.claim_all():
        reader.settle(
            batch.claim_no,
            ended=[
                {
                    "offset": each["batch_offset"], "outcome": "retried", "attempt": 1,
                    "after": 3600,
                    "error": {"type": "E", "message": "m"},
                }
                for each in batch.jobs
            ],
        )  # fmt: skip
    assert state(conn, job) == "retrying"
    return job


def test_a_filter_takes_what_it_says_and_nothing_else(database, conn):
    """Each name restricts, and together they do so too.

    The dry run counts what the act then takes.
    """
    old = enqueue(conn, queue="mail", kind="old")
    conn.execute("select pg_sleep(0.01)")
    when = one(conn, "select clock_timestamp()").isoformat()
    jobs = {
        "queue": enqueue(conn, queue="other"),
        "kind": enqueue(conn, queue="mail", kind="special"),
        "tag": enqueue(conn, queue="mail", tag="import"),
        "correlation_id": enqueue(conn, queue="mail", correlation_id="c1"),
        "ordering_key": enqueue(conn, queue="mail", ordering_key="doc 1"),
        "limit_key": enqueue(conn, queue="mail", limit_key="acme"),
        "unique_key": one(
            conn,
            (
                "select job_id from forebay.enqueue_unique('work', '{}', '{\"once\": \"u1\"}', "
                "queue => 'mail')"
            ),
        ),
        "state": enqueue(conn, queue="mail", delay="1 hour"),
    }
    filters = {
        "queue": "other", "kind": "special", "tag": "import", "correlation_id": "c1",
        "ordering_key": "doc 1",
        "limit_key": "acme", "unique_key": "u1", "state": "scheduled",
    }  # fmt: skip
    for name, value in filters.items():
        assert plan(conn, "cancel", {name: value})[1] == {"cancelled": 1}, name
        assert plan(conn, "cancel", {name: value, "kind": "nothing"})[1] == {}, name
    assert plan(conn, "cancel", {"enqueued_before": when})[1] == {"cancelled": 1}
    assert plan(conn, "cancel", {"enqueued_after": when})[1] == {"cancelled": 8}
    assert plan(conn, "cancel", {"all": True})[1] == {"cancelled": 9}
    assert plan(conn, "cancel", {"ids": [old, jobs["tag"], 999_999]})[1] == {"cancelled": 2}
    for name, value in filters.items():
        assert change(conn, "cancel", {name: value, "enqueued_after": when}) == {"cancelled": 1}
        assert state(conn, jobs[name]) in ("cancelled", "ready"), name
        assert change(conn, "cancel", {name: value}) == {}, name
    with Reader(database, "mail") as reader, Reader(database, "other") as other:
        assert [job for batch in reader.claim_all() for job in batch.job_ids] == [old]
        assert other.claim_all() == []
    assert {state(conn, job) for job in jobs.values()} == {"cancelled"}


def test_bad_filters_and_options_are_refused_and_nothing_is_written(conn):
    enqueue(conn, queue="mail")
    for act, filter_, options in (
        ("cancel", {}, {}),
        ("cancel", {"all": False}, {}),
        ("cancel", {"queue": None}, {}),
        ("cancel", {"quue": "mail"}, {}),
        ("cancel", {"queue": 1}, {}),
        ("cancel", {"state": "done", "queue": "mail"}, {}),
        ("cancel", {"enqueued_before": "yesterday at noon"}, {}),
        ("cancel", {"ids": ["1"]}, {}),
        ("cancel", {"ids": 1}, {}),
        ("cancel", {"queue": "mail"}, {"priority": 1}),
        ("purge", {"kind": "work"}, {}),
        ("purge", {"queue": "mail", "kind": "work"}, {}),
        ("reschedule", {"queue": "mail"}, {}),
        ("reschedule", {"queue": "mail"}, {"run_at": "soon"}),
        ("reprioritise", {"queue": "mail"}, {"priority": 40_000}),
        ("reprioritise", {"queue": "mail"}, {"priority": 1.5}),
        ("delete", {"queue": "mail"}, {}),
    ):
        for query in (
            "select forebay.change_jobs(%s, %s, %s, most => 10)",
            "select forebay.plan_change(%s, %s, %s)",
        ):
            given = (act, json.dumps(filter_), json.dumps(options))
            assert sqlstate(conn, query, *given) == "JQ001", given
    assert sqlstate(conn, "select forebay.change_jobs('retry', '{\"queue\": \"mail\"}')") == "JQ001"
    assert one(conn, "select count(*) from forebay.tombstone") == 0


def _cancel_by_token(database) -> tuple[set[int], set[int]]:
    """Cancel with the token of a dry run while jobs end, come and fail.

    Return the jobs that it showed, and those cancelled.
    """
    with (
        connect(database) as conn,
        connect(database) as open_one,
        Reader(database, "mail") as reader,
    ):
        open_one.execute("begin")
        late = enqueue(open_one, queue="mail")
        shown = enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(6)])
        shown.append(enqueue(conn, queue="mail", delay="1 second"))
        token, found = plan(conn, "cancel", {"queue": "mail"})
        assert found == {"cancelled": 7}
        first, second = reader.claim(2), reader.claim(2)
        reader.finish(first)
        again = [{"offset": offset, "outcome": "retried"} for offset in (1, 2)]
        reader.settle(second.claim_no, ended=again)  # Their newer rows are of jobs that were shown.
        shift_clock(conn, 5)
        one(conn, "select forebay.promote_v1()")
        open_one.execute("commit")
        new = [enqueue(conn, queue="mail") for _ in range(12)]
        new += [enqueue(conn, queue="mail", delay="1 hour"), late]
        query = "select forebay.change_jobs(%s, %s, token => %s)"
        given = json.dumps({"queue": "mail"})
        assert sqlstate(conn, query, "purge", given, token) == "JQ042"
        assert sqlstate(conn, query, "cancel", given, "nonsense") == "JQ042"
        assert sqlstate(conn, query, "cancel", given, f"9{token}") == "JQ042"
        assert one(conn, "select count(*) from forebay.tombstone") == 0
        done = change(conn, "cancel", {"queue": "mail"}, token=token)
        ids = one(conn, "select array_agg(job_id) from forebay.tombstone where reason = 'c'")
        assert done == {"cancelled": len(ids)}
        return set(shown), set(ids)


def test_a_token_takes_only_jobs_that_the_dry_run_counted(database):
    """
    Those of them that have not ended, in whatever state they are; none that came later or was not
    committed then.
    """
    shown, cancelled = _cancel_by_token(database)
    assert cancelled < shown
    assert len(cancelled) == 5


def test_without_the_snapshot_it_takes_others(database):
    """The guard of the test above."""
    break_function(database, "_matching", ("if p_options ? 'snapshot' then", "if false then"))
    shown, cancelled = _cancel_by_token(database)
    assert len(cancelled - shown) == 14


@pytest.mark.parametrize("state_", ["ready", "scheduled", "retrying", "claimed"])
def test_a_token_of_a_state_takes_no_job_that_has_come_into_it(database, conn, state_):
    """Other jobs are in the state by then, as many as were counted: none of them is taken."""
    with Reader(database, "mail") as reader:
        retried = retrying(reader, conn)
        enqueue(conn, queue="mail")
        held = reader.claim(1)
        enqueue(conn, queue="mail")
        enqueue(conn, queue="mail", delay="1 hour")
        wanted = {"queue": "mail", "state": state_}
        token, found = plan(conn, "cancel", wanted)
        assert sum(found.values()) == 1
        one(conn, "select forebay.cancel(%s)", retried)
        conn.execute(
            "select forebay.change_jobs('cancel', %s)",
            [json.dumps({"queue": "mail", "state": "scheduled"})],
        )
        late = {"offset": 1, "outcome": "retried", "after": 3600}
        reader.settle(held.claim_no, ended=[late])
        reader.claim(1)
        enqueue(conn, queue="mail")
        enqueue(conn, queue="mail", delay="1 hour")
        assert sum(plan(conn, "cancel", wanted)[1].values()) == 1
        assert change(conn, "cancel", wanted, token=token) == {}


def test_a_change_of_another_filter_has_an_event_of_its_own(conn):
    """
    A step that names the event of an earlier change counts in it only if it is the same change.
    """
    ids = enqueue_many(conn, [{"kind": "work", "queue": "mail", "tag": t} for t in "aaaabbcc"])
    cancel = "select max(event) from forebay.change_jobs('cancel', %s, most => 2, event_id => %s)"
    event = None
    for wanted in ({"tag": "a"}, {"tag": "a"}, {"tag": "b"}, {"ids": ids[6:7]}, {"ids": ids[7:]}):
        event = one(conn, cancel, json.dumps(wanted), event)
    events = "select count from forebay.event where act = 'jobs.cancel' order by event_id"
    assert conn.execute(events).fetchall() == [(4,), (2,), (1,), (1,)]


def test_a_token_is_of_one_act_filter_and_options(conn):
    """
    A change that would take as many jobs as those of the token is refused all the same if it is not
    the same change.
    """
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(3)])
    token, found = plan(conn, "reprioritise", {"queue": "mail"}, priority=5)
    assert found == {"changed": 3}
    query = "select forebay.change_jobs(%s, %s, %s, token => %s, most => 10)"
    for act, filter_, options in (
        ("cancel", {"queue": "mail"}, {}),
        ("reprioritise", {"kind": "work"}, {"priority": 5}),
        ("reprioritise", {"queue": "mail"}, {"priority": 6}),
    ):
        assert (
            sqlstate(conn, query, act, json.dumps(filter_), json.dumps(options), token) == "JQ042"
        )
    assert change(conn, "reprioritise", {"queue": "mail"}, priority=5, token=token, most=10) == {
        "changed": 3
    }


def test_each_job_gets_its_answer(database, conn):
    with Reader(database, "mail") as reader:
        done = enqueue(conn, queue="mail")
        reader.finish(reader.claim(10))
        waits = retrying(reader, conn)
        held = enqueue(conn, queue="mail")
        reader.claim(1)
        ready = enqueue(conn, queue="mail")
        keyed = enqueue(conn, queue="mail", ordering_key="k")
        later = enqueue(
            conn,
            queue="mail",
            delay="1 hour",
            expires_at=one(conn, "select now() + interval '2 hours'"),
        )
        gone = 999_999
        ids = {"ids": [done, waits, held, ready, keyed, later, gone]}
        at = one(conn, "select now() + interval '3 hours'").isoformat()
        assert change(conn, "reschedule", ids, run_at=at, most=10) == {
            done: ("already ended"),
            waits: "changed",
            held: "running",
            ready: "changed",
            keyed: "ordering key",
            later: "expires before",
            gone: "unknown",
        }
        assert change(conn, "reschedule", ids, run_at=at, most=10)[ready] == "unchanged"
        assert change(conn, "reprioritise", ids, priority=7, most=10) == {
            done: ("already ended"),
            waits: "changed",
            held: "running",
            ready: "changed",
            keyed: "ordering key",
            later: "changed",
            gone: "unknown",
        }
        assert change(conn, "retry", ids, most=10) == {
            done: ("already ended"),
            waits: "changed",
            held: "running",
            ready: "changed",
            keyed: "unchanged",
            later: "changed",
            gone: "unknown",
        }
        assert change(conn, "cancel", ids) == {
            done: ("already ended"),
            waits: "cancelled",
            held: "requested",
            ready: "cancelled",
            keyed: "cancelled",
            later: "cancelled",
            gone: "unknown",
        }
        assert change(conn, "cancel", ids)[held] == "requested"
        assert change(conn, "cancel", ids)[ready] == "cancelled"


def test_a_retried_job_is_ready_at_once_and_keeps_what_it_was(database, conn):
    """Id, attempts, errors, tag, expiry and unique key."""
    with Reader(database, "mail") as reader:
        key = '{"once": "u1"}'
        job = one(
            conn,
            (
                "select job_id from forebay.enqueue_unique('work', '{\"a\": 1}', %s, queue => "
                "'mail', tag => 't')"
            ),
            key,
        )
        before = conn.execute("select expires_at, tag, args from forebay.job(%s)", [job]).fetchone()
        retrying(reader, conn)
        assert state(conn, job) == "retrying"
        assert change(conn, "retry", {"tag": "t"}, most=10) == {"changed": 1}
        assert state(conn, job) == "ready"
        assert change(conn, "retry", {"tag": "t"}, most=10) == {}
        again = (
            "select job_id, is_new from forebay.enqueue_unique('work', '{}', %s, queue => 'mail')"
        )
        assert conn.execute(again, [key]).fetchone() == (job, False)
        (batch,) = reader.claim_all()
        assert batch.job_ids == [job]
        assert batch.jobs[0]["attempt"] == 1
        assert (
            conn.execute("select expires_at, tag, args from forebay.job(%s)", [job]).fetchone()
            == before
        )
        assert one(conn, "select count(*) from forebay.job_history(%s)", job) == 1
        assert conn.execute(again, [key]).fetchone() == (job, False)
        reader.finish(batch)
        assert state(conn, job) == "done"
        one(conn, "select forebay.promote_v1()")
        shift_clock(conn, 2 * 3600)
        assert one(conn, "select forebay.promote_v1()") == 1  # the other one
        assert job not in [each for batch in reader.claim_all() for each in batch.job_ids]
        assert conn.execute(again, [key]).fetchone()[1]


def test_ready_jobs_move_to_another_priority_and_to_a_later_time(database, conn):
    with Reader(database, "mail") as reader:
        jobs = enqueue_many(
            conn, [{"kind": "work", "queue": "mail", "tag": str(i % 2)} for i in range(20)]
        )
        even, odd = jobs[::2], jobs[1::2]
        assert change(conn, "reprioritise", {"tag": "1"}, priority=5, most=4) == {"changed": 4}
        assert change(conn, "reprioritise", {"tag": "1"}, priority=5, most=100) == {"changed": 6}
        assert change(conn, "reprioritise", {"tag": "1"}, priority=5, most=100) == {}
        assert {one(conn, "select priority from forebay.job(%s)", job) for job in odd} == {5}
        at = one(conn, "select now() + interval '1 hour'").isoformat()
        assert change(conn, "reschedule", {"ids": even[:3]}, run_at=at, most=10) == dict.fromkeys(
            even[:3], "changed"
        )
        assert {state(conn, job) for job in even[:3]} == {"scheduled"}
        claimed = [job for batch in reader.claim_all() for job in batch.job_ids]
        assert sorted(claimed) == sorted(set(jobs) - set(even[:3]))
        shift_clock(conn, 3601)
        assert one(conn, "select forebay.promote_v1()") == 3
        assert [job for batch in reader.claim_all() for job in batch.job_ids] == even[:3]


def test_a_moved_job_waits_for_the_groups_that_have_not_started_it(database, conn):
    open_group(conn, "mail", "a", "beginning")
    with Reader(database, "mail", "a") as reader, Reader(database, "mail", "b") as other:
        open_group(conn, "mail", "b", "beginning")
        job = enqueue(conn, queue="mail")
        reader.finish(reader.claim(1))
        assert change(conn, "reprioritise", {"ids": [job]}, priority=1, most=10) == {job: "changed"}
        assert states(conn, job) == {"a": "done", "b": "ready"}
        assert reader.claim_all() == []
        assert [each for batch in other.claim_all() for each in batch.job_ids] == [job]
        open_group(conn, "mail", "late", "beginning")
        with Reader(database, "mail", "late") as late:
            assert [each for batch in late.claim_all() for each in batch.job_ids] == [job]


def test_a_moved_job_expires_and_is_cancelled_once(database, conn):
    soon = one(conn, "select now() + interval '1 hour'")
    with Reader(database, "mail") as reader:
        expiring = enqueue(conn, queue="mail", expires_at=soon)
        cancelled = enqueue(conn, queue="mail", expires_at=soon)
        change(conn, "reprioritise", {"queue": "mail"}, priority=1, most=10)
        assert change(conn, "cancel", {"ids": [cancelled]}) == {cancelled: "cancelled"}
        shift_clock(conn, 3700)
        for _ in range(2):
            one(conn, "select forebay.sweep_v1()")
        assert reader.claim_all() == []
        assert (state(conn, expiring), state(conn, cancelled)) == ("expired", "cancelled")
        found = conn.execute("select job_id, reason from forebay.dead_letter").fetchall()
        assert found == [(expiring, "expired")]


@pytest.mark.slow
def test_a_unique_key_follows_a_moved_job(database, conn):
    """Its key is taken while the job waits or runs, wherever its old row is, and free when it
    has ended.
    """
    key = '{"coalesce": "u1"}'
    call = "select job_id, is_new from forebay.enqueue_unique('work', '{}', %s, queue => 'mail')"
    with Reader(database, "mail") as reader:
        (job, _) = conn.execute(call, [key]).fetchone()
        change(conn, "reprioritise", {"unique_key": "u1"}, priority=1, most=10)
        assert conn.execute(call, [key]).fetchone() == (job, False)
        batch = reader.claim(10, lane=one(conn, "select lane from forebay.lane where audience > 0"))
        assert batch.job_ids == [job]
        (other, is_new) = conn.execute(call, [key]).fetchone()
        assert is_new
        reader.finish(batch)
        assert state(conn, job) == "done"
        assert [each for batch in reader.claim_all() for each in batch.job_ids] == [other]


def test_one_event_for_a_change_in_steps(conn):
    conn.execute("delete from forebay.event")
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(10)])
    event = None
    for expected in (4, 4, 2):
        rows = conn.execute(
            (
                "select jobs, event from forebay.change_jobs('purge', '{\"queue\": \"mail\"}', "
                "most => 4, event_id => %s)"
            ),
            [event],
        ).fetchall()
        ((jobs, event),) = rows
        assert jobs == expected
    assert conn.execute("select act, queue, count, new from forebay.events()").fetchall() == [
        ("queues.purge", "mail", 10, {})
    ]
    assert depth(conn, "mail")["default"][0] >= 0


@pytest.mark.parametrize(
    "changed",
    ["role = 'somebody else'", "act = 'jobs.retry'", "at = at - interval '25 hours'"],
    ids=["of another role", "of another act", "of yesterday"],
)
def test_a_step_never_adds_to_an_event_that_is_not_its_own(conn, changed):
    """
    The number of an event is any number that a caller gives: it cannot change what the log says of
    others, or of long ago.
    """
    conn.execute("delete from forebay.event")
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(3)])
    query = (
        "select event from forebay.change_jobs('cancel', '{\"queue\": \"mail\"}', most => 1, "
        "event_id => %s)"
    )
    first = conn.execute(query, [None]).fetchone()[0]
    conn.execute(f"update forebay.event set {changed}")
    assert conn.execute(query, [first]).fetchone()[0] != first
    counts = conn.execute("select event_id = %s, count from forebay.event", [first]).fetchall()
    assert sorted(counts) == [(False, 1), (True, 1)]


def test_a_job_that_one_group_has_and_another_waits_for_is_requested_once(database, conn):
    """
    Its handler is requested to stop, so it is not counted among the jobs that never start.
    """
    open_group(conn, "mail", "a", "beginning")
    open_group(conn, "mail", "b", "beginning")
    with Reader(database, "mail", "a") as reader:
        enqueue(conn, queue="mail")
        reader.claim(1)
        assert change(conn, "cancel", {"queue": "mail"}) == {"requested": 1}


@pytest.mark.direct  # listens
@pytest.mark.parametrize("act", ["retry", "reprioritise"])
def test_sleeping_workers_are_woken_for_the_jobs_that_became_claimable(database, conn, act):
    """
    A retried job is ready at once, and one of another priority may come first: the worker does not
    wait for its next poll.
    """
    with Reader(database, "mail") as reader, connect(database) as listener:
        if act == "retry":
            retrying(reader, conn)
        else:
            enqueue(conn, queue="mail")
        listener.execute("listen forebay_wakeup")
        conn.execute(
            "select setval(forebay._wakeup('mail'), (extract(epoch from clock_timestamp()) "
            "* 1000)::bigint + 60000)"
        )
        conn.execute("select set_config('forebay.wakeup', 'on', false)")
        options = {"priority": 1} if act == "reprioritise" else {}
        assert change(conn, act, {"queue": "mail"}, most=10, **options) == {"changed": 1}
        assert [each.payload for each in listener.notifies(timeout=10, stop_after=1)] == ["mail"]

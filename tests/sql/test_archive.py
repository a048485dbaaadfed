"""Looking back: searches miss no job and find each once.

A replay copies exactly the jobs of its plan, once.
"""

import json
import random
import threading

import pytest

from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    open_group,
    shift_clock,
    small_segments,
    sqlstate,
    state,
)
from tests.support.mutant import break_function
from tests.support.plans import pages
from tests.support.waiting import wait_for


def summarize(conn) -> int:
    """Summarize all blocks that are complete; return their number."""
    total, idle = 0, 0
    while idle < 2:  # A call records up to where the next one may go.
        made = one(conn, "select forebay.archive_v1(100)")
        total, idle = total + made, 0 if made else idle + 1
    return total


def search(conn, wanted=None, **options) -> list[int]:
    """Return the jobs of all pages."""
    found, before = [], None
    names = "".join(f", {name} => %s" for name in options)
    query = f"select job_ids, next from forebay.search_jobs(%s::jsonb, before => %s{names})"
    for _ in range(10_000):
        given = [json.dumps(wanted or {"all": True}), before, *options.values()]
        jobs, before = conn.execute(query, given).fetchone()
        found += jobs
        if before is None:
            return found
    pytest.fail("the pages do not end")


def replay(conn, wanted, options=None, token=None, most=20_000) -> tuple[int, int]:
    """Do all steps; return the number of the replay and that of the jobs."""
    query = (
        "select replay_id, total, is_over from forebay.replay_jobs(%s::jsonb, %s::jsonb, %s, "
        "%s, %s)"
    )
    replay_id = None
    for _ in range(10_000):
        given = [json.dumps(wanted), json.dumps(options or {}), token, most, replay_id]
        replay_id, total, is_over = conn.execute(query, given).fetchone()
        if is_over:
            return replay_id, total
    pytest.fail("the steps do not end")


def origins(conn, replay_id: int) -> list[int]:
    """Return from which jobs those of a replay come, in their order."""
    query = (
        "select (headers ->> 'forebay-replayed-from')::bigint from forebay.log"
        " where headers ->> 'forebay-replay' = %s order by seq"
    )
    return [job for (job,) in conn.execute(query, [str(replay_id)])]


@pytest.mark.slow
def test_a_search_agrees_with_a_look_at_every_row(conn, database, request):
    """Random jobs in many segments, with retries and scheduled jobs: each filter finds each
    matching job once, newest first.
    """
    seed = request.config.getoption("--seed") or random.randrange(10**6)
    print(f"--seed {seed}")
    draw = random.Random(seed)
    small_segments(conn, rows=300)
    jobs: dict[int, dict] = {}
    reader = Reader(database)
    for number in range(12):
        wave = [
            {
                "kind": draw.choice("ab"),
                "args": {"n": draw.randrange(40)},
                **({"tag": draw.choice("xyz")} if draw.random() < 0.7 else {}),
                **({"correlation_id": f"c{draw.randrange(30)}"} if draw.random() < 0.7 else {}),
                **({"delay": 0.001} if draw.random() < 0.2 else {}),
            }
            for _ in range(draw.randint(1, 120))
        ]
        jobs |= zip(enqueue_many(conn, wave), wave, strict=True)
        one(conn, "select forebay.promote_v1()")
        batch = reader.claim_ready(draw.randint(1, 60))
        if batch.jobs:
            ended = [
                {"offset": offset, "outcome": "retried", "error": {"message": f"Oops {offset}"}}
                for offset in range(1, len(batch.jobs) + 1)
                if number < 3 or draw.random() < 0.3
            ]
            reader.settle(batch.claim_no, [], ended=ended)
        one(conn, "select forebay.seal_v1()")
        if draw.random() < 0.5:
            summarize(conn)
    reader.conn.close()
    filters = [
        {"all": True},
        {"kind": "a"},
        {"tag": "x"},
        {"tag": "x", "kind": "b"},
        {"tag": "none"},
    ]
    filters += [{"correlation_id": f"c{n}"} for n in range(5)]
    for wanted in filters:
        expected = {
            job
            for job, had in jobs.items()
            if all(had.get(name) == value for name, value in wanted.items() if name != "all")
        }
        found = search(conn, wanted, most=draw.randint(1, 40), budget=draw.choice([1000, 200_000]))
        assert len(found) == len(set(found))
        assert set(found) == expected, wanted
    texts = {job for job, had in jobs.items() if had["args"]["n"] == 7}
    assert set(search(conn, contains='"N": 7}')) == texts
    failed = {
        job
        for (job,) in conn.execute("select job_id from forebay.failure where message = 'Oops 1'")
    }
    assert set(search(conn, contains="oops 1")) >= failed > set()


@pytest.mark.parametrize("guarded", [True, False])
def test_the_runs_of_a_subject_are_found_at_a_bounded_cost(conn, database, guarded):
    """Summaries skip what has no run of it; forged headers, valid or not, are no error.

    The control has summaries without subjects.
    """
    if not guarded:
        break_function(database, "_summarize_block", ("where i.subject is not null", "where false"))
    forged = [{"kind": "work", "headers": {"forebay-subject": text}} for text in ("[]", "{", "")]
    subjects = [{"kind": "work", "subject": name} for name in ("page 1", "page 2")]
    one(conn, "select count(*) from forebay.push_subjects(%s)", json.dumps(subjects))
    enqueue_many(
        conn, [*forged, {"kind": "work", "headers": {"forebay-subject": '{"subject": "page 3"}'}}]
    )
    enqueue_many(conn, [{"kind": "work"}] * 9000)
    runs = dict(
        conn.execute(
            "select headers ->> 'forebay-subject', seq from forebay.log where headers is not null"
        ).fetchall()
    )
    run = next(job for text, job in runs.items() if '"page 1"' in text)
    assert search(conn, {"subject": "page 1"}) == [run]
    assert summarize(conn) == 2
    assert (search(conn, {"subject": "page 1"}) == [run]) == guarded
    assert len(search(conn, {"subject": "page 3"})) == guarded
    assert search(conn, {"subject": "page 4"}) == []
    query = 'select looked_at from forebay.search_jobs(\'{"subject": "page 4"}\')'
    assert one(conn, query) < 4096
    query = "select answer, jobs from forebay.change_jobs('cancel', '{\"subject\": \"page 1\"}')"
    assert conn.execute(query).fetchall() == [("cancelled", 1)]
    assert one(conn, "select cancel_requested from forebay.job(%s)", run)


def _late_row(conn, database) -> tuple[int, list[int]]:
    with connect(database) as late:
        late.execute("begin")
        job = enqueue(late, correlation_id="late")
        enqueue_many(conn, [{"kind": "work"}] * 9000)
        made = summarize(conn)
        late.execute("commit")
    return made, [job]


def test_a_row_that_commits_late_is_found(conn, database):
    """While a transaction with a number of a block is open, the block has no summary."""
    made, job = _late_row(conn, database)
    assert made == 0
    assert search(conn, {"correlation_id": "late"}) == job
    assert summarize(conn) == 2
    assert search(conn, {"correlation_id": "late"}) == job


def test_without_the_mark_a_late_row_is_missed(conn, database):
    """The guard of the test above."""
    break_function(
        database, "archive_v1", ("m.xid < pg_snapshot_xmin(pg_current_snapshot())", "true")
    )
    made, _ = _late_row(conn, database)
    assert made == 2
    assert search(conn, {"correlation_id": "late"}) == []


@pytest.mark.slow
def test_blocks_without_a_match_are_not_read(conn):
    """A text that a few blocks have costs the rows of these blocks and of the end of the log."""
    enqueue_many(conn, [{"kind": "work", "tag": f"t{n // 4000}"} for n in range(40_000)])
    summarize(conn)
    query = "select looked_at, remaining from forebay.search_jobs(%s::jsonb)"
    looked_at, _ = conn.execute(query, [json.dumps({"tag": "t1"})]).fetchone()
    assert looked_at <= 4096 + 50
    looked_at, remaining = conn.execute(query, [json.dumps({"tag": "none"})]).fetchone()
    assert (looked_at <= 4096, remaining) == (True, 0)


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_a_look_up_reads_no_terms_of_blocks_without_a_match(conn, database, guarded):
    """The terms of a block fill pages of their own."""
    if not guarded:
        break_function(
            database, "_blocks_with", ("with b as materialized", "with b as not materialized")
        )
    conn.execute(
        "insert into forebay.archive_block (lo, hi, segment_id, row_count, terms)"
        " select i, i + 1, (select min(segment_id) from forebay.segment), 1,"
        "        array(select hashint8(i * 3000 + t) from generate_series(1, 3000) t) from "
        "generate_series(1, 300) i"
    )
    query = (
        "select * from forebay._blocks_with('&&', array[hashint8(7 * 3000 + 1)], 1, 1000, "
        "null, null)"
    )
    assert [lo for lo, *_ in conn.execute(query)] == [7]
    assert (pages(conn, query, []) < 50) == guarded


@pytest.mark.slow
def test_the_summaries_of_emptied_segments_are_deleted(conn, database):
    """They go with the jobs; searches do not fail."""
    small_segments(conn, rows=300)
    with Reader(database) as reader:
        for _ in range(4):
            enqueue_many(conn, [{"kind": "work"}] * 300)
            for batch in reader.claim_all():
                reader.finish(batch)
        one(conn, "select forebay.seal_v1()")
        enqueue(conn)
        for batch in reader.claim_all():
            reader.finish(batch)
    summarize(conn)
    before = one(conn, "select count(*) from forebay.archive_block where row_count > 0")
    one(conn, "select forebay.configure('retention_days', 0)")
    while one(conn, "select emptied from forebay.retain_v1()") is not None:
        pass
    assert len(search(conn)) < 1200
    enqueue_many(conn, [{"kind": "work"}] * 700)
    one(conn, "select forebay.seal_v1()")
    summarize(conn)
    after = one(
        conn,
        (
            "select count(*) from forebay.archive_block b join forebay.segment s using "
            "(segment_id) where s.removed_at is not null"
        ),
    )
    assert before > 0
    assert after == 0


def test_a_search_by_state(conn, database):
    """Done, dead and waiting jobs are told apart."""
    enqueue_many(conn, [{"kind": "work"}] * 9)
    with Reader(database) as reader:
        batch = reader.claim(6)
        ended = [{"offset": n, "outcome": "dead", "reason": "permanent"} for n in (1, 2)]
        reader.settle(batch.claim_no, [3, 4, 5], ended=ended)
        assert search(conn, only_state="dead") == [2, 1]
        assert search(conn, only_state="done") == [5, 4, 3]
        assert search(conn, only_state="claimed") == [6]
        assert search(conn, only_state="ready", most=1) == [9, 8, 7]
        assert search(conn, only_state="dead", states=1) == [2, 1]
        looked = "select job_ids, next from forebay.search_jobs(only_state => 'dead', states => 2)"
        assert conn.execute(looked).fetchone() == ([], 8)


@pytest.mark.parametrize(
    "arguments",
    [
        "'{}'",
        "'{\"all\": true}', 'nope'",
        "'{\"all\": true}', null, ''",
        "'{\"all\": true}', most => 0",
        "'{\"all\": true}', budget => 1",
        "'{\"all\": true}', states => 0",
        "'{\"all\": true}', states => 10001",
        "'{\"all\": true}', states => null",
        '\'{"state": "ready"}\'',
    ],
)
def test_bad_input_is_refused(conn, arguments):
    """JQ001, and nothing else."""
    assert sqlstate(conn, f"select forebay.search_jobs({arguments})") == "JQ001"


@pytest.mark.slow
def test_a_replay_takes_exactly_the_jobs_of_its_plan_once(conn, database):
    """The dry run equals the effect, in steps, in order, to one group only.

    The jobs say where they came from.
    """
    open_group(conn, "mail", "first", "beginning")
    jobs = enqueue_many(
        conn,
        [
            {"kind": "send", "queue": "mail", "args": {"n": n}, "tag": "ab"[n % 2],
             **({"ordering_key": f"k{n % 5}"} if n % 3 == 0 else {})}
            for n in range(10_000)
        ],
    )  # fmt: skip
    summarize(conn)
    second = open_group(conn, "mail", "second")
    wanted, options = {"queue": "mail", "tag": "a"}, {"group": "second"}
    token, planned = conn.execute(
        "select token, jobs from forebay.plan_replay(%s::jsonb, %s::jsonb)",
        [json.dumps(wanted), json.dumps(options)],
    ).fetchone()
    assert planned == 5000
    replay_id, total = replay(conn, wanted, options, token, most=700)
    assert total == planned
    assert origins(conn, replay_id) == jobs[::2]
    audiences = conn.execute(
        "select distinct l.audience, l.sort from forebay.log j join forebay.lane l on "
                "l.lane = j.lane"
        " where headers ->> 'forebay-replay' = %s order by 2", [str(replay_id)]
    ).fetchall()  # fmt: skip
    assert audiences == [(second, "keyed"), (second, "plain")]
    with Reader(database, queue="mail", group="second") as reader:
        handed = [job for batch in reader.claim_all() for job in batch.jobs]
    assert {job["args"]["n"] for job in handed} <= set(range(0, 10_000, 2))
    event = one(conn, "select count from forebay.event where act = 'jobs.replay'")
    assert event == 5000


def _two_sessions(conn, database) -> list[int]:
    """Continue a replay in one session while another one has a step of it open.

    Return where the jobs come from.
    """
    enqueue_many(conn, [{"kind": "work"}] * 9000)
    first = 'select replay_id from forebay.replay_jobs(\'{"kind": "work"}\', most => 1)'
    again = "select jobs from forebay.replay_jobs(replay_id => %s)"
    replay_id = one(conn, first)
    with connect(database) as other:
        other.execute("begin")
        one(other, again, replay_id)
        conn.execute("set lock_timeout = '50ms'")
        refused = sqlstate(conn, again, replay_id)
        other.execute("commit")
    conn.execute("reset lock_timeout")
    one(conn, again, replay_id)
    assert refused in (None, "55P03")
    return origins(conn, replay_id)


def test_steps_of_two_sessions_take_turns(conn, database):
    """Two sessions that continue one replay at the same time copy each job once."""
    found = _two_sessions(conn, database)
    assert len(found) == len(set(found)) == 9000


def test_without_the_lock_two_sessions_copy_twice(conn, database):
    """The guard of the test above."""
    break_function(
        database,
        "replay_jobs",
        (
            "coalesce(replay_jobs.replay_id, r.replay_id) for update;",
            "coalesce(replay_jobs.replay_id, r.replay_id);",
        ),
    )
    # The row's update at the end waits, and the copies of the call are rolled back: without the
    # wait they would stay.
    break_function(
        database,
        "replay_jobs",
        (
            "where i.replay_id = r.replay_id;",
            "where i.replay_id = r.replay_id and not r.jobs > 4096;",
        ),
    )
    found = _two_sessions(conn, database)
    assert len(found) > len(set(found))


def test_a_step_that_fails_leaves_nothing(conn, database):
    """A step that is rolled back is repeated by the next one."""
    enqueue_many(conn, [{"kind": "work"}] * 9000)
    replay_id = one(
        conn, 'select replay_id from forebay.replay_jobs(\'{"kind": "work"}\', most => 1)'
    )
    with connect(database) as other:
        other.execute("begin")
        one(other, "select jobs from forebay.replay_jobs(replay_id => %s)", replay_id)
        other.execute("rollback")
    total = one(conn, "select total from forebay.replay_jobs(replay_id => %s)", replay_id)
    found = origins(conn, replay_id)
    assert total == len(found) == len(set(found)) == 9000


WORK = '{"kind": "work"}'
BY_TOKEN = "select replay_id, jobs, total, is_over from forebay.replay_jobs(%s::jsonb, token => %s)"


def plan_replay(conn, options="{}") -> tuple[str, int]:
    """Return the token and the number of a dry run."""
    query = "select token, jobs from forebay.plan_replay(%s::jsonb, %s::jsonb)"
    return conn.execute(query, [WORK, options]).fetchone()


def test_a_token_is_of_the_jobs_that_were_counted(conn, database):
    """
    Jobs that came later, or whose transaction was open, are not replayed; another filter is
    refused.
    """
    with connect(database) as open_one:
        open_one.execute("begin")
        enqueue_many(open_one, [{"kind": "work"}] * 5)
        shown = enqueue_many(conn, [{"kind": "work"}] * 20)
        token, jobs = plan_replay(conn)
        assert jobs == 20
        open_one.execute("commit")
    enqueue_many(conn, [{"kind": "work"}] * 30)
    assert sqlstate(conn, BY_TOKEN, '{"kind": "other"}', token) == "JQ042"
    assert sqlstate(conn, BY_TOKEN, WORK, "20" + token[2:-1] + "x") == "JQ042"
    assert sqlstate(conn, BY_TOKEN, WORK, "99-") == "JQ042"
    replay_id, *done = conn.execute(BY_TOKEN, [WORK, token]).fetchone()
    assert done == [20, 20, True]
    assert origins(conn, replay_id) == shown
    assert sqlstate(conn, BY_TOKEN, '{"kind": "other"}', token) == "JQ042"


def test_a_token_of_as_many_other_jobs_is_refused(database, conn):
    """
    Two jobs were done at the dry run; when one is gone and another one is done, the token is that
    of neither set.
    """
    jobs = enqueue_many(conn, [{"kind": "work"}] * 3)
    with Reader(database) as reader:
        reader.finish(reader.claim(2))
        token, number = plan_replay(conn, '{"state": "done"}')
        assert number == 2
        reader.finish(reader.claim(1))
        conn.execute("update forebay.log set kind = 'gone' where seq = %s", [jobs[0]])
        query = BY_TOKEN.replace("token", '\'{"state": "done"}\', token')
        assert sqlstate(conn, query, WORK, token) == "JQ042"


def test_a_token_begins_one_replay(conn):
    """
    A call whose answer was lost is repeated: it is the same replay, also after the last step; a new
    dry run begins another one.
    """
    enqueue_many(conn, [{"kind": "work"}] * 9000)
    token, _ = plan_replay(conn)
    by_steps = BY_TOKEN.replace("=> %s)", "=> %s, most => 1)")
    answers = [conn.execute(by_steps, [WORK, token]).fetchone() for _ in range(5)]
    assert len({replay_id for replay_id, *_ in answers}) == 1
    assert [total for *_, total, _over in answers][-2:] == [9000, 9000]
    assert answers[-1][1:] == (0, 9000, True)
    shift_clock(conn, 90 * 86_400)
    conn.execute(BY_TOKEN, ['{"kind": "no such"}', None])  # Forgets old replays.
    assert conn.execute(BY_TOKEN, [WORK, token]).fetchone() == answers[-1]
    again, jobs = plan_replay(conn)
    assert (again != token, jobs) == (True, 18_000)


def _begin_twice(conn, database) -> list[int]:
    """Let two sessions begin with one token before either has committed.

    Return the jobs that were copied.
    """
    enqueue_many(conn, [{"kind": "work"}] * 20)
    token, _ = plan_replay(conn)
    with connect(database) as first, connect(database) as second:
        first.execute("begin")
        ids = {first.execute(BY_TOKEN, [WORK, token]).fetchone()[0]}
        waiting = threading.Thread(
            target=lambda: ids.add(second.execute(BY_TOKEN, [WORK, token]).fetchone()[0])
        )
        waiting.start()
        blocked = "select cardinality(pg_blocking_pids(%s)) > 0 or not %s"
        wait_for(lambda: one(conn, blocked, second.info.backend_pid, waiting.is_alive()))
        first.execute("commit")
        waiting.join()
    return [job for replay_id in ids for job in origins(conn, replay_id)]


def test_two_sessions_begin_one_replay(conn, database):
    """The second waits for the first, and continues its replay."""
    assert len(_begin_twice(conn, database)) == 20


def test_without_the_unique_token_they_begin_two(conn, database):
    """The guard of the test above."""
    conn.execute("alter table forebay.job_replay drop constraint job_replay_token_key")
    on_conflict = "on conflict on constraint job_replay_token_key do nothing"
    break_function(database, "replay_jobs", (on_conflict, ""))
    assert len(_begin_twice(conn, database)) == 40


def test_a_replay_by_state_and_as_of_a_time(conn, database):
    """Only dead jobs; and only jobs that had not ended at a moment."""
    jobs = enqueue_many(conn, [{"kind": "work"}] * 6)
    with Reader(database) as reader:
        first = reader.claim(2)
        reader.settle(
            first.claim_no, [1], ended=[{"offset": 2, "outcome": "dead", "reason": "permanent"}]
        )
        moment = one(conn, "select clock_timestamp()::text")
        second = reader.claim(2)
        reader.finish(second)
    dead, _ = replay(conn, {"ids": jobs}, {"state": "dead"})
    assert origins(conn, dead) == [jobs[1]]
    open_then, _ = replay(conn, {"ids": jobs}, {"unfinished_at": moment})
    assert origins(conn, open_then) == jobs[2:]


def test_a_replay_to_a_group_that_is_not_there(conn):
    """JQ014, and no job."""
    enqueue(conn)
    query = 'select forebay.replay_jobs(\'{"all": true}\', \'{"group": "nope"}\')'
    assert sqlstate(conn, query) == "JQ014"
    assert one(conn, "select count(*) from forebay.log") == 1
    assert sqlstate(conn, "select forebay.replay_jobs(replay_id => 5)") == "JQ001"
    assert sqlstate(conn, "select forebay.replay_jobs('{\"all\": true}', '{\"x\": 1}')") == "JQ001"


def test_what_waited_and_ran_at_a_moment(conn, database):
    """The states of then, whatever happened since."""
    jobs = enqueue_many(conn, [{"kind": "work"}] * 6)
    with Reader(database) as reader:
        reader.finish(reader.claim(1))
        held = reader.claim(2)
        moment = one(conn, "select clock_timestamp()")
        enqueue(conn)
        reader.settle(held.claim_no, [1], ended=[{"offset": 2, "outcome": "retried"}])
        for batch in reader.claim_all():
            reader.finish(batch)
    rows = conn.execute(
        "select state, job_id from forebay.jobs_at(%s) order by 2", [moment]
    ).fetchall()
    assert rows == [(("running" if job in jobs[1:3] else "ready"), job) for job in jobs[1:]]
    assert state(conn, jobs[3]) == "done"
    assert (
        conn.execute(
            "select * from forebay.jobs_at(clock_timestamp() - interval '1 day')"
        ).fetchall()
        == []
    )
    assert sqlstate(conn, "select forebay.jobs_at(now() + interval '1 day')") == "JQ001"


def _ready_at(conn, database) -> tuple[list[int], list[int]]:
    """Claim a priority in parts, and another one after a moment.

    Return the jobs that were ready then by the ledger, and by the answer.
    """
    many = enqueue_many(conn, [{"kind": "work"}] * 4)
    with Reader(database) as reader:
        reader.claim(1)
        late = enqueue(conn, priority=50)
        reader.claim(1)
        moment = one(conn, "select clock_timestamp()")
        for batch in reader.claim_all():
            reader.finish(batch)
    query = "select job_id from forebay.jobs_at(%s) where state = 'ready' order by 1"
    return [*many[2:], late], [job for (job,) in conn.execute(query, [moment]).fetchall()]


def test_a_priority_that_is_claimed_later_is_known(conn, database):
    """Also while another one is claimed in parts, whose snapshot is older than its claims."""
    ledger, answer = _ready_at(conn, database)
    assert answer == ledger


def test_by_the_time_of_the_last_claim_it_is_missing(conn, database):
    """The guard of the test above."""
    break_function(database, "_seen_since", ("b.no = v_low);\nend", "b.no = p_no);\nend"))
    ledger, answer = _ready_at(conn, database)
    assert answer == ledger[:-1]


def test_a_moment_that_retention_has_taken_is_refused(conn, database):
    """The answer would be wrong without a word; moments after the sealing are known."""
    small_segments(conn)
    fill = "select forebay.configure('retention_days', 0)"
    conn.execute(fill)
    moment = one(conn, "select clock_timestamp()")
    with Reader(database) as reader:
        for _ in range(60):
            enqueue_many(conn, [{"kind": "work"}] * 100)
            for batch in reader.claim_all():
                reader.finish(batch)
            one(conn, "select forebay.seal_v1()")
            shift_clock(conn, 0)
            if one(conn, "select emptied from forebay.retain_v1(null)") is not None:
                break
        else:
            pytest.fail("no segment was emptied")
        assert sqlstate(conn, "select forebay.jobs_at(%s)", moment) == "JQ001"
        waits = enqueue(conn)
        query = "select job_id from forebay.jobs_at(clock_timestamp())"
        assert one(conn, query) == waits


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_a_search_reads_the_pages_of_its_blocks_only(database, conn, guarded):
    """Also before a vacuum, and with statistics. Mutant: the index does not know the pages."""
    if not guarded:
        break_function(database, "_know_pages", ("brin_summarize_new_values", "pg_relation_size"))
    job = {"kind": "send", "args": {"a": "x" * 100}}
    enqueue_many(conn, [job] * 10_000 + [job | {"tag": "rare"}] + [job] * 10_000)
    summarize(conn)
    conn.execute("analyze")
    query = 'select forebay.search_jobs(\'{"tag": "rare"}\')'
    size = one(conn, "select pg_relation_size('forebay.log_0') / 8192")
    conn.execute(query)  # now the session knows the catalog
    assert (pages(conn, query, []) < size) == guarded

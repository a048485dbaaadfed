"""Erasing what ended jobs of a queue have brought with them: all of it, and nothing that a
worker still needs.
"""

import json
import random
from itertools import count

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

ENDED = {"done", "cancelled", "expired", "dead"}


def redact(conn, most: int = 1000, queue: str = "mail", **options) -> int:
    """Do all steps; return how many rows were erased."""
    names = "".join(f", {name} => %s" for name in options)
    query = (
        f"select redacted, next, event from forebay.redact_queue(%s, after => %s, most => %s,"
        f" event_id => %s{names})"
    )
    total, after, event = 0, None, None
    for _ in range(10_000):
        position = None if after is None else json.dumps(after)
        rows = conn.execute(query, [queue, position, most, event, *options.values()]).fetchall()
        ((redacted, after, event),) = rows
        total += redacted
        if after is None:
            return total
    pytest.fail("the steps do not end")


def secrets(conn, table: str = "log") -> list[int]:
    """Return the numbers n in the arguments of a table's rows."""
    query = f"select (args ->> 'n')::int from forebay.{table} where args ? 'n' order by 1"
    return [n for (n,) in conn.execute(query).fetchall()]


def test_ended_jobs_lose_their_arguments_and_others_keep_them(database, conn):
    """Arguments, headers, errors, results and notes.

    In the log and, for cancelled jobs, among the scheduled ones.
    """
    numbers = count()

    def job(**options) -> int:
        headers = json.dumps({"secret": "h"})
        return enqueue(conn, queue="mail", args={"n": next(numbers)}, headers=headers, **options)

    with Reader(database, "mail") as reader:
        done, dead, retried, running = job(), job(), job(), job()
        batch = reader.claim()
        error = {"type": "ValueError", "message": "secret", "traceback": "secret"}
        ended = [
            {"offset": 1, "outcome": "done", "kept": {"seconds": 60, "value": "secret"}},
            {"offset": 2, "outcome": "dead", "reason": "permanent", "error": error},
            {"offset": 3, "outcome": "retried", "after": 3600, "error": error},
        ]
        notes = [
            {"job_id": job_id, "group_id": reader.group_id, "done": 0.5, "note": "secret"}
            for job_id in (done, running)
        ]
        record = "select forebay.record_progress_v1(%s, %s)"
        assert one(conn, record, reader.lease_id, json.dumps(notes)) == 2
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        cancelled, scheduled = job(delay="1 hour"), job(delay="1 hour")
        conn.execute("select forebay.cancel(%s)", [cancelled])
        waiting = job()
        enqueue(conn, args={"n": 99})
        assert redact(conn, 2) == 3 + 1 + 1 + 1 + 1
        # The first row of the retried job is behind every cursor; its next one is not.
        assert secrets(conn) == [3, 6, 99]
        assert secrets(conn, "deferred") == [2, 5]
        assert one(conn, "select count(*) from forebay.log where headers ? 'secret'") == 2
        texts = (
            "select job_id from forebay.failure where message = 'secret' and traceback = 'secret'"
        )
        assert conn.execute(texts).fetchall() == [(retried,)]
        assert one(conn, "select error_type from forebay.failure where job_id = %s", dead) == (
            "ValueError"
        )
        notes = "select job_id from forebay.progress where note = 'secret'"
        assert conn.execute(notes).fetchall() == [(running,)]
        problem = "select value, problem from forebay.result(%s)"
        assert conn.execute(problem, [done]).fetchall() == [(None, "it was redacted")]
        assert [state(conn, i) for i in (done, dead, cancelled, scheduled, running)] == [
            "done", "dead", "cancelled", "scheduled", "running",
        ]  # fmt: skip
        assert [b.jobs[0]["args"] for b in reader.claim_all()] == [{"n": 6}]
        assert one(conn, "select args from forebay.job(%s)", waiting) == {"n": 6}
        event = "select count, queue from forebay.event where act = 'queues.redact'"
        assert conn.execute(event).fetchall() == [(7, "mail")]
        assert redact(conn) == 0
        assert one(conn, "select args from forebay.dead_letter") == {"n": 1}
        assert redact(conn, dead=True) == 1
        assert one(conn, "select count(*) from forebay.dead_letter") == 0


def _replayed_after(database, conn) -> list[dict]:
    """Erase two of three jobs with arguments and replay all that is done.

    Return the arguments that a worker gets.
    """
    with Reader(database, "mail") as reader:
        for n in range(2):
            enqueue(conn, queue="mail", args={"n": n})
        enqueue(conn, queue="mail")  # It never had any.
        limit = one(conn, "select clock_timestamp()")
        enqueue(conn, queue="mail", args={"n": 2})
        reader.finish(reader.claim())
        before = 'select token from forebay.plan_replay(\'{"queue": "mail"}\')'
        token = one(conn, before)
        redact(conn, before=limit)
        given = '\'{"queue": "mail"}\', \'{"state": "done"}\''
        plan = conn.execute(f"select jobs, redacted from forebay.plan_replay({given})").fetchone()
        done = conn.execute(
            f"select jobs, redacted, is_over from forebay.replay_jobs({given})"
        ).fetchone()
        assert (*plan, True) == done
        refused = 'select forebay.replay_jobs(\'{"queue": "mail"}\', token => %s)'
        assert sqlstate(conn, refused, token) == ("JQ042" if plan[1] else None)
        return [job["args"] for batch in reader.claim_all() for job in batch.jobs]


def test_a_replay_leaves_out_what_was_erased(database, conn):
    """
    It counts these jobs, and so does its dry run; a job that never had arguments is replayed.
    """
    assert _replayed_after(database, conn) == [{}, {"n": 2}]


def test_without_the_mark_it_would_run_with_no_arguments(database, conn):
    """The guard of the test above."""
    break_function(
        database, "_redacted", ('\'{"forebay-redacted": "true"}\'::jsonb', "null::jsonb")
    )
    assert _replayed_after(database, conn).count({}) > 1


def test_rows_of_promoted_jobs_are_erased_before_they_are_trimmed(database, conn):
    """
    The scheduled row of a job stays for maintenance after its promotion: when the job has ended, it
    has no arguments, in steps too.
    """
    with Reader(database, "mail") as reader:
        for n in range(4):
            enqueue(conn, queue="mail", args={"n": n}, delay="1 second")
        enqueue(conn, queue="other", args={"n": 9}, delay="1 second")
        enqueue(conn, queue="mail", args={"n": 5}, delay="1 hour")
        shift_clock(conn, 5)
        one(conn, "select forebay.promote_v1()")
        reader.finish(reader.claim(3))
        assert secrets(conn, "deferred") == [0, 1, 2, 3, 5, 9]
        assert redact(conn, most=2) == 6
        assert secrets(conn, "deferred") == [3, 5, 9]
        assert [job["args"] for batch in reader.claim_all() for job in batch.jobs] == [{"n": 3}]


def test_only_what_is_older(database, conn):
    """With a time, what was enqueued later stays."""
    with Reader(database, "mail") as reader:
        for n in range(3):
            enqueue(conn, queue="mail", args={"n": n})
        limit = one(conn, "select clock_timestamp()")
        enqueue(conn, queue="mail", args={"n": 3})
        reader.finish(reader.claim())
        assert redact(conn, before=limit) == 3
        assert secrets(conn) == [3]


def worked(database: str, seed: int) -> None:
    """Two groups work at random: unfinished jobs keep their arguments through a redaction.

    After the last job, a redaction erases all.
    """
    rng = random.Random(seed)
    with connect(database) as conn:
        small_segments(conn, 100)
        open_group(conn, "mail", "a", "beginning")
        open_group(conn, "mail", "b", "beginning")
        conn.execute("select forebay.limit_queue('mail', key_concurrency => 2)")
        jobs = []
        for n in range(240):
            key = {}
            if n % 3 == 1:
                key = {"ordering_key": f"k{rng.randrange(4)}"}
            elif n % 3 == 2:
                key = {"limit_key": f"k{rng.randrange(4)}"}
            jobs.append({"kind": "work", "queue": "mail", "args": {"n": n}, **key})
        ids = enqueue_many(conn, jobs)
        with Reader(database, "mail", "a") as first, Reader(database, "mail", "b") as second:
            for reader in (first, second):
                reader.finish(reader.claim(10))  # Jobs that have ended for both groups.
            for _ in range(rng.randrange(10, 40)):
                reader = rng.choice((first, second))
                batch = reader.claim_ready(rng.choice((1, 3, 10)))
                if not batch.jobs or rng.random() < 0.2:
                    continue
                outcomes = ["done", "retried", "dead", "snoozed", "released"]
                ended = [
                    {"offset": o + 1, "outcome": rng.choice(outcomes), "after": rng.choice((0, 99))}
                    for o in range(len(batch.jobs))
                    if rng.random() < 0.9
                ]
                if ended:
                    assert reader.settle(batch.claim_no, ended=ended) == "settled"
            redact(conn, rng.choice((3, 17, 1000)))
            for n, job_id in enumerate(ids):
                rows = conn.execute("select state, args from forebay.job(%s)", [job_id]).fetchall()
                for state_, args in rows:
                    assert args == {"n": n} or state_ in ENDED, f"arguments lost: {rows}"
            # What is handed out from now on has its arguments, too.
            for reader in (first, second):
                reader.revoked_by(conn, suspects=False)
                reader.open_lease()
                while (batch := reader.claim_ready(1000)).jobs:
                    assert all("n" in job["args"] for job in batch.jobs), "arguments lost"
                    reader.finish(batch)
        redact(conn, rng.choice((3, 17, 1000)))
        # Now no job waits for its key.
        rest = [
            conn.execute("select state, args from forebay.job(%s)", [i]).fetchall() for i in ids
        ]
        ended = [rows for rows in rest if all(state_ in ENDED for state_, _ in rows)]
        assert len(ended) > 100
        assert [rows for rows in ended if any(args for _, args in rows)] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_erased_that_a_worker_may_still_get(database, seed):
    """For each group and with each sort of key, in steps of any size."""
    worked(database, seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guard", "without"),
    [
        ("and not r.seq <@ $6", "and $6 is not null"),
        ("where c.lane = $1\n", "where c.lane = $1 and false\n"),
    ],
    ids=["running and parked", "cursors"],
)
def test_without_a_guard_arguments_are_lost(database, guard, without):
    """Each condition is needed."""
    break_function(database, "_redact_log", (guard, without))
    with pytest.raises(AssertionError, match="arguments lost"):
        for seed in range(4):
            worked(database, seed)


def test_the_errors_of_one_settlement_are_erased_together(database, conn):
    """They have the same time, of which a small step must leave none."""
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(10)])
    with Reader(database, "mail") as reader:
        batch = reader.claim()
        error = {"type": "E", "message": "secret"}
        ended = [{"offset": o, "outcome": "dead", "error": error} for o in range(1, 11)]
        kept = {"seconds": 60, "value": "secret"}
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(10)])
        batch = reader.claim()
        ended = [{"offset": o, "outcome": "done", "kept": kept} for o in range(1, 11)]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
    assert redact(conn, 3) == 20
    assert one(conn, "select count(message) from forebay.failure") == 0
    assert one(conn, "select count(value) from forebay.result") == 0


def test_a_queue_without_a_group_keeps_everything(conn):
    """Its jobs wait."""
    enqueue(conn, queue="mail", args={"n": 1})
    assert redact(conn) == 0
    assert secrets(conn) == [1]


@pytest.mark.parametrize(
    "call",
    [
        "'no name'",
        "'forebay.deliver'",
        "null",
        "'mail', most => 0",
        "'mail', after => '{\"place\": \"elsewhere\"}'",
    ],
)
def test_bad_calls_are_refused(conn, call):
    """A name, a position and a number."""
    assert sqlstate(conn, f"select forebay.redact_queue({call})") == "JQ001"

"""The end of a job enqueues its follow-up in the same commit: once, whatever ends the job."""

import json
from typing import Any

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, one, shift_clock, sqlstate, state
from tests.support.mutant import break_function, violation
from tests.support.plans import pages, stated_pages, without_autovacuum

ERROR = {"type": "ValueError", "message": "no", "traceback": "", "max_attempts": 1}

FOLLOW_UPS = (
    "select l.queue, l.priority, g.kind, g.args, g.tag, g.correlation_id, g.headers,"
    " g.ordering_key, g.limit_key, g.max_attempts, g.expires_at - g.enqueued_at as expires_in"
    " from forebay.log g"
    " join lateral (select i.* from forebay.lane i where i.lane = g.lane limit 1) l on true"
    " where g.kind = 'follow' and l.audience = 0 order by g.seq"
)


def follow_ups(conn) -> list[dict[str, Any]]:
    """Return the follow-ups in the log, with their options."""
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(FOLLOW_UPS).fetchall()


def ended_jobs(conn) -> list[int]:
    """Return for which jobs there are follow-ups."""
    return [each["args"]["job_id"] for each in follow_ups(conn)]


def record(conn, on_dead: Any = None, *, kind: str = "work", **more: Any) -> None:
    """Record what follows the dead jobs of a kind, as a worker does when it starts."""
    declared = {} if on_dead is None else {kind: on_dead}
    conn.execute(
        "select * from forebay.record_kinds_v1('w', %s, %s, p_keys => %s, p_on_dead => %s)",
        [
            [kind, *more],
            ["default", *(each.get("queue", "default") for each in more.values())],
            json.dumps({name: each["keys"] for name, each in more.items() if "keys" in each}),
            json.dumps(declared),
        ],
    )


def done(offset: int = 1, **follow_up: Any) -> dict[str, Any]:
    """Return the end of a job that is done, and has a follow-up."""
    returned = {"seconds": 0, "value": 42}
    follow = {"kind": "follow", "returned": returned} | follow_up
    return {"offset": offset, "outcome": "done", "follow_up": follow}


def dead(offset: int = 1, **more: Any) -> dict[str, Any]:
    """Return the end of a job that is dead."""
    end = {"offset": offset, "outcome": "dead", "reason": "exhausted", "error": ERROR}
    return end | more


# --- once, in the same commit ---


def it_is_enqueued_once(dsn: str) -> None:
    """A flush that is repeated, and the settlement of another flush, enqueue nothing more."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        ids = [enqueue(conn) for _ in range(3)]
        batch = reader.claim()
        ended = [done(1), dead(2, follow_up={"kind": "follow"})]
        assert reader.settle(batch.claim_no, [3], ended=ended) == "settled"
        assert reader.settle(batch.claim_no, [3], ended=ended) == "repeated"
        assert reader.settle(batch.claim_no, ended=[done(1)], flush_no=2) == "refused"
        assert reader.settle(batch.claim_no, ended=[done(1)], flush_no=-1) == "refused"
        assert ended_jobs(conn) == ids[:2]


def test_an_end_has_one_follow_up(database):
    """Also when the worker sends the settlement again."""
    it_is_enqueued_once(database)


@pytest.mark.parametrize(
    ("name", "guard", "instead"),
    [
        ("_end", "jsonb_typeof(p_item -> 'follow_up') = 'object'", "false"),
        ("_end", "p_item -> 'follow_up')", "null)"),
    ],
)
def test_an_end_has_no_follow_up_without_the_call(database, name, guard, instead):
    """Neither a job that is done nor a dead one."""
    break_function(database, name, (guard, instead))
    with violation():
        it_is_enqueued_once(database)


@pytest.mark.parametrize("how", ["rolled back", "killed"])
def test_a_settlement_that_does_not_commit_leaves_no_follow_up(database, how):
    """The transaction of a handler ends before its commit: the job comes back, and the end that
    commits has one follow-up.
    """
    with connect(database) as conn, Reader(database) as reader, Reader(database) as next_one:
        job_id = enqueue(conn)
        batch = reader.claim()
        own = psycopg.connect(database)
        assert reader.settle(batch.claim_no, ended=[done()], flush_no=-1, conn=own) == "settled"
        assert one(own, f"select count(*) from ({FOLLOW_UPS}) f") == 1
        assert follow_ups(conn) == []
        if how == "killed":
            one(conn, "select pg_terminate_backend(%s)", own.info.backend_pid)
        own.close()
        assert reader.revoked_by(conn) == 1
        assert follow_ups(conn) == []
        with pytest.raises(psycopg.Error) as late:
            reader.settle(batch.claim_no, ended=[done()])
        assert late.value.sqlstate == "JQ010"
        again = next_one.claim_ready()
        assert again.job_ids == [job_id]
        assert next_one.settle(again.claim_no, ended=[done()]) == "settled"
        assert ended_jobs(conn) == [job_id]


@pytest.mark.parametrize("outcome", ["retried", "snoozed", "released", "unknown", "lost"])
def test_a_job_that_runs_again_has_no_follow_up_yet(database, outcome):
    """Its last end has one."""
    with connect(database) as conn, Reader(database) as reader:
        record(conn, {"kind": "follow"})
        job_id = enqueue(conn)
        batch = reader.claim()
        again = {"offset": 1, "outcome": outcome, "follow_up": {"kind": "follow"}}
        assert reader.settle(batch.claim_no, ended=[again]) == "settled"
        assert follow_ups(conn) == []
        batch = reader.claim_ready()
        assert reader.settle(batch.claim_no, ended=[done()]) == "settled"
        assert ended_jobs(conn) == [job_id]


def test_a_cancelled_job_has_no_follow_up(database):
    """Neither one that waits, nor one that its handler or a request cancels."""
    with connect(database) as conn, Reader(database) as reader:
        record(conn, {"kind": "follow"})
        waits, by_handler, by_request = (enqueue(conn) for _ in range(3))
        one(conn, "select forebay.cancel(%s)", waits)
        batch = reader.claim()
        assert batch.job_ids == [by_handler, by_request]
        one(conn, "select forebay.cancel(%s)", by_request)
        ended = [{"offset": 1, "outcome": "cancelled"}, {"offset": 2, "outcome": "retried"}]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        assert state(conn, by_request) == "cancelled"
        assert follow_ups(conn) == []


# --- deaths that the database decides ---


LANES = [{}, {"ordering_key": "k"}, {"limit_key": "t"}]


def expires_at_a_claim(conn, reader, **options: Any) -> tuple[int, str]:
    """Let a job expire before its claim."""
    job_id = enqueue(conn, expires_at="2035-01-01", **options)
    shift_clock(conn, 20 * 366 * 86_400)
    reader.claim_ready()
    return job_id, "expired"


def expires_in_a_sweep(conn, reader, **options: Any) -> tuple[int, str]:
    """Let a job of a paused queue expire."""
    job_id = enqueue(conn, expires_at="2035-01-01", **options)
    one(conn, "select forebay.pause_queue('default')")
    shift_clock(conn, 20 * 366 * 86_400)
    one(conn, "select count(*) from forebay.sweep_v1()")
    return job_id, "expired"


def kills_its_worker(conn, reader, **options: Any) -> tuple[int, str]:
    """Revoke the lease of a worker that ran the job alone."""
    job_id = enqueue(conn, max_attempts=1, **options)
    reader.claim_ready()
    reader.revoked_by(conn)
    with Reader(reader.dsn) as other:
        batch = other.claim_ready()
        one(other.conn, "select forebay.start_suspect_v1(%s, %s)", other.lease_id, batch.claim_no)
        other.revoked_by(conn)
    return job_id, "worker lost"


def has_no_attempt_left_in_its_queue(conn, reader, **options: Any) -> tuple[int, str]:
    """Let the maximum of the queue make the first failure the last one."""
    job_id = enqueue(conn, **options)
    one(conn, "select forebay.set_max_attempts('default', 1)")
    batch = reader.claim_ready()
    ended = [{"offset": 1, "outcome": "retried", "error": ERROR}]
    assert reader.settle(batch.claim_no, ended=ended) == "settled"
    return job_id, "exhausted"


DEATHS = [
    expires_at_a_claim,
    expires_in_a_sweep,
    kills_its_worker,
    has_no_attempt_left_in_its_queue,
]


def a_death_is_followed(dsn: str, death=has_no_attempt_left_in_its_queue, **options: Any) -> None:
    """By the follow-up that was recorded for the kind; the follow-up can be claimed."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        record(conn, {"kind": "follow", "queue": "default"})
        job_id, reason = death(conn, reader, **options)
        (found,) = follow_ups(conn)
        assert found["args"]["job_id"] == job_id
        letter = one(conn, "select dead_id from forebay.dead_letter where job_id = %s", job_id)
        assert (found["args"]["reason"], found["args"]["dead_id"]) == (reason, letter)
        one(conn, "select forebay.resume_queue('default')")
        with Reader(dsn) as other:
            (batch,) = other.claim_all()
        assert [job["kind"] for job in batch.jobs] == ["follow"]


@pytest.mark.parametrize("options", LANES)
@pytest.mark.parametrize("death", DEATHS)
def test_a_death_that_no_handler_decides_has_the_follow_up_of_its_kind(database, death, options):
    """In every sort of lane; the new job is found by the cursor of the claim that wrote it."""
    a_death_is_followed(database, death, **options)


def test_a_death_has_no_follow_up_without_the_look_at_its_kind(database):
    """The mutant looks nowhere."""
    break_function(database, "_follow_death", ("where k.kind = p_row.kind", "where false"))
    with violation(ValueError):
        a_death_is_followed(database)


def test_the_worker_that_ran_the_job_decides_what_follows(database):
    """Its declaration replaces that of the database; null means none, as for a drain."""
    with connect(database) as conn, Reader(database) as reader:
        record(conn, {"kind": "follow", "tag": "recorded"})
        for _ in range(3):
            enqueue(conn)
        batch = reader.claim()
        own = {"kind": "follow", "tag": "own"}
        ended = [dead(1), dead(2, follow_up=own), dead(3, follow_up=None)]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        found = [(each["args"]["job_id"], each["tag"]) for each in follow_ups(conn)]
        assert found == [(batch.job_ids[0], "recorded"), (batch.job_ids[1], "own")]
        record(conn)
        enqueue(conn)
        batch = reader.claim()
        assert reader.settle(batch.claim_no, ended=[dead()]) == "settled"
        assert len(follow_ups(conn)) == 2


def test_where_no_kind_declares_a_follow_up_a_death_looks_nowhere(database):
    """A schema in which the look fails; without a declaration nothing calls it."""
    look = "jsonb_typeof(p_follow_up) = 'object'"
    break_function(database, "_follow_death", (look, "1 / 0 = 1"))
    with connect(database) as conn, Reader(database) as reader:
        enqueue(conn), enqueue(conn), enqueue(conn)
        batch = reader.claim()
        ended = [dead(1), dead(2, follow_up=None)]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        record(conn, {"kind": "follow"})
        with pytest.raises(psycopg.errors.DivisionByZero):
            reader.settle(batch.claim_no, ended=[dead(3)], flush_no=2)


# --- what carries over ---


def test_what_belongs_to_the_work_carries_over(database):
    """Tag, correlation id, limit key and headers, without those of the library. What belongs to
    the kind does not: queue, priority, expiry, attempts, ordering key and unique key.
    """
    headers = {"traceparent": "00-1", "forebay-replay": "7"}
    with connect(database) as conn, Reader(database, queue="post") as reader:
        record(conn, follow={"queue": "mail"})
        enqueue(
            conn,
            args={"n": 1},
            queue="post",
            priority=7,
            max_attempts=9,
            expires_at="2090-01-01",
            tag="web",
            correlation_id="c",
            headers=json.dumps(headers),
            limit_key="tenant",
            ordering_key="k",
            unique_as=json.dumps({"once": "u"}),
        )
        batch = reader.claim_ready()
        assert reader.settle(batch.claim_no, ended=[done()]) == "settled"
        (found,) = follow_ups(conn)
        assert found.pop("args") == {
            "job_id": batch.job_ids[0],
            "kind": "work",
            "group": "default",
            "outcome": "done",
            "args": {"n": 1},
            "attempts": 1,
            "result": 42,
            "problem": None,
            "reason": None,
            "error": None,
            "dead_id": None,
        }
        assert found == {
            "queue": "mail",
            "priority": 100,
            "kind": "follow",
            "tag": "web",
            "correlation_id": "c",
            "headers": {
                "traceparent": "00-1",
                "forebay-follow-up": "1",
                "forebay-parent": str(batch.job_ids[0]),
            },
            "ordering_key": None,
            "limit_key": "tenant",
            "max_attempts": None,
            "expires_in": None,
        }


def test_the_options_of_the_follow_up_win(database):
    """Each of them; a delay defers it."""
    options = {
        "queue": "mail",
        "priority": -5,
        "max_attempts": 3,
        "tag": "t",
        "correlation_id": "d",
        "headers": {"a": "b"},
        "ordering_key": "o",
        "limit_key": "l",
        "expires_in": 60,
    }
    with connect(database) as conn, Reader(database) as reader:
        enqueue(conn, tag="web", correlation_id="c", headers='{"a": "a"}', limit_key="tenant")
        enqueue(conn, tag="web", correlation_id="c", headers='{"a": "a"}', limit_key="tenant")
        batch = reader.claim_ready()
        ended = [done(1, **options), done(2, **options, delay=3600.5)]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        (found,) = follow_ups(conn)
        assert found.pop("expires_in").total_seconds() == 60
        assert found.pop("args")["job_id"] == batch.job_ids[0]
        parent = {"forebay-parent": str(batch.job_ids[0])}
        assert found.pop("headers") == {"a": "b", "forebay-follow-up": "1"} | parent
        wanted = {name: value for name, value in options.items() if name in found}
        assert found == wanted | {"kind": "follow"}
        later = conn.execute(
            "select args ->> 'job_id', extract(epoch from run_at - enqueued_at)::float,"
            " extract(epoch from expires_at - run_at)::float from forebay.deferred"
        ).fetchone()
        assert later == (str(batch.job_ids[1]), 3600.5, 60.0)


def test_the_declared_keys_of_its_kind_are_made_from_its_arguments(database):
    """But no unique key: each end has its own follow-up."""
    keys = {"limit_by": ["kind"], "order_by": ["job_id"], "unique_by": ["kind"], "mode": "once"}
    with connect(database) as conn, Reader(database) as reader:
        record(conn, follow={"keys": keys | {"defaults": {}, "more": {}}})
        for _ in range(2):
            enqueue(conn, limit_key="tenant")
        batch = reader.claim_ready()
        assert reader.settle(batch.claim_no, ended=[done(1), done(2)]) == "settled"
        found = [(each["limit_key"], each["ordering_key"]) for each in follow_ups(conn)]
        assert found == [("work", str(job_id)) for job_id in batch.job_ids]
        assert one(conn, "select count(*) from forebay.unique_key") == 0


def test_a_full_queue_takes_follow_ups(database):
    """``max_waiting`` counts for producers: a settlement must not fail."""
    with connect(database) as conn, Reader(database) as reader:
        one(conn, "select forebay.limit_queue('mail', max_waiting => 1)")
        for _ in range(3):
            enqueue(conn)
        enqueue(conn, queue="mail")
        assert sqlstate(conn, "select forebay.enqueue('other', queue => 'mail')") == "53400"
        batch = reader.claim()
        ended = [done(offset, queue="mail") for offset in (1, 2, 3)]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        assert ended_jobs(conn) == batch.job_ids


def test_a_sharded_queue_takes_follow_ups(database):
    """Each goes to one of the shards, and is claimed."""
    with connect(database) as conn, Reader(database) as reader:
        one(conn, "select forebay.shard_queue('mail', 4)")
        for _ in range(9):
            enqueue(conn)
        batch = reader.claim()
        ended = [done(offset, queue="mail") for offset in range(1, 10)]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        with Reader(database, queue="mail") as other:
            found = [job for each in other.claim_all() for job in each.jobs]
        assert sorted(job["args"]["job_id"] for job in found) == batch.job_ids


def test_a_result_that_is_too_large_is_a_problem(database):
    """As for a kept result; a kept result is not sent twice."""
    with connect(database) as conn, Reader(database) as reader:
        for _ in range(3):
            enqueue(conn)
        batch = reader.claim()
        large = {"seconds": 0, "value": "x" * 100_000}
        failed = {"seconds": 60, "problem": "has no JSON form"}
        plain = {"offset": 3, "outcome": "done", "follow_up": {"kind": "follow"}}
        ended = [
            done(1, returned=large),
            plain | {"offset": 2, "kept": failed},
            plain | {"kept": {"seconds": 60, "value": [1]}},
        ]
        assert reader.settle(batch.claim_no, ended=ended) == "settled"
        found = [(each["args"]["result"], each["args"]["problem"]) for each in follow_ups(conn)]
        assert found == [
            (None, "100002 bytes, more than result_bytes_max 65536"),
            (None, "has no JSON form"),
            ([1], None),
        ]
        assert one(conn, "select count(*) from forebay.result") == 2


# --- without end ---


def follow_ups_end(dsn: str) -> None:
    """Kinds of two applications that follow each other stop after sixteen, with an event."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        enqueue(conn, headers='{"forebay-follow-up": "nonsense"}')
        for _ in range(30):
            batch = reader.claim_ready()
            if not batch.jobs:
                break
            assert reader.settle(batch.claim_no, ended=[done()]) == "settled"
        assert len(follow_ups(conn)) == 16
        event = conn.execute(
            "select act, kind, queue, detail from forebay.events() where act <> 'configure'"
        ).fetchall()
        assert event == [
            (
                "follow_ups.end",
                "follow",
                "default",
                "the follow-up follow would be number 17 in a row",
            )
        ]


def test_follow_ups_of_follow_ups_end(database):
    """The count is a header; a producer that writes one cannot make a settlement fail."""
    follow_ups_end(database)


@pytest.mark.parametrize(
    ("guard", "instead"), [("v_nth > 16", "false"), ("'^[0-9]{1,4}$'", "'^.*$'")]
)
def test_follow_ups_do_not_end_without_the_guards(database, guard, instead):
    """Neither without the bound, nor where the header is believed."""
    break_function(database, "_enqueue_follow_up", (guard, instead))
    with violation(psycopg.Error):
        follow_ups_end(database)


# --- what is recorded ---


@pytest.mark.parametrize(
    "follow_up",
    [
        7,
        {},
        {"kind": "no name"},
        {"kind": {}},
        {"kind": "follow", "queue": "no name"},
        {"kind": "follow", "priority": 1.5},
        {"kind": "follow", "priority": 40_000},
        {"kind": "follow", "priority": "high"},
        {"kind": "follow", "max_attempts": 0},
        {"kind": "follow", "delay": -1},
        {"kind": "follow", "delay": 1e300},
        {"kind": "follow", "delay": 9_999_999_999},
        {"kind": "follow", "expires_in": 0},
        {"kind": "follow", "tag": ""},
        {"kind": "follow", "headers": {"a": 1}},
        {"kind": "follow", "headers": []},
        {"kind": "follow", "limit_key": "x" * 201},
    ],
)
def test_a_follow_up_that_cannot_be_enqueued_is_not_recorded(database, follow_up):
    """Otherwise deaths would fail that the database decides, and claims with them."""
    with connect(database) as conn:
        call = "select * from forebay.record_kinds_v1('w', '{work}', '{default}', p_on_dead => %s)"
        assert sqlstate(conn, call, json.dumps({"work": follow_up})) == "JQ001"
        assert one(conn, "select count(*) from forebay.kind_queue") == 0


def test_a_redriven_job_is_followed_again(database):
    """It is a new job: its end has its own follow-up."""
    with connect(database) as conn, Reader(database) as reader:
        record(conn, {"kind": "follow"})
        job_id = enqueue(conn)
        batch = reader.claim()
        assert reader.settle(batch.claim_no, ended=[dead()]) == "settled"
        new_id = one(conn, "select forebay.redrive(dead_id) from forebay.dead_letter")
        redriven = next(b for b in reader.claim_all() if b.job_ids == [new_id])
        assert reader.settle(redriven.claim_no, ended=[done()]) == "settled"
        assert ended_jobs(conn) == [job_id, new_id]


def test_follow_ups_cost_the_stated_pages(database):
    """A settlement of jobs with follow-ups reads no more than its header says."""
    without_autovacuum(database)
    with connect(database) as conn, Reader(database) as reader:
        record(conn, {"kind": "follow"})
        for _ in range(60):
            enqueue(conn)
        stated = stated_pages()["settle_v1"]
        for _ in range(3):
            batch = reader.claim(20)
            ended = [done(offset) for offset in range(1, 11)]
            ended += [dead(offset) for offset in range(11, 21)]
            flush = [{"claim_no": batch.claim_no, "flush_no": 1, "done": [], "ended": ended}]
            read = pages(
                reader.conn,
                "select * from forebay.settle_v1(%s, %s::jsonb)",
                [reader.lease_id, json.dumps(flush)],
            )
        assert read <= stated[""] + 20 * (stated["job"] + stated["job that follows"])

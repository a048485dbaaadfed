"""The protocol of flows in SQL, spoken plainly; each promise is seen broken without its guard."""

import json
import threading
from typing import Any

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, one, sqlstate, state
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for


def step(reader: Reader, job: int, no: int, name: str = "a", **more: Any) -> dict[str, Any]:
    """Return a checkpoint to record."""
    return {
        "job_id": job, "group_id": reader.group_id, "no": no, "kind": "s", "name": name, **more,
    }  # fmt: skip


def record(conn, reader: Reader, *steps: dict[str, Any]) -> list[str]:
    """Record checkpoints; return their statuses."""
    query = "select forebay.record_steps_v1(%s, %s::jsonb)"
    return one(conn, query, reader.lease_id, json.dumps(steps))


def park(reader: Reader, claim_no: int, **flow: Any) -> str:
    """Park the only job of a batch."""
    return reader.settle(claim_no, ended=[{"offset": 1, "outcome": "snoozed", "flow": flow}])


def wait_of(name: str = "go", key: str = "k") -> dict[str, Any]:
    return {"name": name, "key": key, "step": name}


def signal(conn, name: str = "go", key: str = "k", payload: Any = None) -> bool:
    return one(conn, "select forebay.signal(%s, %s, %s::jsonb)", name, key, json.dumps(payload))


def promote(conn) -> int:
    return one(conn, "select forebay.promote_v1()")


def names(conn, job: int) -> list[str]:
    query = "select coalesce(array_agg(name order by no), '{}') from forebay.step where job_id = %s"
    return one(conn, query, job)


# --- one checkpoint, one number ---


def two_writers_of_one_number(dsn: str) -> None:
    """The first one counts, the second one is told; a repetition is recognised."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        job = enqueue(conn)
        reader.claim()
        assert record(conn, reader, step(reader, job, 1, "a", value=1)) == ["recorded"]
        assert record(conn, reader, step(reader, job, 1, "a", value=1)) == ["repeated"]
        assert record(conn, reader, step(reader, job, 1, "b", value=1)) == ["refused"]
        assert record(conn, reader, step(reader, job, 1, "a", value=2)) == ["refused"]
        both = [step(reader, job, 2, "b"), step(reader, job, 1, "c")]
        assert record(conn, reader, *both) == ["recorded", "refused"]
        assert names(conn, job) == ["a", "b"]


def test_two_writers_of_one_number(database):
    """Neither is lost in silence."""
    two_writers_of_one_number(database)


def test_without_the_comparison_a_second_writer_is_not_told(database):
    """The guard: what is there is compared."""
    break_function(database, "_record_steps", ("and s.name = i.name ", ""))
    with violation():
        two_writers_of_one_number(database)


# --- the fence ---


#: The ways to record a checkpoint in the transaction of its effects.
RECORDINGS = ("record_steps_v1", "record_once_v1")


def a_late_effect_is_refused(dsn: str, way: str) -> None:
    """A worker that lost its lease commits no effect of once()."""
    with connect(dsn) as conn, Reader(dsn) as reader, connect(dsn) as handler:
        conn.execute("create table if not exists effect_of_once (n integer)")
        job = enqueue(conn)
        reader.claim()
        handler.execute("begin")
        handler.execute("insert into effect_of_once values (1)")
        one(conn, "select forebay.close_lease_v1(%s, false)", reader.lease_id)
        assert sqlstate(handler, *recording(way, reader, job)) == "JQ010"
        handler.execute("rollback")
        assert one(conn, "select count(*) from effect_of_once") == 0


def recording(way: str, reader: Reader, job: int, name: str = "a") -> tuple[Any, ...]:
    if way == "record_once_v1":
        query = "select forebay.record_once_v1(%s, %s, %s, 1, %s, null, '7')"
        return query, reader.lease_id, job, reader.group_id, name
    query = "select forebay.record_steps_v1(%s, %s::jsonb)"
    return query, reader.lease_id, json.dumps([step(reader, job, 1, name)])


@pytest.mark.parametrize("way", RECORDINGS)
def test_a_late_effect_is_refused(database, way):
    """The lease is the fence of a step in a transaction."""
    a_late_effect_is_refused(database, way)


@pytest.mark.parametrize("way", RECORDINGS)
def test_without_the_lease_a_late_effect_is_committed(database, way):
    """The guard: the lease must be open."""
    break_function(database, way, ("and l.closed_at is null ", ""))
    with violation():
        a_late_effect_is_refused(database, way)


def a_revocation_waits_for_an_effect(dsn: str, way: str) -> None:
    """An effect that is about to commit delays the revocation, which then sees its checkpoint."""
    with connect(dsn) as conn, Reader(dsn) as reader, connect(dsn) as handler:
        job = enqueue(conn)
        reader.claim()
        handler.execute("begin")
        query, *parameters = recording(way, reader, job)
        handler.execute(query, parameters)
        conn.execute("set lock_timeout = '200ms'")
        closing = "select forebay.close_lease_v1(%s, false)"
        assert sqlstate(conn, closing, reader.lease_id) == "55P03"
        handler.execute("commit")
        one(conn, closing, reader.lease_id)
        assert names(conn, job) == ["a"]


@pytest.mark.parametrize("way", RECORDINGS)
def test_a_revocation_waits_for_an_effect(database, way):
    """Both decide in one order."""
    a_revocation_waits_for_an_effect(database, way)


@pytest.mark.parametrize("way", RECORDINGS)
def test_without_the_lock_a_revocation_does_not_wait(database, way):
    """The guard: the lock of the lease."""
    break_function(database, way, (" for key share;", ";"))
    with violation():
        a_revocation_waits_for_an_effect(database, way)


def test_a_step_in_a_transaction_is_refused_a_number_that_is_taken(database):
    """Its effects are rolled back, also when the checkpoint would be the same."""
    with connect(database) as conn, Reader(database) as reader:
        job = enqueue(conn)
        reader.claim()
        query, *parameters = recording("record_once_v1", reader, job)
        conn.execute(query, parameters)
        for name in ("a", "b"):
            assert sqlstate(conn, *recording("record_once_v1", reader, job, name)) == "23505"
        assert names(conn, job) == ["a"]


# --- woken once ---


def a_signal_wakes_in_any_order(dsn: str) -> None:
    """Parking and signal, each in a transaction that is open while the other one commits."""
    for first in ("signal", "wait", "signal, promoted", "wait, promoted"):
        with connect(dsn) as conn, Reader(dsn) as reader, connect(dsn) as other:
            job = enqueue(conn)
            batch = reader.claim()
            key = f"{first} {job}"
            conn.execute("begin")
            if first.startswith("signal"):
                signal(conn, key=key)
                park(reader, batch.claim_no, wait=wait_of(key=key))
            else:
                reader.conn.execute("begin")
                park(reader, batch.claim_no, wait=wait_of(key=key))
                signal(conn, key=key)
            if first.endswith("promoted"):
                if not first.startswith("signal"):
                    conn.execute("commit")
                promote(other)
            if reader.conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                reader.conn.execute("commit")
            if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                conn.execute("commit")
            promote(other)
            assert state(other, job) == "ready", first
            assert names(other, job) == ["go"]
            promote(other)
            assert one(other, "select count(*) from forebay.log where job_id = %s", job) == 1
            reader.claim_ready()
            one(conn, "select forebay.cancel(%s)", job)


def test_a_signal_wakes_its_flow_in_any_order_of_commits(database):
    """Once, whoever commits last."""
    a_signal_wakes_in_any_order(database)


def test_without_the_wake_row_of_a_signal_a_flow_sleeps_on(database):
    """The guard on the side of the signal."""
    wake = "perform forebay._wake_flows_later(jsonb_build_object('name', name, 'key', key));"
    break_function(database, "signal", (wake, ""))
    with violation():
        a_signal_wakes_in_any_order(database)


def test_without_the_wake_row_of_a_wait_a_flow_sleeps_on(database):
    """The guard on the side of the flow."""
    wake = (
        "perform forebay._wake_flows_later(jsonb_build_object('name', v_wait -> 'name', "
        "'key', v_wait -> 'key'));"
    )
    break_function(database, "_park", (wake, ""))
    with violation():
        a_signal_wakes_in_any_order(database)


def test_a_producer_that_holds_its_transaction_delays_no_worker(database):
    """A flow parks while the signal that it waits for is not committed."""
    with connect(database) as conn, Reader(database) as reader:
        job = enqueue(conn)
        batch = reader.claim()
        conn.execute("begin")
        signal(conn)
        reader.conn.execute("set statement_timeout = '2s'")
        assert park(reader, batch.claim_no, wait=wait_of()) == "settled"
        assert promote(reader.conn) == 1
        assert state(reader.conn, job) == "scheduled"
        conn.execute("commit")
        promote(reader.conn)
        assert state(reader.conn, job) == "ready"


def test_a_signal_and_a_timeout_at_once(database):
    """Whoever comes first decides; the other one changes nothing, and the signal is not lost."""
    with connect(database) as conn, Reader(database) as reader:
        job = enqueue(conn)
        batch = reader.claim()
        park(reader, batch.claim_no, wait=wait_of(), after=0)
        promote(conn)
        again = reader.claim_ready()
        assert again.job_ids == [job]
        signal(conn, payload=7)
        promote(conn)  # The flow is not parked: its attempt decides.
        assert one(conn, "select count(*) from forebay.signal") == 1
        ended = conn.execute(
            "select kind, value from forebay.end_wait_v1(%s, %s, %s, 1, %s::jsonb)",
            [reader.lease_id, job, reader.group_id, json.dumps(wait_of())],
        ).fetchall()
        assert ended == [("w", "7")]
        assert one(conn, "select count(*) from forebay.signal") == 0
        assert one(conn, "select count(*) from forebay.waiter") == 0


# --- children ---


def gathering(conn, reader: Reader, job: int, children: int) -> int:
    """Enqueue children of a job; return the gather."""
    query = "select forebay.gather_v1(%s, %s, %s, 1, 'all', null, %s)"
    conn.execute("begin")
    gather = one(conn, query, reader.lease_id, job, reader.group_id, children)
    jobs = json.dumps([{"kind": "child"} for _ in range(children)])
    one(conn, "select forebay.gather_children_v1(%s, 1, %s::jsonb)", gather, jobs)
    conn.execute("commit")
    return gather


def ends(batch, *offsets: int) -> list[dict[str, Any]]:
    """Return what a worker sends of children that are done."""
    found = []
    for offset in offsets:
        job = batch.jobs[offset - 1]
        parent = json.loads(job["headers"]["forebay-parent"])
        found.append(
            {"gather": parent["gather"], "nr": parent["nr"], "job_id": job["job_id"], "value": 1}
        )
    return found


def the_last_child_wakes_its_parent(dsn: str) -> None:
    """Whether it ends before or after the parking, and whatever promotion sees which end."""
    for parks in ("first", "between", "last"):
        with connect(dsn) as conn, Reader(dsn) as reader, Reader(dsn) as other:
            job = enqueue(conn)
            batch = reader.claim()
            gather = gathering(conn, reader, job, 4)
            if parks == "first":
                park(reader, batch.claim_no, gather=str(gather))
            children = other.claim()
            assert len(children.jobs) == 4
            settle(other, children, 1, 2)
            promote(conn)
            if parks == "between":
                park(reader, batch.claim_no, gather=str(gather))
                promote(conn)
                assert state(conn, job) == "scheduled"
            settle(other, children, 3)
            settle(other, children, 4)
            promote(conn)
            if parks == "last":
                park(reader, batch.claim_no, gather=str(gather))
                promote(conn)
            assert state(conn, job) == "ready", parks
            assert one(conn, "select count(*) from forebay.log where job_id = %s", job) == 1
            reader.claim_ready()


def settle(reader: Reader, batch, *offsets: int) -> None:
    flush = {
        "claim_no": batch.claim_no, "flush_no": offsets[0], "done": list(offsets),
        "children": ends(batch, *offsets),
    }  # fmt: skip
    query = "select status from forebay.settle_v1(%s, %s::jsonb)"
    assert one(reader.conn, query, reader.lease_id, json.dumps([flush])) == "settled"


def test_the_last_child_wakes_its_parent(database):
    """Once."""
    the_last_child_wakes_its_parent(database)


def test_without_the_wake_row_of_a_parent_it_sleeps_on(database):
    """The guard: children may all have ended before it parks."""
    wake = (
        "perform forebay._wake_flows_later(jsonb_build_object('gather', p_flow -> 'gather', "
        "'exact', true));"
    )
    break_function(database, "_park", (wake, ""))
    with violation():
        the_last_child_wakes_its_parent(database)


def a_forged_child_counts_for_nothing(dsn: str) -> None:
    """A job whose headers name a gather, and that is no child of it."""
    with connect(dsn) as conn, Reader(dsn) as reader:
        job = enqueue(conn)
        reader.claim()
        gather = gathering(conn, reader, job, 2)
        header = json.dumps({"nr": 1, "job": job, "gather": str(gather)}).replace(":", ":")
        forged = enqueue(conn, kind="forged", headers=json.dumps({"forebay-parent": header}))
        claimed = reader.claim()
        at = claimed.job_ids.index(forged) + 1
        dead = {"offset": at, "outcome": "dead", "reason": "permanent"}
        assert reader.settle(claimed.claim_no, ended=[dead]) == "settled"
        assert one(conn, "select count(*) from forebay.gather_end") == 0


def test_a_forged_child_counts_for_nothing(database):
    """Headers are what a producer writes."""
    a_forged_child_counts_for_nothing(database)


def test_without_the_comparison_of_ids_a_forged_child_counts(database):
    """The guard: the id of the job."""
    guard = "forebay._first_of_redriven(g.job_id, p.job_id)"
    break_function(database, "_end_children", (guard, "true"))
    with violation():
        a_forged_child_counts_for_nothing(database)


def test_two_signals_at_once(database):
    """The second transaction waits for the first, and is told how it ended."""
    with connect(database) as one_side, connect(database) as other:
        one_side.execute("begin")
        assert signal(one_side, payload=1)
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(signal(other, payload=2)))
        thread.start()
        wait_for(lambda: one(one_side, "select count(*) from pg_locks where not granted") > 0, 10)
        one_side.execute("rollback")
        thread.join()
        assert answers == [True]


def test_few_names_are_noted_of_a_kind(conn):
    """A handler that makes up names does not fill the table, and what is no name is refused."""
    note = "select forebay.note_unasked_v1(%s, %s::text[])"
    one(conn, note, "work", [f"n{n}" for n in range(50)])
    one(conn, note, "work", [f"n{n}" for n in range(200)])
    seen = one(conn, "select count(*) from forebay.unasked_step")
    for n in range(10):
        one(conn, note, "work", [f"n{n}", f"m{n}"])
    assert one(conn, "select count(*) from forebay.unasked_step") == seen == 200
    for kind, names in (("a b", ["n"]), ("work", ["a\nb"]), ("work", [""]), ("work", None)):
        assert sqlstate(conn, note, kind, names) == "JQ001"


def test_trimming_keeps_what_flows_need(database):
    """Checkpoints stay while the job waits or its letter can be redriven, and go with its rows."""
    with connect(database) as conn, Reader(database) as reader:
        job = enqueue(conn)
        batch = reader.claim()
        record(conn, reader, step(reader, job, 1))
        park(reader, batch.claim_no, after=1000)
        conn.execute("update forebay.segment set removed_at = now() where lo <= %s", [job])
        trimmed = "select rows from forebay.trim_v1('flows')"
        one(conn, trimmed)
        assert names(conn, job) == ["a"]
        conn.execute("delete from forebay.deferred")
        assert one(conn, trimmed) == 1
        assert names(conn, job) == []

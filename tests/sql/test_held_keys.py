"""A dead letter holds its ordering key: later jobs wait until it is redriven, in its place,
skipped or purged.
"""

import asyncio
from contextlib import closing

import psycopg
import pytest

import forebay
from forebay.doctor.examine import examine
from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    one,
    small_segments,
    sqlstate,
    state,
    trim,
)
from tests.support.mutant import break_function


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@pytest.fixture
def reader(database):
    reader = Reader(database)
    with closing(reader.conn):
        yield reader


@pytest.fixture
def other(database):
    """A second worker of the same group."""
    reader = Reader(database)
    with closing(reader.conn):
        yield reader


def keyed(conn, count: int, key: str = "k") -> list[int]:
    return [enqueue(conn, ordering_key=key) for _ in range(count)]


def dies(reader, batch, offset: int = 1, *, holds: bool = True, others: str | None = "released"):
    """Settle a job of a batch as dead; the jobs behind it as a worker does that releases them."""
    ended = [{"offset": offset, "outcome": "dead", "reason": "permanent", "holds_key": holds}]
    ended += [
        {"offset": at + 1, "outcome": others}
        for at in range(offset, len(batch.jobs))
        if others is not None
    ]
    assert reader.settle(batch.claim_no, list(range(1, offset)), ended=ended) == "settled"
    reader.open_claims.discard(batch.claim_no)


def ran(reader) -> list[int]:
    """Claim and finish until nothing is ready; return the ids of the jobs in order."""
    ids = []
    for _ in range(50):
        batch = reader.claim_ready()
        if not batch.jobs:
            return ids
        ids += [job["job_id"] for job in batch.jobs]
        reader.finish(batch)
    raise AssertionError(f"it does not end: {ids}")


def letter(conn, job_id: int) -> int:
    return one(
        conn,
        "select dead_id from forebay.dead_letter where job_id = %s order by dead_id desc limit 1",
        job_id,
    )


def redriven(conn, job_id: int) -> int:
    return one(conn, "select forebay.redrive(%s)", letter(conn, job_id))


def test_later_jobs_wait_and_other_keys_go_on(conn, reader):
    """Claimed before the death, parked, and enqueued after it."""
    first, *rest = keyed(conn, 3)
    dies(reader, reader.claim_ready())
    later = keyed(conn, 2)
    free = keyed(conn, 2, "another")
    assert ran(reader) == free
    assert {state(conn, job) for job in rest + later} == {"ready"}
    assert state(conn, first) == "dead"
    assert reader.ready() == []
    (waiting,) = conn.execute("select sum(ready) from forebay.depth()").fetchone()
    assert waiting == 4


@pytest.mark.parametrize("fresh", [False, True])
def test_a_redriven_job_takes_its_place(conn, reader, other, fresh):
    """For the worker that had it and for another one."""
    first, *rest = keyed(conn, 3)
    dies(reader, reader.claim_ready())
    later = keyed(conn, 2)
    assert ran(reader) == []
    again = redriven(conn, first)
    assert ran(other if fresh else reader) == [again, *rest, *later]
    assert one(conn, "select count(*) from forebay.dead_letter where holds_key") == 0


def test_a_dead_letter_holds_its_key_by_holds_key_alone(conn, reader):
    """``held`` is no outcome: a claim of it is refused, and nothing is settled."""
    (job,) = keyed(conn, 1)
    batch = reader.claim_ready()
    with pytest.raises(psycopg.Error, match="unknown outcome 'held'") as refused:
        reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "held"}])
    assert refused.value.sqlstate == "JQ001"
    assert state(conn, job) in {"claimed", "running"}
    dies(reader, batch)
    assert state(conn, job) == "dead"


def test_a_redriven_job_that_dies_again_holds_its_key_again(conn, reader):
    first, *rest = keyed(conn, 2)
    dies(reader, reader.claim_ready())
    again = redriven(conn, first)
    batch = reader.claim_ready(1)
    assert [job["job_id"] for job in batch.jobs] == [again]
    dies(reader, batch)
    assert ran(reader) == []
    assert ran(reader) == []
    once_more = redriven(conn, again)
    assert ran(reader) == [once_more, *rest]


def test_a_redriven_job_may_be_retried(conn, reader):
    first, *rest = keyed(conn, 2)
    dies(reader, reader.claim_ready())
    again = redriven(conn, first)
    batch = reader.claim_ready(1)
    assert (
        reader.settle(batch.claim_no, [], ended=[{"offset": 1, "outcome": "retried"}]) == "settled"
    )
    reader.open_claims.discard(batch.claim_no)
    assert ran(reader) == [again, *rest]


def test_a_redriven_job_that_is_cancelled_lets_its_key_go_on(conn, reader):
    first, *rest = keyed(conn, 2)
    dies(reader, reader.claim_ready())
    again = redriven(conn, first)
    assert one(conn, "select forebay.cancel(%s)", again) is not None
    assert ran(reader) == rest


def test_a_skipped_letter_lets_its_key_go_on(conn, reader):
    first, *rest = keyed(conn, 3)
    dies(reader, reader.claim_ready())
    later = keyed(conn, 1)
    assert ran(reader) == []
    assert one(conn, "select forebay.skip_dead(%s)", letter(conn, first)) is True
    assert one(conn, "select forebay.skip_dead(%s)", letter(conn, first)) is False
    assert ran(reader) == rest + later
    # A letter that was skipped is redriven as any other.
    again = redriven(conn, first)
    assert ran(reader) == [again]


def test_a_purge_lets_keys_go_on_and_a_rule_does_not(conn, reader):
    first, *rest = keyed(conn, 2)
    dies(reader, reader.claim_ready())
    one(conn, "select forebay.keep_dead('default', 1)")
    conn.execute("update forebay.dead_letter set died_at = died_at - interval '3 days'")
    trim(conn, "dead_letters")
    assert one(conn, "select count(*) from forebay.dead_letter") == 1
    assert ran(reader) == []
    assert one(conn, "select forebay.purge_dead('0 s')") == 1
    assert ran(reader) == rest
    assert state(conn, first) in (None, "dead")


def test_what_is_wrong_is_refused(conn, reader):
    first, _ = keyed(conn, 2)
    dies(reader, reader.claim_ready())
    dead_id = letter(conn, first)
    assert sqlstate(conn, "select forebay.skip_dead(%s)", dead_id + 1) == "JQ015"
    redriven(conn, first)
    assert sqlstate(conn, "select forebay.skip_dead(%s)", dead_id) == "JQ016"
    assert one(conn, "select forebay.purge_dead('0 s')") == 0


def test_a_job_without_an_ordering_key_holds_nothing(conn, reader):
    job = enqueue(conn)
    dies(reader, reader.claim_ready())
    assert one(conn, "select count(*) from forebay.dead_letter where holds_key") == 0
    assert state(conn, job) == "dead"


def test_the_default_is_that_the_key_goes_on(conn, reader):
    first, *rest = keyed(conn, 2)
    batch = reader.claim_ready(1)
    dies(reader, batch, holds=False)
    assert ran(reader) == rest
    assert state(conn, first) == "dead"


def test_a_job_that_kills_its_worker_holds_its_key(database, conn, reader):
    """Workers have declared it. Whoever revokes the lease decides about the death."""
    conn.execute("select * from forebay.record_kinds_v1('w', '{work}', '{default}', '{work}')")
    first, *rest = [
        one(conn, "select forebay.enqueue('work', max_attempts => 1, ordering_key => 'k')")
        for _ in range(2)
    ]
    batch = reader.claim_ready()
    assert len(batch.jobs) == 2
    assert reader.revoked_by(conn) == 2
    reader.open_lease()
    suspect = next(lane for lane in reader.ready() if lane["is_suspect"])
    batch = reader.claim(10, suspect["lane"])
    assert [job["job_id"] for job in batch.jobs] == [first]
    conn.execute("select forebay.start_suspect_v1(%s, %s)", [reader.lease_id, batch.claim_no])
    assert reader.revoked_by(conn) == 1
    assert state(conn, first) == "dead"
    reader.open_lease()
    assert ran(reader) == []
    again = redriven(conn, first)
    assert ran(reader) == [again, *rest]


def test_each_group_holds_its_own_key(database, conn):
    """A job that died for one group holds the key for that group only."""
    readers = [Reader(database, "default", name) for name in ("one", "two")]
    with closing(readers[0].conn), closing(readers[1].conn):
        first, *rest = keyed(conn, 2)
        dies(readers[0], readers[0].claim_ready())
        assert ran(readers[1]) == [first, *rest]
        assert ran(readers[0]) == []
        again = redriven(conn, first)
        assert ran(readers[0]) == [again, *rest]
        assert ran(readers[1]) == []


@pytest.mark.slow
def test_a_hold_outlives_what_is_trimmed(conn, reader):
    """The dead job's segment is emptied, and what is older is trimmed. The key stays held."""
    small_segments(conn, rows=100, reserve=1000)
    one(conn, "select forebay.configure('retention_days', 0)")
    (first,) = keyed(conn, 1)
    dies(reader, reader.claim_ready())
    for _ in range(250):
        enqueue(conn, ordering_key="another")
    assert len(ran(reader)) == 250
    assert one(conn, "select forebay.seal_v1()") >= 2
    assert ran(reader) == []
    while one(conn, "select emptied from forebay.retain_v1()") is not None:
        pass
    query = "select removed_at from forebay.segment where %s >= lo and %s < hi"
    assert one(conn, query, first, first) is not None
    trim(conn)
    later = keyed(conn, 2)
    assert ran(reader) == []
    again = redriven(conn, first)
    assert ran(reader) == [again, *later]


def lease_is_lost_after_the_skip(reader: Reader, conn, how: str) -> tuple[list[int], list[int]]:
    """Return the jobs that the lease had behind the dead one, and those that run."""
    first, *rest = keyed(conn, 3)
    batch = reader.claim_ready()
    dies(reader, batch, others=None)
    one(conn, "select forebay.skip_dead(%s)", letter(conn, first))
    assert ran(reader) == []
    if how == "closed":
        one(conn, "select forebay.close_lease_v1(%s)", reader.lease_id)
    else:
        reader.revoked_by(conn)
    reader.open_lease()
    return rest, ran(reader)


@pytest.mark.parametrize("how", ["closed", "revoked"])
def test_a_lease_that_is_lost_after_the_skip_forgets_nothing(conn, reader, how):
    """Its worker had not yet released the jobs behind the dead one when claims looked at the key
    again.
    """
    rest, got = lease_is_lost_after_the_skip(reader, conn, how)
    assert got == rest


def test_a_lost_lease_would_forget_them(database, conn, reader):
    """The same with a revocation that does not make claims look at the key."""
    break_function(database, "_revoke", ("v_dead := v_dead || v_requeued;", ""))
    assert lease_is_lost_after_the_skip(reader, conn, "revoked")[1] == []


MUTANTS = [
    pytest.param(
        "_decide_keyed",
        [
            ("'{r,l,s,u,h,k,y}'", "'{r,l,s,u,h,k}'"),
            ("or v_holds and exists", "or false and exists"),
        ],
        id="the quick path",
    ),
    pytest.param("_key_states", [("i.holds_key offset 0", "false offset 0")], id="the state"),
]


@pytest.mark.parametrize(("name", "mutants"), MUTANTS)
def test_a_key_goes_on_without_the_guards(database, conn, reader, name, mutants):
    """The control."""
    break_function(database, name, *mutants)
    keyed(conn, 1)
    dies(reader, reader.claim_ready())
    later = keyed(conn, 2)
    assert ran(reader) == later


def test_a_key_stays_held_without_the_recheck_row(database, conn, reader):
    """The control of skipping."""
    break_function(
        database,
        "_end_holds",
        ("perform forebay._announce_keys(", "perform coalesce("),
        ("v_key.priority, v_key.group_id, v_key.keys)", "v_key.queue)"),
    )
    first, _ = keyed(conn, 2)
    dies(reader, reader.claim_ready())
    one(conn, "select forebay.skip_dead(%s)", letter(conn, first))
    assert ran(reader) == []


def test_a_redriven_job_loses_its_place_where_the_hold_does_not_end(database, conn, reader):
    """The control of taking a redriven job: the key would wait for it for ever."""
    break_function(
        database,
        "_choose_keyed",
        ("and d.holds_key and d.redriven_as", "and false and d.redriven_as"),
    )
    first, *rest = keyed(conn, 2)
    dies(reader, reader.claim_ready())
    again = redriven(conn, first)
    assert ran(reader) == [again, *rest]
    keyed(conn, 1)
    assert ran(reader) == []


def held_keys(database):
    """Return what the doctor finds about held keys."""
    (found,) = [one for one in asyncio.run(examine(database)) if one.check == "held keys"]
    return found


@pytest.mark.slow
def test_doctor_names_the_letter(database, conn, reader):
    """For a job that waits, and after an hour for the database."""
    client = forebay.Client(database)
    first, waiting = keyed(conn, 2)
    dies(reader, reader.claim_ready())
    dead_id = letter(conn, first)
    explained = client.explain(waiting)
    assert "held" in {one.cause for one in explained}, explained
    assert any(f"dead letter {dead_id}" in one.answer for one in explained)
    found = held_keys(database)
    assert found.level.name == "OK"
    conn.execute("update forebay.dead_letter set died_at = died_at - interval '2 hours'")
    found = held_keys(database)
    assert found.level.name == "WARNING"
    assert f"forebay dead skip {dead_id}" in (found.remedy or "")
    assert client.dead_letter(dead_id).holds_key
    assert client.skip_dead(dead_id)
    found = held_keys(database)
    assert found.what == "no dead letter holds its ordering key"
    acts = [event.act for event in client.events()]
    assert acts[:2] == ["keys.skip", "keys.hold"]

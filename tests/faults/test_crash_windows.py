"""A worker process killed, or cut off, at the worst moments: around a claim, a start, a commit."""

import pytest

from tests.support.engine import depth, enqueue, one, state
from tests.support.mutant import break_function
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for


@pytest.mark.parametrize("kind", ["write", pytest.param("write_in_thread", marks=pytest.mark.slow)])
@pytest.mark.parametrize("fate", ["committed", "not committed"])
def test_killed_while_the_commit_of_its_handler_is_in_doubt(
    conn, database, workers, effects, kind, fate
):
    """
    The process dies after it sent the commit and before it heard the answer. Whether the commit had
    arrived or not: one effect, one completion, and the handler runs again only if nothing was
    committed.
    """
    with Proxy(database) as proxy:
        worker = workers.start(dsn=proxy.dsn)
        fault = (proxy.freeze if fate == "committed" else proxy.cut)("COMMIT", times=None)
        job = enqueue(conn, kind=kind, args={"entry": 1})
        fault.wait()
        worker.kill()
    workers.start()
    wait_for(lambda: state(conn, job) == "done", 30, lambda: workers.logs)
    assert one(conn, "select count(*) from effect") == 1
    assert len(effects.all("start")) >= (1 if fate == "committed" else 2)
    if fate == "committed":
        assert len(effects.all("start")) == 1


@pytest.mark.slow
def test_killed_between_claim_and_start_costs_no_attempt(conn, database, workers, effects):
    """
    The claim is committed, its answer never arrives, the process dies: every job runs, at its first
    attempt.
    """
    with Proxy(database) as proxy:
        worker = workers.start(dsn=proxy.dsn)
        fault = proxy.freeze("claim_v1", times=None)
        for entry in range(20):
            enqueue(conn, args={"entry": entry})
        fault.wait()
        wait_for(lambda: one(conn, "select count(*) from forebay.batch where lease_id > 0"))
        worker.kill()
    assert effects.all() == []
    workers.start()
    wait_for(lambda: depth(conn)["default"] == (0, 0, 0), 30, lambda: workers.logs)
    starts = effects.all("start")
    assert sorted(s.entry for s in starts) == list(range(20))
    assert {s.attempt for s in starts} == {1}


@pytest.mark.slow
def test_killed_again_while_its_suspects_run_costs_each_started_one_an_attempt(
    conn, workers, effects
):
    """
    A job whose worker died is tried alone. When that worker dies too, the job that was running pays
    an attempt, and one that had not been started does not.
    """
    first = workers.start(concurrency=1)
    job = enqueue(conn, args={"entry": 1, "seconds": 3})
    wait_for(lambda: len(effects.all("start")) == 1)
    first.kill()
    second = workers.start(concurrency=1)
    wait_for(lambda: len(effects.all("start")) == 2, 20, lambda: workers.logs)
    waiting = enqueue(conn, args={"entry": 2})
    second.kill()
    workers.start()
    wait_for(lambda: state(conn, waiting) == "done", 20, lambda: workers.logs)
    wait_for(lambda: state(conn, job) == "done", 40, lambda: workers.logs)
    assert [s.attempt for s in effects.all("start") if s.entry == 1] == [1, 1, 2]
    assert [s.attempt for s in effects.all("start") if s.entry == 2] == [1]


def settlements_as_done(conn, workers, effects) -> int:
    """Freeze a worker that does not watch its own lease until its job ran elsewhere, thaw it,
    and count.
    """
    frozen = workers.start(concurrency=1, environment={"TEST_WITHOUT_OWN_FENCE": "1"})
    job = enqueue(conn, args={"entry": 1, "seconds": 1.0})
    wait_for(lambda: effects.all("start"))
    frozen.freeze()
    workers.start()
    wait_for(lambda: state(conn, job) == "done", 30)
    frozen.thaw()
    wait_for(lambda: len(effects.all("end")) == 2)
    frozen.terminate()
    frozen.wait(20)
    return one(conn, DONE)


#: Jobs settled as done: a settlement without outcomes is one of whole batches.
DONE = "select count(*) from forebay.settlement where outcomes is null"


@pytest.mark.slow
def test_the_fence_is_in_the_database(conn, workers, effects):
    """
    A thawed worker that does not notice that its lease is gone is refused all the same, and told
    so.
    """
    assert settlements_as_done(conn, workers, effects) == 1
    assert "LeaseLost" in workers.members[0].log


@pytest.mark.slow
def test_the_fence_breaks_without_its_two_guards(conn, database, workers, effects):
    """
    The same with a settlement that asks neither for the lease nor for what is settled: both count.
    """
    break_function(
        database,
        "settle_v1",
        ("and l.closed_at is null for key share", "for key share"),
        ("and (s.offsets is null or v_offsets is null or s.offsets && v_offsets)", "and false"),
    )
    assert settlements_as_done(conn, workers, effects) == 2

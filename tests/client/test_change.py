"""Acts on many jobs through the clients."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import forebay
from forebay.errors import InvalidJob, JobsChanged
from forebay.ops import change
from tests.support.engine import connect, enqueue, enqueue_many, one, state

pytestmark = pytest.mark.anyio


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def test_a_filter_takes_ids_from_a_generator_twice(database, conn):
    """The act comes after its plan, with the same filter."""
    jobs = enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(3)])
    client = forebay.Client(database)
    which = forebay.JobFilter(ids=(job for job in jobs[:2]))
    plan = client.plan_change("cancel", which)
    assert plan.jobs == 2
    assert client.cancel_matching(which, token=plan.token).taken == 2
    assert which == forebay.JobFilter(ids=tuple(jobs[:2]))


def test_an_act_in_steps_takes_every_job_once(database, conn, monkeypatch):
    """And a call after an interruption finishes it."""
    monkeypatch.setitem(change._STEP, "cancel", 7)
    monkeypatch.setattr(change, "_STEP_OF_MOVES", 4)
    jobs = enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(20)])
    client = forebay.Client(database)
    seen = []
    which = forebay.JobFilter(queue="mail")
    result = client.reprioritise_matching(which, 5, progress=seen.append)
    assert (result.answers, result.taken) == ({"changed": 20}, 20)
    assert seen == [4, 8, 12, 16, 20, 20]
    assert {one(conn, "select priority from forebay.job(%s)", job) for job in jobs} == {5}

    def stop(taken):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.cancel_matching(which, progress=stop)
    assert client.plan_change("cancel", which).jobs == 13
    assert client.cancel_matching(which).answers == {"cancelled": 13}
    assert [event.count for event in client.events(act="jobs")] == [13, 7, 20]


def test_plans_tokens_and_bad_filters(database, conn):
    client = forebay.Client(database)
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(5)])
    which = forebay.JobFilter(queue="mail")
    plan = client.plan_change("purge", which)
    assert (plan.jobs, plan.answers, plan.states) == (5, {"cancelled": 5}, {"ready": 5})
    assert plan.oldest_at <= plan.newest_at
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(11)])
    with pytest.raises(JobsChanged) as caught:
        client.cancel_matching(which, token=plan.token)
    assert caught.value.token == plan.token
    assert client.purge_queue("mail", token=plan.token).taken == 5
    assert client.purge_queue("mail", token=client.plan_change("purge", which).token).taken == 11
    empty = client.plan_change("purge", which)
    assert (empty.jobs, empty.oldest_at) == (0, None)
    for bad in (
        forebay.JobFilter(),
        forebay.JobFilter(ids=["1"]),
        forebay.JobFilter(kind=3),
        forebay.JobFilter(enqueued_after=datetime(2027, 1, 1)),  # noqa: DTZ001
    ):
        with pytest.raises(InvalidJob):
            client.cancel_matching(bad)
    with pytest.raises(InvalidJob):
        client.reschedule_matching(which)
    with pytest.raises(InvalidJob):
        client.reprioritise_matching(which, 100_000)


def test_a_cancellation_in_a_transaction_is_undone_with_it(database, conn):
    job = enqueue(conn, queue="mail")
    client = forebay.Client(database)
    with psycopg.connect(database) as mine:
        assert client.cancel_matching(forebay.JobFilter(queue="mail"), conn=mine).taken == 1
        mine.rollback()
    assert client.cancel_matching(forebay.JobFilter(ids=[job, 99])).jobs == {
        job: "cancelled",
        99: "unknown",
    }


async def test_the_asynchronous_client_does_the_same(database, conn):
    client = forebay.AsyncClient(database)
    job = enqueue(conn, queue="mail", delay="1 hour")
    which = forebay.JobFilter(ids=[job])
    assert (await client.reschedule_matching(which, delay=timedelta(hours=2))).jobs == {
        job: "changed"
    }
    assert (await client.job(job))[0].run_at > datetime.now(UTC) + timedelta(minutes=110)
    assert (await client.retry_matching(which)).jobs == {job: "changed"}
    assert state(conn, job) == "ready"
    assert (await client.retry_matching(which)).jobs == {job: "unchanged"}
